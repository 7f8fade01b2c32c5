"""Searching: which sets beside the greedy one deserve to be decoded, and which of them to put forward.

There are too many sets to decode them all, so each is given a cheap prediction from its members' own answers:

    question    a        b        c        vote   oracle   predicted
    1           right    right    "12"     1      1        1
    2           right    "12"     "15"     1/3    1        2/3
    3           right    "12"     "12"     0      1        1/2

The vote counts heads: of the answers that most members gave one is drawn, so that ties are shared. The oracle takes the
best answer that anybody gave. A set that decodes together lies between the two, since of models that disagree the right
one is surer more often than not, and cannot often go beyond the oracle; the prediction is the mean of both. (In the
`samples.jsonl` of `make demo`, of 500 held-out questions its set of three gets 93% right where two members do, 64% in a
case like question 2 and 43% in one like question 3.) Where scores are graded no two answers are the same, and the vote
is the members' mean.

Not covered: sets of more than three, but for the greedy one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.choose.rules import select
from advisor.records import TRIES, Decision, Profile, Rules, Selection, Standing
from advisor.statistics import Floats, check_same_questions, is_binary, scores

AMONG = 24
"""The best so many of the candidates that fit are combined: 2,300 pairs and triples, predicted within a second."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """A set that may be worth decoding.

    Attributes:
        models: In order of accuracy, the primary first.
        predicted: Mean of `vote` and `oracle`.
        vote: Accuracy of a vote among its members, in points, ties shared.
        oracle: Accuracy if the best of its members' answers were always taken, in points.
        greedy: Whether it is the one that the rules choose.
    """

    models: tuple[str, ...]
    predicted: float
    vote: float
    oracle: float
    greedy: bool


@dataclass(frozen=True, slots=True)
class Try:
    """A set that was decoded on the dev questions.

    Attributes:
        prospect: The set.
        accuracy: Its accuracy there, in points; None where it could not be run.
        seconds: What its responses took.
        error: Why it could not be run.
    """

    prospect: Prospect
    accuracy: float | None
    seconds: float | None = None
    error: str | None = None

    def as_dict(self, selection: Selection) -> dict[str, Any]:
        """The set as JSON has it.

        Args:
            selection: What was put forward.
        """
        return {
            **asdict(self.prospect),
            "models": list(self.prospect.models),
            "dev_accuracy": self.accuracy,
            "seconds": self.seconds,
            "error": self.error,
            "put_forward": self.prospect.models == selection.selected,
        }


def promising_sets(profiles: Sequence[Profile], rules: Rules, tries: int = TRIES) -> tuple[Prospect, ...]:
    """The greedy set, and of the pairs and triples of candidates that fit those with the best prediction.

    A pair or triple is considered where all its members fit the best candidate by the rules, and fit its own primary.

    Args:
        profiles: The candidates' answers to the same questions, at least one, in any order.
        rules: The limits.
        tries: Sets to return at the most, at least 1.

    Returns:
        The greedy set, then the others, most promising first. Nothing where only one candidate fits or may be taken.

    Raises:
        UniteError: Two candidates were asked different questions.
    """
    for profile in profiles[1:]:
        check_same_questions(profiles[0], profile)
    standings = {p.model: Standing(p.model, p.accuracy, p.mean_length) for p in profiles}
    fitting = select(list(standings.values()), replace(rules, max_models=len(profiles))).selected
    greedy = fitting[: rules.max_models]
    if len(greedy) < 2:
        return ()
    graded, coded = _coded(profiles)
    rows = {profile.model: row for row, profile in enumerate(profiles)}

    def prospect(models: tuple[str, ...]) -> Prospect:
        members = [rows[model] for model in models]
        vote, oracle = _vote(graded[members], coded[members]), 100 * float(graded[members].max(axis=0).mean())
        return Prospect(models, (vote + oracle) / 2, vote, oracle, models == greedy)

    others = [prospect(models) for models in _sets(fitting[:AMONG], standings, rules) if models != greedy]
    # Python's sort is stable: of two equal ones the pair comes before the triple, the more accurate before the less.
    others.sort(key=lambda one: -round(one.predicted, 9))
    return (prospect(greedy), *others)[:tries]


def best_of(tried: Sequence[Try]) -> Try | None:
    """Which of the sets to put forward: the one that did best on dev; None where none could be decoded.

    Args:
        tried: The sets, the greedy one first; it is put forward where another is only as good.
    """
    decoded = [(round(one.accuracy, 9), one) for one in tried if one.accuracy is not None]
    return max(decoded, key=lambda pair: pair[0], default=(0.0, None))[1]


def put_forward(greedy: Selection, found: Prospect, standings: Sequence[Standing], rules: Rules) -> Selection:
    """The selection with the set that a search found in place of the greedy one.

    Args:
        greedy: What the rules decided.
        found: The set.
        standings: What the rules looked at.
        rules: The limits.
    """
    if found.models == greedy.selected:
        return greedy
    inside = {
        one.model: one for one in select([one for one in standings if one.model in found.models], rules).decisions
    }
    return Selection(tuple(_decision(one, greedy, inside) for one in greedy.decisions), found.models)


def sentence(tried: Sequence[Try], found: Try, single: Standing, questions: int) -> str:
    """What was searched, for the advice.

    Args:
        tried: The sets that were decoded on dev, the greedy one first.
        found: The one that was put forward.
        single: The best candidate alone.
        questions: Dev questions.
    """
    count = sum(one.accuracy is not None for one in tried)
    scored = f"{found.accuracy:.1f} points on the {questions:,} dev questions"
    if found.prospect.greedy:
        best = "the only set that was decoded" if count == 1 else f"the best of the {count} sets decoded in a search"
        said = f"The rules' own choice was {best}: {scored}"
    else:
        rules = f"the rules' own choice, {_join(tried[0].prospect.models)}, {_points(tried[0].accuracy)}"
        said = f"A search found this set, the best of {count} that were decoded: {scored}; {rules}"
    # Only the held-out questions decide: on dev the best candidate is the luckiest one.
    beaten = "" if (found.accuracy or 0.0) > single.accuracy else f"; {single.model} alone scores {single.accuracy:.1f}"
    return f"{said}{beaten}."


def _sets(fitting: Sequence[str], standings: dict[str, Standing], rules: Rules) -> Iterator[tuple[str, ...]]:
    """Pairs and triples whose members fit their own primary, the pairs first; ``fitting`` is in order of accuracy."""
    for size in range(2, min(3, rules.max_models) + 1):
        for models in itertools.combinations(fitting, size):
            if len(select([standings[model] for model in models], rules).selected) == size:
                yield models


def _coded(profiles: Sequence[Profile]) -> tuple[Floats, NDArray[np.int64]]:
    """Scores, and a number for each answer, the same for the same one: models by questions."""
    graded = np.stack([scores(profile) for profile in profiles])
    coded = np.arange(graded.size).reshape(graded.shape)
    if is_binary(graded):
        known: dict[tuple[int, str | None], int] = {}
        for row, profile in enumerate(profiles):
            for question, answer in enumerate(profile.answers):
                # All right answers are one, however they are spelt; where nothing was extracted, it is like no other.
                if answer.score == 1 or answer.extracted is not None:
                    text = None if answer.score == 1 else answer.extracted
                    coded[row, question] = known.setdefault((question, text), int(coded[row, question]))
    return graded, coded


def _vote(graded: Floats, coded: NDArray[np.int64]) -> float:
    """Accuracy of a vote, in points: of the answers with the most votes one is drawn."""
    votes = (coded[:, None, :] == coded[None, :, :]).sum(axis=1)
    winning = votes == votes.max(axis=0)
    return 100 * float(((winning * graded).sum(axis=0) / winning.sum(axis=0)).mean())


def _decision(decision: Decision, greedy: Selection, inside: dict[str, Decision]) -> Decision:
    """What becomes of a candidate when the set consists of those inside, and no longer of those of the greedy one."""
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


def _join(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
