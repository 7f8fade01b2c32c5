"""A member's next-token logits of a step, in this process or in another one.

A method over whole vocabularies needs the logits here, as a tensor. UNITE and the methods built on it need only the k
largest of each member, and then those of some ids. So a member in another process keeps the rest there, and sends a
``RemoteLogits`` in their place. Members of both kinds may be combined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import torch
from torch import Tensor


class RemoteLogits(ABC):
    """Rows of logits in another process. The values that are requested arrive on the CPU."""

    @abstractmethod
    def __len__(self) -> int:
        """Rows."""

    @abstractmethod
    def __getitem__(self, rows: slice | list[int]) -> RemoteLogits:
        """Some of the rows."""

    @abstractmethod
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest logits [rows, k] among candidates and their ids; among equal ones the lower ids."""

    @abstractmethod
    def known(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the logits that arrived so far tell about some ids.

        Args:
            ids: [rows, n] ids to look up.

        Returns:
            The logits [rows, n], and which of them are exact; the others are upper limits.
        """

    @abstractmethod
    def fetch(self, ids: Tensor, wanted: Tensor) -> Callable[[], None]:
        """Request some logits, and return a function that waits for them; :meth:`known` knows them afterwards.

        So requests to several members can be sent before the first answer arrives.

        Args:
            ids: [rows, n] ids.
            wanted: [rows, n] which of them to send, at least one.
        """

    @abstractmethod
    def restrict(self, allowed: Tensor) -> None:
        """Leave only the allowed ids [rows, V]; all others have minus infinity from now on."""

    @abstractmethod
    def give_up(self, rows: Tensor) -> None:
        """Note that some rows [rows] need logits that :meth:`fetch` did not get; they count as NaN from now on."""

    @abstractmethod
    def shares(self, *, exact: bool) -> tuple[Tensor, Tensor]:
        """The smallest and the largest share [rows] that candidates may have in the probabilities of all ids.

        Args:
            exact: Whether both must be the same, which may take a request.
        """

    @abstractmethod
    def fault(self, row: int) -> str | None:
        """Why no token can be chosen in a row, whose logits are NaN then; None if one can."""

    @abstractmethod
    def concat(self, other: RemoteLogits) -> RemoteLogits:
        """These rows and then those of another; both of one member and one batch."""

    def to(self, device: torch.device) -> RemoteLogits:  # noqa: ARG002  # as a tensor has it
        """These logits: they stay in the other process."""
        return self


Logits: TypeAlias = "Tensor | RemoteLogits"
"""One member's logits [rows, V], here or in another process."""


def whole(logits: Sequence[Logits]) -> Sequence[Tensor]:
    """All members' logits [rows, V] as tensors.

    Raises:
        TypeError: A member's logits are in another process. The method's declaration excludes that, and is checked
            before any model is loaded.
    """
    if are_remote(logits):
        raise TypeError("this method needs all logits; of a member in another process only the top ones are available")
    return cast("Sequence[Tensor]", logits)


def are_remote(logits: Sequence[Logits]) -> bool:
    """Whether the logits of a member are in another process."""
    return not all(isinstance(each, Tensor) for each in logits)


def concat(first: Logits, second: Logits) -> Logits:
    """The rows of both, of one member."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.cat([first, second])
    return cast("RemoteLogits", first).concat(cast("RemoteLogits", second))


def fault(logits: Logits, row: int) -> str | None:
    """Why no token can be chosen in a row; None if one can."""
    if not isinstance(logits, Tensor):
        return logits.fault(row)
    # Only asked after a step has failed: to ask at every step would make each step wait for the device.
    return "its logits are not numbers (NaN)" if bool(logits[row].isnan().any()) else None
