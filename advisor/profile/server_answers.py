"""A server's responses to questions, several asked at a time.

One that fails is asked once more, behind all others; a server that fails at one question after another is given up.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.config import InferenceConfig
from advisor.records import FinishReason
from advisor.response_cache import Response
from advisor.servers.address import Remote
from advisor.servers.client import Server, ServerError
from advisor.tasks.values import Example, Task
from ensemble.errors import InputError, MemberError

CHAT, COMPLETIONS = "/chat/completions", "/completions"
_HOPELESS = 8
"""Questions that fail one after the other before a server is given up."""
_STOPS = 4
"""Stop strings that are sent at the most: some servers take no more. Responses are cut at all of them here."""
_LONGEST_TOKEN = 1000
"""Characters. Vocabularies have rows of spaces or dashes up to some hundreds."""
_NO_LIKELIHOODS = (
    "a task with options is answered by how likely each of them is, and this server does not say how likely a given "
    "text is ({why})"
)

Ask = Callable[[Server, Example], Response]


@dataclass(frozen=True, slots=True)
class There:
    """A model behind a server; its ``answer`` is an :data:`advisor.profile.job.AnswerFunction`.

    Attributes:
        name: Whose responses they are.
        remote: Where it is.
        chat: Whether prompts go through its chat template, on the server.
    """

    name: str
    remote: Remote
    chat: bool

    @property
    def peak_memory(self) -> int | None:
        """It is the server's, and not known."""
        return None

    def answer(
        self, asked: Mapping[int, Example], task: Task, setting: InferenceConfig
    ) -> Iterator[tuple[int, Response]]:
        """See the protocol."""
        if task.metric == "choice" and self.chat:
            why = f"{CHAT} does not; chat_template=never on its line asks {COMPLETIONS}, which some servers let say it"
            raise MemberError(f"{self.name}: {_NO_LIKELIHOODS.format(why=why)}")

        def ask(server: Server, example: Example) -> Response:
            if task.metric == "choice":
                return likeliest(server, example, task.delimiter)
            answer = asked_to_write(server, example.prompt, task.stop, setting.limit(task), setting, chat=self.chat)
            return read(server, answer, task.stop, setting.limit(task), chat=self.chat)

        try:
            with Server(self.remote) as server:
                yield from self._in_parallel(server, asked, ask)
        except InputError as error:
            raise MemberError(f"{self.name}: {error}") from None

    def _in_parallel(self, server: Server, asked: Mapping[int, Example], ask: Ask) -> Iterator[tuple[int, Response]]:
        workers = _Workers(server, asked, ask, min(self.remote.concurrency, len(asked)))
        left, answered, in_a_row = len(asked), 0, 0
        again: set[int] = set()
        last = time.perf_counter()
        try:
            while left:
                n, found = workers.next()
                if isinstance(found, Response):
                    now = time.perf_counter()
                    # Its share of the time: several are under way at once.
                    found, last = replace(found, seconds=now - last), now
                    answered, in_a_row = answered + 1, 0
                else:
                    # A server that has answered others may refuse a question that is too long for it.
                    in_a_row += found.trouble != "refused" or not answered
                    if found.trouble == "hopeless" or in_a_row == _HOPELESS:
                        raise MemberError(f"{self.name}: {found}") from None
                    if n not in again:
                        again.add(n)
                        workers.ask(n)
                        continue
                    found = Response("", 0, "error", 0.0, str(found), settled=False)
                left -= 1
                yield n, found
        finally:
            workers.stop()


class _Workers:
    """Threads that ask. They are no hindrance to an end: a request may take minutes, and nobody waits for it then."""

    def __init__(self, server: Server, asked: Mapping[int, Example], ask: Ask, count: int) -> None:
        self._server, self._asked, self._ask = server, asked, ask
        self._todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Response | Exception]] = queue.SimpleQueue()
        self._count = count
        for n in asked:
            self.ask(n)
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def ask(self, n: int) -> None:
        """Ask a question, behind all that wait."""
        self._todo.put(n)

    def next(self) -> tuple[int, Response | ServerError]:
        """The next question that was answered, or failed."""
        n, found = self._done.get()
        if isinstance(found, (Response, ServerError)):
            return n, found
        raise found

    def stop(self) -> None:
        """Ask nothing more."""
        try:
            while True:
                self._todo.get_nowait()
        except queue.Empty:
            pass
        for _ in range(self._count):
            self._todo.put(None)

    def _work(self) -> None:
        while (n := self._todo.get()) is not None:
            try:
                self._done.put((n, self._ask(self._server, self._asked[n])))
            except Exception as error:  # noqa: BLE001  # raised again by who waits for it
                self._done.put((n, error))


def read(server: Server, answer: Mapping[str, Any], stop: tuple[str, ...], limit: int, *, chat: bool) -> Response:
    """The response in what :func:`asked_to_write` gave; the arguments are the same.

    Raises:
        ServerError: There is none.
    """
    path = CHAT if chat else COMPLETIONS
    choice = _choice(server, path, answer)
    message = choice.get("message") if chat else choice
    if not isinstance(message, dict):
        raise server.nonsense(path, "has no message")
    text = message.get("content") if chat else message.get("text")
    # A model that reasons may have come to its limit before it said anything.
    if text is None and chat:
        text = ""
    if not isinstance(text, str):
        raise server.nonsense(path, "has no text")
    if len(text) > limit * _LONGEST_TOKEN:
        raise server.nonsense(path, f"has {len(text):,} characters, which {limit:,} tokens cannot be")
    text, reason = _ended(server.hide(text), choice.get("finish_reason"), stop)
    return Response(text, _tokens(answer), reason, 0.0)


def asked_to_write(
    server: Server, prompt: str, stop: tuple[str, ...], limit: int, setting: InferenceConfig, *, chat: bool
) -> Mapping[str, Any]:
    """A server's answer as it came.

    Args:
        server: Whom to ask.
        prompt: The text to continue, or the user's message where it goes through a chat template.
        stop: The text ends before the first of these.
        limit: Tokens after which it is cut off.
        setting: Says how tokens are drawn.
        chat: Whether it goes through a chat template.

    Raises:
        ServerError: There is none.
    """
    # The provider's own newer models refuse the old name, and several servers do not know the new one.
    most = "max_completion_tokens" if chat and server.remote.is_openai else "max_tokens"
    body: dict[str, Any] = {most: limit, "temperature": setting.temperature}
    if stop:
        body["stop"] = list(stop[:_STOPS])
    if setting.temperature:
        body |= {"seed": setting.seed, "top_p": 1}
    body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    return server.post(CHAT if chat else COMPLETIONS, body)


def likeliest(server: Server, example: Example, delimiter: str) -> Response:
    """The likeliest of a question's options, by the log-probabilities that ``/completions`` gives of a prompt.

    That needs ``echo`` and ``logprobs``, which some servers have (vLLM) and others ignore; a server that ignores them
    is found out.

    Raises:
        ServerError: There is no proper answer.
    """
    scores = [_log_probability(server, example.prompt, f"{delimiter}{choice}") for choice in example.choices]
    best = max(range(len(scores)), key=scores.__getitem__)
    if scores[best] == -math.inf:
        raise server.nonsense(COMPLETIONS, "gives every option the probability 0")
    return Response(
        example.choices[best], 0, "eos", 0.0, options=tuple(None if one == -math.inf else one for one in scores)
    )


def _log_probability(server: Server, prompt: str, option: str) -> float:
    text = prompt + option
    # One token more than is looked at: not every server can do with none.
    body = {"prompt": text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    choice = _choice(server, COMPLETIONS, server.post(COMPLETIONS, body))
    given, echoed = choice.get("logprobs"), choice.get("text")
    if not isinstance(given, dict) or not isinstance(echoed, str) or not echoed.startswith(text):
        why = f"its {COMPLETIONS} ignores echo and logprobs"
        raise ServerError(_NO_LIKELIHOODS.format(why=why), "hopeless")
    values, offsets = given.get("token_logprobs"), given.get("text_offset")
    if not isinstance(values, list) or not isinstance(offsets, list) or len(values) != len(offsets):
        raise server.nonsense(COMPLETIONS, "has log-probabilities without places")
    if not all(isinstance(offset, int) for offset in offsets) or sorted(offsets) != offsets:
        raise server.nonsense(COMPLETIONS, "has log-probabilities without places")
    # A token that the prompt's end and the option's beginning share counts for the option.
    ends = [*offsets[1:], len(echoed)]
    own = [
        value
        for value, start, end in zip(values, offsets, ends, strict=True)
        if start < len(text) and (end > len(prompt))
    ]
    # Rounding may put a certain token's a little above 0.
    if not own or not all(isinstance(value, (int, float)) and value < 0.01 for value in own):
        raise server.nonsense(COMPLETIONS, "has no log-probabilities of the option")
    return min(float(sum(own)), 0.0)


def _choice(server: Server, path: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise server.nonsense(path, "has no choices")
    return choices[0]


def _ended(text: str, said: object, stop: tuple[str, ...]) -> tuple[str, FinishReason]:
    """A response before the first stop string, and why it ended there."""
    # Some servers leave the stop string where it is.
    places = [place for one in stop if (place := text.find(one)) >= 0]
    if places:
        return text[: min(places)], "stop"
    if said == "length":
        return text, "length"
    # Where a stop string was taken off, the server does not say so: it may also have come to the text's end.
    return text, "stop" if stop else "eos"


def _tokens(answer: Mapping[str, Any]) -> int:
    usage = answer.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and 0 <= count < 1 << 31 else 0
