"""The protocol of span-level methods: the members write short spans of text, and the best span is kept.

A module's ``make(setup, options) -> SpanMethod`` is called once for an ensemble, with the same
:class:`ensemble.step.token_method.Setup` as at token level. It raises InputError if the members do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from ensemble.decode.sequences import Generation
    from ensemble.decode.settings import Batch, Settings
    from ensemble.errors import MemberError


class PromptDecoder(Protocol):
    """Prompts that are being continued; :class:`ensemble.decode.decoder.Decoder` is one implementation."""

    @property
    def done(self) -> bool:
        """Whether every prompt is finished."""
        ...

    @property
    def running(self) -> dict[int, bytes]:
        """The bytes of the running texts so far, by the prompt's number."""
        ...

    def step(self) -> Sequence[tuple[int, Generation | MemberError]]:
        """Decode one step; the numbers and generations of the prompts that it finishes, or why they have none."""
        ...

    def __iter__(self) -> Iterator[tuple[int, Generation]]:
        """Decode to the end."""
        ...


SpanMethod: TypeAlias = "Callable[[Sequence[list[list[int]]], Settings, Batch], PromptDecoder]"
"""Starts to continue prompts. Each prompt is given by its ids in every member's vocabulary."""
