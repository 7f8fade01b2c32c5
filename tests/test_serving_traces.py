"""``advisor serve --otel``: the spans of requests, what they have, and what they never have."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from running_server import Running, serving
from servers import completion, raw_server
from test_ensemble_api import member, writer
from test_server_members import line, tiny_folder
from test_serving_strategies import Says, Waits, server_model, three
from test_serving_strategies import serving as serving_strategy

from advisor.serving.protocol import RequestLimits
from advisor.serving.starting import traces_of
from advisor.serving.telemetry.tracing import RequestTraces
from ensemble import Ensemble
from ensemble.errors import InputError, MemberError

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{PARENT}-01"
BODY = {"model": "tiny", "prompt": "x", "max_tokens": 5}
SECRET = "Zanzibar"


class Seen:
    """Traces whose spans a test reads."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.traces = RequestTraces("tiny", SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """All that have ended, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def take(self, server: Running) -> ReadableSpan:
        """Wait for the only span of a request; the client has its answer a moment before it ends."""
        server.until(lambda: any(span.kind is SpanKind.SERVER for span in self.spans))
        (found,) = [span for span in self.spans if span.kind is SpanKind.SERVER]
        return found

    def children(self, span: ReadableSpan) -> list[ReadableSpan]:
        return [each for each in self.spans if each.parent and each.parent.span_id == ids(span)[1]]


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    tables = tmp_path_factory.mktemp("tables")
    return Ensemble([writer(), member("unigram with bytes", 1)], weights=[9, 1], cache_dir=tables)


@pytest.fixture
def server(sure: Ensemble, seen: Seen) -> Iterator[Running]:
    with serving(sure, RequestLimits(new_tokens=400, default_tokens=24), traces=seen.traces) as running:
        yield running


# --- One request ---


def test_a_request_has_a_span_by_the_conventions_for_generative_ai(server: Running, seen: Seen) -> None:
    with server.client() as client:
        made = client.completions.create(model="tiny", prompt="xyz", max_tokens=7, temperature=0.5, top_p=0.9, seed=1)
    span = seen.take(server)
    assert made.usage is not None
    assert span.name == "text_completion tiny"
    assert attributes(span) == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "unite-advisor",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.usage.input_tokens": made.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": made.usage.completion_tokens,
        "gen_ai.response.finish_reasons": (made.choices[0].finish_reason,),
    }


@pytest.mark.parametrize("stream", [True, False])
def test_a_chat_with_several_texts_counts_them_all(server: Running, seen: Seen, stream: bool) -> None:
    with server.client() as client:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "n": 2, "temperature": 1, "seed": 3}
        found = client.chat.completions.create(model="tiny", max_tokens=6, stream=stream, **asked)
        if stream:
            list(found)  # type: ignore[call-overload]
    span = seen.take(server)
    assert span.name == "chat tiny"
    shown = attributes(span)
    assert (shown["gen_ai.request.choice.count"], len(shown["gen_ai.response.finish_reasons"])) == (2, 2)
    assert shown["gen_ai.usage.output_tokens"] == 12


def test_waiting_and_decoding_are_parts_of_the_span(server: Running, seen: Seen) -> None:
    assert server.ask("/v1/completions", json.dumps(BODY)).status == 200
    span = seen.take(server)
    waiting, decoding = seen.children(span)
    assert (waiting.name, decoding.name) == ("waiting", "decoding")
    assert waiting.start_time and waiting.end_time and decoding.start_time and decoding.end_time
    assert waiting.start_time <= waiting.end_time <= decoding.end_time


def test_what_monitors_ask_has_no_span(server: Running, seen: Seen) -> None:
    for path in ("/health", "/metrics", "/v1/models", "/v1/completions"):
        server.ask(path)
    server.ask("/v1/completions", json.dumps(BODY))
    assert seen.take(server).name == "text_completion tiny"


# --- Contexts ---


def test_the_trace_of_a_client_is_continued(server: Running, seen: Seen) -> None:
    server.ask("/v1/completions", json.dumps(BODY), traceparent=HEADER)
    span = seen.take(server)
    assert span.parent is not None
    assert (f"{ids(span)[0]:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)


@pytest.mark.parametrize("header", ["", "00-0-0-01", f"00-{'0' * 32}-{PARENT}-01", f"{HEADER}x", "\xff"])
def test_a_header_that_is_no_trace_begins_a_new_one(server: Running, seen: Seen, header: str) -> None:
    assert server.ask("/v1/completions", json.dumps(BODY), traceparent=header).status == 200
    assert seen.take(server).parent is None


def test_a_long_state_of_a_trace_is_dropped(server: Running, seen: Seen) -> None:
    state = ",".join(f"a{number}={'b' * 200}" for number in range(3))
    server.ask("/v1/completions", json.dumps(BODY), traceparent=HEADER, tracestate=state)
    context = seen.take(server).get_span_context()
    assert context is not None
    assert (f"{context.trace_id:032x}", len(context.trace_state)) == (TRACE, 0)


def test_a_trace_that_is_not_sampled_has_no_spans(server: Running, seen: Seen) -> None:
    server.ask("/v1/completions", json.dumps(BODY), traceparent=f"00-{TRACE}-{PARENT}-00")
    server.ask("/v1/completions", json.dumps(BODY), traceparent=HEADER)
    seen.take(server)


# --- Members ---


def test_calls_of_members_are_parts_of_the_span(seen: Seen) -> None:
    with serving_strategy("vote", three("yes", "no", MemberError(SECRET)), traces=seen.traces) as (server, client):
        client.completions.create(model="tiny", prompt="x")
        span = seen.take(server)
    calls = seen.children(span)
    assert sorted(each.name for each in calls) == [f"text_completion {name}" for name in "abc"]
    (failed,) = [each for each in calls if each.status.status_code is StatusCode.ERROR]
    assert attributes(failed)["error.type"] == "MemberError"
    assert failed.status.description is None and not failed.events
    first = next(each for each in calls if each.name.endswith("a"))
    shown = attributes(first)
    assert (shown["gen_ai.usage.input_tokens"], shown["gen_ai.usage.output_tokens"]) == (7, 3)


def test_a_member_behind_a_server_gets_the_context_of_its_call(seen: Seen) -> None:
    with raw_server() as raw:
        raw.answer = lambda *_: completion("yes")
        models = [server_model("far", raw), *three("no")]
        with serving_strategy("vote", models, traces=seen.traces) as (server, _):
            server.ask("/v1/completions", json.dumps(BODY), traceparent=HEADER, tracestate="a=1")
            span = seen.take(server)
    ((_, headers, _),) = raw.asked
    (call,) = [each for each in seen.children(span) if each.kind is SpanKind.CLIENT]
    assert headers["traceparent"] == f"00-{TRACE}-{ids(call)[1]:016x}-01"
    assert headers["tracestate"] == "a=1"
    assert attributes(call)["server.address"] == "127.0.0.1"


def test_without_traces_members_get_no_context() -> None:
    with raw_server() as raw:
        raw.answer = lambda *_: completion("yes")
        with serving_strategy("vote", [server_model("far", raw)]) as (server, _):
            server.ask("/v1/completions", json.dumps(BODY), traceparent=HEADER)
    ((_, headers, _),) = raw.asked
    assert "traceparent" not in headers


def test_a_set_lets_the_servers_of_its_members_continue_the_trace(tmp_path: Path, seen: Seen) -> None:
    folder, below = tiny_folder(tmp_path), Seen()
    alone = Ensemble.from_pretrained([folder], dtype="float64")
    with serving(alone, traces=below.traces) as far:
        apart = Ensemble.from_pretrained([line(far, folder)])
        with serving(apart, traces=seen.traces) as near:
            assert near.ask("/v1/completions", json.dumps(BODY), traceparent=HEADER).status == 200
            parent = ids(seen.take(near))
    asked = [span for span in below.spans if span.parent is not None]
    assert asked
    assert {(ids(span)[0], span.parent.span_id) for span in asked if span.parent} == {parent}
    assert all(attributes(span)["gen_ai.usage.input_tokens"] for span in asked)


# --- Failures ---


def test_a_request_that_fails_has_an_error_by_its_status(seen: Seen) -> None:
    failed = MemberError(SECRET)
    with serving_strategy("vote", three(failed, failed), traces=seen.traces) as (server, _):
        assert server.ask("/v1/completions", json.dumps(BODY)).status == 503
        span = seen.take(server)
    assert (span.status.status_code, attributes(span)["error.type"]) == (StatusCode.ERROR, "503")


def test_a_refused_request_names_no_model(server: Running, seen: Seen) -> None:
    assert server.ask("/v1/completions", json.dumps({**BODY, "model": SECRET})).status == 404
    span = seen.take(server)
    assert (span.name, span.status.status_code) == ("POST /v1/completions", StatusCode.UNSET)
    assert attributes(span)["error.type"] == "404"
    assert "gen_ai.request.model" not in attributes(span)


def test_a_client_that_goes_away_ends_its_span(seen: Seen) -> None:
    with serving_strategy("vote", [Says("a", "yes"), Waits("b", "")], traces=seen.traces) as (server, client):
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(model="tiny", prompt="x", timeout=2)
        span = seen.take(server)
    assert attributes(span)["http.response.status_code"] == 499


# --- The collector ---


class Collector:
    """A real receiver of OTLP over HTTP on this machine."""

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_a_collector_gets_the_spans_and_nothing_that_clients_wrote(
    sure: Ensemble, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    key = f"{SECRET}-key"
    chat = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "stop": [SECRET]}
    with serving(sure, key=key, traces=traces_of("tiny")) as server:
        ask = {"Authorization": f"Bearer {key}"}
        texts = [
            server.ask("/v1/completions", json.dumps({**BODY, "prompt": SECRET, "user": SECRET}), **ask),
            server.ask("/v1/chat/completions", json.dumps({**chat, "stream": True}), **ask),
        ]
        refused = [
            server.ask("/v1/completions", json.dumps({**BODY, SECRET: SECRET}), **ask),
            server.ask("/v1/completions", json.dumps({**BODY, "model": SECRET}), **ask),
            server.ask("/v1/completions", json.dumps({**BODY, "prompt": SECRET})),
        ]
    assert [reply.status for reply in (*texts, *refused)] == [200, 200, 400, 404, 401]
    sent = [ExportTraceServiceRequest.FromString(body) for body in collector.bodies]
    spans = [s for body in sent for r in body.resource_spans for scope in r.scope_spans for s in scope.spans]
    assert len([span for span in spans if not span.parent_span_id]) == 5
    assert collector.headers[0]["x-team"] == "blue"
    resource = {each.key: each.value.string_value for each in sent[0].resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("unite-advisor", "test")
    whole = b"".join(collector.bodies)
    text = json.loads(texts[0].text)["choices"][0]["text"]
    assert SECRET.encode() not in whole
    assert len(text) > 3 and text.encode() not in whole


@pytest.mark.parametrize("kind", ["closed", "silent", "refusing"])
def test_without_a_collector_all_requests_are_answered(
    sure: Ensemble, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    refusing = Collector(status=503)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if kind == "silent":
            # It takes connections and never answers.
            bound.listen(64)
        url = refusing.url if kind == "refusing" else f"http://127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        # A queue that is full at once, which is what a long absence leads to.
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        monkeypatch.setattr("advisor.serving.telemetry.tracing._STOP_S", 0.2)
        with serving(sure, traces=traces_of("tiny")) as server:
            replies = [server.ask("/v1/completions", json.dumps({**BODY, "max_tokens": 1})) for _ in range(12)]
    refusing.close()
    assert [reply.status for reply in replies] == [200] * 12


# --- The start ---


def test_a_missing_extra_is_a_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "advisor.serving.telemetry.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(InputError, match=r"^--otel needs opentelemetry.* pip install 'unite-advisor\[otel\]'$"):
        traces_of("tiny")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "Zanzibar:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "Zanzibar"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_without_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as raised:
        traces_of("tiny")
    assert f"${name}" in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_server_without_traces_imports_nothing_for_them() -> None:
    code = "import sys, advisor.serving.app, advisor.serving.strategy_handler, advisor.serving.server; "
    code += "sys.exit(any(name.startswith('opentelemetry.sdk') or 'otlp' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
