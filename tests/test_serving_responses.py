"""OpenAI's Responses API by its own client: the tool runner, parsing and streams, and that chats say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner
from running_server import Running
from running_server import serving as serving_ensemble
from servers import as_json
from test_decoder_failures import BAD, NAN, broken
from test_serving_strategies import serving, three, usage
from test_serving_tools import PARIS, ROME, TOOL, Person, answer, servers

from advisor.run.task_prompt import TaskPrompt
from advisor.serving.protocol import RequestLimits
from advisor.serving.responses_api import ResponsesRequest, chat_of
from ensemble import Ensemble
from ensemble.models.prompts import Dialogue, PromptTemplate

LIMITS = RequestLimits(new_tokens=400, default_tokens=80, default_stop=("End",))
FUNCTION: Any = {"type": "function", **TOOL["function"], "strict": False}
RUNNER_FUNCTION: Any = {**FUNCTION, "parameters": {**FUNCTION["parameters"], "required": ["city"]}}
PATH = "/v1/responses"


@pytest.fixture(scope="module")
def server(sure: Ensemble) -> Iterator[Running]:
    with serving_ensemble(sure, LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return server.client()


def respond(server: Running, **more: Any) -> Any:
    return server.ask(PATH, json.dumps({"model": "tiny", "input": "x", **more}))


# --- The same as a chat ---


def test_the_text_and_its_tokens_are_those_of_the_chat(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
    made = client.responses.create(model="tiny", input="x")
    assert made.output_text == chat.choices[0].message.content != ""
    assert chat.usage is not None
    assert made.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
        chat.usage.total_tokens,
    )


def test_a_text_that_is_cut_off_is_incomplete(client: openai.OpenAI) -> None:
    made = client.responses.create(model="tiny", input="x", max_output_tokens=2)
    assert made.status == "incomplete"
    assert made.incomplete_details and made.incomplete_details.reason == "max_output_tokens"
    last = list(client.responses.create(model="tiny", input="x", max_output_tokens=2, stream=True))[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == made.output_text


def test_the_members_get_what_they_get_for_a_chat() -> None:
    models = three("a", "a", "b")
    with serving("vote", models) as (_, client):
        items: list[Any] = [
            {"role": "user", "content": "first"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "an"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "sec"}, {"type": "input_text", "text": "ond"}]},
        ]
        client.responses.create(
            model="tiny", instructions="be short", input=items, temperature=0.3, top_p=0.9, max_output_tokens=9
        )
    prompt, settings = models[0].asked[-1]
    assert prompt == Dialogue((("first", "an"),), "second", "be short")
    assert (settings.temperature, settings.top_p, settings.max_new_tokens) == (0.3, 0.9, 9)


# --- OpenAI's helpers ---


def test_openais_client_parses_the_json_that_a_set_writes(client: openai.OpenAI) -> None:
    made = client.responses.parse(model="tiny", input="Who?", text_format=Person, max_output_tokens=100)
    assert isinstance(made.output_parsed, Person)


def test_openais_client_collects_a_stream(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="tiny", input="x")
    with client.responses.stream(model="tiny", input="x") as stream:
        events = list(stream)
        made = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == made.output_text == whole.output_text
    assert usage(made) == usage(whole)
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("how", [{}, {"stream": True}, {"stream": True, "eager": True}], ids=str)
def test_openais_tool_runner_ends_with_the_answer_to_the_results(how: dict[str, bool]) -> None:
    ran: list[object] = []

    def look(arguments: dict[str, object]) -> str:
        ran.append(arguments)
        return "21 degrees"

    runner = ResponsesToolRunner(functions=[RegisteredFunction(RUNNER_FUNCTION, look)])
    with servers(ROME, PARIS, ROME) as (models, raws), serving("vote", models) as (_, client):
        for raw, says in zip(raws, ("It is 21 degrees.", "It is 21 degrees.", "Warm."), strict=True):
            raw.answer = lambda path, body, first=raw.answer, says=says: (
                as_json(answer(says)) if body["messages"][-1]["role"] == "tool" else first(path, body)
            )
        made = runner.run(client, {"model": "tiny", "input": "How warm is it in Rome?"}, **how)  # type: ignore[arg-type]
    assert made.output_text == "It is 21 degrees."
    assert ran == [{"city": "Rome"}]
    for raw in raws[:2]:
        asked, called, result = raw.asked[-1][2]["messages"]
        assert asked == {"role": "user", "content": "How warm is it in Rome?"}
        (call,) = called["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": ROME[0][1]}
        assert result == {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}


def test_servers_get_the_function_in_the_form_of_chats() -> None:
    with servers("Warm.") as (models, raws), serving("single", models) as (_, client):
        client.responses.create(
            model="tiny",
            input="How warm is it in Rome?",
            tools=[FUNCTION],
            tool_choice={"type": "function", "name": "weather"},
            parallel_tool_calls=False,
        )
    body = raws[0].asked[-1][2]
    assert body["tools"] == [{"type": "function", "function": {**TOOL["function"], "strict": False}}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert body["parallel_tool_calls"] is False


def test_a_text_and_its_calls_are_one_message_of_the_chat() -> None:
    items = [
        {"role": "user", "content": "x"},
        {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": "Let me look."},
        {"type": "function_call", "id": "f", "status": "completed", "call_id": "1", "name": "a", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "b", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}]},
    ]
    messages = chat_of(ResponsesRequest.model_validate({"model": "m", "input": items})).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1].text == "Let me look."
    assert [call["id"] for call in messages[1].tool_calls or ()] == ["1", "2"]
    assert [(message.tool_call_id, message.text) for message in messages[2:]] == [("1", "one"), ("2", "two")]


# --- What is refused ---


@pytest.mark.parametrize(
    ("field", "value"), [("previous_response_id", "resp_1"), ("store", True), ("conversation", {"id": "c"})]
)
def test_what_needs_kept_responses_is_refused_with_the_way_out(server: Running, field: str, value: Any) -> None:
    error = respond(server, **{field: value}).error
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    way_out = "this server keeps no responses; leave it out, and send the whole conversation as input"
    assert error["message"] == f"{field}: {way_out}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"seed": 1}, "seed"),
        ({"input": [{"role": "user", "content": "x", "name": "ann"}]}, "input.0.name"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"max_output_tokens": 401}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 3}}}}, "text.format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"model": "other"}, "model"),
    ],
)
def test_other_parameters_are_refused_by_their_names(server: Running, fields: dict[str, Any], param: str) -> None:
    reply = respond(server, **fields)
    assert (reply.status, reply.error["param"]) == (404 if param == "model" else 400, param)
    assert param == "model" or reply.error["message"].startswith(param)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "previous_response_id": None, "background": False, "truncation": "disabled"},
        {"include": ["reasoning.encrypted_content"], "reasoning": None, "top_logprobs": 0, "metadata": {"a": "b"}},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "tools": [], "user": "ann"},
    ],
    ids=str,
)
def test_values_that_ask_for_nothing_are_accepted(server: Running, fields: dict[str, Any]) -> None:
    assert respond(server, **fields).status == 200
    assert 'path="/v1/responses"' in server.ask("/metrics").text


@pytest.mark.parametrize(
    "wrong",
    [None, 3, [], [3], [{"role": "user"}], [{"type": "reasoning", "id": "r", "summary": []}], [{"content": "x"}],
     [{"type": "function_call", "call_id": 1}], [{"role": "user", "content": [{"type": "input_image"}]}],
     [{"role": "user", "content": "\ud800"}], [{"type": ["x"], "role": "user"}], {"role": "user", "content": "x"}],
    ids=str,
)  # fmt: skip
def test_an_input_of_another_form_is_refused_in_one_line(server: Running, wrong: Any) -> None:
    reply = respond(server, input=wrong)
    assert reply.status == 400
    assert reply.error["param"].startswith("input")


def test_a_stream_that_fails_ends_with_its_error(tmp_path: Path) -> None:
    with (
        serving_ensemble(Ensemble([broken(NAN)], cache_dir=tmp_path), LIMITS) as running,
        running.client() as client,
        pytest.raises(openai.APIError, match="its logits are not numbers"),
    ):
        list(client.responses.create(model="tiny", input=BAD, max_output_tokens=6, stream=True))


def test_a_message_without_the_fields_of_the_task_is_named_as_input() -> None:
    prompt = TaskPrompt(PromptTemplate(question="{{a.strip()}} and {{b}}"), "run")
    with (
        serving("vote", three("a", "a", "b"), prompt=prompt) as (_, client),
        pytest.raises(openai.BadRequestError, match="input: ") as raised,
    ):
        client.responses.create(model="tiny", instructions="be short", input='{"a": "x"}')
    assert raised.value.param == "input"
