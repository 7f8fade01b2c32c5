"""Traces for OpenTelemetry: a span of each request, with spans of its waiting, its decoding and its calls of members.

The attributes are those of the semantic conventions for generative AI. Spans never have text: no prompt, response, stop
string or message of an error, because all of these may quote a client. Only ``--otel`` imports this module.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import wait
from contextvars import ContextVar
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from advisor.profile.asked_model import AskedModel, ServerModel
from advisor.response_cache import Response
from advisor.serving.request import GenerationRequest
from advisor.serving.responses import openai_reason
from ensemble.common.background import in_background
from ensemble.errors import InputError
from ensemble.servers.client import TRACE_HEADERS

if TYPE_CHECKING:
    from starlette.types import Scope

    from advisor.servers.tool_chat import AskedPrompt
    from ensemble.decode.settings import Settings

_OPERATIONS = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat", "/v1/responses": "chat"}
"""The paths of requests for texts, and the conventions' names for what they do."""
_PROVIDER = "unite-advisor"
_LONGEST_STATE = 512
"""Characters of ``tracestate`` that must be passed on; a longer one may be dropped by W3C Trace Context."""
_STOP_S = 5.0
"""How long the last spans may take when the server stops."""
_CURRENT: ContextVar[RequestTrace | None] = ContextVar("_CURRENT", default=None)
_CONTEXT = TraceContextTextMapPropagator()


def otlp_processor(environment: Mapping[str, str]) -> SpanProcessor:
    """What sends spans in batches, from a thread, to the collector that the variables ``OTEL_*`` name.

    Raises:
        InputError: A variable has a value that cannot be used. Its value is not shown, because it may hold a key.
    """
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if environment.get(name, "http/protobuf") != "http/protobuf":
            raise InputError(f"${name}: advisor sends traces with http/protobuf only; remove it, or set it to that")
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        raise InputError("$OTEL_TRACES_EXPORTER: advisor sends traces with otlp only; remove it, or leave out --otel")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        if not environment.get(name, "http://").startswith(("http://", "https://")):
            raise InputError(f"${name}: must begin with http:// or https://")
    # While a collector is away, each try is a line; the last one of a batch says that its spans are lost.
    logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.ERROR)
    try:
        return BatchSpanProcessor(OTLPSpanExporter())
    except (ValueError, OSError, RuntimeError) as error:
        raise InputError(
            f"--otel: a variable OTEL_* has a value that cannot be used ({type(error).__name__}); OpenTelemetry's "
            "documentation of the OTLP exporter lists them"
        ) from None


class RequestTraces:
    """Makes the spans of all requests.

    Args:
        model: The model's name for clients.
        processor: Gets the spans that have ended. It must not wait for a collector.
    """

    def __init__(self, model: str, processor: SpanProcessor) -> None:
        self._model = model
        version = metadata.version("unite-advisor")
        # Without the library's own exit handler, which waits for a collector that is away for half a minute.
        self._provider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("advisor.serving", version)

    def begin(self, scope: Scope) -> RequestTrace | None:
        """Begin the span of a request, in the trace that its headers name; None for a request of another kind.

        Until it ends, this context's requests to servers continue it.
        """
        operation = _OPERATIONS.get(scope["path"])
        if operation is None or scope["method"] != "POST":
            return None
        sent = Headers(scope=scope)
        carrier = {name: sent[name] for name in ("traceparent", "tracestate") if name in sent}
        # It goes on to other servers, so a client must not make it long.
        if len(carrier.get("tracestate", "")) > _LONGEST_STATE:
            del carrier["tracestate"]
        attributes = {"http.request.method": "POST", "url.path": scope["path"], "gen_ai.operation.name": operation}
        span = self._tracer.start_span(
            f"POST {scope['path']}", _CONTEXT.extract(carrier), kind=SpanKind.SERVER, attributes=attributes
        )
        found = RequestTrace(self._tracer, span, operation, self._model)
        # Each request has its task and so its context; nothing has to be set back.
        _CURRENT.set(found)
        TRACE_HEADERS.set(_headers(span))
        return found

    def follow(self, request: GenerationRequest) -> None:
        """Let the span of this context's request tell what becomes of its texts."""
        if (current := _CURRENT.get()) is not None:
            current.follow(request)

    def describe(self, response: Mapping[str, Any]) -> None:
        """Let the span of this context's request have the counts of a response without texts."""
        if (current := _CURRENT.get()) is not None:
            current.describe(response)

    def of_member(self, model: AskedModel) -> AskedModel:
        """A model whose calls have spans."""
        return _TracedModel(model, self._tracer)

    def stop(self) -> None:
        """Send the last spans, as far as the collector takes them in a few seconds."""
        # The library has no limit of time here, and the program must end.
        wait([in_background(self._provider.shutdown, "last traces")], _STOP_S)


class RequestTrace:
    """The span of one request.

    Args:
        tracer: Makes the spans of its parts.
        span: It has begun.
        operation: What the request is for, as the conventions name it.
        model: The model's name for clients.

    Attributes:
        span: The request's; calls of members are parts of it.
        operation: What the request is for.
    """

    def __init__(self, tracer: trace.Tracer, span: Span, operation: str, model: str) -> None:
        self._tracer, self._model = tracer, model
        self.span, self.operation = span, operation
        self._request: GenerationRequest | None = None

    def follow(self, request: GenerationRequest) -> None:
        """Take a request's parameters, and at the end what became of its texts."""
        self._request = request
        self._name_model()
        parameters = {
            "gen_ai.request.max_tokens": request.settings.max_new_tokens,
            "gen_ai.request.temperature": request.settings.temperature,
            "gen_ai.request.top_p": request.settings.top_p,
        }
        # The conventions leave it out for one text.
        if request.texts > 1:
            parameters["gen_ai.request.choice.count"] = request.texts
        self.span.set_attributes(parameters)

    def describe(self, response: Mapping[str, Any]) -> None:
        """Take the counts of a response."""
        self._name_model()
        reasons = [choice["finish_reason"] for choice in response["choices"]]
        usage = response["usage"]
        self._count(usage["prompt_tokens"], usage["completion_tokens"], reasons)

    def end(self, status: int) -> None:
        """End the span with the HTTP status of the response; 499 where the client left."""
        failure = status
        if (request := self._request) is not None:
            reasons = [openai_reason(request.ended[index].finish_reason) for index in sorted(request.ended)]
            new_tokens = sum(piece.new_tokens for piece in request.ended.values())
            self._count(request.read, new_tokens, [reason for reason in reasons if reason is not None])
            self._add_parts(request)
            # A stream has the status 200 before its texts are finished.
            failure = status if request.error is None else request.error.status
        self.span.set_attribute("http.response.status_code", status)
        if failure >= 400:
            self.span.set_attribute("error.type", str(failure))
        # By the conventions a client's own mistake is no error of the server's span.
        if failure >= 500:
            self.span.set_status(StatusCode.ERROR)
        self.span.end()

    def _name_model(self) -> None:
        # Only now: the name in a request is a client's text until it is found to be the server's.
        self.span.update_name(f"{self.operation} {self._model}")
        names = {"gen_ai.request.model": self._model, "gen_ai.response.model": self._model}
        self.span.set_attributes({"gen_ai.provider.name": _PROVIDER, **names})

    def _count(self, read: int | None, written: int, reasons: list[str]) -> None:
        if read is not None:
            self.span.set_attributes({"gen_ai.usage.input_tokens": read, "gen_ai.usage.output_tokens": written})
        if reasons:
            self.span.set_attribute("gen_ai.response.finish_reasons", reasons)

    def _add_parts(self, request: GenerationRequest) -> None:
        """The spans of waiting and decoding, where one decoder writes the texts."""
        if request.begun is None:
            return
        context, end = trace.set_span_in_context(self.span), time.monotonic()
        for name, start, stop in (("waiting", request.arrived, request.begun), ("decoding", request.begun, end)):
            self._tracer.start_span(name, context, start_time=_unix_ns(start)).end(_unix_ns(stop))


class _TracedModel:
    """A model of a strategy whose calls have spans; see :class:`advisor.profile.asked_model.AskedModel`."""

    def __init__(self, model: AskedModel, tracer: trace.Tracer) -> None:
        self.name = model.name
        self._model, self._tracer = model, tracer

    async def ask(self, prompt: AskedPrompt, settings: Settings) -> Response:
        """See :class:`advisor.profile.asked_model.AskedModel`."""
        current = _CURRENT.get()
        if current is None:
            return await self._model.ask(prompt, settings)
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": current.operation,
            "gen_ai.request.model": self.name,
        }
        kind = SpanKind.INTERNAL
        if isinstance(self._model, ServerModel):
            kind = SpanKind.CLIENT
            attributes["server.address"] = urlsplit(self._model.client.address.url).hostname or ""
        context = trace.set_span_in_context(current.span)
        span = self._tracer.start_span(f"{current.operation} {self.name}", context, kind=kind, attributes=attributes)
        token = TRACE_HEADERS.set(_headers(span))
        try:
            response = await self._model.ask(prompt, settings)
        except BaseException as error:
            # Also where it is cancelled: at the deadline, or because the client left.
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise
        else:
            span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": response.prompt_tokens,
                    "gen_ai.usage.output_tokens": response.tokens,
                }
            )
            if (reason := openai_reason(response.finish_reason)) is not None:
                span.set_attribute("gen_ai.response.finish_reasons", [reason])
            return response
        finally:
            TRACE_HEADERS.reset(token)
            span.end()


def _resource(version: str) -> Resource:
    """What the spans are of: as the variables ``OTEL_*`` say, else this program."""
    found = Resource.create({SERVICE_VERSION: version})
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: _PROVIDER}))
    return found


def _headers(span: Span) -> dict[str, str]:
    """The headers by which another server continues a span; none where the trace is not made."""
    # Without baggage, which may hold a client's text.
    headers: dict[str, str] = {}
    _CONTEXT.inject(headers, trace.set_span_in_context(span))
    return headers


def _unix_ns(moment: float) -> int:
    """A time of the monotonic clock in nanoseconds since 1970."""
    return time.time_ns() - int(1e9 * (time.monotonic() - moment))
