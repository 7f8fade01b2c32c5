"""Methods side by side, as plain values: read from ``evaluation.json``, which ``advisor evaluate`` writes.

Every string here has been cleaned (:mod:`reports.visible`), as in :mod:`reports.model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ensemble.errors import InputError
from reports.fields import Fields, read_object
from reports.model import Interval

SCHEMA_VERSIONS = frozenset({1})
"""The versions of ``evaluation.json`` that can be drawn."""
Kind = Literal["member", "method", "control"]
_WAY_OUT = "run `advisor evaluate` again, or delete the file"
_LEVELS = {"token": "tokens", "span": "spans", "response": "responses", "control": "control", "": ""}


@dataclass(frozen=True, slots=True)
class Line:
    """A member alone, a method, or the control: accuracies and differences in points, memory in bytes.

    Attributes:
        level: What a method combines, in a word; what the line is otherwise.
        left_out: Why it was not run; empty where it was.
        p_value: As it was adjusted where it was; the control's is as it was found.
        ensembled: Share of the steps in which several members decided, 0 to 1.
        handled: Entries whose probabilities were looked at, a step.
    """

    kind: Kind
    name: str
    level: str
    left_out: str
    accuracy: float | None
    accuracy_ci: Interval | None
    delta: float | None
    delta_ci: Interval | None
    p_value: float | None
    ms_per_token: float | None
    ensembled: float | None
    handled: float | None
    peak_memory: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The whole of ``evaluation.json``: the lines are the members, then the methods as they were asked for."""

    task: str
    split: str
    n: int
    signature: str
    command: str
    best_single: str
    lines: tuple[Line, ...]

    @property
    def members(self) -> tuple[str, ...]:
        """The set's names, the primary first."""
        return tuple(line.name for line in self.lines if line.kind == "member")

    @property
    def limit(self) -> float | None:
        """The accuracy of the best single model, in points."""
        return next(
            (line.accuracy for line in self.lines if (line.kind, line.name) == ("member", self.best_single)), None
        )


def read_evaluation(path: Path) -> Evaluation | None:
    """Read ``evaluation.json``; None where there is none.

    Raises:
        InputError: The file is broken, or its schema version is not one of ``SCHEMA_VERSIONS``.
    """
    if not path.exists():
        return None
    root = read_object(path, _WAY_OUT)
    if root.number("schema_version") not in SCHEMA_VERSIONS:
        found, known = root.line("schema_version", "missing"), ", ".join(map(str, sorted(SCHEMA_VERSIONS)))
        raise InputError(f"{path}: schema_version is {found}, and this unite-advisor reads {known}; {_WAY_OUT}")
    return Evaluation(
        task=root.line("task"),
        split=root.line("split"),
        n=root.count("n"),
        signature=root.line("signature"),
        command=root.part("provenance").line("command"),
        best_single=root.line("best_single"),
        lines=tuple(
            [_line(member, "model", "member") for member in root.parts("members")]
            + [_line(method, "method", "method") for method in root.parts("methods")]
        ),
    )


def _line(fields: Fields, name: str, kind: Kind) -> Line:
    level = fields.line("level")
    if level not in _LEVELS:
        fields.refuse("level", " or ".join(filter(None, _LEVELS)))
    adjusted = fields.number("p_adjusted")
    return Line(
        kind="control" if level == "control" else kind,
        name=fields.line(name) or fields.refuse(name, f"the {name}'s name"),
        level=_LEVELS[level] or "alone",
        left_out=fields.line("left_out"),
        accuracy=fields.number("accuracy"),
        accuracy_ci=fields.interval("accuracy_ci"),
        delta=fields.number("delta"),
        delta_ci=fields.interval("delta_ci"),
        p_value=fields.number("p_value") if adjusted is None else adjusted,
        ms_per_token=fields.number("ms_per_token"),
        ensembled=fields.number("share_ensembled"),
        handled=fields.number("handled_per_step"),
        peak_memory=fields.number("peak_memory"),
    )
