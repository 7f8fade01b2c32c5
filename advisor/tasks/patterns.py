r"""A task file's `extract`: the regular expression that picks the answer out of a response.

    >>> find(r"answer is (-?[0-9]+)", "2 + 3 = 5. The answer is 5.")
    '5'

Task files are shared, and a pattern such as `(a|aa)+$` can keep a backtracking engine busy for years. So patterns
run in the `regex` package, which speaks the language of `re` and stops after a given time. Not covered: what a pattern
that runs out of time would have found; it counts as no match.
"""

from __future__ import annotations

import regex  # type: ignore[import-untyped]

SECONDS = 1.0  # processor time for one response; an honest pattern needs microseconds


def problem(pattern: str) -> str | None:
    """Say in one line why this is no regular expression; None where it is one."""
    try:
        regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        return str(error).partition("\n")[0]
    return None


def find(pattern: str, text: str) -> str | None:
    """First group that took part in the first match, or the whole match where there are no groups; None if no match.

    Args:
        pattern: One that has no ``problem``.
        text: Any text.
    """
    try:
        match = regex.search(pattern, text, timeout=SECONDS)
    except (TimeoutError, RecursionError, MemoryError):
        return None
    if match is None:
        return None
    groups: tuple[str | None, ...] = match.groups()
    if not groups:
        return str(match.group())
    return next((group for group in groups if group is not None), None)
