r"""Prompts with more than one reading.

Sourced("English: Good morning\nGerman:", "Good morning")
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sourced:
    r"""A prompt for models that continue a text, together with the bare text for those that turn one into another.

    Attributes:
        prompt: What causal members continue: "English: Good morning\nGerman:".
        source: What encoder-decoder members read: "Good morning".
    """

    prompt: str
    source: str
