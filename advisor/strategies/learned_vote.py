"""A vote whose weights are learned from labels: how much each model's answer counts beside those of the others.

A logistic regression over the distinct answers of all questions: the log-odds that an answer is right grow by the
weights of the models that gave it. A ridge draws the weights of the voters towards a common one, whose size is free, so
that with few labels the vote is nearly the plain one, and those of other models towards 0. The models with the largest
weights stay, as many as a vote may have; those with a weight near 0 leave.

Members are asked in falling order of their weights, until the rest is unlikely to change the winner: 60% of its
weight, for one other answer, would not. That saves more calls than it costs points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from advisor.statistics import Floats, scores
from advisor.strategies.replay import codes_of
from advisor.strategies.strategy import FEWEST_VOTERS, TrainingData
from advisor.strategies.vote import Vote
from ensemble.methods.voting import NONE, Codes

_MOST_MODELS = 50
_MOST_QUESTIONS = 3000  # more hardly change the weights
_FREE = 10.0
"""How much cheaper the voters' common weight is than a weight of one model: the ridge hardly draws it to 0."""
_RIDGE = 0.1
"""The ridge, as scikit-learn's C. On real pools from 0.05 to 0.2 gain alike, and more than 1 with few labels."""
_LEAST_WEIGHT = 0.05
"""Of the largest weight: a model below it leaves."""
_DIGITS = 3
_LARGEST_IN_FILE = 1e6
Weight = Annotated[float, Field(strict=True, ge=0, le=_LARGEST_IN_FILE)]


@dataclass(frozen=True)
class LearnedVote(Vote):
    """A vote with learned weights that stops early; its members are in the order in which they are asked.

    Attributes:
        weights: The weight of each member's vote.
    """

    weights: Annotated[tuple[Weight, ...], Field(description="of a learned vote: the weight of each member's vote")]

    KIND: ClassVar[str] = "learned_vote"
    SIMPLICITY: ClassVar[int] = 65
    LEARNS: ClassVar[bool] = True
    REST: ClassVar[float] = 0.6
    MEMBERS: ClassVar[tuple[int, int]] = (1, _MOST_MODELS)

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[LearnedVote]:
        """See :meth:`Strategy.learn`."""
        names = given.models[:_MOST_MODELS]
        if not given.can_vote or len(names) < FEWEST_VOTERS:
            return
        profiles = given.profiles(names)
        kept = np.sort(np.random.default_rng(0).permutation(len(profiles[0].answers))[:_MOST_QUESTIONS])
        codes, graded = codes_of(profiles)[:, kept], np.stack([scores(each) for each in profiles])[:, kept]
        plain = given.voters if len(given.voters) >= FEWEST_VOTERS else given.voters[:1]
        weights = _learned(codes, graded, np.isin(names, plain), given.most_voters)
        rows = np.flatnonzero(weights)
        if not _scores_differ(codes, graded):
            rows = rows[np.argsort(-weights[rows], kind="stable")]
        # Else by accuracy: the first member that gave the winning answer is then the most accurate one of them.
        yield cls(tuple(names[row] for row in rows), tuple(float(weights[row]) for row in rows))

    @property
    def vote_weights(self) -> Sequence[float]:
        """See :attr:`Vote.vote_weights`."""
        return self.weights

    @property
    def same_as(self) -> str | None:
        """See :attr:`Strategy.same_as`."""
        if len(self.members) == 1:
            return "single"
        return "vote" if len(set(self.weights)) == 1 else None

    def problem(self) -> tuple[str, str] | None:
        """See :meth:`Strategy.problem`."""
        count = len(self.members)
        return None if len(self.weights) == count else ("weights", f"{count} numbers from 0 to {_LARGEST_IN_FILE:g}")

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Learned vote, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return (
            f"Ask {self._names} in this order, stop as soon as the rest is unlikely to change the winner, and take the "
            "answer with the most weight (a learned vote)"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Run a learned vote of {self._count} models."

    def list_members(self, names: Sequence[str]) -> str:
        """The members with the weights of their votes."""
        # There may be more weights than names to show.
        return ", ".join(f"{name} ({weight:.1f})" for name, weight in zip(names, self.weights, strict=False))


def _learned(codes: Codes, graded: Floats, is_plain: NDArray[np.bool_], most: int) -> Floats:
    """The weight of each model; 0 for models that are not asked. `most` is the number of those that may be."""
    rows, weights = np.arange(len(codes)), np.zeros(len(codes))
    while (found := _fit(*_distinct_answers(codes[rows], graded[rows]), is_plain[rows])) is not None:
        largest = np.argsort(-found, kind="stable")[:most]
        kept = np.sort(largest[found[largest] > _LEAST_WEIGHT * found.max()])
        if len(kept) in (0, len(rows)):
            break
        rows = rows[kept]
    if found is None or found.max() <= 0:
        return is_plain.astype(np.float64)
    weights[rows] = found
    return weights


def _distinct_answers(codes: Codes, graded: Floats) -> tuple[Floats, Floats]:
    """Which models gave each distinct answer, answers by models, and its score: the mean where models differ."""
    given, right = [], []
    for row, own in enumerate(codes):
        first = np.flatnonzero((own != NONE) & ~(codes[:row] == own).any(axis=0))
        same = (codes[:, first] == own[first]).astype(np.float64)
        given.append(same.T)
        right.append((same * graded[:, first]).sum(axis=0) / same.sum(axis=0))
    return np.concatenate(given), np.concatenate(right)


def _scores_differ(codes: Codes, graded: Floats) -> bool:
    """Whether equal answers to a question have different scores, as calls that are right in content and not in form."""
    return any(
        bool(((codes[row + 1 :] == own) & (own != NONE) & (graded[row + 1 :] != graded[row])).any())
        for row, own in enumerate(codes)
    )


def _fit(given: Floats, right: Floats, is_plain: NDArray[np.bool_]) -> Floats | None:
    """The weight of each model by logistic regression; None where all answers are right, or none is."""
    from sklearn.linear_model import LogisticRegression

    if not 0 < right.sum() < len(right):
        return None
    features = np.column_stack([_FREE * given @ is_plain, given])
    # An answer that is right in part counts on both sides.
    parts = np.concatenate([right, 1 - right])
    regression = LogisticRegression(C=_RIDGE, tol=1e-6, max_iter=1000).fit(
        np.concatenate([features, features])[parts > 0],
        np.repeat([True, False], len(right))[parts > 0],
        sample_weight=parts[parts > 0],
    )
    common, *own = regression.coef_[0].tolist()
    weights: Floats = (np.array(own) + _FREE * common * is_plain).round(_DIGITS)
    return weights
