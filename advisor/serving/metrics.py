"""The figures that the server gives Prometheus."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from ensemble.servers.token_client import RequestCounts

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_CALLS = (1, 2, 3, 4, 5, 7, 10, 20, 50, 100)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The figures of one server; each server has its own registry."""

    def __init__(self) -> None:
        # Not the library's global registry: several servers in one process would register the same names.
        registry = self._registry = CollectorRegistry()
        # Else each figure has a second one, with the time at which it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.requests = Counter("advisor_requests", "Requests.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "advisor_request_seconds", "To a request's last byte.", ["path"], registry=registry, buckets=_SECONDS
        )
        self.first_token = Histogram(
            "advisor_first_token_seconds", "To a text's first token.", registry=registry, buckets=_SECONDS
        )
        self.prompt_tokens = Counter("advisor_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.contexts = Counter("advisor_contexts", "Contexts that were sent as token ids.", registry=registry)
        self.new_tokens = Counter("advisor_new_tokens", "Tokens that were emitted.", registry=registry)
        self.running = Gauge("advisor_running_texts", "Texts that are being decoded.", registry=registry)
        self.waiting = Gauge("advisor_waiting_texts", "Texts that wait for a place.", registry=registry)
        self.rows = Histogram("advisor_batch_rows", "Texts in a step.", registry=registry, buckets=_ROWS)
        self.failures = Counter("advisor_failed_steps", "Steps that failed.", registry=registry)
        self.failed_texts = Counter("advisor_failed_texts", "Texts that failed alone.", registry=registry)
        self.member_calls = Counter("advisor_member_calls", "Calls of a member.", ["member"], registry=registry)
        self.member_errors = Counter("advisor_member_errors", "Calls that failed.", ["member"], registry=registry)
        self.member_seconds = Histogram(
            "advisor_member_seconds", "Of a call.", ["member"], registry=registry, buckets=_SECONDS
        )
        self.member_request_seconds = Counter(
            "advisor_member_request_seconds", "Of all requests to a server.", ["member"], registry=registry
        )
        self.member_second_requests = Counter(
            "advisor_member_second_requests", "Requests for more of a context.", ["member"], registry=registry
        )
        self._watched: dict[str, tuple[RequestCounts, RequestCounts]] = {}
        self.calls = Histogram("advisor_calls_per_text", "Calls for a text.", registry=registry, buckets=_CALLS)
        self.votes = Counter("advisor_votes", "Votes of several answers.", ["unanimous"], registry=registry)

    def watch(self, name: str, counts: RequestCounts) -> None:
        """Show what the requests to a member's server take; the counts are read whenever the figures are."""
        self._watched[name] = counts, RequestCounts()

    def text(self) -> bytes:
        """All figures in the text format of Prometheus."""
        for name, (counts, shown) in self._watched.items():
            # A copy: the decoder's thread goes on counting.
            now = replace(counts)
            self.member_calls.labels(name).inc(now.requests - shown.requests)
            self.member_errors.labels(name).inc(now.failed - shown.failed)
            self.member_request_seconds.labels(name).inc(now.seconds - shown.seconds)
            self.member_second_requests.labels(name).inc(now.second - shown.second)
            self._watched[name] = counts, now
        return generate_latest(self._registry)
