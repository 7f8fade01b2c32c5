"""The readers of untrusted input, each with files to change, run in child processes with limits.

An input passes if it gives a result or a :class:`UniteError` within 5 s and 1 GiB, and creates no file outside its
folder and no connection. Every other exception is a fault of this project.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import _fuzz_readers as readers
from benchmarks._fuzz_changes import mutated_bytes, mutated_json, mutated_lines, mutated_words
from ensemble.errors import UniteError

ROOT = Path(__file__).resolve().parents[1]
SEEDS = ROOT / "tests" / "fuzz" / "seeds"
CASES = ROOT / "tests" / "fuzz" / "cases"
SECONDS = 5.0  # of processor time, which other programs on the machine do not change
_HANG_SECONDS = 60.0  # until an input that uses no processor is taken for one that hangs
_MEMORY = 2**30
_BATCH = 200  # inputs of a child process, so that what a library keeps in memory does not add up
_PACKAGES = tuple(str(ROOT / name) for name in ("advisor", "ensemble", "reports"))
Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of untrusted input.

    Attributes:
        seeds: Real inputs, which are changed.
        mutate: Changes one of them.
        read: Reads an input in a folder of its own.
        cost: About how many of the fastest kind's inputs take as long as one of these.
    """

    seeds: tuple[bytes, ...]
    mutate: Mutate
    read: Callable[[Path, bytes], None]
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that did not pass.

    Attributes:
        kind: Name of its kind.
        data: The input.
        reason: The exception and where it was raised, or which limit was passed.
    """

    kind: str
    data: bytes
    reason: str


def kinds() -> dict[str, Kind]:
    """All kinds, by name."""
    demo = ROOT / "advisor" / "demo"
    model = demo / "models" / "terse-llama"
    saved = {path.name: path.read_bytes() for path in SEEDS.iterdir()}
    # Most built-in tasks need data of the hub, so a change of them seldom comes far.
    tasks = [(ROOT / "advisor" / "tasks" / "builtin" / f"{name}.yaml").read_bytes() for name in ("mmlu", "flores")]
    demo_task = (demo / "word_problems.yaml").read_bytes().replace(b"../demo/data/", b"")
    return {
        "result": Kind((saved["result.json"],), mutated_json, readers.read_result_json, 8),
        "report": Kind((saved["result.json"],), mutated_json, readers.read_report, 30),
        "samples": Kind((saved["samples.jsonl"],), mutated_lines, readers.read_samples_jsonl, 2),
        "evaluation": Kind((saved["evaluation.json"],), mutated_json, readers.read_evaluation_json, 2),
        "store": Kind((readers.STORED,), mutated_json, readers.read_store, 1),
        "numbers": Kind((readers.NUMBERS,), mutated_json, readers.read_numbers, 1),
        "logs": Kind(readers.LOGS, mutated_lines, readers.read_logs, 1),
        "pool": Kind((readers.POOL, (demo / "pool.txt").read_bytes()), mutated_words, readers.read_pool_file, 1),
        "task": Kind((*[readers.TASK] * 5, *[demo_task] * 3, *tasks), mutated_words, readers.read_task_file, 2),
        "ensemble": Kind((saved["ensemble.json"],), mutated_json, readers.read_ensemble_json, 2),
        "config": Kind(((model / "config.json").read_bytes(),), mutated_json, readers.read_config, 10),
        "tokenizer": Kind(((model / "tokenizer.json").read_bytes(),), mutated_json, readers.read_tokenizer, 20),
        "safetensors": Kind((readers.header_of(model),), mutated_json, readers.read_safetensors, 10),
        "gguf": Kind((readers.gguf_header(),), mutated_bytes, readers.read_gguf, 4),
        "request": Kind(readers.REQUESTS, mutated_json, readers.read_request, 2),
        "reply": Kind(readers.REPLIES, mutated_json, readers.read_reply, 2),
    }


def inputs(kind: Kind, name: str, seed: int, count: int) -> list[bytes]:
    """Changed inputs; the same for the same seed."""
    made = []
    for n in range(count):
        chance = random.Random(f"{seed} {name} {n}")
        made.append(kind.mutate(chance.choice(kind.seeds), chance))
    return made


def cases() -> Iterator[tuple[str, Path]]:
    """The kept inputs that once failed: the kind's name and the file."""
    for path in sorted(CASES.glob("*/*")):
        yield path.parent.name, path


def run(name: str, kind: Kind, given: Sequence[bytes]) -> tuple[dict[str, int], list[Failure]]:
    """Read inputs in child processes.

    Returns:
        How many were accepted, refused, ended in another exception (``tracebacks``), wrote outside their folder
        (``outside``) and passed a limit (``slow``); and those that did not pass.
    """
    counts = dict.fromkeys(("inputs", "accepted", "refused", "tracebacks", "outside", "slow"), 0)
    failures = []
    done = 0
    while done < len(given):
        for outcome, reason in _batch(kind, given[done : done + _BATCH]):
            counts["inputs"] += 1
            counts[outcome] += 1
            if outcome not in ("accepted", "refused"):
                failures.append(Failure(name, given[done], reason))
            done += 1
    return counts, failures


def _batch(kind: Kind, given: Sequence[bytes]) -> list[tuple[str, str]]:
    """The outcomes of inputs in one child process, as far as it comes; at least one."""
    receive, send = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            os.close(receive)
            _serve(kind, given, Path(folder).resolve(), send)
        os.close(send)
        try:
            lines, hangs = _lines(receive, len(given))
        finally:
            os.close(receive)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
    hangs = hangs or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
    outcomes = [(outcome, reason) for outcome, reason in map(json.loads, lines)]
    if len(outcomes) < len(given):
        outcomes.append(("slow", "it does not end") if hangs else ("tracebacks", "it ends the process"))
    return outcomes


def _lines(pipe: int, count: int) -> tuple[list[bytes], bool]:
    """Lines from a child, until it ends, and whether it hangs."""
    data = b""
    while data.count(b"\n") < count:
        if not select.select([pipe], [], [], _HANG_SECONDS)[0]:
            return data.split(b"\n")[:-1], True
        part = os.read(pipe, 2**16)
        if not part:
            break
        data += part
    return data.split(b"\n")[:-1], False


def _serve(kind: Kind, given: Sequence[bytes], folder: Path, send: int) -> NoReturn:
    """The child: read inputs, and write an outcome for each."""
    # What is read may print, and must not write bytecode beside the sources.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    sys.dont_write_bytecode = True
    tempfile.tempdir = str(folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    outside: list[str] = []
    try:
        if kind.cost > 1:
            _outcome(kind, kind.seeds[0], folder, 0)  # libraries load their parts at the first use, and write caches
        _limit_memory()
        sys.addaudithook(_watch(folder, outside))
        for n, data in enumerate(given, start=1):
            outside.clear()
            start = time.process_time()
            _limit_time(start)
            outcome, reason = _outcome(kind, data, folder, n)
            if outside:
                outcome, reason = "outside", outside[0]
            elif time.process_time() - start > SECONDS:
                outcome, reason = "slow", f"it takes more than {SECONDS:g} s"
            os.write(send, json.dumps([outcome, reason]).encode() + b"\n")
    finally:
        os._exit(0)


def _outcome(kind: Kind, data: bytes, folder: Path, n: int) -> tuple[str, str]:
    try:
        _read(kind, data, folder, n)
    except UniteError:
        return "refused", ""
    except BaseException as error:  # noqa: BLE001  # Rust code raises exceptions that are not derived from Exception
        return "tracebacks", f"{type(error).__name__} in {_place(error)}"
    return "accepted", ""


def _read(kind: Kind, data: bytes, folder: Path, n: int) -> None:
    own = folder / str(n)
    own.mkdir()
    os.chdir(own)
    try:
        kind.read(own, data)
    finally:
        os.chdir(folder)
        shutil.rmtree(own, ignore_errors=True)


def _place(error: BaseException) -> str:
    """The innermost line of this project, without its number, which changes with every edit."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_PACKAGES)]
    return f"{Path(frames[-1].filename).relative_to(ROOT).as_posix()}:{frames[-1].name}" if frames else "a library"


def _limit_memory() -> None:
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time(used: float) -> None:
    import resource

    # The system ends a process that uses more: code of C and Rust cannot be stopped from within.
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used + SECONDS) + 1, hard))


def _watch(folder: Path, outside: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that notes what is created or removed outside of a folder, and connections."""
    # Where the path stands among the event's arguments.
    changes: Mapping[str, tuple[int, ...]] = {
        **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate"), (0,)),
        **dict.fromkeys(("os.rename", "os.link", "os.symlink"), (1,)),
    }
    allowed = (str(folder), os.devnull, "/proc/self", "/dev/shm")  # torch's shared memory

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                note(path)
        elif event in changes:
            note(arguments[changes[event][0]])
        elif event == "socket.connect":
            outside.append("it makes a connection")

    def note(path: object) -> None:
        text = os.path.realpath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else ""
        if text and not text.startswith(allowed):
            outside.append("it writes outside its folder")

    return hook
