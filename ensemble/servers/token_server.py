"""Token servers: next-token log-probabilities by token id, after contexts that are sent whole.

No request depends on an earlier one. So every request can be repeated, also after the server was restarted, and nothing
has to be built again. Servers find the common beginning of contexts in their own caches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ensemble.servers.client import ServerClient, ServerError
from ensemble.servers.schema import Tokenized

T = TypeVar("T")
Ids = Sequence[int]
Logprobs = Mapping[int, float]
"""Natural logarithms of probabilities, by token id; minus infinity for an impossible token."""
FIRST, SECOND = tuple(range(10, 18)), tuple(range(20, 25))
"""Contexts of the probes; every vocabulary has these ids."""
CAPS = (64, 20, 10, 5)
"""Numbers of top log-probabilities to try; vLLM's default limit is 20."""
# Largest difference of two log-probabilities of the same token; half precision rounds to about 0.1.
_CLOSE = 0.5
# Largest difference of log-probabilities that a server may take for a tie.
_TIE = 1e-3


@dataclass(frozen=True, slots=True)
class NextToken:
    """What a server tells of the token after a context."""

    token: int  # the id with the largest probability
    top: Logprobs  # the k likeliest ids, or more; no other id is likelier than the k-th


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a server gives, as its probe tells."""

    k: int  # the largest number of top log-probabilities, at least 1
    contexts: int  # of one request, at least 1
    chosen: int  # ids of one request for chosen ids; 0 if the server gives no log-probabilities of them
    context: int | None = None  # tokens that a context and its continuation may have; None if that is not known


class TokenServer(ABC):
    """A model behind a server, for several threads; a ServerError where it gives no valid answer."""

    path = ""
    """Where its requests go, below the server's root."""

    def __init__(self, client: ServerClient, limits: ServerLimits) -> None:
        self.client, self.limits = client, limits
        self._path = client.root + self.path

    @abstractmethod
    def write(self, contexts: Sequence[Ids], max_tokens: int, k: int) -> list[list[NextToken]]:
        """Continue contexts greedily, with k top log-probabilities a token; the next tokens of each.

        Contexts have at least one id, and get no BOS. There are fewer than ``max_tokens`` tokens only after EOS, which
        is the last of them, or at the end of the server's context.
        """

    @abstractmethod
    def chosen(self, contexts: Sequence[Ids], ids: Ids) -> list[Logprobs]:
        """For each context, the log-probabilities of these ids as the next token."""

    def tokenize(self, text: str) -> list[int] | None:
        """The server's own ids of a text, without special tokens around it; None if it does not tell them."""
        body = {"prompt": text, "add_special_tokens": False}
        path = self.client.root + "/tokenize"
        answer = given(lambda: self.client.post(path, body), (404, 405))
        if answer is None:  # older versions
            return None
        return list(self.client.checked(Tokenized, path, answer).tokens)

    def _invalid(self, reason: str) -> ServerError:
        """The error for an answer; the reason continues the sentence "the answer ..."."""
        return self.client.invalid_answer(self._path, reason)

    def _next_token(self, token: int, logprob: float, top: Logprobs, k: int) -> NextToken:
        """One token of an answer, which may be missing in ``top`` (k ids) where others are as likely."""
        if len(top) < k:
            raise self._invalid(f"has fewer than {k} log-probabilities of a token")
        top = {token: logprob, **top}
        if not (math.isfinite(logprob) and math.isfinite(top[token])):
            raise self._invalid("chooses a token whose probability is 0")
        # The tokens after another one would continue another text than the likeliest one.
        if top[token] < max(top.values()) - _TIE:
            raise self._invalid(
                f"chooses token {token}, which is not the likeliest one; start the server without options that change "
                "sampling"
            )
        return NextToken(token, top)


def context_length(client: ServerClient) -> int | None:
    """Tokens of the model's context, as the server's list of models says; None if it does not."""
    lengths = [model.get("max_model_len") for model in client.models() if model.get("id") == client.address.model]
    length = lengths[0] if lengths else None
    return length if isinstance(length, int) and length > 1 else None


def is_other_kind(error: ServerError) -> bool:
    """Whether the error of a probe's first request says that the server does not speak the adapter's form."""
    # Anything else, such as an absent server or a wrong key, will not go better with another adapter.
    return error.failure in ("refused", "invalid") or error.status in (404, 405, 501)


def given(ask: Callable[[], T], statuses: Collection[int] = ()) -> T | None:
    """What a server answers; None if it refuses the request, answers in another form, or with one of some statuses."""
    try:
        return ask()
    except ServerError as error:
        if error.status in statuses if statuses else error.failure in ("refused", "invalid"):
            return None
        raise


def largest_k(server: TokenServer) -> int:
    """The largest number of top log-probabilities that a server gives."""
    return next(k for k in CAPS if k == CAPS[-1] or given(partial(server.write, [FIRST], 1, k)) is not None)


def gives_chosen(server: TokenServer, expected: Logprobs) -> bool:
    """Whether a server gives log-probabilities of chosen ids after ``FIRST``, equal to those among its top ones."""
    found = given(lambda: server.chosen([FIRST], list(expected)))
    return found is not None and all(is_close(found[0][index], value) for index, value in expected.items())


def is_close(first: float, second: float) -> bool:
    """Whether two values may be the log-probability of the same token."""
    return math.isclose(first, second, abs_tol=_CLOSE)
