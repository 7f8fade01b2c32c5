"""How alike two tokenizers are: their common tokens, and the words that both split into the same tokens.

Section 3.2 of the paper found that the size of a vocabulary matters little. But the ends of tokens matter for the union
of candidates: if one member has a token that another member splits, the two support it only in part.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from advisor.statistics import Floats

if TYPE_CHECKING:
    from ensemble.vocabulary.token_bytes import Vocabulary

Hashes = NDArray[np.uint64]
MOST_WORDS = 10_000  # a sample of this size gives the share to about 0.01
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Tokenization:
    """A tokenizer's tokens and its splits of some words, as hashes of 64 bits: small enough for hundreds of candidates.

    Attributes:
        tokens: The hashes of all tokens as byte strings, in ascending order.
        words: The hash of each word's tokens, in the order of the words; 0 if the tokenizer cannot express the word.
    """

    tokens: Hashes
    words: Hashes

    def as_dict(self) -> dict[str, str]:
        """The values for JSON."""
        return {"tokens": _encode(self.tokens), "words": _encode(self.words)}

    @classmethod
    def from_dict(cls, values: dict[str, str]) -> Tokenization:
        """The tokenization of such values.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: The values have another form.
        """
        return cls(_decode(values["tokens"]), _decode(values["words"]))


def common_words(texts: Iterable[str]) -> tuple[str, ...]:
    """The most frequent words and numbers of some texts, with their case; of equally frequent ones, the first."""
    counts = Counter(word for text in texts for word in _WORD.findall(text))
    return tuple(word for word, _ in counts.most_common(MOST_WORDS))


def tokenization_of(vocabulary: Vocabulary, words: Sequence[str]) -> Tokenization:
    """The tokenization of a vocabulary, with words that follow a space.

    Args:
        vocabulary: The tokenizer's tokens as bytes.
        words: Words without spaces.
    """
    tokens = np.array([_hash(data) for data in vocabulary.representatives], dtype=np.uint64)
    # After a space, as words are inside of a text; without it most vocabularies have other tokens.
    cut = vocabulary.continue_batch([f" {word}".encode() for word in words])
    pieces = ([vocabulary.token_bytes(index) for index in ids] for ids in cut)
    hashes = [0 if not piece or None in piece else _hash(repr(piece).encode()) for piece in pieces]
    return Tokenization(np.unique(tokens), np.array(hashes, dtype=np.uint64))


def vocabulary_overlaps(tokenizations: Sequence[Tokenization]) -> Floats:
    """The share of tokens, as byte strings, that two vocabularies have in common: Jaccard's, of all that either has.

    Returns:
        Models by models, 0 to 1.
    """
    # Many models share a vocabulary, so each distinct one is compared once.
    distinct = list({tokenization.tokens.tobytes(): tokenization.tokens for tokenization in tokenizations}.values())
    places = {tokens.tobytes(): place for place, tokens in enumerate(distinct)}
    sizes = np.array([len(tokens) for tokens in distinct])
    columns = np.unique(np.concatenate(distinct), return_inverse=True)[1]
    rows = np.repeat(np.arange(len(sizes)), sizes)
    has = sparse.csr_array((np.ones(len(rows), dtype=np.int64), (rows, columns)))
    shared = (has @ has.T).toarray()
    either = sizes[:, None] + sizes - shared
    overlaps: Floats = np.divide(shared, either, out=np.full(shared.shape, np.nan), where=either > 0)
    own = [places[tokenization.tokens.tobytes()] for tokenization in tokenizations]
    return overlaps[np.ix_(own, own)]


def words_alike(tokenizations: Sequence[Tokenization]) -> Floats:
    """The share of words that two tokenizers split into the same tokens.

    Args:
        tokenizations: All of the same words.

    Returns:
        Models by models, 0 to 1; NaN if there are no words.
    """
    words = np.stack([tokenization.words for tokenization in tokenizations])
    if not words.shape[1]:
        return np.full((len(words), len(words)), np.nan)
    return np.stack([((words == own) & (own != 0)).mean(axis=1) for own in words])


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1  # 0 marks a missing word


def _encode(hashes: Hashes) -> str:
    # A fixed order of bytes, since a cache folder may be used by several machines.
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode()


def _decode(text: str) -> Hashes:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8").astype(np.uint64)
