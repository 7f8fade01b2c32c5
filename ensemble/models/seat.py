"""Where a member's weights are: in this process; or on a node of its own, see :mod:`ensemble.distributed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from ensemble.models.encoder_decoder import EncodedRows
from ensemble.models.memory import free_memory, token_size
from ensemble.runtime.model_runner import LocalSite, Site
from ensemble.runtime.rows import CachedRows, RecomputedRows, Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Seat(Protocol):
    """A member's weights, wherever they are."""

    @property
    def device(self) -> torch.device:
        """Where its logits, or what is said of them, come to."""
        ...

    @property
    def place(self) -> str:
        """Where the weights are; what shares a place shares its memory."""
        ...

    @property
    def token_size(self) -> int:
        """Bytes that are taken there for each token of a row."""
        ...

    def free_memory(self) -> int | None:
        """Bytes that are free there; None where that is not known."""
        ...

    def site(self) -> Site:
        """An empty batch of contexts, with their logits."""
        ...


@dataclass(frozen=True, slots=True)
class Here:
    """Weights in this process; see :class:`Seat`.

    Attributes:
        model: A causal language model of transformers, or an encoder-decoder one, in evaluation mode.
        window: Tokens that it attends to; None where it attends to all.
        note: Why contexts are recomputed at every step; None where the cache is used.
        size: Rows of its output.
        encodes: Whether it has an encoder.
    """

    model: PreTrainedModel
    window: int | None
    note: str | None
    size: int
    encodes: bool = False

    @property
    def device(self) -> torch.device:
        """See :class:`Seat`."""
        return self.model.device

    @property
    def place(self) -> str:
        """See :class:`Seat`."""
        return str(self.model.device)

    @property
    def token_size(self) -> int:
        """See :class:`Seat`."""
        if self.note:
            # What is recomputed keeps no cache, but has the logits of every token, and once more in float32.
            return 2 * 4 * self.size
        return token_size(self.model.config.get_text_config(), self.model.dtype)

    def free_memory(self) -> int | None:
        """See :class:`Seat`."""
        return free_memory(self.model.device)

    def rows(self) -> Rows:
        """An empty batch of contexts."""
        if self.encodes:
            return EncodedRows(self.model)
        return RecomputedRows(self.model) if self.note else CachedRows(self.model, self.window)

    def site(self) -> LocalSite:
        """See :class:`Seat`."""
        return LocalSite(self.rows())
