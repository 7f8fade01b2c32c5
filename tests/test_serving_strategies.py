"""A strategy behind the OpenAI API: the response that wins, whole or in pieces, also where a member fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest
from running_server import Running, running
from servers import Answer, Raw, as_json, completion

from advisor.models.ask import Replies
from advisor.models.response_cache import Response
from advisor.models.server_model import ServerModel
from advisor.run.plan import StrategyPlan
from advisor.run.task_prompt import TaskPrompt
from advisor.serving import starting
from advisor.serving.engine import SharedDecoder
from advisor.serving.metrics import Metrics
from advisor.serving.protocol import RequestLimits
from advisor.serving.responses import ServedModel
from advisor.serving.strategy_handler import DecoderModel, StrategyHandler
from advisor.strategies import kinds
from advisor.strategies.strategy import Strategy
from advisor.strategies.vote import VoteReader
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError
from ensemble.models.prompts import PromptTemplate
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import ServerAddress

READER = VoteReader("exact_match", None, "x")
LIMITS = RequestLimits(new_tokens=400, default_tokens=24)


class Says:
    """A member that says always the same, or fails."""

    def __init__(self, name: str, says: str | Exception) -> None:
        self.name = name
        self.says = says
        self.asked: list[tuple[Any, Settings]] = []

    async def ask(self, prompts: Mapping[int, Any], settings: Settings) -> Replies:
        for number, prompt in prompts.items():
            yield number, await self.reply(prompt, settings)

    async def reply(self, prompt: Any, settings: Settings) -> Response:
        self.asked.append((prompt, settings))
        if isinstance(self.says, Exception):
            raise self.says
        return Response(self.says, 3, "eos", 0.1, prompt_tokens=7)

    def close(self) -> None:
        pass


class Waits(Says):
    """A member that never answers."""

    cancelled = 0

    async def reply(self, prompt: Any, settings: Settings) -> Response:
        self.asked.append((prompt, settings))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError


def plan_of(name: str, models: Sequence[Any], **fields: Any) -> StrategyPlan:
    kind = kinds()[name]
    reader = READER if kind.COUNTS else None
    return planned(kind(tuple(model.name for model in models), **fields), reader)


def planned(strategy: Strategy, reader: VoteReader | None = None) -> StrategyPlan:
    """A plan for models of tests: they are given themselves, so that the places of the specs play no part."""
    address = ServerAddress("http://127.0.0.1:1", "m")
    specs = tuple(ModelSpec(address, name, place="x") for name in strategy.members)
    return StrategyPlan(strategy, specs, reader=reader)


@contextlib.contextmanager
def serving(
    name: str,
    models: Sequence[Any],
    limits: RequestLimits = LIMITS,
    group: str | None = None,
    prompt: TaskPrompt | None = None,
    **fields: Any,
) -> Iterator[tuple[Running, openai.OpenAI]]:
    metrics = Metrics()
    engine = StrategyHandler(plan_of(name, models, **fields), models, limits, metrics, group)
    names = tuple(model.name for model in models)
    served = ServedModel("tiny", names, name, "fp_test", 0, prompt=prompt, reader=READER)
    with running(engine, served, limits, metrics) as server, server.client() as client:
        yield server, client


def usage(made: Any) -> dict[str, Any]:
    found: dict[str, Any] = made.usage.model_dump()
    return found


def three(*texts: str | Exception) -> list[Says]:
    return [Says("abc"[number], text) for number, text in enumerate(texts)]


def engines(alone: dict[str, Ensemble]) -> list[DecoderModel]:
    return [DecoderModel(name, SharedDecoder(each, Batch(4), LIMITS, Metrics())) for name, each in alone.items()]


def test_members_of_this_process_write_what_they_write_alone(alone: dict[str, Ensemble]) -> None:
    texts = [each.generate(["x"], max_new_tokens=20)[0] for each in alone.values()]
    assert len({READER.read(text.text) for text in texts}) == 3
    with serving("vote", engines(alone)) as (server, client):
        made = client.completions.create(model="tiny", prompt="x", max_tokens=20)
        too_long = server.complete(prompt="x" * 400_000)
        stopped = client.completions.create(model="tiny", prompt="x", max_tokens=20, stop="cat")
    # Three answers that differ: the first member's counts.
    assert (made.choices[0].text, made.choices[0].finish_reason) == (texts[0].text, "length")
    assert usage(made)["completion_tokens"] == 20
    assert usage(made)["members"] == ["sure"]
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("he ", "stop")
    assert (too_long.status, too_long.error["code"]) == (400, "context_length_exceeded")


# --- Votes ---


def test_the_response_of_the_majority_is_sent() -> None:
    with serving("vote", three("no", "Yes.", "yes")) as (server, client):
        made = client.completions.create(model="tiny", prompt="x")
        chat = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
        assert server.figure("advisor_calls_per_text_sum") == 6
        assert 'advisor_votes_total{unanimous="no"} 2.0' in server.ask("/metrics").text
    assert made.choices[0].text == chat.choices[0].message.content == "Yes."
    assert usage(made) | {"calls": 3, "members": ["b"], "failed_members": []} == usage(made)
    assert (usage(made)["prompt_tokens"], usage(made)["completion_tokens"]) == (7, 3)


def test_answers_are_beside_the_texts_and_settings_reach_the_members() -> None:
    models = three("It is Yes.", "it is yes", "no")
    how: dict[str, Any] = {"max_tokens": 9, "stop": ["a"], "temperature": 0.5, "top_p": 0.9, "seed": 3}
    with serving("vote", models) as (_, client):
        made = client.completions.create(model="tiny", prompt=["x", "y"], **how)
        options: Any = {"include_usage": True}
        *_, last = client.completions.create(model="tiny", prompt="x", stream=True, stream_options=options, **how)
    assert usage(made)["answers"] == ["it is yes"] * 2
    assert usage(last)["answers"] == ["it is yes"]
    assert {settings for model in models for _, settings in model.asked} == {Settings(9, ("a",), 0.5, 0.9, 3)}


def test_responses_without_an_answer_are_no_unanimous_vote(caplog: pytest.LogCaptureFixture) -> None:
    with serving("vote", three("", " ", "")) as (server, client):
        for _ in range(2):
            made = client.completions.create(model="tiny", prompt="x")
        assert 'advisor_votes_total{unanimous="no"} 2.0' in server.ask("/metrics").text
        assert 'unanimous="yes"' not in server.ask("/metrics").text
    assert usage(made)["answers"] == [None]
    assert sum("a text is empty" in record.message for record in caplog.records) == 1


def test_a_message_is_filled_into_the_prompt_of_the_task() -> None:
    models, prompt = three(" yes", " yes", "no"), TaskPrompt(PromptTemplate(question="Q: {{q}}\nA:"), "run")
    with serving("vote", models, prompt=prompt) as (server, client):
        made = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
        client.completions.create(model="tiny", prompt="x")
        (listed,) = json.loads(server.ask("/v1/models").text)["data"]
    # One leading space is that between the prompt and the text.
    assert made.choices[0].message.content == "yes"
    assert [asked for asked, _ in models[0].asked] == ["Q: x\nA:", "x"]
    assert listed["prompt"] == {
        "template": "Q: {{q}}\nA:",
        "fields": ["q"],
        "example": "QUESTION becomes 'Q: QUESTION\\nA:'",
    }


@pytest.mark.parametrize(
    ("kind", "texts", "weights", "calls"),
    [("learned_vote", ("no", "yes", "yes"), {"weights": (3.0, 1.0, 1.0)}, 1), ("vote", ("no", "no", "yes"), {}, 2)],
)
def test_a_vote_stops_when_the_rest_cannot_change_the_winner(
    kind: str, texts: tuple[str, ...], weights: dict[str, Any], calls: int
) -> None:
    models = three(*texts)
    with serving(kind, models, **weights) as (_, client):
        made = client.completions.create(model="tiny", prompt="x")
    assert (made.choices[0].text, usage(made)["calls"]) == ("no", calls)
    assert [len(model.asked) for model in models] == [1] * calls + [0] * (3 - calls)


def test_self_consistency_draws_from_one_model() -> None:
    models = [Says("a", "yes")]
    with serving("self_consistency", models, draws=4) as (_, client):
        client.completions.create(model="tiny", prompt="x", seed=10)
    assert [(settings.temperature, settings.seed) for _, settings in models[0].asked] == [
        (0.7, seed) for seed in range(10, 14)
    ]


def test_the_group_of_a_request_chooses_the_member() -> None:
    routes = (("law", "b"), ("art", "c"))
    with serving("group_router", three("1", "2", "3"), group="art", routes=routes) as (_, client):
        ask = client.completions.create
        assert ask(model="tiny", prompt="x").choices[0].text == "3"
        assert ask(model="tiny", prompt="x", extra_body={"metadata": {"group": "law"}}).choices[0].text == "2"
        assert ask(model="tiny", prompt="x", extra_body={"metadata": {"group": "else"}}).choices[0].text == "1"


# --- Streams ---

LONG = "Well, 今天 is a day:\n\n" + "words and  more words " * 20 + "\n end "


def test_streamed_pieces_are_the_whole_text() -> None:
    models = three("", "", "")
    with serving("vote", models) as (_, client):
        for text in (LONG, "", " ", "one"):
            for model in models:
                model.says = text
            ask, options = client.completions.create, {"include_usage": True}
            whole = ask(model="tiny", prompt="x").choices[0]
            *pieces, last = ask(model="tiny", prompt="x", stream=True, stream_options=options)  # type: ignore[call-overload]
            message: Any = {"role": "user", "content": "x"}
            chat = client.chat.completions.create(model="tiny", messages=[message], stream=True)
            assert "".join(part.choices[0].text for part in pieces) == whole.text == text
            # A message does not begin with the space after its prompt.
            assert "".join(part.choices[0].delta.content or "" for part in chat) == text.removeprefix(" ")
            assert [part.choices[0].finish_reason for part in pieces] == [None] * (len(pieces) - 1) + ["stop"]
            assert usage(last)["calls"] == (3 if READER.read(text) is None else 2)
            assert len(pieces) > 3 or len(text) < 10


def test_what_a_strategy_cannot_do_is_refused_by_name() -> None:
    with serving("vote", three("1", "2", "3")) as (server, _):
        assert server.complete(logprobs=1).error["param"] == "logprobs"
    assert server.engine.idle


def test_several_texts_are_several_votes_whose_models_draw() -> None:
    models = three("yes", "no", "yes")
    with serving("vote", models) as (_, client):
        made = client.completions.create(model="tiny", prompt=["x", "y"], n=2, seed=5)
    assert [(choice.index, choice.text) for choice in made.choices] == [(index, "yes") for index in range(4)]
    assert [(prompt, settings.seed, settings.temperature) for prompt, settings in models[0].asked] == [
        (prompt, seed, 1.0) for prompt in "xy" for seed in (5, 6)
    ]
    # As OpenAI counts: each prompt once, and every text.
    assert (usage(made)["prompt_tokens"], usage(made)["completion_tokens"]) == (2 * 7, 4 * 3)


# --- Failures ---


def test_a_vote_goes_on_without_a_member_that_fails() -> None:
    with serving("vote", three(MemberError("kaput"), ValueError("odd"), "yes")) as (server, client):
        made = client.completions.create(model="tiny", prompt="x")
        metrics = server.ask("/metrics").text
    assert made.choices[0].text == "yes"
    assert usage(made)["failed_members"] == ["a", "b"]
    assert 'advisor_member_errors_total{member="a"} 1.0' in metrics
    assert 'advisor_member_calls_total{member="c"} 1.0' in metrics


def test_a_router_whose_member_fails_asks_the_next_one() -> None:
    models = three("1", MemberError("kaput"), "3")
    with serving("group_router", models, routes=(("law", "b"),), group="law") as (_, client):
        made = client.completions.create(model="tiny", prompt="x")
    assert (made.choices[0].text, usage(made)["failed_members"]) == ("1", ["b"])


def test_where_all_members_fail_the_status_is_503_and_where_all_refuse_it_is_400() -> None:
    for failure, status in ((MemberError("kaput"), 503), (InputError("too long"), 400)):
        with serving("vote", three(failure, failure, failure)) as (server, _):
            replies = [server.complete(), server.complete(stream=True)]
        assert [reply.status for reply in replies] == [status] * 2
        assert str(failure) in replies[0].error["message"]


def test_a_member_that_does_not_answer_in_time_is_left_out() -> None:
    slow = Waits("b", "")
    models = [Says("a", "yes"), slow, Says("c", "yes")]
    with serving("vote", models, RequestLimits(seconds=0.2)) as (_, client):
        made = client.completions.create(model="tiny", prompt="x")
    assert (made.choices[0].text, usage(made)["failed_members"], slow.cancelled) == ("yes", ["b"], 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_cancels_what_is_left(stream: bool) -> None:
    slow = Waits("b", "")
    models = [Says("a", "yes"), slow, Says("c", "yes")]
    with serving("vote", models) as (server, _):
        with server.client() as client, pytest.raises(openai.APITimeoutError):
            client.completions.create(model="tiny", prompt="x", stream=stream, timeout=0.3)
        server.until(lambda: slow.cancelled == 1)
        server.until(lambda: server.engine.idle)
    assert models[2].asked == []


# --- Servers ---


def server_model(name: str, raw: Raw, *, chat: bool = False, **options: Any) -> ServerModel:
    address = ServerAddress(raw.url, "m", **options)
    return ServerModel(ModelSpec(address, name, chat_template="auto" if chat else "never"))


def test_a_server_votes_like_the_others(raw: Raw) -> None:
    raw.answer = lambda *_: completion("yes")
    with serving("vote", [server_model("far", raw), *three("no", "yes")]) as (_, client):
        made = client.completions.create(model="tiny", prompt="x", temperature=0.5, top_p=0.8, seed=4, stop=["z"])
    assert made.choices[0].text == "yes"
    ((_, _, body),) = raw.asked
    wanted = {"prompt": "x", "temperature": 0.5, "top_p": 0.8, "seed": 4, "stop": ["z"], "max_tokens": 24}
    assert body | wanted == body


@pytest.mark.parametrize(("name", "fields"), [("vote", {}), ("fusion", {"panel": ("bare", "far"), "writer": "far"})])
def test_a_conversation_reaches_chat_servers_as_messages_and_others_as_text(
    raw: Raw, name: str, fields: dict[str, Any]
) -> None:
    def answer(path: str, _: Any) -> Answer:
        chat = as_json({"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]})
        return chat if path.endswith("/chat/completions") else completion("yes")

    raw.answer = answer
    roles = ("system", "user", "assistant", "user")
    messages: Any = [{"role": role, "content": text} for role, text in zip(roles, "sabc", strict=True)]
    models = [server_model("bare", raw), server_model("far", raw, chat=True), *three("yes")[: name == "vote"]]
    with serving(name, models, **fields) as (_, client):
        made = client.chat.completions.create(model="tiny", messages=messages)
    assert (made.choices[0].message.content, usage(made)["failed_members"]) == ("yes", [])
    bodies = [body for _, _, body in raw.asked]
    asked = [body["messages"] for body in bodies if "messages" in body]
    assert messages in asked
    # The writer of a fusion reads the drafts in the place of the last message.
    assert all(each[:3] == messages[:3] for each in asked)
    assert "s\n\na b\n\nc" in [body.get("prompt") for body in bodies]


def test_a_conversation_reaches_models_of_this_process(alone: dict[str, Ensemble]) -> None:
    messages: Any = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    (wanted,) = alone["sure"].generate(["x x\n\nx"], max_new_tokens=9)
    with serving("single", engines({"sure": alone["sure"]})) as (_, client):
        made = client.chat.completions.create(model="tiny", messages=messages, max_tokens=9)
    assert made.choices[0].message.content == wanted.text.removeprefix(" ")


def test_models_that_think_longer_are_another_system() -> None:
    plain = plan_of("vote", three("a", "b", "c"))
    places = [
        replace(
            plain, members=tuple(replace(each, checkpoint=replace(each.checkpoint, **limit)) for each in plain.members)
        )
        for limit in ({}, {"thinking_budget": 5}, {"thinking_budget": 9}, {"reasoning_effort": "low"})
    ]
    assert len({starting.served_id(each) for each in places}) == 4
