"""Clients that others wrote against real servers: ``make test-clients`` installs them into ``build``; else this skips.

They ask the set and the vote of a run on the demo's models and, for calls of functions, a vote of models behind a
server. What passed is kept in ``benchmarks/results/clients.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pools import Place
from servers import Answer, as_json, models, raw_server
from test_export import SERVERS, run_of

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / "build" / "clients" / "bin" / "python"
CLIENTS = ("openai", "litellm", "langchain-openai")
STRATEGIES = ("unite", "vote")
KEY = "sesame"
Checked = dict[str, dict[str, Any]]

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no clients are installed; make test-clients installs them")


def advisor(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The command in a folder, as a process."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "CLIENTS_KEY": KEY, "A_API_KEY": "a"}
    command = [sys.executable, "-I", "-c", "from advisor.cli import main; main()", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment)


@contextlib.contextmanager
def served(folder: Path, run: str, *options: str) -> Iterator[str]:
    """The address of ``advisor serve`` of a run."""
    with advisor(folder, "serve", run, "--port", "0", "--api-key-env", "CLIENTS_KEY", *options) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, "the server did not start"
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@contextlib.contextmanager
def with_tools(folder: Path) -> Iterator[str]:
    """The address of a vote of models behind a server that call a function."""
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}

    def answer(path: str, _: dict[str, Any]) -> Answer:
        if path.endswith("/models"):
            return models("org/a", "b", "c")
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return as_json({"choices": [{"message": message, "finish_reason": "tool_calls"}]})

    def run(*words: str) -> Any:
        raise AssertionError(words)

    with raw_server() as raw:
        raw.answer = answer
        place = Place(folder, folder, run)
        run_of(place, strategy="vote")
        for name in ("models.txt", "run/result.json"):
            # That pool is not asked, and so has a limit of one request in two minutes.
            text = (folder / name).read_text(encoding="utf-8").replace(" requests_per_minute=0.5", "")
            for server in SERVERS:
                text = text.replace(server.removeprefix("--allow-server="), raw.url.removesuffix("/v1"))
            place.write(name, text)
        with served(folder, "run", "--pool", "models.txt") as address:
            yield address


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """What each client found, by the strategy that it asked."""
    folder = tmp_path_factory.mktemp("clients")
    job = ("select", "--pool", "demo", "--task", "word_problems", "--limit", "24", "--out", "demo", "--quiet")
    with advisor(folder, *job) as process:
        assert process.wait(300) == 0
    found: Checked = {}
    with with_tools(folder) as tools_url:
        for strategy in STRATEGIES:
            with served(folder, "demo", "--strategy", strategy) as url:
                found[strategy] = {client: ask(client, url, tools_url) for client in CLIENTS}
    file = ROOT / "benchmarks" / "results" / "clients.json"
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def ask(client: str, url: str, tools_url: str) -> Any:
    """What the checks of a client found."""
    command = [str(PYTHON), str(ROOT / "tests" / "client_checks.py"), client, url, tools_url, KEY]
    # Its list of prices is of the package, so that it asks no other host.
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.second_lane
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_what_it_expects(checked: Checked, client: str, strategy: str) -> None:
    problems = checked[strategy][client]["checks"]
    if strategy == "unite":
        # The set's primary has no braces in its vocabulary.
        assert "no token of its vocabulary can begin a text that the grammar allows" in problems.pop("JSON")
    assert len(problems) >= 7
    assert not {check: problem for check, problem in problems.items() if problem}
