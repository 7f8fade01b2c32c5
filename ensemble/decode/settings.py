"""How to decode: what each text has for itself, and what those that are decoded together have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ensemble.errors import InputError
from ensemble.runtime.draft import LONGEST


@dataclass(frozen=True, slots=True)
class Settings:
    """How to decode a text.

    Attributes:
        max_new_tokens: Tokens of the primary after which it is cut off, at least 1.
        stop: Strings that end it, none of them empty; it is cut before them.
        temperature: 0 for greedy decoding, else the temperature of the draws.
        top_p: In (0, 1]; where sampling, only the most likely entries that together reach it are drawn from.
        seed: Of the draws, which the prompt's own ids decide besides.
        alternatives: How many of the likeliest tokens of each step are kept with their log-probabilities, beside what
            was emitted; None keeps nothing.
    """

    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    alternatives: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not all(self.stop):
            raise InputError(f"stop is {self.stop!r}; give a list of strings, none of them empty")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature is {self.temperature}; it must be 0 (greedy) or above")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.alternatives is not None and self.alternatives < 0:
            raise InputError(f"alternatives is {self.alternatives}; it must be 0 or more, or None")


@dataclass(frozen=True, slots=True)
class Batch:
    """How texts are decoded together. What each of them becomes does not depend on it.

    Attributes:
        size: Texts that are decoded at a time, at least 1.
        draft: Tokens that the primary drafts at most where a single text is decoded greedily; 0 never drafts.
        trace: Whether to keep what each member wanted at each step.
    """

    size: int = 32
    draft: int = LONGEST
    trace: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"batch_size is {self.size}; it must be at least 1")
