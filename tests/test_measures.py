"""The measures of pairs, each against a slow plain version, scikit-learn's own number, or a case worked by hand."""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score
from tiny import byte_tokenizer, load_tokenizer, real_tokenizers, unigram_tokenizer

from advisor.advice.pairs import decoded, encoded, hashes_of, kappas, vocabulary_overlaps
from ensemble.vocabulary.token_bytes import Vocabulary

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
