"""A server's responses to the questions of a task, with several requests at a time.

A question that fails is sent once more, after all others. After several failures in a row the server is given up. Where
a provider answers that it accepts no more requests now, fewer are sent at a time.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, cast

from advisor.config import InferenceConfig
from advisor.profile.asked_model import ServerModel
from advisor.response_cache import Response
from advisor.servers.completions import CHAT, COMPLETIONS, NO_LOGPROBS, likeliest_choice, likeliest_option
from advisor.tasks.task import Example, Task
from ensemble.common.background import in_background
from ensemble.errors import InputError, MemberError
from ensemble.servers.client import ServerError

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings
    from ensemble.models.server_member import ServerMember

_MAX_FAILURES = 8
"""Number of failures in a row after which a server is given up."""
_TOO_MANY = 429
"""HTTP status of a server that accepts no more requests now."""

Ask = Callable[[Example], Response]


def server_answers(
    name: str,
    connect: Callable[[], ServerModel],
    questions: Mapping[int, Example],
    task: Task,
    inference: InferenceConfig,
) -> Generator[tuple[int, Response], None, None]:
    """Answer questions with a model behind a server.

    Args:
        name: The name for messages.
        connect: Makes the model.
        questions: The questions by number.
        task: The task of the questions.
        inference: How to generate.

    Yields:
        The number and the response of each question when it is finished; a failed question has an error.

    Raises:
        MemberError: The model cannot be used, or the server is given up.
    """
    try:
        with closing(connect()) as model:
            ask = _option_of(model, task) if task.metric == "choice" else _text_of(model, inference.settings(task))
            yield from _answer_in_parallel(model, questions, ask)
    except InputError as error:
        raise MemberError(error.without(name), of=name) from None


def _text_of(model: ServerModel, settings: Settings) -> Ask:
    # Now: several threads would wait for it, and each would try again after a failure.
    model.member()
    return lambda example: model.generate(example.model_input, settings)


def _option_of(model: ServerModel, task: Task) -> Ask:
    """What asks for the likeliest option of a question."""
    if model.chat:
        reason = f"{CHAT} never does; with chat_template=never on its line {COMPLETIONS} is used, which may do so"
        raise MemberError(NO_LOGPROBS.format(reason=reason), of=model.name)
    if (member := model.member()) is None:
        return lambda example: likeliest_choice(model.client, example, task)
    from ensemble import Ensemble

    client = cast("ServerMember", member).client
    if not client.limits.chosen:
        raise MemberError(NO_LOGPROBS.format(reason="it does not give those of chosen token ids"), of=model.name)
    # With k=1 this needs nothing but the tokenizer and the vocabulary.
    ensemble = Ensemble([member], k=1)

    def ask(example: Example) -> Response:
        with model.encoding:
            question = ensemble.encode_options(example.model_input, task.continuations(example))
        return likeliest_option(client, question, example, task)

    return ask


def _answer_in_parallel(
    model: ServerModel, questions: Mapping[int, Example], ask: Ask
) -> Iterator[tuple[int, Response]]:
    # Threads and not asyncio: the runners and the cache around this are synchronous.
    workers = _Workers(questions, ask, min(model.client.address.concurrency, len(questions)))
    unanswered, answered, failures_in_a_row = len(questions), 0, 0
    retried: set[int] = set()
    try:
        while unanswered:
            n, result = workers.next_result()
            if isinstance(result, Response):
                response, answered, failures_in_a_row = result, answered + 1, 0
            elif result.status == _TOO_MANY and workers.shrink(n):
                continue
            else:
                # A server that has answered other questions may refuse one that is too long for it.
                failures_in_a_row += result.failure != "refused" or not answered
                if result.failure == "fatal" or failures_in_a_row == _MAX_FAILURES:
                    raise MemberError(str(result), of=model.name) from None
                if n not in retried:
                    retried.add(n)
                    # After all others, when a busy server may have recovered.
                    workers.add(n)
                    continue
                response = Response("", 0, "error", 0.0, str(result), settled=False)
            unanswered -= 1
            yield n, response
    finally:
        workers.stop()


class _Workers:
    """Threads that send the questions, each one after the other."""

    def __init__(self, questions: Mapping[int, Example], ask: Ask, threads: int) -> None:
        self._questions, self._ask, self._threads = questions, ask, threads
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[int, float, Response | Exception]] = queue.SimpleQueue()
        self._begun, self._shrunk = 0.0, 0.0
        for n in questions:
            self.add(n)
        for _ in range(threads):
            in_background(self._work, "requests to a server")

    def add(self, n: int) -> None:
        """Send a question after all that wait."""
        self._waiting.put(n)

    def next_result(self) -> tuple[int, Response | ServerError]:
        """Wait for the next question that is answered or failed."""
        n, self._begun, result = self._results.get()
        if isinstance(result, (Response, ServerError)):
            return n, result
        raise result

    def shrink(self, n: int) -> bool:
        """Send question n again, the last one that was returned, and half as many at a time; False if one is sent."""
        # What was sent before the last change says nothing of the present number.
        if self._begun >= self._shrunk:
            if self._threads == 1:
                return False
            ended = self._threads // 2
            self._threads, self._shrunk = self._threads - ended, time.monotonic()
            self._end(ended)
        self.add(n)
        return True

    def stop(self) -> None:
        """Send no more questions."""
        self._end(self._threads)

    def _end(self, threads: int) -> None:
        """End some threads, before they take another question."""
        # Each thread takes one end mark from the queue and ends. The marks go before the questions that wait.
        waiting: list[int | None] = []
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.append(self._waiting.get_nowait())
        for n in (*[None] * threads, *waiting):
            self._waiting.put(n)

    def _work(self) -> None:
        while (n := self._waiting.get()) is not None:
            begun = time.monotonic()
            try:
                self._results.put((n, begun, self._ask(self._questions[n])))
            except InputError as error:
                # A question that a tokenizer cannot read fails alone, as one that the server refuses.
                self._results.put((n, begun, ServerError(str(error), "refused")))
            except Exception as error:  # noqa: BLE001  # raised again by next_result, in the thread that waits for it
                self._results.put((n, begun, error))
