r"""A member as a language model over bytes: the probability of the next byte, summed over tokenizations.

After Phan et al. ("Exact Byte-Level Probabilities from Tokenized Language Models", ICLR 2025) and Hayase et al.
("Sampling from Your Language Model One Byte at a Time", 2025). Let ``x`` be the n bytes after the prompt, ``C(x)``
their tokens, and ``P`` the member. The tokens that cover ``x`` and the byte b are those of some first m bytes, and one
more token that goes beyond the n-th byte and agrees with the rest:

    Q(b) = sum over m = 0..n of P(C(x_1..x_m)) * sum over tokens t that begin with x_(m+1)..x_n b of P(t | C(x_1..x_m))
    P(b | x) = Q(b) / (Q(end) + sum over b' of Q(b')),  Q(end) = P(C(x)) * P(EOS | C(x))

So all complete tokens are as the tokenizer itself writes the text. What a model gives to other sequences is left out,
and the rest renormalised. The last, incomplete token may be one that the tokenizer would not write there; the papers
differ on this point, and Hayase et al. test such pairs of tokens. Probabilities are over candidates: special tokens
except EOS, and ids without a token, have none.

Each byte needs one forward pass over the one or two tokens at the end that it changes. The sums over tokens are over
ranges of the vocabulary in the order of its bytes: each byte leaves a part of a range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ensemble.errors import MemberError
from ensemble.models.member import Member
from ensemble.runtime.local_runner import common_length
from ensemble.step.distribution import candidate_logits
from ensemble.vocabulary.joint import NONE, MemberTables
from ensemble.vocabulary.retokenize import Continuation

END = 256
"""The symbol after the 256 bytes: the text ends."""
SYMBOLS = 257
_SMALLEST = float(np.finfo(np.float64).tiny)


class SortedVocabulary:
    """A member's candidate tokens in the order of their bytes.

    Args:
        member: The member.
        tables: Its side of the joint vocabulary, on any device.

    Attributes:
        tables: The same, on the member's device.
        ids: The tokens' ids [n], on the member's device, without EOS.
        eos_ids: The ids of EOS; EOS has the largest of their logits, which the first one holds.
    """

    def __init__(self, member: Member, tables: MemberTables) -> None:
        vocabulary = member.vocabulary
        self.tables = tables.to(member.device)
        eos = set(tables.eos_ids.tolist())
        candidates = [index for index in (tables.entry_of != NONE).nonzero()[:, 0].tolist() if index not in eos]
        pairs = sorted((data, index) for index in candidates if (data := vocabulary.token_bytes(index)))
        self.ids = torch.tensor([index for _, index in pairs], dtype=torch.long, device=member.device)
        self.eos_ids = self.tables.eos_ids
        self._lengths = np.array([len(data) for data, _ in pairs], dtype=np.int64)
        self._starts = self._lengths.cumsum() - self._lengths
        self._data = np.frombuffer(b"".join(data for data, _ in pairs), dtype=np.uint8)
        self._first = self._data[self._starts].astype(np.int64)

    def bytes_at(self, first: int, last: int, depth: int) -> NDArray[np.int64]:
        """The byte at a place of each token from ``first`` to before ``last``, ascending. All tokens have one there."""
        if depth == 0:
            return self._first[first:last]
        return self._data[self._starts[first:last] + depth].astype(np.int64)

    @property
    def has_eos(self) -> bool:
        """Whether the member can end a text."""
        return len(self.eos_ids) > 0

    def data(self, place: int) -> bytes:
        """The bytes of the token at a place in this order."""
        return self._data[self._starts[place] : self._starts[place] + self._lengths[place]].tobytes()

    def agreeing(self, text: bytes, *, longer: bool) -> NDArray[np.int64]:
        """The places of the tokens that a text begins with; also of those that begin with the text, if ``longer``."""
        first, last, ranges = 0, len(self.ids), []
        for depth, byte in enumerate(text):
            places = self.bytes_at(first, last, depth)
            low, high = (int(n) for n in np.searchsorted(places, [byte, byte + 1]))
            complete, last = first + low, first + high
            first = self.end_of_complete(complete, last, depth + 1)
            ranges.append(np.arange(complete, first))
        if longer:
            ranges.append(np.arange(first, last))
        return np.concatenate(ranges) if ranges else np.arange(0)

    def end_of_complete(self, first: int, last: int, depth: int) -> int:
        """Where, in a range of tokens that agree in ``depth`` bytes, the tokens with more bytes begin."""
        # Tokens with exactly these bytes come first. They are few: ids with equal bytes.
        while first < last and self._lengths[first] == depth:
            first += 1
        return first


@dataclass(frozen=True, slots=True)
class Cover:
    """The sequences of tokens that cover a text with the same complete tokens.

    Attributes:
        weight: The logarithm of the probability of the complete tokens.
        first: Number of the first token, in the order of their bytes, that agrees with the rest of the text.
        shares: The probabilities [n] of these tokens after the complete ones. Each has more bytes than the rest.
        depth: Bytes of the rest.
    """

    weight: float
    first: int
    shares: NDArray[np.float64]
    depth: int


class ByteText:
    """A text after a prompt, as one member covers it.

    Args:
        member: The member.
        sorted_vocabulary: Its tokens.

    Attributes:
        reader: The text in the member's ids.
        covers: Those of the text so far.
    """

    def __init__(self, member: Member, sorted_vocabulary: SortedVocabulary) -> None:
        self._member = member
        self.reader = Continuation(member.vocabulary)
        self.covers: list[Cover] = []
        self._vocabulary = sorted_vocabulary
        # Of each token of the text as it was read last: the probability of all tokens up to it, as a logarithm.
        self._weights: list[float] = []
        # And the bytes of all tokens up to it.
        self._spelled: list[int] = []
        self._length = 0
        self._end = -math.inf

    def append(self, byte: int) -> None:
        """Append a byte."""
        self.covers = [cover for each in self.covers if (cover := self._narrowed(each, byte)) is not None]
        self.reader.extend(bytes([byte]))
        self._length += 1

    def observe(self, logits: Tensor, same: int) -> None:
        """Add the cover whose complete tokens are those of the whole text.

        Args:
            logits: [tokens + 1, V] the logits of the candidates before each id from ``same`` on, and after the last
                one.
            same: How many ids at the front are as they were at the last call.
        """
        ids = self.reader.ids[same:]
        new = torch.tensor(ids, dtype=torch.long, device=logits.device)
        del self._weights[same:], self._spelled[same:]
        for index in ids:
            data = self._member.vocabulary.token_bytes(index) or b""
            self._spelled.append((self._spelled[-1] if self._spelled else 0) + len(data))
        # On a processor, five times as fast as logsumexp().
        scores = logits[:-1].log_softmax(dim=1).gather(1, new[:, None]).squeeze(1).double()
        for score in scores.tolist():
            self._weights.append((self._weights[-1] if self._weights else 0.0) + score)
        weight = self._weights[-1] if self._weights else 0.0
        shares = logits[-1].double().softmax(dim=0)
        order, eos = self._vocabulary.ids, self._vocabulary.eos_ids
        found = shares.index_select(0, torch.cat([order, eos[:1]])).cpu().numpy()
        # Else the tokens leave out bytes that no token has. A longer token may still cover them.
        self._end = -math.inf
        if weight != -math.inf and (self._spelled or [0])[-1] == self._length:
            self.covers.append(Cover(weight, 0, found[: len(order)], 0))
            if len(eos):
                self._end = weight + math.log(max(found[-1], _SMALLEST))

    def next_symbols(self) -> NDArray[np.float64]:
        """The probability [257] of each byte, and of the end of the text; NaN if a logit was NaN.

        All are 0 if no tokens cover the text.
        """
        if not self.covers:
            return np.zeros(SYMBOLS)
        highest = max(cover.weight for cover in self.covers)
        sums = np.zeros(SYMBOLS)
        for cover in self.covers:
            places = self._vocabulary.bytes_at(cover.first, cover.first + len(cover.shares), cover.depth)
            sums[:END] += math.exp(cover.weight - highest) * np.bincount(places, cover.shares, minlength=END)
        sums[END] = math.exp(self._end - highest)
        total: NDArray[np.float64] = sums / sums.sum()
        return total

    def _narrowed(self, cover: Cover, byte: int) -> Cover | None:
        """The part of a cover that goes on with a byte; None if no token does."""
        places = self._vocabulary.bytes_at(cover.first, cover.first + len(cover.shares), cover.depth)
        low, high = (int(n) for n in np.searchsorted(places, [byte, byte + 1]))
        # A token that ends here is complete now. The text's own tokens count it, if the tokenizer writes it.
        first = self._vocabulary.end_of_complete(cover.first + low, cover.first + high, cover.depth + 1)
        shares = cover.shares[first - cover.first : high]
        return Cover(cover.weight, first, shares, cover.depth + 1) if len(shares) else None


class ByteModel:
    """A member that reads texts byte by byte. It holds a batch of texts.

    Args:
        member: The member; a causal model in this process.
        sorted_vocabulary: Its tokens.
    """

    def __init__(self, member: Member, sorted_vocabulary: SortedVocabulary) -> None:
        self.member = member
        self._vocabulary = sorted_vocabulary
        self._runner = member.local.runner()
        self._prompts: list[list[int]] = []
        self._fed: list[list[int]] = []
        self.texts: list[ByteText] = []

    def admit(self, prompts: Sequence[list[int]], parents: Sequence[int] | None = None) -> None:
        """Begin texts after prompts, given by their ids, instead of the texts before.

        Args:
            prompts: The prompts; each is read once.
            parents: For each text the number of its prompt; None: one text after each prompt.
        """
        # New rows free the memory of the finished ones.
        self._runner = self.member.local.runner()
        logits = self._runner.admit(prompts)
        rows = range(len(prompts)) if parents is None else parents
        if parents is not None:
            self._runner.drop(parents)
        self._prompts = [prompts[row] for row in rows]
        self._fed = [[] for _ in rows]
        self.texts = [ByteText(self.member, self._vocabulary) for _ in rows]
        for text, row in zip(self.texts, rows, strict=True):
            text.observe(candidate_logits(logits[row : row + 1], self._vocabulary.tables), 0)

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only these texts, in this order."""
        self._runner.drop(kept)
        self._prompts = [self._prompts[row] for row in kept]
        self._fed = [self._fed[row] for row in kept]
        self.texts = [self.texts[row] for row in kept]

    def append(self, chosen: Sequence[int]) -> None:
        """Append a byte to each text."""
        for text, byte in zip(self.texts, chosen, strict=True):
            text.append(byte)
        wanted = [[*text.reader.ids] for text in self.texts]
        same = [common_length(fed, ids) for fed, ids in zip(self._fed, wanted, strict=True)]
        # The token before the first new one is read again, because the logits after it are needed.
        keep = [len(prompt) + count - 1 for prompt, count in zip(self._prompts, same, strict=True)]
        new = [[*prompt, *ids][start:] for prompt, ids, start in zip(self._prompts, wanted, keep, strict=True)]
        logits = self._runner.extend(keep, new, last=max(map(len, new)))
        for text, row, count, tokens in zip(self.texts, logits, same, new, strict=True):
            text.observe(candidate_logits(row[len(row) - len(tokens) :], self._vocabulary.tables), count)
        self._fed = wanted


def next_symbols(models: Sequence[ByteModel], row: int) -> NDArray[np.float64] | MemberError:
    """The members' probabilities [members, 257] of the next symbol of a text; an error if a member's logits were NaN.

    They are all 0 for a member that has no tokens for the text.
    """
    members = np.stack([model.texts[row].next_symbols() for model in models])
    for model, own in zip(models, members, strict=True):
        if np.isnan(own).any():
            return MemberError("its logits are not numbers (NaN)", of=model.member.name)
    return members
