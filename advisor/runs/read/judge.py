"""The judge of ``result.json`` and ``evaluation.json`` as plain values, with its figures in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ensemble.common import text
from advisor.runs.read.strategies import read_strategy
from advisor.runs.read.fields import Fields, Interval
from advisor.runs.read.measurements import Measurements

MEASURES = {"pairwise": "win rate", "single": "grade", "": "accuracy"}
"""What points are called, by the mode of the judge; without a judge they are accuracies."""
_MOST_MODELS = 200
_MOST_SPLITS = 2
_MOST_MEMBERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow(Measurements):
    """A model or set and what the judge says of its responses: ``n`` matches, or grades.

    ``accuracy`` is its win rate against the candidates as the Bradley-Terry model estimates it, or its mean grade.

    Attributes:
        score: The mean score in its matches, in points; None for grades.
        log_odds: Its strength; None for grades.
    """

    score: float | None
    log_odds: float | None


@dataclass(frozen=True, slots=True)
class JudgedSplit:
    """The verdicts on a split: the models, the best first, and the judge's figures in sentences."""

    split: str
    rows: tuple[JudgedRow, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge said.

    Attributes:
        mode: A key of ``MEASURES``.
        judges: The judge, and the second one if there is one.
        splits: The dev and the held-out questions.
        met: Sentences on strategies against the best single model.
    """

    mode: str
    judges: tuple[str, ...]
    splits: tuple[JudgedSplit, ...]
    met: tuple[str, ...]


def read_judged(root: Fields) -> Judged | None:
    """Read ``judge``; None for a task without a judge."""
    fields = root.optional_part("judge")
    if fields is None:
        return None
    judges = fields.texts("judges")[:2]
    # The second judge is named in the sentences on agreement.
    second = judges[1] if len(judges) > 1 else "the second judge"
    # The file may be a stranger's: an unknown mode is read as the one with more fields.
    mode = fields.word("mode", MEASURES, "pairwise")
    return Judged(
        mode=mode,
        judges=judges,
        splits=tuple(
            JudgedSplit(
                split=each.line("split"),
                rows=tuple(_row(row) for row in each.parts("models")[:_MOST_MODELS]),
                sentences=tuple((_on_pairs if mode == "pairwise" else _on_grades)(each, second)),
            )
            for each in fields.parts("splits")[:_MOST_SPLITS]
        ),
        met=tuple(_met(each) for each in fields.parts("head_to_head")[:_MOST_MEMBERS]),
    )


def _row(fields: Fields) -> JudgedRow:
    # Grades have a mean and no win rate.
    is_match = fields.number("win_rate") is not None
    return JudgedRow(
        name=fields.line("model"),
        n=fields.count("matches" if is_match else "grades"),
        accuracy=fields.number("win_rate" if is_match else "score"),
        accuracy_ci=fields.interval("win_rate_ci" if is_match else "score_ci"),
        score=fields.number("score") if is_match else None,
        log_odds=fields.number("log_odds"),
    )


def _on_pairs(fields: Fields, second: str) -> Iterator[str]:
    verdicts, unread, settled = (fields.count(name) for name in ("verdicts", "unread", "settled"))
    yield (
        f"The judge gave {text.counted(verdicts, 'verdict')} on two responses"
        + (f"; {unread:,} of them cannot be read and count as ties" if unread else "")
        + (
            f"; {text.counted(settled, 'comparison')} needed no judge (equal texts, failed responses)"
            if settled
            else ""
        )
        + "."
    )
    first, changed, longer, ties = (fields.part(name) for name in ("first_wins", "changed", "longer_wins", "ties"))
    if first.count("n"):
        yield f"Position: the first response wins {_share(first)} decided verdicts; 50% would be no preference."
    if changed.count("n"):
        yield f"Order: if it changes, the verdict changes on {_share(changed)} pairs."
    if longer.count("n"):
        yield f"Length: the longer response wins {_share(longer)} decided verdicts; it may also be the better one."
    if ties.count("n"):
        yield f"Ties: {_share(ties)} verdicts."
    agreement = fields.part("agreement")
    if n := agreement.count("n"):
        # Not defined if both always say the same one thing.
        kappa = agreement.number("kappa")
        yield (
            f"Agreement: {second} says the same in {text.points(agreement.number('equal'))}% of {n:,} verdicts"
            + ("" if kappa is None else f", Cohen’s kappa {text.decimals(kappa)}")
            + "."
        )


def _on_grades(fields: Fields, second: str) -> Iterator[str]:
    verdicts, unread = fields.count("verdicts"), fields.count("unread")
    yield f"The judge graded {text.counted(verdicts, 'response')}" + (
        f"; {unread:,} of its grades cannot be read." if unread else "."
    )
    length, agreement = fields.part("length"), fields.part("agreement")
    if (value := length.number("spearman")) is not None:
        yield (
            f"Length: Spearman’s correlation of length and grade is {text.decimals(value)} on "
            f"{text.counted(length.count('n'), 'response')}; longer ones may also be better."
        )
    if n := agreement.count("n"):
        ranks = [
            f"{name.capitalize()}’s {'tau' if name == 'kendall' else 'correlation'} {text.decimals(value)}"
            for name in ("spearman", "kendall")
            if (value := agreement.number(name)) is not None
        ]
        near = text.points(agreement.number("within_one"))
        yield (
            f"Agreement: {second} is within one grade on {near}% of {n:,} responses"
            + (f", {', '.join(ranks)}" if ranks else "")
            + "."
        )


def _share(fields: Fields) -> str:
    """A share in words: ``62.0% (50.1 to 72.4) of 36``."""
    ends: Interval | None = fields.interval("share_ci")
    return f"{text.points(fields.number('share'))}% ({text.interval(ends)}) of {fields.count('n'):,}"


def _met(fields: Fields) -> str:
    strategy = read_strategy(fields)
    return (
        f"{strategy}: wins {text.points(fields.number('win_rate'))}% against {fields.line('rival')} "
        f"({text.interval(fields.interval('win_rate_ci'))}) on {text.counted(fields.count('questions'), 'question')}."
    )
