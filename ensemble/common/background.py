"""Work in the background: threads that hand over their result or error, and do not keep the program from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Do some work, which cannot be cancelled, in a new thread; return its future result or exception."""
    threads = Threads(1, name)
    future = threads.start(work)
    threads.close()
    return future


class Threads:
    """At most ``most`` threads, at least 1, for work that waits, in a copy of the context of the caller."""

    def __init__(self, most: int, name: str) -> None:
        self.most, self._name, self._started = most, name, 0
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle, self._lock = threading.Semaphore(0), threading.Lock()

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Let a thread do some work. It can be cancelled until it begins, and ends with the process at the latest."""
        future: Future[T] = Future()
        context = copy_context()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = context.run(work)
            except BaseException as error:  # noqa: BLE001  # raised again where the result is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting.put(run)
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._started < self.most:
                self._started += 1
                # Daemon threads, not an executor's: Python would wait for those at its exit, and requests take minutes.
                threading.Thread(target=_work, args=(self._waiting, self._idle), name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """End the threads when all work is done."""
        for _ in range(self._started):
            self._waiting.put(None)


def _work(waiting: queue.SimpleQueue[Callable[[], None] | None], idle: threading.Semaphore) -> None:
    while (run := waiting.get()) is not None:
        run()
        # Nothing of the work stays in memory while the thread waits.
        del run
        idle.release()
