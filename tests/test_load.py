"""The load generator: its times, its two modes and its percentiles, without a server and without a clock's verdict."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from benchmarks.load import Sent, arrivals, closed_loop, open_loop, summary


def test_arrivals_are_those_of_a_poisson_process() -> None:
    due = np.array(arrivals(50.0, 20_000, seed=1))
    pauses = np.diff(due, prepend=0.0)
    assert (pauses > 0).all()
    # Exponential pauses: the mean is 1 / rate, and so is the standard deviation.
    assert pauses.mean() == pytest.approx(1 / 50, rel=0.03)
    assert pauses.std() == pytest.approx(1 / 50, rel=0.03)
    # The numbers of arrivals in seconds have their mean as variance.
    counts = np.bincount(due.astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.2)


def test_the_open_loop_sends_on_while_no_request_is_answered() -> None:
    async def run() -> list[Sent]:
        begun, all_begun = 0, asyncio.Event()

        async def ask(number: int, due: float) -> Sent:
            nonlocal begun
            begun += 1
            if begun == 20:
                all_begun.set()
            # With a client that waits for answers, this would wait for ever.
            await all_begun.wait()
            return Sent(due, None, due + number, 1)

        return await asyncio.wait_for(open_loop(ask, arrivals(10_000.0, 20, seed=0)), 60)

    sent = asyncio.run(run())
    assert len(sent) == 20
    assert np.diff([one.due for one in sent]) == pytest.approx(np.diff(arrivals(10_000.0, 20, seed=0)), abs=1e-9)


def test_the_closed_loop_has_one_request_of_each_client_under_way() -> None:
    asked: list[int] = []

    async def run() -> int:
        running = most = 0

        async def ask(number: int, due: float) -> Sent:
            nonlocal running, most
            asked.append(number)
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return Sent(due, None, due, 1)

        await closed_loop(ask, 10, 3)
        return most

    assert asyncio.run(run()) == 3
    assert sorted(asked) == list(range(10))


def test_a_round_is_summed_up_without_its_lost_requests() -> None:
    sent = [Sent(float(n), n + 0.1, n + 0.1 * n, 5) for n in range(1, 101)]
    figures = summary([*sent, Sent(0.0, None, 500.0, None)])
    assert figures["p50_ms"] == pytest.approx(5050)
    assert figures["p95_ms"] == pytest.approx(9505)
    assert figures["p99_ms"] == pytest.approx(9901)
    assert figures["first_p50_ms"] == pytest.approx(100)
    assert figures["p95_over_p50"] == pytest.approx(9505 / 5050)
    # From 1.0, when the first one was due, to 110.0, when the last one ended.
    assert figures["requests_per_second"] == pytest.approx(100 / 109)
    assert figures["tokens_per_second"] == pytest.approx(500 / 109)
    assert figures["in_flight"] == pytest.approx(505 / 109)
