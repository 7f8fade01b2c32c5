"""Clients that send wrong, slow, large or many requests: each costs itself alone."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from running_server import Running, head_of, serving
from test_decoder_failures import BAD, NAN, broken
from test_ensemble_api import member
from tiny import byte_tokenizer, tiny_model

from advisor.serving.protocol import RequestLimits
from advisor.serving.server import LogLimit, allowed_hosts, bind, most_connections
from ensemble import Ensemble
from ensemble.decode.decoder import Decoder
from ensemble.decode.settings import Batch
from ensemble.models.load import member_of

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def server(sure: Ensemble) -> Iterator[Running]:
    with serving(sure, RequestLimits(texts=8, default_tokens=4, tokens=400)) as running:
        yield running


def read(made: socket.socket) -> str:
    """All that the server sends until it closes the connection."""
    found = b""
    try:
        while part := made.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found.decode()


def test_a_body_that_drips_in_is_ended(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.serving.server.BODY_SECONDS", 0.3)
    with server.connect(head_of(COMPLETIONS, "Content-Length: 5000") + b"{") as made:
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.05):
                try:
                    made.sendall(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        answer = read(made)
        ended.set()
        thread.join()
    assert answer.startswith("HTTP/1.1 408 ")
    assert "the body of the request took too long" in answer


def test_a_text_that_takes_longer_than_a_body_may_is_not_ended(sure: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.serving.server.BODY_SECONDS", 0.05)
    with serving(sure, batch=Batch(draft=0)) as running:
        assert len(running.client().completions.create(model="tiny", prompt="x", max_tokens=300).choices[0].text) > 99


# A text that fails


def beside_others(ensemble: Ensemble, hostile: dict[str, Any]) -> openai.APIStatusError | str:
    """What a hostile request gets while three others run in its batch, which get what they get without it."""

    async def all_at_once(running: Running) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:

            async def ask(**asked: Any) -> str:
                return (await client.completions.create(model="tiny", **asked)).choices[0].text

            honest = [ask(prompt=prompt, max_tokens=6, temperature=0.8, seed=7) for prompt in ("a", "bc", "def")]
            return await asyncio.gather(*honest, ask(**hostile), return_exceptions=True)

    with serving(ensemble, batch=Batch(draft=0)) as running:
        *texts, last = asyncio.run(all_at_once(running))
        assert running.engine.idle
        assert running.figure("advisor_failed_steps_total") == 0
    assert texts == [
        ensemble.generate([prompt], max_new_tokens=6, temperature=0.8, seed=7)[0].text for prompt in ("a", "bc", "def")
    ]
    found: openai.APIStatusError | str = last
    return found


@pytest.mark.parametrize("hostile", [{"top_p": 1e-300}, {"temperature": 1e-300}])
def test_the_smallest_settings_fail_no_request(hostile: dict[str, float], tables: Path) -> None:
    models = [tiny_model(byte_tokenizer(), seed).float() for seed in (1, 2)]
    ensemble = Ensemble([member_of(model, byte_tokenizer(), name="single") for model in models], cache_dir=tables)
    asked = {"prompt": "x", "max_tokens": 6, "temperature": 1.0, **hostile}
    last = beside_others(ensemble, asked)
    assert last == ensemble.generate(["x"], max_new_tokens=6)[0].text


def test_logits_that_are_no_numbers_fail_their_own_request_alone(tables: Path) -> None:
    ensemble = Ensemble([broken(NAN), member("unigram with bytes", 1)], cache_dir=tables)
    hostile = {"prompt": BAD, "max_tokens": 6, "temperature": 1.0, "seed": 7}  # a draw may end the text first
    last = beside_others(ensemble, hostile)
    assert isinstance(last, openai.InternalServerError)
    assert "broken: its logits are not numbers (NaN) at step 3" in last.message


def test_a_text_that_fails_ends_the_other_texts_of_its_request(tables: Path) -> None:
    with serving(Ensemble([broken(NAN)], cache_dir=tables)) as running:
        assert running.complete(prompt=["a", BAD], max_tokens=6).status == 500
        running.until(lambda: running.engine.idle)
        assert running.complete(prompt=["a"], max_tokens=6).status == 200


# Too much


def test_the_prompts_of_a_request_are_counted_together_and_not_all_tokenized(
    server: Running, monkeypatch: pytest.MonkeyPatch, sure: Ensemble
) -> None:
    encode, read = sure.encode, []
    monkeypatch.setattr(sure, "encode", lambda prompt: read.append(prompt) or encode(prompt))
    error = server.complete(prompt=["x" * 300] * 8).error
    assert error["message"].startswith("the prompts of this request have more than 400 tokens")
    assert len(read) == 2
    assert server.complete(prompt=["x" * 90] * 4).status == 200


def test_tokens_of_all_requests_are_counted(sure: Ensemble) -> None:
    with serving(sure, RequestLimits(tokens=150), batch=Batch(draft=0)) as running:
        stream = running.client().completions.create(model="tiny", prompt="x" * 90, max_tokens=1900, stream=True)
        next(iter(stream))
        reply = running.complete(prompt="x" * 90)
        assert (reply.status, reply.error["code"], reply.headers["Retry-After"]) == (429, "rate_limit_exceeded", "1")
        stream.close()
        running.until(lambda: running.engine.idle)
        assert running.complete(prompt="x" * 90, max_tokens=4).status == 200


def test_a_prompt_of_too_many_characters_is_refused_before_it_is_tokenized(
    server: Running, monkeypatch: pytest.MonkeyPatch, sure: Ensemble
) -> None:
    monkeypatch.setattr(sure, "encode", lambda _: pytest.fail("tokenized"))
    reply = server.complete(prompt="x" * 500_000)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    conversation = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x" * 500_000}]})
    assert server.ask("/v1/chat/completions", conversation).error["code"] == "context_length_exceeded"


@pytest.fixture
def slow_prompt(sure: Ensemble, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowPrompt]:
    made = SlowPrompt(sure.encode)
    monkeypatch.setattr(sure, "encode", made)
    yield made
    made.released.set()


class SlowPrompt:
    """Encodes prompts; one that begins with ``slow`` takes until it is released."""

    def __init__(self, encode: Any) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self._encode = encode

    def __call__(self, prompt: Any) -> Any:
        if str(prompt).startswith("slow"):
            self.begun.set()
            assert self.released.wait(60)
        return self._encode(prompt)


def test_texts_go_on_while_a_prompt_is_tokenized(sure: Ensemble, slow_prompt: SlowPrompt) -> None:
    with serving(sure, batch=Batch(draft=0)) as running, ThreadPoolExecutor() as pool:
        stream = running.client().completions.create(model="tiny", prompt="x" * 90, max_tokens=200, stream=True)
        next(iter(stream))
        slow = pool.submit(running.complete, prompt="slow", max_tokens=4)
        assert slow_prompt.begun.wait(60)
        # In the decoder's thread the prompt would stop this text.
        assert len(list(stream)) > 2 and not slow.done()
        slow_prompt.released.set()
        assert slow.result().status == 200


def test_a_client_that_leaves_while_its_prompt_is_tokenized_frees_its_place(
    sure: Ensemble, slow_prompt: SlowPrompt
) -> None:
    with serving(sure, RequestLimits(texts=1), batch=Batch(draft=0)) as running:
        with running.post(COMPLETIONS, {"model": "tiny", "prompt": "slow", "max_tokens": 1900}):
            assert slow_prompt.begun.wait(60)
        running.until(lambda: running.figure("advisor_requests_total") >= 1)
        slow_prompt.released.set()
        running.until(lambda: running.engine.idle)
        # None of its 1,900 tokens was decoded.
        assert running.figure("advisor_batch_rows_count") == 0
        assert running.complete().status == 200


def test_a_prompt_that_is_tokenized_when_the_decoder_ends_gets_an_answer(
    sure: Ensemble, slow_prompt: SlowPrompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("kaput")

    with serving(sure, batch=Batch(draft=0)) as running, ThreadPoolExecutor() as pool:
        stream = running.client().completions.create(model="tiny", prompt="x", max_tokens=1900, stream=True)
        next(iter(stream))
        slow = pool.submit(running.complete, prompt="slow")
        assert slow_prompt.begun.wait(60)
        monkeypatch.setattr(running.engine, "_restart", fail)
        monkeypatch.setattr(Decoder, "step", fail)
        running.until(lambda: running.engine.refusing)
        slow_prompt.released.set()
        assert slow.result().error["code"] == "unavailable"
        stream.close()


def test_a_long_stop_string_is_refused(server: Running) -> None:
    assert server.complete(stop=["a", "b" * 257]).error["param"] == "stop"
    assert server.complete(stop=["b" * 256]).status == 200


def test_bodies_of_all_clients_have_a_limit(sure: Ensemble) -> None:
    with serving(sure, RequestLimits(texts=1, body=20_000)) as running, ExitStack() as stack:
        half = head_of(COMPLETIONS, "Content-Length: 19000") + b" " * 15_000
        stack.enter_context(running.connect(half))
        running.until(lambda: len(running.server.server_state.tasks) == 1)
        last = stack.enter_context(running.connect(half))
        assert " 503 " in last.recv(65536).decode()
        assert running.ask("/health").status == 200


# Too many


def test_where_every_connection_is_in_use_a_new_one_is_refused(sure: Ensemble) -> None:
    with serving(sure, connections=2, batch=Batch(draft=0)) as running, running.client() as client:
        streams = [client.completions.create(model="tiny", prompt="x", max_tokens=1900, stream=True) for _ in range(2)]
        for stream in streams:
            next(iter(stream))
        with running.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as made:
            assert read(made).startswith("HTTP/1.1 503 ")
        for stream in streams:
            stream.close()


@pytest.mark.parametrize(("files", "most"), [(256, 192), (10**6, 1000), (-1, 1000), (50, 1)])
def test_connections_leave_room_for_other_files(files: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert most_connections() == most


# Hosts and redirects


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "[::2]", ""]
)
def test_another_host_is_refused(server: Running, host: str) -> None:
    for path in ("/health", "/metrics", "/v1/models", "/nothing"):
        reply = server.ask(path, Host=host)
        assert (reply.status, "--allow-host" in reply.error["message"]) == (421, True)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "localhost.", "127.0.0.1:1", "127.1.2.3", "[::1]:8000"])
def test_this_machine_is_accepted(server: Running, host: str) -> None:
    assert server.ask("/health", Host=host).status == 200


def test_other_hosts_are_accepted_by_an_option_and_an_open_server_restricts_them_only_by_it(sure: Ensemble) -> None:
    with bind("0.0.0.0", 0) as bound:
        assert allowed_hosts(bound, "0.0.0.0", []) is None
        assert allowed_hosts(bound, "0.0.0.0", ["api.example"]) == {"localhost", "0.0.0.0", "api.example"}
    with serving(sure, hosts=["Proxy.Example"]) as running:
        assert running.ask("/health", Host="proxy.example").status == 200
        assert running.ask("/health", Host="evil.example").status == 421


def test_a_client_without_a_host_is_no_browser(server: Running) -> None:
    with server.connect(b"GET /health HTTP/1.0\r\n\r\n") as made:
        assert " 200 " in read(made)


@pytest.mark.parametrize("path", ["/health/", "/metrics/", "/v1/completions/"])
def test_nothing_is_redirected(server: Running, path: str) -> None:
    reply = server.ask(path, Host="localhost")
    assert reply.status == 404
    assert "Location" not in reply.headers


# The log


@pytest.fixture(autouse=True)
def _not_debugging() -> Iterator[None]:
    # A test of --debug in the same process may have changed the level, and then nothing is shortened.
    logger = logging.getLogger("advisor")
    before = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(before)


def test_log_lines_are_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("advisor.serving.server.time", SimpleNamespace(monotonic=lambda: now[0]))
    limit = LogLimit()

    def written(text: str) -> list[str]:
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, text, (), None)
        return [record.getMessage()] if limit.filter(record) else []

    lines = [line for n in range(1000) for line in written(f"{n} \x1b[2J % " + "x" * 1000)]
    assert len(lines) == 20
    assert all(len(line) < 400 and line.isprintable() for line in lines)
    now[0] = 61.0
    assert written("again") == ["again (980 more lines were left out)"]
    error = ValueError("first\nsecond")
    record = logging.LogRecord("asyncio", logging.ERROR, "", 0, "failed", (), (ValueError, error, None))
    assert limit.filter(record)
    assert logging.Formatter().format(record) == "failed: ValueError: first\\nsecond"


def test_wrong_requests_do_not_fill_the_log(sure: Ensemble, caplog: pytest.LogCaptureFixture) -> None:
    with serving(sure) as running:
        for _ in range(50):
            with running.connect(b"\x00nonsense\r\n\r\n") as made:
                assert " 400 " in read(made)
    assert 0 < len(caplog.records) <= 20
