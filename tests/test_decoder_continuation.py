"""A text that grows token by token has the ids of the whole text, and is not tokenized as a whole each time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_vocabulary import NAMES, pieces, quick, vocabulary_named
from tiny import byte_tokenizer
from tokenizers import AddedToken

from ensemble.vocabulary.retokenize import Continuation
from ensemble.vocabulary.token_bytes import Vocabulary

WORDS = [
    *("the", "cat", "x", "end", "l'an", "I", "7", "Straße", "naïve", "e\u0301", "ª"),
    *("о", "мир", "今天", "你好", "は"),
]
BETWEEN = [" ", " ", " ", "\n", "，", "。", "、", "！", "？", "  ", ", ", "", "\n\n", ".\n", " \n"]

phrases = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(BETWEEN)), min_size=1, max_size=12).map(
    lambda pairs: "".join(word + between for word, between in pairs).encode()
)


def grow(vocabulary: Vocabulary, parts: list[bytes]) -> None:
    """Extend a continuation part by part, and compare it with the whole text after each part."""
    reader, data = Continuation(vocabulary), b""
    for part in parts:
        old = [*reader.ids]
        data += part
        same = reader.extend(part)
        assert reader.ids == vocabulary.continue_ids(data)
        assert reader.ids[:same] == old[:same]
        assert same == min(len(old), len(reader.ids)) or old[same] != reader.ids[same]


@pytest.mark.parametrize("name", NAMES)
@quick
@given(parts=st.lists(pieces, max_size=14))
def test_a_growing_text_has_the_ids_of_the_whole(name: str, parts: list[bytes]) -> None:
    grow(vocabulary_named(name), parts)


@pytest.mark.parametrize("name", NAMES)
@settings(quick, max_examples=60)
@given(data=phrases, size=st.integers(1, 7))
def test_growing_words_have_the_ids_of_the_whole(name: str, data: bytes, size: int) -> None:
    grow(vocabulary_named(name), [data[n : n + size] for n in range(0, len(data), size)])


def test_a_fork_does_not_change_the_original() -> None:
    vocabulary = vocabulary_named("bytes")
    reader = Continuation(vocabulary)
    reader.extend(b"see the ca")
    fork = reader.fork()
    fork.extend(b"t now")
    reader.extend(b"r")
    assert reader.ids == vocabulary.continue_ids(b"see the car")
    assert fork.ids == vocabulary.continue_ids(b"see the cat now")


@pytest.mark.parametrize(
    "text",
    [
        "The cat sat on the mat. ",
        "Мама мыла раму. ",
        "今天天气很好，我们去公园。",
        "한국어 문장 하나. ",
        "def f(x):\n    return x\n",
    ],
    ids=["english", "russian", "chinese", "korean", "code"],
)
@pytest.mark.parametrize("name", NAMES)
def test_the_cost_of_a_growing_text_does_not_grow_with_the_square_of_its_length(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "unigram" and not text.isascii():
        pytest.skip("most of these characters are unknown to this tokenizer")
    vocabulary, read = vocabulary_named(name), list[int]()
    inner = vocabulary.continue_ids

    def counted(data: bytes) -> list[int]:
        read.append(len(data))
        return inner(data)

    monkeypatch.setattr(vocabulary, "continue_ids", counted)
    data = (text * 40).encode()[:1200]
    reader = Continuation(vocabulary)
    for n in range(0, len(data), 3):
        reader.extend(data[n : n + 3])
    # Each step reads little more than a clause; the whole text at each step would be 240,000 bytes.
    assert sum(read) < 40 * len(data)


@pytest.mark.parametrize(
    ("token", "cuts"),
    [
        (AddedToken("end", rstrip=True), False),
        (AddedToken("end.", rstrip=True), True),
        (AddedToken("of the", normalized=False), False),
        (AddedToken("of", normalized=False), True),
    ],
    ids=["takes the space", "does not end with a letter", "crosses a space", "is a word"],
)
def test_a_token_that_crosses_a_space_forbids_a_cut(token: AddedToken, cuts: bool) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([token])
    vocabulary = Vocabulary(tokenizer, (), len(tokenizer))
    assert bool(vocabulary.cuts and vocabulary.cuts.search("a b")) is cuts
    grow(vocabulary, [b"the end", b" of", b" th", b"e end", b" it", b" end. of it"])
