"""Continues prompts one after the other, where each prompt has another rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from ensemble.decode.prompt_decoder import PromptDecoder
from ensemble.decode.sequences import Generation
from ensemble.errors import MemberError


class OneByOne(PromptDecoder):
    """Continues prompts one after the other.

    Args:
        starts: For each prompt, by its number, the function that makes the decoder of this prompt alone.
    """

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
