"""What happened at each step of an ensemble's response, as ``samples.jsonl`` has it under ``trace``.

A step, as written (texts are null for the end; ``probabilities`` and ``won_by`` go by the numbers of ``members``)::

    {"text": " 4", "won_by": [0], "disagreement": 0.12, "union": 17, "chosen": 0,
     "candidates": [{"text": " 4", "probabilities": [0.9, 0.5], "mean": 0.7, "wanted_by": [0, 1]}, ...]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reports.fields import Fields

MOST_BYTES = 400_000
"""Bytes of all traces together on the page; the others stay in ``samples.jsonl``."""

DISAGREEMENTS = (0.02, 0.1, 0.25, 0.5)
"""Where one shade of disagreement ends and the next one begins."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate of a step: its text (None for the end), each member's probability and their mean.

    ``wanted_by`` has the members, by number, that have it among their own k likeliest tokens.
    """

    text: str | None
    probabilities: tuple[float, ...]
    mean: float
    wanted_by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A step: what was emitted (None for the end), whose first choice that was, and how far the members disagreed.

    Attributes:
        disagreement: Their Jensen-Shannon divergence on the union as a share of its maximum; None where it is unknown.
        union: Candidates of the whole union; ``choices`` are the likeliest of them.
        chosen: The number of the choice that won; None where it is unknown.
    """

    text: str | None
    won_by: tuple[int, ...]
    disagreement: float | None
    union: int
    chosen: int | None
    choices: tuple[Choice, ...]

    @property
    def shade(self) -> int:
        """The disagreement as one of five shades."""
        return sum((self.disagreement or 0.0) >= limit for limit in DISAGREEMENTS)


@dataclass(frozen=True, slots=True)
class Trace:
    """A response's steps; ``left_out`` of them, at its end, were not kept."""

    members: tuple[str, ...]
    steps: tuple[Step, ...]
    left_out: int

    @property
    def weight(self) -> int:
        """Bytes that the trace adds to the page, about."""
        choices = [choice for step in self.steps for choice in step.choices]
        texts = [*(step.text or "" for step in self.steps), *(choice.text or "" for choice in choices)]
        # In JSON that is safe in a page, a character of markup takes six bytes.
        written = sum(len(text.encode()) + 5 * sum(map(text.count, '<>&\n"\\')) for text in texts)
        return written + 40 * len(self.steps) + (20 + 8 * len(self.members)) * len(choices)


def read_trace(fields: Fields | None) -> Trace | None:
    """Read a trace; None where there is none, or one without steps."""
    if fields is None:
        return None
    members = fields.texts("members")
    steps = tuple(_step(step, len(members)) for step in fields.parts("steps"))
    return Trace(members, steps, fields.count("left_out")) if members and steps else None


def packed(trace: Trace) -> dict[str, Any]:
    """Return a trace for the page's script, shares in thousandths: a run has thousands of steps."""
    return {
        "members": trace.members,
        "left": trace.left_out,
        "steps": [
            [
                step.text,
                step.won_by,
                None if step.disagreement is None else round(step.disagreement, 3),
                step.shade,
                step.union,
                step.chosen,
                [
                    [each.text, each.wanted_by, round(1000 * each.mean), *(round(1000 * p) for p in each.probabilities)]
                    for each in step.choices
                ],
            ]
            for step in trace.steps
        ],
    }


def _step(fields: Fields, members: int) -> Step:
    choices = tuple(_choice(choice, members) for choice in fields.parts("candidates"))
    chosen = fields.count("chosen", -1)
    return Step(
        text=_text(fields),
        won_by=_numbers(fields, "won_by", members),
        disagreement=fields.number("disagreement"),
        union=fields.count("union", len(choices)),
        chosen=chosen if 0 <= chosen < len(choices) else None,
        choices=choices,
    )


def _choice(fields: Fields, members: int) -> Choice:
    found = fields.numbers("probabilities")
    if len(found) != members:
        fields.refuse("probabilities", "a number for each member")
    return Choice(_text(fields), found, fields.number("mean") or 0.0, _numbers(fields, "wanted_by", members))


def _text(fields: Fields) -> str | None:
    return None if fields.values.get("text") is None else fields.prose("text")


def _numbers(fields: Fields, name: str, members: int) -> tuple[int, ...]:
    """Return the members' numbers under a name."""
    found = tuple(map(int, fields.numbers(name)))
    return found if all(0 <= number < members for number in found) else fields.refuse(name, "numbers of members")
