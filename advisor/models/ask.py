"""Asking a model, wherever it runs, and once more where a prompt fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from advisor.models.completions import ModelInput
from advisor.models.response_cache import Response
from ensemble.errors import InputError, MemberError, UniteError
from ensemble.servers.client import ServerError

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings

T = TypeVar("T")
NO_TOOLS = "calls of functions (tools) are for models behind servers, and this one is in this process"
_MAX_FAILURES = 8
"""Failures in a row after which a model is given up."""

Replies: TypeAlias = AsyncGenerator[tuple[int, Response | UniteError], None]
"""The number of each prompt, and its response as the model wrote it, or why it has no response: an InputError if the
prompt is at fault."""


class Model(Protocol):
    """What answers prompts: a model, or a set that decodes together, here, on a worker or behind a server."""

    name: str

    def ask(self, prompts: Mapping[int, ModelInput], settings: Settings) -> Replies:
        """Answer prompts, all with options or none, in any order; MemberError if the model cannot be used."""
        ...

    def close(self) -> None:
        """Give up what it holds."""
        ...


async def answers(
    model: Model, prompts: Mapping[int, ModelInput], settings: Settings
) -> AsyncGenerator[tuple[int, Response], None]:
    """Ask a model, and once more for each prompt that fails, after all others; MemberError if it is given up."""
    # A server is given up after so many failures in a row, another model after so many without any response.
    left, answered, failures = prompts, False, 0
    for is_last in (False, True):
        failed: dict[int, ModelInput] = {}
        async with aclosing(model.ask(left, settings)) as replies:
            async for n, reply in replies:
                if isinstance(reply, Response):
                    answered, failures = True, 0
                    yield n, reply
                    continue
                # Bad input fails again in the next run; anything else may succeed then, so it is not stored.
                settled = isinstance(reply, InputError)
                if isinstance(reply, ServerError):
                    # A server that has answered other prompts may refuse one that is too long for it.
                    failures += reply.failure != "refused" or not answered
                elif not (settled or answered or is_last):
                    failures += 1
                if failures == _MAX_FAILURES or (isinstance(reply, ServerError) and reply.failure == "fatal"):
                    raise MemberError(reply.without(model.name), of=model.name)
                if is_last or settled:
                    yield n, Response("", 0, "error", 0.0, reply.without(model.name), settled=settled)
                else:
                    failed[n] = left[n]
        if not failed:
            return
        left = failed


async def reply_to(model: Model, prompt: ModelInput, settings: Settings) -> Response:
    """The response to one prompt; InputError if the model cannot read it, MemberError if the model failed."""
    async with aclosing(model.ask({0: prompt}, settings)) as replies:
        _, reply = await anext(replies)
    if isinstance(reply, ServerError) and reply.failure == "refused":
        # For example a prompt that is too long for it.
        raise InputError(reply.reason, of=model.name)
    if isinstance(reply, UniteError):
        raise reply
    return reply


def without_waiting(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """The items of a generator that waits for nothing but this process, so that it needs no event loop."""
    try:
        while True:
            try:
                item = _result(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        _result(items.aclose())


def _result(steps: Awaitable[T]) -> T:
    running = steps.__await__()
    try:
        while True:
            next(running)
    except StopIteration as end:
        result: T = end.value
        return result
