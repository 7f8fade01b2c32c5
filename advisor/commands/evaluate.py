"""``advisor evaluate``: methods of ensembling side by side, on the members of a finished run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import yaml

from advisor.commands.command_line import command_line, print_json
from advisor.jobs import provenance
from advisor.jobs.figures import corpus_figures
from advisor.jobs.judged import judge_section
from advisor.jobs.methods import Evaluator
from advisor.jobs.session import open_session, with_devices, with_task_of
from advisor.judge.prompts import name_of_set
from advisor.models.run_config import InferenceConfig, RunConfig, load_split
from advisor.models.weights import ACCURACY
from advisor.options.finished_run import EvaluateOptions
from advisor.options.shared import split_names
from advisor.progress import Progress
from advisor.records import Limits, Profile
from advisor.run.evaluation import EvaluatedMethod, EvaluatedModel, Evaluation
from advisor.run.figures import SCHEMA_VERSION, JudgeSection
from advisor.run.folder import Run, write_json
from advisor.run.models_to_run import candidates_of_run, check_servers, entries_as, judges_beside
from advisor.run.result import Provenance
from advisor.statistics import accuracy_interval
from advisor.tasks.task import Task
from ensemble.common.files import default_cache_dir
from ensemble.common.schema import written
from ensemble.common.text import counted
from ensemble.errors import InputError
from ensemble.methods import list_methods, make_options, plugins
from reports import write_report
from reports.terminal import print_methods


def evaluate(options: EvaluateOptions) -> None:
    """Evaluate, write ``evaluation.json`` and the report, and print the methods."""
    evaluation = _evaluate(options, Progress(quiet=options.quiet))
    content = written(evaluation)
    # Before the report, which reads it.
    write_json(options.run / "evaluation.json", content)
    write_report(options.run)
    if options.as_json:
        print_json(content)
    else:
        print_methods(evaluation)


def _evaluate(options: EvaluateOptions, progress: Progress) -> Evaluation:
    """Score methods, and every member alone, on the same questions."""
    run = Run.open(options.run)
    config = with_devices(evaluation_config(run, options, command_line()), progress)
    methods = split_names(options.methods)
    method_options = learned_options(run, methods, config)
    for method, values in _read_settings(options.settings, methods).items():
        method_options.setdefault(method, {}).update(values)
    # Checked before the cache is opened, so that a wrong option writes nothing.
    for method, values in method_options.items():
        make_options(method, values)
    with open_session(config, progress, {options.split: len(methods)}) as (cache, _):
        evaluator = Evaluator(config, methods, method_options, cache, progress)
        profiles, results = evaluator.run()
        for profile in profiles:
            if unread := [answer for answer in profile.answers if answer.problem is not None]:
                number, first = counted(len(unread), "response"), unread[0]
                progress.say(f"{profile.model}: no answer in {number}; {first.id}, for example: {first.problem}")
    judge = evaluator.judge
    task = judge.sign(evaluator.task) if judge else evaluator.task
    recorded = provenance.of_run(config, evaluator.profiler, methods, judge)
    judged = None
    if judge:
        names = [profile.model for profile in profiles]
        sets = {name_of_set(name, names): answers for name, answers in evaluator.answers.items()}
        responses = {**dict(zip(names, profiles, strict=True)), **sets}
        judged = judge_section(judge, [(task, responses)], names, seed=config.seed)
    return evaluation_of(profiles, results, config, task, recorded, judged)


def evaluation_config(run: Run, options: EvaluateOptions, command: str) -> RunConfig:
    """Load what the options name: ``held_out`` has the questions to evaluate on, ``dev`` those that give weights."""
    options = with_task_of(run, options)
    methods, members = split_names(options.methods), split_names(options.members)
    if not methods:
        raise InputError(f"--methods: name at least one of {', '.join(list_methods())}")
    for method in methods:
        plugins().check(method)
        if method not in list_methods():
            raise InputError(f"--methods {method}: not one of {', '.join(list_methods())}")
    _check_unique("--methods", methods)
    _check_unique("--members", members)
    seed, weights = options.seed, options.weights
    candidates = entries_as(candidates_of_run(run, members, trusted=options.trust_remote_code), options)
    if len(candidates) < 2:
        raise InputError(
            f"{run.folder}: the set has one model, {candidates[0].name}, and methods join at least two; name some of "
            "its candidates with --members"
        )
    check_servers(candidates, options, str(options.run))
    evaluated = load_split(options, options.split, seed)
    evaluated.check_allowed()
    judges = judges_beside(run, options, evaluated)
    dev = evaluated
    # Without such weights a missing dev split must not end the command.
    if weights == ACCURACY:
        dev = load_split(options, "dev", seed)
        _check_disjoint(evaluated, dev)
    return RunConfig(
        candidates=candidates,
        dev=dev,
        held_out=evaluated,
        rules=Limits(),
        inference=InferenceConfig.from_options(options),
        seed=seed,
        cache_dir=options.cache_dir or default_cache_dir(),
        command=command,
        k=options.k,
        weights=weights,
        think=options.think,
        judges=judges,
    )


def _check_disjoint(task: Task, dev: Task) -> None:
    """Check that two splits share no question: models are not judged on the questions that they are weighed by."""
    # By prompt and not by id: two splits from one file often number their questions anew. Later turns of different
    # conversations may have the same words.
    prompts = {example.prompt for example in dev.examples if example.earlier is None}
    if shared := sum(example.prompt in prompts for example in task.examples if example.earlier is None):
        raise InputError(
            f"--split {task.split}: {shared} of its {len(task.examples)} questions are among the dev ones that "
            f"--weights {ACCURACY} are from; give another split, or give numbers"
        )


def learned_options(run: Run, methods: Sequence[str], config: RunConfig) -> dict[str, dict[str, Any]]:
    """Options of methods that the run has found out: DeePEn-Adapt weighs members by their accuracy on dev."""
    if "deepen-adapt" not in methods:
        return {}
    by_name = {candidate.model: candidate.accuracy for candidate in run.result.candidates}
    accuracies = [by_name.get(member.name) for member in config.candidates]
    if not any(accuracy is not None for accuracy in accuracies):
        raise InputError(f"{run.place}: candidates has no accuracies; run `advisor select` again")
    # A candidate that failed in the run has no accuracy; the method then says that it lacks them.
    return {} if None in accuracies else {"deepen-adapt": {"accuracies": accuracies}}


def _read_settings(settings: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of methods, ``METHOD.NAME=VALUE`` each, by method and name."""
    options: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        method, _, name = key.partition(".")
        if not equals or method not in methods or not name:
            raise InputError(f"--set {setting}: give METHOD.NAME=VALUE, for a method of --methods")
        try:
            options.setdefault(method, {})[name] = yaml.safe_load(value)
        # ValueError: a date that does not exist, for example.
        except (yaml.YAMLError, ValueError, RecursionError):
            raise InputError(f"--set {setting[:100]}: the value cannot be read as YAML; correct it") from None
    return options


def _check_unique(option: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"{option}: {name} appears twice; name each once")


def evaluation_of(
    members: Sequence[Profile],
    methods: Sequence[EvaluatedMethod],
    config: RunConfig,
    task: Task,
    provenance: Provenance,
    judge: JudgeSection | None = None,
) -> Evaluation:
    """The contents of ``evaluation.json``."""
    best = max(members, key=lambda member: round(member.accuracy, 9))
    return Evaluation(
        schema_version=SCHEMA_VERSION,
        task=task.name,
        metric=task.metric,
        split=task.split,
        n=len(task.examples),
        signature=str(task.signature),
        k=config.k,
        weights=config.weights,
        think=config.think,
        best_single_model=best.model,
        members=tuple(_member(member, task, config.seed) for member in members),
        methods=tuple(methods),
        judge=judge,
        provenance=provenance,
    )


def _member(member: Profile, task: Task, seed: int) -> EvaluatedModel:
    cost, n = member.cost, len(member.answers)
    return EvaluatedModel(
        model=member.model,
        accuracy=member.accuracy,
        accuracy_ci=accuracy_interval(member, seed=seed),
        **corpus_figures(member, task),
        mean_length=member.mean_length,
        # All questions may have failed, and then there is no token to divide by.
        ms_per_token=1000 * cost.seconds / cost.tokens if cost.tokens else None,
        seconds_per_question=cost.seconds / n,
        peak_memory=cost.peak_memory,
    )
