"""The cache and the engine of a run, opened after its models are checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from advisor.config import RunConfig
from advisor.pool.checks import check_pool
from advisor.profile.loader import hush
from advisor.profile.local_engine import LocalEngine
from advisor.progress import Progress
from advisor.response_cache import Store

if TYPE_CHECKING:
    from advisor.profile.engine import Engine


@contextmanager
def open_session(config: RunConfig, progress: Progress) -> Iterator[tuple[Store, Engine]]:
    """Check the models of a run, then open its response cache and its engine.

    Raises:
        InputError: A model cannot be used, the cluster cannot be reached or lacks what a model needs, or the cache
            cannot be written.
    """
    inference = config.inference
    hush(quiet=progress.quiet)
    with ExitStack() as stack:
        engine: Engine = LocalEngine()
        if inference.engine == "ray":
            from advisor.profile.ray_engine import ClusterEngine
            from ensemble.distributed.ray_cluster import cluster

            # Opened first: the workers load their libraries while the models are checked.
            stack.enter_context(cluster(inference.ray_address))
            engine = ray = stack.enter_context(ClusterEngine(config.cache_dir, progress.say))
            ray.prepare(config.candidates, inference.device)
        check_pool(
            config.candidates, inference.device, inference.chat_template, on_this_machine=inference.engine == "local"
        )
        # Opened last, so that a run that is refused writes nothing.
        cache = stack.enter_context(Store(config.cache_dir, progress.say))
        notes = (*config.dev.notes, *(config.held_out.notes if config.held_out is not None else ()))
        for note in dict.fromkeys(notes):
            progress.say(note)
        yield cache, engine
