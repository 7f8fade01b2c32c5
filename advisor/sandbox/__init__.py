"""Running programs that a model wrote, each in a process of its own that can do as little as this system allows.

    >>> run("def double(x): return 2 * x", ["assert double(2) == 4"])
    Verdict(passed=True, reason=None)

``guard.py`` is the other end. What the sandbox does not stop is listed in ``docs/tasks.md``.
"""

from __future__ import annotations

from advisor.sandbox.running import Isolation, Limits, Verdict, gaps, isolation, run

__all__ = ["Isolation", "Limits", "Verdict", "gaps", "isolation", "run"]
