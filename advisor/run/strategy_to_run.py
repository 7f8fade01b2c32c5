"""What runs in production: the recommended strategy of a run, or another one that the user names.

A set that decodes together, and a single model that is loaded here, are an :class:`EnsembleSpec`. All other strategies
ask their models one by one: they are a :class:`StrategyPlan`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from advisor.models.loaded_models import ALONE
from advisor.options.production import ChosenOptions
from advisor.options.shared import StrategyOptions
from advisor.run.figures import StrategyKey
from advisor.run.folder import Run
from advisor.run.models_to_run import (
    candidates_of_run,
    check_decoding,
    check_servers,
    chosen_by_options,
    chosen_by_run,
    limits_of_run,
    loaded_as,
    task_of_run,
)
from advisor.run.result import Result, StrategyFigures
from advisor.strategies import kinds, label
from advisor.strategies.decoded import Decoded
from advisor.strategies.schema import SCHEMA_VERSION, file_json, file_shape_of, strategy_of
from advisor.strategies.single import Single
from advisor.strategies.strategy import Strategy
from advisor.strategies.vote_reader import VOTE_METRICS, VoteReader
from ensemble.common.files import exists
from ensemble.common.schema import read_json, validated
from ensemble.errors import InputError
from ensemble.models.served_task import ServedTask
from ensemble.models.spec import EnsembleSpec, ModelSpec
from ensemble.saved.ensemble_json import member_of, member_to_json
from ensemble.saved.folder import STRATEGY_FILE, check_members, is_saved


def plan_by_options(options: ChosenOptions, say: Callable[[str], None]) -> EnsembleSpec | StrategyPlan:
    """What the options of ``run`` or ``serve`` name, with the changes that they make. No weights are loaded."""
    check_decoding(options)
    if options.strategy is not None:
        _refuse(options, ("method", "k"), f"--strategy {options.strategy} says how the models are used")
    run = None if options.run is None else Path(options.run)
    # A folder with both files is a run folder, which has all strategies.
    if run is not None and not exists(run / "result.json") and exists(run / STRATEGY_FILE):
        _refuse(options, ("strategy", "pool", "method", "k"), f"{run} is a strategy that `advisor export` wrote")
        plan = read_plan(run, trusted=options.trust_remote_code, check_files=not options.no_check_files)
    elif run is None or (is_saved(run) and not exists(run / "result.json")):
        _refuse(options, ("strategy", "pool", "group"), "--models and a saved ensemble have no strategies")
        return chosen_by_options(options)
    else:
        opened = Run.open(run)
        chosen = plan_of_run(opened, options, say, options.method, options.k)
        if isinstance(chosen, EnsembleSpec):
            _refuse(options, ("group",), "only a router by groups reads it")
            spec = chosen_by_options(options, chosen)
            if not opened.result.strategies:
                say(f"{run}: nothing was verified on held-out questions, so there is no evidence for what runs")
            return spec
        plan = chosen
    return _with_options(plan, options, say)


def plan_of_run(
    run: Run, options: StrategyOptions, say: Callable[[str], None], method: str | None = None, k: int | None = None
) -> EnsembleSpec | StrategyPlan:
    """The strategy of a run folder: the recommended one, or the one that the options name."""
    result, place = run.result, run.place
    pool, trusted = options.pool, options.trust_remote_code
    # All strategies are checked, also those that do not run: notes quote them.
    compared = result.strategies
    strategies = [figures_to_strategy(each, place) for each in compared]
    found = result.recommended
    recommended = None if found is None else figures_to_strategy(found, place)
    if options.strategy is not None:
        strategy = find_strategy(options.strategy, strategies, place)
    elif method or k or recommended is None:
        spec = chosen_by_run(run, method=method, pool=pool, trusted=trusted)
        strategy = Decoded(tuple(member.name for member in spec.members), spec.method)
        if recommended is not None:
            _warn(strategy, recommended, strategies, compared, say)
        return spec
    else:
        strategy = recommended
    if recommended is not None:
        _warn(strategy, recommended, strategies, compared, say)
    if isinstance(strategy, Decoded):
        return chosen_by_run(run, strategy.members, strategy.name, pool, trusted)
    entries = candidates_of_run(run, strategy.members, pool, trusted)
    (first, *_) = entries
    # Decoded in this process, a model also gives streams and log-probabilities.
    if isinstance(strategy, Single) and not first.is_remote:
        return chosen_by_run(run, strategy.members, ALONE, pool, trusted)
    # After the places: without a place no model runs, and that is the first thing to know.
    max_new_tokens, stop = limits_of_run(run)
    return StrategyPlan(
        strategy,
        entries,
        max_new_tokens,
        stop,
        task_of_run(run),
        _reader(result, place) if strategy.COUNTS else None,
    )


def _with_options(plan: StrategyPlan, options: ChosenOptions, say: Callable[[str], None]) -> StrategyPlan:
    """The plan with the changes of the options, after its members are checked."""
    check_servers(plan.members, options, options.run or "--models", is_trusted=options.names_places)
    local = [member for member in plan.members if not member.is_remote]
    models = {model.name: model for model in loaded_as(local, options)}
    groups = plan.strategy.groups
    if not groups:
        _refuse(options, ("group",), f"the strategy {plan.strategy.name} has no groups")
    elif options.group not in groups:
        given = "a prompt has no group" if options.group is None else f"--group {options.group} is not in the run"
        shown = ", ".join(groups[:5]) + (", ..." if len(groups) > 5 else "")
        say(f"{given}, so {plan.strategy.members[0]} answers; give --group NAME, for example {shown}")
    if plan.reader is not None and plan.reader.metric == "choice":
        say("votes count the letter in each response; the run chose options by their likelihood")
    return replace(
        plan,
        members=tuple(models.get(member.name, member) for member in plan.members),
        max_new_tokens=options.max_new_tokens or plan.max_new_tokens,
        stop=options.stop or plan.stop,
    )


def _reader(result: Result, place: str) -> VoteReader:
    if result.provenance.logs and result.provenance.scoring is None:
        raise InputError(
            f"{place}: its answers come from logs, and only the tool that wrote them knows how to read an answer; "
            "run `advisor select --logs ... --metric METRIC:PATTERN` again, then votes can run"
        )
    return VoteReader(result.task.metric, result.task.extract, f"{place}: task")


def figures_to_strategy(figures: StrategyKey, place: str) -> Strategy:
    """The strategy of an object of ``result.json``, after it is checked that it can run."""
    values = {"strategy": figures.strategy, "members": figures.members, **(figures.model_extra or {})}
    return strategy_of(values, place, "run `advisor select` again")


def find_strategy(wanted: str, strategies: Sequence[Strategy], place: str) -> Strategy:
    """The strategy that ``--strategy`` names by its label, ``NAME``, or ``NAME/DETAIL``; of several the first."""
    labels = {label(each, strategies): each for each in strategies}
    if not labels:
        raise InputError(
            f"--strategy {wanted}: {place} compares no strategies, for example because of --no-verify; run `advisor "
            "select` again, or leave out --strategy"
        )
    if wanted in labels:
        return labels[wanted]
    name, _, detail = wanted.partition("/")
    for strategy in strategies:
        if strategy.name == name and (not detail or detail in strategy.details):
            return strategy
    raise InputError(f"--strategy {wanted}: {place} has no such strategy; give one of {', '.join(labels)}")


def _warn(
    strategy: Strategy,
    recommended: Strategy,
    strategies: Sequence[Strategy],
    compared: Sequence[StrategyFigures],
    say: Callable[[str], None],
) -> None:
    """Say so if the evidence is against a strategy, or if there is no evidence for it."""
    figures = {each: own.accuracy for each, own in zip(strategies, compared, strict=True)}
    best, own = figures.get(recommended), figures.get(strategy)
    if strategy == recommended:
        return
    recommendation = f"the recommended {label(recommended, strategies)}"
    if best is None or own is None:
        say(f"{label(strategy, strategies)} was not compared on held-out questions with {recommendation}")
    elif own < best:
        on = f"on {compared[strategies.index(strategy)].n:,} held-out questions"
        say(f"{label(strategy, strategies)} scored {best - own:.1f} points less than {recommendation} {on}")


def _refuse(options: ChosenOptions, names: Sequence[str], reason: str) -> None:
    """Raise InputError if one of these options is given."""
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(f"--{name}: {reason}; leave out --{name}")


_WAY_OUT = "write the folder again with `advisor export`"


@dataclass(frozen=True, slots=True)
class StrategyPlan:
    """A strategy that asks its models one by one."""

    strategy: Strategy  # with the dev questions if it reads them
    members: tuple[ModelSpec, ...]  # in the strategy's order
    max_new_tokens: int | None = None  # the default limit of a response; None for the program's
    stop: tuple[str, ...] = ()  # the default stop strings
    task: ServedTask | None = None  # the task of its run; None if that is not known
    reader: VoteReader | None = None  # reads the answers; None if the strategy counts none


def answer_reader(chosen: EnsembleSpec | StrategyPlan) -> VoteReader | None:
    """What reads the answer in a response; None if the task is not known or its metric needs a reference to read it."""
    if isinstance(chosen, StrategyPlan) and chosen.reader is not None:
        return chosen.reader
    task = chosen.task
    if task is None or task.metric not in VOTE_METRICS:
        return None
    return VoteReader(task.metric, task.extract, "task")


def plan_json(plan: StrategyPlan, folder: Path) -> str:
    """The content of ``strategy.json`` in a folder; local members have the hashes of their files."""
    content = file_json(
        plan.strategy,
        task=plan.task,
        generation={"max_new_tokens": plan.max_new_tokens, "stop": plan.stop},
        models=tuple(member_to_json(member, folder) for member in plan.members),
    )
    return f"{json.dumps(content, indent=2, allow_nan=False)}\n"


def read_plan(folder: Path, *, trusted: Collection[str] = (), check_files: bool = True) -> StrategyPlan:
    """Read the ``strategy.json`` of a folder. No server is contacted."""
    path = folder / STRATEGY_FILE
    values = read_json(path, _WAY_OUT)
    if values.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path}: schema_version should be {SCHEMA_VERSION}; {_WAY_OUT}")
    name = values.get("strategy")
    if not isinstance(name, str) or name not in kinds():
        raise InputError(f"{path}: strategy should be one of {', '.join(kinds())}; {_WAY_OUT}")
    kind = kinds()[name]
    # Not cleaned: stop strings and dev questions are used as they are.
    file = validated(file_shape_of(kind), values, str(path), _WAY_OUT, clean=False)
    own = {each.name: getattr(file, each.name) for each in fields(kind)}
    strategy = kind(**own)
    if problem := strategy.problem():
        raise InputError(f"{path}: {problem[0]} should be {problem[1]}; {_WAY_OUT}")
    members = tuple(member_of(each, f"{path}: models[{n}]", folder) for n, each in enumerate(file.models))
    # Weights and the order of a vote go by the order.
    if tuple(member.name for member in members) != strategy.members:
        raise InputError(f"{path}: models should be one object for each of members, in the same order; {_WAY_OUT}")
    local = [member for member in members if not member.is_remote]
    check_members(local, str(path), trust_remote_code=trusted, check_files=check_files)
    reader = None
    if kind.COUNTS:
        task = file.task
        metric, extract = (None, None) if task is None else (task.metric, task.extract)
        reader = VoteReader(metric, extract, f"{path}: task")
    generation = file.generation
    return StrategyPlan(strategy, members, generation.max_new_tokens, generation.stop, file.task, reader)
