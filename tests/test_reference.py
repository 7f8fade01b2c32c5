"""The judge is judged here: properties that `reference` must have whatever the models are."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import CHARACTER_OF, ReferenceMember, ReferenceVocabulary, generate, step, vocabulary_of
from tiny import (
    BYTES,
    MADE_UP,
    TEXTS,
    byte_tokenizer,
    real_tokenizers,
    tokenizer_named,
    unigram_tokenizer,
)

NO_SHARED = pytest.mark.skip(reason="../shared/tokenizers is absent")
OF_EACH_KIND = ("deepseek-coder", "gpt-2", "gpt-neox", "internlm2", "llama-2", "phi-3")
"""The others are as one of these: the product is compared with the judge on all of them."""
REAL: list[Any] = [name for name in real_tokenizers() if name in OF_EACH_KIND] or [
    pytest.param("none", marks=NO_SHARED)
]


def vocabulary_named(name: str) -> ReferenceVocabulary:
    tokenizer = tokenizer_named(name)
    return vocabulary_of(tokenizer, len(tokenizer), (tokenizer.eos_token_id,))


def text_of(vocabulary: ReferenceVocabulary, ids: Sequence[int]) -> bytes:
    """The bytes of ids; an unknown token has none."""
    return b"".join(vocabulary.bytes.get(token, b"") for token in ids)


class Scripted:
    """A model whose logits a test sets: `wants` gives {id: logit} for a context, all other logits are -9."""

    def __init__(self, rows: int, wants: Callable[[list[int]], dict[int, float]], eos: Any = None) -> None:
        self.rows, self.wants, self.seen = rows, wants, list[list[int]]()
        self.generation_config = SimpleNamespace(eos_token_id=eos)

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        assert not use_cache
        self.seen.append(input_ids[0].tolist())
        logits = torch.full((1, input_ids.shape[1], self.rows), -9.0, dtype=torch.float64)
        for token, logit in self.wants(self.seen[-1]).items():
            logits[0, -1, token] = logit
        return SimpleNamespace(logits=logits)


def scripted(tokenizer: Any, wants: dict[bytes | str, float], eos: Any = None) -> ReferenceMember:
    """A member that always wants the same; its entries are given by bytes, EOS by `EOS`."""
    vocabulary = vocabulary_of(tokenizer, len(tokenizer) + 3, (tokenizer.eos_token_id,))
    ids = {
        tokenizer.eos_token_id if isinstance(w, str) else vocabulary.candidates[w]: logit for w, logit in wants.items()
    }
    return ReferenceMember(Scripted(len(tokenizer) + 3, lambda _: ids, eos), tokenizer)


def writes(text: bytes) -> ReferenceMember:
    """A member that writes that text byte by byte, whatever the prompt of one byte, and then ends."""
    tokenizer = byte_tokenizer()
    letters: Any = tokenizer.convert_tokens_to_ids([CHARACTER_OF[byte] for byte in text])
    ids = [*letters, tokenizer.eos_token_id]
    return ReferenceMember(Scripted(len(tokenizer), lambda context: {ids[len(context) - 1]: 9.0}), tokenizer)


# Tokens are bytes


@pytest.mark.parametrize("name", [*MADE_UP, *REAL])
def test_the_bytes_of_a_continuation_are_the_text(name: str) -> None:
    vocabulary = vocabulary_named(name)
    if name == "unigram":
        pytest.skip("it has no token for most characters")
    for text in TEXTS.values():
        expected = text
        if name in ("qwen2", "gpt-neox"):
            expected = unicodedata.normalize("NFC", text)
        if vocabulary.style == "sentencepiece":
            expected = expected.replace("▁", " ")
        if name == "phi-3":
            expected = expected.replace("</s> ", "</s>")  # an added token that swallows the space after it
        if name == "unigram with bytes":
            expected = expected.replace("<0x41><0x0A>", "A\n")  # found as pieces
        assert text_of(vocabulary, vocabulary.continuation(text.encode())) == expressible(name, expected.encode())


@pytest.mark.parametrize("name", [*MADE_UP, *REAL])
def test_bytes_that_are_no_utf8_keep_their_place(name: str) -> None:
    vocabulary = vocabulary_named(name)
    if name == "unigram":
        pytest.skip("it has no byte tokens")
    for text in BYTES.values():
        assert text_of(vocabulary, vocabulary.continuation(text)) == expressible(name, text)


def expressible(name: str, text: bytes) -> bytes:
    """The text without the bytes that a byte-level vocabulary has no token for."""
    vocabulary = vocabulary_named(name)
    # Not by name: DeepSeek's added token "ÿ" is that letter, and no token for the byte 0xFF, which "ÿ" stands for.
    known = {token[0] for token in vocabulary.bytes.values() if len(token) == 1}
    return bytes(byte for byte in text if vocabulary.style != "byte-level" or byte in known)


def test_a_character_without_a_token_is_the_unknown_one() -> None:
    tokenizer, vocabulary = tokenizer_named("unigram"), vocabulary_named("unigram")
    ids = vocabulary.continuation("the 🙂 cat".encode())
    assert tokenizer.unk_token_id in ids
    assert text_of(vocabulary, ids) == b"the  cat"


@pytest.mark.parametrize("name", [*MADE_UP, *REAL])
def test_a_literal_control_token_is_text(name: str) -> None:
    tokenizer, vocabulary = tokenizer_named(name), vocabulary_named(name)
    control = {t: a.content for t, a in tokenizer.added_tokens_decoder.items() if a.special or t in vocabulary.bytes}
    control = {t: content for t, content in control.items() if t not in vocabulary.bytes}
    assert tokenizer.eos_token_id in control
    if name == "unigram":
        control.pop(tokenizer.unk_token_id)  # what stands for "<" in it
    for text in [*TEXTS.values(), *control.values(), *(f"a {content} b" for content in control.values())]:
        ids = vocabulary.continuation(text.encode())
        assert not control.keys() & set(ids)
        assert len(ids) != 1 or vocabulary.bytes.get(ids[0], b"").decode() not in control.values()


def test_the_representative_is_no_byte_token_then_the_lowest_id() -> None:
    tokenizer = unigram_tokenizer(byte_fallback=True)
    vocabulary = vocabulary_named("unigram with bytes")
    assert tokenizer.convert_ids_to_tokens(vocabulary.candidates[b"A"]) == "A"
    assert tokenizer.convert_ids_to_tokens(vocabulary.candidates[b"Z"]) == "<0x5A>"
    doubled = byte_tokenizer(("ab",))
    low = doubled.convert_tokens_to_ids("b")
    doubled.add_tokens(["b"])
    assert vocabulary_of(doubled, len(doubled), ()).candidates[b"b"] == low


# One step


def test_the_union_holds_what_any_member_wants_and_a_missing_word_has_its_first_id() -> None:
    primary = scripted(byte_tokenizer(("Jam",)), {b"Jam": 1.0, b"x": 0.0})
    other = scripted(byte_tokenizer(("James",)), {b"James": 5.0, b"x": 1.0})
    seen = step([primary, other], [[1], [1]], k=2)
    assert seen.union == [b"Jam", b"x", b"James"]
    jam = primary.candidates[b"Jam"]
    assert list(seen.ids[0].values()) == [jam, primary.candidates[b"x"], jam]
    e = math.exp(1)
    # Jam and James share an id, and each keeps its whole logit.
    assert seen.member_p[0] == pytest.approx(
        {b"Jam": e / (2 * e + 1), b"x": 1 / (2 * e + 1), b"James": e / (2 * e + 1)}
    )
    total = math.exp(-9) + e + math.exp(5)
    assert seen.member_p[1] == pytest.approx(
        {b"Jam": math.exp(-9) / total, b"x": e / total, b"James": math.exp(5) / total}
    )
    assert seen.winner == b"James"
    assert seen.emitted == jam
    assert seen.p[b"James"] == pytest.approx((e / (2 * e + 1) + math.exp(5) / total) / 2)


def test_other_members_read_the_whole_text_anew() -> None:
    letters, words = byte_tokenizer(("Jam", "es")), byte_tokenizer(("James",))
    jam, es = (vocabulary_of(letters, len(letters), ()).candidates[word] for word in (b"Jam", b"es"))
    primary = ReferenceMember(Scripted(300, lambda c: {jam if len(c) == 1 else es: 9.0}), letters)
    other = ReferenceMember(Scripted(300, lambda _: {}), words)
    g = generate([primary, other], [[7], [8, 9]], max_new_tokens=3, weights=[1, 0])
    assert g.ids == [jam, es, es]
    assert primary.model.seen[1:] == [[7], [7, jam], [7, jam, es]]
    vocabulary = other.candidates
    assert other.model.seen[1:] == [[8, 9], [8, 9, vocabulary[b"Jam"]], [8, 9, vocabulary[b"James"]]]


# The contexts and the end


@pytest.mark.parametrize(
    ("stop", "limit", "text", "reason", "count"),
    [
        ((), 20, "abc\n\ndef", "eos", 8),
        ((), 8, "abc\n\ndef", "length", 8),
        ((), 0, "", "length", 0),
        (("\n\n",), 20, "abc", "stop", 5),
        (("\n\n",), 5, "abc", "stop", 5),
        (("\n\n",), 4, "abc\n", "length", 4),
        (("ef", "bc\n", "\n"), 20, "a", "stop", 4),
        (("zzz",), 20, "abc\n\ndef", "eos", 8),
    ],
)
def test_the_end(stop: tuple[str, ...], limit: int, text: str, reason: str, count: int) -> None:
    g = generate([writes(b"abc\n\ndef")], [[1]], max_new_tokens=limit, stop=stop)
    assert (g.text, g.finish_reason, len(g.ids)) == (text, reason, count)
