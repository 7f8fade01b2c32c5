"""Work in the background, and trying again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from functools import partial

import pytest

from ensemble.common.background import Threads, in_background
from ensemble.servers import client

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="")


def test_work_hands_over_its_result_and_runs_in_the_context_of_its_caller() -> None:
    VARIABLE.set("of the caller")
    assert in_background(lambda: (VARIABLE.get(), threading.current_thread().name), "helper").result(5) == (
        "of the caller",
        "helper",
    )
    with pytest.raises(KeyError, match="missing"):
        in_background(lambda: {}["missing"], "helper").result(5)


def test_a_program_ends_without_waiting_for_work() -> None:
    code = (
        "import time; from ensemble.common.background import in_background; in_background(lambda: time.sleep(60), 'x')"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0


def test_threads_do_so_many_pieces_of_work_at_a_time_and_none_that_is_cancelled_before() -> None:
    threads, ended, running = Threads(2, "helpers"), threading.Event(), []

    def work(number: int) -> int:
        running.append(number)
        assert ended.wait(5)
        return number

    futures = [threads.start(partial(work, number)) for number in range(5)]
    assert futures[3].cancel()
    while len(running) < 2:
        time.sleep(0.001)
    assert sorted(running) == [0, 1] and not futures[0].cancel()
    ended.set()
    assert [futures[number].result(5) for number in (0, 1, 2, 4)] == [0, 1, 2, 4]
    assert 3 not in running
    threads.close()


def test_an_error_that_stays_is_raised_at_once_and_a_pause_that_it_names_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    errors = [OSError("busy"), OSError("busy"), ValueError("wrong")]

    def call() -> None:
        raise errors.pop(0)

    with pytest.raises(ValueError, match="wrong"):
        client.retried(
            call,
            lambda error: isinstance(error, OSError),
            retries=5,
            pause_of=lambda _: 7.0 if len(errors) == 2 else None,
        )
    assert pauses[0] == 7.0 and 0.75 <= pauses[1] <= 1.0
