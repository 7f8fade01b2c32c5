"""A member's next-token logits of a step, wherever they are.

A method that looks at whole vocabularies needs them here, as a tensor. UNITE and its kin need of each member no more
than the k largest, and then those of some ids that are asked for; so a member on another node keeps the rest there, and
``Apart`` stands for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor


class Apart(Protocol):
    """Logits of some rows that stay where they were made. What they were asked for comes on the processor."""

    def __len__(self) -> int:
        """Rows."""
        ...

    def __getitem__(self, rows: slice | list[int]) -> Apart:
        """Some of the rows."""
        ...

    def to(self, device: torch.device) -> Apart:
        """The same: they are moved nowhere."""
        ...

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest [rows, k] among candidates and their ids; among equal ones the lower ids."""
        ...

    def known(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What came of some logits among the candidates that were asked for before.

        Args:
            ids: [rows, n] where to look.

        Returns:
            The logits [rows, n], and which of them are exact; the others are what they are at most.
        """
        ...

    def ask(self, ids: Tensor, wanted: Tensor) -> Callable[[], Tensor]:
        """Ask for logits; calling what is returned waits for them, so that several members can be asked before.

        Args:
            ids: [rows, n] where to look.
            wanted: [rows, n] which of them to send, one at least.

        Returns:
            Gives these, row by row [wanted].
        """
        ...

    def broken(self) -> list[bool]:
        """For each row whether a candidate's logit is no number."""
        ...

    def behind(self, other: Apart) -> Apart:
        """The rows of another, and then these; both of one member and one batch."""
        ...


Logits: TypeAlias = "Tensor | Apart"
"""Of one member: [rows, V], or what stands for them."""


def whole(logits: Sequence[Logits]) -> Sequence[Tensor]:
    """All members' logits [rows, V], for a method that needs them.

    Raises:
        TypeError: A member's are on another node. Whoever puts members there has asked the method's declaration before.
    """
    if any(not isinstance(z, Tensor) for z in logits):
        raise TypeError("logits that are on another node are not to be had as a whole")
    return cast("Sequence[Tensor]", logits)


def are_apart(logits: Sequence[Logits]) -> bool:
    """Whether logits stay on their members' nodes; all members' do, or none's."""
    return not isinstance(logits[0], Tensor)


def joined(first: Logits, more: Logits) -> Logits:
    """The rows of both, of one member."""
    if isinstance(first, Tensor) and isinstance(more, Tensor):
        return torch.cat([first, more])
    return cast("Apart", more).behind(cast("Apart", first))


def is_broken(logits: Logits, row: int) -> bool:
    """Whether a row has a logit that is no number."""
    return bool(logits[row].isnan().any()) if isinstance(logits, Tensor) else logits.broken()[row]
