"""The whole job: profile the pool, choose a set by the rules, verify it on held-out questions, and give advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from advisor.choose.published import read_standings
from advisor.choose.race import profile_candidates
from advisor.choose.rules import select
from advisor.compare.calibration import chance_of
from advisor.compare.pairs import READERS, ModelMeasurer, all_pairs, pairs_of_standings
from advisor.config import RunConfig
from advisor.output import provenance
from advisor.output.result_json import Outcome, task_info
from advisor.profile.engine import Engine
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Rules
from advisor.response_cache import ResponseCache
from advisor.statistics import accuracy_interval
from advisor.verify.advice import Advice, advise, close_candidates, fragile, misfit
from advisor.verify.held_out import ChosenSet, choose
from advisor.verify.server_advice import behind_server, remote_in, undecodable
from advisor.verify.strategies import MethodResult, compare_strategies, recommend
from advisor.verify.traces import trace_responses


def run(config: RunConfig, cache: ResponseCache, progress: Progress, engine: Engine | None = None) -> Outcome:
    """Do the whole job.

    Args:
        config: The run.
        cache: The response cache.
        progress: Shows progress and messages.
        engine: Runs the models; None for this process.

    Raises:
        InputError: A candidate cannot be used. No candidate has been run then.
        UniteError: All candidates failed.
    """
    profiler = Profiler(config, cache, progress, engine=engine)
    chosen = choose(config, profile_candidates(config, profiler, progress), profiler, progress)
    pool, selection, verified = chosen.pool, chosen.selection, chosen.verified
    profiles = [pool.complete[d.model] for d in selection.decisions if d.model in pool.complete]
    by_name = {profile.model: profile for profile in profiles}
    rules = config.rules
    margins = {margin.model: margin for margin in fragile(profiles, selection.selected[0], rules, seed=config.seed)}
    standings = tuple(profile.standing for profile in profiles)
    measurer = ModelMeasurer(config, profiler, cache, progress)
    # Without held-out questions the run is meant to be short, so the models are not loaded a second time.
    readers = close_candidates(standings, margins, rules)[:READERS] if config.held_out is not None else []
    token_agreements = measurer.token_agreements(readers, by_name)
    strategies = _strategies(config, chosen)
    intervals = {name: accuracy_interval(profile, seed=config.seed) for name, profile in pool.profiles.items()}
    warning = misfit(profiles, intervals[profiles[0].model][0], chance_of(config.dev))
    return Outcome(
        task_info=task_info(config.dev, config.inference.limit(config.dev)),
        rules=rules,
        standings=standings,
        selection=selection,
        failures=profiler.failures,
        pairs=all_pairs(profiles, measurer.tokenizations(list(by_name)), token_agreements),
        advice=_advise(chosen, strategies, warning, config.level),
        task=config.dev,
        profiles=tuple(profiles),
        dropped=tuple(pool.dropped.values()),
        intervals=intervals,
        margins=margins,
        race=config.race,
        tried=chosen.tried,
        verified=verified,
        held_out=config.held_out if chosen.alone else None,
        alone=tuple(chosen.alone.values()),
        alternatives=strategies,
        traces=trace_responses(verified, config, profiler, cache, progress) if verified else {},
        provenance=provenance.of_run(config, profiler.identities),
    )


def _strategies(config: RunConfig, chosen: ChosenSet) -> tuple[MethodResult, ...]:
    """Other uses of the members' own answers; empty if they did not answer the held-out questions."""
    if config.held_out is None or not (chosen.verified or chosen.voters):
        return ()
    names = chosen.voters or chosen.selection.selected
    learned = [chosen.pool.complete[name] for name in names]
    members = [chosen.alone[name] for name in names]
    # A server's model may be better than every member, so a vote has to beat it too.
    rivals = [profile for name, profile in chosen.alone.items() if name not in names]
    return compare_strategies(config.dev, learned, config.held_out, members, config.seed, rivals)


def _advise(chosen: ChosenSet, strategies: Sequence[MethodResult], warning: str | None, level: float) -> Advice:
    """The verdict on the chosen set, with the result of a search, and a better strategy if the set is not worth it."""
    remote = chosen.pool.remote
    if remote_in(chosen.selection, remote):
        advice = undecodable(chosen.selection, remote)
    else:
        advice = advise(chosen.selection, chosen.verified.comparison if chosen.verified else None, level=level)
    once = "No other set was compared on held-out questions, so the figures need no correction for that."
    trouble = f"The attempt to run it failed: {chosen.trouble}." if chosen.trouble else None
    only = once if chosen.searched and chosen.verified else None
    instead = recommend(strategies, level) if advice.verdict != "ensemble" else None
    away = behind_server(chosen.selection, remote, chosen.voters)
    parts = (advice.text, instead, away, chosen.searched, only, trouble, warning)
    return replace(advice, text=" ".join(part for part in parts if part))


def run_on_numbers(path: Path, rules: Rules, command: str) -> Outcome:
    """Apply the rules to published or earlier numbers; see :func:`read_standings` for the file.

    Raises:
        InputError: The file does not exist, or has another form.
    """
    task, standings = read_standings(path)
    selection = select(standings, rules)
    # The report shows pairs in the order of the leaderboard.
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
