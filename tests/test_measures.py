"""The measures of pairs, each against a slow plain version, scikit-learn's own number, or a case worked by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score
from tiny import PROMPTS, SHARED, TEXTS, byte_tokenizer, load_tokenizer, real_tokenizers, tiny_model, unigram_tokenizer

from advisor.compare import prediction, tokenizer_overlap
from advisor.compare.correctness import kappas
from advisor.compare.prediction import TokenAgreement, WrittenText, agreements, count, read_texts
from advisor.compare.text_similarity import style_distances
from advisor.compare.tokenizer_overlap import (
    Tokenization,
    common_words,
    tokenization_of,
    vocabulary_overlaps,
    words_alike,
)
from ensemble.errors import InputError
from ensemble.models.load import member_of
from ensemble.models.member import Member
from ensemble.vocabulary.token_bytes import Vocabulary

SUMS = [(f"{n} + {n + 3}", str(2 * n + 3)) for n in range(11, 51)]
WORDS = SHARED / "data" / "words" / "google-10000-english-usa-no-swears.txt"


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


# --- Style ---


def terse(shift: int = 0) -> list[str]:
    return [f"The answer is {int(answer) + shift}." for _, answer in SUMS]


def stepwise(shift: int = 0) -> list[str]:
    return [f"First, {question} = {int(answer) + shift}. So it is {int(answer) + shift}." for question, answer in SUMS]


def plain_style(a: Sequence[str], b: Sequence[str]) -> float:
    """By its definition, a trigram at a time."""

    def habits(texts: Sequence[str]) -> dict[str, float]:
        marked = ["\x02" + re.sub("[0-9]+", "0", text) + "\x03" for text in texts]
        trigrams = {text[n : n + 3] for text in marked for n in range(len(text) - 2)}
        return {trigram: sum(trigram in text for text in marked) / len(marked) for trigram in trigrams}

    one, other = habits(a), habits(b)
    kept = [trigram for trigram in one.keys() | other.keys() if max(one.get(trigram, 0), other.get(trigram, 0)) >= 0.1]
    product_ = sum(one.get(trigram, 0) * other.get(trigram, 0) for trigram in kept)
    lengths = [math.sqrt(sum(each.get(trigram, 0) ** 2 for trigram in kept)) for each in (one, other)]
    return 1 - product_ / (lengths[0] * lengths[1])


def test_style_is_what_its_definition_gives() -> None:
    a, b = [*terse()[:30], "", *stepwise()[:9]], stepwise()
    assert style_distances([a, b])[0, 1] == pytest.approx(plain_style([text for text in a if text] + [""], b))


def test_style_is_the_same_whatever_was_answered() -> None:
    distances = style_distances([terse(), terse(shift=7), stepwise(), stepwise(shift=7)])
    assert distances[0, 1] == pytest.approx(0, abs=1e-9)
    assert distances[2, 3] == pytest.approx(0, abs=1e-9)
    assert distances[0, 2] == pytest.approx(distances[1, 3]) == pytest.approx(distances[0, 3])
    assert distances[0, 2] > 0.5


def test_style_does_not_see_which_question_a_response_answers() -> None:
    assert style_distances([terse(), terse()[::-1]])[0, 1] == pytest.approx(0, abs=1e-9)


def test_the_matter_of_the_questions_is_no_style() -> None:
    """Different names in the same sentences are much closer than the same names in different sentences."""
    syllables = ["ka", "lo", "mi", "ne", "ru", "so", "ta", "vi"]
    names = ["".join(three).capitalize() for three in product(syllables, repeat=3)]
    told = [f"It was {name}, I think." for name in names[:200]]
    others = [f"It was {name}, I think." for name in names[300:500]]
    bare = [f"{name}" for name in names[:200]]
    distances = style_distances([told, others, bare])
    assert distances[0, 1] < 0.1 * distances[0, 2]


def test_style_is_not_defined_where_nothing_was_written() -> None:
    distances = style_distances([["", ""], ["a", "b"], ["a", "b"]])
    assert np.isnan(distances[0]).all()
    assert distances[1, 2] == pytest.approx(0)
    assert np.isnan(style_distances([["", ""], ["", ""]])).all()


# --- Tokenizers ---


def vocabulary(tokenizer: object) -> Vocabulary:
    return Vocabulary(tokenizer, (), len(tokenizer))  # type: ignore[arg-type]


def test_the_commonest_words_come_first_and_signs_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_overlap, "MOST_WORDS", 3)
    assert common_words(["12 cats, 3 dogs", "dogs: 12 (a_b)", "12"]) == ("12", "dogs", "cats")


def test_overlap_and_words_alike_are_what_sets_and_pieces_give() -> None:
    vocabularies = [
        vocabulary(tokenizer)
        for tokenizer in (
            byte_tokenizer((" the", " cat")),
            byte_tokenizer((" the", " dog")),
            unigram_tokenizer(byte_fallback=True),
            unigram_tokenizer(),
        )
    ]
    words = ["the", "cat", "dog", "Paris", "naïve", "今天", "zebra", "12"]
    found = [tokenization_of(one, words) for one in vocabularies]
    overlaps, alike = vocabulary_overlaps(found), words_alike(found)
    for (i, a), (j, b) in product(enumerate(vocabularies), repeat=2):
        one, other = set(a.representatives), set(b.representatives)
        assert overlaps[i, j] == pytest.approx(len(one & other) / len(one | other))
        pieces = [[[v.token_bytes(n) for n in v.continue_ids(f" {w}".encode())] for w in words] for v in (a, b)]
        same = [x == y and None not in x for x, y in zip(*pieces, strict=True)]
        assert alike[i, j] == pytest.approx(sum(same) / len(words))
    assert 0 < alike[0, 1] < 1


def test_a_word_that_cannot_be_expressed_is_cut_like_no_other() -> None:
    plain = tokenization_of(vocabulary(unigram_tokenizer()), ["zebra", "the"])
    assert words_alike([plain, plain])[0, 1] == 0.5


def test_no_words_are_no_share_of_them() -> None:
    one = tokenization_of(vocabulary(byte_tokenizer()), [])
    assert np.isnan(words_alike([one, one])).all()


def test_a_tokenization_survives_json() -> None:
    one = tokenization_of(vocabulary(byte_tokenizer((" the",))), ["the", "cat"])
    again = Tokenization.from_dict(json.loads(json.dumps(one.as_dict())))
    assert (again.tokens == one.tokens).all()
    assert (again.words == one.words).all()


@pytest.mark.skipif(not real_tokenizers() or not WORDS.is_file(), reason="../shared is not beside the project")
def test_real_tokenizers_cut_common_words_as_is_known_of_them() -> None:
    """Mistral's first tokenizer was made like Llama 2's, with other pieces; DeepSeek's is of another family."""
    words = WORDS.read_text(encoding="utf-8").split()[:3000]
    names = ("llama-2", "phi-3", "mistral-v1", "gpt-2")
    found = [tokenization_of(vocabulary(load_tokenizer(name)), words) for name in names]
    alike, overlaps = words_alike(found), vocabulary_overlaps(found)
    assert alike[0, 1] == 1  # Phi-3's is Llama 2's with more special tokens
    assert overlaps[0, 1] > 0.99
    assert 0.5 < alike[0, 2] < 1
    assert overlaps[0, 3] < overlaps[0, 2] < overlaps[0, 1]


# --- Next tokens ---


def test_tokens_are_compared_as_bytes() -> None:
    written = [b" jam", b"es", b" went"]
    assert count(written, [b" ja", b"es", b" we"], cut=False) == TokenAgreement(3, 3)
    assert count(written, [b" James", b"e", None], cut=False) == TokenAgreement(1, 3)
    assert count(written, [b"", b"x", b" went home"], cut=False) == TokenAgreement(0, 3)


def test_a_token_may_reach_beyond_the_end_only_where_the_text_was_cut() -> None:
    assert count([b"4", b"2"], [b"42.", b"2."], cut=True) == TokenAgreement(2, 2)
    assert count([b"4", b"2"], [b"42.", b"2."], cut=False) == TokenAgreement(0, 2)


@pytest.fixture(scope="module")
def member() -> Member:
    tokenizer = byte_tokenizer(("James", " the", " cat"))
    return member_of(tiny_model(tokenizer, seed=3), tokenizer, name="reader")


def by_whole_passes(member: Member, text: WrittenText) -> TokenAgreement:
    """Each position by a pass of its own over all that is before it."""
    prompt, ids = member.encode_prompt(text.prompt), member.vocabulary.continue_ids(text.text.encode())
    wanted = []
    with torch.inference_mode():
        for n in range(len(ids)):
            logits = member.model(torch.tensor([[*prompt, *ids[:n]]])).logits[0, -1]
            wanted.append(member.vocabulary.token_bytes(int(logits.argmax())))
    return count([member.vocabulary.token_bytes(n) or b"" for n in ids], wanted, cut=text.cut)


@pytest.mark.parametrize("most", [prediction._LOGITS, 3 * 400, 1])
def test_reading_is_what_a_pass_for_each_position_gives(
    member: Member, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(prediction, "_LOGITS", most)
    own = member.model.generate(
        torch.tensor([member.encode_prompt(PROMPTS[0])]), max_new_tokens=12, do_sample=False, pad_token_id=0
    )[0]
    written = member.tokenizer.decode(own, skip_special_tokens=True).removeprefix(PROMPTS[0])
    asked = [
        WrittenText(PROMPTS[0], written, cut=True),
        *(
            WrittenText(prompt, TEXTS[name], cut=False)
            for prompt in PROMPTS[:3]
            for name in ("sentence", "chinese", "word")
        ),
        WrittenText("T", "James", cut=False),
        WrittenText("T", "the cat", cut=False),
        WrittenText(PROMPTS[0], "", cut=False),
    ]
    found = list(read_texts(member, asked))
    assert found == [by_whole_passes(member, text) for text in asked]
    assert found[0].agreed >= found[0].positions - 1 > 5  # its own text, as it would write it
    assert found[-1] == TokenAgreement(0, 0)


def test_what_does_not_fit_the_context_is_left_out() -> None:
    tokenizer = byte_tokenizer()
    small = member_of(tiny_model(tokenizer, positions=20), tokenizer, name="small")
    assert [one.positions for one in read_texts(small, [WrittenText("a" * 15, "b" * 9, cut=False)])] == [5]
    with pytest.raises(InputError, match="does not fit its context of 20"):
        list(read_texts(small, [WrittenText("a" * 20, "b", cut=False)]))


def test_agreement_is_the_mean_of_both_directions_and_needs_both() -> None:
    readings = {
        ("a", "b"): TokenAgreement(3, 4),
        ("b", "a"): TokenAgreement(1, 10),
        ("a", "c"): TokenAgreement(1, 1),
        ("c", "b"): TokenAgreement(0, 0),
    }
    found = agreements("abc", readings)
    assert found[0, 1] == found[1, 0] == pytest.approx((0.75 + 0.1) / 2)
    assert np.isnan(found[0, 2])
    assert np.isnan(found[1, 2])
