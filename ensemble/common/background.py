"""Work in the background: threads that hand over their result or error, and do not keep the program from ending."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

T = TypeVar("T")
_Jobs: TypeAlias = "SimpleQueue[tuple[str, Callable[[], None]]]"
_MAX_IDLE = 64
_idle: deque[_Jobs] = deque(maxlen=_MAX_IDLE)
"""Where threads that have nothing to do wait for work. To begin one costs as much as a request to a Ray worker, because
Ray sets up each thread."""
if hasattr(os, "register_at_fork"):  # all but Windows
    # The threads of a process are not those of its fork.
    os.register_at_fork(after_in_child=_idle.clear)


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Do some work in another thread; return its future result, or the exception that it ended with.

    The work runs in a copy of this context, so that it belongs to the request that is traced.

    Args:
        work: It cannot be cancelled, and ends with the process at the latest.
        name: The name of the thread meanwhile.
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

    job = partial(copy_context().run, run)
    try:
        _idle.pop().put((name, job))
    except IndexError:
        # A daemon thread, not an executor's: Python would wait for those at its exit, and a request can take minutes.
        threading.Thread(target=_work, args=(name, job), daemon=True).start()
    return future


def _work(name: str, job: Callable[[], None]) -> None:
    """Do jobs, one after the other."""
    jobs: _Jobs = SimpleQueue()
    while True:
        threading.current_thread().name = name
        job()
        # What it holds is not needed any more.
        del job
        if len(_idle) == _MAX_IDLE:
            return
        _idle.append(jobs)
        name, job = jobs.get()


def call_when_done(future: Future[T], callback: Callable[[Future[T]], None]) -> None:
    """Call a function in the running event loop when work ends, unless the loop has ended before."""
    loop = asyncio.get_running_loop()

    def tell(done: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(callback, done)

    future.add_done_callback(tell)
