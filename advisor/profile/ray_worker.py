"""A worker of a cluster: a process on one of its nodes, which holds the models of one job at a time."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from advisor.config import InferenceConfig
from advisor.pool.resources import devices
from advisor.profile.engine import Event, Job
from advisor.profile.generate import Here
from advisor.profile.loader import Decoding, FreshLoader, hush
from advisor.profile.local_engine import LocalEngine
from advisor.tasks.task import Example, Task
from ensemble.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Parcel:
    """A job as it is sent: all that decides the responses, and no more.

    The accepted answers stay behind. What scores the responses does too: it need not be something that can be sent.
    """

    name: str
    models: tuple[ModelSpec, ...]
    decoding: Decoding
    asked: Mapping[int, Example]
    task: Task
    inference: InferenceConfig
    cache_dir: Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker is."""

    node: str
    process: int


class Worker:
    """A Ray actor's class. It loads its libraries when it is started, which is before there is anything to do."""

    def __init__(self) -> None:
        # What libraries hold stays, so there is no garbage to look for among it, now or behind each model.
        gc.disable()
        for library in ("transformers.modeling_utils", "ensemble.api"):
            import_module(library)
        gc.freeze()
        gc.enable()

    def place(self) -> Place:
        """Where it is: it is there, and can be asked."""
        return Place(socket.gethostname(), os.getpid())

    def work(self, parcel: Parcel) -> Iterator[Event]:
        """Do a job, as the engine of one process does it."""
        hush(quiet=True)
        load = partial(FreshLoader(parcel.cache_dir), parcel.models, parcel.decoding)
        here = Here(parcel.name, load)
        job = Job(parcel.name, here, parcel.models, (), parcel.decoding, parcel.asked, parcel.task, parcel.inference)
        yield from LocalEngine().run([job])


def pack(job: Job, asked: Mapping[int, Example], cache_dir: Path) -> Parcel:
    """A job as it is sent, with the questions that are left of it, and no path that hangs on where it is read."""
    bare = {number: replace(example, question="", reference="") for number, example in asked.items()}
    task = replace(job.task, examples=(), scorer=None, prefix="", notes=())
    models = tuple(
        replace(model, checkpoint=model.checkpoint.absolute, device=to)
        for model, to in zip(job.models, devices(job.needs), strict=True)
    )
    return Parcel(job.name, models, job.decoding, bare, task, job.inference, cache_dir.absolute())
