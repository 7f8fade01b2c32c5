"""What a server refuses, and how it says so: always OpenAI's error body, and never another status than it should be."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import Reply, Running, head_of, serving

from advisor.serving.protocol import RequestLimits
from advisor.serving.server import bind, digest_of, read_key_digest
from ensemble import Ensemble
from ensemble.errors import InputError

LIMITS = RequestLimits(texts=8, new_tokens=50, tokens=40, body=20_000, default_tokens=5)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KEY = "sesame-1"


@pytest.fixture(scope="module")
def server(sure: Ensemble) -> Iterator[Running]:
    with serving(sure, LIMITS, key=KEY) as running:
        yield running


def send(server: Running, path: str, body: str | bytes | dict[str, Any]) -> Reply:
    content = json.dumps(body) if isinstance(body, dict) else body
    return server.ask(path, content, Authorization=f"Bearer {KEY}")


def completion(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "x", **more}


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **more}


# Bodies


@pytest.mark.parametrize(
    "body",
    [
        *("", "{", "[]", "{}", b"\xff\xfe{}"),
        b'{"model": "tiny", "prompt": "\xff"}',
        "[" * 15_000,
        '{"model": "tiny", "prompt": "x", "seed": ' + "9" * 5000 + "}",
        '{"model": "tiny", "prompt": "x", "temperature": NaN}',
        '{"model": "tiny", "prompt": "\\ud800"}',
        '{"model": "tiny", "prompt": "x", "stop": "\\udc00"}',
        '{"model": "tiny", "prompt": "x", "\\ud800": 1}',
    ],
)
def test_nonsense_is_a_bad_request(server: Running, body: str | bytes) -> None:
    reply = send(server, COMPLETIONS, body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"model": "tiny"}, "prompt"),
        (COMPLETIONS, {"prompt": "x"}, "model"),
        (COMPLETIONS, completion(model=3), "model"),
        (COMPLETIONS, completion(prompt=[]), "prompt"),
        (COMPLETIONS, completion(prompt=[1, 2]), "prompt"),
        (COMPLETIONS, completion(prompt=["a", 1]), "prompt.1"),
        (COMPLETIONS, completion(max_tokens=0), "max_tokens"),
        (COMPLETIONS, completion(max_tokens=True), "max_tokens"),
        (COMPLETIONS, completion(max_tokens=51), "max_tokens"),
        (COMPLETIONS, completion(temperature=2.1), "temperature"),
        (COMPLETIONS, completion(top_p=0), "top_p"),
        (COMPLETIONS, completion(seed=2**63), "seed"),
        (COMPLETIONS, completion(n=9, temperature=1), "n"),
        (COMPLETIONS, completion(n=2, temperature=0), "n"),
        (COMPLETIONS, completion(prompt=["x"] * 9), "n"),
        (COMPLETIONS, completion(stop=["a", ""]), "stop"),
        (COMPLETIONS, completion(stop=["a"] * 17), "stop"),
        (COMPLETIONS, completion(logprobs=21), "logprobs"),
        (COMPLETIONS, completion(stream_options={"include_usage": True}), "stream_options"),
        (COMPLETIONS, completion(stream="yes"), "stream"),
        (CHAT, chat(messages=[]), "messages"),
        (CHAT, chat(messages=[{"role": "function", "content": "x"}]), "messages.0.role"),
        (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages.0.content.0.type"),
        (CHAT, chat(messages=[{"role": "user", "content": "x", "tool_calls": [1]}]), "messages.0.tool_calls.0"),
        (CHAT, chat(tools=[{"type": "function"}]), "tools.0.function"),
        (CHAT, chat(tool_choice="required"), "tool_choice"),
        (CHAT, chat(top_logprobs=2), "top_logprobs"),
        (CHAT, chat(logprobs=1), "logprobs"),
        (CHAT, chat(response_format={"type": "json_schema"}), "response_format.json_schema.json_schema"),
        (COMPLETIONS, completion(response_format={"type": "json_object"}), "response_format"),
        (CHAT, chat(max_completion_tokens=51), "max_tokens"),
    ],
)
def test_a_wrong_parameter_is_named(server: Running, path: str, body: dict[str, Any], param: str) -> None:
    reply = send(server, path, body)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert param.split(".", maxsplit=1)[0] in reply.error["message"]


REFUSED = {
    **{"audio": {"voice": "x"}, "best_of": 2, "echo": True, "frequency_penalty": 0.5, "functions": [{"name": "f"}]},
    **{"guided_json": {}, "logit_bias": {"5": 1}, "min_p": 0.1, "modalities": ["audio"], "presence_penalty": -1},
    **{"store": True, "suffix": "end", "top_k": 5},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(server: Running, name: str) -> None:
    for path, body in ((COMPLETIONS, completion()), (CHAT, chat())):
        reply = send(server, path, {**body, name: REFUSED[name]})
        assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")
        assert reply.error["message"] == f"{name}: not supported by this server; leave it out"


def test_all_that_cannot_be_honoured_is_named(server: Running) -> None:
    said = send(server, CHAT, chat(min_p=0.1, logit_bias={"1": 1}, seed=1)).error["message"]
    assert said == "logit_bias, min_p: not supported by this server; leave them out"


def test_what_changes_nothing_is_accepted(server: Running) -> None:
    harmless: dict[str, Any] = {
        **{"user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "store": False, "tools": []},
        **{"tool_choice": "auto", "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "echo": False},
        **{"response_format": {"type": "text"}, "parallel_tool_calls": True, "best_of": 1},
        **dict.fromkeys(("top_p", "stop", "temperature", "max_tokens", "n", "guided_json")),
    }
    assert send(server, CHAT, chat(**harmless)).status == 200
    assert send(server, COMPLETIONS, completion(**harmless)).status == 200


def test_a_prompt_of_too_many_tokens_is_refused(server: Running) -> None:
    error = send(server, COMPLETIONS, completion(prompt="x" * 41)).error
    assert error["message"].startswith("the prompts of this request have more than 40 tokens together")
    assert send(server, COMPLETIONS, completion(prompt="x" * 20)).status == 200
    assert "has no tokens to begin with" in send(server, COMPLETIONS, completion(prompt="")).error["message"]


@pytest.mark.parametrize("size", [20_001, 300_000, 3_000_000])
def test_an_oversized_body_is_refused(server: Running, size: int) -> None:
    body = json.dumps(completion(prompt="x" * size))
    declared = send(server, COMPLETIONS, body)
    for status, text in ((declared.status, declared.text), chunked(server, body.encode())):
        assert status == 413
        assert "has more than 20000 bytes, which is this server's limit" in json.loads(text)["error"]["message"]


def chunked(server: Running, body: bytes) -> tuple[int, str]:
    """Send a body without saying how long it is; status and body of the answer."""
    lines = (f"Authorization: Bearer {KEY}", "Transfer-Encoding: chunked", "Connection: close")
    with server.connect(head_of(COMPLETIONS, *lines)) as made:
        try:
            for start in range(0, len(body), 10_000):
                part = body[start : start + 10_000]
                made.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            made.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # of a body that is far too large the rest is not even read
        found = bytearray()
        # For the same reason the connection may end with a reset, behind the answer.
        with contextlib.suppress(ConnectionResetError):
            while part := made.recv(65536):
                found += part
    answer = found.decode()
    return int(answer.split(" ", 2)[1]), answer.partition("\r\n\r\n")[2]


def test_the_server_goes_on_after_all_that(server: Running) -> None:
    assert send(server, COMPLETIONS, completion()).status == 200
    assert server.engine.idle
    assert server.figure("advisor_failed_steps_total") == 0


# Paths, names and keys


def test_a_request_keeps_its_name_or_gets_one(server: Running) -> None:
    given = [
        server.ask("/health", X_Request_Id=name).headers["x-request-id"]
        for name in ("trace-7/a", "two words", "x" * 129)
    ]
    assert given[0] == "trace-7/a"
    assert all(re.fullmatch("req_[0-9a-f]{24}", name) for name in given[1:])
    # Errors have it, too, also those that are found before the body is read.
    for reply in (server.ask(COMPLETIONS, "{}", X_Request_Id="a"), send(server, COMPLETIONS, "{")):
        assert reply.status in (400, 401)
        assert reply.headers["x-request-id"] != ""


def test_a_failure_of_the_server_is_named_in_the_answer_and_in_the_log(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("kaput")

    monkeypatch.setattr(server.engine, "submit", broken)
    before = server.figure("advisor_requests_total")
    bearer = f"Bearer {KEY}"
    reply = server.ask(COMPLETIONS, json.dumps(completion()), Authorization=bearer, X_Request_Id="trace-8")
    assert (reply.status, reply.headers["x-request-id"]) == (500, "trace-8")
    assert reply.error["message"] == "the server failed; see its log (request trace-8)"
    assert f'path="{COMPLETIONS}",status="500"' in server.ask("/metrics").text

    def said() -> list[str]:
        return [line for line in (record.getMessage() for record in caplog.records) if "trace-8" in line]

    # The line with the status is written after the answer is sent.
    server.until(lambda: len(said()) == 2)
    assert said()[0].startswith("request trace-8 failed: RuntimeError: kaput")
    assert said()[1].startswith(f"request trace-8: POST {COMPLETIONS}, status 500, ")
    assert server.figure("advisor_requests_total") > before


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/tiny"])
def test_what_can_be_read_has_a_head(server: Running, path: str) -> None:
    with server.connect(f"HEAD {path} HTTP/1.0\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()) as made:
        head, _, body = made.makefile("rb").read().partition(b"\r\n\r\n")
    assert (head.split(b" ", 2)[1], body) == (b"200", b"")


def test_pages_of_allowed_origins_may_ask(sure: Ensemble) -> None:
    page = "http://localhost:3000"
    first = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    with serving(sure, LIMITS, key=KEY, origins=(page,)) as running, httpx.Client(base_url=running.url) as client:
        for origin in (page, "http://elsewhere.example"):
            asked = client.options(CHAT, headers={"Origin": origin, **first})
            refused = client.post(CHAT, json=chat(), headers={"Origin": origin})
            allowed = origin == page
            assert (asked.status_code, refused.status_code) == (200 if allowed else 400, 401)
            for reply in (asked, refused):
                assert reply.headers.get("access-control-allow-origin") == (page if allowed else None)


@pytest.mark.parametrize(("path", "status"), [("/", 404), ("/v1/nothing", 404), (COMPLETIONS, 405), ("/docs", 404)])
def test_unknown_paths_and_methods_have_errors_too(server: Running, path: str, status: int) -> None:
    reply = server.ask(path, Authorization=f"Bearer {KEY}")
    assert (reply.status, reply.error["type"]) == (status, "invalid_request_error")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer sesame", "Bearer sesame-12", f"Basic {KEY}", KEY, "Bearer \xe9"]
)
def test_without_the_key_nothing_is_read(server: Running, header: str | None) -> None:
    shown = {} if header is None else {"Authorization": header}
    for path, body in [(COMPLETIONS, "nonsense"), ("/v1/models", None), ("/v1/nothing", None)]:
        reply = server.ask(path, body, **shown)
        assert reply.status == 401
        assert reply.error["code"] == "invalid_api_key"
        assert reply.headers["WWW-Authenticate"] == "Bearer"


def test_health_and_figures_need_no_key(server: Running) -> None:
    assert (server.ask("/health").status, server.ask("/health").text) == (200, '{"status":"ok"}')
    figures = server.ask("/metrics")
    assert figures.status == 200
    assert figures.headers["Content-Type"].startswith("text/plain")
    assert "advisor_requests_total" in figures.text
    assert KEY not in figures.text


def test_a_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert read_key_digest(None, {}) is None
    assert read_key_digest(file, {}) == read_key_digest(None, {"ADVISOR_API_KEY": KEY}) == digest_of(KEY)
    assert read_key_digest(file, {"ADVISOR_API_KEY": "another"}) == digest_of(KEY)
    assert read_key_digest(None, {"OTHER": KEY, "ADVISOR_API_KEY": "another"}, "OTHER") == digest_of(KEY)
    assert KEY not in repr(digest_of(KEY))
    # A server that was told where its key is must not start without one.
    with pytest.raises(InputError, match="--api-key-env OTHER: the environment has no such variable"):
        read_key_digest(None, {"ADVISOR_API_KEY": KEY}, "OTHER")
    with pytest.raises(InputError, match="not the key") as raised:
        read_key_digest(None, {}, KEY)
    assert KEY not in str(raised.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_key_digest(tmp_path / "none", {})


@pytest.mark.parametrize("key", ["", " \n", "two words", "schlüssel", "a\nb"])
def test_a_key_that_no_header_could_hold_is_refused(tmp_path: Path, key: str) -> None:
    file = tmp_path / "key"
    file.write_text(key, encoding="utf-8")
    with pytest.raises(InputError, match=r"--api-key-file .*key: a key is one word"):
        read_key_digest(file, {})
    with pytest.raises(InputError, match=r"\$ADVISOR_API_KEY: a key is one word"):
        read_key_digest(None, {"ADVISOR_API_KEY": key})


def test_a_port_that_is_taken_is_refused() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--host 127.0.0.1 --port {port}: cannot be used"):
            bind("127.0.0.1", port)
    with pytest.raises(InputError, match="--host no such host: cannot be found"):
        bind("no such host", 0)
