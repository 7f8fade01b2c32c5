"""Texts that must be JSON, asked for by OpenAI's own client: of a set that decodes together, a vote, and servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import openai
import pydantic
import pytest
from running_server import serving
from servers import Raw, as_json
from test_serving_strategies import LIMITS as STRATEGY_LIMITS
from test_serving_strategies import engines
from test_serving_strategies import serving as serving_strategy

from advisor.models.server_model import ServerModel
from advisor.serving.protocol import RequestLimits
from ensemble import Ensemble, Grammar
from ensemble.decode.settings import Settings
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import ServerAddress

LIMITS = RequestLimits(new_tokens=400, default_tokens=100, default_stop=("{",))


class Person(pydantic.BaseModel):
    """What is asked for."""

    age: int = pydantic.Field(ge=0, le=150)
    is_new: bool


MESSAGES: list[Any] = [{"role": "user", "content": "Who?"}]


@pytest.fixture(scope="module")
def client(sure: Ensemble) -> Iterator[openai.OpenAI]:
    with serving(sure, LIMITS) as running, running.client() as made:
        yield made


def test_openais_client_parses_what_a_set_writes(client: openai.OpenAI) -> None:
    made = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Person)
    assert isinstance(made.choices[0].message.parsed, Person)


def test_an_object_can_be_asked_for_without_a_schema(client: openai.OpenAI) -> None:
    wanted: Any = {"type": "json_object"}
    made = client.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format=wanted, temperature=1, seed=1, max_tokens=60
    )
    text = made.choices[0].message.content
    assert text is not None
    assert text.startswith("{")
    assert made.choices[0].finish_reason == "length" or isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "Invalid type: strin"),
        ({"$ref": "http://127.0.0.1/x"}, "retrieving it failed"),
        ({"type": "string", "pattern": "("}, "regex parse error"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(client: openai.OpenAI, schema: Any, reason: str) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match=f"response_format: the JSON schema: .*{reason}") as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, response_format=wanted)
    assert caught.value.param == "response_format"


def test_the_models_of_a_strategy_write_json(alone: dict[str, Ensemble]) -> None:
    with serving_strategy("vote", engines(alone), STRATEGY_LIMITS) as (_, asked):
        made = asked.chat.completions.parse(
            model="tiny", messages=MESSAGES, response_format=Person, max_tokens=100, stop=[]
        )
    assert isinstance(made.choices[0].message.parsed, Person)


def test_a_server_gets_the_schema_and_any_object_in_the_form_that_more_servers_know(raw: Raw) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    raw.answer = lambda _path, _body: as_json({"choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}]})
    with closing(ServerModel(ModelSpec(ServerAddress(raw.url, "m"), "m", chat_template="always"))) as model:
        for each in (schema, {"type": "object"}):
            model.generate("Who?", Settings(5, grammar=Grammar.json_schema(each)))
    first, second = (body["response_format"] for _, _, body in raw.asked)
    assert (first["json_schema"]["schema"], second) == (schema, {"type": "json_object"})
