"""A config with only candidates and questions, and a profile of one model, for measurements below the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.models.job import Job
from advisor.models.loaded_models import LocalJobRunner
from advisor.models.local_model import LocalModel
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.options.new_run import SelectOptions
from advisor.progress import Progress
from advisor.records import Profile
from advisor.tasks import Task
from ensemble.common.files import default_cache_dir
from ensemble.errors import MemberError
from ensemble.models.spec import EnsembleSpec, ModelSpec

if TYPE_CHECKING:
    from ensemble import Ensemble


def plain_plan(
    candidates: tuple[ModelSpec, ...],
    dev: Task,
    cache_dir: Path,
    command: str,
    options: SelectOptions = SelectOptions(),
) -> RunConfig:
    """A plan without a held-out split; everything that is not given is as a run without options has it."""
    return RunConfig(
        options=options,
        candidates=candidates,
        dev=dev,
        held_out=None,
        cache_dir=cache_dir,
        command=command,
    )


def profile(
    name: str, key: Mapping[str, Any], load: Callable[[], Ensemble], task: Task, cache: ResponseCache
) -> Profile:
    """The profile of a model, as the engine of this process makes it.

    Args:
        name: The name of the profile.
        key: What determines the responses besides the questions.
        load: Loads the model.
        task: The questions.
        cache: The response cache.

    Raises:
        MemberError: The model failed.
    """
    connect = partial(LocalModel, name, load)
    spec = EnsembleSpec(())  # so that the engine measures and frees memory, as it does for every local model
    job = Job(name, task, task.settings, connect, key=key, cache=cache, progress=Progress(quiet=True), spec=spec)
    [finished] = LocalJobRunner(default_cache_dir()).run([job])
    if isinstance(finished.result, MemberError):
        raise finished.result
    return finished.result
