"""From the events of an order to the client's answer: whole, or piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from advisor.serving.answers import DONE, Head, Style, event, usage
from advisor.serving.events import Begun, Broken, Event, Piece, Ticket
from advisor.serving.order import RequestError


async def begun(ticket: Ticket) -> int:
    """Wait until the prompts are read; their tokens."""
    first = await _next(ticket)
    if not isinstance(first, Begun):
        raise TypeError(f"an order began with {first}")
    return first.prompt_tokens


async def _next(ticket: Ticket) -> Begun | Piece:
    """The next event.

    Raises:
        RequestError: It is an error.
    """
    found: Event = await ticket.events.get()
    if isinstance(found, Broken):
        raise found.error
    return found


async def _pieces(ticket: Ticket) -> AsyncIterator[Piece]:
    """What becomes of the texts; what has come by now of one is one piece, so that a slow reader gets fewer events."""
    left = len(ticket.numbers)
    while left:
        gathered: dict[int, list[Piece]] = {}
        found = await _next(ticket)
        while True:
            if isinstance(found, Piece):
                gathered.setdefault(found.index, []).append(found)
            if ticket.events.empty():
                break
            found = await _next(ticket)
        for index, parts in gathered.items():
            steps = [step for part in parts for step in part.steps]
            yield Piece(index, "".join(part.text for part in parts), steps, parts[-1].generation)
            left -= parts[-1].generation is not None


async def whole(ticket: Ticket, head: Head, styles: list[Style]) -> dict[str, Any]:
    """The whole answer."""
    prompt_tokens = await begun(ticket)
    wanted = ticket.order.settings.alternatives is not None
    choices: dict[int, dict[str, Any]] = {}
    written = 0
    async for piece in _pieces(ticket):
        made = piece.generation
        if made is not None:
            written += len(made.tokens)
            steps = piece.steps if wanted else None
            choices[piece.index] = styles[piece.index].choice(piece.index, piece.text, steps, made.finish_reason)
    ordered = [choices[index] for index in sorted(choices)]
    return head.object(styles[0].whole, ordered, usage=usage(prompt_tokens, written))


async def streamed(ticket: Ticket, head: Head, styles: list[Style], prompt_tokens: int) -> AsyncIterator[str]:
    """The answer piece by piece."""
    order, kind = ticket.order, styles[0].part
    more: dict[str, Any] = {"usage": None} if order.usage else {}
    wanted = order.settings.alternatives is not None
    written = 0
    try:
        async for piece in _pieces(ticket):
            made = piece.generation
            written += 0 if made is None else len(made.tokens)
            steps = piece.steps if wanted else None
            reason = None if made is None else made.finish_reason
            yield event(head.object(kind, [styles[piece.index].delta(piece.index, piece.text, steps, reason)], **more))
    except RequestError as error:
        # The status has been sent; what is wrong can only be an event by now.
        yield event(error.body)
        return
    if order.usage:
        yield event(head.object(kind, [], usage=usage(prompt_tokens, written)))
    yield DONE
