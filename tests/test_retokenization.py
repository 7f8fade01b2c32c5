"""Re-tokenizing a growing text of any kind: the ids of the whole text, at a bounded cost for each token."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_vocabulary import FRAGMENTS, HALVES, NAMES, pieces, quick, texts, vocabulary_named
from tiny import BYTES, MADE_UP, TEXTS, byte_tokenizer
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from ensemble.vocabulary import borders, token_bytes
from ensemble.vocabulary.borders import Merges
from ensemble.vocabulary.retokenize import Continuation
from ensemble.vocabulary.token_bytes import Vocabulary

chance = random.Random(0)


def number(digits: int) -> int:
    return chance.randrange(10**digits)


THAI = "ประเทศไทยมีประชากรมากกว่าหกสิบล้านคนและกรุงเทพมหานครเป็นเมืองหลวงที่ใหญ่ที่สุดนักเรียนไปโรงเรียนทุกวันเพื่อเรียนภาษา"
CHINESE = "今天天气很好我们去公园散步看见很多人在那里跑步和聊天孩子们放风筝老人下棋"
FIVE = {
    "csv": "\n".join(f"{number(4)},{number(2)}.{number(3)},{number(1)},-{number(6)}" for _ in range(500)),
    "json": "".join(f'{{"id": {number(5)}, "x": [{number(2)}.{number(4)}, {number(1)}]}},\n' for _ in range(300)),
    "table": "".join(f"| {number(4)} | a{number(2)} | {number(3)}.{number(2)} |\n|---|---|---|\n" for _ in range(300)),
    "latex": "".join(rf"\frac{{{number(2)}}}{{x_{number(1)}}}+\sum_{{i={number(1)}}}^n\\" for _ in range(400)),
    "thai": "".join(THAI[(n := number(2)) : n + 1 + number(1)] for _ in range(1500)),
}
"""The kinds of text in which letters, spaces and letters are rare."""
KINDS = {
    **FIVE,
    "prose": "The cat sat on the mat, didn't it? It's 3 o'clock. " * 20,
    "chinese": "".join(CHINESE[(n := number(1)) : n + 1 + number(1)] for _ in range(200)),
    "emoji": "🙂🚀👩‍👩‍👧‍👦🇩🇪" * 20,
    "combining": "cafe\u0301A\u030angstro\u0308m\u1100\u1161\u11a8\u09c7\u09bee\u0327\u0301 " * 20,
    "spaces": "".join(" " * number(1) + "\n" * (number(1) // 5) + "x" * (number(1) // 8) for _ in range(150)),
    "base64": "".join(chance.choice("ABCDEFGHabcdefgh0123456789+/=") for _ in range(600)),
    "one sign": "=" * 300 + "." * 300,
    "no words": "不" * 200 + "a" * 200 + "1" * 200,
}
NOT_CUT = {("unigram", kind) for kind in FIVE} | {("unigram with bytes", kind) for kind in ("csv", "latex", "thai")}
"""A Unigram model's words have no final tokens while they grow, and unknown characters beside each other are one."""
SENSITIVE = [
    *("'", "v", "ve", "'LL", "don't", "ſ", "K", "ABC", "Abc", "12", "3456", "²", "\r\n", "\n\n ", "a" * 40),
    *("=", "--", "$+", "{", "\\", "=" * 40, "</", "s>", "[UNUSED", "_TOKEN_12", "]"),
    *("Ｅ", "\u1100", "\u1161", "\u11a8", "\u09c7", "\u09be", "กี่"),
]
DISPUTED = [
    *("\u061d", "\u09fd", "\u166d", "\u1c89", "\u2e52", "\ua7cb", "\u0c77", "\u20c1"),
    *("\U00011de0", "\U00010d40", "\U00010d4a", "\U0001faf9", "\U000323b0", "\U00016d63\U00016d67", "\U000105d2\u0307"),
]
"""Characters that one library may know as letters, numbers or punctuation and another one, older, does not."""
AROUND = [
    *("a", "ab", " ", "  ", "\n", "1", "234", "'s", "'ve", "!", "...", "-", "é", "\u0301", "不", "。", "x" * 9, "7" * 9)
]
hard = st.one_of(pieces, st.sampled_from(SENSITIVE).map(str.encode))


def parts_of(data: bytes, seed: int, longest: int = 6) -> Iterator[bytes]:
    """A text in parts of random length, also within characters."""
    sizes, place = random.Random(seed), 0
    while place < len(data):
        size = sizes.randint(1, longest)
        yield data[place : place + size]
        place += size


def grow(vocabulary: Vocabulary, parts: list[bytes]) -> Continuation:
    """Extend a continuation part by part; each time its ids are those of the whole text, and settled ids stay."""
    reader, data, settled = Continuation(vocabulary), b"", list[int]()
    for part in parts:
        data += part
        old, same = [*reader.ids], reader.extend(part)
        assert reader.ids == vocabulary.continue_ids(data)
        assert reader.ids[: len(settled)] == settled
        assert reader.ids[:same] == old[:same]
        settled = reader.ids[: reader.settled]
    return reader


@pytest.fixture(params=[None, 1], ids=["", "eager"])
def patience(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, and so that a border is looked for after each part: then a wrong border is found soonest."""
    if request.param:
        monkeypatch.setattr(borders, "_LONG", 4)
        # Kept texts are soon dropped.
        monkeypatch.setattr(token_bytes, "_MOST_SHORT", 5)
        if known := vocabulary_named(name).borders:
            monkeypatch.setattr(known, "patience", request.param)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_growing_text_of_any_kind_has_the_ids_of_the_whole(name: str, kind: str, patience: None) -> None:
    grow(vocabulary_named(name), [*parts_of(KINDS[kind].encode()[:400], seed=len(kind))])


@pytest.mark.parametrize("name", NAMES)
def test_hard_texts_byte_by_byte_have_the_ids_of_the_whole(name: str, patience: None) -> None:
    for data in [*(text.encode() for text in TEXTS.values()), *BYTES.values()]:
        grow(vocabulary_named(name), [data[n : n + 1] for n in range(len(data))])


@pytest.mark.parametrize("name", NAMES)
@settings(quick, max_examples=30)
@given(data=st.lists(hard, max_size=40).map(b"".join), seed=st.integers(0, 99), longest=st.integers(1, 9))
def test_any_bytes_in_any_parts_have_the_ids_of_the_whole(name: str, data: bytes, seed: int, longest: int) -> None:
    grow(vocabulary_named(name), [*parts_of(data, seed, longest)])


@pytest.mark.parametrize("name", NAMES)
def test_characters_that_libraries_know_differently_have_the_ids_of_the_whole(name: str, patience: None) -> None:
    draw = random.Random(3)
    for _ in range(20):
        text = "".join(draw.choice(DISPUTED if draw.random() < 0.25 else AROUND) for _ in range(draw.randint(4, 30)))
        grow(vocabulary_named(name), [character.encode() for character in text])


@pytest.mark.parametrize("name", MADE_UP)
@settings(quick, max_examples=20)
@given(start=texts, one=texts, other=texts)
def test_forks_do_not_disturb_each_other(name: str, start: bytes, one: bytes, other: bytes) -> None:
    vocabulary = vocabulary_named(name)
    reader = Continuation(vocabulary)
    reader.extend(start)
    fork = reader.fork()
    fork.extend(one)
    again = fork.fork()
    reader.extend(other)
    again.extend(other)
    assert reader.ids == vocabulary.continue_ids(start + other)
    assert fork.ids == vocabulary.continue_ids(start + one)
    assert again.ids == vocabulary.continue_ids(start + one + other)


@pytest.mark.parametrize("kind", FIVE)
@pytest.mark.parametrize("name", NAMES)
def test_the_work_for_a_token_does_not_grow_with_the_text(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, kind) in NOT_CUT:
        pytest.skip("a Unigram model is read from the last space")
    vocabulary, read = vocabulary_named(name), [0]
    inner, merged = vocabulary.continue_ids, Merges._read

    def counted(data: bytes) -> list[int]:
        read[0] += len(data)
        return inner(data)

    def counted_piece(merges: Merges, piece: str) -> list[tuple[int, int]]:
        read[0] += len(piece)
        return merged(merges, piece)

    monkeypatch.setattr(vocabulary, "continue_ids", counted)
    monkeypatch.setattr(Merges, "_read", counted_piece)
    reader, done = Continuation(vocabulary), dict[int, int]()
    for n, part in enumerate(parts_of(FIVE[kind].encode(), seed=0), 1):
        reader.extend(part)
        if n in (250, 500, 1750, 2000):
            done[n] = read[0]
    # Bytes that the tokenizer reads for 250 parts of 3.5 bytes on average; the whole text each time would be 220,000.
    early, late = done[500] - done[250], done[2000] - done[1750]
    assert late < 1.5 * early
    assert late < 250 * 150


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (lambda backend: setattr(backend, "normalizer", normalizers.Lowercase()), False),
        (lambda backend: setattr(backend, "normalizer", normalizers.NFC()), True),
        (lambda backend: backend.add_tokens([AddedToken("end", single_word=True)]), False),
        (lambda backend: backend.add_tokens([AddedToken("end", lstrip=True)]), False),
        (lambda backend: backend.add_tokens([AddedToken("end", rstrip=True), AddedToken("ended")]), True),
    ],
    ids=["lower case", "composed", "single word", "takes the space before it", "takes the space after it"],
)
def test_a_tokenizer_with_other_parts_is_read_from_the_last_safe_cut(change: object, known: bool) -> None:
    tokenizer = byte_tokenizer(("James", " the"))
    assert callable(change)
    change(tokenizer.backend_tokenizer)
    vocabulary = Vocabulary(tokenizer, (), len(tokenizer))
    assert (vocabulary.borders is not None) is known
    grow(
        vocabulary,
        [part.encode() for part in (*FRAGMENTS, "end", "ed", "end", "  ", "The end ", *"ended ends")] + HALVES,
    )


@pytest.mark.parametrize(
    ("pattern", "known"),
    [
        (r"(?<=a)b|\p{L}+", False),
        (r"\bw|[a-z]+", False),
        (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{Lo}]+|[\p{Lu}\p{Lo}]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+", True),
        (r"[A-Z]{2,}(?=[a-z])|\p{N}++|\s+$|a|ab|abc+", True),
    ],
    ids=["looks back", "at the end of a word", "by case", "looks ahead"],
)
@quick
@given(data=st.text("abcABCxX中国12345 \n'=.", max_size=60).map(str.encode), seed=st.integers(0, 99))
def test_other_patterns_that_look_ahead_have_known_borders(pattern: str, known: bool, data: bytes, seed: int) -> None:
    tokenizer = byte_tokenizer(("abc", "ABCx", "中国", "123", " ="))
    split, spell = pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, spell])
    vocabulary = Vocabulary(tokenizer, (), len(tokenizer))
    assert (vocabulary.borders is not None) is known
    if vocabulary.borders:
        vocabulary.borders.patience = 1
    grow(vocabulary, [*parts_of(data, seed)])


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
