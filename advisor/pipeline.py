"""The whole job: profile the pool, choose a set by the rules, verify it on held-out questions, and give advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from advisor.choose.copies import find_copies
from advisor.choose.published import read_standings
from advisor.choose.race import profile_candidates
from advisor.choose.rules import select
from advisor.compare.calibration import chance_of
from advisor.compare.pairs import READERS, ModelMeasurer, all_pairs, pairs_of_standings
from advisor.config import LogsConfig, RunConfig
from advisor.output import provenance
from advisor.output.result_json import Outcome, task_info
from advisor.profile.engine import Engine
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Decision, Rules
from advisor.response_cache import ResponseCache
from advisor.statistics import accuracy_interval
from advisor.verify.advice import Advice, advise, close_candidates, fragile, misfit
from advisor.verify.held_out import ChosenSet, choose
from advisor.verify.recommendation import recommend
from advisor.verify.responses import can_vote
from advisor.verify.server_advice import behind_server, remote_in, undecodable
from advisor.verify.strategies import AnsweredSplit, Strategy, StrategyResult, compare_strategies, fitting_voters
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
    pool, selection = chosen.pool, chosen.selection
    verified = chosen.verified[0] if chosen.verified else None
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
        prediction=chosen.as_dict(config.choose),
        verified=verified,
        held_out=config.held_out if chosen.alone else None,
        alone=tuple(chosen.alone.values()),
        strategies=strategies,
        traces=trace_responses(verified, config, profiler, cache, progress) if verified else {},
        provenance=provenance.of_run(config, profiler.identities),
    )


def _strategies(config: RunConfig, chosen: ChosenSet) -> tuple[StrategyResult, ...]:
    """All strategies on the held-out questions; empty if no model was asked these."""
    if config.held_out is None or not chosen.alone:
        return ()
    verified = chosen.verified[0] if chosen.verified else None
    together = (Strategy(verified.method, verified.models), verified.ensemble) if verified else None
    return compare_strategies(
        AnsweredSplit(config.dev, chosen.pool.complete),
        AnsweredSplit(
            config.held_out,
            chosen.alone,
            {entry.name: entry.price for entry in config.candidates if entry.price is not None},
        ),
        chosen.voters,
        can_vote=can_vote(config.held_out),
        together=together,
        seed=config.seed,
    )


def _advise(chosen: ChosenSet, strategies: Sequence[StrategyResult], warning: str | None, level: float) -> Advice:
    """The verdict on the chosen set, with the result of a search, and the recommendation."""
    remote = chosen.pool.remote
    if remote_in(chosen.selection, remote):
        advice = undecodable(chosen.selection, remote)
    else:
        tries, comparison, selection = len(chosen.verified), None, chosen.selection
        if chosen.verified:
            # What was verified may be another set than the selected one, if the rules left only one model.
            comparison = chosen.verified[0].comparison
            selection = replace(selection, selected=chosen.verified[0].models)
        advice = advise(selection, comparison, level=level, tries=max(tries, 1))
    once = "No other set was compared on held-out questions, so the figures need no correction for that."
    trouble = f"The attempt to run it failed: {chosen.trouble}." if chosen.trouble else None
    only = once if chosen.tried and chosen.verified else None
    away = behind_server(chosen.selection, remote, chosen.voters)
    parts = (advice.text, away, chosen.note, only, trouble, warning)
    text = " ".join(part for part in parts if part)
    return replace(advice, text=text, recommendation=recommend(strategies, level))


def run_on_logs(config: LogsConfig, progress: Progress) -> Outcome:
    """Choose and compare on the responses of logs; no model runs.

    Raises:
        InputError: The logs cannot be read or joined, or have too few questions.
    """
    notes: list[str] = []
    try:
        logs = config.join(config.paths, config.models, notes)
    finally:
        # Also before an error: what was left out of a log often is its reason.
        for note in notes:
            progress.say(note)
    numbers = dict(zip(("dev", "held_out"), logs.split(config.seed, config.dev_size), strict=True))
    dev, held_out = (
        AnsweredSplit(
            logs.task(split, own, config.seed), {name: each.part(own) for name, each in logs.profiles.items()}
        )
        for split, own in numbers.items()
    )
    copies = find_copies(list(dev.profiles.values()))
    dropped = tuple(dev.profiles[name] for name in copies)
    dev, held_out = (
        replace(split, profiles={name: each for name, each in split.profiles.items() if name not in copies})
        for split in (dev, held_out)
    )
    reasons = [Decision(name, "rejected", reason) for name, reason in copies.items()]
    selection = select([profile.standing for profile in dev.profiles.values()], config.rules, reasons)
    profiles = [dev.profiles[decision.model] for decision in selection.decisions if decision.model in dev.profiles]
    # By dev questions only: those that judge must not choose.
    voters = fitting_voters(profiles, config.rules)
    draws = {name: [each.part(numbers["held_out"]) for each in own] for name, own in logs.draws.items()}
    strategies = compare_strategies(dev, held_out, voters, can_vote=logs.can_vote, draws=draws, seed=config.seed)
    margins = fragile(profiles, selection.selected[0], config.rules, seed=config.seed)
    # Logs do not tell what guessing scores, so the end of the interval does not count.
    warning = misfit(profiles, 100.0, None)
    advice = advise(selection, on_logs=True)
    return Outcome(
        task_info=task_info(dev.task, None),
        rules=config.rules,
        standings=tuple(profile.standing for profile in profiles),
        selection=selection,
        failures={},
        pairs=all_pairs(profiles),
        advice=replace(
            advice,
            text=" ".join(part for part in (advice.text, warning) if part),
            recommendation=recommend(strategies, config.level),
        ),
        task=dev.task,
        profiles=tuple(profiles),
        dropped=dropped,
        intervals={each.model: accuracy_interval(each, seed=config.seed) for each in (*profiles, *dropped)},
        margins={margin.model: margin for margin in margins},
        held_out=held_out.task,
        alone=tuple(held_out.profiles[profile.model] for profile in profiles),
        strategies=strategies,
        provenance=provenance.of_logs(config, logs),
    )


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
