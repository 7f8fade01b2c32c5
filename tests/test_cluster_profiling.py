"""Profiling on a real Ray cluster: the same results as in one process, whoever dies, or one line of why not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pools import Place

from advisor.models.fit import combined, devices, resources_of
from advisor.models.job import Job
from advisor.models.loaded_models import LocalJobRunner, load_ensemble
from advisor.models.local_model import LocalModel
from advisor.models.pool_file import read_line
from advisor.models.ray_runner import RayJobRunner, cluster
from advisor.models.response_cache import Response
from advisor.progress import Progress
from advisor.records import Profile
from advisor.tasks import Task, load_task
from ensemble.errors import InputError, MemberError
from ensemble.models.spec import Checkpoint, EnsembleSpec, ModelSpec, Resources

pytest_plugins = ["pools"]
# Not imported here: what makes it quiet is read when it is imported.
pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up as Linux lists them"),
]

ADVISOR = [sys.executable, "-c", "from advisor.cli import main; main()"]
PROFILE = ("profile", "--pool", "models.txt", "--task", "task.yaml")
"""What another run measures anew."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of this machine, which this process has joined."""
    with cluster("local"):
        import ray

        yield ray.get_runtime_context().gcs_address


class Watched(Job):
    """A job that calls functions when it starts and after each response, which it counts."""

    added = 0
    on_start: Callable[[], None] = staticmethod(lambda: None)
    on_response: Callable[[], None] = staticmethod(lambda: None)

    def start(self) -> None:
        super().start()
        self.on_start()

    def add(self, number: int, response: Response) -> None:
        super().add(number, response)
        self.added += 1
        self.on_response()

    @property
    def texts(self) -> list[str]:
        """Its responses, none of which it got twice."""
        assert isinstance(self.result, Profile), self.result
        assert self.added == len(self.result.answers)
        return [answer.text for answer in self.result.answers]


def workers(process: int | None = None) -> set[int]:
    """The processes that do the jobs of the joined cluster, which are descendants of this process."""
    return {each for each in every_process(b"ray::answer_prompts") if _descends(each, process or os.getpid())}


def _descends(process: int, ancestor: int) -> bool:
    try:
        while process not in (0, 1, ancestor):
            process = int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
    except OSError:
        return False  # it has just ended
    return process == ancestor


def kill(processes: set[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What a condition comes to, as soon as it is something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.05)
    return found


def job_of(
    models: Path,
    name: str,
    task: Task,
    cache: Path,
    batch_size: int | None = None,
    resources: Resources = Resources(),
) -> Watched:
    """A job whose responses are kept nowhere else."""
    spec = EnsembleSpec((ModelSpec(Checkpoint(str(models / name)), name, resources=resources),))
    connect = partial(LocalModel, name, partial(load_ensemble, spec, cache), batch_size)
    store: Any = SimpleNamespace(get=lambda _: {}, put=lambda *_: None, keep=lambda *_: None, value=lambda *_: None)
    progress = Progress(quiet=True)
    options = {"key": {}, "cache": store, "progress": progress, "spec": spec, "batch_size": batch_size}
    return Watched(name, task, task.settings, connect, **options)


def run_all(engine: RayJobRunner | LocalJobRunner, jobs: Sequence[Job]) -> None:
    assert {job.name for job in engine.run(jobs)} == {job.name for job in jobs}


@pytest.fixture
def many(place: Place) -> Task:
    """Questions that take a second or two, one at a time."""
    place.task([{"question": f"What is {n} + {n}?", "answer": "e"} for n in range(120)], max_new_tokens=24)
    return load_task("task.yaml")


ONE_AT_A_TIME = 1


def test_a_profile_on_a_cluster_is_the_same_and_prints_nothing_of_ray(place: Place, models: Path, address: str) -> None:
    place.job(models, "alpha", "beta")
    for split in ("dev", "held_out"):
        arguments = (*PROFILE, "--split", split, "--json", "--quiet")
        here = place.advisor(*arguments, "--cache-dir", "here-cache")
        # Workers are where the cluster was joined, and not in this folder.
        ray = ("--engine", "ray", "--ray-address", address, "--cache-dir", place.folder / "there-cache")
        there = place.advisor(*arguments, *ray)
        assert (here.status, there.status, there.err) == (0, 0, "")
        assert json.loads(there.out) == json.loads(here.out)


# --- A worker that dies ---


def test_a_worker_that_is_killed_is_started_again_and_asked_only_what_is_left(
    place: Place, models: Path, many: Task, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs, expected = (
        [job_of(models, name, many, place.cache, ONE_AT_A_TIME) for name in ("alpha", "gamma")] for _ in range(2)
    )
    messages: list[str] = []
    killed: set[int] = set()

    def kill_one() -> None:
        if not killed:
            killed.add(min(workers()))
            kill(killed)

    for job in jobs:
        job.on_response = kill_one
    run_all(RayJobRunner(place.cache, messages.append), jobs)
    assert killed
    assert capfd.readouterr() == ("", "")  # Ray has a lot to say of that
    [said] = messages
    assert "its worker on" in said and "died" in said and "questions that are left" in said
    run_all(LocalJobRunner(place.cache), expected)
    assert [job.texts for job in jobs] == [job.texts for job in expected]


def test_a_model_whose_workers_die_again_and_again_fails_alone_with_one_line(
    place: Place, models: Path, many: Task, address: str
) -> None:
    import ray

    # There is room for one at a time.
    alone = Resources(num_cpus=ray.cluster_resources()["CPU"])  # type: ignore[no-untyped-call]  # Ray types few
    first, second = (job_of(models, name, many, place.cache, resources=alone) for name in ("alpha", "gamma"))
    over = threading.Event()

    def kill_all() -> None:
        wait_for(workers)
        while not over.is_set():
            kill(workers())
            time.sleep(0.05)

    killer = threading.Thread(target=kill_all)
    first.on_start = killer.start
    for job in RayJobRunner(place.cache, lambda _: None).run([first, second]):
        if job is first:
            over.set()
            killer.join()
    error = first.result
    assert isinstance(error, MemberError) and str(error).startswith("alpha: its worker died")
    assert "and again after 2 restarts: the process ended; 0 responses are kept" in str(error)
    assert "\n" not in str(error)
    assert len(second.texts) == len(many.examples)


def test_a_worker_out_of_memory_is_one_line_that_says_so(place: Place, models: Path) -> None:
    place.task()
    place.pool(str(models / "alpha"))
    # Any node uses a thousandth of its memory, so that Ray ends its workers for that, as it does at 95% otherwise.
    scarce = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100", "RAY_ADDRESS": ""}
    profile = (*PROFILE, "--engine", "ray", "--quiet")
    done = subprocess.run(
        [*ADVISOR, *profile],
        env={**os.environ, "XDG_CACHE_HOME": str(place.cache), **scarce},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "alpha: its worker" in done.stderr and "its node ran out of memory; ask for more with" in done.stderr


# --- What cannot be, and what need not be said ---


def test_a_cluster_that_is_not_there_is_said_within_seconds(place: Place, models: Path) -> None:
    place.job(models)
    start = time.monotonic()
    there = "127.0.0.1:9"
    line = place.refused(*PROFILE, "--engine", "ray", "--ray-address", there)
    assert f"--ray-address {there}: no cluster answers at this address" in line
    assert time.monotonic() - start < 20


def test_something_else_than_a_cluster_is_told_from_one(place: Place, models: Path) -> None:
    place.job(models)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        line = place.refused(*PROFILE, "--engine", "ray", "--ray-address", f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert "this server is not a Ray cluster" in line


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001", "host:99999"])
def test_an_address_that_is_none_is_refused(place: Place, models: Path, address: str) -> None:
    place.job(models)
    assert "give host:port" in place.refused(*PROFILE, "--engine", "ray", "--ray-address", address)


def test_what_no_node_has_is_refused_with_the_line_that_asks_for_it(place: Place, models: Path, address: str) -> None:
    place.task()
    place.pool(str(models / "alpha"), f"{models / 'beta'} num_cpus=4096")
    line = place.refused(*PROFILE, "--engine", "ray")
    assert "models.txt:2: 4096 cores and 0 GPUs are requested, but no node of the cluster has as many" in line


@pytest.mark.parametrize(("gpus", "device"), [(1.0, "cpu"), (0.0, "cuda"), (None, "cuda:1")])
def test_a_device_that_is_not_the_one_given_is_refused(gpus: float | None, device: str) -> None:
    with pytest.raises(InputError, match=r"^models.txt:3: .*cuda"):
        resources_of(Resources(num_gpus=gpus), device, "models.txt:3")
    wanted = read_line("org/model num_cpus=8 num_gpus=0.5", "here").resources
    assert resources_of(wanted, "cuda", "here") == Resources(8, 0.5)
    assert [resources_of(Resources(), each, "here") for each in ("cpu", "cuda")] == [Resources(1, 0), Resources(1, 1)]


def test_a_set_has_a_gpu_for_each_of_its_members_and_their_cores_in_turns() -> None:
    needs = (Resources(2, 1), Resources(4, 0), Resources(1, 0.5), Resources(1, 0.5))
    assert combined(needs) == Resources(4, 2)
    assert devices(needs) == ["cuda:0", "cpu", "cuda:1", "cuda:1"]


def test_a_cluster_of_our_own_ends_with_ctrl_c(place: Place, models: Path, many: Task) -> None:
    place.pool(str(models / "alpha"))
    # What runs in the background, as tests may, begins with Ctrl-C ignored.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{heed}; {ADVISOR[-1]}", *PROFILE, "--engine", "ray", "--quiet"],
        env={**os.environ, "XDG_CACHE_HOME": str(place.cache), "RAY_ADDRESS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            wait_for(lambda: workers(running.pid) or running.poll() is not None, 120)
            started = {process for process in every_process() if _descends(process, running.pid)}
            # As a terminal does it: to all that belongs to the command.
            os.killpg(running.pid, signal.SIGINT)
            out, err = running.communicate(timeout=120)
        finally:
            running.kill()
    assert (running.returncode, out) == (130, "")
    assert err == "advisor: stopped; complete responses are cached, and the same command continues from there\n"
    assert len(started) > 4
    wait_for(lambda: not started & every_process(), 30)


def every_process(title: bytes = b"") -> set[int]:
    """The processes with titles that begin so, without those that have ended and are only not yet taken note of."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and (folder / "cmdline").read_bytes().startswith(title):
                state = (folder / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
                found |= {int(folder.name)} if state != "Z" else set()
        except OSError:
            continue  # it has just ended
    return found
