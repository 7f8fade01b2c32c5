"""Answers prompts by a strategy: asks its models, reads their answers, and takes the response that wins.

A vote goes on without a model that fails. A router whose model fails asks the others, the most accurate one first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.profile.asked_model import AskedModel, LocalModel, server_model
from advisor.profile.loaded_models import LoadedModels
from advisor.response_cache import Response
from advisor.running.strategy_to_run import StrategyPlan
from advisor.servers.completions import AskedPrompt, ToolChat, in_one_form
from advisor.strategies.vote_reader import VoteReader
from advisor.tasks.metrics import READERS
from advisor.tasks.task import read_answer
from ensemble.common.files import default_cache_dir
from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.methods.voting import Codes, answer_codes, vote
from ensemble.models.spec import Sourced

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings
    from ensemble.models.member import Prompt

Observe = Callable[[str, float, bool], None]
"""Called with each call of a model: its name, seconds, and whether it failed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a strategy.

    Attributes:
        model: The name of the model whose response is taken.
        response: The response, with the tokens of the prompt as this model counts them.
        answers: The models that answered, in the order of the strategy, and what was read from each response; None if
            it has no answer, or the strategy does not vote.
        agreement: The share of these answers that are the one that is taken; None without votes.
        failures: The models that failed, and the reason.
    """

    model: str
    response: Response
    answers: tuple[tuple[str, str | None], ...]
    failures: tuple[tuple[str, str], ...]
    agreement: float | None = None

    @property
    def calls(self) -> int:
        """How many times a model was asked."""
        return len(self.answers) + len(self.failures)


class PromptCalls:
    """The calls of models for one prompt; a strategy makes them in :meth:`advisor.strategies.strategy.Strategy.ask`.

    Args:
        models: The members, in the strategy's order.
        prompt: A text, or a conversation.
        settings: How each model writes.
        group: The group of the prompt; None if it has none.
        deadline: When models that have not answered count as failed, by the monotonic clock; None for no limit.
        reader: Reads the answers of responses; None if the strategy counts none.
        observe: Called with each call of a model.

    Attributes:
        settings: How each model writes.
        group: The group of the prompt.
        made: The calls so far: the number of the member, and its reply.
    """

    def __init__(
        self,
        models: Sequence[AskedModel],
        prompt: AskedPrompt,
        settings: Settings,
        *,
        group: str | None,
        deadline: float | None,
        reader: VoteReader | None,
        observe: Observe,
    ) -> None:
        self.settings, self.group = settings, group
        self.made: list[tuple[int, Response | UniteError]] = []
        self._models, self._prompt, self._deadline = models, prompt, deadline
        self._reader, self._observe = reader, observe
        self._has_tools = isinstance(prompt, ToolChat)

    @property
    def text(self) -> str:
        """The prompt as a text: the messages of a conversation together."""
        if isinstance(self._prompt, Sourced):
            return self._prompt.prompt
        if isinstance(self._prompt, str):
            return self._prompt
        messages = self._prompt.messages if isinstance(self._prompt, ToolChat) else self._prompt
        return "\n".join(message["content"] or "" for message in messages)

    @property
    def question(self) -> str:
        """What a text is wanted for: the prompt, or the last message of a conversation.

        Raises:
            InputError: The models may call functions, or the conversation has no message.
        """
        if isinstance(self._prompt, ToolChat):
            raise InputError("the strategy writes a new text, and no calls of functions; leave out tools")
        if isinstance(self._prompt, str | Sourced):
            return self.text
        if not self._prompt:
            raise InputError("the conversation has no message; give one")
        return self._prompt[-1]["content"] or ""

    def with_question(self, text: str) -> Prompt:
        """The prompt with another text in the place of :attr:`question`."""
        if isinstance(self._prompt, str | Sourced | ToolChat):
            return text
        return [*self._prompt[:-1], {**self._prompt[-1], "content": text}]

    def text_of(self, number: int) -> str | None:
        """The text of a call's reply; None if it failed."""
        _, reply = self.made[number]
        return None if isinstance(reply, UniteError) else reply.text

    async def one(self, member: int, settings: Settings) -> None:
        """Ask one member, and wait for its reply."""
        self.made.append((member, await self._ask(member, settings, self._prompt)))

    async def together(self, calls: Sequence[tuple[int, Settings]], prompt: Prompt | None = None) -> None:
        """Make several calls at the same time: members by their numbers, and how each writes.

        `prompt` is what they read instead of the prompt; None for that one.
        """
        read = self._prompt if prompt is None else prompt
        replies = await asyncio.gather(*(self._ask(*call, read) for call in calls))
        self.made.extend((member, reply) for (member, _), reply in zip(calls, replies, strict=True))

    async def until_answered(self, order: Sequence[int]) -> int:
        """Ask members in this order until one does not fail; the number of the last call."""
        for member in order:
            await self.one(member, self.settings)
            if not isinstance(self.made[-1][1], UniteError):
                break
        return len(self.made) - 1

    def answers(self) -> list[str | None]:
        """What was read from each reply; None if it has no answer, or answers are not counted."""
        return [None if isinstance(reply, UniteError) else self._read(reply) for _, reply in self.made]

    def _read(self, reply: Response) -> str | None:
        """The answer in a reply."""
        if self._reader is None:
            return None
        if self._has_tools:
            return in_one_form(reply.calls)
        # Texts that a client wants as JSON are compared as JSON, whatever the answers of the run were.
        if self.settings.grammar is not None and self._reader.metric not in READERS:
            return read_answer("json", None, reply.text)[0]
        return self._reader.read(reply.text)

    def codes(self) -> Codes:
        """The votes so far, as those on one question."""
        return answer_codes([[answer] for answer in self.answers()])

    def winner(self, weights: Sequence[float] | None = None) -> int:
        """The number of the call whose response wins the vote; `weights` are those of the calls, None for 1 each."""
        return int(vote(self.codes(), weights)[0])

    async def _ask(self, member: int, settings: Settings, prompt: AskedPrompt) -> Response | UniteError:
        start, model = time.monotonic(), self._models[member]
        result: Response | UniteError
        try:
            left = None if self._deadline is None else max(0.0, self._deadline - start)
            result = await asyncio.wait_for(model.ask(prompt, settings), left)
        except UniteError as error:
            result = error
        except asyncio.TimeoutError:
            result = MemberError("it did not answer in time")
        except Exception as error:  # noqa: BLE001  # of transformers, torch, or of code that came with a model
            result = MemberError(f"{type(error).__name__}: {first_line(error)}")
        self._observe(model.name, time.monotonic() - start, isinstance(result, UniteError))
        return result


class Answerer:
    """Answers prompts by a strategy.

    Args:
        plan: The strategy.
        models: Its models, in its order.
        observe: Called with each call of a model.
    """

    def __init__(self, plan: StrategyPlan, models: Sequence[AskedModel], observe: Observe = lambda *_: None) -> None:
        self._strategy, self._reader, self._models, self._observe = plan.strategy, plan.reader, models, observe

    async def answer(
        self, prompt: AskedPrompt, settings: Settings, group: str | None = None, deadline: float | None = None
    ) -> Answered:
        """Answer a prompt; see :class:`PromptCalls` for the arguments.

        Raises:
            InputError: No model can read this prompt.
            MemberError: All models failed.
        """
        calls = PromptCalls(
            self._models,
            prompt,
            settings,
            group=group,
            deadline=deadline,
            reader=self._reader,
            observe=self._observe,
        )
        winner = await self._strategy.ask(calls)
        # Messages of members often begin with their name, which is given beside them here.
        failures = [
            (self._models[member].name, reply.without(self._models[member].name))
            for member, reply in calls.made
            if isinstance(reply, UniteError)
        ]
        answered = {n: reply for n, (_, reply) in enumerate(calls.made) if not isinstance(reply, UniteError)}
        if not answered:
            refused = [reply for _, reply in calls.made if isinstance(reply, InputError)]
            # The prompt is wrong if all models refuse it; else a model failed.
            if len(refused) == len(calls.made):
                raise refused[0]
            raise MemberError("no model answered: " + "; ".join(f"{name}: {reason}" for name, reason in failures))
        # A vote without any answer takes the first model, which may have failed.
        number = winner if winner in answered else min(answered)
        names, answers = [self._models[member].name for member, _ in calls.made], calls.answers()
        answer, given = answers[number], [answers[n] for n in answered]
        return Answered(
            names[number],
            answered[number],
            tuple(zip((names[n] for n in answered), given, strict=True)),
            tuple(failures),
            None if answer is None else given.count(answer) / len(given),
        )


def answer_prompt(plan: StrategyPlan, prompt: Prompt, settings: Settings, group: str | None = None) -> Answered:
    """Answer one prompt; a model of this process is loaded when the strategy asks it.

    Raises:
        InputError: The key of a server is missing, or no model can read this prompt.
        MemberError: All models failed.
    """
    local = LoadedModels(default_cache_dir())
    servers = {entry.name: server_model(entry) for entry in plan.members if entry.is_remote}
    models = [servers[member.name] if member.is_remote else LocalModel(member, local) for member in plan.members]
    # Not asyncio.run: its handler of Ctrl-C waits for a model that blocks the loop.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(Answerer(plan, models).answer(prompt, settings, group))
    finally:
        # Ctrl-C leaves calls unfinished, and asyncio would complain about each of them.
        loop.set_exception_handler(lambda *_: None)
        loop.close()
        for server in servers.values():
            server.close()
