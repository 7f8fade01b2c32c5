"""Which set is put forward, and how it does on the held-out questions.

The rules choose; a search decodes other sets on dev, and may put another one in its place. On held-out questions only
the one set is run, so that its figures owe nothing to the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from advisor.evidence import accuracy_interval, compare
from advisor.gathering import Pool, without_failed
from advisor.plan import Plan
from advisor.profiler import Profiled, Profiler
from advisor.records import Selection, Standing
from advisor.result import Verified
from advisor.searching import Prospect, Try, best_of, promising_sets, put_forward, sentence
from advisor.tasks.values import Task
from advisor.watching import Watcher
from ensemble.errors import MemberError


@dataclass(frozen=True, slots=True)
class Choice:
    """A set that was put forward.

    Attributes:
        pool: The candidates that it was chosen from.
        selection: The set.
        verified: It on the held-out questions; None where it was not run there.
        trouble: Why that failed, if it did.
        tried: The sets that a search decoded on dev; None where there was no search.
        searched: What the search came to, for the advice; None where it decoded nothing.
    """

    pool: Pool
    selection: Selection
    verified: Verified | None = None
    trouble: str | None = None
    tried: tuple[Try, ...] | None = None
    searched: str | None = None


def choose(plan: Plan, pool: Pool, profiler: Profiler, watcher: Watcher) -> Choice:
    """Choose a set and run it on the held-out questions.

    A member that fails there leaves the pool, and the choice is made among the others.

    Raises:
        UniteError: Nobody is left.
    """
    while True:
        choice = _choose_on_dev(plan, pool, profiler, watcher)
        models = choice.selection.selected
        if plan.held_out is None or len(models) < 2:
            return choice
        members = profiler.alone(models, plan.held_out)
        if len(members) == len(models):
            break
        pool = without_failed(pool, plan, profiler, watcher)
    try:
        together = profiler.together(models, plan.held_out)
    except MemberError as error:
        watcher.say(str(error))
        return replace(choice, trouble=str(error))
    return replace(choice, verified=_verified(plan, plan.held_out, together, members))


def _choose_on_dev(plan: Plan, pool: Pool, profiler: Profiler, watcher: Watcher) -> Choice:
    """What the rules choose, or the best on dev of what a search decodes there."""
    greedy = pool.select(plan.rules)
    if plan.search is None:
        return Choice(pool, greedy)
    profiles = [one.profile for one in pool.complete.values()]
    prospects = promising_sets(profiles, plan.rules, plan.search)
    tried = tuple(_try(prospect, plan, profiler, watcher) for prospect in prospects)
    if all(one.accuracy is None for one in tried):
        return Choice(pool, greedy, tried=tried)
    standings = [Standing(p.model, p.accuracy, p.mean_length) for p in profiles]
    single = next(one for one in standings if one.model == greedy.selected[0])
    best = best_of(tried, single.accuracy)
    found = None if best is None else best.prospect
    return Choice(
        pool,
        put_forward(greedy, found, standings, plan.rules),
        tried=tried,
        searched=sentence(tried, found, single, len(plan.dev.examples)),
    )


def _try(prospect: Prospect, plan: Plan, profiler: Profiler, watcher: Watcher) -> Try:
    """Decode a set on the dev questions."""
    try:
        together = profiler.together(prospect.models, plan.dev)
    except MemberError as error:
        watcher.say(str(error))
        return Try(prospect, None, error=str(error))
    return Try(prospect, together.profile.accuracy, together.cost.seconds)


def _verified(plan: Plan, task: Task, together: Profiled, members: Mapping[str, Profiled]) -> Verified:
    """The chosen set beside each of its members alone."""
    alone = tuple(one.profile for one in members.values())
    return Verified(
        task=task,
        ensemble=together.profile,
        members=alone,
        comparison=compare(together.profile, alone, plan.seed),
        intervals=tuple(accuracy_interval(member, seed=plan.seed) for member in alone),
        cost=together.cost,
        member_costs=tuple(one.cost for one in members.values()),
        method=plan.decoding.method,
        k=plan.decoding.k,
    )
