"""Answers prompts by a strategy: asks its models, reads their answers, and takes the response that wins.

A vote goes on without a model that fails. A router whose model fails asks the others, the most accurate one first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from advisor.jobs.methods import TEMPERATURE
from advisor.response_cache import Response
from advisor.strategies.members import AskedModel, LocalModel, LocalModels, Reply, server_model
from advisor.strategies.plan import StrategyPlan
from advisor.strategies.votes import is_decided
from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.methods import get_module, make_options
from ensemble.methods._votes import answer_codes, vote
from ensemble.models.spec import Sourced

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings
    from ensemble.methods.router import Router
    from ensemble.models.member import Prompt

Observe = Callable[[str, float, bool], None]
"""Called with each call of a model: its name, seconds, and whether it failed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a strategy.

    Attributes:
        model: The name of the model whose response is taken.
        response: The response.
        prompt_tokens: Tokens of the prompt, as this model counts them.
        answers: The models that answered, in the order of the strategy, and what was read from each response; None if
            it has no answer, or the strategy does not vote.
        failures: The models that failed, and the reason.
    """

    model: str
    response: Response
    prompt_tokens: int
    answers: tuple[tuple[str, str | None], ...]
    failures: tuple[tuple[str, str], ...]

    @property
    def calls(self) -> int:
        """How many times a model was asked."""
        return len(self.answers) + len(self.failures)


class Answerer:
    """Answers prompts by a strategy.

    Args:
        plan: The strategy.
        models: Its models, in its order.
        observe: Called with each call of a model.

    Raises:
        InputError: A router has too few dev questions to learn from.
    """

    def __init__(self, plan: StrategyPlan, models: Sequence[AskedModel], observe: Observe = lambda *_: None) -> None:
        self._strategy, self._reader, self._models, self._observe = plan.strategy, plan.reader, models, observe
        self._routes = dict(plan.strategy.routes)
        self._router: Router | None = None
        if plan.strategy.name == "router":
            self._router = get_module("router").make(*plan.learned, make_options("router", {}))

    async def answer(
        self, prompt: Prompt, settings: Settings, group: str | None = None, deadline: float | None = None
    ) -> Answered:
        """Answer a prompt.

        Args:
            prompt: A text, or a conversation.
            settings: How each model writes. Self-consistency draws with the temperature of the evaluation if this one
                is 0.
            group: The group of the prompt, for a router by groups.
            deadline: When models that have not answered count as failed, by the monotonic clock; None for no limit.

        Raises:
            InputError: No model can read this prompt.
            MemberError: All models failed.
        """
        match self._strategy.name:
            case "vote" | "weighted_vote":
                asked = list(self._models)
                replies = await self._ask_all([(model, settings) for model in asked], prompt, deadline)
            case "self_consistency":
                asked = list(self._models) * self._strategy.draws
                temperature = settings.temperature or TEMPERATURE
                draws = [
                    # With one seed all draws would be the same text.
                    replace(settings, temperature=temperature, seed=settings.seed + number)
                    for number in range(len(asked))
                ]
                replies = await self._ask_all(list(zip(asked, draws, strict=True)), prompt, deadline)
            case "cascade":
                asked, replies = await self._ask_until_decided(prompt, settings, deadline)
            case _:
                # One model, or a router: the others answer only if the first fails.
                asked, replies = await self._ask_until_answered(self._order(prompt, group), prompt, settings, deadline)
        return self._taken(asked, replies)

    async def _ask_all(
        self, calls: Sequence[tuple[AskedModel, Settings]], prompt: Prompt, deadline: float | None
    ) -> list[Reply | UniteError]:
        return list(await asyncio.gather(*(self._ask(model, prompt, each, deadline) for model, each in calls)))

    async def _ask_until_decided(
        self, prompt: Prompt, settings: Settings, deadline: float | None
    ) -> tuple[list[AskedModel], list[Reply | UniteError]]:
        replies: list[Reply | UniteError] = []
        for number, model in enumerate(self._models, start=1):
            replies.append(await self._ask(model, prompt, settings, deadline))
            # The function of the evaluation, so that a cascade stops where it stopped there.
            codes = answer_codes([[answer] for answer in map(self._read, replies)])
            if is_decided(codes, len(self._models) - number)[0]:
                break
        return list(self._models[: len(replies)]), replies

    async def _ask_until_answered(
        self, order: Sequence[AskedModel], prompt: Prompt, settings: Settings, deadline: float | None
    ) -> tuple[list[AskedModel], list[Reply | UniteError]]:
        replies: list[Reply | UniteError] = []
        for model in order:
            replies.append(await self._ask(model, prompt, settings, deadline))
            if not isinstance(replies[-1], UniteError):
                break
        return list(order[: len(replies)]), replies

    def _order(self, prompt: Prompt, group: str | None) -> list[AskedModel]:
        """The models of a router, the one that it chooses first."""
        names = [model.name for model in self._models]
        first = 0
        if self._router is not None:
            first = self._router.choose(_text(prompt), [], [])
        elif group in self._routes:
            first = names.index(self._routes[group])
        return [self._models[first], *(model for number, model in enumerate(self._models) if number != first)]

    async def _ask(
        self, model: AskedModel, prompt: Prompt, settings: Settings, deadline: float | None
    ) -> Reply | UniteError:
        start = time.monotonic()
        result: Reply | UniteError
        try:
            left = None if deadline is None else max(0.0, deadline - start)
            result = await asyncio.wait_for(model.ask(prompt, settings), left)
        except UniteError as error:
            result = error
        except asyncio.TimeoutError:
            result = MemberError("it did not answer in time")
        except Exception as error:  # noqa: BLE001  # of transformers, torch, or of code that came with a model
            result = MemberError(f"{type(error).__name__}: {first_line(error)}")
        self._observe(model.name, time.monotonic() - start, isinstance(result, UniteError))
        return result

    def _read(self, reply: Reply | UniteError) -> str | None:
        if self._reader is None or isinstance(reply, UniteError):
            return None
        return self._reader.read(reply[0].text)

    def _taken(self, asked: Sequence[AskedModel], replies: Sequence[Reply | UniteError]) -> Answered:
        """The response that wins; if no response has an answer, the first one."""
        answers = [self._read(reply) for reply in replies]
        # Messages of members often begin with their name, which is given beside them here.
        failures = [
            (model.name, reply.without(model.name))
            for model, reply in zip(asked, replies, strict=True)
            if isinstance(reply, UniteError)
        ]
        answered = {number: reply for number, reply in enumerate(replies) if not isinstance(reply, UniteError)}
        if not answered:
            refused = [reply for reply in replies if isinstance(reply, InputError)]
            # The prompt is wrong if all models refuse it; else a model failed.
            if len(refused) == len(replies):
                raise refused[0]
            raise MemberError("no model answered: " + "; ".join(f"{name}: {reason}" for name, reason in failures))
        weights = self._strategy.weights or None
        winner = int(vote(answer_codes([[answer] for answer in answers]), weights)[0])
        # A vote without any answer takes the first model, which may have failed.
        number = winner if winner in answered else min(answered)
        response, prompt_tokens = answered[number]
        return Answered(
            asked[number].name,
            response,
            prompt_tokens,
            tuple((asked[each].name, answers[each]) for each in answered),
            tuple(failures),
        )


def answer_prompt(plan: StrategyPlan, prompt: str, settings: Settings, group: str | None = None) -> Answered:
    """Answer one prompt; the models of this process are loaded one after another.

    Raises:
        InputError: The key of a server is missing, or no model can read this prompt.
        MemberError: All models failed.
    """
    local = LocalModels()
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


def _text(prompt: Prompt) -> str:
    """What a router compares with the dev questions: the messages of a conversation together."""
    if isinstance(prompt, Sourced):
        return prompt.prompt
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
