"""The members' contexts of a batch of texts: the same text in every member's ids, and the logits after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ensemble.continuation import Continuation
from ensemble.member import Member


@dataclass(slots=True)
class Text:
    """A prompt and what has been emitted after it, in every member's ids.

    Attributes:
        prompts: The prompt's ids in each member; what is emitted never changes them.
        readers: For each member but the primary, how it reads the emitted text.
        tokens: The primary's ids, as emitted.
        data: Their bytes.
        keep: For each member, how many ids of its context stand as they were fed last.
    """

    prompts: list[list[int]]
    readers: list[Continuation]
    tokens: list[int] = field(default_factory=list)
    data: bytes = b""
    keep: list[int] = field(default_factory=list)

    def emit(self, token: int, data: bytes) -> None:
        """Append a token of the primary and its bytes, for every member."""
        self.tokens.append(token)
        self.data += data
        unchanged = [len(self.tokens) - 1, *(reader.extend(data) for reader in self.readers)]
        self.keep = [len(prompt) + same for prompt, same in zip(self.prompts, unchanged, strict=True)]

    def ids(self, member: int) -> list[int]:
        """The whole context in a member's ids."""
        return self.prompts[member] + (self.readers[member - 1].ids if member else self.tokens)

    def lengths(self) -> list[int]:
        """Tokens of the whole context in each member."""
        emitted = [len(self.tokens), *(len(reader.ids) for reader in self.readers)]
        return [len(prompt) + length for prompt, length in zip(self.prompts, emitted, strict=True)]


class Contexts:
    """A batch of texts in every member.

    Args:
        members: The primary first.
        longest: For each member, tokens that no context will exceed.

    Attributes:
        texts: The texts, in the order in which they were admitted.
        logits: For each member the next-token logits [texts, V_i], on the primary's device.
    """

    def __init__(self, members: Sequence[Member], longest: Sequence[int]) -> None:
        self._members = members
        self._rows = [member.rows(length) for member, length in zip(members, longest, strict=True)]
        self._device = members[0].device
        self.texts: list[Text] = []
        self.logits: list[Tensor] = []

    def admit(self, prompts: Sequence[Sequence[list[int]]]) -> None:
        """Append a text for each prompt, given by its ids in every member."""
        fresh = [rows.admit([prompt[n] for prompt in prompts]).to(self._device) for n, rows in enumerate(self._rows)]
        self.logits = [torch.cat(pair) for pair in zip(self.logits, fresh, strict=True)] if self.texts else fresh
        readers = [member.vocabulary for member in self._members[1:]]
        self.texts += [Text(list(prompt), [Continuation(v) for v in readers]) for prompt in prompts]

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only these texts, in this order."""
        self.texts = [self.texts[n] for n in kept]
        for rows in self._rows:
            rows.drop(kept)

    def feed(self) -> None:
        """Run every member over what has been emitted since the last time, at least a token for each text."""
        self.logits = [self._feed(member) for member in range(len(self._members))]

    def _feed(self, member: int) -> Tensor:
        keep: list[int] = []
        new: list[list[int]] = []
        for text in self.texts:
            ids = text.ids(member)
            # Where the new bytes changed no id (a member cannot express them), the last one is read again.
            keep.append(min(text.keep[member], len(ids) - 1))
            new.append(ids[keep[-1] :])
        return self._rows[member].feed(keep, new)[:, -1].to(self._device)
