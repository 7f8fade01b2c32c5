"""The thread that runs the decoder: all requests share its batch, and each gets its texts in a stream of events.

A second thread tokenizes prompts, and a third one builds grammars, so that no text stands still meanwhile. Models are
used by the first thread only, and the tokenizers of prompts by the second one only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from advisor.models.ask import NO_TOOLS
from advisor.models.completions import AskedPrompt, ToolChat
from advisor.serving.handler import RequestHandler
from advisor.serving.metrics import Metrics
from advisor.serving.protocol import RequestLimits
from advisor.serving.request import (
    Event,
    GenerationRequest,
    Piece,
    RequestError,
    busy,
    model_error,
    prompt_error,
    unavailable,
)
from advisor.serving.responses import RunningText
from ensemble.common.background import Threads
from ensemble.decode.sequences import Pieces
from ensemble.errors import MemberError, UniteError, first_line
from ensemble.models.prompts import Dialogue, Sourced
from ensemble.step.grammar import GrammarState

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.common.grammar import Grammar
    from ensemble.decode.decoder import Decoder
    from ensemble.decode.settings import Batch
    from ensemble.models.member import Member

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_Add = tuple[Literal["add"], "GenerationRequest", list[list[list[int]]]]
_STOP_S = 20.0
"""Longest wait for the current step at the end."""
_RETURN_S = 1.0
"""Shortest time between two returns of free memory to the system: each takes some milliseconds."""
_USUAL_TOKENS = 4096
"""Tokens of a prompt, on average over all texts: more than few-shot prompts have."""


@dataclass(slots=True)
class _Work:
    steps: Generator[None, None, Any]  # a generator whose value is the result
    texts: int  # how many texts it counts as
    tokens: int  # tokens of its prompts
    future: asyncio.Future[Any]  # gets the result, and belongs to the event loop


class SharedDecoder(RequestHandler):
    """Decodes the texts of all requests together; see :class:`RequestHandler`."""

    DECODES = True

    def __init__(self, ensemble: Ensemble, batch: Batch, limits: RequestLimits, metrics: Metrics) -> None:
        super().__init__(limits, metrics)
        self._ensemble = ensemble
        self._batch = batch
        self._decoder: Decoder = ensemble.decoder(batch)
        self._inbox: queue.SimpleQueue[
            _Add | tuple[Literal["cancel"], GenerationRequest] | tuple[Literal["work"], _Work] | None
        ] = queue.SimpleQueue()
        self._tokenizer, self._builder = Threads(1, "tokenizer"), Threads(1, "grammars")
        self._texts: dict[int, RunningText] = {}
        self._works: list[_Work] = []
        self._next_number = 0
        self._returned = 0.0
        self._most_tokens = limits.texts * _USUAL_TOKENS if limits.tokens is None else limits.tokens
        self._most_characters = self._characters_that_fit()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)

    # Called by the event loop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """See :class:`RequestHandler`."""
        self._loop = loop
        self._thread.start()

    @property
    def members(self) -> Sequence[Member]:
        """The models, the primary first. Only work may use them, except for what is read and never changes."""
        return self._ensemble.members

    @property
    def batch_size(self) -> int:
        """Texts that are decoded at a time."""
        return self._batch.size

    def submit(self, request: GenerationRequest) -> None:
        """See :class:`RequestHandler`."""
        # Counted here, by the event loop: while a long prompt is tokenized, those of other requests wait.
        for prompt in request.prompts:
            self._check_characters(_characters(prompt))
        self._count_in(request.texts)
        request.numbers = range(self._next_number, self._next_number + request.texts)
        self._next_number += request.texts
        self._tokenizer.start(partial(self._read_prompts, request))

    def work(self, steps: Generator[None, None, T], texts: int = 1, tokens: int = 0) -> asyncio.Future[T]:
        """Run a generator, which may use the models, in the thread, with a step of it after each of the decoder's."""
        # Before it is counted, because a request that is refused must leave no count.
        self._check_tokens(tokens)
        self._count_in(texts)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._inbox.put(("work", _Work(steps, texts, tokens, future)))
        return future

    async def tokenize(self, text: str, function: Callable[[str], T]) -> T:
        """Call a function, which tokenizes a text, in the thread of the tokenizers; see :meth:`work`."""
        self._check_characters(len(text))
        self._count_in(1)
        try:
            return await asyncio.wrap_future(self._tokenizer.start(partial(function, text)))
        except Exception as error:  # noqa: BLE001  # tokenizers can raise any error at a client's text
            raise prompt_error(error) from None
        finally:
            self._count_out(1)

    def _check_characters(self, characters: int) -> None:
        """Check that a prompt of so many characters may fit into the contexts."""
        if self._most_characters is not None and characters > self._most_characters:
            reason = f"a prompt has {characters} characters; the models' contexts hold at most {self._most_characters}"
            raise RequestError(400, reason, code="context_length_exceeded")

    def _check_tokens(self, tokens: int) -> None:
        """Check the tokens in the prompts of one request."""
        if tokens > self._most_tokens:
            raise RequestError(
                400,
                f"the prompts of this request have more than {self._most_tokens} tokens together, which is this "
                "server's limit; send fewer prompts at a time",
            )

    def _characters_that_fit(self) -> int | None:
        """The characters of a prompt that every member could read if it had the longest tokens only; None: no limit."""
        # At least 32 for a token: special tokens are not among the representatives, and some tokenizers remove spaces.
        most = [max(32, *map(len, m.vocabulary.representatives)) * m.context for m in self.members if m.context]
        return min(most, default=None)

    def cancel(self, request: GenerationRequest) -> None:
        """See :class:`RequestHandler`."""
        # The message may be read before the prompts are: then the mark keeps the texts from being added.
        request.cancelled = True
        self._inbox.put(("cancel", request))

    def stop(self) -> None:
        """See :class:`RequestHandler`."""
        self.refuse()
        self._tokenizer.close()
        self._builder.close()
        self._inbox.put(None)
        if self._thread.is_alive():
            # A step waits for minutes where the server of a member is away; the thread ends with the process.
            self._thread.join(_STOP_S)

    # Called by the thread of the tokenizers

    def _read_prompts(self, request: GenerationRequest) -> None:
        """Tokenize a request's prompts, and give them to the other thread."""
        try:
            prompts = [] if request.cancelled else self._encode(request)
        except Exception as error:  # noqa: BLE001  # chat templates and tokenizers can raise any error at a client's text
            # The texts were counted when the request was accepted, before its prompts were read.
            self._count_out(request.texts)
            self._post([(request, prompt_error(error))])
            return
        add: _Add = ("add", request, prompts)
        if request.settings.grammar is None:
            self._inbox.put(add)
        else:
            self._builder.start(partial(self._build_grammar, request, request.settings.grammar, add))

    # Called by the thread of the grammars

    def _build_grammar(self, request: GenerationRequest, grammar: Grammar, add: _Add) -> None:
        """Build what follows a request's grammar, and give its prompts to the thread of the decoder."""
        try:
            if not request.cancelled:
                # What takes its time is kept, and the decoder finds it.
                GrammarState(grammar, [member.vocabulary for member in self.members])
        except Exception as error:  # noqa: BLE001  # a library reads a client's text
            self._count_out(request.texts)
            self._post([(request, prompt_error(error))])
        else:
            self._inbox.put(add)

    def _encode(self, request: GenerationRequest) -> list[list[list[int]]]:
        tokens = 0
        prompts: list[list[list[int]]] = []
        for prompt in request.prompts:
            if isinstance(prompt, ToolChat):
                raise RequestError(400, f"tools: {NO_TOOLS}; leave it out", param="tools", code="unsupported_parameter")
            ids = [list(prompt)] if isinstance(prompt, tuple) else self._ensemble.encode(prompt)
            prompts.append(ids)
            tokens += request.copies * _length(ids)
            # Inside the loop: a request that is refused must not take the time to be tokenized as a whole.
            self._check_tokens(tokens)
        return prompts

    # Called by the thread of the decoder

    def _run(self) -> None:
        from ensemble.models.member import set_fastest_threads

        try:
            if not self._batch.deterministic:
                set_fastest_threads(self.members)
            while self._receive():
                # The decoder has no text where all new prompts were wrong.
                if not self._decoder.done:
                    self._step()
                self._step_works()
        except Exception as error:  # noqa: BLE001  # clients that wait must get an answer, whatever the error is
            _LOG.exception("the decoder's thread ended")
            self.refuse(f"the decoder ended ({first_line(error)}); start the server again")
            self._fail(list(self._texts), unavailable(self.refusing))
            for work in tuple(self._works):
                self._end(work, None, unavailable(self.refusing))
            self._answer_late()

    def _answer_late(self) -> None:
        """Refuse what was accepted before the decoder ended and arrives after it, until the server stops."""
        while (command := self._inbox.get()) is not None:
            match command:
                case "add", request, _:
                    self._count_out(request.texts)
                    self._post([(request, unavailable(self.refusing))])
                case "work", work:
                    self._works.append(work)
                    self._end(work, None, unavailable(self.refusing))

    def _receive(self) -> bool:
        """Handle the inbox; wait for it where the decoder has no text. False where the thread must end."""
        events: list[tuple[GenerationRequest, Event]] = []
        running = True
        while running:
            try:
                command = self._inbox.get(block=self._decoder.done and not self._works and not events)
            except queue.Empty:
                break
            match command:
                case None:
                    running = False
                case "add", request, prompts:
                    events.append((request, self._add(request, prompts)))
                case "cancel", request:
                    for number in request.numbers:
                        self._decoder.remove(number)
                    self._release([number for number in request.numbers if number in self._texts])
                case "work", work:
                    self._works.append(work)
                    # The work itself is among those that are counted.
                    if self._tokens() > self._most_tokens:
                        self._end(work, None, self._too_many_tokens())
        self._metrics.waiting.set(len(self._decoder.waiting))
        if events:
            # Once for all: each call wakes the event loop, which then competes with this thread for the GIL.
            self._post(events)
        return running

    def _add(self, request: GenerationRequest, prompts: list[list[list[int]]]) -> Event:
        """Let a request's texts wait for places in the batch."""
        try:
            if request.cancelled:
                raise RequestError(499, "the client left")
            if self._tokens() + request.copies * sum(map(_length, prompts)) > self._most_tokens:
                raise self._too_many_tokens()
            self._decoder.check(request.settings)
        except UniteError as error:
            self._count_out(request.texts)
            return prompt_error(error)
        stops = [stop.encode() for stop in request.settings.stop]
        for index, number in enumerate(request.numbers):
            prompt, draw = prompts[index // request.copies], 1 + index % request.copies
            self._texts[number] = RunningText(request, index, prompt, draw, Pieces(stops))
            self._decoder.add(number, prompt, request.settings, draw)
        tokens = sum(len(prompt[0]) for prompt in prompts)
        self._metrics.prompt_tokens.inc(tokens)
        return tokens

    def _tokens(self) -> int:
        return sum(_length(text.prompt) for text in self._texts.values()) + sum(work.tokens for work in self._works)

    def _too_many_tokens(self) -> RequestError:
        return busy(f"the limit of {self._most_tokens} tokens in prompts of running and waiting texts is reached")

    def _step(self) -> None:
        start = time.monotonic()
        try:
            finished = self._decoder.step()
        except Exception as error:  # noqa: BLE001  # torch, transformers and a model's own code can raise any error
            _LOG.debug("a step failed", exc_info=True)
            self._restart(error)
            return
        running = self._decoder.running
        self._metrics.rows.observe(len(running) + len(finished))
        self._metrics.running.set(len(running))
        events: list[tuple[GenerationRequest, Event]] = []
        for number, result in finished:
            text = self._texts[number]
            if isinstance(result, MemberError):
                # The other texts of the step are as they would be without this one, so they go on.
                self._metrics.failed_texts.inc()
                events.append((text.request, model_error(result)))
                continue
            self._observe_first_token(text)
            self._metrics.new_tokens.inc(result.new_tokens)
            events.append((text.request, text.last_piece(result)))
        for number, data in running.items():
            text = self._texts[number]
            self._observe_first_token(text)
            # A response without a stream needs no pieces; its whole text comes with the last one.
            if text.request.stream and (new := text.pieces.grow(data)):
                steps = text.next_steps(self._decoder.likelihoods(number), text.pieces.read)
                events.append((text.request, Piece(text.index, new, steps)))
        # Free the places before the client gets its answer: it may send the next request at once.
        self._release([number for number, _ in finished])
        if finished and start - self._returned > _RETURN_S:
            return_freed_memory()
            self._returned = start
        self._metrics.waiting.set(len(self._decoder.waiting))
        if events:
            self._post(events)

    def _step_works(self) -> None:
        """Run a step of each work; deliver the results of those that end."""
        # A copy, because works that end are removed.
        for work in tuple(self._works):
            # Only read here: futures of asyncio are changed in their loop alone.
            if work.future.cancelled():
                work.steps.close()
                self._end(work, None, None)
                continue
            try:
                next(work.steps)
            except StopIteration as end:
                self._end(work, end.value, None)
            except RequestError as error:
                self._end(work, None, error)
            except MemberError as error:
                self._metrics.failed_texts.inc()
                self._end(work, None, model_error(error))
            except Exception as error:  # noqa: BLE001  # torch, transformers and a model's own code can raise any error
                _LOG.debug("a step failed", exc_info=True)
                self._metrics.failures.inc()
                self._end(work, None, model_error(error))

    def _end(self, work: _Work, value: object, error: RequestError | None) -> None:
        self._works.remove(work)
        # Free the places before the client gets its answer, as for texts.
        self._count_out(work.texts)
        self._call(_settle, work.future, value, error)

    def _observe_first_token(self, text: RunningText) -> None:
        if not text.begun:
            text.begun = True
            self._metrics.first_token.observe(time.monotonic() - text.request.arrived)

    def _restart(self, error: Exception) -> None:
        """Go on with a new decoder after a failed step."""
        self._metrics.failures.inc()
        # Only the texts of the failed step are lost; texts that waited had no part in it.
        waiting = set(self._decoder.waiting)
        self._fail([number for number in self._texts if number not in waiting], model_error(error))
        self._decoder = self._ensemble.decoder(self._batch)
        # Texts that waited start from their prompts, with the same draws, so they are what they would have been.
        for number, text in self._texts.items():
            self._decoder.add(number, text.prompt, text.request.settings, text.draw)

    def _post(self, events: Sequence[tuple[GenerationRequest, Event]]) -> None:
        # One call for all events of a step: each call wakes the loop by a system call.
        self._call(_deliver, events)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None:
            # After a forced stop the loop is closed and no client waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *arguments)

    def _fail(self, numbers: Sequence[int], error: RequestError) -> None:
        events = [(self._texts[number].request, error) for number in numbers]
        self._release(numbers)
        self._post(events)

    def _release(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._texts[number]
        self._count_out(len(numbers))


def return_freed_memory() -> None:
    """Return what is free in the heaps of the C library to the system, on Linux with glibc."""
    # By itself glibc keeps pieces of up to 32 MiB, so the process would stay as large as its longest texts made it.
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _characters(prompt: AskedPrompt | tuple[int, ...]) -> int:
    if isinstance(prompt, str | Dialogue):
        return len(prompt if isinstance(prompt, str) else prompt.text)
    return 0 if isinstance(prompt, Sourced | tuple | ToolChat) else sum(len(message["content"]) for message in prompt)


def _length(prompt: Sequence[Sequence[int]]) -> int:
    """Tokens of a prompt, in the member that has the most."""
    return max(map(len, prompt))


def _deliver(events: Sequence[tuple[GenerationRequest, Event]]) -> None:
    for request, event in events:
        request.events.put_nowait(event)


def _settle(future: asyncio.Future[Any], value: object, error: RequestError | None) -> None:
    # The client may have left in the meantime.
    if not future.done():
        future.set_result(value) if error is None else future.set_exception(error)
