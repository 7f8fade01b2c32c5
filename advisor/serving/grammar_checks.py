"""Grammars of clients are checked in processes for them alone, so that a hostile one keeps only other grammars waiting.

Each is first tried for a quarter of a second; what takes longer goes on in a second process, with its own queue.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from advisor.serving.request import busy, unavailable
from ensemble.common.extras import is_installed
from ensemble.common.grammar import Grammar
from ensemble.common.limits import LimitedProcess, LimitExceededError
from ensemble.errors import InputError

_QUICK_SECONDS = 0.25
_SECONDS = 1.0
_MOST_BYTES = 2**22
"""Memory of a grammar: a list of 5,000 texts takes less. All texts that run may have one each."""
_MOST_WAITING = 32
"""Grammars that wait for a process; a client with one more gets status 429."""
_REMEMBERED = 4096
"""Results that are remembered; each takes less than a kilobyte, because texts of grammars are not kept."""


class _Lane:
    """A process that checks a grammar at a time."""

    def __init__(self, seconds: float, refusing: Callable[[], str]) -> None:
        self._seconds, self._refusing = seconds, refusing
        self._process = LimitedProcess(2**29, imports=("llguidance", "ensemble.common.grammar"))
        self._thread = ThreadPoolExecutor(1, "grammar checks")
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def check(self, grammar: Grammar) -> Grammar:
        """The grammar with its size; see :meth:`ensemble.common.grammar.Grammar.checked`."""
        if self._waiting >= _MOST_WAITING:
            raise busy("too many grammars wait to be checked")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            # At the end of the server, those that wait must not take their time one after the other.
            if reason := self._refusing():
                raise unavailable(reason)
            call = partial(grammar.checked, self._process, self._seconds)
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except asyncio.CancelledError:
            self._process.interrupt()
            raise
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the process."""
        self._process.interrupt()
        self._thread.shutdown(wait=True)
        self._process.close()


class GrammarChecks:
    """Checks the grammars of clients, and remembers the results; `refusing` says why the server refuses requests."""

    def __init__(self, refusing: Callable[[], str]) -> None:
        self._lanes = (_Lane(_QUICK_SECONDS, refusing), _Lane(_SECONDS, refusing))
        # By the hash of the grammar: its size, or why it is refused.
        self._found: OrderedDict[bytes, int | str] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[int | str]] = {}
        self._clients: Counter[asyncio.Task[int | str]] = Counter()

    async def check(self, grammar: Grammar) -> Grammar:
        """The grammar with its size. A check that no client waits for any more is given up."""
        if not is_installed("llguidance"):
            raise InputError("this server follows no grammars and schemas, because llguidance is not installed there")
        key = hashlib.sha256(grammar.text.encode()).digest()
        found = self._found.get(key)
        if found is None:
            found = await self._running_check(key, grammar)
        else:
            self._found.move_to_end(key)
        if isinstance(found, str):
            raise InputError(found)
        return replace(grammar, size=found)

    def close(self) -> None:
        """End the processes."""
        for lane in self._lanes:
            lane.close()

    async def _running_check(self, key: bytes, grammar: Grammar) -> int | str:
        """What is found by the check that all clients with this grammar wait for."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(self._find(key, grammar))
        self._clients[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._clients[task] -= 1
            if not self._clients[task]:
                del self._clients[task], self._running[key]
                task.cancel()

    async def _find(self, key: bytes, grammar: Grammar) -> int | str:
        quick, slow = self._lanes
        found: int | str
        try:
            try:
                found = (await quick.check(grammar)).size
            except LimitExceededError:
                found = (await slow.check(grammar)).size
            if found > _MOST_BYTES:
                found = f"it takes more than {_MOST_BYTES / 2**20:g} MiB of memory"
        except InputError as error:
            found = str(error)
        self._found[key] = found
        if len(self._found) > _REMEMBERED:
            self._found.popitem(last=False)
        return found
