"""A strategy that asks its models one by one, with all that is needed to run it; also as ``strategy.json``."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path

from advisor.strategies import kinds
from advisor.strategies.schema import SCHEMA_VERSION, file_json, file_shape_of
from advisor.strategies.strategy import Strategy
from advisor.strategies.vote_reader import VOTE_METRICS, VoteReader
from ensemble.common.schema import read_json, validated
from ensemble.errors import InputError
from ensemble.models.served_task import ServedTask
from ensemble.models.spec import EnsembleSpec, ModelSpec
from ensemble.saved.ensemble_json import member_from_json, member_to_json
from ensemble.saved.folder import STRATEGY_FILE, check_members

_WAY_OUT = "write the folder again with `advisor export`"


@dataclass(frozen=True, slots=True)
class StrategyPlan:
    """A strategy that asks its models one by one.

    Attributes:
        strategy: The strategy, with the dev questions if it reads them.
        members: Its models in its order.
        max_new_tokens: The default limit of a response; None for the program's default.
        stop: The default stop strings.
        task: The task of its run; None if that is not known.
        reader: Reads the answers; None if the strategy counts none.
    """

    strategy: Strategy
    members: tuple[ModelSpec, ...]
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    task: ServedTask | None = None
    reader: VoteReader | None = None


def answer_reader(chosen: EnsembleSpec | StrategyPlan) -> VoteReader | None:
    """What reads the answer in a response; None if the task is not known, or its metric needs a reference to read it.

    Raises:
        InputError: The pattern of the task cannot be used.
    """
    if isinstance(chosen, StrategyPlan) and chosen.reader is not None:
        return chosen.reader
    task = chosen.task
    if task is None or task.metric not in VOTE_METRICS:
        return None
    return VoteReader(task.metric, task.extract, "task", task.compare)


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
    """Read the ``strategy.json`` of a folder. No server is contacted.

    Args:
        folder: The folder.
        trusted: The members that may run the code in their own files, by name or id.
        check_files: Whether local members must have the files with which they were exported.

    Raises:
        InputError: The file cannot be used, a member needs consent to run code, or a member has changed.
    """
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
    members = tuple(member_from_json(each, f"{path}: models[{n}]", folder) for n, each in enumerate(file.models))
    # Weights, scores and places in a cascade go by the order.
    if tuple(member.name for member in members) != strategy.members:
        raise InputError(f"{path}: models should be one object for each of members, in the same order; {_WAY_OUT}")
    local = [member for member in members if not member.is_remote]
    check_members(local, str(path), trust_remote_code=trusted, check_files=check_files)
    reader = None
    if kind.COUNTS:
        task = file.task
        metric, extract, compare = (None, None, None) if task is None else (task.metric, task.extract, task.compare)
        reader = VoteReader(metric, extract, f"{path}: task", compare)
    generation = file.generation
    return StrategyPlan(strategy, members, generation.max_new_tokens, generation.stop or (), file.task, reader)
