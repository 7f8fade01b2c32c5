"""The metrics, one file each. A metric reads an answer from a response and compares it with the reference.

To add a metric, add one file here; no other code changes. The file's name is the metric's name in a task file. It needs

- ``METRIC``, an object with the three members of `Metric`: ``packages``, ``problem`` and ``score``;
- a module docstring that says when a response is right, with an example of ``METRIC.score`` and its result, and what
  the metric does not cover.

A metric that reads JSON also has ``read(text)``, which gives the canonical form of an answer, or raises a ValueError
that says where a text is broken. Its name is then in READERS, and ``extract`` in a task file may name it, too.

A metric that runs code which a model wrote also needs ``EXECUTING``, an object with the same members: it is used if the
user allows code to run, and ``METRIC.score`` raises InputError. `contains.py` is a short example. A metric that differs
little from another is the ``VARIANT`` in its file, and stands in VARIANTS. Other packages add metrics by entry points;
see :mod:`ensemble.plugins`.

Votes are compared only for a metric in ``VOTE_METRICS`` of
`advisor/strategies/vote.py`. Add it there if it reads its answer without looking at the reference.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, cast

from ensemble.plugins import Plugins

VARIANTS = {"chrf": "bleu", "exact_match_squad": "exact_match", "json_fields": "json", "number_comma": "number"}
"""The metrics that are in the file of another one, and its name."""

COMPARING = ("chrf", "bleu")
"""The metrics that compare two whole texts. They also score all responses together."""

RULES = 2
"""The version of the rules by which these metrics read and compare answers, for signatures: a changed rule is a new
one."""

READERS = {"json": "json", "json_fields": "json", "tool_call": "tool_call"}
"""The metrics that read JSON, and what reads it: a name for ``extract`` in a task file."""

# A prompt names its options only in its text. These are one for each letter, with a text that no response has
# (characters for private use).
LETTERS_ALONE = tuple(map(chr, range(0xE000, 0xE000 + 26)))
"""The options of a question whose options are not known, so that only letters are read."""


class Metric(Protocol):
    """Scores a response.

    Attributes:
        packages: Distributions whose version can change a score; their versions go into the signature.
    """

    packages: tuple[str, ...] = ()

    def problem(self, _accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """Why this metric cannot use these accepted texts and choices; None if it can, as most metrics any text."""
        return None

    def score(self, text: str, accepted: tuple[str, ...], choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """The score, 0 to 1, and the answer that was read from the text; the answer is None if the text has none.

        It never raises. Two texts with the same answer have the same score.
        """


@cache
def plugins() -> Plugins:
    """The metrics of other packages."""
    return Plugins("metric", _builtin(), ("METRIC",))


@cache
def metric_names() -> tuple[str, ...]:
    """The names of all metrics, sorted."""
    return tuple(sorted((*_builtin(), *plugins().names)))


@cache
def get_metric(name: str, *, allow_code_execution: bool = False) -> Metric:
    """The metric of a name in ``metric_names()``; a metric that runs code refuses to score unless it is allowed."""
    executes = allow_code_execution and runs_code(name)
    return cast(
        Metric, getattr(_module(name), "VARIANT" if name in VARIANTS else "EXECUTING" if executes else "METRIC")
    )


def read_with(reader: str, text: str) -> str:
    """The canonical form of the JSON in a text, by a value of READERS; a ValueError says where it is broken."""
    canonical: str = _module(reader).read(text)
    return canonical


def place_of(name: str, text: str, answer: str) -> tuple[int, int] | None:
    """The beginning and the end of an answer that a metric read from a text; None if it does not stand there."""
    if name in ("number", "number_comma", "choice"):
        found, place = cast(Any, get_metric(name)).read(text, LETTERS_ALONE)
        return place if found == answer else None
    start = text.lower().rfind(answer.lower())
    return (start, start + len(answer)) if start >= 0 else None


@cache
def runs_code(name: str) -> bool:
    """Whether the metric of a name runs code that a model wrote."""
    return hasattr(_module(name), "EXECUTING")


def _builtin() -> list[str]:
    # From the file names: importing the metrics would load sacrebleu, which few tasks need.
    return [*(module.name for module in pkgutil.iter_modules(__path__)), *VARIANTS]


def _module(name: str) -> ModuleType:
    return plugins().load(name) if name in plugins() else import_module(f"{__name__}.{VARIANTS.get(name, name)}")
