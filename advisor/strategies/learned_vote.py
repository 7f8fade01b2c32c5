"""A vote whose weights are learned from labels, asked one model after the other until the rest cannot change it.

The weights are those of a conditional logit (McFadden 1974) over the distinct answers to a question: an answer is right
with a probability proportional to exp(the sum of the weights of the models that gave it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from advisor.records import Profile
from advisor.statistics import scores
from advisor.strategies.cascade import cascade_calls, is_decided
from advisor.strategies.strategy import FEWEST_VOTERS, MOST_MEMBERS, TrainingData, vote_sizes
from advisor.strategies.vote import codes_of
from advisor.strategies.weighted_vote import WeightedVote
from advisor.tasks.task import Example, clusters_of
from ensemble.methods._votes import NONE, Codes, vote

if TYPE_CHECKING:
    from advisor.running.asking import PromptCalls
    from advisor.statistics import Floats

_FOLDS = 5
_RIDGES = (300.0, 100.0, 30.0, 10.0, 3.0)
"""Penalties to choose from, the strongest first; each is of a sum over questions, not of a mean."""
_LARGEST = 20.0
"""The largest weight. Models that are always right would have an infinite one."""
_LEAST = 1e-3
"""A model with a smaller weight is not asked."""


@dataclass(frozen=True)
class LearnedVote(WeightedVote):
    """A weighted vote of any models of the pool. Its members are asked in the order of their weights."""

    KIND: ClassVar[str] = "learned_vote"
    SIMPLICITY: ClassVar[int] = 65
    FROM_ALL: ClassVar[bool] = True
    ROLE: ClassVar[str] = "stage {n} of the vote"

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[LearnedVote]:
        """See :meth:`Strategy.learn`. With equal weights if learned ones are not better on questions left out."""
        names = tuple(dict.fromkeys((*given.voters, *given.dev.profiles)))[:MOST_MEMBERS]
        profiles = given.profiles(names)
        right = np.stack([scores(profile) for profile in profiles])
        # A graded answer is not right or wrong.
        if not vote_sizes(given) or not np.isin(right, (0, 1)).all():
            return
        weights = _learned(codes_of(profiles), right, clusters_of(given.dev.task), len(given.voters))
        order = () if weights is None else [n for n in np.argsort(-weights, kind="stable") if weights[n] >= _LEAST]
        if weights is None or len(order) < FEWEST_VOTERS:
            yield cls(given.voters, (1.0,) * len(given.voters))
        else:
            yield cls(tuple(names[n] for n in order), tuple(float(weights[n]) for n in order))

    @property
    def is_trivial(self) -> bool:
        """See :meth:`Strategy.is_trivial`."""
        return len(set(self.weights)) < 2

    def calls(
        self,
        responses: Sequence[Profile],
        examples: Sequence[Example],  # noqa: ARG002
        picks: Sequence[int],  # noqa: ARG002
    ) -> Floats:
        """See :meth:`Strategy.calls`."""
        codes = codes_of(responses)
        return (np.arange(len(codes))[:, None] < cascade_calls(codes, self.weights)).astype(np.float64)

    async def ask(self, calls: PromptCalls) -> int:
        """See :meth:`Strategy.ask`."""
        for asked in range(1, len(self.members) + 1):
            await calls.one(asked - 1, calls.settings)
            if is_decided(calls.codes(), self.weights[asked:], self.weights[:asked])[0]:
                break
        return calls.winner(self.weights[: len(calls.made)])

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Learned vote, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return (
            f"Ask {self._names} in this order, stop as soon as the rest cannot change the winner, and take the answer "
            "with the most weight (a vote, with weights learned from labels)"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Take a learned vote of {self._count} models."


def _learned(codes: Codes, right: Floats, clusters: Sequence[str] | None, voters: int) -> Floats | None:
    """The weight of each model; None if a plain vote of the first models, the `voters`, is at least as often right.

    Both are judged on questions that were left out. The ridge is the one that makes the labels there likeliest.

    Args:
        codes: The answers, models by questions.
        right: Their scores, 0 or 1, models by questions.
        clusters: The cluster of each question; the questions of one are left out together.
        voters: How many of the first models the plain vote has.
    """
    questions = codes.shape[1]
    labels = np.unique(range(questions) if clusters is None else np.asarray(clusters), return_inverse=True)[1]
    units = int(labels.max()) + 1
    if units < 2 * _FOLDS:
        return None
    folds = (np.random.default_rng(0).permutation(units) % _FOLDS)[labels]
    columns = np.arange(questions)
    likelihoods, hits = np.zeros(len(_RIDGES)), np.zeros(len(_RIDGES))
    for fold in range(_FOLDS):
        own = folds == fold
        seen, unseen = _Labelled(codes[:, ~own], right[:, ~own]), _Labelled(codes[:, own], right[:, own])
        weights = seen.start
        for n, ridge in enumerate(_RIDGES):
            weights = seen.fit(ridge, weights)
            likelihoods[n] -= unseen.loss(weights)[0]
            order = np.argsort(-weights, kind="stable")
            taken = order[vote(codes[order][:, own], weights[order].tolist())]
            hits[n] += right[taken, columns[own]].sum()
    best = int(likelihoods.argmax())
    if hits[best] <= right[vote(codes[:voters]), columns].sum():
        return None
    whole = _Labelled(codes, right)
    found: Floats = whole.fit(_RIDGES[best], whole.start).round(6)
    return found


class _Labelled:
    """The distinct answers to questions, with labels: the data of the logit.

    Args:
        codes: The answers, models by questions.
        right: Their scores, 0 or 1, models by questions.
    """

    def __init__(self, codes: Codes, right: Floats) -> None:
        # Where all answers are right, or none is, the label says nothing about the weights.
        given = codes != NONE
        kept = (given & (right > 0)).any(axis=0) & (given & (right == 0)).any(axis=0)
        codes, right, given = codes[:, kept], right[:, kept], given[:, kept]
        models, places = np.nonzero(given)
        pairs = places * (int(codes.max(initial=0)) + 1) + codes[models, places]
        _, firsts, rows = np.unique(pairs, return_index=True, return_inverse=True)
        shape = (len(firsts), len(codes))
        self._given = csr_matrix((np.ones(len(models)), (rows, models)), shape=shape)
        self._starts = np.flatnonzero(np.diff(places[firsts], prepend=-1))
        self._sizes = np.diff(self._starts, append=len(firsts))
        self._is_right: NDArray[np.bool_] = np.bincount(rows, right[models, places], len(firsts)) > 0
        # Weights are drawn towards a line: what all models share, and how often each agrees with the others.
        agreed = self._given.T @ (np.asarray(self._given.sum(axis=1)).ravel() - 1)
        agreement = agreed / np.maximum(np.asarray(self._given.sum(axis=0)).ravel(), 1)
        self._line = np.linalg.qr(np.column_stack([np.ones(len(codes)), agreement]))[0]
        self.start: Floats = np.ones(len(codes))

    def loss(self, weights: Floats) -> tuple[float, Floats]:
        """Minus the logarithm of the probability of the labels, and its gradient."""
        if not len(self._starts):
            return 0.0, np.zeros(len(weights))
        utility = self._given @ weights
        utility -= np.repeat(np.maximum.reduceat(utility, self._starts), self._sizes)
        every = np.exp(np.maximum(utility, -500.0))
        right = every * self._is_right
        total, good = (np.add.reduceat(each, self._starts) for each in (every, right))
        slope = every / np.repeat(total, self._sizes) - right / np.repeat(good, self._sizes)
        return float(np.log(total / good).sum()), self._given.T @ slope

    def fit(self, ridge: float, start: Floats) -> Floats:
        """The weights with the least loss and penalty, 0 to 20 each."""

        def penalized(weights: Floats) -> tuple[float, Floats]:
            loss, slope = self.loss(weights)
            apart = weights - self._line @ (self._line.T @ weights)
            return loss + ridge / 2 * float(apart @ apart), slope + ridge * apart

        found = minimize(penalized, start, jac=True, method="L-BFGS-B", bounds=[(0.0, _LARGEST)] * len(start))
        weights: Floats = found.x
        return weights
