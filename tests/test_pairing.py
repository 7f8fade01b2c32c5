"""What is read of the tokenizers for the sake of pairs, what of it is kept, and what a failure leaves."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sqlite3
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score
from tiny import byte_tokenizer, load_tokenizer, real_tokenizers, unigram_tokenizer

from advisor.advice import pairs
from advisor.advice.pairs import Hashes, decoded, encoded, hashes_of, kappas, vocabularies, vocabulary_overlaps
from advisor.models.pool_file import read_pool
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.options.new_run import SelectOptions
from advisor.progress import Progress
from advisor.tasks import load_task
from ensemble.errors import UniteError
from ensemble.vocabulary.token_bytes import Vocabulary

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
        options=SelectOptions(max_gap=100, max_length_ratio=1e9),
        candidates=read_pool("models.txt"),
        dev=dev,
        held_out=None,
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


def texts(found: dict[str, Hashes]) -> dict[str, str]:
    return {name: encoded(hashes) for name, hashes in found.items()}


def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("advisor.models.loaded_models.load_models", refuse)
    monkeypatch.setattr(pairs, "_vocabulary", refuse)


def test_what_was_read_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch, profiler: Profiler, store: ResponseCache, progress: Listener
) -> None:
    first = vocabularies(NAMES, profiler, store, progress)
    no_loading(monkeypatch)
    assert texts(vocabularies(NAMES, profiler, store, progress)) == texts(first)


@pytest.mark.parametrize("value", ["null", "[1]", "3", '"A"', "no JSON"])
def test_a_value_that_cannot_be_read_is_measured_again(
    value: str, plan: RunConfig, profiler: Profiler, store: ResponseCache, progress: Listener
) -> None:
    first = vocabularies(NAMES, profiler, store, progress)
    with sqlite3.connect(plan.cache_dir / "responses.sqlite") as connection:
        connection.execute("UPDATE measured SET value = ?", (value,))
    connection.close()
    assert texts(vocabularies(NAMES, profiler, store, progress)) == texts(first)


def test_a_fault_of_the_store_is_not_the_tokenizers(
    monkeypatch: pytest.MonkeyPatch, profiler: Profiler, store: ResponseCache, progress: Listener
) -> None:

    def keep(*_: object) -> None:
        raise UniteError("the disk is full")

    monkeypatch.setattr(ResponseCache, "keep", keep)
    with pytest.raises(UniteError, match="the disk is full"):
        vocabularies(NAMES, profiler, store, progress)


def test_a_tokenizer_is_looked_at_as_the_loaded_model_has_it(
    profiler: Profiler, store: ResponseCache, progress: Listener
) -> None:
    found = vocabularies(NAMES, profiler, store, progress)
    for name in NAMES:
        [member] = profiler.load([name]).members
        assert (found[name] == hashes_of(member.vocabulary)).all()


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
    read: list[object] = []
    vocabulary = pairs._vocabulary
    monkeypatch.setattr(pairs, "_vocabulary", lambda *given: read.append(given) or vocabulary(*given))
    found = vocabularies(["alpha", "fine-tune", "resized"], Profiler(all_three, store, progress), store, progress)
    assert len(found) == 3
    assert len(read) == 2


def test_a_tokenizer_that_cannot_be_read_is_said_and_left_out(
    monkeypatch: pytest.MonkeyPatch, profiler: Profiler, store: ResponseCache, progress: Listener
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(pairs, "_vocabulary", fail)
    assert vocabularies(["alpha"], profiler, store, progress) == {}
    assert progress.said == [
        "alpha: its tokenizer cannot be compared with the others' (no such file); the table of pairs leaves it out"
    ]


# --- The measures ---


# --- Kappa ---


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n), min_size=2, max_size=5)
    )
)
def test_kappa_is_scikit_learns(rows: list[list[float]]) -> None:
    found = kappas(np.array(rows))
    for (i, a), (j, b) in product(enumerate(rows), repeat=2):
        if {*a, *b} == {a[0]}:
            assert math.isnan(found[i, j])
        else:
            assert found[i, j] == pytest.approx(cohen_kappa_score(a, b, labels=[0, 1]))


# --- Tokenizers ---


def vocabulary(tokenizer: object) -> Vocabulary:
    return Vocabulary(tokenizer, (), len(tokenizer))  # type: ignore[arg-type]


def test_the_overlap_of_vocabularies_is_what_sets_give() -> None:
    vocabularies = [
        vocabulary(tokenizer)
        for tokenizer in (
            byte_tokenizer((" the", " cat")),
            byte_tokenizer((" the", " dog")),
            unigram_tokenizer(byte_fallback=True),
            unigram_tokenizer(),
        )
    ]
    overlaps = vocabulary_overlaps([hashes_of(one) for one in vocabularies])
    for (i, a), (j, b) in product(enumerate(vocabularies), repeat=2):
        one, other = set(a.representatives), set(b.representatives)
        assert overlaps[i, j] == pytest.approx(len(one & other) / len(one | other))


def test_hashes_survive_json() -> None:
    one = hashes_of(vocabulary(byte_tokenizer((" the",))))
    assert (decoded(json.loads(json.dumps(encoded(one)))) == one).all()


@pytest.mark.skipif(not real_tokenizers(), reason="../shared is not beside the project")
def test_real_tokenizers_overlap_as_is_known_of_them() -> None:
    """Phi-3's is Llama 2's with more special tokens; Mistral's first one was made like it, with other pieces."""
    names = ("llama-2", "phi-3", "mistral-v1", "gpt-2")
    overlaps = vocabulary_overlaps([hashes_of(vocabulary(load_tokenizer(name))) for name in names])
    assert overlaps[0, 1] > 0.99
    assert overlaps[0, 3] < overlaps[0, 2] < overlaps[0, 1]
