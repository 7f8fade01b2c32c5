"""Answers of servers in the forms that providers give them: errors, parts, refusals, fields that they do not take."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from servers import Answer, Raw, as_json, completion, models, raw_server, well

from advisor.models.completions import generate
from advisor.models.loaded_models import LocalJobRunner
from advisor.models.response_cache import Response
from ensemble.decode.settings import Settings
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import ServerClient, ServerError

if TYPE_CHECKING:
    from pools import Place

    from advisor.models.job import Job

pytest_plugins = ["pools"]
pytestmark = pytest.mark.usefixtures("no_pauses")

Body = dict[str, Any]
SELECT = ("select", "--pool", "models.txt", "--task", "task.yaml", "--out", "run", "--no-verify")


def message(content: object, reason: object = "stop", **fields: object) -> Answer:
    """A chat's answer."""
    choice = {"message": {"role": "assistant", "content": content, **fields}, "finish_reason": reason}
    return as_json({"choices": [choice], "usage": {"prompt_tokens": 20, "completion_tokens": 6}})


def asked(raw: Raw, **settings: Any) -> Response:
    """The response to a chat; a question is sent twice more after errors that may pass."""
    with ServerClient(ServerAddress(raw.url, "m"), retries=2) as client:
        return generate(client, "What is 3 + 4?", Settings(20, **settings), chat=True)[0]


def run(place: Place, raw: Raw, answer: Callable[[Body], Answer], options: str = "", **task: Any) -> tuple[Any, str]:
    """The result of a run over sums, and what it says."""
    raw.answer = lambda path, body: models("m") if path.endswith("/models") else answer(body)
    place.task([{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 17)], **task)
    place.pool(f"openai:{raw.url}#m name=far {options}")
    ran = place.advisor(*SELECT)
    assert ran.status == 0, ran.err
    return place.json(), ran.err


def total(body: Body) -> int:
    """The right answer to the sum of a request; 0 to others."""
    return sum(map(int, re.findall(r"(\d+) \+ (\d+)", json.dumps(body))[-1:][0])) if "+" in json.dumps(body) else 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"error": {"message": "Upstream overloaded", "code": 502}}, 502),
        ({"error": {"message": "slow down", "type": "rate_limit_error", "code": None}}, 429),
        ({"error": {"message": "slow down", "code": "429"}, "choices": []}, 429),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 503),
        ({"object": "error", "message": "engine is dead", "type": "InternalServerError", "code": 500}, 500),
        ([{"error": {"code": 503, "message": "The model is overloaded", "status": "UNAVAILABLE"}}], 503),
        ({"choices": [{"error": {"code": 502, "message": "lost"}, "message": {"content": "The"}}]}, 502),
        ({"choices": [{"finish_reason": "error", "message": {"content": ""}}]}, 500),
        ({"error": "busy", "choices": None}, 500),
        ({"detail": "worker died", "status_code": 504}, 504),
        ({"error": {"message": "no such model", "code": "model_not_found"}}, 404),
        ({"errors": [{"message": "Capacity temporarily exceeded", "code": 3040}], "success": False}, 500),
        ({"statusCode": 429, "message": "Try again in 5 seconds."}, 429),
        ({"base_resp": {"status_code": 1002, "status_msg": "rate limit"}, "choices": None}, 500),
        ({"fault": {"faultstring": "x", "detail": {"errorcode": "policies.ratelimit.QuotaViolation"}}}, 429),
        ({"__type": "ThrottlingException", "message": "Too many requests"}, 429),
        ({"message": "Internal Server Error"}, 500),
        ({"error": {"message": "too long", "type": "invalid_request_error"}}, 400),
        ({"error": {"message": "wrong key", "type": "invalid_request_error", "code": "invalid_api_key"}}, 401),
    ],
    ids=str,
)
def test_an_error_with_status_200_is_that_of_its_code_and_is_sent_again_as_that_one(
    raw: Raw, error: object, status: int
) -> None:
    raw.answer = lambda _path, _body: as_json(error)
    with pytest.raises(ServerError, match=rf"\({status}\)") as caught:
        asked(raw)
    assert caught.value.status == status
    assert len(raw.asked) == (3 if status in (429, 500, 502, 503, 504) else 1)


# --- Contents in parts ---


@pytest.mark.parametrize(
    ("content", "text", "thinking"),
    [
        ([{"type": "thinking", "thinking": "so", "signature": "x"}, {"type": "text", "text": "7"}], "7", "so"),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}, {"text": "7"}], "7", "so"),
        ([{"thought": True, "text": "so"}, {"text": "7"}], "7", "so"),
        ([{"type": "text", "text": "It is "}, {"type": "image_url", "image_url": {"url": "x"}}, "7"], "It is 7", None),
        ([{"type": "output_text", "text": {"value": "7", "annotations": []}}], "7", None),
        ({"type": "text", "text": "7"}, "7", None),
        ({"parts": [{"text": "7"}]}, "7", None),
        ([{"type": "output_text", "output_text": "7"}], "7", None),
        ([{"reasoning": {"text": "so"}}, {"text": "7", "thought": False}], "7", "so"),
        ([{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "7"}, None, 5], "7", None),
        ([], "", None),
    ],
    ids=str,
)
def test_the_parts_of_a_content_are_its_text_and_its_thinking(
    raw: Raw, content: object, text: str, thinking: str | None
) -> None:
    raw.answer = lambda _path, _body: message(content)
    response = asked(raw)
    assert (response.text, response.thinking) == (text, thinking)


# --- Fields that a server does not take ---

OPENAI = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
EXTRA = "[{'type': 'extra_forbidden', 'loc': ('body', 'seed'), 'msg': 'Extra inputs are not permitted', 'input': 0}]"
RAW = json.dumps({"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model."}})


@pytest.mark.parametrize(
    ("field", "error", "instead"),
    [
        ("max_tokens", {"error": {"message": OPENAI, "param": "max_tokens"}}, "max_completion_tokens"),
        ("max_tokens", {"error": {"message": 'Unknown name "maxTokens": Cannot find field.'}}, "max_completion_tokens"),
        ("temperature", {"error": {"message": "Provider returned error", "metadata": {"raw": RAW}}}, None),
        ("temperature", {"error": {"message": "invalid temperature: only 1 is allowed for this model"}}, None),
        ("temperature", {"error": "`temperature` must be strictly positive", "error_type": "validation"}, None),
        ("temperature", {"error": {"message": "temperature: Extra inputs are not permitted"}}, None),
        ("temperature", {"error": {"message": "`temperature` is deprecated for this model."}}, None),
        ("temperature", {"detail": "temperature: Input should be greater than 0"}, None),
        ("temperature", {"error": {"message": "Please remove the temperature parameter"}}, None),
        ("seed", {"object": "error", "message": EXTRA, "type": "BadRequestError", "param": None, "code": 400}, None),
        ("seed", {"error": {"message": "Unrecognized request argument supplied: seed", "param": None}}, None),
        ("stop", {"error": "Model grok-4 does not support parameter stop."}, None),
        ("stop", {"error": {"message": "Unsupported param: stop", "code": 400}}, None),
        ("top_p", {"error": {"message": "`temperature` and `top_p` cannot both be specified for this model."}}, None),
        ("top_p", [{"error": {"code": 400, "message": 'Unknown name "topP"', "status": "INVALID_ARGUMENT"}}], None),
    ],
    ids=str,
)
def test_a_field_that_a_server_refuses_by_name_is_left_out_or_renamed(
    raw: Raw, field: str, error: object, instead: str | None
) -> None:
    raw.answer = lambda _path, body: as_json(error, 400) if field in body else message("7")
    drawn = field in ("seed", "top_p")
    assert asked(raw, temperature=0.5 if drawn else 0.0, stop=("\n",)).text == "7"
    first, second = (body for _, _, body in raw.asked)
    assert second == {name: value for name, value in first.items() if name != field} | (
        {instead: 20} if instead else {}
    )


@pytest.mark.parametrize(
    "says",
    [
        "max_tokens is too large: 20. This model supports at most 16 completion tokens",
        "This model's maximum context length is 16 tokens; max_tokens must be less",
        "the prompt is not allowed by our policy",
        "temperature must be between 0 and 2",
    ],
)
def test_a_value_that_is_refused_is_no_field_that_is_left_out(raw: Raw, says: str) -> None:
    raw.answer = lambda _path, _body: as_json({"error": {"message": says}}, 400)
    with pytest.raises(ServerError, match=r"refuses the request \(400\)"):
        asked(raw)
    assert len(raw.asked) == 1


def test_what_is_left_out_is_found_before_the_run_said_and_kept_with_it(place: Place, raw: Raw) -> None:
    def picky(body: Body) -> Answer:
        for name in ("temperature", "stop", "max_tokens"):
            if name in body:
                return as_json({"error": {"message": f"'{name}' is not supported", "param": name}}, 400)
        return message(str(total(body)))

    result, said = run(place, raw, picky, stop=["\n"])
    assert result["candidates"][0]["accuracy"] == 100
    assert "far: requests leave out max_tokens, stop, temperature" in said
    assert result["provenance"]["models"]["far"]["remote"]["left_out"] == ["max_tokens", "stop", "temperature"]
    # The first look at the pool and the run find it out once each; the questions have it from there.
    assert sum("temperature" in body for _, _, body in raw.asked) == 2


def test_a_line_can_say_that_no_temperature_is_sent(place: Place, raw: Raw) -> None:
    result, said = run(place, raw, lambda body: message(str(total(body))), "temperature=default")
    assert not [body for _, _, body in raw.asked if "temperature" in body]
    assert "far: requests leave out temperature" in said
    assert result["provenance"]["models"]["far"]["remote"]["left_out"] == ["temperature"]


def test_options_need_log_probabilities_also_where_a_server_refuses_them_by_name(place: Place, raw: Raw) -> None:
    def refusing(path: str, body: Body) -> Answer:
        if path.endswith("/models"):
            return models("m")
        refusal = {"error": {"message": "property 'logprobs' is unsupported"}}
        hello = message("Hello") if "messages" in body else completion("Hello")
        return as_json(refusal, 400) if "logprobs" in body else hello

    raw.answer = refusing
    place.task(choices=["{{answer}}", "no"], metric="choice")
    place.pool(f"openai:{raw.url}#m chat_template=never", f"openai:{raw.url}#chat")
    said = place.advisor(*SELECT).err
    assert "its /completions ignores echo and logprobs" in said and "with chat_template=never on its line" in said


# --- Answers without text, cut prompts, times ---


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (message(None), "empty"),
        (message("", reasoning="so it is 7"), "empty"),
        (message(None, "tool_calls", tool_calls=[{"function": {"name": "add", "arguments": "{}"}}]), "empty"),
        (message(None, refusal="I cannot help with sums."), "refused"),
        (message([{"type": "refusal", "refusal": "No."}]), "refused"),
        (message("", "refusal"), "refused"),
        (message(None, "content_filter"), "filtered"),
        (message("", "SAFETY"), "filtered"),
        (message("It is", "MAX_TOKENS"), "truncated"),
    ],
    ids=["null", "thinking alone", "calls", "refusal", "part", "ended", "filter", "safety", "limit"],
)
def test_answers_without_text_are_wrong_counted_and_named(place: Place, raw: Raw, answer: Answer, reason: str) -> None:
    result, said = run(place, raw, lambda body: answer if total(body) in (4, 8) else message(str(total(body))))
    (model,) = result["candidates"]
    assert model["accuracy"] == 100 * 6 / 8
    counts = dict.fromkeys(("empty", "refused", "filtered", "truncated"), 0) | {reason: 2}
    assert {name: model[name] for name in counts} == counts
    assert ("far: of 8 responses on dev" in said) == (reason != "truncated")
    profiled = place.advisor("profile", *SELECT[1:5]).out
    assert re.search(rf" 2 {'cut off' if reason == 'truncated' else reason}  ", profiled)
    assert (f"Of 8 responses {2 * (reason == 'empty')} are empty" in Path("run/report.html").read_text("utf-8")) == (
        reason != "truncated"
    )


@pytest.mark.parametrize(
    ("counts", "is_said"),
    [
        (lambda _: 20, True),
        (lambda length: min(length, 300), True),
        (lambda length: length // 4, False),
        (lambda _: 0, False),
        (lambda length: length if length < 300 else 300 + length % 7, False),
    ],
    ids=["always the same", "a limit", "by length", "unknown", "near"],
)
def test_a_server_that_cuts_prompts_is_named(
    place: Place, raw: Raw, counts: Callable[[int], int], is_said: bool
) -> None:
    def answer(body: Body) -> Answer:
        choice = {"message": {"content": "7"}, "finish_reason": "stop"}
        length = len(body["messages"][0]["content"])
        return as_json({"choices": [choice], "usage": {"prompt_tokens": counts(length), "completion_tokens": 1}})

    raw.answer = lambda path, body: models("m") if path.endswith("/models") else answer(body)
    place.task([{"question": f"{n} {'word ' * 20 * n}?", "answer": "7"} for n in range(1, 17)])
    place.pool(f"openai:{raw.url}#m name=far")
    said = " ".join(place.advisor("profile", *SELECT[1:5]).err.split())
    assert (f"far: its server {raw.url} counts" in said) == is_said


def test_a_time_is_that_of_a_request_however_many_run_at_once(place: Place, raw: Raw) -> None:
    def slow(body: Body) -> Answer:
        time.sleep(0.4 if total(body) == 4 else 0.1)
        return message(str(total(body)))

    (model,) = run(place, raw, slow, "requests_per_minute=6000")[0]["candidates"]
    assert 0.1 <= model["seconds_median"] < 0.3
    assert 0.4 <= model["seconds_p95"] < 0.8
    assert 1.1 <= model["seconds_total"] < 2.4
    assert "Request, median (95%)" in Path("run/report.html").read_text(encoding="utf-8")


# --- Several requests and servers at once ---


def is_test(path: str, body: Body) -> bool:
    """Whether a request only sees whether the model answers."""
    return path.endswith("/models") or body.get("prompt") == "Hello"


def test_candidates_of_different_servers_are_asked_at_the_same_time(place: Place, raw: Raw) -> None:
    both = threading.Barrier(2, timeout=20)

    def meet(path: str, body: Body) -> Answer:
        if "What is 1 " in body.get("prompt", ""):
            both.wait()
        return well(path, body)

    with raw_server() as other:
        raw.answer = other.answer = meet
        place.task()
        place.pool(*(f"openai:{each.url}#m name=m{n} chat_template=never" for n, each in enumerate((raw, other))))
        ran = place.advisor("profile", *SELECT[1:5])
    assert ran.status == 0
    assert "could not be answered" not in ran.err


def test_candidates_of_one_server_are_asked_one_after_the_other(place: Place, raw: Raw) -> None:
    raw.answer = well
    place.task()
    place.pool(*(f"openai:{raw.url}#{name} name={name} chat_template=never" for name in ("m", "other")))
    assert place.advisor("profile", *SELECT[1:5]).status == 0
    asked = [body["model"] for path, _, body in raw.asked if not is_test(path, body)]
    assert asked == ["m"] * 6 + ["other"] * 6


def test_a_server_that_accepts_fewer_requests_gets_fewer_and_no_question_is_lost(place: Place, raw: Raw) -> None:
    places = threading.Semaphore(2)

    def few(path: str, body: Body) -> Answer:
        if is_test(path, body):
            return well(path, body)
        if not places.acquire(blocking=False):
            return as_json({"error": "busy"}, 429)
        # As long as others may come meanwhile.
        time.sleep(0.02)
        places.release()
        return well(path, body)

    raw.answer = few
    place.task([{"question": f"What is {n}?", "answer": "7"} for n in range(100)])
    place.pool(f"openai:{raw.url}#m chat_template=never")
    ran = place.advisor("profile", *SELECT[1:5])
    assert ran.status == 0
    assert "could not be answered" not in ran.err


def test_what_has_arrived_is_stored_when_the_run_is_interrupted(tmp_path: Path) -> None:
    class FakeJob:
        """What the engine uses of a job; the user interrupts while the first response is shown."""

        name, server = "m", "http://host/v1"
        questions = dict.fromkeys(range(4))

        def __init__(self) -> None:
            self.stored: list[int] = []
            self.all_arrived, self.ended = threading.Event(), threading.Event()

        def start(self) -> None:
            pass

        async def responses(self) -> AsyncIterator[tuple[int, Response]]:
            try:
                for n in range(3):
                    yield n, Response("7", 1, "eos", 0.0)
                self.all_arrived.set()
                await asyncio.sleep(60)
            finally:
                self.ended.set()

        def add(self, number: int, _: Response) -> None:
            self.stored.append(number)
            if len(self.stored) == 1:
                assert self.all_arrived.wait(20)
                raise KeyboardInterrupt

    job: Any = FakeJob()
    jobs: list[Job] = [job]
    with pytest.raises(KeyboardInterrupt):
        list(LocalJobRunner(tmp_path).run(jobs))
    assert job.stored == [0, 1, 2]
    assert job.ended.wait(20)
