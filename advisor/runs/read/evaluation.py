"""``evaluation.json``, which ``advisor evaluate`` writes, as plain values: the members alone and the methods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from advisor.runs.read.fields import Fields, read_object
from advisor.runs.read.judge import Judged, read_judged
from advisor.runs.read.measurements import Measurements, measurements

# The versions of ``evaluation.json`` that this package reads.
SCHEMA_VERSIONS = frozenset({1})
Kind = Literal["member", "method", "control"]
_WAY_OUT = "run `advisor evaluate` again, or delete the file"
_LEVELS = {
    "token": "tokens",
    "byte": "bytes",
    "span": "spans",
    "response": "responses",
    "control": "control",
    "": "alone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow(Measurements):
    """A method, a member alone, or the control. ``p_value`` is the adjusted one if the file has it.

    Attributes:
        level: What a method combines, in one word; "alone" for a member.
        left_out: Why the method was not run; empty if it was.
        note: What to know about its figures; empty if nothing.
        ensembled: Share of the steps in which several members decided, 0 to 1.
        handled: Entries per step whose probabilities were used.
    """

    kind: Kind
    level: str
    left_out: str
    note: str
    ms_per_token: float | None
    ensembled: float | None
    handled: float | None


@dataclass(frozen=True, slots=True)
class MethodTable:
    """All of ``evaluation.json``: the members' rows, then the methods' in the order of the command, and the judge."""

    task: str
    split: str
    n: int
    signature: str
    command: str
    best_single: str
    rows: tuple[MethodRow, ...]
    judged: Judged | None

    @property
    def members(self) -> list[str]:
        """The names of the set's members, the primary first."""
        return [row.name for row in self.rows if row.kind == "member"]


def read_evaluation(path: Path) -> MethodTable | None:
    """Read ``evaluation.json``; None if the file does not exist.

    Raises:
        InputError: The file is broken, or its schema version is not one of ``SCHEMA_VERSIONS``.
    """
    # Most runs were never evaluated.
    if not path.exists():
        return None
    root = read_object(path, _WAY_OUT)
    root.check_version(SCHEMA_VERSIONS, _WAY_OUT)
    return MethodTable(
        task=root.line("task"),
        split=root.line("split"),
        n=root.count("n"),
        signature=root.line("signature"),
        command=root.part("provenance").line("command"),
        best_single=root.line("best_single"),
        rows=(
            *(_row(fields, "model", "member") for fields in root.parts("members")),
            *(_row(fields, "method", "method") for fields in root.parts("methods")),
        ),
        judged=read_judged(root),
    )


def _row(fields: Fields, name: str, kind: Kind) -> MethodRow:
    level, adjusted, numbers = fields.word("level", _LEVELS, ""), fields.number("p_adjusted"), measurements(fields)
    return MethodRow(
        name=fields.line(name) or fields.refuse(name, f"the {name}'s name"),
        # The control has no adjusted p-value.
        **(numbers if adjusted is None else {**numbers, "p_value": adjusted}),
        kind="control" if level == "control" else kind,
        level=_LEVELS[level],
        left_out=fields.line("left_out"),
        note=fields.line("note"),
        ms_per_token=fields.number("ms_per_token"),
        ensembled=fields.number("share_ensembled"),
        handled=fields.number("handled_per_step"),
    )
