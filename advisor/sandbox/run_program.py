"""The outer end of the sandbox: start a guard for one program, read its report, and make sure that the program ends."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from advisor.sandbox import guard
from ensemble.errors import InputError, UniteError

_GUARD = Path(guard.__file__)
# The resources of one program. Processor time ends a computation sooner than the wall clock, and does not depend on how
# busy the machine is.
SECONDS = 30.0
CPU_SECONDS = 5  # MBPP's own solution of task 123 takes 2.6 s of an AMD EPYC core
MEMORY = 1 << 30  # bytes of address space of each process
PROCESSES = 32  # running at a time, threads included
FILE_SIZE = 16 << 20  # bytes of each file
DISK = 64 << 20  # bytes of all files together, where the program has its own file system
OPEN_FILES = 64  # open at a time
_GRACE = 5.0  # seconds beyond the limit, after which the guard itself is killed
_MAX_REPORT = 4096  # bytes; a normal report has about a hundred
# The probe imports what few programs have loaded already: the user that runs it must be able to read the library.
_PROBE = "import decimal, heapq, itertools, math, re, pathlib\npathlib.Path('file').write_text('text')"


@dataclass(frozen=True, slots=True)
class Isolation:
    """How far a program is isolated, beyond its limits."""

    unprivileged: bool  # it runs as user 65534; only root can do that, and only root needs it
    # It has no network, and cannot see other processes, or outlive its run. Without them, the sandbox is weak.
    namespaces: bool
    read_only: bool  # it can write only in its folder, which is in memory


def run(program: str, tests: Sequence[str]) -> str | None:
    """Run a program, then its tests in the same module; return why it failed, None if all ran to the end."""
    return _run(program, tests, isolation())


@cache
def isolation() -> Isolation:
    """The strictest isolation that works here, by trying; a UniteError says that not even the weakest works."""
    problem = ""
    for kind in _kinds():
        try:
            if _run(_PROBE, (), kind) is None:
                return kind
        except UniteError as error:
            problem = str(error)
    raise UniteError(f"programs cannot run here: {problem or 'the interpreter fails'}; score MBPP on another system")


def gaps() -> tuple[str, ...]:
    """The protections that the sandbox lacks on this system, one sentence each."""
    kind = isolation()
    notes = []
    if not kind.namespaces and not kind.unprivileged:
        notes.append("the programs of models can read your environment variables and end your processes")
    if not kind.namespaces:
        notes.append(
            "this system has no namespaces, so the programs of models run with network, and may go on afterwards"
        )
    if not kind.read_only:
        notes.append("the programs of models can write wherever the user can, since this system cannot prevent it")
    if os.getuid() == 0 and not kind.unprivileged:
        notes.append(
            "the programs of models run as root without a limit on processes, because user 65534 cannot read "
            f"{sys.prefix}"
        )
    return tuple(notes)


def check_strong() -> None:
    """Check that a program has no network, ends with its run, and cannot reach this process."""
    if not isolation().namespaces:
        reach = (
            "read files that all users may read, send them over the network, and go on after the run"
            if isolation().unprivileged
            else "read your environment variables (API keys) and files, send them over the network, change your files, "
            "and end your processes"
        )
        raise InputError(
            f"this system has no namespaces for the sandbox: a program that a model wrote could {reach}; run the "
            "command in a virtual machine or where users may create namespaces, or set ADVISOR_WEAK_SANDBOX=1 to take "
            "that risk"
        )


def _kinds() -> Iterator[Isolation]:
    """From strict to weak. Namespaces are given up last, because they also hide processes and the network."""
    users = (True, False) if os.getuid() == 0 else (False,)
    if sys.platform.startswith("linux"):
        yield from (Isolation(unprivileged, True, closed) for unprivileged in users for closed in (True, False))
    yield from (Isolation(unprivileged, False, False) for unprivileged in users)


def _run(program: str, tests: Sequence[str], kind: Isolation) -> str | None:
    # Only the guard knows this number, so a program cannot report success just by printing or by ending early.
    nonce = secrets.token_hex(16)
    job = {
        "program": program,
        "tests": list(tests),
        "nonce": nonce,
        "seconds": SECONDS,
        "disk": DISK,
        "limits": {
            "RLIMIT_CPU": CPU_SECONDS,
            "RLIMIT_AS": MEMORY,
            "RLIMIT_NPROC": PROCESSES,
            "RLIMIT_FSIZE": FILE_SIZE,
            "RLIMIT_NOFILE": OPEN_FILES,
            "RLIMIT_CORE": 0,
        },
        "library": sorted({str(Path(prefix).resolve()) for prefix in (sys.base_prefix, sys.prefix, sys.exec_prefix)}),
        "unprivileged": kind.unprivileged,
        "namespaces": kind.namespaces,
        "read_only": kind.read_only,
    }
    with own_folder(unprivileged=kind.unprivileged) as folder:
        report, status = _start_guard(json.dumps(job).encode(), folder, SECONDS + _GRACE)
    ready, _, outcome = report.partition("\n")
    if ready != "ready":
        raise UniteError(f"the sandbox did not start: {ready.removeprefix('broken ') or f'exit status {status}'}")
    if outcome == f"passed {nonce}" and status == 0:
        return None
    return _reason(outcome, status)


def _start_guard(job: bytes, folder: str, timeout: float) -> tuple[str, int | None]:
    """The guard's report, and its exit status; the status is None if the guard had to be killed."""
    # Not -I, which would ignore the seed of hashes: the order of sets would differ from run to run. The environment, -s
    # and the guard, which takes its folder off the path, keep out the rest of what -I keeps out.
    command = [sys.executable, "-s", "-B", str(_GUARD)]
    deadline = time.monotonic() + timeout
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        # Without any variable of the user: those may hold passwords and paths.
        env={
            "PATH": os.defpath,
            "HOME": folder,
            "TMPDIR": folder,
            "LC_ALL": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        start_new_session=True,  # so that killpg below ends the guard and not this process
    ) as process:
        if process.stdin is None or process.stdout is None:  # cannot be: both are pipes
            raise UniteError("the sandbox has no pipes")
        try:
            # A guard that fails at once does not read its job; its exit status says why.
            with suppress(BrokenPipeError):
                process.stdin.write(job)
                process.stdin.close()
            report = _read_report(process.stdout, deadline)
            process.wait(max(0.0, deadline - time.monotonic()))
            return report, process.returncode
        except subprocess.TimeoutExpired:
            return report, None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _read_report(pipe: IO[bytes], deadline: float) -> str:
    report = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            piece = os.read(pipe.fileno(), _MAX_REPORT)
            if not piece:
                break
            # The rest of a flood is read and dropped: a program that waits for a reader would not reach its limits.
            report = (report + piece)[:_MAX_REPORT]
    return report.decode(errors="replace")


def _reason(outcome: str, status: int | None) -> str:
    if status is None or status == guard.TOO_LATE:
        return f"not done after {SECONDS:g} s"
    if status == guard.KILLED:
        return f"killed; it may have used more than {CPU_SECONDS} s of processor time"
    kind = outcome.removeprefix("failed ")
    # A program can name its exception as it likes; only a plain name is shown.
    return kind if kind.isidentifier() and outcome.startswith("failed ") else "ended before its tests did"


@contextmanager
def own_folder(*, unprivileged: bool) -> Iterator[str]:
    """A new folder that is removed at the end; `unprivileged`: it belongs to the user without rights."""
    folder = tempfile.mkdtemp(prefix="unite-advisor-")
    # Held open from the start: a program may put a link in the place of its folder.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if unprivileged:
            os.chown(folder, guard.UNPRIVILEGED, guard.UNPRIVILEGED)
        yield folder
    finally:
        with suppress(OSError):  # a program of the same user may have left a process that still writes, as on macOS
            os.fchmod(descriptor, 0o700)
            _empty(descriptor)
            os.rmdir(folder)  # noqa: PTH106  # the rest works with descriptors, and so does `os`
        os.close(descriptor)


def _empty(root: int) -> None:
    """Remove everything in a folder, which is given by its descriptor."""
    # Not shutil.rmtree: 3,000 nested folders end it, and their path is longer than the system accepts. Here each
    # folder's folders are moved up to the root first.
    # Random, since moving a folder onto another one fails, and the program may know any other name.
    prefix, moved = secrets.token_hex(8), 0
    folders = deque(_remove_files(root))
    while folders:
        name = folders.popleft()
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
        try:
            for inner in _remove_files(folder):
                moved += 1
                os.rename(inner, f"{prefix}-{moved}", src_dir_fd=folder, dst_dir_fd=root)
                folders.append(f"{prefix}-{moved}")
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=root)


def _remove_files(folder: int) -> list[str]:
    """Remove all but the folders, and make these accessible to their owner; the folders' names."""
    names = []
    with os.scandir(folder) as entries:
        for entry in list(entries):  # the list first: removing while reading may skip entries
            if entry.is_dir(follow_symlinks=False):
                # To be opened, to be emptied, and to be moved, which changes its entry `..`.
                os.chmod(entry.name, 0o700, dir_fd=folder)  # pathlib has no dir_fd
                names.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)  # as above
    return names
