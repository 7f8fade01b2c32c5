"""Candidates behind servers that are full members: profiled with token ids, decoded together, run and exported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from running_server import Running, running, serving
from servers import Answer, Raw, as_json, completion
from servers import models as models_answer
from test_remote import TEMPLATE, answers
from tiny import byte_tokenizer, save_member, tiny_model

from advisor.models import server_model as identity
from advisor.models.ask import reply_to
from advisor.models.server_model import ServerModel
from advisor.options.finished_run import ServeOptions
from advisor.serving.app import Endpoints
from advisor.serving.engine import SharedDecoder
from advisor.serving.metrics import Metrics
from advisor.serving.protocol import RequestLimits
from advisor.serving.responses import ServedModel
from advisor.serving.starting import make_app_of
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.models.load import load_member
from ensemble.models.spec import Checkpoint, EnsembleSpec, ModelSpec
from ensemble.servers.address import ServerAddress

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

NAMES = ("alpha", "beta")


@pytest.fixture(scope="module")
def servers(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    """A server of each of two models, as `advisor serve` runs it."""
    tables = tmp_path_factory.mktemp("tables")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                serving(Ensemble([load_member(ModelSpec(Checkpoint(str(models / name)), name))], cache_dir=tables))
            )
            for name in NAMES
        }


def lines(models: Path, servers: dict[str, Running], options: str = "chat_template=never") -> list[str]:
    """The lines of a pool of these servers."""
    return [f"openai:{servers[name].url}/v1#tiny name={name} tokenizer={models / name} {options}" for name in NAMES]


def local_lines(models: Path) -> list[str]:
    return [f"{models / name} chat_template=never" for name in NAMES]


def select(place: Place, *pool: str, out: str = "run") -> list[dict[str, Any]]:
    """Choose among a pool; the samples."""
    place.pool(*pool)
    place.select("--quiet", "--out", out)
    return place.samples(out=out)


def test_a_pool_of_servers_gives_the_texts_of_the_same_pool_here(
    place: Place, models: Path, servers: dict[str, Running]
) -> None:
    place.task(metric="exact_match", stop=["3"])
    here, there = select(place, *local_lines(models), out="here"), select(place, *lines(models, servers))
    assert len(here) == len(there) == 12
    for own, other in zip(here, there, strict=True):
        assert {name: each["text"] for name, each in own["responses"].items()} == {
            name: each["text"] for name, each in other["responses"].items()
        }
        assert (own["ensemble"] or {}).get("text") == (other["ensemble"] or {}).get("text")
    result = place.json()
    assert (sorted(result["selected"]), result["ensemble"]["method"]) == (list(NAMES), "unite")
    assert {one["strategy"] for one in result["strategies"]} == {"single", "unite"}
    pairs = json.loads(Path("here/result.json").read_text(encoding="utf-8"))["pairs"]
    assert pairs == result["pairs"]


def test_a_run_with_servers_is_run_evaluated_checked_and_exported_without_another_option(
    place: Place, models: Path, servers: dict[str, Running]
) -> None:
    place.task(metric="exact_match")
    select(place, *lines(models, servers))
    chosen = place.json()["selected"]
    prompt = "What is 1 + 1?\nAnswer:"
    ran = place.advisor("run", "run", prompt, "--method", "unite")
    here = [word for name in chosen for word in ("--models", str(models / name))]
    expected = place.advisor("run", *here, prompt, "--max-new-tokens", "6", "--chat-template", "never")
    assert (ran.status, ran.out) == (0, expected.out)
    by_name = dict(zip(NAMES, lines(models, servers), strict=True))
    given = [word for name in chosen for word in ("--models", by_name[name])]
    assert place.advisor("run", *given, prompt, "--max-new-tokens", "6").out == expected.out
    assert place.advisor("run", "run", prompt, "--strategy", "single").status == 0
    evaluated = place.advisor(
        *("evaluate", "run", "--task", "task.yaml", "--methods", "unite,deepen", "--json", "--quiet")
    )
    assert evaluated.status == 0, evaluated.err
    found = {each["method"]: each for each in json.loads(evaluated.out)["methods"]}
    assert found["unite"]["accuracy"] is not None
    assert found["deepen"]["left_out"].startswith("it needs the logits of all tokens")
    assert place.advisor("export", "run", "exported", "--strategy", "unite").status == 0
    assert place.advisor("run", "exported", prompt).out == expected.out
    place.write("fresh.jsonl", "".join(f'{{"question": "What is {n} * 2?", "answer": "{n}"}}\n' for n in range(6)))
    place.task(metric="exact_match", data={"dev": "dev.jsonl", "held_out": "fresh.jsonl"})
    checked = place.advisor("check", "run", "--task", "task.yaml", "--strategy", "unite", "--json")
    assert checked.status in (0, 3), checked.err
    assert json.loads(checked.out)["members"] == chosen


def test_options_are_scored_as_by_the_models_here(place: Place, models: Path, servers: dict[str, Running]) -> None:
    task: dict[str, Any] = {"choices": ["{{answer}}", "none of them", "What is"], "metric": "choice"}
    here, there = answers(place, *local_lines(models), **task), answers(place, *lines(models, servers), **task)
    for name in NAMES:
        for own, other in zip(here[name], there[name], strict=True):
            # Here the few special tokens, which are never written, have no part of the probability.
            assert np.allclose(np.array(own.options, float), np.array(other.options, float), rtol=0.02)
            assert own.text == other.text


def test_a_server_without_log_probabilities_gives_texts_and_the_note_says_what_it_lacks(
    place: Place, models: Path, raw: Raw
) -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        is_text = path.endswith("/completions") and isinstance(body["prompt"], str)
        if path.endswith("/models"):
            return models_answer("m")
        return completion("7") if is_text else as_json({"error": "no ids"}, 400)

    raw.answer = answer
    place.task()
    place.pool(f"openai:{raw.url}#m tokenizer={models / 'alpha'} chat_template=never")
    ran = place.advisor("select", "--pool", "models.txt", "--task", "task.yaml", "--out", "run", "--no-verify")
    assert ran.status == 0
    assert "m: its server does not give top log-probabilities by token id" in ran.err
    assert "serve the model with vLLM, SGLang or llama.cpp" in ran.err
    source = place.json()["provenance"]["models"]["m"]
    assert source["remote"]["tokenizer"] is None


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A model with a chat template."""
    tokenizer = byte_tokenizer((" the", "ing"))
    tokenizer.chat_template = TEMPLATE
    save_member(tmp_path / "chat", tiny_model(tokenizer, seed=3, hidden=8, positions=256), tokenizer)
    return tmp_path / "chat"


def test_chat_templates_are_applied_here(place: Place, chat: Path) -> None:
    member = load_member(ModelSpec(Checkpoint(str(chat)), "chat"))
    with serving(Ensemble([member], cache_dir=chat / "tables")) as server:
        there = answers(place, f"openai:{server.url}/v1#tiny name=chat tokenizer={chat}")["chat"]
    here = answers(place, f"{chat}")["chat"]
    assert [each.text for each in there] == [each.text for each in here]
    plain = answers(place, f"{chat} chat_template=never")["chat"]
    assert [each.text for each in plain] != [each.text for each in here]


def test_a_strategy_asks_a_member_with_token_ids_as_the_profile_did(chat: Path) -> None:
    member = load_member(ModelSpec(Checkpoint(str(chat)), "chat"))
    alone = Ensemble([member], cache_dir=chat / "tables")
    conversation = [{"role": "system", "content": "be short"}, {"role": "user", "content": "What?"}]
    with serving(alone) as server:
        model = ServerModel(ModelSpec(ServerAddress(f"{server.url}/v1", "tiny", tokenizer=str(chat)), "chat"))
        response = asyncio.run(reply_to(model, conversation, Settings(6)))
        model.close()
    (expected,) = alone.generate([conversation], max_new_tokens=6)
    assert response.text == expected.text
    assert response.prompt_tokens == len(member.encode_prompt(conversation))


def test_health_names_the_member_whose_server_does_not_answer_until_it_does(
    raw: Raw, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "PAUSE_S", 0.02)
    up = [True]
    raw.answer = lambda _path, _body: models_answer("m") if up[0] else as_json({}, 500)
    watched = identity.ServerHealth({"far": ServerAddress(raw.url, "m")})
    ensemble = Ensemble([load_member(ModelSpec(Checkpoint(str(models / "alpha")), "far"))])
    limits, metrics = RequestLimits(), Metrics()
    engine = SharedDecoder(ensemble, Batch(), limits, metrics)
    with running(engine, ServedModel("tiny", ("far",), "unite", "fp", 0), limits, metrics, health=watched) as server:
        assert json.loads(server.ask("/health").text) == {"status": "ok", "members": {"far": "ok"}}
        up[0] = False
        server.until(lambda: server.ask("/health").status == 503)
        degraded = {"status": "degraded", "members": {"far": "does not answer"}}
        assert json.loads(server.ask("/health").text) == degraded
        up[0] = True
        server.until(lambda: server.ask("/health").status == 200)


def test_a_strategy_is_degraded_without_a_model_and_down_without_all() -> None:
    engine: Any = SimpleNamespace(refusing="", DECODES=False)
    watched = identity.ServerHealth(dict.fromkeys(("a", "b"), ServerAddress("http://127.0.0.1:9/v1", "m")))
    served = ServedModel("s", ("a", "b"), "vote", "fp", 0)
    endpoints = Endpoints(engine, served, RequestLimits(), Metrics(), watched)
    for failing, status in (((), 200), (("a",), 200), (("a", "b"), 503)):
        watched.failing = set(failing)
        response = asyncio.run(endpoints.health())
        content = json.loads(bytes(response.body))
        assert response.status_code == status
        assert content["status"] == ("degraded" if failing else "ok")
        assert [name for name, state in content["members"].items() if state != "ok"] == list(failing)


def test_figures_tell_the_requests_to_each_member(models: Path, servers: dict[str, Running]) -> None:
    specs = [
        ModelSpec(ServerAddress(f"{servers[name].url}/v1", "tiny", tokenizer=str(models / name)), name)
        for name in NAMES
    ]
    app, engine = make_app_of(
        EnsembleSpec(tuple(specs)), "both", RequestLimits(), None, None, ServeOptions(run="r", batch_size=4)
    )
    with TestClient(app) as client:
        body = {"model": "both", "prompt": "What is 1 + 1?", "max_tokens": 5}
        assert client.post("/v1/completions", json=body).status_code == 200
        text = client.get("/metrics").text
        assert client.get("/health").json() == {"status": "ok", "members": dict.fromkeys(NAMES, "ok")}
    assert engine.refusing
    for name in NAMES:
        calls = f'advisor_member_calls_total{{member="{name}"}} '
        (line,) = [line for line in text.splitlines() if line.startswith(calls)]
        assert float(line.removeprefix(calls)) >= 1
        assert f'advisor_member_errors_total{{member="{name}"}} 0.0' in text
        assert f'advisor_member_request_seconds_total{{member="{name}"}}' in text
