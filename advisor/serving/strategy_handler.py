"""The engine of a strategy: each text asks several models, and the response that wins is sent in pieces."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.models.ask import NO_TOOLS, Model, Replies
from advisor.models.completions import PromptWithOptions, ToolChat
from advisor.models.response_cache import Response
from advisor.records import FinishReason
from advisor.run.asking import Answered, Answerer
from advisor.run.plan import StrategyPlan
from advisor.serving.handler import RequestHandler
from advisor.serving.metrics import Metrics
from advisor.serving.protocol import RequestLimits
from advisor.serving.request import Event, GenerationRequest, Piece, RequestError, prompt_error
from ensemble.errors import InputError, MemberError, PromptTooLongError, UniteError, first_line

if TYPE_CHECKING:
    from advisor.models.completions import ModelInput
    from ensemble.decode.settings import Settings

_LOG = logging.getLogger(__name__)
_PIECE = re.compile(r"(?:\s*\S+){1,8}\s*|\s+")
"""Some words of a response; all pieces together are the response."""


class DecoderModel:
    """A model of this process; see :class:`advisor.models.ask.Model`."""

    def __init__(self, name: str, engine: RequestHandler) -> None:
        self.name, self.engine = name, engine

    def close(self) -> None:
        """Stop the decoder, after its current step."""
        self.engine.stop()

    async def ask(self, prompts: Mapping[int, ModelInput], settings: Settings) -> Replies:
        """See :meth:`advisor.models.ask.Model.ask`. If this is cancelled, the decoder drops the text."""
        for n, prompt in prompts.items():
            yield n, await self._reply(prompt, settings)

    async def _reply(self, prompt: ModelInput, settings: Settings) -> Response | UniteError:
        if isinstance(prompt, ToolChat | PromptWithOptions):
            return InputError(NO_TOOLS, of=self.name)
        request = GenerationRequest((prompt,), 1, settings)
        try:
            self.engine.submit(request)
            tokens = await request.prompt_tokens()
            (last,) = [piece async for piece in request.pieces() if piece.finish_reason is not None]
        except RequestError as error:
            said = error.without(self.name)
            # Only a wrong prompt is the client's mistake; all else is a failure of this member.
            if error.status != 400:
                return MemberError(said, of=self.name)
            is_long = error.body["error"]["code"] == "context_length_exceeded"
            return (PromptTooLongError if is_long else InputError)(said, of=self.name)
        finally:
            self.engine.cancel(request)
        reason: FinishReason = "length" if last.finish_reason == "length" else "eos"
        seconds = time.monotonic() - request.arrived
        return Response(last.text, last.new_tokens, reason, seconds, prompt_tokens=tokens)


class StrategyHandler(RequestHandler):
    """Answers requests by a strategy; each is a task of the event loop."""

    def __init__(
        self,
        plan: StrategyPlan,
        models: Sequence[Model],
        limits: RequestLimits,
        metrics: Metrics,
        group: str | None = None,
    ) -> None:
        super().__init__(limits, metrics)
        self._name, self._votes = plan.strategy.name, plan.reader is not None
        self._draws = plan.strategy.responses_per_member
        self._models, self._group = models, group
        self._answerer = Answerer(plan, models, self._observe)
        self._tasks: dict[GenerationRequest, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def refusing(self) -> str:
        """See :class:`RequestHandler`."""
        if self._reason:
            return self._reason
        # A server may come back at any time, and one model that answers is enough.
        reasons = [model.engine.refusing if isinstance(model, DecoderModel) else "" for model in self._models]
        return reasons[0] if all(reasons) else ""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """See :class:`RequestHandler`."""
        self._loop = loop
        for model in self._models:
            if isinstance(model, DecoderModel):
                model.engine.start(loop)

    def submit(self, request: GenerationRequest) -> None:
        """See :class:`RequestHandler`."""
        if request.settings.alternatives is not None:
            raise RequestError(
                400,
                f"logprobs: the strategy {self._name} takes a whole response, which has no log-probabilities; leave "
                "it out",
                param="logprobs",
            )
        self._count_in(request.texts)
        task = asyncio.ensure_future(self._answer_all(request))
        self._tasks[request] = task
        # Not in the task: one that is cancelled before its first step runs none of its code.
        task.add_done_callback(lambda _: self._forget(request))

    def cancel(self, request: GenerationRequest) -> None:
        """See :class:`RequestHandler`."""
        if request in self._tasks:
            self._tasks[request].cancel()

    def stop(self) -> None:
        """See :class:`RequestHandler`."""
        self.refuse()
        if self._loop is not None:
            # The loop is closed after a forced stop.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel_all)
        # Each waits for its decoder's current step.
        for model in self._models:
            model.close()

    def _cancel_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _forget(self, request: GenerationRequest) -> None:
        del self._tasks[request]
        self._count_out(request.texts)
        self._metrics.running.set(self._accepted)

    async def _answer_all(self, request: GenerationRequest) -> None:
        self._metrics.running.set(self._accepted)
        group = self._group if request.group is None else request.group
        deadline = request.arrived + self._limits.seconds
        answers = [
            asyncio.ensure_future(self._answerer.answer(prompt, settings, group, deadline))
            for prompt in request.prompts
            if not isinstance(prompt, tuple)  # token ids, which are refused where the models have several tokenizers
            for settings in self._settings_of(request)
        ]
        try:
            # All together, because the first event of a stream is the number of tokens of all prompts.
            answered = await asyncio.gather(*answers)
        except InputError as error:
            await _deliver(request, prompt_error(error))
            return
        except MemberError as error:
            self._metrics.failures.inc()
            await _deliver(request, RequestError(503, str(error), kind="server_error", code="model_error"))
            return
        except Exception as error:  # noqa: BLE001  # clients that wait must get an answer, whatever the error is
            _LOG.exception("a request failed")
            await _deliver(request, RequestError(500, f"the server failed: {first_line(error)}", kind="server_error"))
            return
        finally:
            # The request may have ended at the first of them, or because its client left.
            for answer in answers:
                answer.cancel()
        request.extras |= _extras(answered)
        tokens = sum(each.response.prompt_tokens for each in answered[:: request.copies])
        self._metrics.prompt_tokens.inc(tokens)
        await _deliver(request, tokens)
        for index, each in enumerate(answered):
            self._count(request, each)
            parts = _PIECE.findall(each.response.text) if request.stream else [each.response.text]
            for part in parts[:-1]:
                await _deliver(request, Piece(index, part))
            # A text may be empty, and still needs its last piece.
            end = parts[-1] if parts else ""
            response = each.response
            await _deliver(
                request, Piece(index, end, (), response.finish_reason, response.tokens, calls=response.calls)
            )

    def _settings_of(self, request: GenerationRequest) -> list[Settings]:
        """The settings of each copy of a text, which have other draws."""
        settings = request.settings
        return [replace(settings, seed=settings.seed + copy * self._draws) for copy in range(request.copies)]

    def _count(self, request: GenerationRequest, answered: Answered) -> None:
        # The vote comes before the first piece, so all pieces come at once.
        self._metrics.first_token.observe(time.monotonic() - request.arrived)
        self._metrics.new_tokens.inc(answered.response.tokens)
        self._metrics.calls.observe(answered.calls)
        if self._votes:
            answers = {answer for _, answer in answered.answers}
            # A response without an answer is no vote, so responses that all have none agree on nothing.
            self._metrics.votes.labels("yes" if len(answers) == 1 and None not in answers else "no").inc()

    def _observe(self, name: str, seconds: float, failed: bool) -> None:
        self._metrics.member_calls.labels(name).inc()
        self._metrics.member_seconds.labels(name).observe(seconds)
        if failed:
            self._metrics.member_errors.labels(name).inc()


async def _deliver(request: GenerationRequest, event: Event) -> None:
    request.events.put_nowait(event)
    # The client's task takes it now; else all pieces of a text would become one.
    await asyncio.sleep(0)


def _extras(answered: Sequence[Answered]) -> Mapping[str, object]:
    failed = {name for each in answered for name, _ in each.failures}
    votes = {} if all(each.agreement is None for each in answered) else {"agreement": [e.agreement for e in answered]}
    return {
        **votes,
        "calls": sum(each.calls for each in answered),
        "members": [each.model for each in answered],
        "failed_members": sorted(failed),
    }
