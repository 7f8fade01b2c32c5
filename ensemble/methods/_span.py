"""The protocol of span-level methods: the members write stretches of text in turn, and the best ones are kept.

A module's ``make(setup, options) -> SpanMethod`` is called once for an ensemble, with the :class:`._token.Setup` of the
token level; it raises InputError where the members do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ensemble.decode.sequences import Generation
    from ensemble.decode.settings import Batch, Settings


class DecodingLoop(Protocol):
    """Some prompts being continued; :class:`ensemble.decode.decoder.Decoder` is one."""

    @property
    def done(self) -> bool:
        """Whether every prompt is finished."""
        ...

    @property
    def running(self) -> dict[int, bytes]:
        """The bytes of the running prompts so far, by number."""
        ...

    def step(self) -> list[tuple[int, Generation]]:
        """Go on for a while; the numbers and generations of the prompts that are finished."""
        ...

    def __iter__(self) -> Iterator[tuple[int, Generation]]:
        """Go on to the end."""
        ...


class SpanMethod(Protocol):
    """A span-level method, made for some members."""

    def decode(self, prompts: Sequence[list[list[int]]], settings: Settings, batch: Batch) -> DecodingLoop:
        """Begin to continue some prompts, given for each by its ids in every member."""
        ...
