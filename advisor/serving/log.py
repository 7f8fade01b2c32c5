"""Log lines that clients can cause: few, short, and without characters that control a terminal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOGGERS = ("uvicorn.error", "asyncio", "advisor.serving.engine")
_LINES = 20
_SECONDS = 60.0
_LENGTH = 300


class LogLimit(logging.Filter):
    """Lets some records pass in every period; the next one says how many were left out.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._start = clock()
        self._lines = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; it becomes one short line."""
        # --debug is for a developer, who needs the tracebacks.
        if logging.getLogger("advisor").isEnabledFor(logging.DEBUG):
            return True
        if self._clock() - self._start >= _SECONDS:
            self._start, self._lines = self._clock(), 0
        self._lines += 1
        if self._lines > _LINES:
            self._left_out += 1
            return False
        text = record.getMessage().strip()
        if record.exc_info and (error := record.exc_info[1]) is not None:
            text = f"{text}: {type(error).__name__}: {error}"
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_LENGTH])
        if self._left_out:
            text, self._left_out = f"{text} ({self._left_out} more lines were left out)", 0
        record.msg, record.args, record.exc_info, record.exc_text = text, (), None, None
        return True


@contextmanager
def limited_logs() -> Iterator[None]:
    """Limit the log of the server while it runs."""
    limit = LogLimit()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(limit)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(limit)
