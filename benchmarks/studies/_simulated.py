"""Simulated questions on which the true gain is known: how often the estimate shows a false gain, and what it covers.

Whether a model is right at a question is the sign of a normal number: a part that all models share (the question's
difficulty) and a part of its own. A graded score is zero for most numbers, and few scores are large. The questions of a
cluster share half of both parts. So each true mean score is exact. A set that decodes together shares the difficulty,
and some of its members' own parts; a vote is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import special

from advisor.advice.gain import Gain, cross_fitted_gain, repeated_folds
from advisor.records import ALPHA
from advisor.statistics import Floats, Interval

KINDS = {"tied": (0.0, 0.0, 0.0, 0.0), "near": (0.0, 2.0, 4.0, 5.0), "spread": (0.0, 5.0, 9.0, 12.0)}
"""How many points each member is behind the best one, by the members' kind."""
QUESTIONS = (20, 50, 100, 300, 1000)
"""Held-out questions; as many dev questions are drawn."""
SIZES = (1, 5, 10)
GAIN = 5.0
POOL = 8
CHOSEN = 3
"""Of the candidates of a pool, those with the best accuracy on dev."""
_LEAST = {False: (0.3, 0.8), True: (0.13, 0.25)}
"""Between what the best mean score lies, for answers that are right or wrong and for graded ones."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting: the members' kind, held-out questions, the questions of a cluster, and whether scores are graded."""

    kind: str
    n: int
    size: int
    graded: bool

    def __str__(self) -> str:
        scores = "graded" if self.graded else "right or wrong"
        clusters = f"clusters of {self.size}" if self.size > 1 else "no clusters"
        return f"{self.kind}, n = {self.n:,}, {clusters}, {scores}"


@dataclass(frozen=True, slots=True)
class Drawn:
    """What some draws of a setting gave, each an array with one value per draw.

    Attributes:
        p_values: One-sided p-values of no gain where the true gain is 0.
        p_no_loss: One-sided p-values of no loss, likewise.
        covered: Whether the 95% interval has the true gain, with a gain of 0 and of 5 points.
        covered_90: Whether the 90% interval has it.
    """

    p_values: Floats
    p_no_loss: Floats
    covered: NDArray[np.bool_]
    covered_90: NDArray[np.bool_]

    @property
    def false(self) -> float:
        """Share of false gains that are shown."""
        return float((self.p_values <= ALPHA).mean())


CELLS = tuple(Cell(*each) for each in product(KINDS, QUESTIONS, SIZES, (False, True)))


def draw_cell(cell: Cell, count: int, seed: int) -> Drawn:
    """Sets of three and of four members in turn, with drawn accuracies and agreement, that gain 0 and 5 points."""
    chance = np.random.default_rng(seed)
    answered = np.arange(2 * cell.n) >= cell.n
    clusters = np.arange(2 * cell.n) // cell.size if cell.size > 1 else None
    p_values, p_no_loss, covered, covered_90 = [], [], [], []
    for turn in range(count):
        best = chance.uniform(*_LEAST[cell.graded])
        means = best - np.array(KINDS[cell.kind][: 3 + turn % 2]) / 100
        numbers = _numbers(len(means), 2 * cell.n, chance.uniform(0.3, 0.9), chance, size=cell.size)
        together = _together(numbers, chance.uniform(0, 0.8), chance, size=cell.size)
        singles = _scores(numbers.of_models(), means, cell.graded)
        for gain in (0.0, GAIN):
            strategy = _scores(together[None, answered], np.array([best + gain / 100]), cell.graded)[0]
            held_out = singles[singles.mean(axis=1).argmax(), answered]
            found = cross_fitted_gain((strategy - held_out)[None], None if clusters is None else clusters[answered])
            covered.append(_covers(found, gain, 0.025))
            covered_90.append(_covers(found, gain, 0.05))
            if not gain:
                p_values.append(found.p_no_gain)
                p_no_loss.append(found.p_no_loss)
    return Drawn(np.array(p_values), np.array(p_no_loss), np.array(covered), np.array(covered_90))


def draw_chosen(n: int, others: Sequence[float], count: int, seed: int) -> Floats:
    """P-values of a set of the three most accurate of eight models on dev, whose true gain is 0.

    Args:
        n: Held-out questions; as many dev questions.
        others: How many points the other seven models are behind the best.
        count: How many draws.
        seed: Of all draws.
    """
    chance = np.random.default_rng(seed)
    held_out = np.arange(2 * n) >= n
    found = []
    for _ in range(count):
        best = chance.uniform(0.4, 0.8)
        numbers = _numbers(POOL, 2 * n, chance.uniform(0.3, 0.9), chance)
        scores = _scores(numbers.of_models(), best - np.array((0.0, *others)) / 100)
        ranks = np.argsort(-scores[:, :n].mean(axis=1), kind="stable")
        chosen = ranks[:CHOSEN]
        together = _together(numbers.only(chosen), chance.uniform(0, 0.8), chance)
        strategy = _scores(together[None, held_out], np.array([best]))[0]
        single = scores[scores.mean(axis=1).argmax(), held_out]
        found.append(cross_fitted_gain((strategy - single)[None]).p_no_gain)
    return np.array(found)


def draw_votes(n: int, count: int, seed: int) -> Floats:
    """P-values of votes of the three most accurate of eight models on dev, whose true gain is 0.

    Seven models are tied and one is so much better that a vote with two of them is right exactly as often. Wrong
    answers agree. Only the three answer the held-out questions; all questions choose among them, by cross-fitting.

    Args:
        n: Held-out questions; as many dev questions.
        count: How many draws.
        seed: Of all draws.
    """
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        tied = chance.uniform(0.55, 0.75)
        scores = ranked(voters(POOL, 2 * n, tied, chance, alike=chance.uniform(0, 0.5)), n)
        asked = scores[:CHOSEN]
        found.append(cross_fitted_gain(cross_fitted(asked)).p_no_gain)
    return np.array(found)


def draw_all_asked(n: int, count: int, seed: int, *, tied: Interval = (0.55, 0.75), size: int = 1) -> Floats:
    """As :func:`draw_votes`, where all eight models answered all questions, as in logs.

    A vote is named with the model that is the best on all labels. If this one is not the better one, the vote truly
    gains over it; then no gain is false, and p counts as 1.

    Args:
        n: All questions.
        count: How many draws.
        seed: Of all draws.
        tied: Between what the accuracy of the tied models lies.
        size: Questions of a cluster, which have the same scores.
    """
    chance, clusters = np.random.default_rng(seed), np.arange(n) // size
    found = []
    for _ in range(count):
        scores = voters(POOL, n // size, chance.uniform(*tied), chance, alike=chance.uniform(0, 0.5))
        differences = cross_fitted(np.repeat(scores, size, axis=1), clusters)
        p_value = cross_fitted_gain(differences, clusters if size > 1 else None).p_no_gain
        found.append(p_value if scores.mean(axis=1).argmax() == 0 else 1.0)
    return np.array(found)


def cross_fitted(scores: Floats, clusters: NDArray[np.intp] | None = None) -> Floats:
    """A vote of the three best models minus the best one, both chosen by the other folds: repeats by questions."""
    found = []
    for folds in repeated_folds(scores.shape[1], clusters):
        differences = np.zeros(scores.shape[1])
        for fold in range(int(folds.max()) + 1):
            means = scores[:, folds != fold].mean(axis=1)
            chosen = np.argsort(-means, kind="stable")[:CHOSEN]
            own = scores[chosen][:, folds == fold]
            differences[folds == fold] = majority(own) - own[0]
        found.append(differences)
    return np.stack(found)


def ahead(tied: float) -> float:
    """The accuracy at which a vote of two tied models with a better one gains nothing: its odds are theirs, squared."""
    return tied**2 / (tied**2 + (1 - tied) ** 2)


def voters(models: int, questions: int, tied: float, chance: np.random.Generator, alike: float = 0.0) -> Floats:
    """Independent answers of one model that is ahead and others that are tied; to some questions all answer alike."""
    same, fate = chance.random(questions) < alike, chance.random(questions) < 0.5
    right = chance.random((models, questions)) < np.array([ahead(tied), *[tied] * (models - 1)])[:, None]
    return np.where(same, fate, right).astype(float)


def majority(scores: Floats) -> Floats:
    """The scores of a vote of the first three models, whose wrong answers agree."""
    right: Floats = (scores[:CHOSEN].sum(axis=0) > CHOSEN / 2).astype(float)
    return right


def ranked(scores: Floats, dev: int) -> Floats:
    """The models' scores, the most accurate on the first questions first."""
    return scores[np.argsort(-scores[:, :dev].mean(axis=1), kind="stable")]


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting in which the set was chosen: its name in a figure's key, what it is, and how to draw p-values."""

    name: str
    note: str
    draw: Callable[[int, int], Floats]


def draw_choice(place: int, count: int, seed: int) -> Floats:
    """P-values of a setting, by its place in `CHOICES`: functions with arguments cannot go to another process."""
    return CHOICES[place].draw(count, seed)


def _choices() -> Iterator[Choice]:
    sizes = (100, 300, 1000)
    steps = [float(n) for n in range(1, POOL)]
    pools = {"tied": [0.0] * 7, "one ahead by 5": [5.0] * 7, "in steps": steps}
    for (kind, others), n in product(pools.items(), sizes):
        note = f"the 3 best of 8 on dev decode; {kind}, n = {n:,}"
        yield Choice("chosen", note, partial(draw_chosen, n, others))
    for n, (low, high), size in (
        *((n, (0.55, 0.75), 1) for n in (100, 200, 400)),
        *((n, (0.55, 0.75), 5) for n in (200, 400)),
        (200, (0.96, 0.98), 1),
    ):
        note = f"the 3 best of 8 vote, all labels, tied at {low:.0%} to {high:.0%}, clusters of {size}; n = {n:,}"
        yield Choice("all_asked", note, partial(draw_all_asked, n, tied=(low, high), size=size))
    for n in sizes:
        note = f"the 3 best of 8 on dev vote, and were asked everywhere; n = {n:,}"
        yield Choice("votes", note, partial(draw_votes, n))


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Normal numbers: what all models share [questions], each model's own part [models, questions], and the share."""

    shared: Floats
    own: Floats
    agreement: float

    def of_models(self) -> Floats:
        return self.mixed(self.own)

    def mixed(self, own: Floats) -> Floats:
        mixed: Floats = np.sqrt(self.agreement) * self.shared + np.sqrt(1 - self.agreement) * own
        return mixed

    def only(self, models: NDArray[np.intp]) -> _Numbers:
        return _Numbers(self.shared, self.own[models], self.agreement)


def _numbers(models: int, questions: int, agreement: float, chance: np.random.Generator, size: int = 1) -> _Numbers:
    drawn = _clustered((models + 1, questions), size, chance)
    return _Numbers(drawn[0], drawn[1:], agreement)


def _together(numbers: _Numbers, borrowed: float, chance: np.random.Generator, size: int = 1) -> Floats:
    """The numbers of a set whose own part is in part the mean of its members' own parts."""
    models, questions = numbers.own.shape
    fresh = _clustered((1, questions), size, chance)[0]
    own = borrowed * numbers.own.sum(axis=0) / np.sqrt(models) + np.sqrt(1 - borrowed**2) * fresh
    return numbers.mixed(own)


def _clustered(shape: tuple[int, int], size: int, chance: np.random.Generator) -> Floats:
    drawn = chance.standard_normal(shape)
    if size == 1:
        return drawn
    common = np.repeat(chance.standard_normal((shape[0], shape[1] // size)), size, axis=1)
    mixed: Floats = (drawn + common) / np.sqrt(2)
    return mixed


def _scores(numbers: Floats, means: Floats, graded: bool = False) -> Floats:
    """Scores with these means: 0 and 1, or graded and skewed."""
    if not graded:
        right: Floats = (numbers < special.ndtri(means)[:, None]).astype(float)
        return right
    # Where u is uniform, the square of u above a limit has a mean of a third of what is above.
    above: Floats = np.maximum(1 - special.ndtr(numbers) / (3 * means[:, None]), 0.0)
    return np.square(above)


def _covers(found: Gain, gain: float, alpha: float) -> bool:
    low, high = found.interval(alpha)
    return low <= gain <= high


CHOICES = tuple(_choices())
