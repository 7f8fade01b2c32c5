"""Chooses the set, and runs it on the held-out questions.

The rules choose; a search may decode other sets on dev and replace it. Only the chosen set is run on held-out
questions, so that its figures there do not depend on the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from advisor.choose.race import ProfiledPool, without_failed
from advisor.choose.search import SearchedSet, best_of, promising_sets, put_forward, sentence
from advisor.config import RunConfig
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Profile, Rules, Selection
from advisor.statistics import Comparison, Interval, accuracy_interval, compare
from advisor.tasks.task import Task
from advisor.verify.responses import can_vote
from advisor.verify.strategies import fitting_voters
from ensemble.errors import MemberError


@dataclass(frozen=True, slots=True)
class Verified:
    """The chosen set on held-out questions.

    Attributes:
        task: The held-out questions.
        ensemble: The set's answers.
        members: Each member's answers alone, in the set's order.
        single: The answers of the best single model, which may be outside of a set that a search found.
        comparison: The set against the best single model.
        intervals: The interval of each member's accuracy, in points.
        method: The method of the set.
        k: Candidates that each member brings to the union.
        dev: The set's answers to the dev questions; None if it was not run there.
    """

    task: Task
    ensemble: Profile
    members: tuple[Profile, ...]
    single: Profile
    comparison: Comparison
    intervals: tuple[Interval, ...]
    method: str
    k: int
    dev: Profile | None = None


@dataclass(frozen=True, slots=True)
class ChosenSet:
    """The chosen set.

    Attributes:
        pool: The candidates that it was chosen from.
        selection: The set.
        verified: The set on the held-out questions; None if it was not run there.
        alone: The answers of single models to the held-out questions, by name: the set's members, and other models that
            the set is compared with.
        voters: The models of votes, cascades and routers; empty if they were not asked the held-out questions.
        trouble: Why the set could not be run on the held-out questions.
        tried: The sets that a search decoded on dev; None without a search.
        searched: What the search found, for the advice; None if it decoded nothing.
    """

    pool: ProfiledPool
    selection: Selection
    verified: Verified | None = None
    alone: Mapping[str, Profile] = field(default_factory=dict)
    voters: tuple[str, ...] = ()
    trouble: str | None = None
    tried: tuple[SearchedSet, ...] | None = None
    searched: str | None = None


def choose(config: RunConfig, pool: ProfiledPool, profiler: Profiler, progress: Progress) -> ChosenSet:
    """Choose a set and run it on the held-out questions.

    A member that fails there leaves the pool, and the set is chosen again among the others.

    Raises:
        UniteError: All candidates failed.
    """
    while True:
        chosen = _choose_on_dev(config, pool, profiler, progress)
        models = chosen.selection.selected
        if config.held_out is None:
            return chosen
        voters = _voters(pool, config.held_out, config.rules, models)
        # A single model has no other to be compared with.
        if len({*models, *voters}) < 2:
            return chosen
        # The set has to be better than the best candidate, even if a search found a set without it, or a server runs
        # it.
        compared = tuple(dict.fromkeys([*models, pool.select(config.rules).selected[0], pool.best, *voters]))
        alone = profiler.alone(compared, config.held_out)
        if len(alone) == len(compared):
            break
        # Another primary may follow from it, and so another set.
        pool = without_failed(pool, config, profiler, progress)
    chosen = replace(chosen, alone=alone, voters=voters)
    if len(models) < 2 or pool.remote.intersection(models):
        return chosen
    try:
        # The members' own answers were stored before: if memory ends here, no work is lost.
        together = profiler.together(models, config.held_out)
        on_dev = profiler.together(models, config.dev) if config.verify_on == "dev+held_out" else None
    except MemberError as error:
        progress.say(str(error))
        return replace(chosen, trouble=str(error))
    members = tuple(alone[model] for model in models)
    comparison = compare(together, list(alone.values()), config.seed)
    verified = Verified(
        task=config.held_out,
        ensemble=together,
        members=members,
        single=alone[comparison.best_single],
        comparison=comparison,
        intervals=tuple(accuracy_interval(member, seed=config.seed) for member in members),
        method=config.method,
        k=config.k,
        dev=on_dev,
    )
    return replace(chosen, verified=verified)


def _voters(pool: ProfiledPool, task: Task, rules: Rules, selected: Sequence[str]) -> tuple[str, ...]:
    """The models of votes, cascades and routers, the most accurate on dev first."""
    if can_vote(task):
        return fitting_voters(list(pool.complete.values()), rules)
    # Without votes only a router is left. It chooses among the set of the rules, models behind servers included.
    return pool.voters(rules) or tuple(selected)


def _choose_on_dev(config: RunConfig, pool: ProfiledPool, profiler: Profiler, progress: Progress) -> ChosenSet:
    """The set that the rules choose, or the best one on dev of those that a search decodes there."""
    greedy = pool.select(config.rules)
    profiles = [profile for name, profile in pool.complete.items() if name not in pool.remote]
    if config.search is None or not profiles:
        return ChosenSet(pool, greedy)
    promising = promising_sets(profiles, config.rules, config.search)
    tried = tuple(_decode_on_dev(searched, config, profiler, progress) for searched in promising)
    best = best_of(tried)
    if best is None:
        return ChosenSet(pool, greedy, tried=tried)
    standings = [profile.standing for profile in profiles]
    single = next(standing for standing in standings if standing.model == greedy.selected[0])
    return ChosenSet(
        pool,
        put_forward(greedy, best, standings, config.rules),
        tried=tried,
        searched=sentence(tried, best, single, len(config.dev.examples)),
    )


def _decode_on_dev(searched: SearchedSet, config: RunConfig, profiler: Profiler, progress: Progress) -> SearchedSet:
    try:
        together = profiler.together(searched.models, config.dev)
    except MemberError as error:
        progress.say(str(error))
        return replace(searched, error=str(error))
    return replace(searched, accuracy=together.accuracy, seconds=together.cost.seconds)
