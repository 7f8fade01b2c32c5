"""What is asked of the models for the sake of their pairs: who reads whom, what is kept, and what a failure leaves."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from advisor.advice.verdict import Margin, close_candidates
from advisor.compare import pairs
from advisor.compare.pairs import ModelMeasurer
from advisor.compare.prediction import TokenAgreement, WrittenText, read_texts
from advisor.compare.tokenizer_overlap import common_words, tokenization_of
from advisor.config import InferenceConfig, RunConfig
from advisor.pool.pool_file import read_pool
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Limits, Profile, Standing
from advisor.response_cache import ResponseCache
from advisor.tasks import load_task
from ensemble.errors import UniteError

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]
NAMES = ("alpha", "beta", "gamma")


class Listener(Progress):
    """Keeps the notes."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def plan(place: Place, models: Path) -> RunConfig:
    place.job(models)
    dev = load_task("task.yaml")
    return RunConfig(
        candidates=read_pool("models.txt"),
        dev=dev,
        held_out=None,
        rules=Limits(100, 1e9, 3),
        inference=InferenceConfig(),
        seed=0,
        cache_dir=place.cache,
        command="advisor select",
    )


@pytest.fixture
def store(plan: RunConfig) -> Iterator[ResponseCache]:
    with ResponseCache(plan.cache_dir) as opened:
        yield opened


@pytest.fixture
def progress() -> Listener:
    return Listener()


@pytest.fixture
def profiler(plan: RunConfig, store: ResponseCache, progress: Progress) -> Profiler:
    return Profiler(plan, store, progress)


@pytest.fixture
def measurer(plan: RunConfig, profiler: Profiler, store: ResponseCache, progress: Progress) -> ModelMeasurer:
    return ModelMeasurer(plan, profiler, store, progress)


@pytest.fixture
def profiles(plan: RunConfig, profiler: Profiler) -> dict[str, Profile]:
    return profiler.alone(NAMES, plan.dev)


def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("advisor.profile.loaded_models.load_models", refuse)
    monkeypatch.setattr(pairs, "_vocabulary", refuse)


# --- TokenAgreement ---


def test_each_reads_what_each_other_wrote(
    measurer: ModelMeasurer, profiles: dict[str, Profile], plan: RunConfig, profiler: Profiler
) -> None:
    found = measurer.token_agreements(NAMES, profiles)
    assert found.keys() == {(a, b) for a in NAMES for b in NAMES if a != b}
    [member] = profiler.load(["beta"]).members
    asked = [
        WrittenText(example.prompt, answer.text, cut=answer.finish_reason != "eos")
        for example, answer in zip(plan.dev.examples, profiles["gamma"].answers, strict=True)
        if answer.text
    ]
    assert found["beta", "gamma"] == sum(read_texts(member, asked), TokenAgreement(0, 0))
    assert found["beta", "gamma"].positions > 6


def test_a_model_that_reads_its_own_words_would_have_written_them(
    measurer: ModelMeasurer, profiles: dict[str, Profile]
) -> None:
    """Greedy decoding is what was kept, so a copy under another name agrees everywhere."""
    copy = {"alpha": profiles["alpha"], "beta": dataclasses.replace(profiles["alpha"], model="beta")}
    found = measurer.token_agreements(["alpha", "beta"], copy)["alpha", "beta"]
    assert found.agreed / found.positions > 0.9


def test_what_was_read_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch, measurer: ModelMeasurer, profiles: dict[str, Profile]
) -> None:
    first = measurer.token_agreements(NAMES, profiles), measurer.tokenizations(NAMES)
    no_loading(monkeypatch)
    again = measurer.token_agreements(NAMES, profiles), measurer.tokenizations(NAMES)
    assert again[0] == first[0]
    assert [one.as_dict() for one in again[1].values()] == [one.as_dict() for one in first[1].values()]


@pytest.mark.parametrize("value", ["null", "[1]", '["a", 2]', "{}", "no JSON", '{"tokens": "A", "words": 3}'])
def test_a_value_that_cannot_be_read_is_measured_again(
    value: str, measurer: ModelMeasurer, profiles: dict[str, Profile], plan: RunConfig
) -> None:
    first = measurer.token_agreements(NAMES, profiles), measurer.tokenizations(NAMES)
    with sqlite3.connect(plan.cache_dir / "responses.sqlite") as connection:
        connection.execute("UPDATE measured SET value = ?", (value,))
    connection.close()
    assert measurer.token_agreements(NAMES, profiles) == first[0]
    again = measurer.tokenizations(NAMES)
    assert {name: one.as_dict() for name, one in again.items()} == {
        name: one.as_dict() for name, one in first[1].items()
    }


def test_no_more_questions_than_a_sample_are_read(
    monkeypatch: pytest.MonkeyPatch, measurer: ModelMeasurer, profiles: dict[str, Profile]
) -> None:
    monkeypatch.setattr(pairs, "QUESTIONS", 2)
    asked: list[WrittenText] = []

    def read(_: object, texts: list[WrittenText]) -> list[TokenAgreement]:
        asked.extend(texts)
        return [TokenAgreement(1, 1) for _ in texts]

    monkeypatch.setattr(pairs, "read_texts", read)
    measurer.token_agreements(NAMES, profiles)
    assert len({text.prompt for text in asked}) <= 2
    assert len(asked) <= 3 * 2 * 2


def test_a_reader_that_fails_is_said_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, measurer: ModelMeasurer, profiles: dict[str, Profile], progress: Listener
) -> None:

    def read(member: Any, texts: list[WrittenText]) -> Iterator[TokenAgreement]:
        if member.name == "beta":
            raise RuntimeError("kaput")
        return read_texts(member, texts)

    monkeypatch.setattr(pairs, "read_texts", read)
    found = measurer.token_agreements(NAMES, profiles)
    assert found.keys() == {(a, b) for a in ("alpha", "gamma") for b in NAMES if a != b}
    assert progress.said == ["beta: it cannot predict the others' responses (kaput); the table of pairs leaves it out"]


def test_a_fault_of_the_store_is_not_the_readers(
    monkeypatch: pytest.MonkeyPatch, measurer: ModelMeasurer, profiles: dict[str, Profile]
) -> None:

    def keep(*_: object) -> None:
        raise UniteError("the disk is full")

    monkeypatch.setattr(ResponseCache, "keep", keep)
    with pytest.raises(UniteError, match="the disk is full"):
        measurer.token_agreements(NAMES, profiles)


def test_nobody_reads_where_there_is_nobody_else_or_nothing_was_written(
    measurer: ModelMeasurer,
    profiles: dict[str, Profile],
    plan: RunConfig,
    profiler: Profiler,
    store: ResponseCache,
    progress: Listener,
) -> None:
    assert measurer.token_agreements(["alpha"], profiles) == {}
    choice = dataclasses.replace(plan, dev=dataclasses.replace(plan.dev, metric="choice"))
    choices = ModelMeasurer(choice, profiler, store, progress)
    assert choices.token_agreements(NAMES, profiles) == {}


# --- Who reads ---


def margin(model: str, *, gap_flips: bool = False, length_flips: bool = False) -> Margin:
    return Margin(model, (0.0, 1.0), (1.0, 1.0), True, gap_flips, length_flips, "")


def test_those_that_fit_read_each_other_then_those_that_nearly_do() -> None:
    standings = [Standing(name, points, 10.0) for name, points in zip("abcdef", (80, 78, 75, 69, 68, 20), strict=True)]
    margins = {each.model: margin(each.model, gap_flips=each.model in "ce") for each in standings[1:]}
    assert close_candidates(standings, margins, Limits(max_models=2)) == ["a", "b", "c", "e"]
    assert close_candidates(standings, {**margins, "f": margin("f", length_flips=True)}, Limits()) == [
        "a",
        "b",
        "c",
        "e",
        "f",
    ]


def test_the_number_of_readers_is_limited() -> None:
    standings = [Standing(f"m{n}", 80.0, 10.0) for n in range(30)]
    assert len(close_candidates(standings, {}, Limits())[: pairs.READERS]) == pairs.READERS


# --- Tokenizers ---


def test_a_tokenizer_is_looked_at_as_the_loaded_model_has_it(
    measurer: ModelMeasurer, plan: RunConfig, profiler: Profiler
) -> None:
    words = common_words(example.prompt for example in plan.dev.examples)
    assert {"What", "is", "Answer", "1"} <= set(words)
    found = measurer.tokenizations(NAMES)
    for name in NAMES:
        [member] = profiler.load([name]).members
        assert found[name].as_dict() == tokenization_of(member.vocabulary, words).as_dict()


def test_models_of_one_tokenizer_have_it_read_once(
    place: Place,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: RunConfig,
    store: ResponseCache,
    progress: Listener,
) -> None:
    copy = tmp_path / "fine-tune"
    shutil.copytree(models / "alpha", copy)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**config, "initializer_range": 0.5}), encoding="utf-8")
    other = tmp_path / "resized"
    shutil.copytree(models / "alpha", other)
    (other / "config.json").write_text(
        json.dumps({**config, "vocab_size": config["vocab_size"] - 64}), encoding="utf-8"
    )
    place.pool(str(models / "alpha"), str(copy), str(other))
    all_three = dataclasses.replace(plan, candidates=read_pool("models.txt"))
    both = ModelMeasurer(all_three, Profiler(all_three, store, progress), store, progress)
    read: list[object] = []
    vocabulary = pairs._vocabulary
    monkeypatch.setattr(pairs, "_vocabulary", lambda *given: read.append(given) or vocabulary(*given))
    found = both.tokenizations(["alpha", "fine-tune", "resized"])
    assert len(found) == 3
    assert len(read) == 2


def test_a_tokenizer_that_cannot_be_read_is_said_and_left_out(
    monkeypatch: pytest.MonkeyPatch, measurer: ModelMeasurer, progress: Listener
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(pairs, "_vocabulary", fail)
    assert measurer.tokenizations(["alpha"]) == {}
    assert progress.said == [
        "alpha: its tokenizer cannot be compared with the others' (no such file); the table of pairs leaves it out"
    ]
