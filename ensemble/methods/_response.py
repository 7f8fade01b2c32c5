"""The protocol of response-level methods, which choose one of the members' responses, or write a new one from them.

A module's ``make(prompts, scores, options) -> ResponseMethod`` receives questions to learn from: their prompts, and for
each prompt every member's score, from 0 to 1, the primary's first. Most methods do not learn and ignore both. ``make``
raises InputError if the questions or the options do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ResponseMethod(Protocol):
    """A response-level method."""

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int | str:
        """Choose or write the response to a question.

        Args:
            prompt: The question.
            texts: Each member's response, the primary's first.
            answers: What the task's metric extracted from each response; None if it found no answer.

        Returns:
            The index of the member whose response is taken, the earliest of several that are equally good; or a text,
            if the method wrote the response.
        """
        ...
