"""``advisor serve RUN`` without options, for a run of each kind and models of each place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pools import Place, Prepare
from servers import SKIPS, Adders, raw_server

pytest_plugins = ["pools"]

POOLS = {"local": ("alpha", "beta", "gamma"), "servers": tuple(SKIPS), "mixed": ("alpha", "ada", "bob")}
KINDS = {
    "local": ("single", "set", "vote"),
    "servers": ("single", "fusion"),
    "mixed": ("vote", "group_router"),
}
"""Each kind of strategy, and a vote with models of both places; each case starts a server."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with raw_server() as raw:
        raw.answer = Adders()
        yield raw.url


def recommend(folder: Path, kind: str, names: tuple[str, ...]) -> None:
    """Let the run recommend a strategy of this kind."""
    path = folder / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    own: dict[str, Any] = {"strategy": "unite" if kind == "set" else kind, "members": names}
    if kind == "single":
        own["members"] = names[-1:]
    if kind == "group_router":
        own["routes"] = {"sums": names[1]}
    if kind == "fusion":
        own = next(each for each in result["strategies"] if each["strategy"] == "fusion")
    result["advice"]["recommendation"] |= own
    path.write_text(json.dumps(result), encoding="utf-8")


@pytest.mark.timeout(120)
@pytest.mark.second_lane
@pytest.mark.parametrize(
    ("models_are", "kind"), [(models_are, kind) for models_are, kinds in KINDS.items() for kind in kinds]
)
def test_a_run_is_served_without_options(
    models_are: str, kind: str, place: Place, models: Path, url: str, prepare: Prepare
) -> None:
    names = POOLS[models_are]

    def make() -> None:
        place.task(
            [{"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1)} for n in range(48)],
            metric="number",
            extract=r"is (\d+)",
        )
        lines = (f"openai:{url}/v1#{name} name={name} chat_template=never" for name in names if name in SKIPS)
        place.pool(*(str(models / name) for name in names if name not in SKIPS), *lines)
        command = ["select", "--pool", "models.txt", "--task", "task.yaml"]
        command += ["--out", "run", "--max-gap", "100", "--quiet"]
        if models_are != "local":
            command += ["--fusion", f"{names[-1]} panel={','.join(names[:2])}"]
        ran = place.advisor(*command)
        assert ran.status == 0, ran.err

    prepare(models_are, place, make)
    recommend(place.folder / "run", kind, names)
    allowed = ["--allow-server", url] if models_are != "local" else []
    command = [sys.executable, "-c", "from advisor.cli import main; main()", "serve", "run", "--port", "0", *allowed]
    environment = {**os.environ, "XDG_CACHE_HOME": str(place.cache)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=place.folder, stdout=pipe, stderr=pipe, text=True, env=environment) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        try:
            address = started.stdout.readline().strip()
            assert address, started.stderr.read()
            with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
                (served,) = client.models.list()
                message: Any = {"role": "user", "content": "What is 3 + 4?"}
                choice = client.chat.completions.create(model=served.id, messages=[message], max_tokens=8).choices[0]
            assert choice.finish_reason in ("stop", "length")
            if models_are == "servers":
                assert choice.message.content == "It is 7."
        finally:
            started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0
