"""How to decode: settings of one text, and settings of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ensemble.common.grammar import Grammar
from ensemble.common.text import check_text
from ensemble.errors import InputError

MAX_DRAFT_TOKENS = 24
"""Tokens of the longest draft."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to decode a text.

    Attributes:
        max_new_tokens: The largest number of the primary's tokens, at least 1.
        stop: Strings that end the text, none of them empty; it is cut before them.
        temperature: 0 for greedy decoding, else the temperature of the draws.
        top_p: In (0, 1]; a draw is among the most likely entries that together reach it.
        seed: Of the draws; they depend on the prompt's ids, too.
        alternatives: How many of the likeliest tokens of each step are kept with their log-probabilities, in addition
            to the emitted token; None keeps no log-probabilities.
        top_k: A draw is among so many of the likeliest entries (Fan et al., 2018), and within them by ``top_p``; 0 for
            all.
        grammar: What the text must be; a text that ends at ``max_new_tokens`` is a beginning of it. None for any text.
    """

    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    alternatives: int | None = None
    top_k: int = 0
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        # An empty stop string is found at every place and would end each text before its first token.
        if not all(self.stop):
            raise InputError(f"stop is {self.stop!r}; give a list of strings, none of them empty")
        for stop in self.stop:
            check_text("stop", stop)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature is {self.temperature}; it must be 0 (greedy) or above")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.alternatives is not None and self.alternatives < 0:
            raise InputError(f"alternatives is {self.alternatives}; it must be 0 or more, or None")
        # Not isinstance: True is an int, too.
        if type(self.top_k) is not int or self.top_k < 0:
            raise InputError(f"top_k is {self.top_k!r}; it must be a whole number, 0 (all tokens) or more")


@dataclass(frozen=True, slots=True)
class Batch:
    """How texts are decoded together.

    In float64 the texts do not depend on it, and in float32 they seldom do. In bfloat16 and float16 they may: a batch
    and a draft run other kernels than a single text, whose roundings differ. Where two tokens are almost equally
    likely, the other one may win, and the text goes on from there.

    Attributes:
        size: Texts to decode at a time, at least 1.
        draft: Tokens of the longest draft; 0 turns drafting off. If all members are here, texts are drafted while at
            most 8 of them run. Measured times decide how long drafts are, and whether there are any; so where
            roundings change a text, they may do so in one run and not in the next.
        trace: Whether to keep what each member wanted at each step.
        tokens: The largest product of the running rows and the longest of their prompts; a single prompt may have more.
            None for no limit.
        deterministic: Whether each text is decoded by itself and without drafts: ``size`` is 1 then, and ``draft`` 0.
            So on one machine it is the same text, bit for bit, whatever is decoded with it, in any number type. It
            costs what batches and drafts save: with the demo's models on a CPU, 16 texts take 5 to 8 times as long
            (``batch16_speedup`` of ``python -m benchmarks.decode``), and a single one 1.6 times. A member behind a
            server may still be batched there with other clients.
    """

    size: int = 32
    draft: int = MAX_DRAFT_TOKENS
    trace: bool = False
    tokens: int | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"batch_size is {self.size}; it must be at least 1")
        if self.deterministic:
            # Rows that share a forward pass change its shape, and a shape chooses the kernel and so the rounding.
            object.__setattr__(self, "size", 1)
            object.__setattr__(self, "draft", 0)
