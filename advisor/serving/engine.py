"""The one thread that decodes: requests come in by a queue, and what is emitted goes back to each request's own.

The event loop and this thread share nothing but these queues and the count of texts. All that touches a model or a
tokenizer happens here, so that neither has to be safe for threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.serving.events import Begun, Broken, Event, Piece, Ticket
from advisor.serving.metrics import Metrics
from advisor.serving.order import Limits, Order, RequestError, failed, overloaded, unavailable
from ensemble.decode.stream import Pieces
from ensemble.errors import InputError, PromptTooLongError
from ensemble.models.spec import first_line

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.decode.decoder import Decoder
    from ensemble.decode.sequences import Generation
    from ensemble.decode.settings import Batch
    from ensemble.step.logprobs import StepLogprobs

_LOG = logging.getLogger(__name__)
STOPPING = "the server is stopping"


@dataclass(slots=True)
class _Text:
    """A text that waits or is decoded."""

    ticket: Ticket
    index: int
    prompt: list[list[int]]
    draw: int
    pieces: Pieces
    told: int = 0
    """Steps whose likelihood was told."""
    spelled: int = 0
    """Bytes that these have."""
    begun: bool = False

    def take(self, steps: Sequence[StepLogprobs], end: int) -> list[StepLogprobs]:
        """The next steps whose tokens begin before a byte of the text; EOS is none of its tokens."""
        found: list[StepLogprobs] = []
        for step in steps[self.told :]:
            if step.emitted.data is None or self.spelled >= end:
                break
            found.append(step)
            self.spelled += len(step.emitted.data)
        self.told += len(found)
        return found


@dataclass(frozen=True, slots=True)
class _Cancel:
    ticket: Ticket


class Engine:
    """Decodes the texts of all requests together.

    Args:
        ensemble: Of a token-level method.
        batch: How many texts are decoded at a time.
        limits: How many may wait besides, and how long a prompt may be.
        metrics: Are kept.

    Raises:
        InputError: The method decodes whole spans.
    """

    def __init__(self, ensemble: Ensemble, batch: Batch, limits: Limits, metrics: Metrics) -> None:
        self._ensemble = ensemble
        self._batch = batch
        self._limits = limits
        self._metrics = metrics
        self._decoder: Decoder = ensemble.decoder(batch)
        self._inbox: queue.SimpleQueue[Ticket | _Cancel | None] = queue.SimpleQueue()
        self._texts: dict[int, _Text] = {}
        # Reentrant: a signal's handler may refuse what comes while the same thread takes an order.
        self._lock = threading.RLock()
        self._taken = 0
        self._numbers = 0
        self._refusing = ""
        self._post: Callable[[Sequence[tuple[Ticket, Event]]], None] = lambda _: None
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)

    # For the event loop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; events are delivered in this loop."""

        def post(events: Sequence[tuple[Ticket, Event]]) -> None:
            # The loop is closed where the server was stopped by force; then nobody listens.
            with contextlib.suppress(RuntimeError):
                # One call for a step, whatever its rows: each wakes the loop by a system call.
                loop.call_soon_threadsafe(_deliver, events)

        self._post = post
        self._thread.start()

    def submit(self, order: Order) -> Ticket:
        """Take an order.

        Raises:
            RequestError: Too many texts wait, or the server is stopping.
        """
        texts = len(order.prompts) * order.copies
        with self._lock:
            if self._refusing:
                raise unavailable(self._refusing)
            if self._taken + texts > self._limits.texts:
                raise overloaded(self._limits.texts)
            self._taken += texts
            numbers = range(self._numbers, self._numbers + texts)
            self._numbers += texts
        ticket = Ticket(order, numbers, time.monotonic())
        self._inbox.put(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Give up what is left of an order; its places are free for others. Nothing where it is finished."""
        self._inbox.put(_Cancel(ticket))

    def refuse(self, why: str = STOPPING) -> None:
        """Take no more orders."""
        with self._lock:
            self._refusing = self._refusing or why

    @property
    def refusing(self) -> str:
        """Why no orders are taken; empty where they are."""
        return self._refusing

    @property
    def idle(self) -> bool:
        """Whether all that was taken is finished."""
        return self._taken == 0

    def stop(self) -> None:
        """Refuse what comes, and end the thread after the step that runs; what is not finished is given up."""
        self.refuse()
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # For the thread

    def _run(self) -> None:
        try:
            while self._receive():
                # What came may all have been wrong.
                if not self._decoder.done:
                    self._advance()
        except Exception as error:  # noqa: BLE001  # whoever waits must be told, whatever it is
            _LOG.exception("the decoder's thread ended")
            self.refuse(f"the decoder ended ({first_line(error)}); the server must be started again")
            self._give_up(list(self._texts), unavailable(self.refusing))

    def _receive(self) -> bool:
        """Take in what waits in the inbox, and wait where there is nothing else to do; False at the end."""
        events: list[tuple[Ticket, Event]] = []
        going_on = True
        while going_on:
            try:
                command = self._inbox.get(block=self._decoder.done and not events)
            except queue.Empty:
                break
            match command:
                case None:
                    going_on = False
                case Ticket():
                    events.append((command, self._take_in(command)))
                case _Cancel(ticket):
                    for number in ticket.numbers:
                        self._decoder.remove(number)
                    self._release([number for number in ticket.numbers if number in self._texts])
        self._metrics.waiting.set(len(self._decoder.waiting))
        if events:
            # Each call wakes the event loop, which then takes turns with this thread.
            self._post(events)
        return going_on

    def _take_in(self, ticket: Ticket) -> Event:
        """Let an order's texts wait for places; what came of it."""
        order = ticket.order
        try:
            prompts = [self._ensemble.encode(prompt) for prompt in order.prompts]
            self._check_lengths([len(prompt[0]) for prompt in prompts])
            stops = [stop.encode() for stop in order.settings.stop]
        except Exception as error:  # noqa: BLE001  # tokenizers and templates raise what they like, at what clients sent
            self._count_out(len(ticket.numbers))
            return Broken(_unreadable(error))
        for index, number in enumerate(ticket.numbers):
            prompt, draw = prompts[index // order.copies], 1 + index % order.copies
            self._texts[number] = _Text(ticket, index, prompt, draw, Pieces(stops))
            self._decoder.add(number, prompt, order.settings, draw)
        tokens = sum(len(prompt[0]) for prompt in prompts)
        self._metrics.prompt_tokens.inc(tokens)
        return Begun(tokens)

    def _check_lengths(self, lengths: Sequence[int]) -> None:
        most = self._limits.prompt_tokens
        if most is not None and max(lengths) > most:
            raise PromptTooLongError(f"a prompt has {max(lengths)} tokens; this server allows {most}")

    def _advance(self) -> None:
        """Go on by a step, and tell what came of it."""
        try:
            finished = self._decoder.step()
        except Exception as error:  # noqa: BLE001  # of transformers, torch, or of code that came with a model
            _LOG.debug("a step failed", exc_info=True)
            self._restart(error)
            return
        running = self._decoder.running
        self._metrics.rows.observe(len(running) + len(finished))
        self._metrics.running.set(len(running))
        events: list[tuple[Ticket, Event]] = []
        for number, generation in finished:
            text = self._texts[number]
            self._note_begun(text)
            self._metrics.new_tokens.inc(len(generation.tokens))
            events.append((text.ticket, _last(text, generation)))
        for number, data in running.items():
            text = self._texts[number]
            self._note_begun(text)
            if text.ticket.order.stream and (piece := text.pieces.grow(data)):
                steps = text.take(self._decoder.likelihoods(number), text.pieces.read)
                events.append((text.ticket, Piece(text.index, piece, steps)))
        # Counted out first: whoever has an answer may ask again at once.
        self._release([number for number, _ in finished])
        self._metrics.waiting.set(len(self._decoder.waiting))
        if events:
            self._post(events)

    def _note_begun(self, text: _Text) -> None:
        if not text.begun:
            text.begun = True
            self._metrics.first_token.observe(time.monotonic() - text.ticket.came)

    def _restart(self, error: Exception) -> None:
        """Go on without the texts that were decoded when a step failed; those that waited have done nothing wrong."""
        self._metrics.failures.inc()
        waiting = set(self._decoder.waiting)
        self._give_up([number for number in self._texts if number not in waiting], failed(first_line(error)))
        self._decoder = self._ensemble.decoder(self._batch)
        for number, text in self._texts.items():
            self._decoder.add(number, text.prompt, text.ticket.order.settings, text.draw)

    def _give_up(self, numbers: Sequence[int], error: RequestError) -> None:
        broken = [(self._texts[number].ticket, Broken(error)) for number in numbers]
        self._release(numbers)
        self._post(broken)

    def _release(self, numbers: Sequence[int]) -> None:
        """Forget texts that are finished."""
        for number in numbers:
            del self._texts[number]
        self._count_out(len(numbers))

    def _count_out(self, texts: int) -> None:
        with self._lock:
            self._taken -= texts


def _last(text: _Text, generation: Generation) -> Piece:
    """The last piece of a text: all of it, where nothing was told yet."""
    data = b"".join(step.emitted.data or b"" for step in generation.likelihoods)
    # Not the length of the text, in which what is no UTF-8 was replaced.
    ends = [data.find(stop.encode()) for stop in text.ticket.order.settings.stop]
    steps = text.take(generation.likelihoods, min((end for end in ends if end >= 0), default=len(data)))
    return Piece(text.index, text.pieces.finish(generation.text), steps, generation)


def _unreadable(error: Exception) -> RequestError:
    """Why a prompt could not be read."""
    if isinstance(error, PromptTooLongError):
        return RequestError(400, str(error), code="context_length_exceeded")
    if isinstance(error, InputError):
        return RequestError(400, str(error))
    return RequestError(400, f"the prompt cannot be read ({type(error).__name__}: {first_line(error)})")


def _deliver(events: Sequence[tuple[Ticket, Event]]) -> None:
    for ticket, event in events:
        ticket.events.put_nowait(event)
