"""Grammars of clients that take long to check or to build: other clients do not wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import llguidance
import openai
import pytest
from running_server import Running, serving

from advisor.serving.grammar_checks import GrammarChecks
from advisor.serving.protocol import RequestLimits
from ensemble import Ensemble, Grammar
from ensemble.common.grammar import bytes_in_use
from ensemble.errors import InputError
from ensemble.step.grammar import GrammarState

LIMITS = RequestLimits(new_tokens=400, default_tokens=20)
MESSAGES: list[Any] = [{"role": "user", "content": "Who?"}]
CHAT = "/v1/chat/completions"


@pytest.fixture
def running(sure: Ensemble) -> Iterator[Running]:
    with serving(sure, LIMITS) as found:
        yield found


@pytest.fixture
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.serving.grammar_checks._SECONDS", 0.4)


def hostile(number: int = 0) -> dict[str, Any]:
    """A short schema whose check takes seconds; each number has another one."""
    return {"type": "integer", "multipleOf": 199999 + 2 * number}


def body(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"model": "tiny", "messages": MESSAGES, "response_format": form}


def answer(client: openai.OpenAI, **options: Any) -> str:
    made = client.with_options(timeout=20).chat.completions.create(model="tiny", messages=MESSAGES, **options)
    return made.choices[0].message.content or ""


def test_chats_are_answered_while_hostile_grammars_are_checked(running: Running) -> None:
    client = running.client()
    with contextlib.ExitStack() as stack:
        for number in range(60):
            stack.enter_context(running.post(CHAT, body(hostile(number))))
        assert answer(client)
        # Their clients leave.
    for number in range(60):
        running.post(CHAT, body(hostile())).close()
        if number % 20 == 0:
            answer(client, response_format={"type": "json_object"})
    assert answer(client, response_format=body({"type": "boolean"})["response_format"]) in ("true", "false")


def test_a_signal_ends_the_server_while_grammars_are_checked(sure: Ensemble) -> None:
    with serving(sure, LIMITS) as running, contextlib.ExitStack() as stack:
        for number in range(30):
            stack.enter_context(running.post(CHAT, body(hostile(number))))
        assert answer(running.client())
        running.stop()
        running.thread.join(15)
        assert not running.thread.is_alive()


def test_one_grammar_more_than_wait_is_told_to_come_again(running: Running) -> None:
    async def ask_all() -> httpx.Response:
        async with httpx.AsyncClient(base_url=running.url, timeout=30, limits=httpx.Limits()) as client:
            asked = [asyncio.ensure_future(client.post(CHAT, json=body(hostile(number)))) for number in range(80)]
            for each in asyncio.as_completed(asked):
                reply = await each
                if reply.status_code == 429:
                    for left in asked:
                        left.cancel()
                    return reply
        raise AssertionError("all grammars found a place")

    reply = asyncio.run(ask_all())
    assert reply.headers["Retry-After"] == "1"
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"


def test_what_was_found_is_remembered(little_time: None) -> None:
    async def check_twice() -> None:
        checks = GrammarChecks(lambda: "")
        good = Grammar.unchecked({"type": "boolean"})
        passed = await checks.check(good)
        with pytest.raises(InputError, match=r"it takes more than 0\.4 s"):
            await checks.check(Grammar.unchecked(hostile()))
        # No process could check them any more.
        checks.close()
        assert (await checks.check(good)).size == passed.size > 0
        with pytest.raises(InputError, match=r"it takes more than 0\.4 s"):
            await checks.check(Grammar.unchecked(hostile()))

    asyncio.run(check_twice())


def test_clients_with_one_grammar_share_its_check_until_the_last_one_leaves(little_time: None) -> None:
    async def check() -> None:
        checks = GrammarChecks(lambda: "")
        first, second, third = [asyncio.ensure_future(checks.check(Grammar.unchecked(hostile()))) for _ in range(3)]
        await asyncio.sleep(0.1)
        first.cancel()
        with pytest.raises(InputError, match=r"it takes more than 0\.4 s"):
            await second
        with pytest.raises(InputError, match=r"it takes more than 0\.4 s"):
            await third
        last = asyncio.ensure_future(checks.check(Grammar.unchecked(hostile(1))))
        await asyncio.sleep(0.1)
        last.cancel()
        assert await checks.check(Grammar.unchecked({"type": "null"}))
        checks.close()

    asyncio.run(check())


def test_a_grammar_that_takes_much_memory_is_refused(sure: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.serving.grammar_checks._SECONDS", 30.0)  # on a busy machine it takes its time, too
    with serving(sure, LIMITS) as running:
        reply = running.ask(CHAT, json.dumps(body({"type": "integer", "multipleOf": 20011})))
    assert (reply.status, reply.error["message"]) == (400, "response_format: it takes more than 4 MiB of memory")


def test_grammars_are_built_beside_the_decoder(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    made = llguidance.LLMatcher

    def matcher(*arguments: Any, **options: Any) -> llguidance.LLMatcher:
        threads.append(threading.current_thread().name)
        return made(*arguments, **options)

    monkeypatch.setattr("llguidance.LLMatcher", matcher)
    schema = {"enum": ["built", "beside"]}
    assert json.loads(answer(running.client(), response_format=body(schema)["response_format"])) in schema["enum"]
    assert threads == ["grammars"]


def test_the_memory_of_grammars_is_bounded(sure: Ensemble) -> None:
    vocabularies = [each.vocabulary for each in sure.members]
    GrammarState(Grammar.json_schema({"type": "null"}), vocabularies)
    before = bytes_in_use()
    if before is None:
        pytest.skip("the C library does not tell")
    checked = Grammar.json_schema({"type": "integer", "multipleOf": 20011})
    assert checked.size > 2**21
    for number in range(24):
        other = Grammar.unchecked({"type": "integer", "multipleOf": 20011 + 2 * number})
        GrammarState(replace(other, size=checked.size), vocabularies)
    grown = (bytes_in_use() or 0) - before
    assert grown < 80 * 2**20
