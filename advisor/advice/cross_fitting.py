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
from advisor.strategies.replay import replay
from advisor.strategies.single import Single
from advisor.strategies.strategy import AnsweredSplit, Choice, Replay, Strategy, TrainingData
from advisor.tasks.task import clusters_of

_FOLDS = 5
_REPEATS = 4
_FEWEST_REPEATS = 2  # their differences tell how much the choice depends on the questions
_MOST_ANSWERS = 4000
"""Questions times repeats: with many questions, other folds hardly choose otherwise."""


class CrossFitted(NamedTuple):
    """A strategy's answers in the first repeat, those to each fold by what the others teach.

    ``differences`` has its score minus that of the best single model of the other folds, repeats by questions.
    """

    answered: Replay
    differences: Floats


def learned(given: TrainingData, names: Iterable[str]) -> dict[str, list[Strategy]]:
    """The strategies of some kinds that questions teach, by kind."""
    return {name: list(kinds()[name].learn(given)) for name in names}


def cross_fit(
    strategies: Mapping[str, Sequence[Strategy]],
    questions: AnsweredSplit,
    teach: Callable[[AnsweredSplit], TrainingData],
) -> Iterator[tuple[Strategy, CrossFitted]]:
    """Answer all questions with what others teach: each strategy that can be applied to all folds.

    The first strategy of a kind stands for the first of this kind in each fold, the last one for the last. Where the
    other folds teach none of this kind, for example because too few models are close, their best model answers. Fewer
    than two questions or clusters give no strategy.
    """
    n = len(questions.task.examples)
    wanted = [(kind, place, each) for kind, own in strategies.items() for place, each in enumerate(own)]
    # The answers of votes to a question depend on nothing that was learned, so each vote is counted once.
    counted: dict[Strategy, Replay | None] = {}
    alone = {name: scores(profile) for name, profile in questions.profiles.items()}
    answers: dict[Strategy, list[tuple[Sequence[int], Replay]]] = {each: [] for _, _, each in wanted}
    repeats = list(repeated_folds(n, clusters_of(questions.task)))
    differences = {each: np.zeros((len(repeats), n)) for _, _, each in wanted}

    def answer(strategy: Strategy, places: Sequence[int]) -> Replay | None:
        if strategy.LEARNS:
            return replay(strategy, questions.part(places))
        if strategy not in counted:
            counted[strategy] = replay(strategy, questions)
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


def _joined(strategy: Strategy, pieces: Sequence[tuple[Sequence[int], Replay]], n: int) -> Replay:
    """The answers to all questions from those to some, each with their numbers."""
    in_order: list[tuple[int, Choice, Answer]] = sorted(
        (
            (place, part.takes[number], part.profile.answers[number])
            for places, part in pieces
            for number, place in enumerate(places)
        ),
        key=lambda each: each[0],
    )
    asked = {choice: np.zeros(n, dtype=np.bool_) for _, part in pieces for choice in part.asked}
    for places, part in pieces:
        for choice, own in part.asked.items():
            asked[choice][places] = own
    answers = tuple(answer for _, _, answer in in_order)
    return Replay(Profile(strategy.name, answers), tuple(take for _, take, _ in in_order), asked)
