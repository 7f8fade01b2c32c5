"""What ``result.json`` says besides the strategies: predicted gains, and looks at the held-out questions."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.runs.read.fields import Fields, Interval

_MOST_SETS = 1000
_MOST_LOOKS = 100
_MOST_MEMBERS = 100


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A set that can decode together, and what was predicted before it answered a held-out question. In points.

    Attributes:
        predicted: The predicted gain over the best single model, with its interval ``predicted_ci``.
        by_rules: Whether the rules choose this set.
        measured: The gain on the held-out questions; None if the set did not answer them.
    """

    models: tuple[str, ...]
    predicted: float | None
    predicted_ci: Interval | None
    by_rules: bool
    measured: float | None


@dataclass(frozen=True, slots=True)
class LookRow:
    """A look at the result on held-out questions.

    Attributes:
        n: Questions so far.
        p_no_gain: One-sided, of no gain, without a correction; ``p_no_loss`` of no loss.
        limit: The largest p-value that ends the test.
        test: The number of the test on these questions, from 1.
    """

    members: tuple[str, ...]
    method: str
    n: int
    p_no_gain: float | None
    p_no_loss: float | None
    limit: float | None
    test: int


def read_predictions(root: Fields) -> tuple[PredictedRow, ...]:
    """Read ``prediction.sets``, the most promising first; empty if nothing was predicted."""
    parts = root.part("prediction").parts("sets")[:_MOST_SETS]
    return tuple(
        PredictedRow(
            models=fields.texts("models")[:_MOST_MEMBERS],
            predicted=fields.number("predicted_gain"),
            predicted_ci=fields.interval("predicted_gain_ci"),
            by_rules=fields.values.get("rules") is True,
            measured=fields.number("gain"),
        )
        for fields in parts
    )


def read_looks(root: Fields) -> tuple[LookRow, ...]:
    """Read ``looks``, the latest ones if there are many."""
    return tuple(
        LookRow(
            members=fields.texts("members")[:_MOST_MEMBERS],
            method=fields.line("method"),
            n=fields.count("n"),
            p_no_gain=fields.number("p_no_gain"),
            p_no_loss=fields.number("p_no_loss"),
            limit=fields.number("limit"),
            test=fields.count("test", 1),
        )
        for fields in root.parts("looks")[-_MOST_LOOKS:]
    )
