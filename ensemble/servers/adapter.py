"""What the adapters share: reading ids and log-probabilities from answers, which are untrusted, and probing servers."""

from __future__ import annotations

import math

from ensemble.servers.client import ServerClient, ServerError
from ensemble.servers.token_server import Logprobs, NextToken, TokenServer

FIRST, SECOND = tuple(range(10, 18)), tuple(range(20, 25))
"""Contexts of the probes; every vocabulary has these ids."""
CAPS = (64, 20, 10, 5)
"""Numbers of top log-probabilities to try; vLLM's default limit is 20."""
# Largest difference of two log-probabilities of the same token; half precision rounds to about 0.1.
_CLOSE = 0.5
# Largest difference of log-probabilities that a server may take for a tie.
_TIE = 1e-3


class InvalidAnswerError(Exception):
    """The message continues the sentence "the answer ..."."""


def context_length(client: ServerClient) -> int | None:
    """Tokens of the model's context, as the server's list of models says; None if it does not."""
    models = client.get("/models").get("data")
    own = [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    lengths = [model.get("max_model_len") for model in own if model.get("id") == client.address.model]
    length = lengths[0] if lengths else None
    return length if isinstance(length, int) and length > 1 else None


def is_other_kind(error: ServerError) -> bool:
    """Whether the error of a probe's first request says that the server does not speak the adapter's form."""
    # Anything else, such as an absent server or a wrong key, will not go better with another adapter.
    return error.failure in ("refused", "invalid") or error.status in (404, 405, 501)


def accepts(server: TokenServer, k: int) -> bool:
    """Whether a server gives a number of top log-probabilities."""
    try:
        server.write([FIRST], 1, k)
    except ServerError as error:
        if error.failure in ("refused", "invalid"):
            return False
        raise
    return True


def gives_chosen(server: TokenServer, expected: Logprobs) -> bool:
    """Whether a server gives log-probabilities of chosen ids after ``FIRST``, equal to those among its top ones."""
    try:
        (values,) = server.chosen([FIRST], list(expected))
    except ServerError as error:
        if error.failure in ("refused", "invalid"):
            return False
        raise
    return all(is_close(values[index], value) for index, value in expected.items())


def is_close(first: float, second: float) -> bool:
    """Whether two values may be the log-probability of the same token."""
    return math.isclose(first, second, abs_tol=_CLOSE)


def next_token(token: int, logprob: float, top: Logprobs, k: int) -> NextToken:
    """What an answer tells of one token.

    Args:
        token: The id that the server chose.
        logprob: Its log-probability. The id may be missing in ``top`` where others are as likely.
        top: The likeliest ids.
        k: Number of ids that ``top`` must have.
    """
    if len(top) < k:
        raise InvalidAnswerError(f"has fewer than {k} log-probabilities of a token")
    top = {token: logprob, **top}
    if not (math.isfinite(logprob) and math.isfinite(top[token])):
        raise InvalidAnswerError("chooses a token whose probability is 0")
    # The tokens after another one would continue another text than the likeliest one.
    if top[token] < max(top.values()) - _TIE:
        raise InvalidAnswerError(
            f"chooses token {token}, which is not the likeliest one; start the server without options that change "
            "sampling"
        )
    return NextToken(token, top)
