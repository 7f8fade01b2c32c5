"""The joint vocabulary's tables: every look-up is the judge's, and a file of them is as good as building them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_vocabulary import reference_of, vocabulary_named
from tiny import byte_tokenizer, real_tokenizers
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from ensemble.vocabulary.joint import EOS, NONE, JointVocabulary, build, entries, load_or_build
from ensemble.vocabulary.token_bytes import Vocabulary


def assert_the_pages(joint: JointVocabulary, names: list[str]) -> None:
    """Every look-up in the tables against the judge's dictionaries."""
    vocabularies, judges = [vocabulary_named(name) for name in names], [reference_of(name) for name in names]
    numbers = entries(vocabularies)
    assert {*numbers} == {data for judge in judges for data in judge.candidates}
    assert joint.size == len(numbers) + 1
    for vocabulary, judge, side in zip(vocabularies, judges, joint.members, strict=True):
        eos = vocabulary.eos_ids[0]
        expected = {token: numbers[data] for data, token in judge.candidates.items()} | {eos: EOS}
        assert {t: e for t, e in enumerate(side.entry_of.tolist()) if e != NONE} == expected
        assert side.outside.tolist() == [t for t in range(vocabulary.size) if t not in expected]
        ids = side.id_of.tolist()
        assert ids[EOS] == eos
        for data, number in numbers.items():
            first = [judge.candidates[data]] if data in judge.candidates else judge.continuation(data)[:1]
            assert ids[number] == (first[0] if first and first[0] in judge.candidate_ids else NONE)


def test_tables_are_those_of_the_page() -> None:
    names = ["bytes", "unigram", "unigram with bytes"]
    assert_the_pages(build([vocabulary_named(name) for name in names]), names)


@pytest.mark.parametrize("names", [["llama-2", "gpt-2"], ["qwen2", "llama-3"]], ids="+".join)
def test_tables_of_real_tokenizers_are_those_of_the_page(names: list[str]) -> None:
    if not {*names} <= {*real_tokenizers()}:
        pytest.skip("../shared/tokenizers is absent")
    assert_the_pages(build([vocabulary_named(name) for name in names]), names)


def same(a: JointVocabulary, b: JointVocabulary) -> bool:
    return a.size == b.size and all(
        torch.equal(getattr(x, name), getattr(y, name))
        for x, y in zip(a.members, b.members, strict=True)
        for name in ("entry_of", "id_of", "outside", "eos_ids")
    )


@pytest.fixture
def two() -> list[Vocabulary]:
    return [vocabulary_named("bytes"), vocabulary_named("unigram with bytes")]


def test_tables_from_a_file_are_those_that_were_built_and_are_not_built_again(
    two: list[Vocabulary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_or_build(two, tmp_path)
    assert same(first, build(two))
    monkeypatch.setattr("ensemble.vocabulary.joint.build", lambda _: pytest.fail("built again"))
    assert same(load_or_build(two, tmp_path), first)


@pytest.mark.parametrize("damage", [b"", b"no tensors", None], ids=["empty", "something else", "half of it"])
def test_a_damaged_file_is_made_anew(two: list[Vocabulary], tmp_path: Path, damage: bytes | None) -> None:
    built = load_or_build(two, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert same(load_or_build(two, tmp_path), built)
    assert path.read_bytes() == whole


def test_a_cache_folder_that_cannot_be_written_is_no_error(two: list[Vocabulary], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert same(load_or_build(two, tmp_path / "file" / "tables"), build(two))


IN_MEMORY: dict[str, Callable[[Tokenizer], object]] = {
    "an added token": lambda backend: backend.add_tokens(["Jamie"]),
    "a special token": lambda backend: backend.add_special_tokens(["<|pad|>"]),
    "a normalizer": lambda backend: setattr(backend, "normalizer", normalizers.NFC()),
    "a pre-tokenizer": lambda backend: setattr(backend, "pre_tokenizer", pre_tokenizers.ByteLevel()),
    "a model without merges": lambda backend: setattr(backend, "model", BPE(backend.get_vocab(), [])),
    "the model's own setting": lambda backend: setattr(backend.model, "ignore_merges", True),
}
"""Ways to change a tokenizer that was read from a file, which the file knows nothing of."""


@pytest.mark.parametrize("change", IN_MEMORY)
def test_a_tokenizer_that_is_changed_in_memory_has_another_fingerprint(change: str) -> None:
    tokenizer = byte_tokenizer(("James", " the"))
    before = Vocabulary(tokenizer, (), 512).fingerprint
    assert Vocabulary(tokenizer, (), 512).fingerprint == before
    IN_MEMORY[change](tokenizer.backend_tokenizer)
    assert Vocabulary(tokenizer, (), 512).fingerprint != before


def test_another_size_or_eos_has_another_fingerprint() -> None:
    ways = [((), 512), ((), 513), ((3,), 512)]
    assert len({Vocabulary(byte_tokenizer(("James",)), *way).fingerprint for way in ways}) == 3


def test_another_order_has_tables_of_its_own(two: list[Vocabulary], tmp_path: Path) -> None:
    for members in (two, two[::-1]):
        assert same(load_or_build(members, tmp_path), build(members))
    assert len([*tmp_path.iterdir()]) == 2
