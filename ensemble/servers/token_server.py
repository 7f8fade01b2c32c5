"""Token servers: next-token log-probabilities by token id, after contexts that are sent whole.

No request depends on an earlier one. So every request can be repeated, also after the server was restarted, and nothing
has to be built again. Servers find the common beginning of contexts in their own caches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble.servers.client import ServerClient

Ids = Sequence[int]
Logprobs = Mapping[int, float]
"""Natural logarithms of probabilities, by token id; minus infinity for an impossible token."""


@dataclass(frozen=True, slots=True)
class NextToken:
    """What a server tells of the token after a context.

    Attributes:
        token: The id with the largest probability.
        top: At least the k likeliest ids, all ids if the vocabulary has fewer. Every other id has at most the
            k-th largest of these log-probabilities.
    """

    token: int
    top: Logprobs


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a server gives, as its probe found out.

    Attributes:
        k: The largest number of top log-probabilities, at least 1.
        contexts: Contexts of one request, at least 1.
        chosen: Ids of one request for chosen ids; 0 if the server gives no log-probabilities of chosen ids.
        context: Tokens that a context and its continuation may have; None if that is not known.
    """

    k: int
    contexts: int
    chosen: int
    context: int | None = None


class TokenServer(ABC):
    """A model behind a server. Several threads may call it at a time.

    Every method raises :class:`ensemble.servers.client.ServerError` if the server gives no valid answer, and takes at
    most as many contexts and ids as ``limits`` allow.

    Args:
        client: The connection.
        limits: What the server gives, as the probe of its kind found out.
    """

    def __init__(self, client: ServerClient, limits: ServerLimits) -> None:
        self._client, self.limits = client, limits

    @property
    def connections(self) -> int:
        """Connections opened so far: a new one may lead to a server that was restarted with another model."""
        return self._client.connections

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @abstractmethod
    def write(self, contexts: Sequence[Ids], max_tokens: int, k: int) -> list[list[NextToken]]:
        """Continue contexts greedily.

        Args:
            contexts: Token ids, at least one each; no BOS is added.
            max_tokens: The largest number of tokens, at least 1.
            k: Top log-probabilities of each token.

        Returns:
            For each context its next tokens: at least one, and fewer than ``max_tokens`` only after EOS (which is the
            last of them) or at the end of the server's context.
        """

    @abstractmethod
    def chosen(self, contexts: Sequence[Ids], ids: Ids) -> list[Logprobs]:
        """For each context, the log-probabilities of these ids as the next token."""

    @abstractmethod
    def tokenize(self, text: str) -> list[int] | None:
        """The server's own ids of a text, without special tokens around it; None if it does not tell them."""
