"""A request for texts: one object from the endpoint to the decoder, which also carries the texts back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ensemble.errors import InputError, PromptTooLongError, UniteError, first_line

if TYPE_CHECKING:
    from advisor.models.completions import AskedPrompt, FunctionCall
    from ensemble.decode.settings import Settings
    from ensemble.step.trace import StepLogprobs


class RequestError(UniteError):
    """A request that the server refuses or cannot answer, with OpenAI's error body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        of: str | None = None,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, of)
        self.status = status
        self.headers = dict(headers or {})
        self._rest = {"type": kind, "param": param, "code": code}

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error body."""
        return {"error": {"message": str(self), **self._rest}}


def unavailable(reason: str) -> RequestError:
    """The error where the server accepts no requests."""
    return RequestError(503, reason, kind="server_error", code="unavailable", headers={"Retry-After": "5"})


def busy(reason: str) -> RequestError:
    """The error where a limit is reached that other requests use up."""
    return RequestError(
        429,
        f"{reason}; try again later",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": "1"},
    )


def token_ids_refused(reason: str) -> RequestError:
    """The error where a server takes no token ids as prompts."""
    return RequestError(400, f"prompt: give text, not token ids: {reason}", param="prompt")


def model_error(error: Exception) -> RequestError:
    """The error where the models failed."""
    return RequestError(500, f"the models failed: {first_line(error)}", kind="server_error", code="model_error")


def prompt_error(error: Exception) -> RequestError:
    """The error where a prompt cannot be read."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, PromptTooLongError):
        return RequestError(400, error.reason, of=error.of, code="context_length_exceeded")
    if isinstance(error, InputError):
        return RequestError(400, error.reason, of=error.of)
    return RequestError(400, f"the prompt cannot be read ({type(error).__name__}: {first_line(error)})")


def wrong_body(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """The error where a body does not have the fields of its endpoint."""
    # One error is enough to correct a request, and a message is one line.
    first = errors[0]
    if first["type"] == "json_invalid":
        return RequestError(400, f"the body is not JSON ({first['ctx']['error']})", code="invalid_json")
    place = ".".join(str(part) for part in first["loc"][1:])
    if not place:
        return RequestError(400, "the body must be a JSON object, sent as Content-Type: application/json")
    message = str(first["msg"])
    return RequestError(400, f"{place}: {message[:1].lower()}{message[1:]}", param=place)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a text; its last one has the fields after ``steps``."""

    index: int  # index of the text within its request
    text: str  # the new characters; may be empty
    # Log-probabilities of the tokens that begin in it; empty where the request wants none.
    steps: Sequence[StepLogprobs] = ()
    finish_reason: str | None = None
    new_tokens: int = 0  # tokens of the whole text
    calls: Sequence[FunctionCall] = ()


Event = int | Piece | RequestError
"""The number of prompt tokens, which comes first; a piece of a text; or the error that ends the request."""


# Compared by identity: two requests may ask for the same.
@dataclass(slots=True, eq=False)
class GenerationRequest:
    """What is generated for a client, whichever endpoint received it, and the events that come of it."""

    # What ``Member.encode_prompt`` takes, token ids for a single model, or a chat with functions.
    prompts: tuple[AskedPrompt | tuple[int, ...], ...]
    copies: int  # texts for each prompt, each with its own random draws
    settings: Settings
    stream: bool = False
    usage: bool = False  # whether a stream ends with the number of tokens
    group: str | None = None  # group of the prompts for a router by groups, from ``metadata``
    numbers: range = range(0)  # the decoder's numbers of its texts, when it is accepted
    arrived: float = field(default_factory=time.monotonic)  # time by the monotonic clock
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)  # written and read by the event loop only
    extras: dict[str, Any] = field(default_factory=dict)  # more fields of ``usage``; complete with the last event
    # The last piece of each finished text, without its characters, by index.
    ended: dict[int, Piece] = field(default_factory=dict)
    cancelled: bool = False  # its client left, or has all that it gets

    @property
    def texts(self) -> int:
        """How many texts it needs."""
        return len(self.prompts) * self.copies

    async def prompt_tokens(self) -> int:
        """Wait until the prompts are tokenized; the number of their tokens in all, counted by the primary."""
        event = await self._next_event()
        if isinstance(event, Piece):
            raise TypeError(f"the first event of a request is {event}; it must be the number of prompt tokens")
        return event

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces of all texts, until all are finished."""
        unfinished = self.texts
        while unfinished:
            # All that has arrived of a text becomes one piece, so that a slow client gets fewer events.
            arrived: dict[int, list[Piece]] = {}
            event = await self._next_event()
            while True:
                if isinstance(event, Piece):
                    arrived.setdefault(event.index, []).append(event)
                if self.events.empty():
                    break
                event = await self._next_event()
            for index, parts in arrived.items():
                steps = [step for part in parts for step in part.steps]
                last = parts[-1]
                yield replace(last, text="".join(part.text for part in parts), steps=steps)
                if last.finish_reason is not None:
                    self.ended[index] = replace(last, text="", steps=())
                    unfinished -= 1

    async def _next_event(self) -> int | Piece:
        event = await self.events.get()
        if isinstance(event, RequestError):
            raise event
        return event
