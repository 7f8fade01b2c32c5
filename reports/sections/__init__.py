"""The sections of the report.

To add a section:

1. Write ``templates/sections/NAME.html.j2``, the inside of the section. It has ``result``, a
   :class:`advisor.run.result.Result`. ``draw`` in ``templates/parts.html.j2`` draws a :class:`reports.tables.Table`.
2. Write a function of a :class:`reports.report_data.ReportData` in the file of ``sections`` whose subject it shares. It
   returns the other values of the template, or None if the run has nothing to show. ``finding`` among them says in a
   few words what the section shows, and is its title.
3. Add the section to ``SECTIONS`` in ``page.py``, in the order of the page.
4. Describe it in ``docs/report.md``.
"""
