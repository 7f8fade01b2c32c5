"""Whether the servers of members answer: each is asked from time to time, in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ensemble.common.background import in_background
from ensemble.errors import InputError
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import ServerClient, ServerError

PAUSE_S = 5.0
"""Between two requests to a server."""
_TIMEOUT_S = 2.0
_LOG = logging.getLogger(__name__)


class ServerHealth:
    """Asks servers for their lists of models, which costs them nothing.

    Args:
        addresses: The servers by the names of their members.

    Attributes:
        failing: The names of the members whose servers do not answer now.
    """

    def __init__(self, addresses: Mapping[str, ServerAddress]) -> None:
        self.names = tuple(addresses)
        self.failing: set[str] = set()
        self._stopped = threading.Event()
        self._addresses = dict(addresses)

    def start(self) -> None:
        """Begin to ask."""
        # A thread for each: a server that does not answer must not delay the others.
        for name, address in self._addresses.items():
            in_background(partial(self._watch, name, address), f"health of {name}")

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def _watch(self, name: str, address: ServerAddress) -> None:
        quick = replace(address, timeout=min(_TIMEOUT_S, address.timeout), requests_per_minute=None)
        try:
            client = ServerClient(quick, retries=0)
        except InputError:  # its key is gone; the requests themselves say so
            return
        with client:
            while not self._stopped.is_set():
                reason = _why_not(client)
                if reason is not None and name not in self.failing:
                    _LOG.warning("%s does not answer: %s", name, reason)
                    self.failing.add(name)
                elif reason is None and name in self.failing:
                    _LOG.warning("%s answers again", name)
                    self.failing.discard(name)
                self._stopped.wait(PAUSE_S)


def _why_not(client: ServerClient) -> str | None:
    """Why a server does not answer; None if it does."""
    try:
        client.get("/models")
    except ServerError as error:
        # Some servers have one model and no list. What they refuse, they have received.
        return str(error) if error.status is None or error.status >= 500 else None
    return None
