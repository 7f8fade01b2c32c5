"""What ``advisor select`` does: profile the pool, choose a set by the rules, verify it, advise, write the report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.advice.comparison import Compared, StrategyResult, compare_strategies
from advisor.advice.doubts import run_doubts, with_more_tokens
from advisor.advice.gain import Gain
from advisor.advice.groups import group_warnings
from advisor.advice.recommendation import recommend
from advisor.advice.sequential import (
    Look,
    first_questions,
    look_until_sure,
    looks_in_words,
    planned_looks,
    questions_id,
    with_earlier,
)
from advisor.advice.verdict import (
    Advice,
    advise,
    behind_server,
    close_calls,
    moved_warning,
    remote_in,
    undecodable,
)
from advisor.choose.profiled_pool import ProfiledPool, copy_decisions, find_copies, profile_candidates
from advisor.choose.rules import read_standings, select
from advisor.compare.pairs import all_pairs, pairs_of_standings, vocabularies
from advisor.config import RunConfig, read_logs
from advisor.jobs import provenance
from advisor.jobs.held_out import ChosenSet, choose, prices_of
from advisor.jobs.judged import direct_comparison, judge_section, warnings_on_judge, written_by_name
from advisor.jobs.result_json import Outcome, task_info
from advisor.jobs.traces import trace_responses
from advisor.judge.judge import Judge, open_profiler
from advisor.options.select import SelectOptions
from advisor.options.shared import split_names
from advisor.pool.weights import EQUAL
from advisor.profile.calibration import chance_of
from advisor.profile.job import conversation_end
from advisor.profile.loaded_models import JobRunner
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Limits, Profile, signed
from advisor.response_cache import ResponseCache
from advisor.runs.run import Run
from advisor.runs.schema.result import TaskInfo
from advisor.statistics import accuracy_interval
from advisor.strategies import largest_default
from advisor.strategies.decoded import Decoded
from advisor.strategies.strategy import AnsweredSplit
from advisor.strategies.vote_reader import can_vote
from ensemble.common.text import counted, p_value
from ensemble.errors import InputError


def run(
    config: RunConfig,
    cache: ResponseCache,
    progress: Progress,
    engine: JobRunner | None = None,
    earlier: Sequence[Look] = (),
) -> Outcome:
    """Do the whole job.

    Args:
        config: The run.
        cache: The response cache.
        progress: Shows progress and messages.
        engine: Runs the models; None for this process.
        earlier: The looks of earlier runs at held-out questions.

    Raises:
        InputError: A candidate cannot be used. No candidate has been run then.
        UniteError: All candidates failed, or a judge.
    """
    profiler, judge = open_profiler(config, cache, progress, engine=engine)
    if judge:
        held_out = None if config.held_out is None else judge.sign(config.held_out)
        config = replace(config, dev=judge.sign(config.dev), held_out=held_out)
    candidates = profile_candidates(config, profiler)
    # From here on the held-out questions are those that were asked.
    config, chosen, compared, looks = _verify(config, candidates, profiler, progress, earlier)
    pool, selection = chosen.pool, chosen.selection
    verified = chosen.verified[0] if chosen.verified else None
    profiles = [pool.complete[d.model] for d in selection.decisions if d.model in pool.complete]
    by_name = {profile.model: profile for profile in profiles}
    rules = config.rules
    margins = {margin.model: margin for margin in close_calls(profiles, selection.selected[0], rules, seed=config.seed)}
    standings = tuple(profile.standing for profile in profiles)
    intervals = {name: accuracy_interval(profile, seed=config.seed) for name, profile in pool.profiles.items()}
    judged = _judged(judge, config, by_name, chosen, compared, profiler.failures) if judge else None
    doubts = run_doubts(profiles, config.dev, intervals[profiles[0].model][0], chance_of(config.dev))
    notes = (*(each.text for each in doubts), *warnings_on_judge(judged))
    return Outcome(
        task_info=task_info(config.dev, config.inference.limit(config.dev)),
        rules=rules,
        standings=standings,
        selection=selection,
        failures=profiler.failures,
        pairs=all_pairs(profiles, vocabularies(list(by_name), profiler, cache, progress), rules),
        advice=replace(_advise(config, chosen, compared, looks, notes, judged), doubts=doubts),
        judge=judged,
        task=config.dev,
        profiles=tuple(profiles),
        dropped=tuple(pool.copies.values()),
        intervals=intervals,
        margins=margins,
        prediction=chosen.as_dict(config.set_by, compared.results),
        verified=verified,
        held_out=config.held_out if chosen.alone else None,
        alone=tuple(chosen.alone.values()),
        strategies=compared.results,
        prices=prices_of(config),
        traces=trace_responses(verified, config, profiler, cache, progress) if verified else {},
        looks=with_earlier(looks, earlier),
        provenance=provenance.of_run(
            config, profiler.identities, profiler.loads, profiler.threads, judges=judge.identities if judge else {}
        ),
    )


def _verify(
    config: RunConfig, pool: ProfiledPool, profiler: Profiler, progress: Progress, earlier: Sequence[Look]
) -> tuple[RunConfig, ChosenSet, Compared, tuple[Look, ...]]:
    """Choose a set and compare strategies on the held-out questions: on all, or in batches until the test is sure.

    Returns:
        The run with the questions that were asked, the set, the strategies, and the looks; no looks if nothing was
        tested.
    """
    whole = config.held_out
    if whole is None:
        return config, choose(config, pool, profiler, progress), Compared(), ()
    questions = len(whole.examples)
    looks_at = planned_looks(questions) if config.until_sure else (questions,)
    plan = tuple(conversation_end(whole.examples, n) for n in looks_at)
    asked: dict[int, tuple[RunConfig, ChosenSet, Compared]] = {}

    def ask(n: int) -> tuple[RunConfig, ChosenSet, Compared]:
        if n not in asked:
            part = replace(config, held_out=first_questions(whole, n))
            # What was answered before is in the cache, on dev as well.
            chosen = choose(part, pool, profiler, progress)
            asked[n] = part, chosen, _strategies(part, chosen)
        return asked[n]

    tested = _tested(*ask(plan[0])[1:])
    if tested is None:
        if config.until_sure:
            progress.say("--until-sure has no set or vote to test, so all held-out questions are asked at once")
        return *ask(questions), ()
    strategy, voters = tested.strategy, asked[plan[0]][1].voters

    def verify(n: int) -> Gain | None:
        found = _tested(*ask(n)[1:])
        # If a member fails in a later batch, another set is left.
        if found is None:
            return None
        is_same = found.strategy == strategy if isinstance(strategy, Decoded) else ask(n)[1].voters == voters
        if not is_same:
            return None
        if config.until_sure:
            gain = found.gain
            progress.say(
                f"{counted(n, 'held-out question')}: {signed(gain.points)} points, p {p_value(gain.p_no_gain)}"
            )
        return found.gain

    weights = "" if config.weights == EQUAL else f", weights {config.weights}"
    how = f"{strategy.name}{weights}" + (f", think {config.think}" if config.think else "")
    members = strategy.members if isinstance(strategy, Decoded) else voters
    blank = Look(questions_id(whole), members, how, config.k, plan, plan[0], 1.0, 1.0, 0.0, 1)
    looks = look_until_sure(verify, blank, earlier)
    part, chosen, compared = asked[max(asked)]
    # To compare again takes seconds.
    return part, chosen, _strategies(part, chosen, looks[-1]) if looks[-1].corrects else compared, looks


def _tested(chosen: ChosenSet, compared: Compared) -> StrategyResult | None:
    """What looks test: the set that decodes together, chosen on dev, or the default strategy, chosen by each look."""
    found = {each.strategy: each for each in compared.results}
    together = next((found[each.strategy] for each in chosen.verified[:1] if each.strategy in found), None)
    default = largest_default(list(found))
    return together or (None if default is None else found[default])


def _strategies(config: RunConfig, chosen: ChosenSet, look: Look | None = None) -> Compared:
    """All strategies on the held-out questions; none if no model was asked these."""
    if config.held_out is None or not chosen.alone:
        return Compared()
    return compare_strategies(
        *chosen.splits(config, config.held_out),
        can_vote=can_vote(config.held_out),
        rules=config.rules,
        look=look,
        seed=config.seed,
    )


def _judged(
    judge: Judge,
    config: RunConfig,
    profiles: Mapping[str, Profile],
    chosen: ChosenSet,
    compared: Compared,
    failed: Collection[str],
) -> dict[str, Any]:
    """The figures of the judge's verdicts on the dev and the held-out questions."""
    responses = [(config.dev, profiles)]
    if config.held_out is not None and chosen.alone:
        written = chosen.splits(config, config.held_out)[1].written
        responses.append((config.held_out, {**chosen.alone, **written_by_name(written)}))
    return judge_section(judge, responses, list(profiles), compared.results, failed, config.seed)


def _advise(
    config: RunConfig,
    chosen: ChosenSet,
    compared: Compared,
    looks: Sequence[Look],
    others: Sequence[str],
    judged: Mapping[str, Any] | None,
) -> Advice:
    """The verdict on the chosen set, and the recommendation."""
    remote = chosen.pool.remote
    if remote_in(chosen.selection, remote):
        advice = undecodable(chosen.selection, remote)
    else:
        # What was verified may be another set than the selected one, if the rules left only one model.
        strategies = [each.strategy for each in chosen.verified[:1]]
        together = next((each for each in compared.results if each.strategy in strategies), None)
        advice = advise(chosen.selection, together)
    trouble = f"The attempt to run it failed: {chosen.trouble}." if chosen.trouble else None
    away = behind_server(chosen.selection, remote, chosen.voters)
    unfit = None
    if chosen.verified and len(chosen.selection.selected) < 2:
        unfit = (
            f"By the rules no other candidate fits {chosen.selection.selected[0]}; this set was run because a gain is "
            "predicted."
        )
    parts = (advice.text, unfit, looks_in_words(looks), away, chosen.note, trouble)
    text = " ".join(part for part in parts if part)
    notes = (looks[-1].note if looks else None, *others)
    splits = chosen.splits(config, config.held_out or config.dev)
    can = config.held_out is not None and can_vote(config.held_out)
    # Where no two can decode together, the rules choose among all.
    apart = () if remote_in(chosen.selection, remote) else remote
    return _with_recommendation(replace(advice, text=text), compared, notes, config, splits, can, apart, judged)


def _with_recommendation(
    advice: Advice,
    compared: Compared,
    notes: Sequence[str | None],
    config: RunConfig | SelectOptions,
    splits: tuple[AnsweredSplit, AnsweredSplit],
    can_vote: bool,
    apart: Collection[str] = (),
    judged: Mapping[str, Any] | None = None,
) -> Advice:
    """The advice with the recommendation and the warnings."""
    recommendation = recommend(compared, config.rules)
    if recommendation is not None:
        recommendation = replace(recommendation, text=recommendation.text + direct_comparison(judged, recommendation))
    groups = group_warnings(recommendation.result.groups) if recommendation else ()
    cut_off = with_more_tokens(
        *splits,
        recommendation,
        can_vote=can_vote,
        rules=config.rules,
        apart=apart,
        seed=config.seed,
    )
    warnings = (*notes, cut_off.text if cut_off else None, moved_warning(compared.moved), *groups)
    kept = tuple(each for each in warnings if each)
    return replace(
        advice,
        recommendation=recommendation,
        warnings=kept,
        cut_off=cut_off,
        ceiling=compared.ceiling,
        group_ceilings=compared.group_ceilings,
        not_compared=compared.not_compared,
    )


def run_on_logs(options: SelectOptions, command: str, progress: Progress) -> Outcome:
    """Choose and compare on the responses of logs; no model runs.

    Raises:
        InputError: The logs cannot be read or joined, or have too few questions.
    """
    logs = read_logs(options, split_names(options.only or ""), progress.say)
    rules, seed = options.rules, options.seed
    if logs.no_vote_note is not None:
        progress.say(logs.no_vote_note)
    dev, held_out = (
        AnsweredSplit(
            logs.task(split, own, seed),
            {name: each.part(own) for name, each in logs.profiles.items()},
            draws={name: [each.part(own) for each in drawn] for name, drawn in logs.draws.items()},
        )
        for split, own in zip(("dev", "held_out"), logs.split(seed), strict=True)
    )
    copies = find_copies(list(dev.profiles.values()))
    dropped = tuple(dev.profiles[name] for name in copies)
    dev, held_out = (
        replace(split, profiles={name: each for name, each in split.profiles.items() if name not in copies})
        for split in (dev, held_out)
    )
    standings = [profile.standing for profile in dev.profiles.values()]
    selection = select(standings, rules, copy_decisions(copies))
    profiles = [dev.profiles[decision.model] for decision in selection.decisions if decision.model in dev.profiles]
    compared = compare_strategies(
        dev,
        held_out,
        can_vote=logs.can_vote,
        rules=rules,
        seed=seed,
    )
    margins = close_calls(profiles, selection.selected[0], rules, seed=seed)
    # Logs do not tell what guessing scores, so the end of the interval does not count.
    doubts = run_doubts(profiles, dev.task, 100.0, None)
    notes = [each.text for each in doubts]
    advice = replace(advise(selection, on_logs=True), doubts=doubts)
    return Outcome(
        task_info=task_info(dev.task, None),
        rules=rules,
        standings=tuple(profile.standing for profile in profiles),
        selection=selection,
        failures={},
        pairs=all_pairs(profiles),
        advice=_with_recommendation(advice, compared, notes, options, (dev, held_out), logs.can_vote),
        task=dev.task,
        profiles=tuple(profiles),
        dropped=dropped,
        intervals={each.model: accuracy_interval(each, seed=seed) for each in (*profiles, *dropped)},
        margins={margin.model: margin for margin in margins},
        held_out=held_out.task,
        alone=tuple(held_out.profiles[profile.model] for profile in profiles),
        strategies=compared.results,
        lost=logs.lost,
        provenance=provenance.of_logs(command, seed, logs),
    )


def run_on_numbers(path: Path, rules: Limits, command: str) -> Outcome:
    """Apply the rules to published or earlier numbers; see :func:`read_standings` for the file.

    Raises:
        InputError: The file does not exist, or has another form.
    """
    task, standings = read_standings(path)
    selection = select(standings, rules)
    # The report shows pairs in the order of the leaderboard.
    order = {decision.model: n for n, decision in enumerate(selection.decisions)}
    return Outcome(
        task_info=TaskInfo(name=task, signature=str(path)),
        rules=rules,
        standings=standings,
        selection=selection,
        failures={},
        pairs=pairs_of_standings(sorted(standings, key=lambda standing: order[standing.model])),
        advice=advise(selection),
        provenance=provenance.of_numbers(command, path),
    )


def looks_or_note(folder: Path, progress: Progress) -> tuple[Look, ...]:
    """The looks that a run folder records; if they cannot be read, none, and a note that says why."""
    if not (folder / "result.json").is_file():
        return ()
    try:
        recorded = Run.open(folder, "its looks are not counted").result.looks
    except InputError as error:
        # The new run replaces the file anyway.
        progress.say(str(error))
        return ()
    return tuple(Look(**dict(record)) for record in recorded)
