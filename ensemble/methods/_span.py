"""The form of span-level methods: the members write short spans of text, and the best span is kept.

A module's ``make(setup, options) -> SpanMethod`` is called once for an ensemble, with the same
:class:`ensemble.step.token_method.Setup` as at token level. It raises InputError if the members do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ensemble.decode.prompt_decoder import PromptDecoder
    from ensemble.decode.settings import Batch, Settings

SpanMethod: TypeAlias = "Callable[[Sequence[list[list[int]]], Settings, Batch], PromptDecoder]"
"""Starts to continue prompts. Each prompt is given by its ids in every member's vocabulary."""
