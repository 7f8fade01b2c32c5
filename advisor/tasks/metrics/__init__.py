"""The metrics: one module each, whose ``METRIC`` reads an answer from a response and compares it with the reference.

Adding one is adding a module here; its name is what a task file says under ``metric``. A metric that runs code which a
model wrote has two of them: its ``METRIC`` refuses, and its ``EXECUTING`` is used where the user has allowed that.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Protocol, cast


class Metric(Protocol):
    """How a response is scored.

    Attributes:
        packages: Distributions whose version can change a score; they go into the signature.
    """

    packages: tuple[str, ...]

    def problem(self, accepted: tuple[str, ...], choices: tuple[str, ...], /) -> str | None:
        """Say why these accepted texts and choices cannot be scored against; None where they can."""

    def score(self, text: str, accepted: tuple[str, ...], choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Give the score, 0 to 1, and the answer that was read from the text, None where there is none.

        Never raises. Two texts with the same answer read get the same score.
        """


@cache
def metric_names() -> tuple[str, ...]:
    """Every metric there is, sorted. Imports none of them."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


@cache
def get_metric(name: str, *, allow_code_execution: bool = False) -> Metric:
    """The metric of that name, one of ``metric_names()``; one that runs code refuses to score unless it is allowed."""
    module = import_module(f"{__name__}.{name}")
    return cast(Metric, module.EXECUTING if allow_code_execution and runs_code(name) else module.METRIC)


@cache
def runs_code(name: str) -> bool:
    """Whether the metric of that name runs code that a model wrote."""
    return hasattr(import_module(f"{__name__}.{name}"), "EXECUTING")
