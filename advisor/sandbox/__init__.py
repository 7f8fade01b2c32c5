"""Run programs that a model wrote, each in its own process with as few rights as this system can enforce.

    >>> run("def double(x): return 2 * x", ["assert double(2) == 4"])   # None: it passed
    >>> run("def double(x): return x", ["assert double(2) == 4"])
    'AssertionError'

`run_program.py` starts the process and reads its report. `guard.py` is the script inside of the process. `folder.py`
removes what the program leaves. `docs/tasks.md` lists what the sandbox does not stop.
"""

from __future__ import annotations

from advisor.sandbox.run_program import Isolation, SandboxLimits, check_strong, gaps, isolation, run

__all__ = ["Isolation", "SandboxLimits", "check_strong", "gaps", "isolation", "run"]
