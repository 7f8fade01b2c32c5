"""Answers prompts by a strategy: asks its models, reads their answers, and takes the response that wins.

A vote goes on without a model that fails. A router whose model fails asks the others, the most accurate one first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from advisor.models.ask import Model, reply_to
from advisor.models.completions import AskedPrompt, ToolChat, in_one_form
from advisor.models.loaded_models import ALONE, LoadedModels
from advisor.models.local_model import LocalModel
from advisor.models.own_prompts import own_settings
from advisor.models.response_cache import Response, split_thinking
from advisor.models.server_model import ServerModel
from advisor.run.plan import StrategyPlan
from advisor.strategies.replay import QuestionCalls
from advisor.strategies.self_consistency import drawn
from advisor.strategies.strategy import QuestionText, Reply
from advisor.tasks.metrics import READERS
from advisor.tasks.task import read_answer
from ensemble.common.files import default_cache_dir
from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.models.prompts import Dialogue, Sourced
from ensemble.models.spec import EnsembleSpec

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings
    from ensemble.models.member import Prompt

Observe = Callable[[str, float, bool], None]
"""Called with each call of a model: its name, seconds, and whether it failed."""
_Made: TypeAlias = tuple[str, Response | UniteError, str | None]
"""A model's name, its reply, and the answer that was read from it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a strategy."""

    model: str  # the model whose response is taken
    response: Response  # with the tokens of the prompt as this model counts them
    # What was read from each response, by model, in the strategy's order; None without answer or vote.
    answers: tuple[tuple[str, str | None], ...]
    failures: tuple[tuple[str, str], ...]  # the models that failed, and the reason
    agreement: float | None = None  # the share of these answers that are the one that is taken; None without votes

    @property
    def calls(self) -> int:
        """How many times a model was asked."""
        return len(self.answers) + len(self.failures)

    @property
    def figures(self) -> dict[str, Any]:
        """What a client gets of it beside the response."""
        return {
            "model": self.model,
            "calls": self.calls,
            "agreement": self.agreement,
            "failed_members": sorted({name for name, _ in self.failures}),
        }


class Answerer:
    """Answers prompts by a strategy: drives its flow with models."""

    def __init__(self, plan: StrategyPlan, models: Sequence[Model], observe: Observe = lambda *_: None) -> None:
        self._strategy, self._reader = plan.strategy, plan.reader
        self._members = {member.name: member for member in plan.members}
        self._default_tokens = plan.max_new_tokens or 256
        self._models, self._observe = models, observe

    async def answer(
        self, prompt: AskedPrompt, settings: Settings, group: str | None = None, deadline: float | None = None
    ) -> Answered:
        """Answer a prompt; models that have not answered at a time of the monotonic clock count as failed."""
        text = _question_of(prompt, writes=self._strategy.author is not None)
        way = QuestionCalls[_Made](self._strategy.flow(QuestionText(text, text, group)))
        while way.open:
            models = [self._models[call.members[0]] for call in way.open]
            replies = await asyncio.gather(
                *(
                    self._ask(
                        model,
                        prompt if call.prompt is None else _with_question(prompt, call.prompt),
                        settings if call.draw is None else drawn(settings, call.draw),
                        deadline,
                    )
                    for model, call in zip(models, way.open, strict=True)
                )
            )
            read = [
                Reply(None, None)
                if isinstance(reply, UniteError)
                else Reply(reply.text, self._read(reply, prompt, settings))
                for reply in replies
            ]
            made = zip(models, replies, (reply.answer for reply in read), strict=True)
            way.answer([(model.name, reply, answer) for model, reply, answer in made], read)
        return _answered(way)

    def _read(self, reply: Response, prompt: AskedPrompt, settings: Settings) -> str | None:
        if self._reader is None:
            return None
        if isinstance(prompt, ToolChat):
            return in_one_form(reply.calls)
        # Texts that a client wants as JSON are compared as JSON, whatever the answers of the run were.
        if settings.grammar is not None and self._reader.metric not in READERS:
            return read_answer("json", None, reply.text)[0]
        return self._reader.read(reply.text)

    async def _ask(
        self, model: Model, prompt: AskedPrompt, settings: Settings, deadline: float | None
    ) -> Response | UniteError:
        start, member = time.monotonic(), self._members[model.name]
        settings = own_settings(member, settings, self._default_tokens)
        result: Response | UniteError
        try:
            left = None if deadline is None else max(0.0, deadline - start)
            written = await asyncio.wait_for(reply_to(model, prompt, settings), left)
            (result,) = split_thinking([written], member.thinking)
        except UniteError as error:
            result = error
        except asyncio.TimeoutError:
            result = MemberError("it did not answer in time")
        except Exception as error:  # noqa: BLE001  # of transformers, torch, or of code that came with a model
            result = MemberError(f"{type(error).__name__}: {first_line(error)}")
        self._observe(model.name, time.monotonic() - start, isinstance(result, UniteError))
        return result


def _answered(way: QuestionCalls[_Made]) -> Answered:
    """The answer by the replies to all calls."""
    # Messages of members often begin with their name, which is given beside them here.
    failures = [(name, reply.without(name)) for name, reply, _ in way.replies if isinstance(reply, UniteError)]
    given = {
        n: (name, reply, answer)
        for n, (name, reply, answer) in enumerate(way.replies)
        if not isinstance(reply, UniteError)
    }
    if not given:
        refused = [reply for _, reply, _ in way.replies if isinstance(reply, InputError)]
        # The prompt is wrong if all models refuse it; else a model failed.
        if len(refused) == len(way.replies):
            raise refused[0]
        raise MemberError("no model answered: " + "; ".join(f"{name}: {reason}" for name, reason in failures))
    name, response, answer = given[way.taken]
    found = [own for *_, own in given.values()]
    return Answered(
        name,
        response,
        tuple((name, own) for name, _, own in given.values()),
        tuple(failures),
        None if answer is None else found.count(answer) / len(found),
    )


def _question_of(prompt: AskedPrompt, *, writes: bool) -> str:
    """What a text is wanted for: the prompt, or the last message of a conversation."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sourced | Dialogue):
        return prompt.prompt
    if isinstance(prompt, ToolChat) and writes:
        raise InputError("the strategy writes a new text, and no calls of functions; leave out tools")
    messages = prompt.messages if isinstance(prompt, ToolChat) else prompt
    if not messages:
        raise InputError("the conversation has no message; give one")
    return messages[-1]["content"] or ""


def _with_question(prompt: AskedPrompt, text: str) -> Prompt | Dialogue:
    """The prompt with another text in the place of its question."""
    if isinstance(prompt, str | Sourced | ToolChat):
        return text
    if isinstance(prompt, Dialogue):
        return replace(prompt, prompt=text)
    return [*prompt[:-1], {**prompt[-1], "content": text}]


def answer_prompt(plan: StrategyPlan, prompt: Prompt, settings: Settings, group: str | None = None) -> Answered:
    """Answer one prompt; a model of this process is loaded when the strategy asks it."""
    local = LoadedModels(default_cache_dir())
    models: list[Model] = [
        ServerModel(member)
        if member.is_remote
        else LocalModel(member.name, partial(local.ensemble, EnsembleSpec((member,), ALONE)))
        for member in plan.members
    ]
    # Not asyncio.run: its handler of Ctrl-C waits for a model that blocks the loop.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(Answerer(plan, models).answer(prompt, settings, group))
    finally:
        # Ctrl-C leaves calls unfinished, and asyncio would complain about each of them.
        loop.set_exception_handler(lambda *_: None)
        loop.close()
        for model in models:
            model.close()
