"""Candidates behind servers are profiled together: all servers are busy, none gets more than it accepts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from servers import Answer, Raw, as_json, completion, models, raw_server

from advisor.models.loaded_models import LocalJobRunner
from advisor.models.response_cache import Response

if TYPE_CHECKING:
    from pools import Place

    from advisor.models.job import Job

pytest_plugins = ["pools"]
pytestmark = pytest.mark.usefixtures("no_pauses")

PROFILE = ("profile", "--pool", "models.txt", "--task", "task.yaml")
Body = dict[str, Any]


def is_test(path: str, body: Body) -> bool:
    """Whether a request only sees whether the model answers."""
    return path.endswith("/models") or body.get("prompt") == "Hello"


def well(path: str, _: Body) -> Answer:
    return models("m") if path.endswith("/models") else completion("7")


def test_candidates_of_different_servers_are_asked_at_the_same_time(place: Place, raw: Raw) -> None:
    both = threading.Barrier(2, timeout=20)

    def meet(path: str, body: Body) -> Answer:
        if "What is 1 " in body.get("prompt", ""):
            both.wait()
        return well(path, body)

    with raw_server() as other:
        raw.answer = other.answer = meet
        place.task()
        place.pool(*(f"openai:{each.url}#m name=m{n} chat_template=never" for n, each in enumerate((raw, other))))
        ran = place.advisor(*PROFILE)
    assert ran.status == 0
    assert "could not be answered" not in ran.err


def test_candidates_of_one_server_are_asked_one_after_the_other(place: Place, raw: Raw) -> None:
    raw.answer = well
    place.task()
    place.pool(*(f"openai:{raw.url}#{name} name={name} chat_template=never" for name in ("m", "other")))
    assert place.advisor(*PROFILE).status == 0
    asked = [body["model"] for path, _, body in raw.asked if not is_test(path, body)]
    assert asked == ["m"] * 6 + ["other"] * 6


def test_a_server_that_accepts_fewer_requests_gets_fewer_and_no_question_is_lost(place: Place, raw: Raw) -> None:
    lock, running = threading.Lock(), [0]

    def few(path: str, body: Body) -> Answer:
        if is_test(path, body):
            return well(path, body)
        with lock:
            running[0] += 1
            many = running[0] > 2
        # As long as others may come meanwhile.
        threading.Event().wait(0.02)
        with lock:
            running[0] -= 1
        return as_json({"error": "busy"}, 429) if many else well(path, body)

    raw.answer = few
    place.task([{"question": f"What is {n}?", "answer": "7"} for n in range(120)])
    place.pool(f"openai:{raw.url}#m chat_template=never")
    ran = place.advisor(*PROFILE)
    assert ran.status == 0
    assert "could not be answered" not in ran.err


def test_what_has_arrived_is_stored_when_the_run_is_interrupted(tmp_path: Path) -> None:
    class FakeJob:
        """What the engine uses of a job; the user interrupts while the first response is shown."""

        name, server = "m", "http://host/v1"
        questions = dict.fromkeys(range(4))

        def __init__(self) -> None:
            self.stored: list[int] = []
            self.all_arrived, self.ended = threading.Event(), threading.Event()

        def start(self) -> None:
            pass

        async def responses(self) -> AsyncIterator[tuple[int, Response]]:
            try:
                for n in range(3):
                    yield n, Response("7", 1, "eos", 0.0)
                self.all_arrived.set()
                await asyncio.sleep(60)
            finally:
                self.ended.set()

        def add(self, number: int, _: Response) -> None:
            self.stored.append(number)
            if len(self.stored) == 1:
                assert self.all_arrived.wait(20)
                raise KeyboardInterrupt

    job: Any = FakeJob()
    jobs: list[Job] = [job]
    with pytest.raises(KeyboardInterrupt):
        list(LocalJobRunner(tmp_path).run(jobs))
    assert job.stored == [0, 1, 2]
    assert job.ended.wait(20)
