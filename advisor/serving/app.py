"""The endpoints: requests in, answers out; all that takes time is done by the engine."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from advisor.serving.answers import Chat, Completion, Head, Style, replied
from advisor.serving.engine import Engine
from advisor.serving.guard import Guard, Key
from advisor.serving.metrics import Metrics
from advisor.serving.order import Limits, Order, RequestError
from advisor.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    chat_order,
    completion_order,
    wrong_body,
)
from advisor.serving.replies import begun, streamed, whole

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """What is served, as clients are told.

    Attributes:
        name: What requests call it.
        members: The models, the primary first.
        method: How they decode.
        fingerprint: Of all that decides what is written.
        created: When the server began, in seconds since 1970.
    """

    name: str
    members: tuple[str, ...]
    method: str
    fingerprint: str
    created: int


def make_app(engine: Engine, served: Served, limits: Limits, metrics: Metrics, key: Key | None) -> FastAPI:
    """The application; the engine runs for as long as it does."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start(asyncio.get_running_loop())
        yield
        await asyncio.to_thread(engine.stop)

    # No pages of documentation: they would be fetched from elsewhere.
    app = FastAPI(title="unite-advisor", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, key=key, body=limits.body, metrics=metrics)
    endpoints = Endpoints(engine, served, limits, metrics)
    add = app.add_api_route
    add("/v1/completions", endpoints.completions, methods=["POST"], response_model=None)
    add("/v1/chat/completions", endpoints.chat, methods=["POST"], response_model=None)
    add("/v1/models", endpoints.models, methods=["GET"], response_model=None)
    add("/v1/models/{name:path}", endpoints.model, methods=["GET"], response_model=None)
    add("/health", endpoints.health, methods=["GET"], response_model=None)
    add("/metrics", endpoints.figures, methods=["GET"], response_model=None)
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(Exception, _unexpected)
    return app


class Endpoints:
    """The handlers.

    Args:
        engine: Decodes.
        served: What requests may ask for.
        limits: Likewise.
        metrics: Are shown.
    """

    def __init__(self, engine: Engine, served: Served, limits: Limits, metrics: Metrics) -> None:
        self._engine = engine
        self._served = served
        self._limits = limits
        self._metrics = metrics

    async def completions(self, asked: CompletionRequest, request: Request) -> Response:
        """``/v1/completions``."""
        self._check_model(asked.model)
        order = completion_order(asked, self._limits, secrets.randbits(62))
        return await self._answer(order, request, "cmpl", Completion)

    async def chat(self, asked: ChatRequest, request: Request) -> Response:
        """``/v1/chat/completions``."""
        self._check_model(asked.model)
        order = chat_order(asked, self._limits, secrets.randbits(62))
        return await self._answer(order, request, "chatcmpl", Chat)

    async def models(self) -> Response:
        """``/v1/models``."""
        return replied({"object": "list", "data": [self._described()]})

    async def model(self, name: str) -> Response:
        """``/v1/models/NAME``."""
        self._check_model(name)
        return replied(self._described())

    async def health(self) -> Response:
        """``/health``: whether requests are taken."""
        refusing = self._engine.refusing
        status = {"status": refusing or "ok"}
        return replied(status, 503 if refusing else 200)

    async def figures(self) -> Response:
        """``/metrics``."""
        return PlainTextResponse(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _check_model(self, name: str) -> None:
        if name != self._served.name:
            raise RequestError(
                404,
                f"the model {name!r} does not exist; this server has {self._served.name!r}",
                param="model",
                code="model_not_found",
            )

    def _described(self) -> dict[str, Any]:
        served = self._served
        return {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "unite-advisor",
            "members": list(served.members),
            "method": served.method,
        }

    async def _answer(self, order: Order, request: Request, prefix: str, style: Callable[[], Style]) -> Response:
        """Have an order decoded, and make an answer of it."""
        served = self._served
        head = Head(f"{prefix}-{secrets.token_hex(12)}", int(time.time()), served.name, served.fingerprint)
        ticket = self._engine.submit(order)
        streaming = False
        try:
            styles = [style() for _ in ticket.numbers]
            if not order.stream:
                found = await _unless_gone(request, whole(ticket, head, styles))
                return Response(status_code=499) if found is None else replied(found)
            tokens = await _unless_gone(request, begun(ticket))
            if tokens is None:
                return Response(status_code=499)
            streaming = True
            return _Stream(streamed(ticket, head, styles, tokens), lambda: self._engine.cancel(ticket))
        finally:
            if not streaming:
                self._engine.cancel(ticket)


class _Stream(StreamingResponse):
    """A stream that says when it is over, also where it never began; that is nobody else's to see."""

    def __init__(self, events: AsyncIterator[str], over: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


async def _unless_gone(request: Request, wanted: Coroutine[Any, Any, T]) -> T | None:
    """What is waited for; None where the client goes away before."""
    work, gone = asyncio.ensure_future(wanted), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else None
    finally:
        work.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    """Wait until the client goes away; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


Handler = Callable[[Request, Exception], Awaitable[Response]]


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestError):
        raise error
    return replied(error.body, error.status, error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return await _refused(request, wrong_body(error.errors()))


async def _of_http(request: Request, error: Exception) -> Response:
    """What the framework refuses: unknown paths, wrong methods, bodies that are too large or no JSON at all."""
    if not isinstance(error, HTTPException):
        raise error
    messages = {
        400: "the body cannot be read; send a JSON object in UTF-8",
        404: f"there is no {request.url.path}; see /v1/models, /v1/completions and /v1/chat/completions",
        405: f"{request.url.path} does not take {request.method}",
    }
    message = messages.get(error.status_code, error.detail)
    return await _refused(request, RequestError(error.status_code, message, headers=error.headers))


async def _unexpected(request: Request, _: Exception) -> Response:
    return await _refused(request, RequestError(500, "the server failed; its log says where", kind="server_error"))
