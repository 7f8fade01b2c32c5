"""Requests to one token server: sent without waiting, in parts, again after faults, and counted.

What a server gives is found out by requests of each kind of server, and nothing is assumed.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ensemble.errors import InputError, MemberError
from ensemble.servers import llama_cpp, sglang, vllm
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import FEW_RETRIES, ServerClient, ServerError, sent_again
from ensemble.servers.token_server import Ids, Logprobs, NextToken, ServerLimits, TokenServer

T = TypeVar("T")

_VALUES = 40_000
"""Log-probabilities of one answer: each has about 40 bytes, and the client reads up to 4 MiB."""
_CHECK_S = 60.0
"""Seconds after which the probe values are compared in any case: behind a proxy, a restart opens no new connection."""
_PROBES = (tuple(range(10, 26)), tuple(range(40, 48)), (30, 12, 45, 19, 33))
"""Contexts of the probe; every vocabulary has these ids."""
_PROBE_K = 5
_SAME = 2e-3
"""Largest difference of two log-probabilities that one model in float32 computes in different batches."""
_SAME_HALF = 0.25
"""The same in half precision."""
_HALF_STEP = 2**-11
"""Half precision writes logits above 1 in multiples of this, or of more."""
_KINDS = (vllm.probe, sglang.probe, llama_cpp.probe)
_CONTEXT = tuple(range(10, 20))


@dataclass(slots=True)
class RequestCounts:
    """What the requests of a member took."""

    requests: int = 0  # that were answered
    second: int = 0  # those for more of a context that was sent before: chosen ids, or more candidates
    failed: int = 0  # requests that failed, and were sent again
    seconds: float = 0.0  # until the answers, in all; requests at the same time all count


class TokenClient:
    """Sends the requests of one member, several at a time, and again for `patience` seconds."""

    def __init__(self, name: str, server: TokenServer, patience: float) -> None:
        self.name = name
        self.limits: ServerLimits = server.limits
        self.counts = RequestCounts()
        self._server = server
        self._patience = patience
        self._lock = threading.Lock()
        # With this object go its threads and connections; an ensemble has no end that its user must call.
        weakref.finalize(self, server.client.close)
        self._probe_values = self._probe()
        self._connections, self._next_check = server.client.connections, time.monotonic() + _CHECK_S

    def write(
        self, contexts: Sequence[Ids], max_tokens: int, k: int, *, second: bool = False
    ) -> Callable[[], list[list[NextToken]]]:
        """Send :meth:`TokenServer.write`, for any number of contexts; return a function that waits for the answer."""
        size = max(1, min(self.limits.contexts, _VALUES // (max_tokens * k)))
        parts = [contexts[n : n + size] for n in range(0, len(contexts), size)]
        wait = self._send([partial(self._server.write, part, max_tokens, k) for part in parts], second)
        return lambda: [tokens for answer in wait() for tokens in answer]

    def chosen(self, contexts: Sequence[Ids], ids: Sequence[Ids]) -> Callable[[], list[Logprobs]]:
        """Send :meth:`TokenServer.chosen` for the ids of each context; return a function that waits for the answer."""
        parts = _parts(ids, self.limits)
        wait = self._send(
            [partial(self._server.chosen, [contexts[n] for n in rows], wanted) for rows, wanted in parts], second=True
        )

        def join() -> list[Logprobs]:
            joined: list[dict[int, float]] = [{} for _ in contexts]
            for (rows, _), answer in zip(parts, wait(), strict=True):
                for n, logprobs in zip(rows, answer, strict=True):
                    joined[n].update(logprobs)
            return list(joined)

        return join

    def tokenize(self, text: str) -> list[int] | None:
        """See :meth:`TokenServer.tokenize`."""
        try:
            return self._server.tokenize(text)
        except ServerError:
            # Not sent again: without this answer the tokenizer is only not checked.
            return None

    def _send(self, calls: Sequence[Callable[[], T]], second: bool) -> Callable[[], list[T]]:
        futures = [self._server.client.start(partial(self._call, call, second)) for call in calls]
        return lambda: [future.result() for future in futures]

    def _call(self, call: Callable[[], T], second: bool) -> T:
        """The answer to a request, which is sent again while the server does not answer."""
        tries = 0

        def attempt() -> tuple[T, float]:
            nonlocal tries
            tries += 1
            start = time.perf_counter()
            answer = call()
            connections = self._server.client.connections
            if tries > 1 or connections > self._connections or time.monotonic() > self._next_check:
                # A server that was restarted may have another model; its values would be mixed with the old ones.
                self._check_model()
            return answer, time.perf_counter() - start

        try:
            answer, seconds = sent_again(attempt, patience=self._patience)
        except ServerError as error:
            raise MemberError(str(error), of=self.name) from error
        with self._lock:
            self.counts.requests += 1
            self.counts.second += second
            self.counts.failed += tries - 1
            self.counts.seconds += seconds
        return answer

    def _check_model(self) -> None:
        connections = self._server.client.connections
        if not same_model(self._probe_values, self._probe()):
            raise MemberError(
                "the server has another model or numeric type than at the start; start the run again", of=self.name
            )
        self._connections = max(connections, self._server.client.connections)
        self._next_check = time.monotonic() + _CHECK_S

    def _probe(self) -> list[Logprobs]:
        k = min(_PROBE_K, self.limits.k)
        return [tokens[0].top for tokens in self._server.write(_PROBES, 1, k)]


def same_model(first: Sequence[Logprobs], second: Sequence[Logprobs]) -> bool:
    """Whether two answers to the same contexts are those of one model in one numeric type."""
    half = is_half(first)
    if half != is_half(second):
        return False
    limit = _SAME_HALF if half else _SAME
    # Ids near the border of the top ones may differ by rounding, so only those in both are compared.
    both = [(a[index], b[index]) for a, b in zip(first, second, strict=True) for index in a.keys() & b.keys()]
    return len(both) > len(first) * 2 and all(x == y or abs(x - y) <= limit for x, y in both)


def is_half(tops: Sequence[Logprobs]) -> bool:
    """Whether log-probabilities come from logits in half precision (bfloat16 or float16)."""
    # The constant that makes log-probabilities of logits cancels in their differences.
    steps = [(value - max(top.values())) / _HALF_STEP for top in tops for value in top.values() if value > -1e4]
    return all(abs(step - round(step)) < 0.05 for step in steps)


def _parts(ids: Sequence[Ids], limits: ServerLimits) -> list[tuple[list[int], list[int]]]:
    """Split contexts and their ids into requests: for each the numbers of its contexts, and their ids together."""
    parts: list[tuple[list[int], list[int]]] = []
    most = limits.chosen
    # Block by block, not context by context: contexts that want the same many ids share the requests for them.
    for start in range(0, max(map(len, ids), default=0), most):
        rows: list[int] = []
        wanted: set[int] = set()
        for n, own in enumerate(ids):
            new = set(own[start : start + most])
            # One list of ids serves all contexts of a request, so contexts go together while their ids fit.
            if rows and new and (len(rows) == limits.contexts or len(wanted | new) > most):
                parts.append((rows, sorted(wanted)))
                rows, wanted = [], set()
            if new:
                rows.append(n)
                wanted |= new
        if rows:
            parts.append((rows, sorted(wanted)))
    return parts


def connect(address: ServerAddress, name: str) -> TokenServer:
    """The connection to a server that gives log-probabilities by token id; an InputError says how one would."""
    client = ServerClient(address, FEW_RETRIES)
    try:
        server = next((found for probe in _KINDS if (found := probe(client)) is not None), None)
        if server is None:
            raise InputError(
                "its server does not give top log-probabilities by token id, so it cannot be decoded token by "
                "token; serve the model with vLLM, SGLang or llama.cpp, or let it vote with whole texts (leave "
                "tokenizer= out)",
                of=name,
            )
        _check_values(server, name)
        # A fault may mean that the server was restarted, which the member must know.
        client.stop_retrying()
    except ServerError as error:
        client.close()
        if error.failure == "temporary":
            # The server may give everything, and does not answer now.
            raise ServerError(f"{name}: {error}", error.failure, error.status) from None
        raise InputError(str(error), of=name) from None
    except InputError:
        client.close()
        raise
    return server


def _check_values(server: TokenServer, name: str) -> None:
    """Make sure that the values are log-probabilities of the model, before any sampling option changes them."""
    ((token,),) = server.write([_CONTEXT], 1, min(5, server.limits.k))
    # Rounding may put the log-probability of a certain token a little above 0.
    if not max(token.top.values()) <= 1e-3 or token.top.get(token.token) != max(token.top.values()):
        raise InputError(
            "its server does not give the model's own log-probabilities; start it with --logprobs-mode raw_logprobs",
            of=name,
        )
