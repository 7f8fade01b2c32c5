"""Servers and run folders of strangers: exchanges that do not end, keys that come back, numbers that JSON lacks."""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from pools import Place
from servers import Answer, Raw, as_json, completion, models, socket_server
from test_remote_faults import KEY, PROFILE, pool

from ensemble.errors import InputError
from ensemble.servers.address import ServerAddress, is_allowed
from ensemble.servers.client import Secret, ServerClient, ServerError

pytest_plugins = ["pools"]
pytestmark = pytest.mark.usefixtures("no_pauses")

SELECT = ("select", *PROFILE[1:], "--out", "run", "--no-verify")


def with_model(entry: dict[str, Any], answer: dict[str, Any] | None = None) -> Callable[[str, dict[str, Any]], Answer]:
    """A server that lists one model with some fields, and writes 7."""
    text = {"choices": [{"text": "7", "finish_reason": "stop"}], **(answer or {})}
    return lambda path, _body: as_json({"data": [{"id": "m", **entry}]} if path.endswith("/models") else text)


def drip(head: bytes, part: bytes, pause: float) -> Callable[[socket.socket], None]:
    def talk(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(part)
            time.sleep(pause)

    return talk


def slow_reader(connection: socket.socket) -> None:
    while connection.recv(2**17):
        time.sleep(0.02)


@pytest.mark.parametrize(
    "talk",
    [
        drip(b"HTTP/1.1 200 OK\r\n", b"X-1: a\r\n", 0.05),
        drip(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 0.05),
        drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500, 0),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" ", 0.05),
        drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-1: a\r\n", 0.05),
        slow_reader,
    ],
    ids=["headers", "103", "100", "body", "trailers", "reader"],
)
def test_the_time_limit_ends_an_exchange_that_is_slow_in_any_part(talk: Callable[[socket.socket], None]) -> None:
    prompt = "a" * (2**24 if talk is slow_reader else 1)
    with (
        socket_server(talk) as url,
        ServerClient(ServerAddress(url, "m", timeout=0.3), retries=0) as server,
        pytest.raises(ServerError, match=r"did not answer within 0\.3 s"),
    ):
        server.post("/completions", {"prompt": prompt})


# --- Keys ---


def refusing(status: int, **headers: str) -> Callable[[str, dict[str, Any]], Answer]:
    return lambda _path, _body: as_json({"error": {"message": f"key {KEY}", KEY: [KEY]}}, status, **headers)


@pytest.mark.parametrize(
    "answer",
    [
        lambda path, _: models(f"model-{KEY}") if path.endswith("/models") else as_json({"error": "no"}, 404),
        lambda path, _: models(KEY) if path.endswith("/models") else completion("7"),
        lambda path, _: models("m") if path.endswith("/models") else completion(f"your key is {KEY}"),
        with_model({"owned_by": KEY, "meta": {KEY: [KEY]}}, {"system_fingerprint": KEY, "model": KEY}),
        lambda _path, _body: (200, {}, f"<html>{KEY}".encode()),
        lambda _path, _body: (200, {}, "".join(f"\\u{ord(char):04x}" for char in KEY).join(['"', '"']).encode()),
        lambda _path, _body: (200, {"Content-Type": f"text/html; charset={KEY}"}, KEY.encode()),
        refusing(400),
        refusing(401),
        refusing(429, **{"Retry-After": KEY}),
        refusing(500, **{f"X-{KEY}": KEY}),
        refusing(302, Location=f"http://{KEY}/"),
    ],
)
def test_a_key_that_a_server_repeats_is_shown_nowhere(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_API_KEY", KEY)
    raw.answer = answer
    pool(place, raw, "key_env=MY_API_KEY")
    ran = place.advisor(*SELECT)
    files = [path for folder in (place.folder, place.cache) for path in folder.rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    assert {headers["authorization"] for _, headers, _ in raw.asked} == {f"Bearer {KEY}"}
    assert KEY not in ran.out + ran.err + caplog.text
    assert KEY.encode() not in written


@pytest.mark.parametrize(
    "form",
    [
        "".join(f"\\u{ord(char):04x}" for char in KEY),
        "".join(f"\\\\u{ord(char):04x}" for char in KEY),
        "".join(f"\\x{ord(char):02X}" for char in KEY),
        "".join(f"%{ord(char):02X}" for char in KEY),
        "".join(f"%25{ord(char):02x}" for char in KEY),
        "".join(f"&#{ord(char)};" for char in KEY),
        " ".join(KEY),
        "\u200b".join(KEY),
        "-".join(KEY.upper()),
        KEY[::-1],
        KEY[: len(KEY) * 2 // 3],
        KEY.encode().hex(),
        base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    ],
)
def test_a_text_with_anything_like_the_key_is_not_shown(form: str) -> None:
    secret = Secret(KEY)
    assert secret.is_in(form) and secret.is_in(f'{{"error": "the key {form} is wrong"}}')


@pytest.mark.parametrize(
    "text", ["", "The model sk-0123 is not there: ask for another secret.", "0.123456 " * 9, "%" * 99]
)
def test_a_text_without_the_key_is_shown(text: str) -> None:
    assert not Secret(KEY).is_in(text)


def test_an_error_with_an_escaped_key_is_left_out(monkeypatch: pytest.MonkeyPatch, raw: Raw) -> None:
    monkeypatch.setenv("MY_API_KEY", KEY)
    raw.answer = lambda _path, _body: as_json({"error": {"message": " ".join(KEY)}}, 400)
    with (
        ServerClient(ServerAddress(raw.url, "m", key_env="MY_API_KEY"), retries=0) as server,
        pytest.raises(ServerError, match=r"refuses the request \(400\) and says: \[key\]$"),
    ):
        server.post("/completions", {"prompt": "a"})


def test_a_key_is_not_in_the_message_of_a_broken_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-'quoted\"\\-secret"
    monkeypatch.setenv("MY_API_KEY", key)
    talk = drip(f"HTTP/1.1 200 OK\r\n{key} {key}\r\n\r\n".encode(), b"", 1)
    with (
        socket_server(talk) as url,
        ServerClient(ServerAddress(url, "m", key_env="MY_API_KEY"), retries=0) as server,
        pytest.raises(ServerError) as caught,
    ):
        server.post("/completions", {"prompt": "a"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "sk_live_0123456789", "HOME"])
def test_a_pool_file_may_name_only_variables_of_api_keys(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, KEY)
    pool(place, raw, f"key_env={name}")
    line = place.refused(*PROFILE)
    assert line.startswith("advisor: models.txt:2: far: key_env ")
    assert "into a variable with such a name" in line
    assert name not in line
    assert not raw.asked


# --- What a run folder names needs consent ---


def run_folder(place: Place, address: str, **remote: Any) -> None:
    """A run folder of a stranger, with two candidates behind a server."""
    place.task(metric="exact_match")
    (place.folder / "run").mkdir()
    model = {"chat_template": "never", "remote": {"address": f"openai:{address}#m", **remote}}
    result = {
        "schema_version": 2,
        "task": {"max_new_tokens": 4, "stop": []},
        "selected": ["a", "b"],
        "ensemble": None,
        "provenance": {"models": {"a": model, "b": model}},
    }
    place.write("run/result.json", json.dumps(result))


EVALUATE = ("evaluate", "run", "--task", "task.yaml", "--methods", "voting")


def test_a_server_that_a_run_folder_names_is_not_asked_without_consent(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    run_folder(place, raw.url, key_env="AWS_SECRET_ACCESS_KEY")
    line = place.refused(*EVALUATE)
    origin = raw.url.removesuffix("/v1")
    assert line.startswith(f"advisor: run/result.json: a is behind the server {origin}")
    assert "AWS_SECRET_ACCESS_KEY" in line
    assert f"add --allow-server {origin}" in line
    # With consent, it gets no other variable than an API key; consent to another server is none to this one.
    line = place.refused(*EVALUATE, "--allow-server", raw.url)
    assert "a: key_env names a variable that does not end in _API_KEY" in line
    assert "is behind the server" in place.refused(*EVALUATE, "--allow-server", "http://127.0.0.1:9")
    assert not raw.asked


@pytest.mark.parametrize("command", [("run", "run", "Hello"), ("serve", "run"), ("export", "run", "out")])
def test_other_commands_ask_no_server_that_a_run_folder_names(place: Place, raw: Raw, command: tuple[str, ...]) -> None:
    run_folder(place, raw.url)
    assert "is behind a server" in place.refused(*command)
    assert not raw.asked


@pytest.mark.parametrize(("key", "more"), [("id", {"revision": "0" * 40}), ("path", {"files": {}})])
def test_a_saved_ensemble_cannot_name_a_server(place: Place, raw: Raw, key: str, more: dict[str, object]) -> None:
    members = [{"name": name, key: f"openai:{raw.url}#m", **more} for name in "ab"]
    place.write("ensemble.json", json.dumps({"schema_version": 1, "members": members}))
    assert "ensemble.json" in place.refused("run", ".", "Hello")
    assert not raw.asked


@pytest.mark.parametrize(
    ("url", "allowed", "is_match"),
    [
        ("http://h/v1", "http://h", True), ("http://h/v1", "http://h/", True),
        ("http://h/v1", "http://H:80/v1", True), ("https://h:443/v1", "https://h", True),
        ("http://h/v1/a", "http://h/v1/", True), ("http://h/v1", "https://h/v1", False),
        ("http://h:81/v1", "http://h/v1", False), ("http://h.evil/v1", "http://h", False),
        ("http://evil/v1", "http://h", False), ("http://h/v11", "http://h/v1", False),
        ("http://h/v2", "http://h/v1", False), ("http://h/v1/../v2", "http://h/v1", False),
        ("http://h/v1/%2e%2e/v2", "http://h/v1", False),
    ],
)  # fmt: skip
def test_consent_is_for_scheme_host_port_and_the_beginning_of_the_path(url: str, allowed: str, is_match: bool) -> None:
    assert is_allowed(url, [allowed]) is is_match


@pytest.mark.parametrize("url", ["", "h", "h:80", "ftp://h", "http://", "http://u:p@h", "http://[::1", "http://h?a=b"])
def test_consent_to_what_is_no_server_is_bad_input(url: str) -> None:
    with pytest.raises(InputError, match="--allow-server"):
        is_allowed("http://h", [url])


# --- Numbers and bodies ---


def verbatim(value: object) -> bytes:
    """JSON in which "=TEXT" stands for the bare TEXT."""
    return re.sub(r'"=([^"]*)"', r"\1", json.dumps(value)).encode()


ODD = ["=NaN", "=-Infinity", "=1e999", f"=-{'9' * 4000}", f"={'9' * 5000}", [1, "=NaN"], {"a": {"b": "=-Infinity"}}]
DEEP = ["=" + "[" * 40 + "]" * 40, "=" + "[" * 900 + "]" * 900]


@pytest.mark.parametrize("value", [*ODD, *DEEP, True, "\udc80"], ids=repr)
def test_a_value_that_json_lacks_ends_no_run(place: Place, raw: Raw, value: object) -> None:
    entry = {"id": "m", **dict.fromkeys(["meta", "created", "max_model_len"], value)}
    text = {"choices": [{"text": "7"}], **dict.fromkeys(["model", "system_fingerprint", "usage"], value)}

    def answer(path: str, _body: object) -> Answer:
        return 200, {}, verbatim({"data": [entry]} if path.endswith("/models") else text)

    raw.answer = answer
    pool(place, raw)
    ran = place.advisor(*SELECT)
    assert "bug in advisor" not in ran.err
    if ran.status:
        assert ran.line.startswith(f"advisor: models.txt:2: {raw.url}")  # refused before it began
    else:
        assert place.json()["provenance"]["models"]["far"]["path_or_id"].endswith("#m")


@pytest.mark.parametrize("value", ["=NaN", "=1e999"])
def test_a_field_that_is_no_json_is_left_out_of_the_provenance(place: Place, raw: Raw, value: str) -> None:
    entry = {"id": "m", "owned_by": "me", "meta": {"n": value}, "created": value}
    text = {"choices": [{"text": "7"}], "system_fingerprint": value}
    raw.answer = lambda path, _body: (200, {}, verbatim({"data": [entry]} if path.endswith("/models") else text))
    pool(place, raw)
    assert place.advisor(*SELECT).status == 0
    assert place.json()["provenance"]["models"]["far"]["says"] == {"owned_by": "me"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("token_logprobs", value) for value in ("=NaN", "=-1e999", f"=-{'9' * 4000}", DEEP[1], "text")),
        *(("text_offset", value) for value in ("=NaN", f"=-{'9' * 4000}", "=true")),
    ],
    ids=lambda text: text[:12],
)
def test_a_log_probability_that_is_no_number_fails_its_question_alone(
    place: Place, raw: Raw, field: str, value: str
) -> None:
    def scored(path: str, body: dict[str, Any]) -> Answer:
        if not body.get("echo"):
            return models("m") if path.endswith("/models") else completion("7")
        prompt = body["prompt"]
        logprobs: dict[str, Any] = {"token_logprobs": [None, -1.0, -2.0], "text_offset": [0, 1, len(prompt) - 1]}
        if "What is 3 +" in prompt:
            logprobs[field][-1] = value
        return 200, {}, verbatim({"choices": [{"text": prompt, "logprobs": logprobs}]})

    raw.answer = scored
    place.task(choices=["{{answer}}", "no"], metric="choice")
    place.pool(f"openai:{raw.url}#m name=far chat_template=never")
    ran = place.advisor(*SELECT)
    assert (ran.status, "bug in advisor" in ran.err) == (0, False)
    lines = place.samples()
    assert [one["id"] for one in lines if one["responses"]["far"]["error"]] in ([], [lines[2]["id"]])


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=hex\r\n",
        b"HTTP/1.1 400 No\r\nContent-Type: text/html; charset=hex\r\n",
        b"HTTP/1.1 429 No\r\nRetry-After: Mon, 01 Jan 99999999 00:00:00 GMT\r\n",
        b"HTTP/1.1 429 No\r\nRetry-After: nan\r\n",
        b"HTTP/1.1 101 Switching\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        b"HTTP/1.1 999 Odd\r\n",
        b"HTTP/9.9 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nSet-Cookie: \xff=\xff; expires=x\r\n",
        b"HTTP/1.1 302 Odd\r\nLocation: http://[\r\n",
    ],
    ids=lambda head: head.decode("latin-1").strip().replace("\r\n", " "),
)
def test_an_odd_response_is_an_error_of_its_request(head: bytes) -> None:
    bodies = iter([b"<html>", b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}"])

    def talk(connection: socket.socket) -> None:
        connection.recv(2**16)
        connection.sendall(head + b"Connection: close\r\n\r\n" + next(bodies))

    with socket_server(talk) as url, ServerClient(ServerAddress(url, "m", timeout=5), retries=0) as server:
        for _ in range(2):
            with pytest.raises(ServerError) as caught:
                server.post("/completions", {"prompt": "a"})
            assert "\n" not in str(caught.value)
