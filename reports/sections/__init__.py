"""The sections of the report, one file each.

To add a section:

1. Write ``sections/NAME.py`` with a function ``values(result)``. It returns the values of the section's template, or
   None if the run has nothing to show.
2. Write ``templates/sections/NAME.html.j2``. It has these values and ``result``.
3. Add the section to ``SECTIONS`` in ``page.py``, in the order of the page.
"""
