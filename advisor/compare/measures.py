"""The measures of pairs of candidates, models by models: common mistakes, similar wording, common tokens."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from scipy import sparse

from advisor.records import Profile
from advisor.statistics import Floats

if TYPE_CHECKING:
    from ensemble.vocabulary.token_bytes import Vocabulary

Hashes = NDArray[np.uint64]
"""A tokenizer's tokens as byte strings, by hashes of 64 bits in ascending order: small enough for hundreds of them."""
_MOST_MODELS = 30
_MOST_WORDS = 2_000_000
"""Words of hypotheses that are compared with references, in all; a few seconds."""


def kappas(graded: Floats) -> Floats:
    """Cohen's kappa of the correctness of all pairs: agreement beyond what follows from their accuracies.

    Args:
        graded: Models by questions, 0 or 1.

    Returns:
        Models by models, -1 to 1; NaN if both are right on every question or both on none: then
        chance alone agrees fully.
    """
    questions = graded.shape[1]
    # Counts instead of shares: whole numbers are exact, so that comparing finds a chance agreement of 1.
    right = graded.sum(axis=1)
    wrong = questions - right
    agreed = questions * (graded @ graded.T + (1 - graded) @ (1 - graded).T)
    by_chance = np.outer(right, right) + np.outer(wrong, wrong)
    room = questions**2 - by_chance
    kappa: Floats = np.divide(agreed - by_chance, room, out=np.full(agreed.shape, np.nan), where=room > 0)
    return kappa


def same_wrong_answers(profiles: Sequence[Profile]) -> Floats:
    """The share of questions on which two give the same wrong answer. Missing answers are not equal.

    Args:
        profiles: Answers to the same questions.

    Returns:
        Models by models, 0 to 1.
    """
    # Numbers instead of texts: numpy compares whole arrays of them, and a pool has thousands of pairs.
    numbers: dict[str, int] = {}
    wrong = np.array(
        [
            [
                -1
                if answer.score == 1 or answer.extracted is None
                else numbers.setdefault(answer.extracted, len(numbers))
                for answer in profile.answers
            ]
            for profile in profiles
        ]
    )
    return np.stack([((wrong == own) & (own >= 0)).mean(axis=1) for own in wrong])


def pairwise_bleu(responses: Sequence[Sequence[str]]) -> Floats:
    """Corpus BLEU of every model's responses against every other's as the only reference, by sacrebleu.

    sacrebleu extracts the n-grams of the hypotheses again for each reference, so the time grows with the square of the
    number of models. Many long responses are compared on a part of the questions, evenly spaced.

    Args:
        responses: Models by questions, the same questions for each, the best model first.

    Returns:
        Hypotheses by references, 0 to 100; not symmetric, because precision and brevity belong to the hypothesis. NaN
        for models after the first 30.
    """
    compared = responses[:_MOST_MODELS]
    words = sum(len(text.split()) for texts in compared for text in texts)
    step = math.ceil(len(compared) * words / _MOST_WORDS) or 1
    texts = [own[::step] for own in compared]
    bleu = np.full((len(responses), len(responses)), np.nan)
    for reference, own in enumerate(texts):
        # Responses may be shorter than four words. `force` only drops a warning of texts that are already tokenized.
        metric = BLEU(effective_order=True, force=True, references=[own])
        for hypothesis, other in enumerate(texts):
            bleu[hypothesis, reference] = metric.corpus_score(other, None).score
    return bleu


def hashes_of(vocabulary: Vocabulary) -> Hashes:
    """The tokens of a vocabulary."""
    return np.unique(np.array([_hash(data) for data in vocabulary.representatives], dtype=np.uint64))


def vocabulary_overlaps(vocabularies: Sequence[Hashes]) -> Floats:
    """The share of tokens, as byte strings, that two vocabularies have in common: Jaccard's, of all that either has.

    Returns:
        Models by models, 0 to 1.
    """
    # Many models share a vocabulary, so each distinct one is compared once.
    distinct = list({tokens.tobytes(): tokens for tokens in vocabularies}.values())
    places = {tokens.tobytes(): place for place, tokens in enumerate(distinct)}
    sizes = np.array([len(tokens) for tokens in distinct])
    columns = np.unique(np.concatenate(distinct), return_inverse=True)[1]
    rows = np.repeat(np.arange(len(sizes)), sizes)
    has = sparse.csr_array((np.ones(len(rows), dtype=np.int64), (rows, columns)))
    shared = (has @ has.T).toarray()
    either = sizes[:, None] + sizes - shared
    overlaps: Floats = np.divide(shared, either, out=np.full(shared.shape, np.nan), where=either > 0)
    own = [places[tokens.tobytes()] for tokens in vocabularies]
    return overlaps[np.ix_(own, own)]


def encoded(hashes: Hashes) -> str:
    """The hashes for JSON, in a fixed order of bytes, since a cache folder may be used by several machines."""
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode()


def decoded(text: str) -> Hashes:
    """The hashes of such a text.

    Raises:
        ValueError, TypeError: The value has another form.
    """
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8").astype(np.uint64)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
