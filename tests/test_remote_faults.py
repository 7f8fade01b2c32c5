"""Servers that are not there, refuse, or answer nonsense; keys that nobody may see; lines that are no address."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pools import Place
from servers import Answer, Raw, as_json, completion, models, raw_server, well

from advisor.models.pool_file import read_pool
from ensemble.errors import InputError
from ensemble.servers import transport
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import ServerClient, ServerError, key_variable

pytest_plugins = ["pools"]
pytestmark = pytest.mark.usefixtures("no_pauses")

KEY = "sk-0123456789-secret"
PROFILE = ("profile", "--pool", "models.txt", "--task", "task.yaml")
Body = dict[str, Any]


def but(status: int, message: str) -> Callable[[str, Body], Answer]:
    """A server that lists its models, and answers a question with an error."""
    error = as_json({"error": {"message": message, "type": "invalid"}}, status)
    return lambda path, body: well(path, body) if path.endswith("/models") else error


def pool(place: Place, raw: Raw, options: str = "") -> None:
    place.task()
    place.pool("# the server", f"openai:{raw.url}#m name=far chat_template=never {options}")


def refused(place: Place, raw: Raw, options: str = "") -> str:
    """The line that a run is refused with."""
    pool(place, raw, options)
    line = place.refused(*PROFILE)
    assert line.startswith("advisor: models.txt:2: ")
    return line


# --- Lines of the pool ---


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("openai:ftp://host/v1#m", "not http:// or https://"),
        ("openai:http://host:port/v1#m", "the address is not valid"),
        ("openai:http://a..b/v1#m", "not http:// or https://"),
        ("openai:http://a b/v1#m", "an option has no ="),
        ("openai:http://höst/v1#m", "not http:// or https://"),
        (f"openai:http://user:{KEY}@host/v1#m", "do not write a key into a pool file"),
        (f"openai:http://host/v1?key={KEY}#m", "do not write a key into a pool file"),
        (
            "openai:https://n.openai.azure.com/openai/deployments/d?api-version=2024-10-21",
            "Azure needs no api-version= in the address; write openai:https://NAME.openai.azure.com/openai/v1#DEPLOY",
        ),
        (f"http://user:{KEY}@127.0.0.1:8000/v1#m", "begin it with openai: for a model behind a server"),
        ("localhost:8000/v1#m", "begin it with openai: for a model behind a server"),
        ("https://huggingface.co/org/name/tree/main", "give the model's id alone: ORG/NAME"),
        (f"openai:http://host/v1#m key_env={KEY}", "key_env should be the name of the environment variable"),
        (f"openai:http://host/v1#m api_key={KEY}", "'api_key' is not an option of a model behind a server"),
        (f"openai:http://host/v1#m {KEY}", "an option has no ="),
        ("openai:http://host/v1#m dtype=bfloat16", "'dtype' is not an option of a model behind a server"),
        ("openai:http://host/v1#m timeout=0", "timeout should be above 0, not '0'"),
        ("openai:http://host/v1#m revision=", "revision should be a printable text, not ''"),
    ],
)
def test_a_line_that_is_no_address_is_bad_input_and_no_key_in_it_is_shown(place: Place, line: str, says: str) -> None:
    place.task()
    place.pool("# servers", line)
    found = place.refused(*PROFILE)
    assert found.startswith("advisor: models.txt:2: ")
    assert says in found
    assert KEY not in found


def test_a_line_can_say_all_of_it(place: Place) -> None:
    place.pool(
        "openai:https://host:8000/some/v1/#org/name  name=big key_env=BIG_API_KEY timeout=2.5 concurrency=3 "
        "requests_per_minute=90 revision=r1 chat_template=never  # and a comment",
        '"openai:http://host/v1#a name"',
        "openai:http://host/v1#/models/gamma#2\tname=g",
    )
    first, second, third = read_pool("models.txt")
    assert first.checkpoint == ServerAddress(
        "https://host:8000/some/v1", "org/name", None, "BIG_API_KEY", "r1", 2.5, 3, 90.0
    )
    assert (first.name, first.chat_template) == ("big", "never")
    assert second.checkpoint == ServerAddress("http://host/v1", "a name")
    assert (third.name, third.checkpoint) == ("g", ServerAddress("http://host/v1", "/models/gamma#2"))


# --- Keys ---


@pytest.mark.parametrize(
    ("url", "key_env", "variable"),
    [
        ("https://api.openai.com/v1", None, "OPENAI_API_KEY"),
        ("https://eu.api.openai.com/v1", None, "OPENAI_API_KEY"),
        ("https://api.openai.com/v1", "MINE", "MINE"),
        ("http://api.openai.com/v1", None, None),
        ("https://api.openai.com.evil.org/v1", None, None),
        ("https://evil-api.openai.com.org/v1", None, None),
        ("https://openai.com/v1", None, None),
        ("http://127.0.0.1:8000/v1", None, None),
        ("http://127.0.0.1:8000/v1", "MINE", "MINE"),
    ],
)
def test_the_usual_key_goes_to_its_own_hosts_alone(url: str, key_env: str | None, variable: str | None) -> None:
    assert key_variable(ServerAddress(url, "m", key_env=key_env)) == variable


def test_a_server_gets_nothing_of_the_environment_that_was_not_meant_for_it(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Mine: {KEY}\nAuthorization: Bearer {KEY}")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    raw.answer = well
    pool(place, raw)
    assert place.advisor(*PROFILE).status == 0
    assert raw.asked
    usual = {"host", "content-type", "content-length", "connection", "accept", "accept-encoding", "user-agent"}
    for _, headers, body in raw.asked:
        assert KEY not in json.dumps([headers, body])
        assert headers.keys() <= usual


@pytest.mark.parametrize("debug", [False, True])
def test_a_wrong_key_is_said_by_the_name_of_its_variable(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    monkeypatch.setenv("MY_API_KEY", KEY)
    raw.answer = but(401, f"Incorrect API key provided: {KEY}")
    if not debug:
        assert "refuses the key in the environment variable MY_API_KEY (401)" in refused(
            place, raw, "key_env=MY_API_KEY"
        )
        return
    pool(place, raw, "key_env=MY_API_KEY")
    with pytest.raises(InputError) as caught:  # as main shows it under --debug: with all that is behind it
        place.advisor(*PROFILE, "--debug")
    shown = "".join(traceback.format_exception(caught.value))
    assert ("MY_API_KEY" in shown, KEY in shown) == (True, False)


@pytest.mark.parametrize(
    ("value", "says"), [(None, "is not set"), ("", "is not set"), ("two words", "cannot be a key")]
)
def test_a_key_that_is_not_there_or_none_is_bad_input(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch, value: str | None, says: str
) -> None:
    monkeypatch.delenv("MY_API_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_API_KEY", value)
    line = refused(place, raw, "key_env=MY_API_KEY")
    assert says in line
    assert "two words" not in line
    assert not raw.asked


def test_nobody_is_followed_to_another_host(place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", KEY)
    with raw_server() as other:
        raw.answer = lambda _path, _body: (307, {"Location": f"{other.url}/models"}, b"")
        assert f"redirects to {other.url}" in refused(place, raw, "key_env=MY_API_KEY")
        assert not other.asked


def test_the_proxy_of_the_environment_is_asked_for_hosts_other_than_this_machine(
    raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.answer = lambda _path, _body: (200, {}, b"{}")
    monkeypatch.setenv("http_proxy", raw.url.removesuffix("/v1").removeprefix("http://"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    for host in ("models.example", "127.0.0.1:9", "localhost:9", "127.9.9.9:9", "[::1]:9"):
        with ServerClient(ServerAddress(f"http://{host}/v1", "m"), retries=0) as client, suppress(ServerError):
            client.get("/models")
    assert [path for path, _, _ in raw.asked] == ["http://models.example/v1/models"]


# --- Lines without a model ---


def test_a_line_without_a_model_takes_the_only_one_of_the_server(place: Place, raw: Raw) -> None:
    raw.answer = lambda path, _body: models("org/m") if path.endswith("/models") else completion("7")
    place.task()
    place.pool(f"openai:{raw.url}  chat_template=never price_in=1 price_out=2")
    (found,) = read_pool("models.txt")
    assert (found.checkpoint, found.name) == (ServerAddress(raw.url, "org/m"), "m")
    assert (found.chat_template, found.price_in) == ("never", 1)
    # Without a file, too; these are all questions of the run.
    ran = place.advisor("profile", "--pool", f"{raw.url} chat_template=never", "--task", "task.yaml", "--json")
    assert [each["model"] for each in json.loads(ran.out)["profiles"]] == ["m"]
    assert len(raw.questions) == 6


def test_a_star_takes_all_models_and_those_with_the_same_last_part_have_their_whole_names(
    place: Place, raw: Raw
) -> None:
    raw.answer = lambda _path, _body: models("a/m", "b/m", "c/other", "a/m")
    place.pool(f"openai:{raw.url}#*  timeout=7")
    wanted = {name: ServerAddress(raw.url, name, timeout=7) for name in ("a/m", "b/m", "c/other")}
    names = ("a/m", "b/m", "other")
    assert {each.name: each.checkpoint for each in read_pool("models.txt")} == dict(
        zip(names, wanted.values(), strict=True)
    )


@pytest.mark.parametrize(
    ("end", "answer", "says"),
    [
        ("", models(), "/v1 lists no models; start it with one, or add #MODEL to its address"),
        ("", models("a", "org/b"), "/v1 lists 2 models: a, org/b; give openai:"),
        ("#*", models(*map(str, range(101))), "/v1 lists 101 models, and #* takes at most 100; give a line for each"),
        ("#* name=x", models("a", "b"), "name= is for one model, and "),
        (
            "",
            as_json({"data": "none"}),
            "the answer has no list of models; is this the address of an OpenAI-compatible",
        ),
        ("", (200, {}, b"<html>"), "is not JSON; it begins with '<html>'; is this the address of an OpenAI-compatible"),
        ("", as_json({}, 404), "does not have this path or model (404) and says: {}; add #MODEL to the address"),
        ("", as_json({}, 401), "needs a key (401); add key_env=NAME to its line"),
        ("", (200, {"Content-Length": str(1 << 40)}, b" " * (1 << 18)), "the server's answer is longer than"),
        ("", models("\x1b[2Jevil", "a\nb", "x" * 201, " "), "/v1 lists no models"),
        ("", as_json({"data": [{"id": 7}, 7, {"id": ["a"]}, {}]}), "/v1 lists no models"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_list_that_does_not_say_which_model_is_meant_is_one_line(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch, end: str, answer: Answer, says: str
) -> None:
    monkeypatch.setattr(transport, "MAX_BYTES", 1 << 16)
    raw.answer = lambda _path, _body: answer
    place.task()
    place.pool("# the server", f"openai:{raw.url}{end}")
    line = place.refused(*PROFILE)
    assert line.startswith("advisor: models.txt:2: ") and says in line


def test_the_list_is_asked_for_with_the_key_of_an_allowed_variable_alone(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.task()
    raw.answer = lambda _path, _body: models("m")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    place.pool(f"openai:{raw.url} key_env=AWS_SECRET_ACCESS_KEY")
    assert "does not end in _API_KEY" in place.refused(*PROFILE)
    assert not raw.asked
    monkeypatch.setenv("FAR_API_KEY", KEY)
    place.pool(f"openai:{raw.url} key_env=FAR_API_KEY")
    assert [each.name for each in read_pool("models.txt")] == ["m"]
    assert [headers["authorization"] for _, headers, _ in raw.asked] == [f"Bearer {KEY}"]
    line = place.refused("profile", "--pool", f"http://user:{KEY}@127.0.0.1:1/v1", "--task", "task.yaml")
    assert "do not write a key into a pool file" in line and KEY not in line


# --- Servers that are of no use ---


def test_a_server_that_is_not_there_is_bad_input(place: Place) -> None:
    with raw_server() as gone:
        url = gone.url
    place.task()
    place.pool(f"openai:{url}#m")
    line = place.refused(*PROFILE)
    assert line.startswith(f"advisor: models.txt:1: no server answers at {url} (")
    assert line.endswith("; start it, or correct the address")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((200, {"Content-Type": "text/html"}, b"<html>\n<h1>hello"), "is not JSON; it begins with '<html> <h1>hello'"),
        ((200, {}, b""), "is empty"),
        ((200, {}, b"[]"), "is not a JSON object"),
        (as_json({"choices": None}), "(choices should be a list)"),
        (as_json({"choices": []}), "(choices should be a list of at least 1)"),
        (as_json({"choices": [{"finish_reason": "stop"}]}), "(choices[0].text is missing)"),
        (completion(7), "(choices[0].text should be a text)"),
        (completion("7" * 100_000), "has 100,000 characters, too many for 16 tokens"),
        (as_json({"error": "out of order"}), "out of order"),
        (as_json({"error": {"message": "out of\norder"}}), "out of order"),
        ((200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"), "compresses its answers"),
        ((500, {}, b"Internal Server Error"), "failed (500) and says: Internal Server Error"),
        ((418, {}, b"teapot"), "refuses the request (418) and says: teapot"),
        (
            as_json({}, 401),
            "needs a key (401); add key_env=NAME to its line, the environment variable that holds the key",
        ),
        (
            as_json({"error": "quota"}, 429, **{"Retry-After": "7200"}),
            "accepts no more requests now (429), asks for a pause of 7200 s and says: quota; set a lower requests_per_",
        ),
        (None, "no server answers at"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_answer_that_is_nonsense_is_one_line(place: Place, raw: Raw, answer: Answer | None, says: str) -> None:
    raw.answer = lambda path, _body: models("m") if path.endswith("/models") else answer
    assert says in refused(place, raw)


def test_a_model_that_the_server_does_not_know_is_named_beside_those_it_has(place: Place, raw: Raw) -> None:
    listed, error = models(*(f"model-{n}" for n in range(30))), as_json({"error": "no such model"}, 404)
    raw.answer = lambda path, _body: listed if path.endswith("/models") else error
    line = refused(place, raw)
    assert "(404) and says: no such model; the server does not list 'm', but lists model-0, model-1, " in line
    assert line.endswith("and 10 more")


def test_a_server_without_a_list_of_models_can_be_asked(place: Place, raw: Raw) -> None:
    raw.answer = lambda path, _body: as_json({}, 404) if path.endswith("/models") else completion("7")
    pool(place, raw)
    assert place.advisor(*PROFILE).status == 0


def test_a_model_without_a_chat_template_is_refused_with_the_way_out(place: Place, raw: Raw) -> None:
    raw.answer = but(400, "no template")
    place.task()
    place.pool(f"openai:{raw.url}#m")
    assert "add chat_template=never to its line to use /completions" in place.refused(*PROFILE)


# --- Faults on the way ---


def test_a_pause_that_the_server_asks_for_is_kept_and_then_it_is_asked_again(place: Place, raw: Raw) -> None:
    times: list[float] = []

    def busy(path: str, body: Body) -> Answer:
        if body.get("prompt", "Hello") == "Hello":
            return well(path, body)
        times.append(time.monotonic())
        return as_json({"error": "busy"}, 429, **{"Retry-After": "0.3"}) if len(times) == 1 else completion("7")

    raw.answer = busy
    pool(place, raw, "concurrency=1")
    ran = place.advisor(*PROFILE, "--json")
    assert ran.status == 0
    assert times[1] - times[0] >= 0.3
    assert "could not be answered" not in ran.err


def test_a_question_that_fails_is_asked_once_more_and_then_noted(place: Place, raw: Raw) -> None:
    failed: list[str] = []

    def sometimes(path: str, body: Body) -> Answer:
        prompt = body.get("prompt", "Hello")
        if "What is 3" in prompt or ("What is 4" in prompt and prompt not in failed):
            failed.append(prompt)
            return as_json({"detail": "too long"}, 400)
        return well(path, body)

    raw.answer = sometimes
    pool(place, raw)
    ran = place.advisor("select", *PROFILE[1:], "--out", "run", "--no-verify")
    assert ran.status == 0
    assert len(failed) == 3
    lines = place.samples()
    assert [one["responses"]["far"]["text"] for one in lines] == ["7", "7", "", "7", "7", "7"]
    assert "(400) and says: too long" in lines[2]["responses"]["far"]["error"]


def test_a_server_that_goes_away_is_given_up_and_what_it_answered_is_kept(place: Place, raw: Raw) -> None:
    def for_a_while(path: str, body: Body) -> Answer | None:
        return well(path, body) if len(raw.questions) <= 4 else None

    place.task([{"question": f"What is {n}?", "answer": "7"} for n in range(80)])
    place.pool(f"openai:{raw.url}#m chat_template=never concurrency=1")
    raw.answer = for_a_while
    ran = place.advisor(*PROFILE)
    assert ran.status == 1
    assert "none of the 1 candidates could be run; m: no server answers at" in ran.err
    assert 4 + 8 <= len(set(raw.questions)) <= 4 + 8 + 1  # one may be on its way when it is given up
    raw.answer, asked = well, len(set(raw.questions))
    assert place.advisor(*PROFILE).status == 0
    assert len(raw.questions) - 36 - asked < 80
    assert raw.questions.count("What is 0?\nAnswer:") == 1


def test_as_many_are_asked_at_a_time_as_the_line_says_and_no_more(place: Place, raw: Raw) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def count(path: str, body: Body) -> Answer:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.1)
        with lock:
            now[0] -= 1
        return well(path, body)

    raw.answer = count
    pool(place, raw, "concurrency=3")
    assert place.advisor(*PROFILE).status == 0
    assert most[0] == 3


def test_no_more_are_begun_in_a_minute_than_the_line_says(raw: Raw) -> None:
    times: list[float] = []

    def note(path: str, body: Body) -> Answer:
        times.append(time.monotonic())
        return as_json({}, 503) if len(times) == 2 else completion("7")  # what is tried again counts, too

    raw.answer = note
    with ServerClient(ServerAddress(raw.url, "m", requests_per_minute=600)) as server:
        for _ in range(4):
            server.post("/completions", {"prompt": "What?"})
    assert len(times) == 5
    assert times[-1] - times[0] >= 4 * 0.1 - 0.05


def test_half_a_character_from_a_server_is_no_fault_of_the_report(place: Place, raw: Raw) -> None:
    broken = (
        b'{"choices": [{"text": "a\\ud800b\\u0000\\u001b[2J", "finish_reason": 7}], "usage": {"completion_tokens": []}}'
    )
    raw.answer = lambda path, _body: models("m") if path.endswith("/models") else (200, {}, broken)
    pool(place, raw)
    ran = place.advisor("select", *PROFILE[1:], "--out", "run", "--no-verify")
    assert ran.status == 0
    assert "\x1b" not in ran.err
    assert place.samples()[0]["responses"]["far"]["text"] == "a?b\x00\x1b[2J"
