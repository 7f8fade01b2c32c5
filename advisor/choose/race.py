"""Profiles the candidates on the dev questions: on all of them, or in a race that drops hopeless candidates early.

In a race all candidates answer the same questions in the same random order. The race makes a
statement about the result on all these questions, a finite population drawn without replacement, so that the evidence
becomes certain at its end.

    For a candidate c and each other candidate o, the race bets against the claim "o is at most the gap ahead of c",
    with every question's difference of scores. If the claim is true, the wealth of a bet does not grow on average, so
    it reaches 1 / alpha with a probability of at most ``alpha``, however often one looks (Ville's inequality). If c
    fits the final best candidate, then it is at most the gap behind *every* other one: all claims are true, and the
    mean of the wealths keeps the same bound. So the race need not know the final best candidate.

The bets are those of Waudby-Smith and Ramdas (2020, Confidence sequences for sampling without replacement, and 2024,
Estimating means of bounded random variables by betting), with a mixture of fixed fractions for the size of the bet.

A race does not apply the length rule. Lengths have no upper bound, and without a bound no statement about their mean
holds at every stopping time. The rules check the lengths of all remaining candidates afterwards.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from advisor.choose.copies import copy_decisions, find_copies
from advisor.choose.rules import select
from advisor.config import RunConfig
from advisor.pool.fingerprint import Fingerprint
from advisor.profile.profiler import Profiler
from advisor.profile.turns import conversation_end
from advisor.progress import Progress
from advisor.records import ALPHA, TOLERANCE, Decision, Limits, Profile, Selection
from advisor.statistics import Floats
from advisor.tasks.task import Task
from ensemble.errors import UniteError

FIRST_ROUND = 16  # questions; each round doubles them, so that loading the models again costs little
# Fractions of the largest bet without ruin. Large bets win early if the gap is wide, small ones if it is narrow.
_BETS = (np.arange(10) + 0.5) / 10


@dataclass(frozen=True, slots=True)
class ProfiledPool:
    """The candidates that could be run.

    Attributes:
        complete: The profiles on all dev questions, by name.
        dropped: The profiles of candidates that left a race, on fewer questions, which cannot be compared with the
            others, and those of copies of another candidate.
        rejected: The decisions about these: the copies, then those of the race, the last one first.
        remote: The names of the candidates behind servers that give whole texts only. They cannot be decoded with
            others.
    """

    complete: Mapping[str, Profile]
    dropped: Mapping[str, Profile] = field(default_factory=dict)
    rejected: tuple[Decision, ...] = ()
    remote: frozenset[str] = frozenset()

    @property
    def profiles(self) -> dict[str, Profile]:
        """All profiles, by name."""
        return {**self.complete, **self.dropped}

    @property
    def best(self) -> str:
        """The most accurate candidate, wherever it runs."""
        return self._select(Limits()).selected[0]

    def select(self, rules: Limits) -> Selection:
        """Apply the rules to the candidates that answered all questions.

        The set is chosen among the candidates that can be decoded together. If no two of them fit, it is chosen among
        all, with those that give whole texts only.
        """
        if 0 < len(self.remote) < len(self.complete):
            # Where fewer than two can be decoded together, a vote among all is still possible.
            selection = self._select(rules, self.rejected, self.remote)
            if len(selection.selected) > 1:
                return selection
        return self._select(rules, self.rejected)

    def voters(self, rules: Limits) -> tuple[str, ...]:
        """The set that the rules choose among all candidates, if one of its members gives whole texts; else empty."""
        selected = self._select(rules).selected
        return selected if len(selected) > 1 and self.remote.intersection(selected) else ()

    def _select(
        self, rules: Limits, dropped: Sequence[Decision] = (), apart: frozenset[str] = frozenset()
    ) -> Selection:
        return select([profile.standing for profile in self.complete.values()], rules, dropped, apart)


def profile_candidates(config: RunConfig, profiler: Profiler, progress: Progress) -> ProfiledPool:
    """Profile the candidates that have not failed yet, in a race if the config has one.

    Raises:
        UniteError: All candidates failed.
    """
    while True:
        names = [candidate.name for candidate in config.candidates if candidate.name not in profiler.failures]
        if not names:
            name, reason = next(iter(profiler.failures.items()))
            raise UniteError(f"none of the {len(profiler.failures)} candidates could be run; {name}: {reason}")
        # A candidate that gives whole texts may be far ahead, and the set cannot contain it. So it takes no part in a
        # race.
        remote = [name for name in names if not profiler.decodes(name)]
        racing = [name for name in names if name not in remote]
        if config.race is None or len(racing) < 2:
            pool: ProfiledPool | None = _pool(profiler.alone(names, config.dev), profiler)
        else:
            pool = _run_race(config, config.race, racing, profiler, progress)
            if pool is not None:
                complete = {**pool.complete, **profiler.alone(remote, config.dev)}
                pool = replace(_pool(complete, profiler), dropped=pool.dropped, rejected=pool.rejected)
        # If a candidate failed, the race is run again without it: another one may have been dropped only because of
        # it. All responses are stored, so this takes no time.
        if pool is not None and pool.complete:
            return _without_copies(pool, profiler)


def without_failed(pool: ProfiledPool, config: RunConfig, profiler: Profiler, progress: Progress) -> ProfiledPool:
    """The pool without the candidates that failed since it was profiled.

    Raises:
        UniteError: All candidates failed.
    """
    # After a race, the others may have been dropped because of the failed one; and if a judge compared the candidates,
    # their scores are of comparisons with it. So they are profiled again.
    left = {name: profile for name, profile in pool.complete.items() if name not in profiler.failures}
    is_valid = left and not pool.dropped and not config.dev.is_relative
    return _pool(left, profiler) if is_valid else profile_candidates(config, profiler, progress)


def _without_copies(pool: ProfiledPool, profiler: Profiler) -> ProfiledPool:
    identities = profiler.identities.items()
    weights = {name: identity.weights for name, identity in identities if isinstance(identity, Fingerprint)}
    copies = find_copies(list(pool.complete.values()), weights, pool.remote)
    left = {name: profile for name, profile in pool.complete.items() if name not in copies}
    dropped = {**pool.dropped, **{name: pool.complete[name] for name in copies}}
    return replace(_pool(left, profiler), dropped=dropped, rejected=(*copy_decisions(copies), *pool.rejected))


def _pool(complete: Mapping[str, Profile], profiler: Profiler) -> ProfiledPool:
    return ProfiledPool(complete, remote=frozenset(name for name in complete if not profiler.decodes(name)))


def race_order(task: Task) -> list[int]:
    """The places of the questions in the order of a race: random by seed and prompts, the same for each pool.

    The turns of a conversation stay together.
    """
    draws: list[bytes] = []
    # A hash and not a shuffle: the order must not depend on Python's version or on the task's order.
    for example in task.examples:
        draw = hashlib.sha256(f"{task.seed}\n{example.prompt}".encode()).digest()
        draws.append(draw if example.earlier is None else draws[-1])
    return sorted(range(len(task.examples)), key=draws.__getitem__)


def _run_race(
    config: RunConfig, alpha: float, names: Sequence[str], profiler: Profiler, progress: Progress
) -> ProfiledPool | None:
    """Profile candidates in rounds; None if one of them fails."""
    order, total = race_order(config.dev), len(config.dev.examples)
    ordered = tuple(config.dev.examples[place] for place in order)
    race = Race(len(names), total, config.rules.max_gap, alpha)
    profiles: dict[str, Profile] = {}
    rejected: tuple[Decision, ...] = ()
    while places := race.next_round:
        examples = ordered[: conversation_end(ordered, places.stop)]
        running = [names[model] for model in race.running]
        profiles |= (latest := profiler.alone(running, replace(config.dev, examples=examples)))
        if len(latest) < len(running):
            return None
        new = {
            model: [answer.score for answer in latest[names[model]].answers[places.start : places.stop]]
            for model in race.running
        }
        for drop in race.record(new):
            decision = Decision(names[drop.model], "rejected", "race", _reason(drop, total, config.rules, alpha))
            rejected = (decision, *rejected)
            progress.say(f"{decision.model}: {decision.reason}")
    if not rejected:
        progress.say(
            f"the race has dropped no candidate: before all {total:,} questions were answered, no gap was certainly "
            f"over {config.rules.max_gap:g} points"
        )
    places_of = {example.id: place for place, example in enumerate(config.dev.examples)}
    # All later comparisons pair answers by their place.
    profiles = {name: _in_task_order(profiles[name], places_of) for name in names}
    out = [decision.model for decision in rejected]
    return ProfiledPool(
        {name: profile for name, profile in profiles.items() if name not in out},
        {name: profiles[name] for name in out},
        rejected,
    )


def _in_task_order(profile: Profile, places: Mapping[str, int]) -> Profile:
    return replace(profile, answers=tuple(sorted(profile.answers, key=lambda answer: places[answer.id])))


def _reason(drop: Drop, total: int, rules: Limits, alpha: float) -> str:
    # Cut, not rounded: a rounded bound could claim more than was shown.
    bound = int(10 * drop.bound) / 10
    more = f"at least {bound:.1f} points" if bound > rules.max_gap else "more than that"
    return (
        f"dropped from the race after {drop.questions} of {total} questions: its gap to the best of them was "
        f"{drop.gap:.1f} points, over the limit of {rules.max_gap:g}, and on all questions it is {more}, with "
        f"{100 * (1 - alpha):g}% confidence"
    )


@dataclass(frozen=True, slots=True)
class Drop:
    """A candidate that left a race.

    Attributes:
        model: Its number.
        questions: How many questions it answered.
        gap: Its gap to the best candidate on these questions, in points.
        bound: A lower bound of its gap on all questions, in points, at the confidence of the race.
    """

    model: int
    questions: int
    gap: float
    bound: float


class Race:
    """A running race: it says which candidates answer which questions next, and takes their scores.

    Args:
        models: The number of candidates, at least 1.
        questions: The number of questions, at least 1.
        max_gap: The largest gap between a member and the best candidate, in points, 0 to 100.
        alpha: The accepted probability that a candidate is dropped although it is within the gap on all questions,
            between 0 and 1.

    Attributes:
        running: The numbers of the candidates in the race.
        drops: The candidates that left it, in that order.
    """

    def __init__(self, models: int, questions: int, max_gap: float, alpha: float = ALPHA) -> None:
        self._scores = np.full((models, questions), math.nan)
        self._limit = (max_gap + TOLERANCE) / 100
        # Alpha is shared among the candidates, because each of them may be dropped wrongly.
        self._threshold = models / alpha
        self._asked = 0
        self.running: tuple[int, ...] = tuple(range(models))
        self.drops: tuple[Drop, ...] = ()

    @property
    def next_round(self) -> range:
        """The places, in the order of the race, of the next questions; empty at the end."""
        everything = self._scores.shape[1]
        until = max(FIRST_ROUND, 2 * self._asked)
        # A further round saves nothing if few questions are left, or if no other candidate can be dropped.
        if 1.5 * until >= everything or len(self.running) < 2:
            until = everything
        return range(self._asked, until)

    def record(self, scores: Mapping[int, Sequence[float]]) -> tuple[Drop, ...]:
        """Take the scores of a round, and return the candidates that it drops.

        Args:
            scores: For each running candidate, its scores, 0 to 1, on the questions of `next_round` in their order.
        """
        places = self.next_round
        for model in self.running:
            self._scores[model, places.start : places.stop] = scores[model]
        self._asked = places.stop
        if self._asked == self._scores.shape[1]:
            return ()  # all questions are answered, so the rules decide
        drops = tuple(self._drop(model) for model in self.running if self._is_out(model, self._limit))
        out = {drop.model for drop in drops}
        self.running = tuple(model for model in self.running if model not in out)
        self.drops += drops
        return drops

    def _is_out(self, model: int, limit: float) -> bool:
        """Whether the bets refute that a candidate is at most ``limit``, 0 to 1, behind every other one."""
        models, questions = self._scores.shape
        if len(self.running) < 2:
            return False
        # Dropped candidates have no further scores. Without their wealth the mean only becomes smaller, which is safe.
        others = [other for other in self.running if other != model]
        ahead = self._scores[others, : self._asked] - self._scores[model, : self._asked]
        # e**600 is far above every threshold, and a sum of such values does not overflow.
        wealth = np.exp(np.minimum(log_wealth(ahead, limit, questions), 600)).sum(axis=(0, 2))
        return bool(wealth.max() / ((models - 1) * len(_BETS)) >= self._threshold)

    def _drop(self, model: int) -> Drop:
        means = self._scores[list(self.running), : self._asked].mean(axis=1)
        gap = float(means.max() - self._scores[model, : self._asked].mean())
        # Wealth falls as the limit rises, so bisection finds the largest limit that is still refuted.
        # The limit itself is refuted already, and no gap exceeds 100 points.
        low, high = self._limit, 1.0
        while high - low > 1e-3:  # a tenth of a point
            middle = (low + high) / 2
            low, high = (middle, high) if self._is_out(model, middle) else (low, middle)
        return Drop(model, self._asked, 100 * gap, 100 * low)


def log_wealth(differences: Floats, limit: float, questions: int) -> Floats:
    """Logarithm of the wealth of bets against "the mean of all differences is at most `limit`", after each question.

    Args:
        differences: Claims by questions so far, in their random order; each difference between -1 and 1.
        limit: Between -1 and 1.
        questions: The number of all questions, at least as many as so far.

    Returns:
        Claims by questions by bets; infinite from the question on that makes the claim impossible.
    """
    asked = np.arange(differences.shape[1])
    after = differences.cumsum(axis=1)
    # The mean that the rest must have if the mean of all is the limit, counted from -1, its smallest value.
    room = 1 + (questions * limit - (after - differences)) / (questions - asked)
    # The rest may need a mean of -1 exactly; then the ratio must not divide by zero.
    ratio = (1 + differences) / np.maximum(room, 1e-12)
    won = np.log1p(_BETS * (ratio[..., None] - 1)).cumsum(axis=1)
    impossible = after - (questions - asked - 1) > questions * limit + TOLERANCE
    return np.where(np.logical_or.accumulate(impossible, axis=1)[..., None], math.inf, won)
