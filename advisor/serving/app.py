"""The endpoints: they read requests and write responses; the engine does the work that takes time."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from advisor.models.server_model import ServerHealth
from advisor.serving.grammar_checks import GrammarChecks
from advisor.serving.handler import RequestHandler
from advisor.serving.metrics import Metrics
from advisor.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    RequestLimits,
    TokenizeRequest,
    grammar_of,
    read_chat,
    read_completion,
)
from advisor.serving.request import GenerationRequest, RequestError, token_ids_refused, wrong_body
from advisor.serving.responses import (
    ChatFormat,
    CompletionFormat,
    ResponseFormat,
    ServedModel,
    error_response,
    json_response,
)
from advisor.serving.responses_api import ResponsesFormat, ResponsesRequest, chat_of, in_its_names
from advisor.serving.server import RequestMiddleware
from ensemble.errors import InputError

if TYPE_CHECKING:
    from advisor.serving.engine import SharedDecoder
    from advisor.serving.token_prompts import TokenPrompts

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


def make_app(
    engine: RequestHandler,
    model: ServedModel,
    limits: RequestLimits,
    metrics: Metrics,
    key_digest: bytes | None,
    hosts: frozenset[str] | None = None,
    health: ServerHealth | None = None,
    origins: Sequence[str] = (),
) -> FastAPI:
    """The application; the engine runs as long as the application runs. Pages of these origins may use it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start(asyncio.get_running_loop())
        if health is not None:
            health.start()
        yield
        if health is not None:
            health.stop()
        # In a thread: the engine's last step posts events to this loop, which must not be blocked meanwhile.
        await asyncio.to_thread(engine.stop)
        await asyncio.to_thread(endpoints.grammar_checks.close)

    # Without FastAPI's documentation pages: they load scripts from other hosts.
    # And without redirects: they would send a client, with its key, to whatever host the request names.
    app = FastAPI(
        title="unite-advisor",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(RequestMiddleware, key_digest=key_digest, limits=limits, metrics=metrics, hosts=hosts)
    if origins:
        # Around the other: a browser asks first without the key, and must be able to read errors.
        exposed = ["x-request-id", "retry-after"]
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=exposed,
        )
    # Plain routes instead of decorators: the handlers need the engine, which does not exist at import.
    endpoints = Endpoints(engine, model, limits, metrics, health)
    add = app.add_api_route
    add("/v1/completions", endpoints.completions, methods=["POST"], response_model=None)
    add("/v1/chat/completions", endpoints.chat, methods=["POST"], response_model=None)
    add("/v1/responses", endpoints.responses, methods=["POST"], response_model=None)
    # Not under /v1/, as in vLLM.
    add("/tokenize", endpoints.tokenize, methods=["POST"], response_model=None)
    read = ["GET", "HEAD"]
    add("/v1/models", endpoints.list_models, methods=read, response_model=None)
    # A name may have slashes, as names of repositories do.
    add("/v1/models/{name:path}", endpoints.get_model, methods=read, response_model=None)
    add("/health", endpoints.health, methods=read, response_model=None)
    add("/metrics", endpoints.metrics, methods=read, response_model=None)
    app.exception_handler(RequestError)(_on_request_error)
    app.exception_handler(RequestValidationError)(_on_validation_error)
    app.exception_handler(HTTPException)(_on_http_error)
    return app


class Endpoints:
    """The handlers."""

    def __init__(
        self,
        engine: RequestHandler,
        model: ServedModel,
        limits: RequestLimits,
        metrics: Metrics,
        health: ServerHealth | None = None,
    ) -> None:
        self._engine = engine
        self._health = health
        self._model = model
        self._limits = limits
        self._metrics = metrics
        self._said: set[str] = set()
        self.grammar_checks = GrammarChecks(lambda: engine.refusing)
        # A strategy asks several models, each with its tokenizer, so it has no token ids.
        self._tokens: TokenPrompts | None = None
        if engine.DECODES:
            from advisor.serving.token_prompts import TokenPrompts

            self._tokens = TokenPrompts(cast("SharedDecoder", engine), model, limits, metrics)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """``/v1/completions``."""
        self._check_model(body.model)
        if body.contexts:
            if self._tokens is None:
                raise token_ids_refused("this server runs a strategy, whose models have different tokenizers")
            if body.logprobs is not None or body.logprob_token_ids or body.return_tokens_as_token_ids:
                return json_response(await _unless_disconnected(request, self._tokens.complete(body)))
            # Without log-probabilities it is a text like others: with stop strings, draws and streams.
            self._tokens.check(body.contexts)
        # A request without a seed gets other random draws each time.
        generation = read_completion(body, self._limits, secrets.randbits(62))
        return await self._respond(CompletionFormat(self._model, generation), request)

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """``/v1/chat/completions``."""
        self._check_model(body.model)
        generation = await _unless_disconnected(request, self._read_chat(body))
        return await self._respond(ChatFormat(self._model, generation), request)

    async def responses(self, body: ResponsesRequest, request: Request) -> Response:
        """``/v1/responses``."""
        self._check_model(body.model)
        chat = chat_of(body)
        try:
            generation = await _unless_disconnected(request, self._read_chat(chat))
        except RequestError as error:
            raise in_its_names(error) from None
        return await self._respond(ResponsesFormat(self._model, generation, body), request)

    async def tokenize(self, body: TokenizeRequest, request: Request) -> Response:
        """``/tokenize``."""
        if body.model is not None:
            self._check_model(body.model)
        if self._tokens is None:
            raise RequestError(404, "this server runs a strategy, whose models have different tokenizers")
        return json_response(await _unless_disconnected(request, self._tokens.tokenize(body)))

    async def list_models(self) -> Response:
        """``/v1/models``."""
        return json_response({"object": "list", "data": [self._model.as_dict()]})

    async def get_model(self, name: str) -> Response:
        """``/v1/models/NAME``."""
        self._check_model(name)
        return json_response(self._model.as_dict())

    async def health(self) -> Response:
        """``/health``: whether the server accepts requests, and the servers of its members answer."""
        refusing = self._engine.refusing
        if refusing or self._health is None:
            return json_response({"status": refusing or "ok"}, 503 if refusing else 200)
        failing = self._health.failing
        # Without addresses and reasons: this path needs no key.
        members = {name: "does not answer" if name in failing else "ok" for name in self._health.addresses}
        # A set needs all of its members. A strategy goes on without one that fails.
        is_down = failing and (self._engine.DECODES or failing.issuperset(self._model.members))
        status = "degraded" if failing else "ok"
        return json_response({"status": status, "members": members}, 503 if is_down else 200)

    async def metrics(self) -> Response:
        """``/metrics``."""
        return PlainTextResponse(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _check_model(self, name: str) -> None:
        if name != self._model.name:
            raise RequestError(
                404,
                f"the model {name!r} does not exist; this server has {self._model.name!r}",
                param="model",
                code="model_not_found",
            )

    async def _read_chat(self, body: ChatRequest) -> GenerationRequest:
        grammar = grammar_of(body.response_format)
        if grammar is not None:
            try:
                grammar = await self.grammar_checks.check(grammar)
            except InputError as error:
                raise RequestError(400, f"response_format: {error}", param="response_format") from None
        # In a thread: a template that does more than read fields is rendered in another process.
        seed = secrets.randbits(62)
        generation = await asyncio.to_thread(read_chat, body, self._limits, seed, self._model.prompt, grammar)
        if "note" in generation.extras:
            self._say_once(generation.extras["note"])
        return generation

    async def _respond(self, response: ResponseFormat, client: Request) -> Response:
        request = response.request
        self._engine.submit(request)
        streaming = False
        try:
            if not request.stream:
                whole = await _unless_disconnected(client, response.whole())
                self._check_texts(response)
                return json_response(whole)
            # Wait for the first event: a wrong prompt still gets its own status here, later the status is 200.
            prompt_tokens = await _unless_disconnected(client, request.prompt_tokens())
            streaming = True

            def end() -> None:
                self._engine.cancel(request)
                self._check_texts(response)

            return _CancellableStream(response.events(prompt_tokens), end)
        finally:
            if not streaming:
                self._engine.cancel(request)

    def _check_texts(self, response: ResponseFormat) -> None:
        """Say so if a text of a response is empty, which is most often the fault of its prompt."""
        if any(not (response.texts[index].strip() or last.calls) for index, last in response.request.ended.items()):
            self._say_once(
                "a text is empty; are the prompts like the questions of the task that the models were chosen for? A "
                "model that thinks may need more tokens (max_tokens)"
            )

    def _say_once(self, note: str) -> None:
        """Log a note for the person who runs the server, unless it was said before."""
        if note not in self._said:
            self._said.add(note)
            _LOG.warning("%s (this is said once)", note)


class _CancellableStream(StreamingResponse):
    """A streaming response that calls ``on_end`` at its end, whatever ends it."""

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not in the generator of events: its `finally` does not run where the client leaves before the first event.
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _unless_disconnected(request: Request, result: Coroutine[Any, Any, T]) -> T:
    """Wait for a result; a RequestError where the client disconnects before."""
    # A client that leaves while its text waits would otherwise keep its place until the text is finished.
    work, disconnect = asyncio.ensure_future(result), asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise RequestError(499, "the client left")
        return await work
    finally:
        work.cancel()
        disconnect.cancel()


async def _disconnect(request: Request) -> None:
    # The body has been read, so the only message left is the disconnect.
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _on_request_error(request: Request, error: RequestError) -> Response:
    return error_response(error, request.state.request_id)


async def _on_validation_error(_: Request, error: RequestValidationError) -> Response:
    return error_response(wrong_body(error.errors()))


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    """The framework's own errors: unknown path, wrong method, body too large or not JSON."""
    messages = {
        400: "the body cannot be read; send a JSON object in UTF-8",
        404: f"unknown path {request.url.path}; use /v1/models, /v1/completions, /v1/chat/completions or /v1/responses",
        405: f"{request.url.path} does not take {request.method}",
    }
    message = messages.get(error.status_code, error.detail)
    return error_response(RequestError(error.status_code, message, headers=error.headers), request.state.request_id)
