"""Every label chooses and judges: cross-fitting of strategies whose answers to all questions are known.

Nothing is judged by questions that chose it. The questions are drawn into folds; for each fold all others choose, as
the product does: the best single model, the voters and their order, weights, routes. The difference between the
strategy and that model is taken on the fold. This is done several times with other folds. The mean is the gain of the
*procedure* on about this many questions; what all questions together teach is handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from advisor.records import Answer, Profile
from advisor.statistics import Floats, Labels, folds_of, scores
from advisor.strategies import kinds
from advisor.strategies.single import Single
from advisor.strategies.strategy import AnsweredSplit, Strategy, TrainingData, picked_answers
from advisor.tasks.task import clusters_of
from ensemble.errors import InputError

_FOLDS = 5
_REPEATS = 4
_FEWEST_REPEATS = 2  # their differences tell how much the choice depends on the questions
_MOST_ANSWERS = 4000
"""Questions times repeats: with many questions, other folds hardly choose otherwise."""

Take = tuple[str, int]


class Applied(NamedTuple):
    """A strategy's answers to the questions of a split.

    Attributes:
        profile: The answers.
        takes: For each question the model whose response it takes, and the number of the response among the model's
            draws; empty for a strategy that writes new texts.
        asked: How often each question asks each model.
    """

    profile: Profile
    takes: tuple[Take, ...]
    asked: Mapping[str, Floats]

    def part(self, places: Sequence[int]) -> Applied:
        """The answers to some of the questions, by their numbers."""
        takes = tuple(self.takes[place] for place in places)
        return Applied(self.profile.part(places), takes, {name: own[places] for name, own in self.asked.items()})


class CrossFitted(NamedTuple):
    """A strategy's answers, those to each fold by what the others teach.

    Attributes:
        answered: Those of the first repeat.
        differences: Its score minus that of the best single model of the other folds, repeats by questions.
    """

    answered: Applied
    differences: Floats


def apply(strategy: Strategy, split: AnsweredSplit) -> Applied | None:
    """The answers of a strategy that asks models one by one; None if it cannot be applied to these questions."""
    responses = split.responses(strategy)
    if responses is None:
        return None
    try:
        picks = strategy.picks(responses, split.task)
    except InputError:
        return None
    draws = strategy.responses_per_member
    return Applied(
        picked_answers(strategy.name, responses, picks),
        tuple((strategy.members[each // draws], each % draws) for each in picks),
        dict(zip(strategy.members, strategy.calls(responses, split.task, picks), strict=True)),
    )


def learned(given: TrainingData, names: Iterable[str]) -> dict[str, list[Strategy]]:
    """The strategies of some kinds that questions teach, by kind."""
    return {name: list(kinds()[name].learn(given)) for name in names}


def cross_fit(
    strategies: Mapping[str, Sequence[Strategy]],
    questions: AnsweredSplit,
    teach: Callable[[AnsweredSplit], TrainingData],
) -> Iterator[tuple[Strategy, CrossFitted]]:
    """Answer all questions with what others teach.

    The first strategy of a kind stands for the first of this kind in each fold, the last one for the last. Where the
    other folds teach none of this kind, for example because too few models are close, their best model answers.

    Args:
        strategies: What all questions teach, by kind.
        questions: The questions.
        teach: Makes of some of the questions what strategies learn from.

    Yields:
        Each strategy that can be applied to all folds; none if there are fewer than two questions or clusters.
    """
    n = len(questions.task.examples)
    wanted = [(kind, place, each) for kind, own in strategies.items() for place, each in enumerate(own)]
    # The answers of votes to a question depend on nothing that was learned, so each vote is counted once.
    counted: dict[Strategy, Applied | None] = {}
    alone = {name: scores(profile) for name, profile in questions.profiles.items()}
    answers: dict[Strategy, list[tuple[Sequence[int], Applied]]] = {each: [] for _, _, each in wanted}
    repeats = list(repeated_folds(n, clusters_of(questions.task)))
    differences = {each: np.zeros((len(repeats), n)) for _, _, each in wanted}

    def answer(strategy: Strategy, places: Sequence[int]) -> Applied | None:
        if strategy.LEARNS:
            return apply(strategy, questions.part(places))
        if strategy not in counted:
            counted[strategy] = apply(strategy, questions)
        found = counted[strategy]
        return None if found is None else found.part(places)

    for repeat, folds in enumerate(repeats):
        for fold in range(int(folds.max()) + 1):
            places = np.flatnonzero(folds == fold).tolist()
            given = teach(questions.part(np.flatnonzero(folds != fold).tolist()))
            found = learned(given, [kind for kind, own in strategies.items() if own])
            for kind, place, each in wanted:
                if each not in answers:
                    continue
                own = found[kind] or [Single((given.best,))]
                is_last = place == len(strategies[kind]) - 1
                part = answer(own[-1 if is_last else min(place, len(own) - 1)], places)
                if part is None:
                    del answers[each]
                    continue
                differences[each][repeat, places] = scores(part.profile) - alone[given.best][places]
                if repeat == 0:
                    answers[each].append((places, part))
    for strategy, pieces in answers.items():
        if pieces:
            yield strategy, CrossFitted(_joined(strategy, pieces, n), differences[strategy])


def repeated_folds(n: int, clusters: Labels | None = None) -> Iterator[NDArray[np.intp]]:
    """The fold of each of `n` questions, once for each repeat; none if there are fewer than two questions or clusters.

    The questions of a cluster are in one fold.
    """
    if (n if clusters is None else len(set(clusters))) < 2:
        return
    chance = np.random.default_rng(0)
    for _ in range(min(_REPEATS, max(_FEWEST_REPEATS, _MOST_ANSWERS // n))):
        yield folds_of(clusters, n, _FOLDS, chance)


def _joined(strategy: Strategy, pieces: Sequence[tuple[Sequence[int], Applied]], n: int) -> Applied:
    """The answers to all questions from those to some, each with their numbers."""
    in_order: list[tuple[int, Take, Answer]] = sorted(
        (
            (place, part.takes[number], part.profile.answers[number])
            for places, part in pieces
            for number, place in enumerate(places)
        ),
        key=lambda each: each[0],
    )
    asked = {name: np.zeros(n) for _, part in pieces for name in part.asked}
    for places, part in pieces:
        for name, own in part.asked.items():
            asked[name][places] = own
    answers = tuple(answer for _, _, answer in in_order)
    return Applied(Profile(strategy.name, answers), tuple(take for _, take, _ in in_order), asked)
