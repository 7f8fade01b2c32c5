"""The server, asked by OpenAI's own client: what it writes is what the ensemble writes, streamed or not."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import gc
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from running_server import Running, serving
from test_ensemble_api import member

from advisor.serving.protocol import RequestLimits
from ensemble import Ensemble
from ensemble.common.garbage import keep_present
from ensemble.decode.settings import Batch
from ensemble.models.member import Member

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('a system message comes first') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"
)
LIMITS = RequestLimits(new_tokens=400, default_tokens=24)


@pytest.fixture(scope="module")
def server(sure: Ensemble) -> Iterator[Running]:
    with serving(sure, LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.client() as made:
        yield made


def talking(number: int = 0) -> Member:
    """A member with a chat template."""
    plain = member("bytes" if number == 0 else "unigram with bytes", number)
    tokenizer = copy.deepcopy(plain.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return dataclasses.replace(plain, tokenizer=tokenizer, chat_template="auto")


# Completions


def test_a_completion_is_what_the_ensemble_writes(sure: Ensemble, client: openai.OpenAI) -> None:
    (wanted,) = sure.generate(["x"], max_new_tokens=30)
    made = client.completions.create(model="tiny", prompt="x", max_tokens=30)
    assert made.object == "text_completion"
    assert made.model == "tiny"
    assert (made.choices[0].text, made.choices[0].finish_reason, made.choices[0].index) == (wanted.text, "length", 0)
    assert made.usage is not None
    counted = (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens)
    assert counted == (len(sure.encode("x")[0]), 30, len(sure.encode("x")[0]) + 30)


def test_without_a_limit_a_text_has_the_usual_length(server: Running) -> None:
    assert json.loads(server.complete().text)["usage"]["completion_tokens"] == LIMITS.default_tokens


def test_eos_is_the_reason_stop(pair: Ensemble) -> None:
    prompts = [f"p{n}" for n in range(12)]
    wanted = pair.generate(prompts, max_new_tokens=40)
    assert {made.finish_reason for made in wanted} == {"eos", "length"}
    with serving(pair) as running, running.client() as client:
        made = client.completions.create(model="tiny", prompt=prompts, max_tokens=40)
    reasons = {"eos": "stop", "length": "length"}
    assert [choice.text for choice in made.choices] == [one.text for one in wanted]
    assert [choice.finish_reason for choice in made.choices] == [reasons[one.finish_reason] for one in wanted]
    assert [choice.index for choice in made.choices] == list(range(12))


def test_the_runs_own_stop_strings_count_where_a_request_has_none(sure: Ensemble) -> None:
    limits = RequestLimits(new_tokens=60, default_tokens=100, default_stop=("mat",))
    with serving(sure, limits) as running, running.client() as client:
        usual = client.completions.create(model="tiny", prompt="x")
        none = client.completions.create(model="tiny", prompt="x", stop=[])
    assert usual.choices[0].finish_reason == "stop"
    # The usual length is no longer than the longest.
    assert (none.choices[0].finish_reason, none.usage and none.usage.completion_tokens) == ("length", 60)


def test_a_seed_draws_what_generate_draws_and_the_same_again(pair: Ensemble) -> None:
    how: dict[str, Any] = {"temperature": 1.2, "top_p": 0.9, "seed": 5}
    wanted = pair.generate(["x"] * 4, max_new_tokens=16, **how)
    with serving(pair) as running, running.client() as client:
        ask = client.completions.create
        first, again = (ask(model="tiny", prompt="x", max_tokens=16, n=4, **how) for _ in range(2))
        usual, drawn = (ask(model="tiny", prompt="x", n=3, seed=5, **more) for more in ({}, {"temperature": 1.0}))
        fresh = {ask(model="tiny", prompt="x", max_tokens=16, temperature=1.2).choices[0].text for _ in range(4)}
    assert [choice.text for choice in first.choices] == [one.text for one in wanted]
    assert first.choices == again.choices
    assert usual.choices == drawn.choices
    assert len(fresh) > 1


# Log-probabilities


def test_completions_have_log_probabilities_of_their_tokens(sure: Ensemble, client: openai.OpenAI) -> None:
    made = client.completions.create(model="tiny", prompt="x", max_tokens=60, logprobs=3, stop="🙂").choices[0]
    found = made.logprobs
    assert found is not None
    tokens, values, tops, offsets = found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset
    assert tokens and values and tops and offsets
    traced = sure.generate(["x"], max_new_tokens=60, stop=["🙂"], trace=True)[0].trace
    for value, step in zip(values, traced, strict=False):
        emitted = step.candidates[step.chosen].token
        share = sum(candidate.mean for candidate in step.candidates if candidate.token == emitted)
        assert value == pytest.approx(math.log(share), abs=1e-6)
    for token, value, top in zip(tokens, values, tops, strict=True):
        assert top[token] == value
        assert 1 <= len(top) <= 4
    # A token of this member is a byte, so that a character beyond ASCII has several.
    assert "bytes:\\xe4" in tokens
    assert bytes(b for token in tokens for b in spelled(token)).decode() == made.text
    assert [made.text[offset] for offset, token in zip(offsets, tokens, strict=True) if len(token) == 1] == [
        token for token in tokens if len(token) == 1
    ]


def spelled(token: str) -> bytes:
    """The bytes of a token of ``/v1/completions``."""
    if token.startswith("bytes:"):
        return bytes(int(part, 16) for part in token.removeprefix("bytes:").split("\\x")[1:])
    return token.encode()


def test_chats_have_log_probabilities_of_their_tokens(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "x"}], max_tokens=30, logprobs=True, top_logprobs=2
    ).choices[0]
    assert made.logprobs is not None
    content = made.logprobs.content
    assert content is not None
    data = bytes(b for token in content for b in token.bytes or [])
    assert data.decode(errors="replace") == made.message.content
    for token in content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 2
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob


# Streams


@pytest.mark.parametrize(("drafts", "stop"), [(True, None), (False, ["mat. 今", "🙂 c"])])
def test_a_streamed_completion_is_the_whole_one(sure: Ensemble, drafts: bool, stop: Any) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": ["x", "yy"], "max_tokens": 60, "stop": stop, "logprobs": 2}
    with serving(sure, LIMITS, batch=Batch() if drafts else Batch(draft=0)) as running, running.client() as client:
        whole = client.completions.create(**asked)
        parts = [*client.completions.create(**asked, stream=True, stream_options={"include_usage": True})]
    *pieces, last = parts
    assert last.usage == whole.usage
    assert not last.choices
    assert len(pieces) > 6
    for choice in whole.choices:
        own = [part.choices[0] for part in pieces if part.choices[0].index == choice.index]
        assert "".join(part.text for part in own) == choice.text
        assert "\ufffd" not in "".join(part.text for part in own[:-1])
        assert [part.finish_reason for part in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        assert choice.logprobs is not None
        for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            streamed = [value for part in own for value in getattr(part.logprobs, name)]
            wanted = getattr(choice.logprobs, name)
            assert streamed == (pytest.approx(wanted, abs=1e-6) if name == "token_logprobs" else streamed)
            assert len(streamed) == len(wanted)


def test_a_streamed_chat_is_the_whole_one(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 60}
    whole = client.chat.completions.create(**asked)
    parts = [part.choices[0] for part in client.chat.completions.create(**asked, stream=True)]
    assert parts[0].delta.role == "assistant"
    assert all(part.delta.role is None for part in parts[1:])
    assert "".join(part.delta.content or "" for part in parts) == whole.choices[0].message.content
    assert whole.choices[0].message.role == "assistant"
    assert parts[-1].finish_reason == whole.choices[0].finish_reason == "length"


# Chats


def test_a_single_message_is_read_as_a_prompt_is(sure: Ensemble, client: openai.OpenAI) -> None:
    (wanted,) = sure.generate(["x yz"], max_new_tokens=20)
    content: Any = [{"type": "text", "text": "x "}, {"type": "text", "text": "yz"}]
    made = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": content}], max_completion_tokens=20
    )
    assert made.choices[0].message.content == wanted.text
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(sure.encode("x yz")[0])


def test_a_conversation_goes_through_every_members_chat_template(tables: Path) -> None:
    ensemble = Ensemble([talking(), talking(1)], cache_dir=tables)
    messages: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "z"},
    ]
    read = "<system>be brief\n<user>x\n<assistant>y\n<user>z\n<assistant>"
    with serving(ensemble) as running, running.client() as client:
        made = client.chat.completions.create(model="tiny", messages=messages, max_tokens=12)
        single = client.chat.completions.create(model="tiny", messages=messages[1:2], max_tokens=12)
        late = running_error(client, [*messages, messages[0]])
    plain = Ensemble([dataclasses.replace(one, chat_template="never") for one in ensemble.members], cache_dir=tables)
    # A template's text is read without special tokens; those of these tokenizers add <s> for one of the members.
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(plain.encode(read)[0])
    own = [{**message, "role": message["role"].replace("developer", "system")} for message in messages]
    # A message does not begin with the space after its prompt.
    wanted = [text.text.removeprefix(" ") for text in ensemble.generate([own, "x"], max_new_tokens=12)]
    assert [each.choices[0].message.content for each in (made, single)] == wanted
    assert "a system message comes first" in late


def running_error(client: openai.OpenAI, messages: Any) -> str:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=12)
    return raised.value.message


def test_a_conversation_is_one_text_for_a_member_without_a_chat_template(sure: Ensemble, client: openai.OpenAI) -> None:
    roles = ("system", "user", "assistant", "user")
    messages: Any = [
        {"role": role, "content": text} for role, text in zip(roles, ("Add.", "1+1?", "2", "2+2?"), strict=True)
    ]
    (wanted,) = sure.generate(["Add.\n\n1+1? 2\n\n2+2?"], max_new_tokens=12)
    made = client.chat.completions.create(model="tiny", messages=messages, max_tokens=12)
    assert made.choices[0].message.content == wanted.text.removeprefix(" ")
    assert "has no chat template, so it takes a text" in running_error(client, messages[:2] + messages[1:])


# Models


def test_the_one_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "unite-advisor"


@pytest.mark.parametrize("name", ["tin", "gpt-4o", "a/b", ""])
def test_another_model_is_not_found(client: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist; this server has 'tiny'") as raised:
        client.completions.create(model=name, prompt="x")
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
    if name:
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(name)


def test_figures_count_tokens_and_texts(server: Running) -> None:
    before = [server.figure(f"advisor_{name}_tokens_total") for name in ("prompt", "new")]
    server.complete(prompt="xyz", max_tokens=7)
    after = [server.figure(f"advisor_{name}_tokens_total") for name in ("prompt", "new")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [3, 7]
    assert server.figure("advisor_running_texts") == server.figure("advisor_waiting_texts") == 0
    assert server.figure("advisor_batch_rows_count") > 0
    assert server.figure("advisor_first_token_seconds_count") > 0
    # No second figures with times.
    assert "_created" not in server.ask("/metrics").text


FREES = """
import os
from advisor.serving.engine import return_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

# When it is freed, the C library keeps all later pieces that are smaller.
del (large := [bytearray(b"x") * (30 << 20)])[0]
before = resident()
pieces = [bytearray(b"x") * size for _ in range(20) for size in (8 << 20, 100_000)]
del pieces[::2]
kept = resident() - before
return_freed_memory()
print(kept >> 20, (resident() - before) >> 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc")
def test_memory_that_is_free_goes_back_to_the_system() -> None:
    ran = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True)
    kept, left = map(int, ran.stdout.split())
    assert left < 20 < kept


def test_what_is_there_at_the_start_is_no_longer_looked_at_for_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ensemble.common.garbage.gc", gc)
    with warnings.catch_warnings():
        # Connections that clients of earlier tests broke off.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    keep_present()
    try:
        assert gc.get_freeze_count() > 0
        assert len(gc.get_objects()) < gc.get_freeze_count() / 10
    finally:
        gc.unfreeze()
