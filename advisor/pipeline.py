"""The whole job: pool -> profiles -> pairs -> selection -> the ensemble on held-out questions -> advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from advisor import provenance
from advisor.advice import advise, fragile
from advisor.compatibility import all_pairs, pairs_of_standings
from advisor.evidence import accuracy_interval, compare
from advisor.gathering import Pool, gather, without_failed
from advisor.pairing import Pairing, readers
from advisor.plan import Plan
from advisor.profiler import Profiled, Profiler
from advisor.records import Rules, Selection, Standing
from advisor.result import Outcome, Verified, task_info
from advisor.selection import select
from advisor.standings import read_standings
from advisor.store import Store
from advisor.tasks.values import Task
from advisor.tracing import Tracing
from advisor.watching import Watcher
from ensemble.errors import MemberError


def run(plan: Plan, store: Store, watcher: Watcher) -> Outcome:
    """Do the whole job.

    Raises:
        InputError: A candidate cannot be used; before any of them is run.
        UniteError: No candidate could be run.
    """
    profiler = Profiler(plan, store, watcher)
    pool, selection, verified, trouble = _choose(plan, gather(plan, profiler, watcher), profiler, watcher)
    advice = advise(selection, verified.comparison if verified else None, level=plan.level)
    if trouble:
        advice = replace(advice, text=f"{advice.text} Running it was tried, and failed: {trouble}.")
    profiles = [pool.complete[d.model].profile for d in selection.decisions if d.model in pool.complete]
    margins = {margin.model: margin for margin in fragile(profiles, selection.selected[0], plan.rules, seed=plan.seed)}
    standings = tuple(Standing(p.model, p.accuracy, p.mean_length) for p in profiles)
    pairing, names = Pairing(plan, profiler, store, watcher), readers(standings, margins, plan.rules)
    read = pairing.readings(names, {p.model: p for p in profiles}) if plan.held_out is not None else {}
    return Outcome(
        task_info=task_info(plan.dev, plan.setting.max_new_tokens or plan.dev.max_new_tokens),
        rules=plan.rules,
        standings=standings,
        selection=selection,
        failures=profiler.failures,
        pairs=all_pairs(profiles, pairing.tokenizations([p.model for p in profiles]), read),
        advice=advice,
        task=plan.dev,
        profiles=tuple(profiles),
        dropped=tuple(one.profile for one in pool.dropped.values()),
        intervals={name: accuracy_interval(one, seed=plan.seed) for name, one in pool.profiles.items()},
        margins=margins,
        costs=pool.costs,
        race=plan.race,
        verified=verified,
        traces=Tracing(plan, profiler, store, watcher).traces(verified) if verified else {},
        provenance=provenance.of_run(plan.command, plan.seed, plan.setting, plan.candidates, profiler.identities),
    )


def run_on_numbers(path: Path, rules: Rules, command: str) -> Outcome:
    """Apply the rules to published or earlier numbers; :func:`read_standings` says in what form.

    Raises:
        InputError: The file is not there, or is not of that form.
    """
    task, standings = read_standings(path)
    selection = select(standings, rules)
    order = {decision.model: n for n, decision in enumerate(selection.decisions)}
    return Outcome(
        task_info={**dict.fromkeys(("metric", "split", "n", "fingerprint")), "name": task, "signature": str(path)},
        rules=rules,
        standings=standings,
        selection=selection,
        failures={},
        pairs=pairs_of_standings(sorted(standings, key=lambda standing: order[standing.model])),
        advice=advise(selection),
        provenance=provenance.of_numbers(command, path),
    )


def _choose(
    plan: Plan, pool: Pool, profiler: Profiler, watcher: Watcher
) -> tuple[Pool, Selection, Verified | None, str | None]:
    """Apply the rules and run the chosen set on the held-out questions; the last is why that failed, if it did.

    A member that fails there leaves the pool, and the rules are applied to the others.
    """
    while True:
        selection = pool.select(plan.rules)
        if plan.held_out is None or len(selection.selected) < 2:
            return pool, selection, None, None
        members = profiler.alone(selection.selected, plan.held_out)
        if len(members) == len(selection.selected):
            break
        pool = without_failed(pool, plan, profiler, watcher)
    try:
        together = profiler.together(selection.selected, plan.held_out)
    except MemberError as error:
        watcher.say(str(error))
        return pool, selection, None, str(error)
    return pool, selection, _verified(plan, plan.held_out, together, members), None


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
