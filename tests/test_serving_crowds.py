"""Many clients at once, clients that go away, models that fail, and a server that stops."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from running_server import Running, serving

from advisor.serving.protocol import RequestLimits
from ensemble import Ensemble
from ensemble.decode.decoder import Decoder
from ensemble.decode.settings import Batch

pytest_plugins = ["pools"]

SLOW = Batch(draft=0)
"""A text is a step for each token, so that there is time to do something meanwhile."""


@pytest.fixture
def server(sure: Ensemble) -> Iterator[Running]:
    with serving(sure, RequestLimits(texts=3), batch=SLOW) as running:
        yield running


def endless(running: Running) -> Any:
    """A stream of a long text, after its first piece."""
    stream = running.client().completions.create(model="tiny", prompt="x", max_tokens=1900, stream=True)
    next(iter(stream))
    return stream


# Many at once


def test_40_clients_at_once_all_get_what_they_would_get_alone(pair: Ensemble) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": f"prompt {n % 20}", "max_tokens": 4 + n % 5, "temperature": (0.0, 0.8)[n % 2], "seed": n}
        for n in range(40)
    ]
    wanted = [
        pair.generate([one["prompt"]], max_new_tokens=one["max_tokens"], temperature=one["temperature"], seed=n)[0]
        for n, one in enumerate(asked)
    ]

    async def all_at_once(running: Running) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:

            async def ask(one: dict[str, Any]) -> str:
                if one["seed"] % 3:
                    return (await client.completions.create(model="tiny", **one)).choices[0].text
                parts = await client.completions.create(model="tiny", stream=True, **one)
                return "".join([part.choices[0].text async for part in parts])

            return await asyncio.gather(*(ask(one) for one in asked))

    with serving(pair) as running:
        found = asyncio.run(all_at_once(running))
        together = running.figure("advisor_batch_rows_sum") / running.figure("advisor_batch_rows_count")
        assert running.engine.idle
    assert found == [made.text for made in wanted]
    assert together > 4


def test_one_more_than_the_limit_is_told_to_come_again(server: Running) -> None:
    streams = [endless(server) for _ in range(3)]
    reply = server.complete()
    assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
    assert (reply.error["type"], reply.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert server.ask("/health").status == 200
    for stream in streams:
        stream.close()
    server.until(lambda: server.engine.idle)
    assert server.complete(max_tokens=5).status == 200


def test_a_request_of_several_texts_counts_for_all_of_them(server: Running) -> None:
    stream = endless(server)
    assert server.complete(prompt=["x"] * 3, max_tokens=5).status == 429
    assert server.complete(prompt=["x"] * 2, max_tokens=5).status == 200
    stream.close()


# Clients that go away


def test_a_client_that_goes_away_mid_stream_frees_its_place(sure: Ensemble) -> None:
    with serving(sure, batch=Batch(size=1, draft=0)) as running:
        stream = endless(running)
        before = running.figure("advisor_batch_rows_count")
        stream.close()
        started = time.monotonic()
        assert running.complete(max_tokens=5).status == 200
        # The one place was taken by a text of 1900 steps.
        assert running.figure("advisor_batch_rows_count") - before < 1000
        assert time.monotonic() - started < 10
        running.until(lambda: running.engine.idle)


def test_a_client_that_goes_away_while_it_waits_frees_its_place(server: Running) -> None:
    with server.post("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1900}):
        server.until(lambda: server.figure("advisor_running_texts") == 1)
    server.until(lambda: server.engine.idle, seconds=5)
    assert server.figure("advisor_batch_rows_count") < 1900
    assert 'path="/v1/completions",status="499"' in server.ask("/metrics").text


# Failures


def test_a_step_that_fails_costs_those_who_were_in_it_alone(sure: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory runs out."""
    step = Decoder.step
    failing = {"now": False}

    def fail(decoder: Decoder) -> Any:
        finished = step(decoder)
        if failing["now"]:
            failing["now"] = False
            raise RuntimeError("out of memory\nwith details")
        return finished

    monkeypatch.setattr(Decoder, "step", fail)
    with serving(sure, batch=Batch(size=1, draft=0)) as running:
        stream = endless(running)

        async def wait() -> str:
            async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
                asked = asyncio.ensure_future(client.completions.create(model="tiny", prompt="x", max_tokens=5))
                while running.figure("advisor_waiting_texts") != 1:
                    await asyncio.sleep(0.01)
                failing["now"] = True
                return (await asked).choices[0].text

        waited = asyncio.run(wait())
        with pytest.raises(openai.APIError, match=r"^the models failed: out of memory$"):
            list(stream)
        assert waited == sure.generate(["x"], max_new_tokens=5)[0].text
        assert running.figure("advisor_failed_steps_total") == 1
        assert running.engine.idle
        failing["now"] = True
        with pytest.raises(openai.InternalServerError, match="the models failed: out of memory"):
            running.client().completions.create(model="tiny", prompt="x", max_tokens=5)


def test_a_decoder_that_ends_by_itself_ends_the_server(sure: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("kaput")

    with serving(sure) as running:
        monkeypatch.setattr(running.engine, "_restart", fail)
        monkeypatch.setattr(Decoder, "step", fail)
        said = "the decoder ended (kaput); start the server again"
        with pytest.raises(openai.InternalServerError, match=re.escape(said)):
            running.client().completions.create(model="tiny", prompt="x")
        running.thread.join(10)
    assert [str(error) for error in running.errors] == [said]


# The end


def test_a_stop_finishes_what_runs_and_refuses_what_comes(sure: Ensemble) -> None:
    with serving(sure, RequestLimits(new_tokens=600), batch=Batch(size=1, draft=0)) as running:
        client = running.client()
        ask: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 120, "stream": True}
        runs = client.completions.create(**ask)
        next(iter(runs))
        waits = client.completions.create(**ask)
        running.stop()
        with pytest.raises(openai.InternalServerError, match="the server is stopping") as raised:
            running.client().completions.create(model="tiny", prompt="x")
        assert raised.value.status_code == 503
        assert raised.value.response.headers["Retry-After"]
        assert running.ask("/health").status == 503
        texts = ["".join(part.choices[0].text for part in stream) for stream in (runs, waits)]
        running.thread.join(20)
        assert not running.thread.is_alive()
    (wanted,) = sure.generate(["x"], max_new_tokens=120)
    assert texts[1] == wanted.text
    assert wanted.text.endswith(texts[0])
    with pytest.raises(openai.APIConnectionError):
        running.client().completions.create(model="tiny", prompt="x")


@pytest.fixture
def process(models: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``advisor serve`` with two models, in a process of its own."""
    command = [sys.executable, "-I", "-c", "from advisor.cli import main; main()", "serve", "--port", "0"]
    for name in ("alpha", "beta"):
        command += ["--models", str(models / name)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "ADVISOR_API_KEY": "sesame"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as started:
        yield started
        started.kill()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_the_command_serves_until_a_signal_and_ends_well(process: subprocess.Popen[str], name: str) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    url = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url), process.stderr.read()
    with openai.OpenAI(base_url=url, api_key="sesame", max_retries=0) as client:
        stream = client.completions.create(model="alpha+beta", prompt=["x", "y"], max_tokens=40, stream=True, stop=[])
        first = next(iter(stream))
        process.send_signal(getattr(signal, name))
        reasons = [part.choices[0].finish_reason for part in (first, *stream)]
    assert sum(reason is not None for reason in reasons) == 2
    assert process.wait(60) == 0
    said = process.stderr.read().splitlines()
    assert said == [
        "advisor: serving alpha+beta; Ctrl-C finishes running requests, then stops",
        "advisor: stopping; finishing running requests, a second signal ends them at once",
    ]


def test_a_second_signal_ends_it_at_once(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None and process.stderr is not None
    url = process.stdout.readline().strip()
    with openai.OpenAI(base_url=url, api_key="sesame", max_retries=0) as client:
        stream = client.completions.create(model="alpha+beta", prompt="x", max_tokens=200, stream=True, stop=[])
        next(iter(stream))
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith("advisor: serving")
        assert process.stderr.readline().startswith("advisor: stopping")
        process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr.read().count("\n") == 1


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_thread_that_decodes_gets_the_threads_that_help_unless_texts_must_be_the_same(
    pair: Ensemble, monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    callers: list[str] = []
    monkeypatch.setattr(
        "ensemble.models.member.set_fastest_threads", lambda _: callers.append(threading.current_thread().name)
    )
    batch = Batch(1, draft=0, deterministic=True) if deterministic else SLOW
    with serving(pair, batch=batch) as running:
        running.client().completions.create(model="tiny", prompt="x", max_tokens=2)
    assert callers == ([] if deterministic else ["decoder"])
