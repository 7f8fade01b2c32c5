"""What is read of the tokenizers for the sake of pairs, what of it is kept, and what a failure leaves."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Place
from sklearn.metrics import cohen_kappa_score
from tiny import byte_tokenizer, load_tokenizer, real_tokenizers, unigram_tokenizer

from advisor.advice import pairs
from advisor.advice.pairs import Hashes, decoded, encoded, hashes_of, kappas, vocabularies, vocabulary_overlaps
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.progress import Progress
from ensemble.errors import UniteError
from ensemble.vocabulary.token_bytes import Vocabulary

pytest_plugins = ["pools"]
NAMES = ("alpha", "beta", "gamma")


class Opened(NamedTuple):
    """The candidates of a plan, whose tokenizers are read, with what is said of them."""

    plan: RunConfig
    profiler: Profiler
    store: ResponseCache
    said: list[str]
    progress: Progress

    def read(self, names: Sequence[str] = NAMES) -> dict[str, Hashes]:
        return vocabularies(names, self.profiler, self.store, self.progress)


@pytest.fixture
def opened(place: Place, models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    place.job(models)
    plan, progress, said = place.plan(verify=False), Progress(quiet=True), list[str]()
    monkeypatch.setattr(progress, "say", said.append)
    with ResponseCache(plan.cache_dir) as store:
        yield Opened(plan, Profiler(plan, store, progress), store, said, progress)


def texts(found: dict[str, Hashes]) -> dict[str, str]:
    return {name: encoded(hashes) for name, hashes in found.items()}


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a model was loaded")


def test_what_was_read_is_not_read_again(monkeypatch: pytest.MonkeyPatch, opened: Opened) -> None:
    first = opened.read()
    monkeypatch.setattr("advisor.models.loaded_models.load_models", refuse)
    monkeypatch.setattr(pairs, "_vocabulary", refuse)
    assert texts(opened.read()) == texts(first)


@pytest.mark.parametrize("value", ["null", '"A"', "no JSON"])
def test_a_value_that_cannot_be_read_is_measured_again(value: str, opened: Opened) -> None:
    first = opened.read()
    with sqlite3.connect(opened.plan.cache_dir / "responses.sqlite") as connection:
        connection.execute("UPDATE measured SET value = ?", (value,))
    connection.close()
    assert texts(opened.read()) == texts(first)


def test_a_fault_of_the_store_is_not_the_tokenizers(monkeypatch: pytest.MonkeyPatch, opened: Opened) -> None:
    def keep(*_: object) -> None:
        raise UniteError("the disk is full")

    monkeypatch.setattr(ResponseCache, "keep", keep)
    with pytest.raises(UniteError, match="the disk is full"):
        opened.read()


def test_a_tokenizer_is_looked_at_as_the_loaded_model_has_it(opened: Opened) -> None:
    found = opened.read()
    for name in NAMES:
        [member] = opened.profiler.load([name]).members
        assert (found[name] == hashes_of(member.vocabulary)).all()


def test_models_of_one_tokenizer_have_it_read_once(
    place: Place, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    config = json.loads((models / "alpha" / "config.json").read_text(encoding="utf-8"))
    changes = {"fine-tune": {"initializer_range": 0.5}, "resized": {"vocab_size": config["vocab_size"] - 64}}
    for name, change in changes.items():
        shutil.copytree(models / "alpha", tmp_path / name)
        (tmp_path / name / "config.json").write_text(json.dumps({**config, **change}), encoding="utf-8")
    place.pool(str(models / "alpha"), *(str(tmp_path / name) for name in changes))
    profiler = Profiler(place.plan(verify=False), opened.store, opened.progress)
    read: list[object] = []
    vocabulary = pairs._vocabulary
    monkeypatch.setattr(pairs, "_vocabulary", lambda *given: read.append(given) or vocabulary(*given))
    assert len(opened._replace(profiler=profiler).read(["alpha", *changes])) == 3
    assert len(read) == 2


def test_a_tokenizer_that_cannot_be_read_is_said_and_left_out(monkeypatch: pytest.MonkeyPatch, opened: Opened) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(pairs, "_vocabulary", fail)
    assert opened.read(["alpha"]) == {}
    assert opened.said == [
        "alpha: its tokenizer cannot be compared with the others' (no such file); the table of pairs leaves it out"
    ]


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
