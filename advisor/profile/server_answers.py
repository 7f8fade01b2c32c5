"""A server's responses to the questions of a task, with several requests at a time.

A question that fails is sent once more, after all others. After several failures in a row the server is given up. Where
a provider answers that it accepts no more requests now, fewer are sent at a time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from advisor.config import InferenceConfig
from advisor.response_cache import Response
from advisor.servers.completions import (
    CHAT,
    COMPLETIONS,
    NO_LOGPROBS,
    generate,
    likeliest_choice,
    likeliest_option,
)
from advisor.tasks.task import Example, Task
from ensemble.common.background import in_background
from ensemble.errors import InputError, MemberError
from ensemble.models.spec import Dialogue
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import ServerClient, ServerError

if TYPE_CHECKING:
    from ensemble.distributed.remote_member import RemoteMember
    from ensemble.models.member import Member
    from ensemble.score.choices import ChoiceQuestion

_MAX_FAILURES = 8
"""Number of failures in a row after which a server is given up."""
_TOO_MANY = 429
"""HTTP status of a server that accepts no more requests now."""

Ask = Callable[[Example], Response]


class ServerAnswerer:
    """A model behind a server that answers questions; see :data:`advisor.profile.job.AnswerFunction`.

    Args:
        name: The candidate's name.
        address: The server and the model.
        chat: Whether prompts go through the model's chat template, on the server.
        member: Loads the tokenizer of a model that can be decoded with others. It is asked as the set will ask it: with
            token ids. None for a model that gives whole texts only.
    """

    def __init__(
        self, name: str, address: ServerAddress, *, chat: bool, member: Callable[[], Member] | None = None
    ) -> None:
        self.name = name
        self._address = address
        self._chat = chat
        self._member = member

    def answer(
        self, asked: Mapping[int, Example], task: Task, inference: InferenceConfig
    ) -> Generator[tuple[int, Response], None, None]:
        """Answer questions; see :data:`advisor.profile.job.AnswerFunction`."""
        if task.metric == "choice" and self._chat:
            reason = f"{CHAT} never does; with chat_template=never on its line {COMPLETIONS} is used, which may do so"
            raise MemberError(NO_LOGPROBS.format(reason=reason), of=self.name)
        try:
            if task.metric == "choice" and self._member is not None:
                yield from self._choose_in_parallel(asked, task, self._member())
                return
            encode = None if self._member is None else _Encoder(self._member())
            with ServerClient(self._address) as server:

                def ask(example: Example) -> Response:
                    if task.metric == "choice":
                        return likeliest_choice(server, example, task)
                    return generate(
                        server,
                        self._text(example) if encode is None else encode.prompt(example),
                        task.stop,
                        inference.limit(task),
                        chat=self._chat,
                        temperature=inference.temperature,
                        seed=inference.seed,
                    )[0]

                yield from self._answer_in_parallel(asked, ask)
        except InputError as error:
            raise MemberError(error.without(self.name), of=self.name) from None

    def _text(self, example: Example) -> str | list[dict[str, str]]:
        """What the server gets: the prompt, or in a later turn the conversation."""
        conversation = example.model_input
        if not isinstance(conversation, Dialogue):
            return example.prompt
        return conversation.messages if self._chat else conversation.text

    def _choose_in_parallel(
        self, questions: Mapping[int, Example], task: Task, member: Member
    ) -> Iterator[tuple[int, Response]]:
        encode, client = _Encoder(member), cast("RemoteMember", member).client
        if not client.limits.chosen:
            reason = "it does not give those of chosen token ids"
            raise MemberError(NO_LOGPROBS.format(reason=reason), of=self.name)
        yield from self._answer_in_parallel(
            questions, lambda example: likeliest_option(client, encode.options(example, task), example, task)
        )

    def _answer_in_parallel(self, questions: Mapping[int, Example], ask: Ask) -> Iterator[tuple[int, Response]]:
        # Threads and not asyncio: the runners and the cache around this are synchronous.
        workers = _Workers(questions, ask, min(self._address.concurrency, len(questions)))
        unanswered, answered, failures_in_a_row = len(questions), 0, 0
        retried: set[int] = set()
        last = time.perf_counter()
        try:
            while unanswered:
                n, result = workers.next_result()
                if isinstance(result, Response):
                    now = time.perf_counter()
                    # The time since the last response, not that of the request: several requests run at a time.
                    response, last = replace(result, seconds=now - last), now
                    answered, failures_in_a_row = answered + 1, 0
                elif result.status == _TOO_MANY and workers.shrink(n):
                    continue
                else:
                    # A server that has answered other questions may refuse one that is too long for it.
                    failures_in_a_row += result.failure != "refused" or not answered
                    if result.failure == "fatal" or failures_in_a_row == _MAX_FAILURES:
                        raise MemberError(str(result), of=self.name) from None
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


class _Encoder:
    """Encodes questions with a member's tokenizer, for several threads."""

    def __init__(self, member: Member) -> None:
        from ensemble import Ensemble

        # With k=1 this needs nothing but the tokenizer and the vocabulary.
        self._ensemble = Ensemble([member], k=1)
        self._lock = threading.Lock()

    def prompt(self, example: Example) -> list[int]:
        """The ids of a question's prompt."""
        # Tokenizers keep settings between calls, so they are not for two threads at a time.
        with self._lock, _as_refusal():
            return self._ensemble.encode(example.model_input)[0]

    def options(self, example: Example, task: Task) -> ChoiceQuestion:
        """A question of a choice task with its options."""
        with self._lock, _as_refusal():
            # The default method scores tokens.
            question = self._ensemble.encode_options(example.model_input, task.continuations(example))
            return cast("ChoiceQuestion", question)


@contextlib.contextmanager
def _as_refusal() -> Iterator[None]:
    """A question that a tokenizer cannot read fails alone, as one that the server refuses."""
    try:
        yield
    except InputError as error:
        raise ServerError(str(error), "refused") from None


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
            except Exception as error:  # noqa: BLE001  # raised again by next_result, in the thread that waits for it
                self._results.put((n, begun, error))
