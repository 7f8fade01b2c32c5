"""The sections of the report, one file each.

To add a section:

1. Write ``templates/sections/NAME.html.j2``. It has ``result``, a :class:`advisor.runs.schema.result.Result`. The id
   of its ``<section>`` is NAME.
2. If the template needs more than ``result``, write ``sections/NAME.py`` with a function ``values(report)`` of a
   :class:`reports.report_data.ReportData`. It returns the other values of the template, or None if the run has nothing
   to show.
3. Add the section to ``SECTIONS`` in ``page.py``, in the order of the page; without a function its third part is None.
4. Describe it in ``docs/report.md``.
"""
