"""The models of this process and the runner of jobs on them: a model is loaded when needed, and stays while it fits."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import wait
from contextlib import aclosing, closing, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from advisor.models.ask import without_waiting
from advisor.models.fit import free_on, need_of_model
from advisor.models.job import Job
from advisor.models.local_model import free_memory, peak_memory, reset_peak_memory
from advisor.models.response_cache import Response
from ensemble.common.background import in_background
from ensemble.common.extras import is_installed
from ensemble.common.garbage import collect_as_usual, keep_present
from ensemble.errors import MemberError
from ensemble.models.model_files import stored_weights
from ensemble.models.spec import THINK, EnsembleSpec, ModelSpec, resolve_device

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.models.member import Member
    from ensemble.models.memory import MemoryNeed


_ENDING_SECONDS = 5.0
"""How long the end of a run waits for its requests."""
WHILE_LOADING = 2
"""A model may be in memory this often for a moment while it is loaded: as its files have it, and as it computes."""
ROWS, TOKENS = 8, 2048
"""A batch that has room beside the models that stay. Larger batches make room when they are planned."""


class LoadedModels:
    """Models in this process, for one ensemble after the other; some leave where memory is short."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._members: dict[ModelSpec, Member] = {}  # by what decides what is loaded; see :attr:`ModelSpec.loaded`
        self._in_use: tuple[ModelSpec, ...] = ()
        # Libraries are imported by one thread.
        self._lock = threading.Lock()
        self.seconds: dict[str, list[float]] = {}  # of each load of a model of this process, by its name
        self.threads: dict[str, int] = {}  # the number that was measured for a model, by its name
        self._most_threads = 0

    def ensemble(self, spec: EnsembleSpec) -> Ensemble:
        """An ensemble; see :func:`advisor.models.loaded_models.ensemble_of`. Only missing members are loaded."""
        check_spec(spec)
        with self._lock:
            if not all(model.is_remote for model in spec.members):
                self._in_use = tuple(model.loaded for model in spec.members)
            # A server that is not there is found at once, and loading takes minutes.
            for model in sorted(spec.members, key=lambda model: not model.is_remote):
                if model.loaded not in self._members:
                    self._load(model)
            members = [self._members[model.loaded] for model in spec.members]
            # Of a set, the member that needs the most threads takes the most time.
            if counts := [self.threads[member.name] for member in members if member.name in self.threads]:
                import torch

                torch.set_num_threads(max(counts))
            named = [member.of_line(model) for member, model in zip(members, spec.members, strict=True)]
            ensemble = ensemble_of(named, spec, self._cache_dir)
            while (ensemble.most_rows(TOKENS) or ROWS) < ROWS and self._make_room():
                pass
            return ensemble

    def make_room(self) -> bool:
        """Free a model that the latest ensemble does not use, on one of its devices; return whether it could."""
        with self._lock:
            return self._make_room()

    def idle_bytes(self) -> int:
        """Bytes of the weights that the latest ensemble does not use."""
        with self._lock:
            idle = self._idle(*self._members)
            return sum(self._members[model].local.model.get_memory_footprint() for model in idle)

    def _load(self, model: ModelSpec) -> None:
        if self._idle(model):
            need = need_of_model(model)
            while not _fits(need, model) and self._make_room(model):
                pass
        start = time.perf_counter()
        [member] = load_models([model])
        self._members[model.loaded] = member
        if not model.is_remote:
            self.seconds.setdefault(model.name, []).append(time.perf_counter() - start)
            if model.name not in self.threads and _device(model)[0] == "cpu":
                import torch

                from ensemble.models.member import fastest_threads

                # Later, the number is that of the latest ensemble.
                self._most_threads = self._most_threads or torch.get_num_threads()
                self.threads[model.name] = fastest_threads(member.local, self._most_threads)

    def _make_room(self, *beside: ModelSpec) -> bool:
        idle = self._idle(*(beside or self._in_use))
        if idle:
            # The one that takes the least time to load again.
            del self._members[min(idle, key=lambda model: self.seconds[self._members[model].name][-1])]
            free_memory()
        return bool(idle)

    def _idle(self, *beside: ModelSpec) -> list[ModelSpec]:
        """The models that the latest ensemble does not use, on the devices of ``beside``."""
        devices = {_device(model) for model in beside if not model.is_remote}
        here = [model for model in self._members if not model.is_remote and model not in self._in_use]
        return [model for model in here if _device(model) in devices]


def _fits(need: MemoryNeed | None, model: ModelSpec) -> bool:
    """Whether a model can be loaded now; where that is not known, it gets all memory."""
    free = free_on(model.device or "auto")
    return need is not None and free is not None and WHILE_LOADING * need.weights <= free


def _device(model: ModelSpec) -> tuple[str, int]:
    import torch

    device = torch.device(resolve_device(model.device or "auto"))
    return device.type, device.index or 0


ALONE = "average"
"""The method of a single model: it gives the whole vocabulary's probabilities, which draws and requests need."""


def load_ensemble(spec: EnsembleSpec, cache_dir: Path) -> Ensemble:
    """Load models as an ensemble; see :func:`ensemble_of`."""
    check_spec(spec)
    return ensemble_of(load_models(spec.members), spec, cache_dir)


def check_spec(spec: EnsembleSpec) -> None:
    """Make sure that a spec's method can combine its members, before anything is loaded."""
    from ensemble.methods import check_members

    if len(spec.members) > 1 or spec.method == "average":
        check_members(spec.method, spec.members)


def load_models(models: Sequence[ModelSpec]) -> Sequence[Member]:
    """Load models without their libraries' messages."""
    # A strategy of servers alone needs no library that loads models.
    if not models:
        return ()
    from ensemble.models.load import load_members

    if any(not model.is_remote and model.weights.gguf for model in models):
        import transformers.modeling_gguf_pytorch_utils as gguf
        from transformers.utils import logging

        # The GGUF reader uses tqdm itself, so it ignores transformers' switch for progress bars. Their wrapper obeys.
        vars(gguf)["tqdm"] = logging.tqdm
    return load_members(models)


def ensemble_of(members: Sequence[Member], spec: EnsembleSpec, cache_dir: Path) -> Ensemble:
    """Loaded models as an ensemble. A single model decodes exactly as it does without one, whatever the method."""
    from ensemble.api import Ensemble

    tables = cache_dir / "tables"
    # Greedy decoding of a single model needs only its likeliest token. Sampling and likelihoods need the whole
    # vocabulary, which the method "average" reads.
    if len(members) == 1 and spec.method != "average":
        think = {THINK: spec.options[THINK]} if THINK in spec.options else {}
        return Ensemble(members, k=1, cache_dir=tables, **think)
    options = dict(spec.options) if spec.weights is None else {**spec.options, "weights": spec.weights}
    return Ensemble(members, method=spec.method, k=spec.k, cache_dir=tables, **options)


def silence_libraries(*, quiet: bool = False) -> None:
    """Hide the libraries' own progress bars and warnings; if `quiet`, those of downloads, too."""
    if not is_installed("torch"):
        return
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    # A bar for every file of weights would break into the run's own bars. This hides the bars of downloads, too.
    logging.disable_progress_bar()
    enable_progress_bars()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # huggingface_hub types nearly all
    if quiet:
        disable_progress_bars()


class JobRunner(Protocol):
    """Runs jobs, in this process or on a cluster."""

    models: LoadedModels

    def run(self, jobs: Iterable[Job]) -> Generator[Job, None, None]:
        """Run jobs, one after the other or at the same time, and yield each when it is finished."""
        ...


class LocalJobRunner:
    """Runs jobs in this process: those of servers at the same time, then one after the other those of models here."""

    def __init__(self, cache_dir: Path) -> None:
        self.models = LoadedModels(cache_dir)
        self._froze = False

    def run(self, jobs: Iterable[Job]) -> Generator[Job, None, None]:
        """See :meth:`JobRunner.run`."""
        local: list[Job] = []
        servers: list[Job] = []
        for job in jobs:
            # Stored responses need no server.
            (servers if job.server and job.questions else local).append(job)
        if servers:
            collect_as_usual()
            yield from run_at_once(servers)
        for job in local:
            # Before its bar begins, beside which no bar of a download is shown.
            for model in job.spec.members if job.spec is not None and job.questions else ():
                if not (model.is_remote or model.weights.is_local):
                    stored_weights(model.name, model.weights)
            job.start()
            error = None
            if job.questions:
                self._freeze_libraries()
                reset_peak_memory()
                try:
                    with closing(without_waiting(job.responses())) as found:
                        for number, response in found:
                            job.add(number, response)
                    if (peak := peak_memory()) is not None:
                        job.peak_memory = max(peak - self.models.idle_bytes(), 1)
                except MemberError as failure:
                    error = MemberError(failure.reason, of=failure.of)
                # After the handler, no traceback refers to the models any more.
                free_memory()
            job.finish(error)
            yield job

    def _freeze_libraries(self) -> None:
        """Exclude all objects from before the first model from garbage collection, until the session ends."""
        if not self._froze:
            # Hundreds of thousands of objects of these libraries would be visited after each model.
            import_module("transformers.modeling_utils")
            keep_present()
            self._froze = True


def run_at_once(jobs: Sequence[Job]) -> Generator[Job, None, None]:
    """Run jobs whose models are elsewhere at the same time, and those of one server one after the other."""
    # Models behind one address often share its machine, and its limits.
    arrived: queue.SimpleQueue[tuple[Job, int, Response] | tuple[Job, None, Exception | None]] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()

    async def ask(job: Job, address: asyncio.Lock) -> None:
        failure = None
        async with address:
            try:
                async with aclosing(job.responses()) as found:
                    async for number, response in found:
                        arrived.put((job, number, response))
            except Exception as error:  # noqa: BLE001  # raised again in the thread that waits
                failure = error
        arrived.put((job, None, failure))

    async def ask_all() -> None:
        addresses = {job.server or job.name: asyncio.Lock() for job in jobs}
        await asyncio.gather(*(ask(job, addresses[job.server or job.name]) for job in jobs))

    for job in jobs:
        job.start()
    # In another thread: this one has the cache, and perhaps a running loop, as in a notebook.
    task = loop.create_task(ask_all())

    def run_until_cancelled() -> None:
        with closing(loop), suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    end = in_background(run_until_cancelled, "requests of jobs")
    try:
        for _ in jobs:
            while isinstance((event := arrived.get())[2], Response):
                event[0].add(event[1], event[2])
            job, _, failure = event
            if failure is not None and not isinstance(failure, MemberError):
                raise failure
            job.finish(failure)
            yield job
    finally:
        # At Ctrl-C: requests end with their jobs, and what has arrived is kept.
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(task.cancel)
        wait([end], _ENDING_SECONDS)
        with suppress(queue.Empty):
            while True:
                job, number, response = arrived.get_nowait()
                if number is not None and isinstance(response, Response):
                    job.add(number, response)
