"""What ``advisor evaluate`` does: methods of ensembling side by side, on the members of a finished run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from advisor.config import (
    InferenceConfig,
    RunConfig,
    check_choice,
    check_disjoint,
    check_keys,
    check_method,
    check_seed,
    check_task_is_given,
    load_split,
    split_names,
)
from advisor.jobs.methods import Evaluator
from advisor.jobs.planning.judging import say_judging
from advisor.jobs.session import open_session, with_devices
from advisor.judge.verdicts import name_of_set
from advisor.pool.weights import EQUAL, FROM_DEV
from advisor.progress import Progress
from advisor.records import Limits
from advisor.runs import provenance
from advisor.runs.chosen_set import candidates_of_run, deterministic_as, entries_as, judges_beside
from advisor.runs.evaluation_json import evaluation_of
from advisor.runs.judged import judge_section
from advisor.runs.run import Run
from advisor.runs.schema.evaluation import Evaluation
from ensemble.common.files import default_cache_dir
from ensemble.errors import InputError
from ensemble.methods import DEFAULT, list_methods, make_options, plugins


def evaluate_run(run: Run, options: Mapping[str, Any], command: str, progress: Progress) -> Evaluation:
    """Score methods, and every member alone, on the same questions.

    Args:
        run: A run folder.
        options: The options of ``advisor evaluate``, by parameter name.
        command: The command line, for the record.
        progress: Shows how far the evaluation is.

    Returns:
        The contents of ``evaluation.json``.

    Raises:
        InputError: An option is missing or out of range, or a model, the task or all methods cannot be used.
        MemberError: A member cannot be run.
    """
    config = with_devices(evaluation_config(run, options, command), progress)
    methods = split_names(options["methods"])
    method_options = learned_options(run, methods, config)
    for method, values in _read_settings(options.get("settings") or (), methods).items():
        method_options.setdefault(method, {}).update(values)
    # Checked before the cache is opened, so that a wrong option writes nothing.
    for method, values in method_options.items():
        make_options(method, values)
    with open_session(config, progress) as (cache, _):
        say_judging(config, progress, {} if config.held_out is None else {config.held_out.split: len(methods)})
        evaluator = Evaluator(config, methods, method_options, cache, progress)
        profiles, results = evaluator.run()
    judge = evaluator.judge
    task = judge.sign(evaluator.task) if judge else evaluator.task
    recorded = provenance.of_run(config, evaluator.identities, methods, judge.identities if judge else {})
    judged = None
    if judge:
        names = [profile.model for profile in profiles]
        sets = {name_of_set(each.method, names): each.profile for each in results if each.profile is not None}
        responses = {**dict(zip(names, profiles, strict=True)), **sets}
        judged = judge_section(judge, [(task, responses)], names, seed=config.seed)
    return evaluation_of(profiles, results, config, task, recorded, judged)


def evaluation_config(run: Run, options: Mapping[str, Any], command: str) -> RunConfig:
    """Read the options of ``advisor evaluate``, by parameter name; see :meth:`advisor.config.RunConfig.from_options`.

    ``held_out`` has the questions to evaluate on, and ``dev`` those that a router learns from.

    Raises:
        InputError: An option is missing or out of range, or the run or the task cannot be used.
    """
    check_task_is_given(options)
    inference = InferenceConfig.from_options({**options, "deterministic": deterministic_as(run, options)})
    methods, members = split_names(options["methods"]), split_names(options.get("members") or "")
    if not methods:
        raise InputError(f"--methods: name at least one of {', '.join(list_methods())}")
    for method in methods:
        plugins().check(method)
        check_choice("--methods", method, list_methods())
    _check_unique("--methods", methods)
    _check_unique("--members", members)
    k, seed = options.get("k", 10), options.get("seed") or 0
    check_method(DEFAULT, k)
    check_seed(seed)
    candidates = entries_as(candidates_of_run(run, members), options)
    if len(candidates) < 2:
        raise InputError(
            f"{run.folder}: the set has one model, {candidates[0].name}, and methods join at least two; name some of "
            "its candidates with --members"
        )
    # A run folder may come from other people: it must not decide where questions and keys are sent.
    for entry in candidates:
        if entry.checkpoint.is_remote:
            entry.checkpoint.check_consent(options.get("allow_server") or (), f"{entry.place}: {entry.name}")
    check_keys(candidates, options)
    evaluated = load_split(options, options.get("split") or "held_out")
    evaluated.check_allowed()
    judges = judges_beside(run, options, evaluated)
    dev = evaluated
    weights = options.get("weights") or EQUAL
    # Without a method that learns a missing dev split must not end the command.
    if "router" in methods:
        dev = load_split(options, "dev")
        check_disjoint(evaluated, dev, "the dev ones that the router learns from", "leave out the router")
    elif weights in FROM_DEV:
        dev = load_split(options, "dev")
        check_disjoint(evaluated, dev, f"the dev ones that --weights {weights} are from", "give numbers")
    return RunConfig(
        candidates=candidates,
        dev=dev,
        held_out=evaluated,
        rules=Limits(),
        inference=inference,
        seed=seed,
        cache_dir=options.get("cache_dir") or default_cache_dir(),
        command=command,
        k=k,
        weights=weights,
        judges=judges,
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
