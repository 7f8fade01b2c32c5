"""64 clients at once against one after the other, asking a real server: ``python -m benchmarks.serving``.

The server is ``advisor serve`` in a process of its own, with models of the demo; the clients are connections of this
process that send the same requests, each on its own connection, which is kept. In every round all clients ask at once,
and then one after the other. What is not here: the network between machines, and what a client library takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from advisor.pool.pool_file import read_pool
from benchmarks._measure import Figure, arguments, progress, spread, tell
from benchmarks._models import QUESTIONS, demo_prompts
from ensemble.models.spec import Checkpoint

CLIENTS = 64
LIMIT = "at least 4"
SETS = {"": ("terse-neox", "terse-olmo", "terse-mistral"), "_long": ("stepwise-llama", "stepwise-llama")}
"""By the ending of the figures' names: the demo's set, and the only of its models that writes long answers, twice."""
KEYS = ("serving_speedup", "lost", "same_texts", "refused_over_limit")
"""What is always in the JSON object; null where it cannot be measured."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked.

    Attributes:
        prompts: One for each client.
        tokens: Of an answer at most.
        rounds: How often all of it is asked, after a first time that does not count.
    """

    prompts: Sequence[str]
    tokens: int
    rounds: int


class Client:
    """A connection that sends requests, and reads just as much of HTTP as this server speaks."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._host, self._port = str(place.hostname), place.port or 80
        self._pipes: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, prompt: str, tokens: int) -> tuple[int, str]:
        """The status and the text of the answer to a prompt; no text with any status but 200."""
        if self._pipes is None:
            self._pipes = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._pipes
        body = json.dumps({"model": "demo", "prompt": prompt, "max_tokens": tokens, "stop": ["\n"]}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        found: dict[str, Any] = json.loads(await reader.readexactly(length))
        status = int(lines[0].split(" ")[1])
        return status, found["choices"][0]["text"] if status == 200 else ""

    async def close(self) -> None:
        """Hang up."""
        if self._pipes is not None:
            self._pipes[1].close()
            await self._pipes[1].wait_closed()


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print it, keep it where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--pool", default="demo", help="a pool file to take the demo's models from")
    parser.add_argument("--batch-size", default="auto", help="the server's")
    options = parser.parse_args(given)
    pool = read_pool(options.pool) if QUESTIONS.is_file() else []
    there = {c.name: c.checkpoint.location for c in pool if isinstance(c.checkpoint, Checkpoint)}
    figures: list[Figure] = []
    for suffix, names in SETS.items():
        folders = [there.get(name, "") for name in names]
        if not all((Path(folder) / "config.json").is_file() for folder in folders):
            progress("benchmarks.serving: skipped, the demo's models are not there (python -m advisor.demo.train)")
            continue
        if suffix and options.quick:
            continue
        progress(f"benchmarks.serving: {' + '.join(names)}")
        with server(folders, options) as (process, url):
            clock = _clock(process.pid) if options.clock == "cpu" else time.perf_counter
            figures += asyncio.run(_measured(url, clock, options, suffix, " + ".join(names)))
    named = {figure.name for figure in figures}
    figures += [Figure(key, None, note="not measured here") for key in KEYS if key not in named]
    tell("serving", figures, options)
    return 0


@contextmanager
def server(folders: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of these models, which ends with the block, and its address."""
    limits = ["--port", "0", "--name", "demo", "--batch-size", options.batch_size, "--max-requests", str(CLIENTS)]
    # As the pool has it: the demo's weights are stored in half precision, in which processors are slow.
    limits += ["--dtype", "float32"]
    command = [sys.executable, "-c", _start(options.threads), "serve", *limits]
    for folder in folders:
        command += ["--models", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            if process.stdout is None or not (url := process.stdout.readline().strip()):
                raise RuntimeError(f"the server did not start: {' '.join(command)}")
            yield process, url
        finally:
            process.terminate()


def _start(threads: int | None) -> str:
    limit = "" if threads is None else f"import torch; torch.set_num_threads({threads}); "
    return f"{limit}from advisor.cli import main; main()"


def _clock(process: int) -> Callable[[], float]:
    """The processor time that a process has taken so far, in seconds; on Linux."""
    stat, ticks = Path(f"/proc/{process}/stat"), os.sysconf("SC_CLK_TCK")

    def now() -> float:
        # The second field, a name, may have spaces.
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    return now


async def _measured(
    url: str, clock: Callable[[], float], options: argparse.Namespace, suffix: str, note: str
) -> list[Figure]:
    clients, tokens = (8, 4) if options.quick else (CLIENTS, 64)
    work = Work(demo_prompts(clients), tokens, options.rounds or (1 if options.quick else 7))
    connections = [Client(url) for _ in range(CLIENTS + 1)]
    ratios, rates, alone_ms = [], [], []
    lost, same = 0, True
    for turn in range(work.rounds + 1):
        start = clock()
        together = await asyncio.gather(*(c.ask(p, tokens) for c, p in zip(connections, work.prompts, strict=False)))
        middle = clock()
        alone = [await c.ask(p, tokens) for c, p in zip(connections, work.prompts, strict=False)]
        end = clock()
        lost += sum(status != 200 for status, _ in (*together, *alone))
        same &= together == alone
        if turn:
            ratios.append((end - middle) / (middle - start))
            rates.append(clients / (middle - start))
            alone_ms.append(1000 * (end - middle) / clients)
    refused = await _over_the_limit(connections, work.prompts[0])
    for connection in connections:
        await connection.close()
    note = f"{note}, {clients} clients, batch of {options.batch_size}, {options.clock} clock"
    return [
        spread(f"serving_speedup{suffix}", ratios, limit=LIMIT, note=note),
        spread(f"requests_per_second{suffix}", rates, note=note),
        spread(f"alone_ms{suffix}", alone_ms, note=f"{note}; a request, one after the other"),
        Figure(f"lost{suffix}", lost, limit="0", note=f"of {2 * clients * (work.rounds + 1)} requests"),
        Figure(f"same_texts{suffix}", float(same), limit="1", note="together as alone"),
        Figure(f"refused_over_limit{suffix}", refused, limit="1", note=f"of {CLIENTS + 1} at once: 429"),
    ]


async def _over_the_limit(connections: Sequence[Client], prompt: str) -> int:
    """How many of one client more than are allowed are refused as such, when all ask for long texts at once."""
    found = await asyncio.gather(*(connection.ask(prompt, 64) for connection in connections))
    statuses = [status for status, _ in found]
    return statuses.count(429) if statuses.count(200) + statuses.count(429) == len(statuses) else -1


if __name__ == "__main__":
    sys.exit(main())
