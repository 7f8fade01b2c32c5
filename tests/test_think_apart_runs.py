"""Runs whose members think: budgets as candidates, ``--think apart`` from ``select`` to ``evaluate`` and ``serve``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from pools import Place, Prepare
from running_server import serving

import advisor.demo
from advisor.logs.join import join_logs
from advisor.models.pool_file import read_pool
from advisor.run.plan import chosen_by_folder
from ensemble import Ensemble
from ensemble.models.load import load_member
from ensemble.saved.folder import read

pytest_plugins = ["pools"]

DEMO = Path(os.fspath(advisor.demo.__path__[0])) / "models"
THINKS = f"{DEMO}/thinking-llama dtype=float32"
POOL = (THINKS, f"{DEMO}/terse-neox dtype=float32", f"{DEMO}/terse-llama dtype=float32")
PROMPT = "Question: Ali has 53 eggs. He drops 12. How many eggs does Ali have now?\nAnswer:"
SELECT = ("select", "--pool", "models.txt", "--task", "word_problems", "--limit", "12", "--quiet")


def select(place: Place, *options: str, out: str = "run") -> dict[str, Any]:
    ran = place.advisor(*SELECT, "--out", out, *options)
    assert (ran.status, ran.err) == (0, "")
    result: dict[str, Any] = place.json(f"{out}/result.json")
    return result


@pytest.fixture
def run(place: Place, prepare: Prepare) -> Place:
    """A place with the run folder of a set that thinks apart, and with the responses of its models."""

    def make() -> None:
        place.pool(*POOL)
        select(place, "--think", "apart", "--max-gap", "100")

    prepare("think apart", place, make)
    return place


def test_one_model_at_several_budgets_is_several_candidates(run: Place) -> None:
    """One that is never reached changes no answer."""
    run.pool(f"{THINKS} name=long", f"{THINKS} name=short thinking_budget=5")
    result = select(run, "--no-verify", out="two")
    figures = {each["model"]: each for each in result["candidates"]}
    assert {each["reason_code"] for each in figures.values()}.isdisjoint({"copy", "failed"})
    assert figures["short"]["accuracy"] != figures["long"]["accuracy"]
    assert result["provenance"]["models"]["short"]["thinking_budget"] == 5
    for line in run.samples(out="two"):
        whole, cut = (line["responses"][name]["thinking"] for name in ("long", "short"))
        # Three of the five tokens are the opening tag.
        assert 0 < len(cut) <= 8 < len(whole)
        assert whole.startswith(cut)
    run.pool(f"{THINKS} name=free", f"{THINKS} name=ample thinking_budget=60")
    select(run, "--no-verify", out="ample")
    for line in run.samples(out="ample"):
        free, ample = (line["responses"][name] for name in ("free", "ample"))
        assert ample["text"].strip() == free["text"]
        assert (ample["thinking"], ample["tokens"], ample["score"]) == (free["thinking"], free["tokens"], free["score"])


def test_an_option_of_thinking_that_does_nothing_is_named(run: Place) -> None:
    says = {
        f"{POOL[1]} name=plain thinking_budget=5": "none of its 12 responses has thinking, so thinking_budget=5 has no",
        f"{THINKS} name=tags thinking=<plan>...</plan>": "has thinking, so thinking=<plan>...</plan> has no effect",
        f"{THINKS} name=full thinking_budget=64": "thinking_budget=64 leaves no room for an answer: a response has at",
        f"{THINKS} name=room thinking_budget=63": "",
    }
    run.pool(*says)
    ran = run.advisor(*SELECT[:-1], "--no-verify", "--out", "other")
    notes = [each for each in ran.err.splitlines() if "thinking" in each and each.startswith("note")]
    assert ran.status == 0
    assert len(notes) == 3
    assert all(any(wanted in each for each in notes) for wanted in says.values())


def test_a_set_that_thinks_apart_writes_what_the_class_writes(run: Place) -> None:
    result = run.json()
    assert result["ensemble"]["think"] == result["rules"]["think"] == "apart"
    assert "thinking-llama" in result["selected"]
    spec = chosen_by_folder(run.folder / "run")
    ensemble = Ensemble([load_member(each) for each in spec.members], k=spec.k, **spec.options)
    decoded = [line for line in run.samples() if line["ensemble"] is not None]
    made = ensemble.generate([line["prompt"] for line in decoded], max_new_tokens=64, stop=["\n"])
    assert [line["ensemble"]["text"] for line in decoded] == [each.text for each in made]
    assert [line["ensemble"]["thinking"] for line in decoded] == [each.thought for each in made]
    assert [line["ensemble"]["tokens"] for line in decoded] == [each.new_tokens for each in made]
    assert len(decoded) == 12
    assert all(each.thought and "=" in each.thought and "answer" not in each.thought for each in made)
    # The tokens of a question are those of the answer by each member, and of all thinking.
    (row,) = (each for each in result["strategies"] if each["strategy"] == "unite")
    tokens = sum(len(spec.members) * len(each.tokens) + each.thinking_tokens for each in made)
    assert row["tokens_per_question"] == pytest.approx(tokens / len(decoded))


def test_the_length_rule_compares_the_answers_alone(run: Place) -> None:
    pairs = run.json()["pairs"]
    assert {pair["length_unit"] for pair in pairs} == {"characters"}
    together = select(run, "--max-gap", "100", "--no-verify", out="together")
    assert "tokens" in {pair["length_unit"] for pair in together["pairs"]}
    assert len(together["selected"]) < 3


def test_a_run_as_a_log_has_the_lengths_of_the_run(run: Place) -> None:
    """Also the tokens of models that do not think, with which the length rule compares those that do."""
    figures = {each["model"]: each for each in select(run, "--no-verify", out="whole")["candidates"]}
    for name, profile in join_logs([str(run.folder / "whole")]).profiles.items():
        standing = profile.standing
        assert (standing.thinks, standing.mean_length) == (figures[name]["thinks"], figures[name]["mean_length"])
        assert standing.mean_tokens == pytest.approx(figures[name]["mean_tokens"])
    run.pool(*POOL[1:])
    select(run, "--no-verify", out="plain")
    assert not any("tokens" in answer for line in run.samples(out="plain") for answer in line["responses"].values())


def test_where_thinking_is_too_long_the_way_out_is_named(run: Place) -> None:
    own = (*SELECT[:-1], "--max-gap", "100", "--no-verify", "--out", "other")
    said = "--think apart lets each model think alone: then only the lengths of the answers are compared."
    assert said in " ".join(run.advisor(*own).err.split())
    run.pool(*POOL[1:])
    assert said not in " ".join(run.advisor(*own, "--force").err.split())


def test_other_tags_are_other_responses_of_a_set(run: Place) -> None:
    run.pool(f"{THINKS} thinking=<plan>...</plan>", *POOL[1:])
    select(run, "--think", "apart", "--max-gap", "100", "--max-length-ratio", "9", out="other")
    assert all("thinking" in line["ensemble"] for line in run.samples() if line["ensemble"])
    assert not any("thinking" in line["ensemble"] for line in run.samples(out="other") if line["ensemble"])


def test_the_control_takes_the_tokens_that_the_set_took(run: Place) -> None:
    ran = run.advisor("evaluate", "run", "--methods", "unite,voting", "--think", "apart", "--limit", "12", "--json")
    assert ran.status == 0
    found = json.loads(ran.out)
    by_name = {each["method"]: each for each in found["methods"]}
    assert found["think"] == "apart"
    control = by_name["self-consistency"]
    words = control["note"].split()
    responses, drawn, spent = int(words[0]), float(words[5]), float(words[-1])
    assert spent == pytest.approx(by_name["unite"]["tokens_per_question"], abs=0.05)
    # The same texts as in the run: all thinking, and the answer of each member.
    result = run.json()
    (decoded,) = (each for each in result["strategies"] if each["strategy"] == "unite")
    assert by_name["unite"]["tokens_per_question"] == pytest.approx(decoded["tokens_per_question"])
    assert control["tokens_per_question"] == pytest.approx(drawn, abs=0.05)
    # To the nearest whole number of responses, whose lengths differ.
    assert abs(drawn - spent) <= drawn / responses / 2 + 3


def test_the_run_is_run_exported_and_served_as_it_was_measured(run: Place) -> None:
    line = next(line for line in run.samples() if line["ensemble"] is not None)
    ran = run.advisor("run", "run", line["prompt"], "--raw", "--method", "unite")
    assert ran.status == 0
    assert ran.out.strip() == line["ensemble"]["text"].strip()
    spec = chosen_by_folder(run.folder / "run")
    members = [load_member(each) for each in spec.members]
    ensemble = Ensemble(members, k=spec.k, **spec.options)
    ensemble.save_pretrained(run.folder / "saved")
    again = read(run.folder / "saved")
    assert again.options == {"think": "apart"}
    assert [each.thinking for each in again.members] == [each.thinking for each in spec.members]
    with serving(ensemble) as server:
        body = {"model": "tiny", "prompt": line["prompt"], "max_tokens": 64, "stop": ["\n"], "temperature": 0}
        whole = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert whole["choices"][0]["text"] == line["ensemble"]["text"]
        assert whole["usage"]["completion_tokens"] == line["ensemble"]["tokens"]
        answer = httpx.post(f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=60)
        events = [each[6:] for each in answer.text.splitlines() if each.startswith("data: {")]
        pieces = [json.loads(each)["choices"][0]["text"] for each in events]
        assert "".join(pieces) == line["ensemble"]["text"]


@pytest.mark.parametrize("verified", [True, False])
def test_a_single_model_that_thinks_gives_its_answer_alone(run: Place, verified: bool) -> None:
    run.pool(THINKS)
    select(run, *(() if verified else ("--no-verify",)), out="alone")
    line = run.samples(out="alone")[0]
    answer = line["responses"]["thinking-llama"]
    assert answer["thinking"]
    for option, wanted in ((), answer["text"]), (("--stream",), answer["text"]), (("--answer",), answer["extracted"]):
        ran = run.advisor("run", "alone", line["prompt"], "--raw", *option)
        assert (ran.status, ran.out.strip()) == (0, wanted)


def test_a_model_that_is_named_thinks_apart_if_that_is_wanted(place: Place) -> None:
    own = ("run", "--models", THINKS.split(maxsplit=1)[0], PROMPT, "--max-new-tokens", "40")
    assert "<think>" in place.advisor(*own).out
    assert "<think>" not in place.advisor(*own, "--think", "apart").out
    short = place.advisor(*own[:-1], "4", "--think", "apart")
    assert "the text is empty" in short.err
    assert "may need more tokens (--max-new-tokens)" in short.err


def test_the_bundled_pool_has_the_model_that_thinks_at_two_budgets() -> None:
    pool = {entry.name: entry for entry in read_pool("demo-thinking")}
    assert [pool[name].thinking_budget for name in ("thinking-llama", "thinking-brief")] == [None, 16]
    assert pool["thinking-llama"].checkpoint == pool["thinking-brief"].checkpoint


def test_it_is_refused_where_it_has_no_effect(place: Place, models: Path) -> None:
    place.job(models, "alpha", "beta")
    own = ("select", "--pool", "models.txt", "--task", "task.yaml", "--think", "apart")
    assert "method sweetspan: think apart is for methods that write single tokens" in place.refused(
        *own, "--method", "sweetspan"
    )
    assert "--think together: not one of apart" in place.refused(*own[:-1], "together")
    place.task(choices=["a", "b"], metric="choice", reference="a")
    assert "has options, which are chosen by their likelihood" in place.refused(*own)
