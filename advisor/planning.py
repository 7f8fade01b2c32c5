"""From the options of a command to a plan: all that is asked for is read and checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from advisor import checks
from advisor.config import EngineName, InferenceConfig, RunConfig
from advisor.pool.pool_file import read_pool
from advisor.profile.engine import LocalEngine
from advisor.profile.loader import hush
from advisor.records import LEVEL, Rules
from advisor.response_cache import ResponseCache
from advisor.tasks import Task, load_task
from ensemble.errors import InputError
from ensemble.files import default_cache_dir
from ensemble.models.spec import ChatTemplate

if TYPE_CHECKING:
    from advisor.profile.engine import Engine
    from advisor.progress import Watcher


def setting_of(
    device: str,
    dtype: str,
    chat_template: str,
    max_new_tokens: int | None,
    batch_size: str,
    engine: str = "local",
    ray_address: str | None = None,
) -> InferenceConfig:
    """How models are loaded and generate, as the options say.

    Raises:
        InputError: One of them is out of its range.
    """
    size, tokens = checks.check_batch_size(batch_size), checks.check_tokens(max_new_tokens)
    checks.check_loading(dtype, chat_template)
    checks.check_engine(engine, ray_address)
    template, where = cast("ChatTemplate", chat_template), cast("EngineName", engine)
    return InferenceConfig(device, dtype, template, tokens, size, engine=where, ray_address=ray_address)


def plan_of(  # noqa: PLR0913  # a plan's parts are a command's options
    *,
    pool: str | None,
    task: str | None,
    data: Path | None,
    split: str,
    limit: int | None,
    shots: int | None,
    seed: int,
    allow_code_execution: bool,
    rules: Rules,
    inference: InferenceConfig,
    method: str,
    k: int,
    verify: bool,
    cache_dir: Path | None,
    command: str,
    race: float | None = None,
    level: float = LEVEL,
    search: int | None = None,
) -> RunConfig:
    """Read and check all that a run is asked to do, but for the models themselves.

    Raises:
        InputError: Something is missing, or cannot be used.
    """
    if pool is None:
        raise InputError("--pool is missing; give a file with a model a line, or the bundled pool, demo")
    if task is None:
        raise InputError("--task is missing; give a task file, or a name that `advisor tasks` lists")
    checks.check_method(method, k)
    checks.check_seed(seed)
    checks.check_race(race)
    checks.check_level(level)
    checks.check_search(search)
    candidates = read_pool(pool)

    def load(name: str) -> Task:
        loaded = load_task(
            task,
            split=name,
            data_dir=data,
            shots=shots,
            limit=limit,
            seed=seed,
            allow_code_execution=allow_code_execution,
        )
        loaded.check_allowed()
        return loaded

    dev, held_out = load(split), load("held_out") if verify else None
    if held_out is not None:
        checks.check_disjoint(dev, held_out)

    return RunConfig(
        candidates=candidates,
        dev=dev,
        held_out=held_out,
        rules=rules,
        inference=inference,
        method=method,
        k=k,
        seed=seed,
        cache_dir=cache_dir or default_cache_dir(),
        command=command,
        race=race,
        level=level,
        search=search,
    )


@contextmanager
def opened(plan: RunConfig, watcher: Watcher, *, quiet: bool) -> Iterator[tuple[ResponseCache, Engine]]:
    """The store and the engine of a run, opened when its models have been checked: one that is refused writes nothing.

    Raises:
        InputError: A model cannot be used, the cluster is not there or has not what a model asks for, or the store
            cannot be kept where it is wanted.
    """
    hush(quiet=quiet)
    here = plan.inference.engine == "local"
    with ExitStack() as stack:
        # A cluster's workers load their libraries while the models are checked.
        engine = stack.enter_context(_engine(plan, watcher))
        checks.check_pool(plan.candidates, plan.inference.device, plan.inference.chat_template, here=here)
        store = stack.enter_context(ResponseCache(plan.cache_dir, watcher.say))
        held_out = plan.held_out.notes if plan.held_out is not None else ()
        for note in dict.fromkeys((*plan.dev.notes, *held_out)):
            watcher.say(note)
        yield store, engine


@contextmanager
def _engine(plan: RunConfig, watcher: Watcher) -> Iterator[Engine]:
    if plan.inference.engine == "local":
        yield LocalEngine()
        return
    from advisor.profile.ray_engine import RayEngine
    from ensemble.distributed.ray_cluster import cluster

    with cluster(plan.inference.ray_address), RayEngine(plan.cache_dir, watcher.say) as engine:
        engine.prepare(plan.candidates, plan.inference.device)
        yield engine


def plan_of_run(  # noqa: PLR0913  # see plan_of
    run: Path,
    *,
    task: str | None,
    data: Path | None,
    split: str,
    limit: int | None,
    shots: int | None,
    seed: int,
    allow_code_execution: bool,
    inference: InferenceConfig,
    methods: Sequence[str],
    k: int,
    cache_dir: Path | None,
    command: str,
    members: Sequence[str] = (),
) -> RunConfig:
    """A plan to evaluate methods on the chosen set of a run folder, or on those of its candidates that are named.

    Raises:
        InputError: Something is missing, or cannot be used.
    """
    if task is None:
        raise InputError("--task is missing; give a task file, or a name that `advisor tasks` lists")
    from advisor.output.chosen_set import candidates_of_run

    checks.check_methods(methods, k)
    checks.check_seed(seed)
    checks.check_members(members)
    candidates = candidates_of_run(run, members)
    if len(candidates) < 2:
        raise InputError(
            f"{run}: the set is {candidates[0].name} alone, and methods join at least two models; name some of its "
            "candidates with --members"
        )
    load = partial(
        load_task, task, data_dir=data, shots=shots, limit=limit, seed=seed, allow_code_execution=allow_code_execution
    )
    evaluated = load(split=split)
    evaluated.check_allowed()
    dev = load(split="dev") if "router" in methods else evaluated
    if "router" in methods:
        checks.check_unseen(evaluated, dev)
    return RunConfig(
        candidates=candidates,
        dev=dev,
        held_out=evaluated,
        rules=Rules(),
        inference=inference,
        k=k,
        seed=seed,
        cache_dir=cache_dir or default_cache_dir(),
        command=command,
    )
