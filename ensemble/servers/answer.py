"""Reading token ids and log-probabilities from a server's answer, which is untrusted."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ensemble.servers.token_server import Logprobs, NextToken

_LARGEST_ID = 2**31 - 1
_ROUNDING = 0.01
"""A log-probability in half precision may be this far above 0."""
_IMPOSSIBLE = -1e30
"""Some servers write minus infinity as the smallest number of float32, because JSON has no infinity."""
_TIE = 1e-3
"""Largest difference of log-probabilities that a server may take for a tie."""


class InvalidAnswer(Exception):
    """The message continues the sentence "the answer ..."."""


def read_id(value: object) -> int:
    """A token id."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_ID:
        raise InvalidAnswer("has a token id that is not a number from 0 to 2147483647")
    return value


def read_logprob(value: object) -> float:
    """A log-probability; minus infinity is possible, infinity and NaN are not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value <= _ROUNDING:
        raise InvalidAnswer("has a log-probability that is not a number up to 0")
    return -math.inf if value < _IMPOSSIBLE else float(value)


def read_list(fields: object, name: str) -> list[object]:
    """A field that is a list."""
    value = fields.get(name) if isinstance(fields, Mapping) else None
    if not isinstance(value, list):
        raise InvalidAnswer(f"has no list {name!r}")
    return value


def next_token(token: int, logprob: float, top: Logprobs, k: int) -> NextToken:
    """What an answer tells of one token.

    Args:
        token: The id that the server chose.
        logprob: Its log-probability. The id may be missing in ``top`` where others are as likely.
        top: The likeliest ids.
        k: Number of ids that ``top`` must have.
    """
    if len(top) < k:
        raise InvalidAnswer(f"has fewer than {k} log-probabilities of a token")
    top = {token: logprob, **top}
    if not math.isfinite(top[token]):
        raise InvalidAnswer("chooses a token whose probability is 0")
    # The tokens after another one would continue another text than the likeliest one.
    if top[token] < max(top.values()) - _TIE:
        raise InvalidAnswer(
            f"chooses token {token}, which is not the likeliest one; start the server without options that change "
            "sampling"
        )
    return NextToken(token, top)
