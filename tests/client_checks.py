"""Checks of a server by a client that others wrote: ``client_checks.py CLIENT URL TOOLS_URL KEY``, in its environment.

The server has the model ``demo``, and the one with tools the model ``run``. ``tests/test_clients.py`` reads the JSON
object that is printed. It says of each check why it failed; null if it passed.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
from collections.abc import Callable
from typing import Any

NAME, URL, TOOLS_URL, KEY = sys.argv[1:]
QUESTION: Any = [{"role": "user", "content": "Ann has 12 pens. She buys 5 more. How many pens does Ann have now?"}]
TURNS: Any = [{"role": "system", "content": "Answer."}, *QUESTION, {"role": "assistant", "content": "17."}, *QUESTION]
SCHEMA: Any = {"title": "flag", "type": "object", "properties": {}, "additionalProperties": False}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "flag", "schema": SCHEMA, "strict": True}}
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}}
AT_ONCE = 16


class OpenAI:
    """OpenAI's own client."""

    def __init__(self, url: str = URL, model: str = "demo", key: str = KEY) -> None:
        import openai

        self.errors = openai.NotFoundError, openai.BadRequestError, openai.AuthenticationError
        self._place: Any = {"base_url": url, "api_key": key, "max_retries": 0}
        self._model, self._library = model, openai
        self._create: Any = openai.OpenAI(**self._place).chat.completions.create

    def choices(self, messages: Any, **more: Any) -> Any:
        return self._create(model=self._model, messages=messages, **more).choices

    def text(self, messages: Any, **more: Any) -> str:
        return str(self.choices(messages, **more)[0].message.content)

    def stream(self) -> str:
        parts = self._create(model=self._model, messages=QUESTION, stream=True)
        return "".join(part.choices[0].delta.content or "" for part in parts)

    def calls(self) -> list[tuple[str, Any]]:
        calls = self.choices(QUESTION, tools=[TOOL])[0].message.tool_calls
        return [(call.function.name, json.loads(call.function.arguments)) for call in calls]

    def as_json(self) -> Any:
        return json.loads(self.text(QUESTION, response_format=FORM))

    async def _all(self) -> list[str]:
        async with self._library.AsyncOpenAI(**self._place) as client:
            create = client.chat.completions.create
            made = await asyncio.gather(*(create(model=self._model, messages=QUESTION) for _ in range(AT_ONCE)))
        return [each.choices[0].message.content or "" for each in made]

    def at_once(self) -> list[str]:
        return asyncio.run(self._all())


class LiteLLM(OpenAI):
    """LiteLLM, whose functions are like the methods of OpenAI's client."""

    def __init__(self, url: str = URL, model: str = "demo", key: str = KEY) -> None:
        import litellm

        self.errors = litellm.NotFoundError, litellm.BadRequestError, litellm.AuthenticationError
        self._place = {"api_base": url, "api_key": key, "num_retries": 0}
        self._model, self._library = f"openai/{model}", litellm

    def _create(self, **fields: Any) -> Any:
        return self._library.completion(**self._place, **fields)

    async def _all(self) -> list[str]:
        ask = self._library.acompletion
        made = await asyncio.gather(*(ask(model=self._model, messages=QUESTION, **self._place) for _ in range(AT_ONCE)))
        return [each.choices[0].message.content for each in made]


class LangChain:
    """LangChain's ``ChatOpenAI``."""

    def __init__(self, url: str = URL, model: str = "demo", key: str = KEY) -> None:
        import openai
        from langchain_core.messages import convert_to_messages
        from langchain_openai import ChatOpenAI

        self.errors = openai.NotFoundError, openai.BadRequestError, openai.AuthenticationError
        self._read = convert_to_messages
        self._model = ChatOpenAI(model=model, base_url=url, api_key=key, max_retries=0)

    def choices(self, messages: Any, n: int) -> Any:
        (made,) = self._model.generate([self._read(messages)], n=n).generations
        return made

    def text(self, messages: Any, **more: Any) -> str:
        return str(self._model.invoke(messages, **more).content)

    def stream(self) -> str:
        return "".join(str(part.content) for part in self._model.stream(QUESTION))

    def calls(self) -> list[tuple[str, Any]]:
        made: Any = self._model.bind_tools([TOOL]).invoke(QUESTION)
        return [(call["name"], call["args"]) for call in made.tool_calls]

    def as_json(self) -> Any:
        return self._model.with_structured_output(SCHEMA, method="json_schema").invoke(QUESTION)

    def at_once(self) -> list[str]:
        return [str(each.content) for each in self._model.batch([QUESTION] * AT_ONCE, {"max_concurrency": AT_ONCE})]


Client: Any = {"openai": OpenAI, "litellm": LiteLLM, "langchain-openai": LangChain}[NAME]


def errors() -> bool:
    """The client's own errors for another model, a wrong value and a wrong key."""
    asked = (Client(model="other"), {}), (Client(), {"temperature": 9}), (Client(key="x"), {})
    for (client, more), kind in zip(asked, Client().errors, strict=True):
        try:
            client.text(QUESTION, **more)
        except kind:
            continue
        return False
    return True


CHECKS: dict[str, Callable[[], bool]] = {
    "chat": lambda: "17" in Client().text(QUESTION),
    "conversation": lambda: Client().text(TURNS) != "",
    "several texts": lambda: len(Client().choices(QUESTION, n=3)) == 3,
    "stream": lambda: Client().stream() == Client().text(QUESTION),
    "tools": lambda: Client(TOOLS_URL, "run").calls() == [("weather", {"city": "Rome"})],
    "JSON": lambda: Client().as_json() == {},
    "errors": errors,
    "16 at once": lambda: Client().at_once() == [Client().text(QUESTION)] * AT_ONCE,
}


def problem(name: str) -> str | None:
    """Why a check failed; None if it passed."""
    try:
        return None if CHECKS[name]() else "another answer"
    except Exception as error:  # noqa: BLE001  # whatever a client raises is what was found
        return f"{type(error).__name__}: {error}"


result = {"version": importlib.metadata.version(NAME), "checks": {name: problem(name) for name in CHECKS}}
print(json.dumps(result))  # noqa: T201  # what the test reads
