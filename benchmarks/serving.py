"""64 clients at once against one after the other, asking a real server: ``python -m benchmarks.serving``.

The server is ``advisor serve`` in a process of its own, with models of the demo; the clients are connections of this
process that send the same requests, each on its own connection, which is kept. In every round all clients ask at once,
and then one after the other. What is not here: the network between machines, and what a client library takes.

``--only hostile`` measures honest clients beside hostile ones: half-sent heads while the server may open 256 files, and
20 clients that send slow, wrong and large requests beside 64 honest ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from benchmarks._measure import ADVISOR, Figure, arguments, parsed, progress, spread, tell
from benchmarks._models import demo_folders, demo_prompts

CLIENTS = 64
LIMIT = "at least 5"
SETS = {"": ("terse-neox", "terse-olmo", "terse-mistral"), "_long": ("stepwise-llama", "stepwise-llama")}
"""By the ending of the figures' names: the demo's set, and the only of its models that writes long answers, twice."""
HOSTILE = 20
HEADS, FILES = 300, 256
KEY = "sesame"


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

    async def ask(self, prompt: str | Sequence[str], tokens: int, **more: object) -> tuple[int, str]:
        """The status and the text of the answer to a prompt; no text with any status but 200."""
        if self._pipes is None:
            self._pipes = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._pipes
        body = json.dumps({"model": "demo", "prompt": prompt, "max_tokens": tokens, "stop": ["\n"], **more}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {KEY}\r\n"
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
    parser.add_argument("--only", choices=("usual", "hostile"), default="usual", help="which clients ask")
    options = parsed(parser, given)
    if options.only == "hostile":
        tell("serving_hostile", _hostile(demo_folders(options.pool, SETS[""]), options), options)
        return 0
    figures: list[Figure] = []
    for suffix, names in SETS.items():
        if suffix and options.quick:
            continue
        progress(f"benchmarks.serving: {' + '.join(names)}")
        with server(demo_folders(options.pool, names), options) as (process, url):
            clock = _clock(process.pid) if options.clock == "cpu" else time.perf_counter
            figures += asyncio.run(_measured(url, clock, options, suffix, " + ".join(names)))
    tell("serving", figures, options)
    return 0


@contextmanager
def server(
    folders: Sequence[str],
    options: argparse.Namespace,
    texts: int = CLIENTS,
    files: int | None = None,
    log: IO[str] | int = subprocess.DEVNULL,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of these models, which ends with the block, and its address.

    Args:
        folders: The models.
        options: The benchmark's.
        texts: How many may run or wait.
        files: How many files and connections the process may open; None for the usual number.
        log: Where its standard error goes.
    """
    limits = ["--port", "0", "--name", "demo", "--batch-size", options.batch_size, "--max-texts", str(texts)]
    limits += ["--max-queued-tokens", str(4096 * CLIENTS)]
    # As the pool has it: the demo's weights are stored in half precision, in which processors are slow.
    limits += ["--dtype", "float32"]
    command = [sys.executable, "-I", "-c", _start(options.threads, files), "serve", *limits]
    for folder in folders:
        command += ["--models", folder]
    environment = {**os.environ, "ADVISOR_API_KEY": KEY}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process:
        try:
            if process.stdout is None or not (url := process.stdout.readline().strip()):
                raise RuntimeError(f"the server did not start: {' '.join(command)}")
            yield process, url
        finally:
            process.terminate()


def _start(threads: int | None, files: int | None) -> str:
    limit = "" if threads is None else f"import torch; torch.set_num_threads({threads}); "
    if files is not None:
        limit += f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files})); "
    return f"{limit}{ADVISOR}"


def _clock(process: int) -> Callable[[], float]:
    """The processor time that a process has taken so far, in seconds; on Linux."""
    stat, ticks = Path(f"/proc/{process}/stat"), os.sysconf("SC_CLK_TCK")

    def now() -> float:
        # The second field, a name, may have spaces.
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    return now


def _work(options: argparse.Namespace) -> Work:
    clients, tokens = (8, 4) if options.quick else (CLIENTS, 64)
    return Work(demo_prompts(clients), tokens, options.rounds or (1 if options.quick else 7))


async def _measured(
    url: str, clock: Callable[[], float], options: argparse.Namespace, suffix: str, note: str
) -> list[Figure]:
    work = _work(options)
    clients, tokens = len(work.prompts), work.tokens
    connections = [Client(url) for _ in range(2 * CLIENTS)]
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
        Figure(f"refused_over_limit{suffix}", refused, limit="at least 1", note=f"of {2 * CLIENTS} at once: 429"),
    ]


async def _over_the_limit(connections: Sequence[Client], prompt: str) -> int:
    """How many of twice as many clients as allowed are refused as such, when all ask at once; -1 if one is lost.

    One client more than allowed is not enough: on a busy machine the first text is finished before the last one asks.
    """
    found = await asyncio.gather(*(connection.ask(prompt, 64) for connection in connections))
    statuses = [status for status, _ in found]
    return statuses.count(429) if statuses.count(200) + statuses.count(429) == len(statuses) else -1


def _hostile(folders: Sequence[str], options: argparse.Namespace) -> list[Figure]:
    """What hostile clients cost the honest ones."""
    figures = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        with server(folders, options, files=FILES, log=log) as (_, url):
            waits = asyncio.run(_beside_half_heads(url, options.rounds or 5))
        note = f"{HEADS} half-sent heads, {FILES} file descriptors, one client with the key"
        worst = Figure("answered_within_s", max(waits), min(waits), max(waits), "at most 2", note)
        figures += [worst, Figure("log_kib_half_heads", log.tell() / 2**10, note=note)]
    seconds, clients = (4, 8) if options.quick else (60, CLIENTS)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        with server(folders, options, texts=8 * CLIENTS, log=log) as (process, url):
            asked, lost, differ = asyncio.run(_beside_hostile(url, demo_prompts(clients), seconds))
            peak = _status_mib(process.pid, "VmHWM")
        note = f"{clients} clients beside {HOSTILE} hostile ones for {seconds} s"
        figures += [
            Figure("hostile_asked", asked, note=f"{note}: requests of the honest ones"),
            Figure("hostile_lost", lost, limit="0", note=note),
            Figure("hostile_same_texts", float(not differ), limit="1", note=f"{note}; as without the hostile ones"),
            Figure("hostile_peak_mib", peak, note=f"{note}; memory of the server"),
            Figure("hostile_log_kib", log.tell() / 2**10, note=note),
        ]
    return figures


def _status_mib(process: int, name: str) -> float | None:
    """The memory of a process, on Linux: ``VmRSS`` now, ``VmHWM`` the most so far."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 2**10 for line in lines if line.startswith(f"{name}:")), None)


async def _beside_half_heads(url: str, rounds: int) -> list[float]:
    """The seconds that an honest client waits for its answer while others hold half-sent heads, in each round."""
    hostile = [asyncio.create_task(_again(_half_head, url, n)) for n in range(HEADS)]
    await asyncio.sleep(3)
    waits = []
    for _ in range(rounds):
        client, start = Client(url), time.perf_counter()
        status, _text = await asyncio.wait_for(client.ask("1 + 1 =", 2), 60)
        waits.append(time.perf_counter() - start if status == 200 else float("inf"))
        await client.close()
        await asyncio.sleep(0.5)
    await _end(hostile)
    return waits


async def _beside_hostile(url: str, prompts: Sequence[str], seconds: float) -> tuple[int, int, int]:
    """The honest clients' requests beside hostile clients: how many, how many are lost, how many texts differ."""
    alone = [await Client(url).ask(prompt, 16) for prompt in prompts]
    kinds = (_half_head, _half_body, _tiny_numbers, _many_prompts, _large_body, _other_host, _leaving)
    hostile = [asyncio.create_task(_again(kinds[n % len(kinds)], url, n)) for n in range(HOSTILE)]
    end = time.perf_counter() + seconds

    async def honest(prompt: str, wanted: tuple[int, str]) -> tuple[int, int, int]:
        client = Client(url)
        asked = lost = differ = 0
        while time.perf_counter() < end:
            asked += 1
            try:
                found = await asyncio.wait_for(client.ask(prompt, 16), 60)
            except (OSError, EOFError, asyncio.TimeoutError):
                client, found = Client(url), (0, "")
            lost += found[0] != 200
            differ += found != wanted
        await client.close()
        return asked, lost, differ

    counts = await asyncio.gather(*(honest(*pair) for pair in zip(prompts, alone, strict=True)))
    await _end(hostile)
    asked, lost, differ = (sum(column) for column in zip(*counts, strict=True))
    return asked, lost, differ


async def _again(attack: Callable[[str, int], Coroutine[Any, Any, None]], url: str, number: int) -> None:
    """Attack again and again, whatever the server does."""
    while True:
        with suppress(OSError, EOFError, asyncio.TimeoutError, StopIteration, ValueError):
            await asyncio.wait_for(attack(url, number), 120)
        await asyncio.sleep(0.5)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _send(url: str, data: bytes, drip: bytes = b"") -> None:
    """Send bytes, then more of them every second, until the server closes the connection."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(str(place.hostname), place.port or 80)
    try:
        writer.write(data)
        while True:
            with suppress(asyncio.TimeoutError):
                if not await asyncio.wait_for(reader.read(2**16), 1):
                    return
            writer.write(drip)
            await writer.drain()
    finally:
        writer.close()


def _post(rest: str) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Authorization: Bearer {KEY}\r\n{rest}".encode()


async def _half_head(url: str, _: int) -> None:
    await _send(url, _post("X-Slow: "), b"x")


async def _half_body(url: str, _: int) -> None:
    await _send(url, _post("Content-Length: 900000\r\n\r\n{"), b" ")


async def _large_body(url: str, _: int) -> None:
    await _send(url, _post("Transfer-Encoding: chunked\r\n\r\n"), b"10000\r\n" + b" " * 0x10000 + b"\r\n")


async def _other_host(url: str, _: int) -> None:
    await _send(url, b"GET /health/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n\x00nonsense\r\n\r\n")


async def _tiny_numbers(url: str, number: int) -> None:
    client = Client(url)
    more: tuple[dict[str, object], ...] = ({"top_p": 1e-300, "temperature": 1}, {"temperature": 1e-300})
    await client.ask(f"hostile {number}", 16, **more[number % 2])
    await client.close()


async def _many_prompts(url: str, number: int) -> None:
    client = Client(url)
    # A megabyte, which an honest client may send, and which is more tokens than the server takes.
    await client.ask([f"{number} x" * 3750] * 64, 4096)
    await client.close()


async def _leaving(url: str, number: int) -> None:
    client = Client(url)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(client.ask(f"hostile {number}", 64), 0.05)
    await client.close()


if __name__ == "__main__":
    sys.exit(main())
