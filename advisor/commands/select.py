"""``advisor select``: profile the pool, choose a set by the rules, verify it, advise, and write the report."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from advisor.advice.comparison import Compared, StrategyResult, compare_strategies
from advisor.advice.doubts import no_advice, run_doubts, with_more_tokens
from advisor.advice.gain import Gain
from advisor.advice.pairs import all_pairs, pairs_of_standings
from advisor.advice.profiled_pool import ProfiledPool, copy_decisions, find_copies, profile_candidates
from advisor.advice.recommendation import (
    advise,
    behind_server,
    close_calls,
    moved_warning,
    recommend,
    remote_in,
    undecodable,
)
from advisor.advice.rules import read_standings
from advisor.advice.rules import select as select_by_rules
from advisor.advice.sequential import (
    first_questions,
    look_until_sure,
    looks_in_words,
    planned_looks,
    questions_id,
    reuse_note,
    with_earlier,
)
from advisor.commands.command_line import command_line, print_json
from advisor.commands.label import run_on_labels
from advisor.jobs.figures import (
    candidate_figures,
    direct_comparison,
    judge_section,
    provenance_of_logs,
    provenance_of_numbers,
    provenance_of_run,
    recommended_of,
    samples_of,
    single_models,
    task_info,
)
from advisor.jobs.held_out import ChosenSet, at_equal_cost, choose, prices_of, set_warnings, trace_responses
from advisor.jobs.session import open_session, with_devices
from advisor.judge.judge import open_profiler
from advisor.judge.prompts import name_of_set
from advisor.judge.summary import judge_warnings
from advisor.logs.join import read_logs
from advisor.models.job import conversation_end
from advisor.models.loaded_models import JobRunner, silence_libraries
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.options.new_run import ProfileOptions, SelectOptions
from advisor.options.shared import split_names
from advisor.progress import Progress
from advisor.records import Limits, signed
from advisor.run.figures import SCHEMA_VERSION, JudgeSection, Sample
from advisor.run.folder import Run, check_out, check_settings, folder_name, keep_first_date, locked, write_run
from advisor.run.permissions import keep_servers
from advisor.run.result import (
    AdviceSection,
    CandidateFigures,
    DataWarning,
    InterimAnalysis,
    Result,
    RuleLimits,
    TaskInfo,
)
from advisor.statistics import accuracy_interval
from advisor.strategies import largest_default
from advisor.strategies.router import with_router
from advisor.strategies.strategy import AnsweredSplit
from advisor.strategies.vote import can_vote
from advisor.tasks.task import clusters_of
from ensemble.common.schema import written
from ensemble.common.text import counted, p_value, visible
from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec
from reports import write_report
from reports.terminal import print_conclusion, print_next, print_tables


def select(options: SelectOptions) -> None:
    """Do the job, and print the tables and the conclusion."""
    if options.dry_run:
        print_dry_run(options)
        return
    folder, result = select_run(options, command_line(), Progress(quiet=options.quiet))
    try:
        if not options.quiet:
            print_tables(result)
        if not options.as_json:
            print_conclusion(result)
    finally:
        # After the advice, which need not wait for it, and also where the reader of the output has gone.
        report = write_report(folder)
    if options.as_json:
        print_json(written(result))
    else:
        print_next(result, report)


def select_run(options: SelectOptions, command: str, progress: Progress) -> tuple[Path, Result]:
    """Do the whole job, write the run folder without its report, and return it with what ``result.json`` has."""
    settings = options.stored_settings()
    samples: Iterator[Sample] = iter(())
    if options.scores is not None:
        folder = _folder(options, options.scores.stem, settings)
        result = run_on_numbers(options.scores, options.rules, command)
    elif options.labels is not None or options.logs:
        result, samples = (run_on_logs if options.labels is None else run_on_labels)(options, command, progress)
        folder = _folder(options, result.task.name, settings)
    else:
        config = with_devices(RunConfig.from_options(options, command), progress)
        # Before the hours of work, not after them.
        folder, settings = run_folder(options, config)
        with open_session(config, progress) as (cache, engine), locked(folder):
            result, samples = run(config, cache, progress, engine, looks_or_note(folder, progress))
            return folder, _written(folder, result, samples, settings, config)
    with locked(folder):
        return folder, _written(folder, result, samples, settings)


def _written(
    folder: Path,
    result: Result,
    samples: Iterator[Sample],
    settings: dict[str, Any],
    config: RunConfig | None = None,
) -> Result:
    """Write a run folder, and keep that the user's own pool names the servers of its models; the result as written."""
    origin = result.provenance.model_copy(update={"settings": settings})
    result = keep_first_date(folder, result.model_copy(update={"provenance": origin}))
    write_run(folder, result, samples, {} if config is None else config.dev.files)
    if config is not None:
        models = (*config.candidates, *config.judges)
        keep_servers(Run(folder).file, [each.checkpoint.url for each in models if each.checkpoint.is_remote])
    return result


def run_folder(options: SelectOptions, config: RunConfig) -> tuple[Path, dict[str, Any]]:
    """The folder of a run that runs models, and the settings that it keeps there."""
    settings = {
        **options.stored_settings(),
        # The pool file, the task file and the data may have changed since.
        "models": [_described(entry) for entry in config.candidates],
        "questions": [task.fingerprint[:12] for task in (config.dev, config.held_out) if task is not None],
    }
    return _folder(options, config.dev.name, settings), settings


def _described(entry: ModelSpec) -> str:
    """A model with the options that may change its responses; where it runs is no setting."""
    given = entry.options("result") | entry.options("key")
    return " ".join((entry.name, *(f"{name}={visible(str(given[name]))}" for name in given if name != "device")))


def _folder(options: SelectOptions, task: str, settings: Mapping[str, Any]) -> Path:
    """The run folder, after a check that it can be written, and has no run with other settings."""
    folder = options.out or Path("runs") / folder_name(task)
    check_out(folder)
    if not options.force:
        check_settings(folder, settings)
    return folder


def print_dry_run(options: SelectOptions, profile: ProfileOptions | None = None) -> None:
    """Print what a run, or profiling, with these options would do; status 1 if something keeps it from working."""
    from advisor.jobs.dry_run import dry_run, dry_run_lines

    silence_libraries(quiet=True)
    config = RunConfig.from_options(options, command_line(), profile=profile)
    config = with_devices(config, Progress(quiet=options.as_json))
    plan = dry_run(config)
    if profile is None:
        try:
            run_folder(options, config)
        except InputError as error:
            # Said with the plan, which is of use for another folder as well.
            plan["problems"].append(str(error))
    if options.as_json:
        print_json(plan)
    else:
        for line in dry_run_lines(plan):
            print(line)
    if plan["problems"]:
        raise typer.Exit(1)


def run(
    config: RunConfig,
    cache: ResponseCache,
    progress: Progress,
    engine: JobRunner | None = None,
    earlier: Sequence[InterimAnalysis] = (),
) -> tuple[Result, Iterator[Sample]]:
    """Do the whole job: what ``result.json`` has, and the lines of ``samples.jsonl``.

    The looks of earlier runs at the held-out questions count. It is an error if a candidate cannot be used, before any
    has been run, and if all candidates fail, or a judge.
    """
    profiler, judge = open_profiler(config, cache, progress, engine=engine)
    if judge:
        held_out = None if config.held_out is None else judge.sign(config.held_out)
        config = replace(config, dev=judge.sign(config.dev), held_out=held_out)
    candidates = profile_candidates(config, profiler)
    # From here on the held-out questions are those that were asked.
    config, chosen, compared, looks = _verify(config, candidates, profiler, progress, earlier)
    if config.options.equal_cost and (row := recommend(compared, config.options.rules)) is not None:
        best = compared.result_of(row).figures.best_single_model or ""
        chosen = at_equal_cost(chosen, row, best, config, profiler, progress)
        compared = _strategies(config, chosen, looks[-1] if looks and looks[-1].corrects else None)
    pool, selection = chosen.pool, chosen.selection
    profiles = [pool.complete[d.model] for d in selection.decisions if d.model in pool.complete]
    by_name, everyone = {profile.model: profile for profile in profiles}, (*profiles, *pool.copies.values())
    intervals = {name: accuracy_interval(profile) for name, profile in pool.profiles.items()}
    judged = None
    if judge:
        responses = [(config.dev, by_name)]
        if config.held_out is not None and chosen.alone:
            texts = chosen.splits(config, config.held_out)[1].written
            # Strategies that write new texts have the names that the verdicts have.
            sets = {name_of_set(each.profile.model, strategy.members): each.profile for strategy, each in texts.items()}
            responses.append((config.held_out, {**chosen.alone, **sets}))
        judged = judge_section(
            judge, responses, list(by_name), compared.results, profiler.failures, config.options.seed
        )
    judging = len(config.held_out.examples) if config.held_out and compared.results else 0
    doubts = run_doubts(profiles, config.dev, judging)
    # On a judge whose verdicts tell little; the splits have the same one.
    notes = (
        *(judge_warnings(judged.judges, judged.splits[-1]) if judged else ()),
        *set_warnings(chosen, config, profiler),
    )
    pairs = all_pairs(profiles, config.options.rules)
    advice = _advise(config, chosen, compared, looks, doubts, notes, judged)
    prices, ensemble = prices_of(config), None
    clusters = clusters_of(*(each for each in (config.dev, config.held_out) if each is not None))
    samples = samples_of(config.dev, "dev", everyone)
    if config.held_out is not None and chosen.alone:
        alone, together = list(chosen.alone.values()), None
        traces: Mapping[int, Mapping[str, Any]] = {}
        ensemble = chosen.ensemble(config, config.held_out, compared)
        if ensemble is not None:
            together, best = chosen.written[chosen.decoded[0]].profile, ensemble.best_single_model or ""
            traces = trace_responses(chosen, config.held_out, best, config, profiler, cache, progress)
        recommended = recommended_of(advice, compared)
        samples = chain(samples, samples_of(config.held_out, "held_out", alone, together, traces, recommended))
    result = Result(
        schema_version=SCHEMA_VERSION,
        task=task_info(config.dev, config.dev.max_new_tokens),
        rules=RuleLimits(**asdict(config.options.rules)),
        candidates=candidate_figures(
            selection,
            config.dev,
            everyone,
            profiler.failures,
            intervals=intervals,
            calls=close_calls(profiles, selection.selected[0], config.options.rules),
        ),
        selected=selection.selected,
        prediction=chosen.predictions(config.options.set_by, compared.results),
        pairs=pairs,
        ensemble=ensemble,
        strategies=tuple(each.figures for each in compared.results),
        single_models=single_models(list(chosen.alone.values()), {**pool.copies, **by_name}, prices, clusters),
        advice=advice,
        looks=with_earlier(looks, earlier),
        judge=judged,
        provenance=provenance_of_run(config, profiler, judge=judge),
    )
    return result, samples


def _verify(
    config: RunConfig, pool: ProfiledPool, profiler: Profiler, progress: Progress, earlier: Sequence[InterimAnalysis]
) -> tuple[RunConfig, ChosenSet, Compared, tuple[InterimAnalysis, ...]]:
    """Choose a set and compare strategies on the held-out questions: on all, or in batches until the test is sure.

    The questions of the run are then those that were asked; there are no looks if nothing was tested.
    """
    whole = config.held_out
    if whole is None:
        return config, choose(config, pool, profiler, progress), Compared(), ()
    questions = len(whole.examples)
    looks_at = planned_looks(questions) if config.options.until_sure else (questions,)
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
        if config.options.until_sure:
            progress.say("--until-sure has no set or vote to test, so all held-out questions are asked at once")
        return *ask(questions), ()
    strategy, voters = tested.strategy, asked[plan[0]][1].voters

    def verify(n: int) -> Gain | None:
        found = _tested(*ask(n)[1:])
        # If a member fails in a later batch, another set is left.
        if found is None or ((found.strategy != strategy) if tested.figures.is_decoded else ask(n)[1].voters != voters):
            return None
        if config.options.until_sure:
            gain = f"{signed(found.gain.points)} points, p {p_value(found.gain.p_no_gain)}"
            progress.say(f"{counted(n, 'held-out question')}: {gain}")
        return found.gain

    weights = "" if config.options.weights is None else f", weights {config.options.weights}"
    how = f"{strategy.name}{weights}" + (f", think {config.options.think}" if config.options.think else "")
    members = strategy.members if tested.figures.is_decoded else voters
    blank = InterimAnalysis(
        questions=questions_id(whole),
        members=members,
        method=how,
        k=config.options.k,
        plan=plan,
        n=plan[0],
        p_no_gain=1.0,
        p_no_loss=1.0,
        limit=0.0,
        test=1,
    )
    looks = look_until_sure(verify, blank, earlier)
    part, chosen, compared = asked[max(asked)]
    # To compare again takes seconds.
    return part, chosen, _strategies(part, chosen, looks[-1]) if looks[-1].corrects else compared, looks


def _tested(chosen: ChosenSet, compared: Compared) -> StrategyResult | None:
    """What looks test: the set that decodes together, chosen on dev, or the default strategy, chosen by each look."""
    found = {each.strategy: each for each in compared.results}
    together = next((found[each] for each in chosen.decoded[:1] if each in found), None)
    default = largest_default(list(found))
    return together or (None if default is None else found[default])


def _strategies(config: RunConfig, chosen: ChosenSet, look: InterimAnalysis | None = None) -> Compared:
    """All strategies on the held-out questions; none if no model was asked these."""
    if config.held_out is None or not chosen.alone:
        return Compared()
    splits, votes = chosen.splits(config, config.held_out), can_vote(config.held_out)
    return compare_strategies(*splits, can_vote=votes, rules=config.options.rules, look=look)


def _advise(
    config: RunConfig,
    chosen: ChosenSet,
    compared: Compared,
    looks: Sequence[InterimAnalysis],
    doubts: tuple[DataWarning, ...],
    others: Sequence[str],
    judged: JudgeSection | None,
) -> AdviceSection:
    """The verdict on the chosen set, and the recommendation."""
    remote = chosen.pool.remote
    if remote_in(chosen.selection, remote):
        advice = undecodable(chosen.selection, remote)
    else:
        # What was verified may be another set than the selected one, if the rules left only one model.
        together = next((each for each in compared.results if each.strategy in chosen.decoded[:1]), None)
        advice = advise(chosen.selection, together)
    trouble = f"The attempt to run it failed: {chosen.trouble}." if chosen.trouble else None
    away = behind_server(chosen.selection, remote, chosen.voters)
    unfit = None
    if chosen.decoded and len(chosen.selection.selected) < 2:
        unfit = (
            f"By the rules no other candidate fits {chosen.selection.selected[0]}; this set was run because a gain is "
            "predicted."
        )
    parts = (advice.text, unfit, looks_in_words(looks), away, chosen.note, trouble)
    text = " ".join(part for part in parts if part)
    notes = (reuse_note(looks[-1]) if looks else None, *others)
    splits = chosen.splits(config, config.held_out or config.dev)
    can = config.held_out is not None and can_vote(config.held_out)
    # Where no two can decode together, the rules choose among all.
    apart = () if remote_in(chosen.selection, remote) else remote
    return _with_recommendation(
        advice.model_copy(update={"text": text, "doubts": doubts}),
        *(compared, notes, config.options, splits, can, apart, judged),
    )


def _with_recommendation(
    advice: AdviceSection,
    compared: Compared,
    notes: Sequence[str | None],
    options: SelectOptions,
    splits: tuple[AnsweredSplit, AnsweredSplit],
    can_vote: bool,
    apart: Collection[str] = (),
    judged: JudgeSection | None = None,
) -> AdviceSection:
    """The advice with the recommendation and the warnings."""
    recommendation = recommend(compared, options.rules)
    if recommendation is not None:
        text = recommendation.text + direct_comparison(judged, recommendation)
        recommendation = recommendation.model_copy(update={"text": text})
    cut_off = with_more_tokens(*splits, recommendation, can_vote=can_vote, rules=options.rules, apart=apart)
    blocks = no_advice(advice.doubts, recommendation, len(splits[0].profiles))
    doubts = (each.text for each in advice.doubts if each is not blocks)
    warnings = (*doubts, *notes, cut_off, moved_warning(compared.moved))
    return advice.model_copy(
        update={
            "recommendation": recommendation,
            "no_advice": blocks,
            "warnings": tuple(each for each in warnings if each),
            "ceiling": compared.ceiling,
            "not_compared": compared.not_compared,
        }
    )


def run_on_logs(options: SelectOptions, command: str, progress: Progress) -> tuple[Result, Iterator[Sample]]:
    """Choose and compare on the responses of logs; no model runs. See :func:`run`."""
    logs = read_logs(options, split_names(options.only or ""), progress.say)
    rules, seed = options.rules, options.seed
    if logs.no_vote_note is not None:
        progress.say(logs.no_vote_note)
    dev, held_out = logs.halves(seed)
    copies = find_copies(list(dev.profiles.values()))
    dropped = [dev.profiles[name] for name in copies]
    dev, held_out = (
        replace(split, profiles={name: each for name, each in split.profiles.items() if name not in copies})
        for split in (dev, held_out)
    )
    if options.router is not None:
        dev, held_out = with_router(options.router, (dev, held_out), progress.say)
    standings = [profile.standing for profile in dev.profiles.values()]
    selection = select_by_rules(standings, rules, copy_decisions(copies))
    profiles = [dev.profiles[decision.model] for decision in selection.decisions if decision.model in dev.profiles]
    compared = compare_strategies(dev, held_out, can_vote=logs.can_vote, rules=rules)
    doubts = run_doubts(profiles, dev.task, len(held_out.task.examples))
    advice = advise(selection, on_logs=True).model_copy(update={"doubts": doubts})
    advice = _with_recommendation(advice, compared, (), options, (dev, held_out), logs.can_vote)
    alone = [held_out.profiles[profile.model] for profile in profiles]
    result = Result(
        schema_version=SCHEMA_VERSION,
        task=task_info(dev.task),
        rules=RuleLimits(**asdict(rules)),
        candidates=candidate_figures(
            selection,
            dev.task,
            [*profiles, *dropped],
            {},
            intervals={each.model: accuracy_interval(each) for each in (*profiles, *dropped)},
            calls=close_calls(profiles, selection.selected[0], rules),
            lost=logs.lost,
        ),
        selected=selection.selected,
        pairs=all_pairs(profiles),
        strategies=tuple(each.figures for each in compared.results),
        single_models=single_models(alone, dev.profiles, {}, clusters_of(dev.task, held_out.task)),
        advice=advice,
        provenance=provenance_of_logs(command, seed, logs),
    )
    recommended = recommended_of(advice, compared)
    on_held_out = samples_of(held_out.task, "held_out", alone, recommended=recommended)
    return result, chain(samples_of(dev.task, "dev", [*profiles, *dropped]), on_held_out)


def run_on_numbers(path: Path, rules: Limits, command: str) -> Result:
    """Apply the rules to published or earlier numbers; see :func:`read_standings` for the file."""
    task, standings = read_standings(path)
    selection = select_by_rules(standings, rules)
    by_name = {standing.model: standing for standing in standings}
    # The report shows candidates and pairs in this order.
    ranked = [(decision, by_name[decision.model]) for decision in selection.decisions]
    return Result(
        schema_version=SCHEMA_VERSION,
        task=TaskInfo(name=task, signature=str(path)),
        rules=RuleLimits(**asdict(rules)),
        candidates=tuple(
            CandidateFigures(**asdict(decision), accuracy=standing.accuracy, mean_length=standing.mean_length)
            for decision, standing in ranked
        ),
        selected=selection.selected,
        pairs=pairs_of_standings([standing for _, standing in ranked]),
        advice=advise(selection),
        provenance=provenance_of_numbers(command, path),
    )


def looks_or_note(folder: Path, progress: Progress) -> tuple[InterimAnalysis, ...]:
    """The looks that a run folder records; if they cannot be read, none, and a note that says why."""
    if not (folder / "result.json").is_file():
        return ()
    try:
        return Run.open(folder, "its looks are not counted").result.looks
    except InputError as error:
        # The new run replaces the file anyway.
        progress.say(str(error))
        return ()
