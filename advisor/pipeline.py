"""The whole job: pool -> profiles -> pairs -> selection -> the ensemble on held-out questions -> advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from advisor.choose.gathering import gather
from advisor.choose.published import read_standings
from advisor.choose.rules import select
from advisor.compare.calibration import chance_of
from advisor.compare.pairing import Pairing, readers
from advisor.compare.pairs import all_pairs, pairs_of_standings
from advisor.config import RunConfig
from advisor.output import provenance
from advisor.output.result_json import Outcome, task_info
from advisor.profile.engine import Engine
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Rules, Standing
from advisor.response_cache import Store
from advisor.statistics import accuracy_interval
from advisor.verify.advice import Advice, advise, fragile, misfit
from advisor.verify.held_out import Choice, choose
from advisor.verify.server_advice import behind_server, remote_in, undecodable
from advisor.verify.strategies import Alternative, look_at, recommend
from advisor.verify.traces import Tracing


def run(plan: RunConfig, store: Store, watcher: Progress, engine: Engine | None = None) -> Outcome:
    """Do the whole job; models answer in this process where there is no other engine.

    Raises:
        InputError: A candidate cannot be used; before any of them is run.
        UniteError: No candidate could be run.
    """
    profiler = Profiler(plan, store, watcher, engine=engine)
    choice = choose(plan, gather(plan, profiler, watcher), profiler, watcher)
    pool, selection, verified = choice.pool, choice.selection, choice.verified
    profiles = [pool.complete[d.model].profile for d in selection.decisions if d.model in pool.complete]
    margins = {margin.model: margin for margin in fragile(profiles, selection.selected[0], plan.rules, seed=plan.seed)}
    standings = tuple(Standing(p.model, p.accuracy, p.mean_length) for p in profiles)
    pairing, names = Pairing(plan, profiler, store, watcher), readers(standings, margins, plan.rules)
    read = pairing.readings(names, {p.model: p for p in profiles}) if plan.held_out is not None else {}
    alternatives = _alternatives(plan, choice)
    intervals = {name: accuracy_interval(one, seed=plan.seed) for name, one in pool.profiles.items()}
    beware = misfit(profiles, intervals[profiles[0].model][0], chance_of(plan.dev))
    return Outcome(
        task_info=task_info(plan.dev, plan.inference.limit(plan.dev)),
        rules=plan.rules,
        standings=standings,
        selection=selection,
        failures=profiler.failures,
        pairs=all_pairs(profiles, pairing.tokenizations([p.model for p in profiles]), read),
        advice=_advise(choice, alternatives, beware, plan.level),
        task=plan.dev,
        profiles=tuple(profiles),
        dropped=tuple(one.profile for one in pool.dropped.values()),
        intervals=intervals,
        margins=margins,
        costs=pool.costs,
        race=plan.race,
        tried=choice.tried,
        verified=verified,
        held_out=plan.held_out if choice.alone else None,
        alone=tuple(one.profile for one in choice.alone.values()),
        alternatives=alternatives,
        traces=Tracing(plan, profiler, store, watcher).traces(verified) if verified else {},
        provenance=provenance.of_run(plan, profiler.identities),
    )


def _alternatives(plan: RunConfig, choice: Choice) -> tuple[Alternative, ...]:
    """What else the members' own answers could be used for; nothing where they were not run on held-out questions."""
    if plan.held_out is None or not (choice.verified or choice.voters):
        return ()
    names = choice.voters or choice.selection.selected
    learned = [choice.pool.complete[name].profile for name in names]
    members = [choice.alone[name].profile for name in names]
    rivals = [one.profile for name, one in choice.alone.items() if name not in names]
    return look_at(plan.dev, learned, plan.held_out, members, plan.seed, rivals)


def _advise(choice: Choice, alternatives: Sequence[Alternative], beware: str | None, level: float) -> Advice:
    """The verdict on a choice, with what a search came to, and what else to do where the set is not worth it."""
    remote = choice.pool.remote
    if remote_in(choice.selection, remote):
        advice = undecodable(choice.selection, remote)
    else:
        advice = advise(choice.selection, choice.verified.comparison if choice.verified else None, level=level)
    once = "No other set was compared on held-out questions, so the figures need no correction for that."
    trouble = f"Running it was tried, and failed: {choice.trouble}." if choice.trouble else None
    only = once if choice.searched and choice.verified else None
    instead = recommend(alternatives, level) if advice.verdict != "ensemble" else None
    away = behind_server(choice.selection, remote, choice.voters)
    parts = (advice.text, instead, away, choice.searched, only, trouble, beware)
    return replace(advice, text=" ".join(part for part in parts if part))


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
