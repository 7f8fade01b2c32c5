"""Work in the background: threads that hand over their result or error, and do not keep the program from ending."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Do some work in a new thread; return its future result, or the exception that it ended with.

    The thread runs in a copy of this context, so that it belongs to the request that is traced.

    Args:
        work: It cannot be cancelled, and ends with the process at the latest.
        name: The name of the thread.
    """
    future: Future[T] = Future()
    # Work that has begun is not cancelled: its future ends when the thread ends.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # raised again where the result is awaited
            future.set_exception(error)
        else:
            future.set_result(result)

    # A daemon thread, not an executor's: Python would wait for those at its exit, and a request can take minutes.
    threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True).start()
    return future


def call_when_done(future: Future[T], callback: Callable[[Future[T]], None]) -> None:
    """Call a function in the running event loop when work ends, unless the loop has ended before."""
    loop = asyncio.get_running_loop()

    def tell(done: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(callback, done)

    future.add_done_callback(tell)
