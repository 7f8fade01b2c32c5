"""Tokens as bytes, texts as continuations, and the joint vocabulary's tables, against an independent implementation."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ReferenceVocabulary, vocabulary_of
from tiny import BYTES, MADE_UP, TEXTS, byte_tokenizer, real_tokenizers, tokenizer_named, unigram_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ensemble.errors import InputError
from ensemble.vocabulary.joint import EOS, NONE, JointVocabulary, build, entries, load_or_build
from ensemble.vocabulary.token_bytes import Vocabulary, utf8_runs

ABSENT: Any = pytest.param("none", marks=pytest.mark.skip("../shared/tokenizers is absent"))
FIRST = ("deepseek-coder", "gpt-2", "gpt-neox", "phi-3")
"""Of each kind one. The others are further cases: the code is the same, and each takes long to read."""
FURTHER = [
    pytest.param(name, marks=[pytest.mark.second_lane, pytest.mark.further])
    for name in real_tokenizers()
    if name not in FIRST
]
NAMES: list[Any] = [*MADE_UP, *([*FIRST, *FURTHER] if real_tokenizers() else [ABSENT])]
FRAGMENTS = [
    *(" ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "\u200d", "\u0301", "▁", "Ġ", "_", ".", ", ", "'s"),
    *("a", "the", " the", "The cat", "James", "1", "23", "é", "e\u0301", "Ω", "ø", "ª", "ﬁ", "привет ", "한국 "),
    *("今天", "我们。", "，", "は", "🙂", "👩\u200d👩\u200d👧", "\ufffd"),
    *("</s>", "<s>", "<|im_end|>", "<|endoftext|>", "<unk>", "<0x41>", "[INST]", "[UNUSED_TOKEN_3]"),
]
HALVES = [
    *("今".encode()[:2], "今".encode()[2:], "🙂".encode()[:1], "🙂".encode()[1:]),
    *(b"\xff", b"\x80", b"\xc3", b"\xed\xa0\x80"),
]

quick = settings(max_examples=20, deadline=None, derandomize=True)
pieces = st.one_of(
    st.sampled_from(FRAGMENTS).map(str.encode),
    st.sampled_from(HALVES),
    st.text(max_size=3).map(lambda text: text.encode("utf-8", "replace")),
    st.binary(max_size=3),
)
texts = st.lists(pieces, max_size=8).map(b"".join)


@cache
def vocabulary_named(name: str) -> Vocabulary:
    tokenizer = tokenizer_named(name)
    return Vocabulary(tokenizer, (), len(tokenizer))


def reference_of(name: str) -> ReferenceVocabulary:
    tokenizer = tokenizer_named(name)
    return vocabulary_of(tokenizer, len(tokenizer), (tokenizer.eos_token_id,))


def id_named(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    index = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(index, int)
    return index


# Tokens as bytes


@pytest.mark.parametrize("name", NAMES)
def test_every_id_has_the_bytes_of_the_reference(name: str) -> None:
    vocabulary, reference = vocabulary_named(name), reference_of(name)
    found = {token: data for token in range(vocabulary.size) if (data := vocabulary.token_bytes(token)) is not None}
    assert found == {token: data for token, data in reference.bytes.items() if token not in vocabulary.eos_ids}


@pytest.mark.parametrize("name", NAMES)
def test_candidates_and_their_representatives_are_those_of_the_reference(name: str) -> None:
    assert vocabulary_named(name).representatives == reference_of(name).candidates


def test_a_byte_token_gives_way_to_a_token_with_the_same_byte() -> None:
    tokenizer = unigram_tokenizer(byte_fallback=True)
    vocabulary = vocabulary_named("unigram with bytes")
    byte_token, letter = (id_named(tokenizer, token) for token in ("<0x41>", "A"))
    assert byte_token < letter == vocabulary.representatives[b"A"]
    assert vocabulary.is_byte_token(byte_token)
    assert not vocabulary.is_byte_token(letter)


def test_rows_beyond_the_tokenizer_are_not_candidates() -> None:
    tokenizer = byte_tokenizer()
    vocabulary = Vocabulary(tokenizer, (), len(tokenizer) + 10)
    assert vocabulary.token_bytes(len(tokenizer) + 3) is None
    assert max(vocabulary.representatives.values()) < len(tokenizer)


def test_ids_beyond_the_models_rows_are_not_candidates_and_in_no_text() -> None:
    tokenizer = byte_tokenizer(("zzz",))
    whole, cut = (Vocabulary(tokenizer, (), size) for size in (300, 256))
    assert len(whole.continue_ids(b"zzz")) == 1
    assert b"zzz" not in cut.representatives
    assert cut.continue_ids(b"azzz") == whole.continue_ids(b"a")


def test_every_eos_id_is_special_and_ends_the_same_way() -> None:
    tokenizer = byte_tokenizer(("ab",))
    other = id_named(tokenizer, "Z")
    vocabulary = Vocabulary(tokenizer, (other, 10**6), len(tokenizer))
    assert vocabulary.eos_ids == (other, tokenizer.eos_token_id)
    assert vocabulary.token_bytes(other) is None
    assert b"Z" not in vocabulary.representatives


@pytest.mark.parametrize("marked", [True, False], ids=["marked as special", "not marked"])
def test_the_unknown_token_is_not_a_candidate(marked: bool) -> None:
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("a", -1.0), ("</s>", -9.0)], unk_id=0))
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("</s>", *(["<unk>"] if marked else []))])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>"), (), 4)
    assert vocabulary.representatives == {b" ": 1, b"a": 2}


def test_unused_ids_are_not_candidates() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["[UNUSED_TOKEN_7]", "<unused3>", "<|unused_12|>", "unused", "[UNUSED]"])
    added = [data for data in Vocabulary(tokenizer, (), 300).representatives if len(data) > 1]
    assert added == [b"unused", b"[UNUSED]"]


@pytest.mark.parametrize("name", ["WordPiece", "CTC", "BPEDecoder"])
def test_a_decoder_whose_tokens_are_not_byte_strings_is_refused_by_name(name: str) -> None:
    tokenizer = byte_tokenizer(("x",))
    tokenizer.backend_tokenizer.decoder = getattr(decoders, name)()
    with pytest.raises(InputError, match=name):
        Vocabulary(tokenizer, (), len(tokenizer))


def test_a_tokenizer_without_a_fast_form_is_refused() -> None:
    class Slow:
        name_or_path = "org/slow"

    slow: Any = Slow()
    with pytest.raises(InputError, match=r"org/slow: .* no fast form"):
        Vocabulary(slow, (), 10)


def test_without_a_decoder_a_token_is_its_own_text() -> None:
    tokenizer = byte_tokenizer(("yz",))
    tokenizer.backend_tokenizer.decoder = None
    vocabulary = Vocabulary(tokenizer, (), len(tokenizer))
    assert vocabulary.token_bytes(id_named(tokenizer, "Ġ")) == "Ġ".encode()
    assert vocabulary.continue_ids(b"\xff") == []


# Continuations


@given(texts)
def test_runs_are_maximal_and_in_order(data: bytes) -> None:
    runs = [*utf8_runs(data)]
    assert b"".join(run for run, _ in runs) == data
    assert all(text is None or text.encode() == run for run, text in runs)
    assert all((a is None) != (b is None) for (_, a), (_, b) in pairwise(runs))


def test_runs_of_a_cut_character() -> None:
    assert [*utf8_runs(b"a\xe4\xbb b")] == [(b"a", "a"), (b"\xe4\xbb", None), (b" b", " b")]


@pytest.mark.parametrize("name", NAMES)
def test_hard_texts_continue_as_in_the_reference(name: str) -> None:
    vocabulary, reference = vocabulary_named(name), reference_of(name)
    for data in [*(text.encode() for text in TEXTS.values()), *BYTES.values()]:
        assert vocabulary.continue_ids(data) == reference.continuation(data)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "unigram"])
def test_the_bytes_of_a_continuation_are_the_text(name: str) -> None:
    """Whatever the reference says; "unigram" has no token for most characters."""
    vocabulary = vocabulary_named(name)
    # What the tokenizer reads as another text: composed characters, byte tokens as pieces, a token that takes a space.
    read_as = {"unigram with bytes": ("<0x41><0x0A>", "A\n"), "phi-3": ("</s> ", "</s>")}.get(name, ("", ""))
    for text in TEXTS.values():
        read = b"".join(vocabulary.token_bytes(index) or b"" for index in vocabulary.continue_ids(text.encode()))
        wanted = text.replace(*read_as) if read_as[0] else text
        assert plain(read.decode()) == plain(wanted)


def plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).replace("▁", " ")


@pytest.mark.parametrize("name", NAMES)
@quick
@given(data=texts)
def test_any_bytes_continue_as_in_the_reference(name: str, data: bytes) -> None:
    assert vocabulary_named(name).continue_ids(data) == reference_of(name).continuation(data)


@pytest.mark.parametrize("name", NAMES)
@settings(quick, max_examples=15)
@given(many=st.lists(texts, max_size=6))
def test_many_texts_at_once_continue_as_one_by_one(name: str, many: list[bytes]) -> None:
    vocabulary = vocabulary_named(name)
    assert vocabulary.continue_batch(many) == [vocabulary.continue_ids(data) for data in many]


@pytest.mark.parametrize("name", NAMES)
def test_control_tokens_in_a_text_stay_text(name: str) -> None:
    tokenizer, vocabulary = tokenizer_named(name), vocabulary_named(name)
    special = {t: a.content for t, a in tokenizer.added_tokens_decoder.items() if a.special}
    special |= {tokenizer.eos_token_id: tokenizer.eos_token}
    unknown = {tokenizer.unk_token_id} if name == "unigram" else set()  # what stands for "<" in it
    for content in special.values():
        for text in (content, f"a{content}", f"{content} b", content * 2):
            assert not (special.keys() - unknown) & set(vocabulary.continue_ids(text.encode()))


# The tables of the joint vocabulary


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
    "a model without merges": lambda backend: setattr(backend, "model", models.BPE(backend.get_vocab(), [])),
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
