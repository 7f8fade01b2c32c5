"""Candidates behind ``transformers serve``, a server that this project did not write, with tiny models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from servers import Answer, Raw, as_json, completion, into_hub_cache, models, raw_server, transformers_serve
from tiny import byte_tokenizer, save_member, tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.progress import Progress
from advisor.tasks import load_task
from ensemble import Ensemble
from ensemble.models.load import member_of

if TYPE_CHECKING:
    from pools import Place

    from advisor import records

pytest_plugins = ["pools"]

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[me]{% endif %}"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub cache with two models: tiny/plain, and tiny/chat, which has a chat template."""
    home = tmp_path_factory.mktemp("home")
    for seed, name in enumerate(("plain", "chat")):
        tokenizer = byte_tokenizer((("What", " is"), (" the", "ing"))[seed])
        tokenizer.chat_template = TEMPLATE if name == "chat" else None
        save_member(home / name, tiny_model(tokenizer, seed=seed, hidden=8, positions=256), tokenizer)
        into_hub_cache(home, f"tiny/{name}", home / name)
    return home


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    with transformers_serve(home) as url:
        yield url


def answers(place: Place, *lines: str, **keys: Any) -> dict[str, tuple[records.Answer, ...]]:
    """Every candidate's answers, by name."""
    place.task(**keys)
    place.pool(*lines)
    plan = place.plan()
    with ResponseCache(place.cache) as store:
        found = Profiler(plan, store, Progress(quiet=True)).alone([one.name for one in plan.candidates], plan.dev)
    assert all(one.errors == 0 for one in found.values())
    return {name: one.answers for name, one in found.items()}


@pytest.mark.parametrize(("model", "template"), [("plain", "never"), ("chat", "never"), ("chat", "always")])
def test_greedy_responses_are_those_of_the_same_model_loaded_here(
    place: Place, home: Path, url: str, model: str, template: str
) -> None:
    found = answers(
        place,
        f"{home / model} name=here chat_template={template}",
        f"openai:{url}#tiny/{model} name=there chat_template={template}",
    )
    assert [one.text for one in found["there"]] == [one.text for one in found["here"]]
    assert len({one.text for one in found["there"]}) > 1
    assert {one.finish_reason for one in found["there"]} <= {"length", "eos"}


def test_a_response_ends_before_a_stop_string_and_says_so(place: Place, home: Path, url: str) -> None:
    line = f"openai:{url}#tiny/plain chat_template=never"
    whole = [one.text for one in answers(place, line, max_new_tokens=12)["plain"]]
    stop = [next(text[3:5] for text in whole if len(text) > 6)]
    found = answers(place, line, f"{home / 'plain'} name=here chat_template=never", max_new_tokens=12, stop=stop)
    assert [one.text for one in found["plain"]] == [text.partition(stop[0])[0] for text in whole]
    assert [one.text for one in found["plain"]] == [one.text for one in found["here"]]
    ended = [one.finish_reason for one, text in zip(found["plain"], whole, strict=True) if stop[0] in text]
    assert set(ended) == {"stop"}


def test_options_are_scored_by_a_server_that_gives_likelihoods_as_by_the_model_here(place: Place, home: Path) -> None:
    """What vLLM answers to ``echo`` and ``logprobs``, from the model itself."""
    tokenizer = AutoTokenizer.from_pretrained(home / "plain")
    model = AutoModelForCausalLM.from_pretrained(home / "plain").eval()

    def scored(path: str, body: dict[str, Any]) -> Answer:
        if not body.get("echo"):
            return models("m") if path.endswith("/models") else completion("7")
        encoded = tokenizer(body["prompt"], return_offsets_mapping=True)
        ids = torch.tensor([encoded["input_ids"]])
        with torch.inference_mode():
            logits = model(ids).logits[0].log_softmax(dim=-1)
        new = int(logits[-1].argmax())
        values = [None, *logits[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist(), float(logits[-1, new])]
        offsets = [*(start for start, _ in encoded["offset_mapping"]), len(body["prompt"])]
        logprobs = {"token_logprobs": values, "text_offset": offsets}
        text = body["prompt"] + tokenizer.decode([new])
        return as_json({"choices": [{"text": text, "finish_reason": "length", "logprobs": logprobs}]})

    with raw_server() as raw:
        raw.answer = scored
        line = f"openai:{raw.url}#m chat_template=never"
        found = answers(place, line, choices=["{{answer}}", "none of them", "What is"], metric="choice")["m"]
    alone = Ensemble([member_of(model, tokenizer, name="m", chat_template="never")], method="average")
    for answer, example in zip(found, load_task("task.yaml").examples, strict=True):
        scores = alone.score(example.prompt, [f" {choice}" for choice in example.choices])
        # Here the few special tokens, which are never written, have no part of the probability.
        assert np.allclose(np.array(answer.options, float), scores, rtol=0.01)
        assert answer.text == example.choices[int(np.argmax(answer.options))]


def test_a_set_is_decoded_without_the_remote_one_which_is_compared_and_votes(
    place: Place, home: Path, url: str
) -> None:
    place.task(metric="exact_match")
    place.pool(
        f"{home / 'plain'} name=one chat_template=never",
        f"openai:{url}#tiny/chat name=far",
        f"{home / 'chat'} name=two",
    )
    place.select("--quiet")
    result = place.json()
    status = {each["model"]: each["status"] for each in result["candidates"]}
    assert status["far"] == "rejected"
    assert sorted(result["selected"]) == ["one", "two"]
    assert result["ensemble"]["method"] == "unite"
    (far,) = [each for each in result["candidates"] if each["model"] == "far"]
    assert "behind a server" in far["reason"]
    assert "cannot be decoded token by token, the set was chosen among the others" in result["advice"]["text"]
    (voted,) = (one for one in result["strategies"] if one["strategy"] == "vote")
    assert sorted(voted["members"]) == ["far", "one", "two"]
    pairs = {(pair["a"], pair["b"]): pair for pair in result["pairs"]}
    own = [pair for names, pair in pairs.items() if "far" in names]
    assert all(pair["bleu"] is not None for pair in own)
    held_out = place.samples()
    assert all("far" in one["responses"] for one in held_out)
    assert result["provenance"]["models"]["far"]["path_or_id"] == f"openai:{url}#tiny/chat"
    methods = ("--methods", "voting,mbr,unite", "--members", "one,far,two", "--allow-server", url)
    ran = place.advisor("evaluate", "run", "--task", "task.yaml", *methods, "--json", "--quiet")
    assert ran.status == 0
    table = {one["method"]: one for one in json.loads(ran.out)["methods"]}
    assert table["voting"]["accuracy"] is not None
    assert table["mbr"]["accuracy"] is not None
    assert "far is behind a server" in table["unite"]["left_out"]


def test_what_was_answered_today_is_not_asked_again_and_under_a_revision_never(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.answer = lambda path, _body: models("m") if path.endswith("/models") else completion("7")
    line = f"openai:{raw.url}#m chat_template=never"
    counts = []
    for day, options in (("", ""), ("", ""), ("", "revision=first"), ("2031-01-01", "revision=first"), ("", "")):
        if day:
            monkeypatch.setattr("advisor.models.server_model.today", partial(str, day))
        before = len(raw.questions)
        answers(place, f"{line} {options}")
        counts.append(len(raw.questions) - before)
    assert counts == [6, 0, 6, 0, 6]
