"""Run programs that a model wrote, each in its own process with as few rights as this system can enforce."""

from __future__ import annotations

from advisor.sandbox.run_program import Isolation, check_strong, gaps, isolation, run

__all__ = ["Isolation", "check_strong", "gaps", "isolation", "run"]
