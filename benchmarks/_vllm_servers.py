"""``vllm serve`` with models of the demo, each in a process group, and direct clients of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from benchmarks._measure import ROOT, progress
from benchmarks._vllm_environment import executable

MODELS = ROOT / "advisor" / "demo" / "models"
LOGS = ROOT / "build" / "vllm-logs"
START_S = 300
STOP_S = 20
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
# Blocks of 32 tokens, because the prefix cache holds whole blocks only: the demo's prompts have 30 to 50 tokens.
OPTIONS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--block-size", "32")


class VllmProcess:
    """A server of one of the demo's models.

    Args:
        name: The model's folder, and its name on the server.
        core: The processor core that it computes on. Servers on one core slow each other down twentyfold.

    Attributes:
        name: See the arguments.
        folder: The model's folder.
        port: The port on 127.0.0.1; a restarted server has the same one.
    """

    def __init__(self, name: str, core: int) -> None:
        self.name, self.folder = name, MODELS / name
        self.port = _free_port()
        self._core = core
        self._process: subprocess.Popen[bytes] | None = None

    def line(self, port: int | None = None) -> str:
        """The line of a pool file, with the port of a proxy where one is given."""
        return f"openai:http://127.0.0.1:{port or self.port}/v1#{self.name} tokenizer={self.folder}"

    def client(self) -> httpx2.Client:
        """A client of it, whose connection ends with its block."""
        return httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=START_S, trust_env=False)

    def start(self) -> None:
        """Start it, and do not wait."""
        LOGS.mkdir(parents=True, exist_ok=True)
        # Servers tell clients the folder that they were started with, which must not be one of this machine only.
        command = [str(executable()), "serve", str(self.folder.relative_to(ROOT)), "--served-model-name", self.name]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *OPTIONS]
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "VLLM")}
        environment = {**kept, **ENVIRONMENT, "VLLM_CPU_OMP_THREADS_BIND": str(self._core)}
        with self._log.open("ab") as log:
            # A group of processes, because a server has two children, which would outlive it. And not a session: Linux
            # shares processors among sessions, and a server that waits busily would get as much as its clients.
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=os.setpgrp,  # noqa: PLW1509  # no other thread runs yet; process_group= needs Python 3.11
            )

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            RuntimeError: It ended, or takes too long.
        """
        end = time.monotonic() + START_S
        while not self._is_healthy():
            if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"vllm serve {self.name} did not start; see {self._log}")
            time.sleep(0.2)
        # Its first request compiles what later ones use, which takes about ten seconds.
        with self.client() as client:
            post(client, {"model": self.name, "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0})

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            _signal(self._process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            # Its children too, whatever it did with them.
            _signal(self._process, signal.SIGKILL)
            self._process.wait()

    @property
    def _log(self) -> Path:
        return LOGS / f"{self.name}-{self.port}.log"

    def _is_healthy(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.get("/health", timeout=5).is_success)
            except httpx2.HTTPError:
                return False


@contextmanager
def serving(names: Sequence[str], first_core: int = 0) -> Iterator[list[VllmProcess]]:
    """Servers of these models, which end with the block.

    Args:
        names: The models.
        first_core: The core of the first one; the others follow.
    """
    cores = os.cpu_count() or 1
    servers = [VllmProcess(name, (first_core + n) % cores) for n, name in enumerate(names)]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.start()
        progress(f"benchmarks.vllm: waiting for {', '.join(names)}; logs are in {LOGS.relative_to(ROOT)}")
        for server in servers:
            server.wait()
        yield servers


def post(client: httpx2.Client, body: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request for a completion.

    Raises:
        RuntimeError: The server refuses.
    """
    answer = client.post("/v1/completions", json=body)
    if answer.status_code != 200:
        raise RuntimeError(f"{answer.url} answers {answer.status_code}: {answer.text[:200]}")
    found: dict[str, Any] = answer.json()
    return found


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # the whole group has ended
        os.killpg(process.pid, number)
