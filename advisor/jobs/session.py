"""The cache and the engine of a run, opened after its models are checked."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from advisor.models.fit import check_candidates, check_libraries, check_pool, place_models
from advisor.models.loaded_models import JobRunner, LocalJobRunner, silence_libraries
from advisor.models.profiler import is_profiled
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.progress import Progress


def with_devices(config: RunConfig, progress: Progress) -> RunConfig:
    """The run with its candidates side by side on the GPUs, where the machine has several; see :mod:`placement`."""
    options = config.options
    if config.cluster.engine != "local":
        return config
    check_libraries(config.candidates, options.device)
    candidates, said = place_models(config.candidates, options.device, options.dtype)
    if said is not None:
        progress.say(said)
    return replace(config, candidates=candidates)


@contextmanager
def open_session(
    config: RunConfig, progress: Progress, sets: dict[str, int] | None = None
) -> Iterator[tuple[ResponseCache, JobRunner]]:
    """Check the models of a run, open its response cache and its engine, and say what its judges take.

    So many sets write texts on each split; None for those of the options.
    """
    options, is_local = config.options, config.cluster.engine == "local"
    # A candidate can be a judge, too.
    models = tuple(dict.fromkeys((*config.candidates, *config.judges)))
    silence_libraries(quiet=progress.quiet)
    with ExitStack() as stack:
        # What a local engine froze may be a caller's, who deletes it later.
        stack.callback(gc.unfreeze)
        engine: JobRunner = LocalJobRunner(config.cache_dir)
        if not is_local:
            from advisor.models.ray_runner import RayJobRunner, cluster

            # Opened first: its nodes say which resources there are.
            stack.enter_context(cluster(config.cluster.ray_address))
            engine = ray = RayJobRunner(config.cache_dir, progress.say)
            ray.check(models, options.device)
        check_pool(models, options.device, options.chat_template, on_this_machine=is_local)
        if is_local:
            together = config.held_out is not None
            for note in check_candidates(
                config.candidates,
                options.device,
                options.dtype,
                decode_together=together,
                is_stored=partial(is_profiled, config),
            ):
                progress.say(note)
            if any(not model.is_remote for model in models):
                import torch

                # The engine sets the number that each model needs.
                stack.callback(torch.set_num_threads, torch.get_num_threads())
        # Opened last, so that a run that is refused writes nothing.
        cache = stack.enter_context(ResponseCache(config.cache_dir, progress.say))
        # In evaluate, dev and held_out are often the same questions, with the same notes.
        notes = (*config.dev.notes, *(config.held_out.notes if config.held_out is not None else ()))
        for note in dict.fromkeys(notes):
            progress.say(note)
        if config.dev.rubric is not None:
            from advisor.jobs.dry_run import say_judging

            say_judging(config, config.dev.rubric, progress, sets)
        yield cache, engine
