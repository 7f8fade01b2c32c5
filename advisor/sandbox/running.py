"""The outer end of the sandbox: start a guard for one program, read its verdict, and make sure that it is gone."""

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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from advisor.sandbox import guard
from ensemble.errors import UniteError

_NOBODY = 65534
_GUARD = Path(guard.__file__)
_GRACE = 5.0  # seconds beyond the limit, after which the guard itself is given up
_HEARD_AT_MOST = 4096  # bytes; a verdict has a hundred
# Imports what few programs have loaded already: whoever the program is run as must be able to read the library.
_PROBE = "import decimal, heapq, itertools, math, re, pathlib\npathlib.Path('file').write_text('text')"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use.

    Attributes:
        seconds: From start to end.
        cpu_seconds: Of processor time, whole, of each of its processes.
        memory: Bytes of address space of each of its processes.
        processes: At a time, threads included.
        file_size: Bytes of each file.
        disk: Bytes of all files together, where there is a file system for them alone.
        open_files: At a time.
    """

    seconds: float = 30.0  # what computes ends sooner, with its processor time, on a busy machine too
    cpu_seconds: int = 5  # MBPP's own solution of task 123 takes 2.6 s of an AMD EPYC core
    memory: int = 1 << 30
    processes: int = 32
    file_size: int = 16 << 20
    disk: int = 64 << 20
    open_files: int = 64

    def rlimits(self) -> dict[str, int]:
        """By the names of the module ``resource``."""
        return {
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_AS": self.memory,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True, slots=True)
class Isolation:
    """How far a program is shut in, beyond its limits.

    Attributes:
        nobody: Whether it is run as the user nobody; only root can do that, and only root needs it.
        namespaces: Whether it has no network, and sees no other processes.
        read_only: Whether it can write nowhere but in its folder, which is in memory.
    """

    nobody: bool
    namespaces: bool
    read_only: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a program.

    Attributes:
        passed: Whether it and all its tests ran to the end.
        reason: Why not, in a few words; None where it passed. It may be the program's own invention.
    """

    passed: bool
    reason: str | None


_LIMITS = Limits()


def run(program: str, tests: Sequence[str], limits: Limits = _LIMITS) -> Verdict:
    """Run a program, then its tests in the same module.

    Args:
        program: Python; any text may be given.
        tests: Python, run one after the other; each must end without an exception.
        limits: What it may use.

    Raises:
        UniteError: No program can be run here at all.
    """
    return _run(program, tests, limits, isolation())


@cache
def isolation() -> Isolation:
    """The strictest isolation that works here, found by trying.

    Raises:
        UniteError: Not even the weakest works.
    """
    trouble = ""
    for kind in _kinds():
        try:
            if _run(_PROBE, (), _LIMITS, kind).passed:
                return kind
        except UniteError as error:
            trouble = str(error)
    raise UniteError(f"programs cannot be run here: {trouble or 'the interpreter fails'}; score MBPP on another system")


def gaps() -> tuple[str, ...]:
    """What this system does not let the sandbox do, a sentence each."""
    kind = isolation()
    found = []
    if not kind.namespaces:
        found.append("this system gives no namespaces, so the programs of models are run with network")
    if not kind.read_only:
        found.append("the programs of models can write wherever the user may, since file systems cannot be shut here")
    if os.getuid() == 0 and not kind.nobody:
        found.append(
            "the programs of models are run as root, which no limit on processes binds, because nobody may not read "
            f"{sys.prefix}"
        )
    return tuple(found)


def _kinds() -> Iterator[Isolation]:
    """From strict to weak. Losing the network comes before losing the user nobody."""
    users = (True, False) if os.getuid() == 0 else (False,)
    if sys.platform.startswith("linux"):
        yield from (Isolation(nobody, True, closed) for nobody in users for closed in (True, False))
    yield from (Isolation(nobody, False, False) for nobody in users)


def _run(program: str, tests: Sequence[str], limits: Limits, kind: Isolation) -> Verdict:
    nonce = secrets.token_hex(16)
    job = {
        "program": program,
        "tests": list(tests),
        "nonce": nonce,
        "seconds": limits.seconds,
        "disk": limits.disk,
        "limits": limits.rlimits(),
        "library": sorted({str(Path(prefix).resolve()) for prefix in (sys.base_prefix, sys.prefix, sys.exec_prefix)}),
        "nobody": kind.nobody,
        "namespaces": kind.namespaces,
        "read_only": kind.read_only,
    }
    with tempfile.TemporaryDirectory(prefix="unite-advisor-", ignore_cleanup_errors=True) as folder:
        if kind.nobody:
            os.chown(folder, _NOBODY, _NOBODY)
        said, status = _converse(json.dumps(job).encode(), folder, limits.seconds + _GRACE)
    ready, _, outcome = said.partition("\n")
    if ready != "ready":
        raise UniteError(f"the sandbox did not start: {ready.removeprefix('broken ') or f'exit status {status}'}")
    if outcome == f"passed {nonce}" and status == 0:
        return Verdict(True, None)
    return Verdict(False, _reason(outcome, status, limits))


def _converse(job: bytes, folder: str, patience: float) -> tuple[str, int | None]:
    """What the guard said, and its exit status, None where it had to be killed."""
    # Not -I, which would ignore the seed of hashes, and with it the order of sets would differ from run to run. What
    # else -I keeps out is kept out by the environment, -s, and the guard, which takes its folder off the path.
    command = [sys.executable, "-s", "-B", str(_GUARD)]
    deadline = time.monotonic() + patience
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=_environment(folder),
        start_new_session=True,
    ) as process:
        if process.stdin is None or process.stdout is None:  # cannot be: both are pipes
            raise UniteError("the sandbox has no pipes")
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(job)
                process.stdin.close()
            said = _heard(process.stdout, deadline)
            process.wait(max(0.0, deadline - time.monotonic()))
            return said, process.returncode
        except subprocess.TimeoutExpired:
            return said, None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _heard(pipe: IO[bytes], deadline: float) -> str:
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            piece = os.read(pipe.fileno(), _HEARD_AT_MOST)
            if not piece:
                break
            said = (said + piece)[
                :_HEARD_AT_MOST
            ]  # a flood is read, so that its source comes to its limits, and dropped
    return said.decode(errors="replace")


def _environment(folder: str) -> dict[str, str]:
    """Nothing of the user's own."""
    return {
        "PATH": os.defpath,
        "HOME": folder,
        "TMPDIR": folder,
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _reason(outcome: str, status: int | None, limits: Limits) -> str:
    if status is None or status == guard.TOO_LATE:
        return f"not done after {limits.seconds:g} s"
    if status == guard.KILLED:
        return f"killed; it may have used more than {limits.cpu_seconds} s of processor time"
    kind = outcome.removeprefix("failed ")
    return kind if kind.isidentifier() and outcome.startswith("failed ") else "ended before its tests did"
