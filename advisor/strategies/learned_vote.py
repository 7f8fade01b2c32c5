"""A vote whose weights are learned from labels: how much each model's answer counts beside those of the others.

A conditional logit over the distinct answers of a question (McFadden 1974, Conditional Logit Analysis of Qualitative
Choice Behavior): an answer is right with a probability proportional to the exponential of the summed weights of the
models that gave it. A weight is at least 0. A ridge draws it towards a line of the model's agreement with all others,
so that with few labels only the level and the slope of this line are learned, and with many each weight. The ridge is
chosen by cross-validation. Models with weight 0 are no members.

Cross-validation also decides whether the plain vote stays: where the learned vote has neither more right answers than
that one nor a larger likelihood, it is the plain vote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from advisor.statistics import Floats, folds_of, scores
from advisor.strategies.replay import codes_of
from advisor.strategies.strategy import FEWEST_VOTERS, TrainingData
from advisor.strategies.vote import Vote
from advisor.tasks.task import clusters_of
from ensemble.methods.voting import NONE, Codes, vote

_MOST_MODELS = 50
_MOST_QUESTIONS = 3000  # more hardly change 50 weights, and take seconds
_FOLDS = 5
_RIDGES = (1000.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""From one line for all models to a weight for each; in this order, because each fit starts from the one before."""
_LEAST_RIDGE = 0.05
"""Draws all weights towards 0, so that they are finite where they could tell all right answers from the others."""
_START = 0.5
_LARGEST = 1000.0
_DIGITS = 6
_LARGEST_IN_FILE = 1e6
Weight = Annotated[float, Field(strict=True, ge=0, le=_LARGEST_IN_FILE)]


@dataclass(frozen=True)
class LearnedVote(Vote):
    """A vote with learned weights that stops early; its members are the most accurate first.

    Attributes:
        weights: The weight of each member's vote.
    """

    weights: Annotated[tuple[Weight, ...], Field(description="of a learned vote: the weight of each member's vote")]

    KIND: ClassVar[str] = "learned_vote"
    SIMPLICITY: ClassVar[int] = 65
    LEARNS: ClassVar[bool] = True
    MEMBERS: ClassVar[tuple[int, int]] = (1, _MOST_MODELS)

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[LearnedVote]:
        """See :meth:`Strategy.learn`."""
        if not given.can_vote or not given.voters or len(given.questions.profiles) < FEWEST_VOTERS:
            return
        plain = given.voters if len(given.voters) >= FEWEST_VOTERS else given.voters[:1]
        # The sort is stable: of equally good ones the first one. The voters must be among them.
        ranked = sorted(given.questions.profiles, key=lambda name: -round(given.questions.profiles[name].accuracy, 9))
        names = list(dict.fromkeys((*plain, *ranked)))[:_MOST_MODELS]
        profiles = given.profiles(names)
        # Threads would wait for each other after each of many small operations: 250 times the time on busy cores.
        with threadpool_limits(limits=1, user_api="blas"):
            weights = _learned(codes_of(profiles), np.stack([scores(each) for each in profiles]), plain, given)
        if weights is None:
            yield cls(plain, (1.0,) * len(plain))
            return
        # By accuracy, not by weight: the first member that gave the winning answer is then the most accurate one, also
        # where equal answers have different scores. A vote that asks by weight might never ask that member.
        order = sorted(np.flatnonzero(weights), key=lambda row: -round(profiles[row].accuracy, 9))
        yield cls(tuple(names[row] for row in order), tuple(float(weights[row]) for row in order))

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
            f"Ask {self._names} in this order, stop as soon as the rest cannot change the winner, and take the answer "
            "with the most weight (a learned vote)"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Run a learned vote of {self._count} models."

    def list_members(self, names: Sequence[str]) -> str:
        """The members with the weights of their votes."""
        # There may be more weights than names to show.
        return ", ".join(f"{name} ({weight:.1f})" for name, weight in zip(names, self.weights, strict=False))


class _Choices(NamedTuple):
    """The distinct answers to questions that tell something: where a right answer and a wrong one were given."""

    given: Floats  # which models gave each answer: answers by models
    right: Floats  # the score of each answer
    question: NDArray[np.intp]  # the number of its question, ascending

    def part(self, is_kept: NDArray[np.bool_]) -> _Choices:
        """The answers to some questions."""
        kept = is_kept[self.question]
        return _Choices(self.given[kept], self.right[kept], self.question[kept])


def _learned(codes: Codes, graded: Floats, plain: Sequence[str], given: TrainingData) -> Floats | None:
    """The weight of each model, of which the plain vote has the first ones; None where that vote stays."""
    clusters, n = clusters_of(given.questions.task), codes.shape[1]
    folds = folds_of(clusters, n, _FOLDS, np.random.default_rng(0))
    kept = np.sort(np.random.default_rng(0).permutation(n)[:_MOST_QUESTIONS])
    codes, graded, folds = codes[:, kept], graded[:, kept], folds[kept]
    choices, base = _choices_of(codes, graded), _off_the_line(codes)
    if len(np.unique(folds[choices.question])) < 2:
        return None
    losses, right, plain_loss = np.zeros(len(_RIDGES)), np.zeros(len(_RIDGES)), 0.0
    for fold in range(_FOLDS):
        own = folds == fold
        learned, others = choices.part(~own), choices.part(own)
        weights = np.full(len(codes), _START)
        for step, ridge in enumerate(_RIDGES):
            weights = _fit(learned, ridge * base, weights)
            losses[step] += _loss_of(others)(weights)[0]
            right[step] += _right(codes[:, own], graded[:, own], weights)
        # The plain vote as a logit: one weight for the number of its votes.
        counts = [each._replace(given=each.given[:, : len(plain)].sum(axis=1)[:, None]) for each in (learned, others)]
        plain_loss += _loss_of(counts[1])(_fit(counts[0], np.zeros((1, 1)), np.full(1, _START)))[0]
    best = int(losses.argmin())
    plain_right = _right(codes[: len(plain)], graded[: len(plain)], np.ones(len(plain)))
    if right[best] <= plain_right and losses[best] >= plain_loss:
        return None
    weights = _fit(choices, _RIDGES[best] * base, np.full(len(codes), _START)).round(_DIGITS)
    return weights if weights.any() else None


def _right(codes: Codes, graded: Floats, weights: Floats) -> float:
    picks = vote(codes, weights.round(_DIGITS).tolist())
    return float(np.take_along_axis(graded, picks[None], axis=0).sum())


def _choices_of(codes: Codes, graded: Floats) -> _Choices:
    """The distinct answers, without missing ones. Of equal answers with different scores it has the mean."""
    parts = []
    for row, own in enumerate(codes):
        first = np.flatnonzero((own != NONE) & ~(codes[:row] == own).any(axis=0))
        same = (codes[:, first] == own[first]).astype(float)
        parts.append((same.T, (same * graded[:, first]).sum(axis=0) / same.sum(axis=0), first))
    given, right, question = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(question, kind="stable")
    high, low = np.zeros(codes.shape[1]), np.ones(codes.shape[1])
    np.maximum.at(high, question, right)
    np.minimum.at(low, question, right)
    return _Choices(given[order], right[order], question[order]).part(high > low)


def _off_the_line(codes: Codes) -> Floats:
    """The form of the ridge, models by models: the squared distance of weights to a line of the models' agreement."""
    same = np.stack([((own == codes) & (own != NONE)).mean(axis=1) for own in codes])
    agreement = (same.sum(axis=1) - np.diag(same)) / (len(codes) - 1)
    line = np.column_stack([np.ones(len(codes)), agreement])
    form: Floats = np.eye(len(codes)) - line @ np.linalg.pinv(line)
    return form


def _fit(choices: _Choices, ridge: Floats, start: Floats) -> Floats:
    """The weights with the largest penalized likelihood."""
    least = _LEAST_RIDGE * np.eye(len(start))
    loss, bounds = _loss_of(choices, ridge + least), [(0.0, _LARGEST)] * len(start)
    weights: Floats = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-7}).x
    return weights


def _loss_of(choices: _Choices, ridge: Floats | None = None) -> Callable[[Floats], tuple[float, Floats]]:
    """The negative log-likelihood of weights with half the penalty, and its gradient."""
    starts = np.flatnonzero(np.diff(choices.question, prepend=-1))
    counts = np.diff(starts, append=len(choices.question))

    def loss(weights: Floats) -> tuple[float, Floats]:
        if not len(starts):
            return 0.0, np.zeros(len(weights))
        utility = choices.given @ weights
        shares = np.exp(utility - np.repeat(np.maximum.reduceat(utility, starts), counts))
        shares /= np.repeat(np.add.reduceat(shares, starts), counts)
        # Several answers may be right, or right in part.
        right = np.maximum(np.add.reduceat(shares * choices.right, starts), 1e-12)
        pull = np.zeros(len(weights)) if ridge is None else ridge @ weights
        slopes = choices.given.T @ (shares * (1 - choices.right / np.repeat(right, counts)))
        return float(weights @ pull) / 2 - float(np.log(right).sum()), slopes + pull

    return loss
