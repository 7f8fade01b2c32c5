"""How the stages say what they are doing, without knowing to whom."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Watcher(Protocol):
    """Somebody who is told how far a run is."""

    def stage(self, description: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a stage of ``total`` parts; what is yielded is called with the number of parts that are done."""
        ...

    def say(self, text: str) -> None:
        """Take note of a line: what was left out, set aside or slow."""
        ...
