"""What continues prompts step by step: token by token (:mod:`ensemble.decode.decoder`), or span by span.

A method that does not decode token by token has ``make(setup, options) -> PromptMethod``, which is called once for an
ensemble, with the same :class:`ensemble.step.token_method.Setup` as at token level. It raises InputError if the members
do not fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ensemble.decode.sequences import Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import MemberError


class PromptDecoder(ABC):
    """Prompts that are being continued."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether every prompt is finished."""

    @property
    @abstractmethod
    def running(self) -> dict[int, bytes]:
        """The bytes of the running texts so far, by the prompt's number."""

    @abstractmethod
    def step(self) -> list[tuple[int, Generation | MemberError]]:
        """Decode one step; the numbers and generations of the prompts that it finishes, or why they have none."""

    def __iter__(self) -> Iterator[tuple[int, Generation]]:
        """Decode to the end; a MemberError is raised after the others, or at once if the first batch fails."""
        failure: MemberError | None = None
        any_finished = False
        while not self.done and not (failure and not any_finished and not self.running):
            for number, result in self.step():
                if isinstance(result, MemberError):
                    failure = failure or result
                else:
                    any_finished = True
                    yield number, result
        if failure is not None:
            raise failure


PromptMethod: TypeAlias = Callable[[Sequence[list[list[int]]], Settings, Batch], PromptDecoder]
"""Starts to continue prompts. Each prompt is given by its ids in every member's vocabulary."""


class OneByOne(PromptDecoder):
    """Continues prompts one after the other; ``starts`` make the decoder of each prompt alone."""

    def __init__(self, starts: Mapping[int, Callable[[], PromptDecoder]]) -> None:
        self._waiting = deque(starts.items())
        self._now: tuple[int, PromptDecoder] | None = None

    @property
    def done(self) -> bool:
        """Whether every prompt is finished."""
        return self._now is None and not self._waiting

    @property
    def running(self) -> dict[int, bytes]:
        """The bytes of the running text so far, by its prompt's number."""
        if self._now is not None:
            return self._now[1].running
        # The next one runs at once, also if the one before failed.
        return {number: b"" for number, _ in list(self._waiting)[:1]}

    def step(self) -> list[tuple[int, Generation | MemberError]]:
        """Decode one step of the present prompt; its number and generation if it is finished, or why it has none."""
        if self._now is None:
            number, start = self._waiting.popleft()
            try:
                self._now = number, start()
            except MemberError as error:
                return [(number, error)]
        finished = self._now[1].step()
        if self._now[1].done:
            self._now = None
        return finished
