"""How alike two tokenizers are: their common tokens. Section 3.2 of the paper found that this matters little."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from advisor.statistics import Floats

if TYPE_CHECKING:
    from ensemble.vocabulary.token_bytes import Vocabulary

Hashes = NDArray[np.uint64]
"""A tokenizer's tokens as byte strings, by hashes of 64 bits in ascending order: small enough for hundreds of them."""


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
