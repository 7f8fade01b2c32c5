"""Calls of functions, of which a vote takes those that most models behind servers make, and texts that must be JSON."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pydantic
import pytest
from running_server import serving as serving_ensemble
from servers import Raw, as_json, raw_server
from test_serving_strategies import LIMITS as STRATEGY_LIMITS
from test_serving_strategies import engines, serving, usage

from advisor.models.server_model import ServerModel
from advisor.serving.protocol import RequestLimits
from ensemble import Ensemble, Grammar
from ensemble.decode.settings import Settings
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import ServerAddress

MESSAGES: list[Any] = [{"role": "user", "content": "How warm is it in Rome?"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
Calls = Sequence[tuple[str, str]]


@contextlib.contextmanager
def servers(*says: Calls | str) -> Iterator[tuple[list[ServerModel], list[Raw]]]:
    """A model behind a server for each: the calls that it makes, or its text."""
    with contextlib.ExitStack() as stack:
        raws, models = [], []
        for name, said in zip("abcde", says, strict=False):
            raw = stack.enter_context(raw_server())
            raw.answer = lambda _path, _body, said=said: as_json(answer(said))
            raws.append(raw)
            models.append(ServerModel(ModelSpec(ServerAddress(raw.url, "m"), name, place="x")))
        yield models, raws


def answer(said: Calls | str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
    if not isinstance(said, str):
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(said)
        ]
    return {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"completion_tokens": 3}}


ROME, PARIS = [("weather", '{"city": "Rome"}')], [("weather", '{"city": "Paris"}')]


def ask(strategy: str, *says: Calls | str, **more: Any) -> tuple[Any, list[Raw]]:
    with servers(*says) as (models, raws), serving(strategy, models) as (_, client):
        return client.chat.completions.create(model="tiny", messages=MESSAGES, tools=[TOOL], **more), raws


def test_the_calls_that_most_models_make_are_returned_and_no_empty_text(caplog: pytest.LogCaptureFixture) -> None:
    # In any order, and in any spelling.
    made, _ = ask("vote", PARIS, [*ROME, *PARIS], [*PARIS, ("weather", '{ "city" : "Rome" }')])
    (choice,) = made.choices
    assert choice.finish_reason == "tool_calls"
    assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls] == [*ROME, *PARIS]
    assert usage(made)["agreement"] == [2 / 3]
    assert "a text is empty" not in caplog.text


def test_a_text_is_the_answer_where_most_models_make_no_call() -> None:
    made, _ = ask("vote", ROME, "It is warm.", "Warm.")
    assert made.choices[0].message.content == "It is warm."
    assert made.choices[0].message.tool_calls is None
    assert made.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("says", "wins"),
    [((PARIS, ROME, "Warm."), PARIS), (([("weather", "{")], [("weather", "{")], ROME), ROME)],
    ids=["no majority", "no JSON"],
)
def test_without_a_majority_the_primarys_call_is_returned_and_what_is_no_json_is_no_vote(
    says: Sequence[Calls | str], wins: Calls
) -> None:
    made, _ = ask("vote", *says)
    assert made.choices[0].message.tool_calls[0].function.arguments == wins[0][1]


def test_servers_get_the_tools_and_what_was_said_with_them() -> None:
    called = answer(ROME)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": "c0", "content": "21 degrees"}
    with servers("It is 21 degrees.") as (models, raws), serving("single", models) as (_, client):
        client.chat.completions.create(
            model="tiny",
            messages=[*MESSAGES, called, result],
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "weather"}},
            parallel_tool_calls=False,
        )
    path, _, body = raws[0].asked[-1]
    assert path == "/v1/chat/completions"
    assert body["tools"] == [TOOL]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert body["parallel_tool_calls"] is False
    assert body["messages"] == [*MESSAGES, called, result]


class weather(pydantic.BaseModel):  # noqa: N801  # the name of the function
    """How warm it is in a city."""

    city: str


def test_openais_client_collects_the_calls_of_a_stream() -> None:
    with servers(ROME, PARIS, ROME) as (models, _), serving("vote", models) as (_, client):
        tools = [openai.pydantic_function_tool(weather)]
        usage_wanted: Any = {"include_usage": True}
        with client.chat.completions.stream(
            model="tiny", messages=MESSAGES, tools=tools, stream_options=usage_wanted
        ) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
            made = stream.get_final_completion()
    # This event needs a chunk behind that of the call.
    assert [each.parsed_arguments for each in done] == [weather(city="Rome")]
    assert made.choices[0].finish_reason == "tool_calls"
    assert usage(made)["agreement"] == [2 / 3]


def test_models_of_this_process_refuse_tools(sure: Ensemble) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "tools": [TOOL]}
    with serving_ensemble(sure) as server:
        error = server.ask("/v1/chat/completions", json.dumps(body)).error
    assert re.match("tools: calls of functions .* are for models behind servers", error["message"])


# --- Texts that must be JSON ---

LIMITS = RequestLimits(new_tokens=400, default_tokens=100, default_stop=("{",))


class Person(pydantic.BaseModel):
    """What is asked for."""

    age: int = pydantic.Field(ge=0, le=150)
    is_new: bool


WHO: list[Any] = [{"role": "user", "content": "Who?"}]


@pytest.fixture(scope="module")
def client(sure: Ensemble) -> Iterator[openai.OpenAI]:
    with serving_ensemble(sure, LIMITS) as running, running.client() as made:
        yield made


def test_openais_client_parses_what_a_set_writes(client: openai.OpenAI) -> None:
    made = client.chat.completions.parse(model="tiny", messages=WHO, response_format=Person)
    assert isinstance(made.choices[0].message.parsed, Person)


def test_an_object_can_be_asked_for_without_a_schema(client: openai.OpenAI) -> None:
    wanted: Any = {"type": "json_object"}
    made = client.chat.completions.create(
        model="tiny", messages=WHO, response_format=wanted, temperature=1, seed=1, max_tokens=60
    )
    text = made.choices[0].message.content
    assert text is not None
    assert text.startswith("{")
    assert made.choices[0].finish_reason == "length" or isinstance(json.loads(text), dict)


def test_a_schema_that_cannot_be_followed_is_refused(client: openai.OpenAI) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}
    with pytest.raises(openai.BadRequestError, match=r"response_format: the JSON schema: .*Invalid type") as caught:
        client.chat.completions.create(model="tiny", messages=WHO, response_format=wanted)
    assert caught.value.param == "response_format"


def test_the_models_of_a_strategy_write_json(alone: dict[str, Ensemble]) -> None:
    with serving("vote", engines(alone), STRATEGY_LIMITS) as (_, asked):
        made = asked.chat.completions.parse(model="tiny", messages=WHO, response_format=Person, max_tokens=100, stop=[])
    assert isinstance(made.choices[0].message.parsed, Person)


def test_a_server_gets_the_schema_and_any_object_in_the_form_that_more_servers_know(raw: Raw) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    raw.answer = lambda _path, _body: as_json({"choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}]})
    with contextlib.closing(ServerModel(ModelSpec(ServerAddress(raw.url, "m"), "m", chat_template="always"))) as model:
        for each in (schema, {"type": "object"}):
            model.generate("Who?", Settings(5, grammar=Grammar.json_schema(each)))
    first, second = (body["response_format"] for _, _, body in raw.asked)
    assert (first["json_schema"]["schema"], second) == (schema, {"type": "json_object"})
