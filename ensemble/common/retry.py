"""Trying again after a fault that may be over soon: one rule for the pauses between the tries."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, stop_before_delay

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0


def retried(
    call: Callable[[], T],
    may_pass: Callable[[BaseException], bool],
    *,
    retries: int | None = None,
    patience: float = 0.0,
    pause_of: Callable[[BaseException], float | None] = lambda _: None,
) -> T:
    """Call a function again while it raises errors that may be over soon; the last error is raised.

    Args:
        call: The function.
        may_pass: Whether another try may succeed after an error.
        retries: Tries after the first one; None for as many as start within ``patience``.
        patience: Seconds since the first try.
        pause_of: The seconds to wait that an error names; None for a pause that doubles each time.
    """

    def pause(state: RetryCallState) -> float:
        error = None if state.outcome is None else state.outcome.exception()
        if error is not None and (asked := pause_of(error)) is not None:
            return asked
        # At random, so that requests that failed together do not come back together.
        return min(FIRST_PAUSE_S * 2.0 ** (state.attempt_number - 1), LONGEST_PAUSE_S) * (1 - 0.25 * random.random())

    stop = stop_before_delay(patience) if retries is None else stop_after_attempt(1 + retries)
    return Retrying(retry=retry_if_exception(may_pass), stop=stop, wait=pause, reraise=True)(call)
