"""Tokens of a growing piece of text that no later text changes, for BPE.

BPE merges neighbours, so the tokens before a boundary depend on the text before it only. The token that will hold the
end of a growing piece begins near that end: at a place from which the rest of the piece is the beginning of a token.
The tokens before each of these places are known now. Those that are the same for all of them are final.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property

from tokenizers import Tokenizer
from tokenizers.models import BPE


class Merges:
    """The tokens of pieces that grow; only for BPE some of them are known to be final."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        model = tokenizer.model
        self._model = model
        self._usable = isinstance(model, BPE) and not (
            model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix
        )

    @cached_property
    def _tokens(self) -> list[str]:
        """All tokens, sorted, so that those with a beginning follow each other."""
        return sorted(self._tokenizer.get_vocab(with_added_tokens=False))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._tokens))

    @cached_property
    def _unknown(self) -> int | None:
        return self._tokenizer.token_to_id(getattr(self._model, "unk_token", None) or "")

    def boundaries(self, piece: str) -> list[int]:
        """The ascending indices where a token of a piece, as the vocabulary writes it, ends whatever follows."""
        length = len(piece)
        if not self._usable:
            return []
        # Where a whole piece that is a token is not built by merges, a short piece tells nothing about a longer one.
        whole = bool(self._model.ignore_merges)
        if whole and length <= 2 * self._longest + 1:
            return []
        first = max(0, length - self._longest)
        starts = [start for start in range(first, length) if self._begins(piece[start:])]
        common: list[tuple[int, int]] | None = None
        for start in [*starts, length]:
            tokens = self._read(piece[:start])
            if not tokens:
                return []
            common = tokens if common is None else _common(common, tokens)
            if not common:
                return []
        # Unknown characters beside each other may become one token, so none ends there for sure.
        ends = {end for index, end in common or () if index != self._unknown}
        last = length - self._longest - 1 if whole else length
        places, offset = list[int](), 0
        for place, character in enumerate(piece[:last]):
            if offset in ends:
                places.append(place)
            offset += len(character.encode())
        return places

    def _begins(self, text: str) -> bool:
        place = bisect_left(self._tokens, text)
        return place < len(self._tokens) and self._tokens[place].startswith(text)

    def _read(self, piece: str) -> list[tuple[int, int]]:
        """The tokens of a piece: each one's id, and where it ends in bytes; none if some characters have no token."""
        tokens = [(token.id, token.offsets[1]) for token in self._model.tokenize(piece)]
        return tokens if tokens and tokens[-1][1] == len(piece.encode()) else []


def _common(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    length = next((n for n, (one, other) in enumerate(zip(some, others, strict=False)) if one != other), None)
    return some[:length] if length is not None else min(some, others, key=len)
