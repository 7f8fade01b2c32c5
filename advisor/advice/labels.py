"""Which questions need a label to compare a vote with the best single model, where there are no references.

Two strategies that give the same answer have the same score, whatever it is, and cancel in a paired comparison. So two
rounds of labels are enough:

- ``choose``: the dev questions on which not all models agree. Ranks and gaps are differences of scores, so these labels
  choose the voters and the best single model as labels of all dev questions would.
- ``verify``: the held-out questions on which the vote and this model give different answers. Both are fixed by then.
- ``accuracy``, if wanted: some of the other held-out questions, without which no accuracy is known.

The questions of a round are in random order. So any beginning of a round is a random sample of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from advisor.advice.gain import Gain, cross_fitted_gain
from advisor.records import FIGURE_ALPHA, Profile
from advisor.statistics import Floats, Interval, z_value
from advisor.strategies.replay import codes_of
from advisor.strategies.strategy import AnsweredSplit
from advisor.tasks.task import sha256
from ensemble.methods.voting import answer_key

Round = Literal["choose", "verify", "accuracy"]
Labels = Mapping[str, frozenset[int]]
"""The places of the right answers of a question among those that were shown, by its key; empty if none is right."""
_UNKNOWN = math.nan


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question that needs a label.

    Attributes:
        round: What its label is for.
        number: Its place in the split.
        key: Tells it from all others; another one if the question or an answer changes.
        question: Its text.
        answers: The different answers to it, in an order that says nothing of the models; None for no answer.
        choices: The options of a choice question.
    """

    round: Round
    number: int
    key: str
    question: str
    answers: tuple[str | None, ...]
    choices: tuple[str, ...] = ()


def open_questions(
    split: AnsweredSplit, profiles: Sequence[Profile], round: Round, seed: int, *, agreed: bool = False
) -> list[OpenQuestion]:
    """The questions to which some answers differ, or all are `agreed`, in random order."""
    found = []
    codes = codes_of(profiles)
    for number in np.flatnonzero((codes == codes[0]).all(axis=0) == agreed).tolist():
        example = split.task.examples[number]
        given = [profile.answers[number].extracted for profile in profiles]
        # Of answers that count as one, for example by white space in long ones, the first is shown.
        own = dict(zip(reversed(codes[:, number].tolist()), reversed(given), strict=True))
        answers = sorted(own.values(), key=partial(sha256, seed, example.id))
        key = f"q{sha256(round, split.task.split, example.id, example.question, answers)[:14]}"
        text = example.question or example.prompt
        found.append(OpenQuestion(round, number, key, text, tuple(answers), example.choices))
    return sorted(found, key=lambda each: sha256(seed, each.key))


def labelled_first(questions: Sequence[OpenQuestion], labels: Labels) -> list[OpenQuestion]:
    """The questions of a round from the first one up to the first that has no label."""
    count = next((n for n, each in enumerate(questions) if each.key not in labels), len(questions))
    return list(questions[:count])


def with_labels(
    profile: Profile, questions: Iterable[OpenQuestion], labels: Labels, other: float = _UNKNOWN
) -> Profile:
    """A model's answers with the scores that labels give; an answer without a label has the score `other`."""
    known = {each.number: each for each in questions if each.key in labels}

    def score(number: int, extracted: str | None) -> float:
        if number not in known:
            return other
        shown = [_compared(answer) for answer in known[number].answers]
        is_right = _compared(extracted) in (shown[place] for place in labels[known[number].key])
        # In the round `verify`, other models may give a third answer.
        return float(is_right) if _compared(extracted) in shown else other

    answers = tuple(
        replace(answer, score=score(number, answer.extracted)) for number, answer in enumerate(profile.answers)
    )
    return replace(profile, answers=answers)


def _compared(answer: str | None) -> str | None:
    return None if answer is None else answer_key(answer)


def gain_by_labels(
    strategy: Floats,
    single: Floats,
    differ: NDArray[np.bool_],
    labelled: NDArray[np.bool_],
    clusters: Sequence[str] | None = None,
) -> Gain:
    """The gain of a strategy over one model, both named before, from the labels of some questions.

    Those that are `labelled` are a random sample of those that `differ`; scores of the others have no meaning. Clusters
    are for labels of all questions that differ.
    """
    if labelled[differ].all():
        return cross_fitted_gain(np.where(differ, strategy - single, 0.0), clusters)
    # Double sampling for stratification (Cochran 1977, section 12.2), with a difference of 0 in the other stratum.
    share, own = float(differ.mean()), (strategy - single)[labelled & differ]
    count, n, mean = len(own), len(differ), float(own.mean())
    # Two questions more, one gained and one lost, keep the variance above 0.
    spread = (float(((own - mean) ** 2).sum()) + 2) / max(count - 1, 1)
    variance = share**2 * spread / count + share * (1 - share) * mean**2 / n
    points = 100 * share * mean
    return Gain(points, 100 * math.sqrt(variance), max(count - 1.0, 1.0), n)


def accuracy_by_labels(differing: Floats, sample: Floats, n: int) -> tuple[float, Interval] | None:
    """The accuracy of a strategy in points, and its 95% interval; None if that takes more labels.

    `sample` has the scores of a random sample of those of the `n` questions that are not `differing`.
    """
    others = n - len(differing)
    if others and not len(sample):
        return None
    rate = float(sample.mean()) if len(sample) else 0.0
    accuracy = (float(differing.sum()) + others * rate) / n
    # As above: the sample stands for its stratum. One answer more is right and one wrong.
    smooth = (float(sample.sum()) + 1) / (len(sample) + 2)
    unseen = 1 - len(sample) / others if others else 0.0
    within = (others / n) ** 2 * unseen * smooth * (1 - smooth) / max(len(sample), 1)
    middle = (accuracy * n + 1) / (n + 2)
    half = z_value(FIGURE_ALPHA) * math.sqrt(middle * (1 - middle) / n + within)
    return 100 * accuracy, (max(0.0, 100 * (accuracy - half)), min(100.0, 100 * (accuracy + half)))
