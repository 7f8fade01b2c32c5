"""To come."""

from __future__ import annotations

from ensemble.servers.client import ServerClient
from ensemble.servers.token_server import TokenServer


def probe(client: ServerClient) -> TokenServer | None:  # noqa: ARG001
    """None."""
    return None
