"""Held-out questions in batches, until the test shows something: a group-sequential design.

A test that is repeated while questions come in finds a gain by chance more often than with the probability alpha. So
each look at the data has a stricter limit, and all looks together keep alpha. How much of alpha is spent by which look
follows from the share of the questions that it has (alpha spending: Lan and DeMets 1983, Biometrika 70(3)). The limits
come from the joint distribution of the looks, by numerical integration (Armitage, McPherson and Rowe 1969, Journal of
the Royal Statistical Society A 132(2)). The same limits hold for "better" and for "worse", each with all of alpha.

A set of held-out questions that another set was tested on before is not fresh any more: the run folder records all
looks, and later tests are corrected; see :func:`tests_factor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy import optimize, stats

from advisor.advice.gain import Gain
from advisor.records import ALPHA
from advisor.run.result import InterimAnalysis
from advisor.statistics import Floats
from advisor.tasks.task import Task, sha256
from ensemble.common.text import counted

FIRST_LOOK = 100
"""Questions before the first look: with fewer, the estimate's distribution is too far from Student's."""
_GROWTH = 1.5
"""Each look has this many times the questions of the one before. More looks would hardly save questions."""
_POWER = 1.25
"""Exponent of the spending function (Kim and DeMets 1987): 1 spends alpha as the questions come in, 3 nearly all of
it at the end. In simulations of a gain of 5 points, 1 asks 2% fewer questions and 2 asks 8% more; the power hardly
differs (0.949 to 0.957)."""
_LOWEST, _HIGHEST = -8.0, 40.0  # z-values; beyond the first one the normal distribution has no weight that counts
_LARGEST_ALPHA = 0.999
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def corrected_p(look: InterimAnalysis, p_value: float) -> float:
    """A one-sided p-value of an analysis, corrected for all analyses of its plan and for earlier tests.

    The smallest alpha at which the analysis would show it. So it is at most alpha of the run exactly if `p_value` is at
    most its ``limit``.
    """
    plan = look.plan[: look.plan.index(look.n) + 1]
    return min(1.0, tests_factor(look.test) * _alpha_at(p_value, plan, look.plan[-1]))


def reuse_note(look: InterimAnalysis) -> str | None:
    """A sentence if the held-out questions of an analysis are not fresh."""
    if look.test == 1:
        return None
    before = counted(look.test - 1, "time")
    return (
        f"These held-out questions were looked at {before} before, with another set or another number of "
        f"questions, so the p-value is multiplied by {tests_factor(look.test)} (test {look.test} in this run "
        "folder)."
    )


def tests_factor(test: int) -> int:
    """The factor of the p-values of a test that follows others on the same questions; `test` counts from 1.

    The first test has all of alpha, as it is not known then whether others follow. The k-th one has alpha divided by k
    (k + 1): so all later ones together spend half of it, however many follow.
    """
    return 1 if test == 1 else test * (test + 1)


def questions_id(task: Task) -> str:
    """What identifies the questions of a split, however many of them a run asks: 16 hexadecimal digits."""
    return sha256(task.name, task.split, task.seed)[:16]


def planned_looks(questions: int) -> tuple[int, ...]:
    """The numbers of questions at which the result is looked at: 100, then half as many more each time, at last all."""
    looks, n = [], FIRST_LOOK
    # Not a look that the last one follows at once: it costs a part of alpha, and saves few questions.
    while 1.2 * n < questions:
        looks.append(n)
        n = math.ceil(_GROWTH * n)
    return *looks, questions


def limits_of(plan: Sequence[int], alpha: float = ALPHA, questions: int | None = None) -> tuple[float, ...]:
    """The limit of the one-sided p-value at each look of a plan, or of a part of one with so many questions."""
    shares = np.array(plan) / (questions or plan[-1])
    return tuple(stats.norm.sf(boundaries(shares, alpha * shares**_POWER)).tolist())


def boundaries(shares: Floats, spent: Floats) -> Floats:
    """The z-values that end a test at each look.

    `shares` are the looks' shares of the information, ascending up to 1; `spent` the probability that this look or an
    earlier one crosses its boundary by chance.
    """
    found: list[float] = []
    # Before the first look, all is at one point. Then: the density of those that went on after the last look, at the
    # nodes of Gauss and Legendre.
    nodes, mass, before = np.zeros(1), np.ones(1), 0.0
    for share, chance in zip(shares, np.diff(spent, prepend=0.0), strict=True):
        # The z-values of two looks are normal, and this is their correlation.
        correlation = math.sqrt(before / share)
        means, deviation = correlation * nodes, math.sqrt(1 - correlation**2)
        boundary = _upper_end(means, mass, deviation, float(chance))
        half = (boundary - _LOWEST) / 2
        nodes = half * _NODES + (boundary + _LOWEST) / 2
        mass = half * _WEIGHTS * (stats.norm.pdf((nodes[:, None] - means) / deviation) @ mass) / deviation
        found.append(boundary)
        before = float(share)
    return np.array(found)


def _upper_end(means: Floats, mass: Floats, deviation: float, chance: float) -> float:
    """The value that a mixture of normal distributions exceeds with a chance."""

    def excess(end: float) -> float:
        return float(mass @ stats.norm.sf((end - means) / deviation)) - chance

    return float(optimize.brentq(excess, _LOWEST, _HIGHEST))


def _alpha_at(p_value: float, plan: tuple[int, ...], questions: int) -> float:
    """Alpha at which the limit of the plan's last look is this p-value; `questions` are those of the whole plan."""
    if plan == (questions,) or p_value <= 0:
        return p_value

    def excess(alpha: float) -> float:
        return limits_of(plan, alpha, questions)[-1] - p_value

    # A limit is below its alpha.
    if p_value >= _LARGEST_ALPHA or excess(_LARGEST_ALPHA) < 0:
        return 1.0
    return float(optimize.brentq(excess, p_value, _LARGEST_ALPHA, xtol=1e-9))


def look_until_sure(
    verify: Callable[[int], Gain | None], blank: InterimAnalysis, earlier: Sequence[InterimAnalysis] = ()
) -> tuple[InterimAnalysis, ...]:
    """Ask in batches until the test shows that the set is better, or worse, or until all questions are asked.

    `verify` asks the first questions, as many as it is given; None ends the test, too. `blank` has what all looks have
    in common. The last look is the result.
    """
    same = [look for look in earlier if look.questions == blank.questions]
    seen = {look.inputs: look for look in same}
    # A run that is repeated is no other test. Whether it is one, the first look tells.
    test = 0
    limits: tuple[float, ...] = ()
    looks: list[InterimAnalysis] = []
    for place, n in enumerate(blank.plan):
        if (gain := verify(n)) is None:
            break
        look = blank.model_copy(update={"n": n, "p_no_gain": gain.p_no_gain, "p_no_loss": gain.p_no_loss})
        known = seen.get(look.inputs)
        if not looks:
            test = known.test if known else 1 + max((each.test for each in same), default=0)
            limits = limits_of(blank.plan, ALPHA / tests_factor(test))
        looks.append(look.model_copy(update={"limit": limits[place], "test": test}))
        if looks[-1].is_sure:
            break
    return tuple(looks)


def looks_in_words(looks: Sequence[InterimAnalysis]) -> str | None:
    """A sentence on how many questions were asked; None for a run without batches."""
    if not looks or len(looks[0].plan) == 1:
        return None
    last = looks[-1]
    if last.is_sure:
        return (
            f"The questions were asked in batches until the test was sure, after {last.n} of at most {last.plan[-1]}."
        )
    if last.n < last.plan[-1]:
        return (
            f"The questions were asked in batches. The test ended after {last.n} of at most {last.plan[-1]}, because "
            "what it tested failed."
        )
    return f"The questions were asked in batches, and the test is not sure after all {last.n}."


def first_questions(task: Task, n: int) -> Task:
    """The task with its first questions only; ``n`` is not in the middle of a conversation."""
    if n >= len(task.examples):
        return task
    return replace(task, examples=task.examples[:n])


def with_earlier(looks: Sequence[InterimAnalysis], earlier: Sequence[InterimAnalysis]) -> tuple[InterimAnalysis, ...]:
    """The looks of earlier runs and those of this one, each once."""
    seen = {look.inputs for look in looks}
    return (*(look for look in earlier if look.inputs not in seen), *looks)
