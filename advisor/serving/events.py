"""What becomes of an order: events, which the engine's thread sends and the event loop reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from advisor.serving.order import Order, RequestError

if TYPE_CHECKING:
    from ensemble.decode.sequences import Generation
    from ensemble.step.logprobs import StepLogprobs


@dataclass(frozen=True, slots=True)
class Begun:
    """All prompts of an order are read; their tokens together, by the primary."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A text has grown.

    Attributes:
        index: Of the text within its order.
        text: What is new; empty at times.
        steps: How likely the tokens that begin in it were; empty where nobody asked.
        generation: The whole text, once it is finished.
    """

    index: int
    text: str
    steps: Sequence[StepLogprobs] = ()
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """An order, or a text of it, comes to nothing."""

    error: RequestError


Event = Begun | Piece | Broken


@dataclass(frozen=True, slots=True)
class Ticket:
    """An order that was taken.

    Attributes:
        order: What is wanted.
        numbers: Of its texts, for the decoder.
        came: When, by the monotonic clock.
        events: What becomes of it; read by the event loop.
    """

    order: Order
    numbers: range
    came: float
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
