"""The search: it predicts which sets besides the greedy one are promising, and compares those that were decoded on dev.

There are too many sets to decode them all, so each one gets a cheap prediction from its members' own answers:

    question    a        b        c        vote   oracle   predicted
    1           right    right    "12"     1      1        1
    2           right    "12"     "15"     1/3    1        2/3
    3           right    "12"     "12"     0      1        1/2

The vote takes the most frequent answer; of several, each has the same probability. The oracle takes the best answer of
any member. The accuracy of a set that decodes together lies between the two: if models disagree, the right one is more
often the more certain one, and the set can seldom exceed the oracle. The prediction is the mean of both. (In the
`samples.jsonl` of `make demo`, of 500 held-out questions its set of three gets 93% right if two members do, 64% in a
case like question 2 and 43% in one like question 3.) For graded scores no two answers are equal, and the vote is the
members' mean.

Except for the greedy set, the search looks at sets of at most three models.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.choose.rules import select
from advisor.records import TRIES, Decision, Profile, Rules, Selection, Standing, join
from advisor.statistics import Floats, check_same_questions, is_binary, scores

MOST_COMBINED = 24  # of the best fitting candidates: 2,300 pairs and triples are predicted within a second


@dataclass(frozen=True, slots=True)
class SearchedSet:
    """A set of the search, and how it did on the dev questions.

    Attributes:
        models: In order of accuracy, the primary first.
        predicted: The mean of `vote` and `oracle`.
        vote: The accuracy of a vote among its members, in points.
        oracle: The accuracy if the best of its members' answers is always taken, in points.
        greedy: Whether it is the set that the rules choose.
        accuracy: Its accuracy when decoded, in points; None if it was not decoded.
        seconds: The time of its responses.
        error: Why it could not be decoded.
    """

    models: tuple[str, ...]
    predicted: float
    vote: float
    oracle: float
    greedy: bool
    accuracy: float | None = None
    seconds: float | None = None
    error: str | None = None

    def as_dict(self, selection: Selection) -> dict[str, Any]:
        """The set for JSON.

        Args:
            selection: The chosen set.
        """
        return {
            "models": list(self.models),
            "predicted": self.predicted,
            "vote": self.vote,
            "oracle": self.oracle,
            "greedy": self.greedy,
            "dev_accuracy": self.accuracy,
            "seconds": self.seconds,
            "error": self.error,
            "put_forward": self.models == selection.selected,
        }


def promising_sets(profiles: Sequence[Profile], rules: Rules, tries: int = TRIES) -> tuple[SearchedSet, ...]:
    """The greedy set, and the pairs and triples with the best prediction.

    All members of a pair or triple fit the best candidate by the rules, and the set's own primary.

    Args:
        profiles: The candidates' answers to the same questions, at least one, in any order.
        rules: The limits.
        tries: The most sets to return, at least 1.

    Returns:
        The greedy set, then the others, the most promising one first. Empty if the rules allow no set of two.

    Raises:
        UniteError: Two candidates answered different questions.
    """
    for profile in profiles[1:]:
        check_same_questions(profiles[0], profile)
    standings = {profile.model: profile.standing for profile in profiles}
    # The limit of the size must not end the list here: any fitting candidate may be in a set.
    fitting = select(list(standings.values()), replace(rules, max_models=len(profiles))).selected
    greedy = fitting[: rules.max_models]
    if len(greedy) < 2:
        return ()
    graded, coded = _coded(profiles)
    rows = {profile.model: row for row, profile in enumerate(profiles)}

    def predict(models: tuple[str, ...]) -> SearchedSet:
        members = [rows[model] for model in models]
        vote, oracle = _vote(graded[members], coded[members]), 100 * float(graded[members].max(axis=0).mean())
        return SearchedSet(models, (vote + oracle) / 2, vote, oracle, models == greedy)

    others = [predict(models) for models in _sets(fitting[:MOST_COMBINED], standings, rules) if models != greedy]
    # The sort is stable, so of equal predictions pairs come before triples, and more accurate models before others.
    others.sort(key=lambda searched: -round(searched.predicted, 9))
    return (predict(greedy), *others)[:tries]


def best_of(tried: Sequence[SearchedSet]) -> SearchedSet | None:
    """The set that did best on dev; None if none could be decoded.

    Args:
        tried: The sets, the greedy one first, which wins ties.
    """
    decoded = [(round(searched.accuracy, 9), searched) for searched in tried if searched.accuracy is not None]
    return max(decoded, key=lambda pair: pair[0], default=(0.0, None))[1]


def put_forward(greedy: Selection, best: SearchedSet, standings: Sequence[Standing], rules: Rules) -> Selection:
    """The selection with the best set of the search instead of the greedy one.

    Args:
        greedy: The selection of the rules.
        best: The set.
        standings: The input of the rules.
        rules: The limits.
    """
    if best.models == greedy.selected:
        return greedy
    # Applied to the members alone, so that each reason names the set's own primary.
    members = select([standing for standing in standings if standing.model in best.models], rules).decisions
    inside = {decision.model: decision for decision in members}
    return Selection(tuple(_decision(decision, greedy, inside) for decision in greedy.decisions), best.models)


def sentence(tried: Sequence[SearchedSet], best: SearchedSet, single: Standing, questions: int) -> str:
    """What the search found, as a sentence for the advice.

    Args:
        tried: The sets that were decoded on dev, the greedy one first.
        best: The best of them.
        single: The best candidate alone.
        questions: The number of dev questions.
    """
    count = sum(searched.accuracy is not None for searched in tried)
    scored = f"{best.accuracy:.1f} points on the {questions:,} dev questions"
    if best.greedy:
        rank = "the only set that was decoded" if count == 1 else f"the best of the {count} sets decoded in a search"
        text = f"The rules' own choice was {rank}: {scored}"
    else:
        rules = f"the rules' own choice, {join(tried[0].models)}, {_points(tried[0].accuracy)}"
        text = f"A search found this set, the best of {count} that were decoded: {scored}; {rules}"
    # The best candidate on dev may only be the luckiest one, so this decides nothing; the held-out questions do.
    beaten = "" if (best.accuracy or 0.0) > single.accuracy else f"; {single.model} alone scores {single.accuracy:.1f}"
    return f"{text}{beaten}."


def _sets(fitting: Sequence[str], standings: dict[str, Standing], rules: Rules) -> Iterator[tuple[str, ...]]:
    """Pairs and triples whose members fit their own primary, the pairs first; ``fitting`` is in order of accuracy."""
    for size in range(2, min(3, rules.max_models) + 1):
        for models in itertools.combinations(fitting, size):
            if len(select([standings[model] for model in models], rules).selected) == size:
                yield models


def _coded(profiles: Sequence[Profile]) -> tuple[Floats, NDArray[np.int64]]:
    """Scores, and a number for each answer, which is the same for equal answers: models by questions."""
    graded = np.stack([scores(profile) for profile in profiles])
    coded = np.arange(graded.size).reshape(graded.shape)
    if is_binary(graded):
        known: dict[tuple[int, str | None], int] = {}
        for row, profile in enumerate(profiles):
            for question, answer in enumerate(profile.answers):
                # All right answers count as the same one, however they are spelled. A missing answer equals no other.
                if answer.score == 1 or answer.extracted is not None:
                    text = None if answer.score == 1 else answer.extracted
                    coded[row, question] = known.setdefault((question, text), int(coded[row, question]))
    return graded, coded


def _vote(graded: Floats, coded: NDArray[np.int64]) -> float:
    """Accuracy of a vote in points; of several answers with the most votes, each has the same probability."""
    # All questions at once: a Python loop over them would be slow for 2,300 sets.
    votes = (coded[:, None, :] == coded[None, :, :]).sum(axis=1)
    winning = votes == votes.max(axis=0)
    return 100 * float(((winning * graded).sum(axis=0) / winning.sum(axis=0)).mean())


def _decision(decision: Decision, greedy: Selection, inside: dict[str, Decision]) -> Decision:
    """The decision about a candidate if the set has the members ``inside`` instead of those of the greedy set."""
    own = inside.get(decision.model)
    if own is None:
        if decision.status == "rejected":
            return decision
        reason = "fits, but on the dev questions the set that did best is one without it"
        return Decision(decision.model, "rejected", reason)
    if own.status == "selected" or decision.model == greedy.selected[0]:
        return own if own.status == "selected" else decision
    return replace(own, reason="the most accurate of the set that did best on the dev questions when decoded")


def _points(accuracy: float | None) -> str:
    return "could not be run" if accuracy is None else f"{accuracy:.1f}"
