"""Traces of a few responses: which questions, what is written of a step, and that nothing is traced twice."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pools import Place
from scipy.spatial.distance import jensenshannon

from advisor.jobs import held_out
from advisor.jobs.held_out import MOST_STEPS, describe, questions_to_trace
from advisor.models.loaded_models import LoadedModels
from advisor.models.local_model import peak_memory, reset_peak_memory
from advisor.records import Answer, Profile
from ensemble import Ensemble
from ensemble.models.spec import EnsembleSpec
from ensemble.step.trace import Candidate, Step

pytest_plugins = ["pools"]


def profile(model: str, *scores: float, said: str = "") -> Profile:
    texts = said or "x" * len(scores)
    pairs = enumerate(zip(scores, texts, strict=True))
    return Profile(model, tuple(Answer(str(n), f"text {text}", text, score, "eos") for n, (score, text) in pairs))


def step(*rows: tuple[bytes | None, list[float]], chosen: int = 0) -> Step:
    candidates = tuple(Candidate(data, 1, (0,), tuple(own), sum(own) / len(own)) for data, own in rows)
    return Step(candidates, chosen, candidates[chosen].data)


# --- Which questions ---


def test_the_first_mended_and_broken_ones_are_traced_and_those_that_divide_the_members() -> None:
    together = profile("unite", 1, 0, 1, 0, 1, 1)
    best = profile("a", 0, 1, 1, 0, 1, 1, said="abcdef")
    other = profile("b", 0, 0, 1, 0, 1, 1, said="abcxef")
    assert questions_to_trace(together, [best, other], best) == [0, 1, 3]


def test_at_most_so_many_of_a_kind_are_traced_and_none_without_a_response() -> None:
    n = 40
    scores = [1.0] * 10 + [0.0] * 30
    best = profile("a", *([0.0] * 10 + [1.0] * 10 + [0.0] * 20), said="a" * n)
    other = profile("b", *([0.0] * n), said="b" * n)
    numbers = questions_to_trace(profile("unite", *scores), [best, other], best)
    assert numbers == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13]
    # One without a response is not.
    failed = Profile("unite", (Answer("0", "", None, 0.0, "error", "out of memory"),))
    best = profile("a", 1)
    assert questions_to_trace(failed, [best, profile("b", 0, said="y")], best) == []


# --- What is written of a step ---


def test_who_won_is_whose_first_choice_the_winner_was() -> None:
    assert step((b"a", [0.6, 0.5, 0.2]), (b"b", [0.4, 0.5, 0.8])).won_by == (0, 1)


@given(st.lists(st.lists(st.floats(0.001, 1), min_size=4, max_size=4), min_size=2, max_size=2))
def test_disagreement_of_two_is_what_scipy_says(weights: list[list[float]]) -> None:
    members = np.array(weights) / np.sum(weights, axis=1, keepdims=True)
    made = step(*((bytes([65 + n]), [float(p) for p in members[:, n]]) for n in range(4)))
    # For nearly equal members scipy's sum may be a little below 0, and its square root is not a number.
    with np.errstate(invalid="ignore"):
        expected = jensenshannon(*members, base=2) ** 2
    assert made.disagreement == pytest.approx(0 if math.isnan(expected) else expected, abs=1e-9)


def test_disagreement_goes_from_the_same_to_nothing_in_common() -> None:
    assert step((b"a", [0.7, 0.7, 0.7]), (b"b", [0.3, 0.3, 0.3])).disagreement == pytest.approx(0, abs=1e-12)
    apart = step((b"a", [1.0, 0.0, 0.0]), (b"b", [0.0, 1.0, 0.0]), (b"c", [0.0, 0.0, 1.0]))
    assert apart.disagreement == pytest.approx(1)
    assert step((b"a", [1.0])).disagreement == 0


def test_the_likeliest_candidates_are_kept_and_the_winner_of_the_first_steps() -> None:
    rows = [(bytes([65 + n]), [0.05 - n / 1000, 0.05 - n / 1000]) for n in range(20)]
    trace = describe([step(*rows, chosen=15)], ["a", "b"])
    [kept] = trace["steps"]
    assert [each["text"] for each in kept["candidates"]] == [*"ABCDEFGH", "P"]
    assert (kept["chosen"], kept["text"], kept["union"]) == (8, "P", 20)
    # Ends are null, and bytes that are no text are spelt out.
    trace = describe([step((b"\xe2\x82", [1.0])), step((None, [1.0]))], ["a"])
    assert [each["text"] for each in trace["steps"]] == ["⟨E2 82⟩", None]
    # A long response has its first steps, and says how many are left out.
    trace = describe([step((b"a", [1.0]))] * (MOST_STEPS + 7), ["a"])
    assert (len(trace["steps"]), trace["left_out"]) == (MOST_STEPS, 7)


# --- In a run ---


def traced(place: Place, models: Path) -> tuple[list[dict[str, Any]], str]:
    """The responses of the set of a run that have a trace, and what the run says."""
    place.job(models)
    ran = place.select()
    joint = [sample["ensemble"] for sample in place.samples("held_out")]
    assert all(joint)
    return [each for each in joint if each["trace"]], ran.err


def test_the_tokens_of_a_trace_are_the_response(finished: SimpleNamespace) -> None:
    lines = map(json.loads, (finished.run / "samples.jsonl").read_text(encoding="utf-8").splitlines())
    found = [line["ensemble"] for line in lines if line["ensemble"] is not None and line["ensemble"]["trace"]]
    assert found
    for joint in found:
        texts = [each["text"] for each in joint["trace"]["steps"] if each["text"] is not None]
        if not any("⟨" in text for text in texts):
            assert "".join(texts).startswith(joint["text"])
        assert all(
            math.isclose(each["candidates"][each["chosen"]]["mean"], max(c["mean"] for c in each["candidates"]))
            for each in joint["trace"]["steps"]
        )


def test_a_response_that_comes_out_otherwise_has_no_trace(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = LoadedModels.ensemble

    def spoiled(models: LoadedModels, spec: EnsembleSpec) -> Ensemble:
        ensemble = make(models, spec)
        generate = ensemble.generate_each

        def otherwise(prompts: Any, settings: Any, batch: Any) -> Any:
            for n, generation in generate(prompts, settings, batch):
                text = f"{generation.text}!" if batch.trace else generation.text
                yield n, dataclasses.replace(generation, text=text)

        monkeypatch.setattr(ensemble, "generate_each", otherwise)
        return ensemble

    monkeypatch.setattr(LoadedModels, "ensemble", spoiled)
    found, said = traced(place, models)
    assert found == []
    assert "the response differs when decoded again; it has no trace" in said


def test_what_fails_while_tracing_costs_the_traces_alone(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(*_: Any) -> None:
        raise RuntimeError("kaput")

    monkeypatch.setattr(held_out, "describe", describe)
    found, said = traced(place, models)
    assert found == []
    assert "the steps of some responses could not be traced: kaput" in said


def test_the_peak_of_memory_is_that_of_its_time() -> None:
    reset_peak_memory()
    before = peak_memory()
    if before is None:
        pytest.skip("this system does not tell the highest resident memory")
    big = torch.ones(25_000_000)
    during = peak_memory()
    del big
    reset_peak_memory()
    after = peak_memory()
    assert during is not None and after is not None
    assert during - before > 80_000_000
    assert during - after > 80_000_000
