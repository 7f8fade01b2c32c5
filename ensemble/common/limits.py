"""Functions on untrusted input, in a child process with limits of time and memory."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ensemble.errors import InputError, UniteError, first_line

SECONDS = 5.0
"""The limit of one call, in seconds of processor time."""
PATIENCE = 10
"""How many times as long a call may last by the clock: on a busy machine it may wait for a processor."""
MEMORY = 2**30
"""The memory limit of the child process, in bytes."""
_TIME_SIGNAL = int(getattr(signal, "SIGPROF", 0))  # Windows has no such signal, and no such limit
_START_SECONDS = 60.0
"""A busy machine may take long to start a process; this is no time of the untrusted input."""
_FITS_IN_PIPE = 2**12
_CHILD = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from ensemble.common.limits import _serve; _serve()"
_ROOT = Path(__file__).parents[2]


class LimitExceededError(InputError):
    """The input took too much time or memory, or ended the process that read it."""


class LimitedProcess:
    """A child process that calls functions on untrusted input, which must not import torch or transformers."""

    def __init__(self, memory: int = MEMORY, imports: Sequence[str] = ()) -> None:
        self._memory = memory
        self._imports = imports
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def call(self, function: str, *arguments: Any, seconds: float = SECONDS) -> Any:
        """Call ``module:name`` with JSON values; InputError if it raises an error, LimitExceededError at a limit.

        Args:
            function: The name.
            arguments: The values.
            seconds: Of processor time; by the clock it may take :data:`PATIENCE` times as long.
        """
        # Answers have no number, so a second call must wait for the first one's answer.
        with self._lock:
            process = self._started()
            line = json.dumps([seconds, function, *arguments]).encode() + b"\n"
            try:
                answer = self._exchange(process, line, seconds)
            # An answer that comes too late would be taken for the next call's.
            except BaseException:
                self.close()
                raise
        if "error" in answer:
            raise (LimitExceededError if answer.get("memory") else InputError)(answer["error"])
        return answer["result"]

    def interrupt(self) -> None:
        """End the running call from another thread: it raises LimitExceededError."""
        # The call itself closes the pipes, which must not happen while it reads them.
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the child process."""
        process, self._process = self._process, None
        if process is not None:
            # Not terminate(): the code in the child may be inside of a library that handles no signals.
            process.kill()
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            # It was interrupted just after it had answered.
            self.close()
        if self._process is None:
            # The variables that a library needs to run, and no secrets: the child reads untrusted input.
            kept = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")
            environment = {name: os.environ[name] for name in kept if name in os.environ}
            environment["TOKENIZERS_PARALLELISM"] = "false"
            arguments = [json.dumps(_import_path()), str(self._memory), *self._imports]
            self._process = subprocess.Popen(
                # Isolated: without -I, Python would look into the working folder first, where anyone's files may be.
                [sys.executable, "-I", "-X", "utf8", "-c", _CHILD, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the parent alone, which ends the child
            )
            # Not select(), which knows no pipes on Windows.
            self._lines = queue.SimpleQueue()
            lines = (self._process.stdout, self._memory // 4, self._lines)
            threading.Thread(target=_read_lines, args=lines, daemon=True).start()
            if b"ready" not in (self._next_line(_START_SECONDS) or b""):
                self.close()
                raise UniteError("the process that checks untrusted input cannot be started; is Python complete?")
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], line: bytes, seconds: float) -> dict[str, Any]:
        pipe = process.stdin
        if pipe is None:
            raise LimitExceededError("the process that checks untrusted input has ended")
        # A large argument fills the pipe before the child reads it, so a thread writes while this one waits. A small
        # one fits, since the child has read everything before; thousands of calls would notice a thread for each.
        if len(line) <= _FITS_IN_PIPE:
            _write(pipe, line)
        else:
            threading.Thread(target=_write, args=(pipe, line), daemon=True).start()
        if (data := self._next_line(PATIENCE * seconds)) is None:
            raise LimitExceededError(f"it takes more than {PATIENCE * seconds:g} s")
        if not data.endswith(b"\n"):
            # An answer that is too long leaves the process alive.
            if not data and _TIME_SIGNAL and process.wait() == -_TIME_SIGNAL:
                raise LimitExceededError(f"it takes more than {seconds:g} s")
            if len(data) >= self._memory // 4:
                raise LimitExceededError("the answer is too long")
            raise LimitExceededError(f"it takes more than {self._memory / 2**30:g} GiB of memory, or ends the process")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _next_line(self, seconds: float) -> bytes | None:
        """A line from the child, only its beginning if it is too long or the child has ended; None after that time."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return None


@cache
def limited_process(memory: int = MEMORY) -> LimitedProcess:
    """The child process of this program with this memory limit in bytes; it ends with the program."""
    process = LimitedProcess(memory)
    atexit.register(process.close)
    return process


def _import_path() -> list[str]:
    """The child's import path: this process's without the working folder, then the folder of this package."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        here = None
    folders = [folder for folder in sys.path if folder and Path(folder).resolve() != here]
    # Last, since this may be the working folder of a developer.
    return [*folders, str(_ROOT)]


def _read_lines(pipe: Any, longest: int, lines: queue.SimpleQueue[bytes]) -> None:
    """Pass on the lines of a child, then an empty one at its end."""
    with pipe:
        while data := pipe.readline(longest):
            lines.put(data)
    lines.put(b"")


def _write(pipe: Any, line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # the child has ended; the reader reports it
        pipe.write(line)
        pipe.flush()


def _serve() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        # Set here and not by Popen's preexec_fn, which is not safe in a program with threads.
        memory = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        # An abort would write the child's memory to the user's folder.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What a library prints must not be taken for a result.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for module in sys.argv[3:]:
        importlib.import_module(module)
    output.write(b"ready\n")
    output.flush()
    for line in sys.stdin.buffer:
        output.write(json.dumps(_answer(line)).encode() + b"\n")
        output.flush()


def _answer(line: bytes) -> dict[str, Any]:
    try:
        seconds, name, *arguments = json.loads(line)
        module, _, function = name.partition(":")
        with _processor_time(seconds):
            return {"result": getattr(importlib.import_module(module), function)(*arguments)}
    except MemoryError:
        return {"error": "it takes too much memory", "memory": True}
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except BaseException as error:  # noqa: BLE001  # Rust code raises exceptions that are not derived from Exception
        return {"error": first_line(error)[:500]}


@contextlib.contextmanager
def _processor_time(seconds: float) -> Iterator[None]:
    """End this process, also inside of a library, when it has taken so much processor time."""
    if not _TIME_SIGNAL:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
