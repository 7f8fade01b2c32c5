"""A served model as a member of another ensemble: token ids in, log-probabilities by id out, as vLLM has them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from running_server import Reply, Running, serving
from test_decoder_failures import BAD, NAN, broken
from test_ensemble_api import member
from tiny import byte_tokenizer, tiny_model

from advisor.serving.protocol import RequestLimits
from ensemble import Ensemble
from ensemble.models.load import member_of
from ensemble.models.member import Member

COMPLETIONS, TOKENIZE = "/v1/completions", "/tokenize"
LIMITS = RequestLimits(texts=8, new_tokens=50, body=200_000, default_tokens=5, tokens=2000)
CLOSE = 1e-5
KEY = "sesame-1"


@pytest.fixture(scope="module")
def model() -> Member:
    return member_of(tiny_model(byte_tokenizer(), 5, positions=300, eos_rate=0.2), byte_tokenizer(), name="single")


@pytest.fixture(scope="module")
def server(model: Member, tables: Path) -> Iterator[Running]:
    with serving(Ensemble([model], cache_dir=tables), LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def several(sure: Ensemble) -> Iterator[Running]:
    with serving(sure, key=KEY) as running:
        yield running


def body(prompt: Any, **more: Any) -> dict[str, Any]:
    """As the client of member servers sends it."""
    neutral = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    penalties = {"presence_penalty": 0, "frequency_penalty": 0}
    usual = {"max_tokens": 1, "logprobs": 4, "return_tokens_as_token_ids": True}
    return {"model": "tiny", "prompt": prompt, **neutral, **penalties, **usual, **more}


def ask(server: Running, prompt: Any, **more: Any) -> Reply:
    return server.ask(COMPLETIONS, json.dumps(body(prompt, **more)))


def choices(server: Running, prompt: Any, **more: Any) -> list[dict[str, Any]]:
    reply = ask(server, prompt, **more)
    assert reply.status == 200, reply.text
    found: list[dict[str, Any]] = json.loads(reply.text)["choices"]
    return found


@torch.inference_mode()
def logprobs(model: Member, ids: Sequence[int]) -> list[float]:
    """The model's log-probabilities of all ids as the next token, in a run for itself."""
    values: list[float] = model.local.model(torch.tensor([list(ids)])).logits[0, -1].log_softmax(0).tolist()
    return values


def greedy(model: Member, ids: Sequence[int], tokens: int) -> list[int]:
    """The likeliest tokens after a context, up to EOS."""
    row = list(ids)
    while len(row) - len(ids) < tokens and (len(row) == len(ids) or row[-1] not in model.vocabulary.eos_ids):
        values = logprobs(model, row)
        row.append(values.index(max(values)))
    return row[len(ids) :]


def check_top(model: Member, ids: Sequence[int], top: dict[str, float], k: int) -> None:
    values = logprobs(model, ids)
    best = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:k]
    assert top == pytest.approx({f"token_id:{n}": values[n] for n in best}, abs=CLOSE)


# Values


def test_the_values_are_the_models_own_log_softmax_over_all_ids(server: Running, model: Member) -> None:
    ids = [5, 60, 7]
    (choice,) = choices(server, ids, logprobs=20)
    found = choice["logprobs"]
    (token,) = greedy(model, ids, 1)
    check_top(model, ids, found["top_logprobs"][0], 20)
    assert found["tokens"] == [f"token_id:{token}"]
    assert found["token_logprobs"] == [found["top_logprobs"][0][f"token_id:{token}"]]
    assert found["text_offset"] == [0]


def test_each_context_of_a_list_has_its_choice_also_where_they_share_beginnings(server: Running, model: Member) -> None:
    text = [9, 8, 7, 6, 5]
    contexts = [text, [*text, 1], [*text, 1, 2], text[:2], [*text, 1], [*text, 3], [*text, 1, 2, 3, 4]]
    contexts += [[n % 200, 3, n % 7] for n in range(50)]
    for _ in range(2):
        found = choices(server, contexts)
        assert [choice["index"] for choice in found] == list(range(len(contexts)))
        for ids, choice in zip(contexts, found, strict=True):
            check_top(model, ids, choice["logprobs"]["top_logprobs"][0], 4)


def test_chosen_ids_replace_the_likeliest_ones(server: Running, model: Member) -> None:
    chosen, contexts = [300, 0, 7], [[5, 60], [7]]
    for ids, choice in zip(contexts, choices(server, contexts, logprob_token_ids=chosen), strict=True):
        values = logprobs(model, ids)
        (token,) = greedy(model, ids, 1)
        wanted = {f"token_id:{n}": values[n] for n in (*chosen, token)}
        assert choice["logprobs"]["top_logprobs"] == [pytest.approx(wanted, abs=CLOSE)]


def test_an_impossible_token_is_written_as_in_openais_api(tables: Path) -> None:
    model = tiny_model(byte_tokenizer(), 5)

    def forbid(_model: Any, _args: Any, output: Any) -> Any:
        output.logits[..., 9] = -torch.inf
        return output

    model.register_forward_hook(forbid)
    with serving(Ensemble([member_of(model, byte_tokenizer(), name="one")], cache_dir=tables)) as running:
        (choice,) = choices(running, [1], logprob_token_ids=[9])
    assert choice["logprobs"]["top_logprobs"][0]["token_id:9"] == -9999


# Continuations


def test_a_draft_is_the_greedy_continuation_up_to_eos(server: Running, model: Member) -> None:
    contexts = [[n, n + 1] for n in range(40)]
    found = choices(server, contexts, max_tokens=4)
    reasons = set()
    for ids, choice in zip(contexts, found, strict=True):
        tokens = greedy(model, ids, 4)
        assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in tokens]
        ended = tokens[-1] in model.vocabulary.eos_ids
        assert choice["finish_reason"] == ("stop" if ended else "length")
        reasons.add(choice["finish_reason"])
        for place, top in enumerate(choice["logprobs"]["top_logprobs"]):
            check_top(model, [*ids, *tokens[:place]], top, 4)
        data = b"".join(model.vocabulary.token_bytes(token) or b"" for token in tokens)
        assert choice["text"] == data.decode(errors="replace")
    assert reasons == {"stop", "length"}


def test_usage_counts_all_tokens(server: Running, model: Member) -> None:
    contexts = [[1, 2, 3], [4]]
    new = sum(len(greedy(model, ids, 4)) for ids in contexts)
    usage = json.loads(ask(server, contexts, max_tokens=4).text)["usage"]
    assert usage == {"prompt_tokens": 4, "completion_tokens": new, "total_tokens": 4 + new}


def test_a_continuation_ends_with_the_context(server: Running) -> None:
    (choice,) = choices(server, [65] * 298, max_tokens=9)
    assert len(choice["logprobs"]["tokens"]) <= 2


def test_without_logprobs_token_ids_are_a_prompt_like_a_text(server: Running, model: Member) -> None:
    own: dict[str, Any] = {"max_tokens": 40, "temperature": 0.8, "seed": 3, "stop": ["e"]}
    replies = [server.complete(prompt=prompt, **own) for prompt in ("abc", model.encode_prompt("abc"))]
    text, of_ids = (json.loads(reply.text)["choices"][0] for reply in replies)
    assert (of_ids["text"], of_ids["finish_reason"]) == (text["text"], text["finish_reason"])
    assert of_ids["logprobs"] is None


def test_texts_are_written_as_before_beside_token_ids(server: Running, model: Member, tables: Path) -> None:
    wanted = Ensemble([model], cache_dir=tables).generate(["abc"] * 4, max_new_tokens=40)

    def text(_: int) -> str:
        reply = server.complete(prompt="abc", max_tokens=40, top_k=-1, min_p=0)
        return str(json.loads(reply.text)["choices"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(text, range(4))
        drafts = list(pool.map(lambda n: choices(server, [[n, 1], [n, 2]], max_tokens=4), range(4)))
        assert list(texts) == [made.text for made in wanted]
    assert drafts[2][1]["logprobs"]["tokens"] == [f"token_id:{token}" for token in greedy(model, [2, 2], 4)]


def test_figures_count_contexts_and_tokens(server: Running, model: Member) -> None:
    names = ("advisor_contexts_total", "advisor_prompt_tokens_total", "advisor_new_tokens_total")
    before = [server.figure(name) for name in names]
    choices(server, [[1, 2], [3]], max_tokens=1)
    assert [server.figure(name) - value for name, value in zip(names, before, strict=True)] == [2, 3, 2]


# What is refused


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"stop": "a"}, "stop"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"return_tokens_as_token_ids": False}, "return_tokens_as_token_ids"),
        ({"logprob_token_ids": [1], "logprobs": None}, "logprob_token_ids"),
        ({"logprob_token_ids": [1] * 129}, "logprob_token_ids"),
        ({"logprob_token_ids": [*range(100)], "max_tokens": 2}, "logprob_token_ids"),
        ({"logprob_token_ids": [384]}, "logprob_token_ids"),
        ({"logprob_token_ids": [-1]}, "logprob_token_ids.0"),
        ({"max_tokens": 51}, "max_tokens"),
        ({"prompt": [384]}, "prompt"),
        ({"prompt": [[1], [10**40]]}, "prompt"),
        ({"prompt": [True, 1]}, "prompt.0"),
        ({"prompt": [1, [2]]}, "prompt.1"),
        ({"prompt": [[1], []]}, "prompt.1"),
        ({"prompt": [[1], "a"]}, "prompt.1"),
        ({"prompt": [[1]] * 1025}, "prompt"),
        ({"prompt": [1] * 300}, "prompt"),
        ({"prompt": [[n, 2] for n in range(50)], "max_tokens": 9}, "max_tokens"),
    ],
)
def test_a_wrong_parameter_is_named(server: Running, more: dict[str, Any], param: str) -> None:
    reply = server.ask(COMPLETIONS, json.dumps(body([1, 2]) | more))
    assert reply.status == 400
    assert reply.error["param"] == param
    assert param.partition(".")[0] in reply.error["message"]
    assert len(reply.error["message"]) < 200


@pytest.mark.parametrize(("name", "value"), [("return_tokens_as_token_ids", True), ("logprob_token_ids", [1])])
def test_texts_have_no_logprobs_by_id(server: Running, name: str, value: object) -> None:
    error = server.complete(**{name: value}).error
    assert error["message"] == f"{name}: not supported by this server; leave it out"


def test_a_context_that_fills_the_models_is_refused(model: Member, tables: Path) -> None:
    with serving(Ensemble([model], cache_dir=tables), RequestLimits()) as running:
        error = ask(running, [1] * 300).error
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == "a prompt has 300 tokens; the model's context holds 300, and one must be left"


def test_tokens_of_contexts_are_limited_and_a_shared_beginning_counts_once(server: Running) -> None:
    assert "more than 2000 tokens together" in ask(server, [[n, *range(250)] for n in range(9)]).error["message"]
    assert ask(server, [[*range(n)] for n in range(100, 200)]).status == 200


def test_several_models_take_text_only(several: Running) -> None:
    reply = several.ask(COMPLETIONS, json.dumps(body([1, 2])), Authorization=f"Bearer {KEY}")
    assert reply.status == 400
    assert "they belong to one tokenizer, and this server combines 2 models" in reply.error["message"]


def test_the_server_goes_on_after_all_that(server: Running) -> None:
    assert ask(server, [1, 2]).status == 200
    assert server.engine.idle
    assert server.figure("advisor_failed_steps_total") == 0


# Failures


def test_logits_that_are_no_numbers_fail_their_own_request_alone(tables: Path) -> None:
    with serving(Ensemble([broken(NAN)], cache_dir=tables)) as running:
        reply = ask(running, byte_tokenizer()(BAD)["input_ids"], max_tokens=8)
        assert reply.status == 500
        assert reply.error["message"].startswith("the models failed: broken: its logits are not numbers (NaN) (request")
        assert ask(running, [1, 2]).status == 200
        assert running.figure("advisor_failed_texts_total") == 1
        assert running.engine.idle


def test_a_pass_that_fails_ends_its_request_alone(
    server: Running, model: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("no memory\nleft")

    before = server.figure("advisor_failed_steps_total")
    with monkeypatch.context() as patch:
        patch.setattr(model.local.model, "forward", fail)
        reply = ask(server, [1, 2, 3, 5, 8])
    assert reply.status == 500
    assert reply.error["message"].startswith("the models failed: no memory (request req_")
    check_top(model, [1, 2], choices(server, [1, 2])[0]["logprobs"]["top_logprobs"][0], 4)
    assert server.figure("advisor_failed_steps_total") == before + 1


def slow(tables: Path, seconds: float = 0.02) -> Ensemble:
    """A model that writes without an end, and needs some time for each token."""
    model = tiny_model(byte_tokenizer(), 5, eos_rate=0.0)
    model.register_forward_hook(lambda *_: time.sleep(seconds))
    return Ensemble([member_of(model, byte_tokenizer(), name="slow")], cache_dir=tables)


def test_a_client_that_leaves_ends_its_work(tables: Path) -> None:
    with serving(slow(tables)) as running:
        with running.post(COMPLETIONS, body([[1, 2]], max_tokens=4000)):
            running.until(lambda: not running.engine.idle)
        running.until(lambda: running.engine.idle)
        running.until(lambda: 'path="/v1/completions",status="499"' in running.ask("/metrics").text)


def test_a_stop_completes_the_work_that_was_accepted(tables: Path) -> None:
    with serving(slow(tables)) as running, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(ask, running, [[1, 2]], max_tokens=20)
        running.until(lambda: not running.engine.idle)
        running.stop()
        reply = accepted.result()
        assert len(json.loads(reply.text)["choices"][0]["logprobs"]["tokens"]) == 20
        running.thread.join(20)
        assert not running.errors


def test_other_requests_are_answered_while_a_long_one_runs_up_to_the_limit(tables: Path) -> None:
    with serving(slow(tables), RequestLimits(texts=2)) as running, ThreadPoolExecutor(1) as pool:
        long = pool.submit(ask, running, [[1, 2]], max_tokens=60)
        running.until(lambda: not running.engine.idle)
        assert ask(running, [3]).status == 200
        assert running.complete(max_tokens=2).status == 200
        assert ask(running, [[3], [4]], max_tokens=4000).status == 429
        assert not long.done()
        assert long.result().status == 200


# Tokenizing, and the model's figures


def test_a_text_is_tokenized_as_the_models_tokenizer_does(server: Running) -> None:
    reply = server.ask(TOKENIZE, json.dumps({"model": "tiny", "prompt": "cat <|end|>"}))
    ids = byte_tokenizer()("cat <|end|>")["input_ids"]
    assert json.loads(reply.text) == {"count": len(ids), "max_model_len": 300, "tokens": ids}


def test_special_tokens_are_added_unless_refused(tables: Path) -> None:
    with serving(Ensemble([member("unigram with bytes")], cache_dir=tables)) as running:
        found = [
            json.loads(running.ask(TOKENIZE, json.dumps({"prompt": "the cat", **more})).text)["tokens"]
            for more in ({}, {"add_special_tokens": False})
        ]
    assert found[0] == [1, *found[1]]


@pytest.mark.parametrize(
    ("content", "status", "param"),
    [
        ({"prompt": 3}, 400, "prompt"),
        ({"prompt": "\ud800"}, 400, "prompt"),
        ({"prompt": "a", "messages": []}, 400, "messages"),
        ({"prompt": "a", "model": "other"}, 404, "model"),
        ({"prompt": "a", "add_special_tokens": "yes"}, 400, "add_special_tokens"),
        ({"prompt": "a" * 100_000}, 400, None),
    ],
)
def test_a_wrong_text_is_refused(server: Running, content: Any, status: int, param: str | None) -> None:
    reply = server.ask(TOKENIZE, json.dumps(content))
    assert (reply.status, reply.error["param"]) == (status, param)


def test_a_single_model_says_how_long_its_context_is(server: Running, several: Running) -> None:
    assert json.loads(server.ask("/v1/models").text)["data"][0]["max_model_len"] == 300
    assert several.ask(TOKENIZE, json.dumps({"prompt": "a"})).status == 401
    models = several.ask("/v1/models", Authorization=f"Bearer {KEY}")
    assert json.loads(models.text)["data"][0]["max_model_len"] is None
