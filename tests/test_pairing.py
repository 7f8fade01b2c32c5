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

from advisor.compare import pairing
from advisor.compare.pairing import Pairing, readers
from advisor.compare.prediction import Reading, Text, read_texts
from advisor.compare.tokenizer_overlap import common_words, tokenization_of
from advisor.config import InferenceConfig, RunConfig
from advisor.pool.pool_file import read_pool
from advisor.profile import loader as loading
from advisor.profile.loader import Decoding
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Profile, Rules, Standing
from advisor.response_cache import Store
from advisor.tasks import load_task
from advisor.verify.advice import Margin
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
        rules=Rules(100, 1e9, 3),
        inference=InferenceConfig(),
        decoding=Decoding(),
        seed=0,
        cache_dir=place.cache,
        command="advisor select",
    )


@pytest.fixture
def store(plan: RunConfig) -> Iterator[Store]:
    with Store(plan.cache_dir) as opened:
        yield opened


@pytest.fixture
def pool(plan: RunConfig, store: Store) -> Pairing:
    watcher = Listener()
    return Pairing(plan, Profiler(plan, store, watcher), store, watcher)


def profiles_of(pool: Pairing) -> dict[str, Profile]:
    return {name: one.profile for name, one in pool.profiler.alone(NAMES, pool.plan.dev).items()}


def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(loading, "_load", refuse)
    monkeypatch.setattr(pairing, "_vocabulary", refuse)


# --- Reading ---


def test_each_reads_what_each_other_wrote(pool: Pairing) -> None:
    profiles = profiles_of(pool)
    found = pool.readings(NAMES, profiles)
    assert found.keys() == {(a, b) for a in NAMES for b in NAMES if a != b}
    [member] = pool.profiler.load(["beta"]).members
    asked = [
        Text(example.prompt, answer.text, cut=answer.finish_reason != "eos")
        for example, answer in zip(pool.plan.dev.examples, profiles["gamma"].answers, strict=True)
        if answer.text
    ]
    assert found["beta", "gamma"] == sum(read_texts(member, asked), Reading(0, 0))
    assert found["beta", "gamma"].positions > 6


def test_a_model_that_reads_its_own_words_would_have_written_them(pool: Pairing) -> None:
    """Greedy decoding is what was kept, so a copy under another name agrees everywhere."""
    profiles = profiles_of(pool)
    copy = {"alpha": profiles["alpha"], "beta": dataclasses.replace(profiles["alpha"], model="beta")}
    found = pool.readings(["alpha", "beta"], copy)["alpha", "beta"]
    assert found.agreed / found.positions > 0.9


def test_what_was_read_is_not_read_again(pool: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = profiles_of(pool)
    first = pool.readings(NAMES, profiles), pool.tokenizations(NAMES)
    no_loading(monkeypatch)
    again = pool.readings(NAMES, profiles), pool.tokenizations(NAMES)
    assert again[0] == first[0]
    assert [one.as_dict() for one in again[1].values()] == [one.as_dict() for one in first[1].values()]


@pytest.mark.parametrize("value", ["null", "[1]", '["a", 2]', "{}", "no JSON", '{"tokens": "A", "words": 3}'])
def test_a_value_that_cannot_be_read_is_measured_again(pool: Pairing, value: str) -> None:
    profiles = profiles_of(pool)
    first = pool.readings(NAMES, profiles), pool.tokenizations(NAMES)
    with sqlite3.connect(pool.plan.cache_dir / "responses.sqlite") as connection:
        connection.execute("UPDATE measured SET value = ?", (value,))
    connection.close()
    assert pool.readings(NAMES, profiles) == first[0]
    again = pool.tokenizations(NAMES)
    assert {name: one.as_dict() for name, one in again.items()} == {
        name: one.as_dict() for name, one in first[1].items()
    }


def test_no_more_questions_than_a_sample_are_read(pool: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "QUESTIONS", 2)
    profiles = profiles_of(pool)
    asked: list[Text] = []

    def read(_: object, texts: list[Text]) -> list[Reading]:
        asked.extend(texts)
        return [Reading(1, 1) for _ in texts]

    monkeypatch.setattr(pairing, "read_texts", read)
    pool.readings(NAMES, profiles)
    assert len({text.prompt for text in asked}) <= 2
    assert len(asked) <= 3 * 2 * 2


def test_a_reader_that_fails_is_said_and_the_others_go_on(pool: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = profiles_of(pool)

    def read(member: Any, texts: list[Text]) -> Iterator[Reading]:
        if member.name == "beta":
            raise RuntimeError("kaput")
        return read_texts(member, texts)

    monkeypatch.setattr(pairing, "read_texts", read)
    found = pool.readings(NAMES, profiles)
    assert found.keys() == {(a, b) for a in ("alpha", "gamma") for b in NAMES if a != b}
    assert isinstance(pool.watcher, Listener)
    assert pool.watcher.said == ["beta: its reading of the others' responses failed, and is left out of that: kaput"]


def test_a_fault_of_the_store_is_not_the_readers(pool: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = profiles_of(pool)

    def keep(*_: object) -> None:
        raise UniteError("the disk is full")

    monkeypatch.setattr(Store, "keep", keep)
    with pytest.raises(UniteError, match="the disk is full"):
        pool.readings(NAMES, profiles)


def test_nobody_reads_where_there_is_nobody_else_or_nothing_was_written(pool: Pairing) -> None:
    profiles = profiles_of(pool)
    assert pool.readings(["alpha"], profiles) == {}
    choices = dataclasses.replace(
        pool, plan=dataclasses.replace(pool.plan, dev=dataclasses.replace(pool.plan.dev, metric="choice"))
    )
    assert choices.readings(NAMES, profiles) == {}


# --- Who reads ---


def margin(model: str, *, gap_flips: bool = False, length_flips: bool = False) -> Margin:
    return Margin(model, (0.0, 1.0), (1.0, 1.0), True, gap_flips, length_flips, "")


def test_those_that_fit_read_each_other_then_those_that_nearly_do() -> None:
    standings = [Standing(name, points, 10.0) for name, points in zip("abcdef", (80, 78, 75, 69, 68, 20), strict=True)]
    margins = {each.model: margin(each.model, gap_flips=each.model in "ce") for each in standings[1:]}
    assert readers(standings, margins, Rules(max_models=2)) == ["a", "b", "c", "e"]
    assert readers(standings, {**margins, "f": margin("f", length_flips=True)}, Rules()) == ["a", "b", "c", "e", "f"]


def test_the_number_of_readers_is_limited() -> None:
    standings = [Standing(f"m{n}", 80.0, 10.0) for n in range(30)]
    assert len(readers(standings, {}, Rules())) == pairing.READERS


# --- Tokenizers ---


def test_a_tokenizer_is_looked_at_as_the_loaded_model_has_it(pool: Pairing) -> None:
    words = common_words(example.prompt for example in pool.plan.dev.examples)
    assert {"What", "is", "Answer", "1"} <= set(words)
    found = pool.tokenizations(NAMES)
    for name in NAMES:
        [member] = pool.profiler.load([name]).members
        assert found[name].as_dict() == tokenization_of(member.vocabulary, words).as_dict()


def test_models_of_one_tokenizer_have_it_read_once(
    pool: Pairing, place: Place, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    plan = dataclasses.replace(pool.plan, candidates=read_pool("models.txt"))
    both = dataclasses.replace(pool, plan=plan, profiler=Profiler(plan, pool.store, pool.watcher))
    read: list[object] = []
    vocabulary = pairing._vocabulary
    monkeypatch.setattr(pairing, "_vocabulary", lambda *given: read.append(given) or vocabulary(*given))
    found = both.tokenizations(["alpha", "fine-tune", "resized"])
    assert len(found) == 3
    assert len(read) == 2


def test_a_tokenizer_that_cannot_be_read_is_said_and_left_out(pool: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(pairing, "_vocabulary", fail)
    assert pool.tokenizations(["alpha"]) == {}
    assert isinstance(pool.watcher, Listener)
    assert pool.watcher.said == [
        "alpha: its tokenizer cannot be compared with the others', and is left out of that: no such file"
    ]
