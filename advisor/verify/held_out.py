"""Which set is put forward, and how it does on the held-out questions.

The rules choose; a search decodes other sets on dev, and may put another one in its place. On held-out questions only
the one set is run, so that its figures owe nothing to the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from advisor.choose.gathering import Pool, without_failed
from advisor.choose.search import Prospect, Try, best_of, promising_sets, put_forward, sentence
from advisor.config import RunConfig
from advisor.profile.profiler import Profiled, Profiler
from advisor.profile.sheet import Cost
from advisor.progress import Progress
from advisor.records import Profile, Selection, Standing
from advisor.statistics import Comparison, Interval, accuracy_interval, compare
from advisor.tasks.task import Task
from ensemble.errors import MemberError


@dataclass(frozen=True, slots=True)
class Verified:
    """The chosen set on held-out questions.

    Attributes:
        task: The held-out questions.
        ensemble: The answers of the set.
        members: The answers of each member alone, in the order of the set.
        single: The answers of the best single model. After a search, this model may not be in the set.
        comparison: The set against the single models.
        intervals: The interval of each member's accuracy, in points.
        cost: Time and memory of the set's responses.
        member_costs: Time and memory of each member's responses.
        method: How the set decoded.
        k: Candidates that each member brought to the union.
    """

    task: Task
    ensemble: Profile
    members: tuple[Profile, ...]
    single: Profile
    comparison: Comparison
    intervals: tuple[Interval, ...]
    cost: Cost
    member_costs: tuple[Cost, ...]
    method: str
    k: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A set that was put forward.

    Attributes:
        pool: The candidates that it was chosen from.
        selection: The set.
        verified: It on the held-out questions; None where it was not run there.
        alone: Each model's own answers to the held-out questions, by name: the set's, and those of others that are
            compared with it.
        voters: Whose answers may be voted on or chosen from; the set's own where empty.
        trouble: Why that failed, if it did.
        tried: The sets that a search decoded on dev; None where there was no search.
        searched: What the search came to, for the advice; None where it decoded nothing.
    """

    pool: Pool
    selection: Selection
    verified: Verified | None = None
    alone: Mapping[str, Profiled] = field(default_factory=dict)
    voters: tuple[str, ...] = ()
    trouble: str | None = None
    tried: tuple[Try, ...] | None = None
    searched: str | None = None


def choose(plan: RunConfig, pool: Pool, profiler: Profiler, watcher: Progress) -> Choice:
    """Choose a set and run it on the held-out questions.

    A member that fails there leaves the pool, and the choice is made among the others.

    Raises:
        UniteError: Nobody is left.
    """
    while True:
        choice = _choose_on_dev(plan, pool, profiler, watcher)
        models, voters = choice.selection.selected, pool.voters(plan.rules)
        if plan.held_out is None or (len(models) < 2 and not voters):
            return choice
        # The best candidate is what a set has to beat, also where a search found one without it, or a server has it.
        compared = tuple(dict.fromkeys([*models, pool.select(plan.rules).selected[0], pool.best, *voters]))
        alone = profiler.alone(compared, plan.held_out)
        if len(alone) == len(compared):
            break
        pool = without_failed(pool, plan, profiler, watcher)
    choice = replace(choice, alone=alone, voters=voters)
    if len(models) < 2 or pool.remote.intersection(models):
        return choice
    try:
        together = profiler.together(models, plan.held_out)
    except MemberError as error:
        watcher.say(str(error))
        return replace(choice, trouble=str(error))
    return replace(choice, verified=_verified(plan, plan.held_out, together, models, alone))


def _choose_on_dev(plan: RunConfig, pool: Pool, profiler: Profiler, watcher: Progress) -> Choice:
    """What the rules choose, or the best on dev of what a search decodes there."""
    greedy = pool.select(plan.rules)
    profiles = [one.profile for name, one in pool.complete.items() if name not in pool.remote]
    if plan.search is None or not profiles:
        return Choice(pool, greedy)
    prospects = promising_sets(profiles, plan.rules, plan.search)
    tried = tuple(_try(prospect, plan, profiler, watcher) for prospect in prospects)
    best = best_of(tried)
    if best is None:
        return Choice(pool, greedy, tried=tried)
    standings = [Standing(p.model, p.accuracy, p.mean_length) for p in profiles]
    single = next(one for one in standings if one.model == greedy.selected[0])
    return Choice(
        pool,
        put_forward(greedy, best.prospect, standings, plan.rules),
        tried=tried,
        searched=sentence(tried, best, single, len(plan.dev.examples)),
    )


def _try(prospect: Prospect, plan: RunConfig, profiler: Profiler, watcher: Progress) -> Try:
    """Decode a set on the dev questions."""
    try:
        together = profiler.together(prospect.models, plan.dev)
    except MemberError as error:
        watcher.say(str(error))
        return Try(prospect, None, error=str(error))
    return Try(prospect, together.profile.accuracy, together.cost.seconds)


def _verified(
    plan: RunConfig, task: Task, together: Profiled, models: Sequence[str], alone: Mapping[str, Profiled]
) -> Verified:
    """The chosen set beside each of its members alone, held against the best of all who answered alone."""
    members = [alone[model] for model in models]
    comparison = compare(together.profile, [one.profile for one in alone.values()], plan.seed)
    return Verified(
        task=task,
        ensemble=together.profile,
        members=tuple(one.profile for one in members),
        single=alone[comparison.best_single].profile,
        comparison=comparison,
        intervals=tuple(accuracy_interval(one.profile, seed=plan.seed) for one in members),
        cost=together.cost,
        member_costs=tuple(one.cost for one in members),
        method=plan.decoding.method,
        k=plan.decoding.k,
    )
