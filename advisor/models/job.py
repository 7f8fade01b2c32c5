"""A job: the questions of a task for one model or set, the responses as they arrive, and the profile they make."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing, closing
from dataclasses import replace
from typing import Any

from advisor.models.ask import Model, answers
from advisor.models.completions import ModelInput, PromptWithOptions
from advisor.models.response_cache import Response, ResponseCache, key_of, split_thinking
from advisor.progress import Progress
from advisor.records import Answer, Cost, Profile
from advisor.tasks.task import Example, Score, Task
from ensemble.decode.settings import Settings
from ensemble.errors import InputError, MemberError
from ensemble.models.spec import EnsembleSpec
from ensemble.models.thinking import ThinkingTags

_DECODING = 2
"""Part of every key. Increase it if a change of the decoder makes the same models generate another text."""
_SAME_PROMPTS, _CLEARLY_LONGER = 3, 1.5
"""So many prompts with the largest number of tokens, one of which is so many times as long as another, were cut."""


class Job:
    """Questions for a model or a set: :meth:`start`, :meth:`add` for each of the :meth:`responses`, :meth:`finish`."""

    result: Profile | MemberError
    """the profile, or the reason why it failed; it exists after :meth:`finish`"""

    def __init__(  # noqa: PLR0913  # what to answer, how, and where the responses go
        self,
        name: str,  # unique among the jobs of a run
        task: Task,
        settings: Settings,
        connect: Callable[[], Model],  # makes the model that answers, which is closed at the end
        *,
        key: Mapping[str, Any],  # what determines the responses besides the questions: the models and the method
        cache: ResponseCache,
        progress: Progress,
        stage: str = "",  # the label of the progress; the name if it is empty
        spec: EnsembleSpec | None = None,  # for an engine that loads the models in other processes
        server: str = "",  # the URL of the server that answers; empty for models that decode here
        thinking: ThinkingTags | None = None,  # how the model marks its thinking, if a user says so
        batch_size: int | None = None,  # prompts at a time, on a worker; None for as many as fit
    ) -> None:
        # Again, although commands check it: programs that models wrote must not run through any other path.
        task.check_allowed()
        self.name, self.task, self.settings, self.connect = name, task, settings, connect
        self.peak_memory: int | None = None  # in bytes, if it was measured now
        self.spec, self.server, self._thinking, self.batch_size = spec, server, thinking, batch_size
        self._cache, self._progress, self._stage = cache, progress, stage or name
        # All keys now: hashing is quick, and the stored responses are found with a few queries.
        self._keys = [question_key(key, example, task, settings) for example in task.examples]
        stored = cache.get(self._keys)
        self._responses = {n: stored[key] for n, key in enumerate(self._keys) if key in stored}
        # Only these are asked. If the cache has all responses, no model is loaded.
        self.questions = {n: example for n, example in enumerate(task.examples) if n not in self._responses}
        self._display = ExitStack()
        self._advance: Callable[[int], None] = lambda _: None

    def start(self) -> None:
        """Show the progress, beginning with the stored responses."""
        stage = self._progress.stage(self._stage, len(self.task.examples))
        self._advance = self._display.enter_context(stage)
        self._advance(len(self._responses))

    async def responses(self) -> AsyncGenerator[tuple[int, Response], None]:
        """Ask the model the questions that have no stored response."""
        try:
            model = self.connect()
        except InputError as error:
            raise MemberError(error.without(self.name), of=self.name) from None
        prompts: dict[int, ModelInput] = {n: example.model_input for n, example in self.questions.items()}
        if self.task.metric == "choice":
            prompts = {
                n: PromptWithOptions(example.model_input, self.task.continuations(example))
                for n, example in self.questions.items()
            }
        with closing(model):
            async with aclosing(answers(model, prompts, self.settings)) as found:
                async for each in found:
                    yield each

    def add(self, number: int, response: Response) -> None:
        """Add a response, and store it unless another attempt may give another one."""
        if response.options:
            scores = [-math.inf if score is None else score for score in response.options]
            response = replace(response, text=self.task.likeliest(self.questions[number], scores))
        self._responses[number] = response
        if response.settled:
            self._cache.put(self._keys[number], response)
        self._advance(1)

    def finish(self, error: MemberError | None = None) -> None:
        """Grade the answers and set the result."""
        responses = [self._responses.get(n) for n in range(len(self._keys))]
        if error is None:
            self.result = self._grade([response for response in responses if response is not None])
        else:
            self.result = error
        self.close()

    def close(self) -> None:
        """Remove the progress display."""
        self._display.close()

    def _grade(self, responses: Sequence[Response]) -> Profile | MemberError:
        # Stored under all questions: a later run that finds every response loads no model, and can measure nothing.
        key = key_of({"peak_memory": _DECODING, "of": self._keys})
        if self.peak_memory is not None:
            self._cache.keep(key, self.peak_memory)
        if all(response.error is not None for response in responses):
            return MemberError(f"no question could be answered; the first: {responses[0].error}", of=self.name)
        # Those that an earlier version stored have no prompt tokens. What failed took nothing.
        costs = [
            Cost(r.seconds, r.tokens, r.steps, r.combined, r.handled, r.prompt_tokens, r.thinking_tokens)
            for r in responses
            if r.error is None
        ]
        memory = self._cache.value(key, lambda value: type(value) is int and value > 0)
        cost = replace(Cost.total(costs), peak_memory=memory)
        # From here on a response is what the model answered: nothing reads an answer from its thinking.
        pairs = list(zip(self.task.examples, split_thinking(responses, self._thinking), strict=True))
        # All at once: corpus metrics and sandboxes score many responses faster than one after the other.
        scores = iter(self.task.score_all([(example, r.text) for example, r in pairs if r.error is None]))
        answers = [_answer(example, r, next(scores) if r.error is None else None) for example, r in pairs]
        if self.server:
            # In this process, a response has a share of its batch's time, which no client sees.
            answers = [replace(each, waited=r.seconds) for each, r in zip(answers, responses, strict=True)]
            self._say_cut_prompts(responses)
        profile = Profile(self.name, tuple(answers), cost)
        if lacking := [f"{count:,} {reason}" for reason, count in profile.no_answer.items() if count]:
            self._progress.say(
                f"{self.name}: of {len(answers):,} responses on {self.task.split}, {' and '.join(lacking)}; a response "
                "without text counts as wrong"
            )
        return profile

    def _say_cut_prompts(self, responses: Sequence[Response]) -> None:
        """Say it where the longest prompts have one number of tokens, and clearly different lengths."""
        longest = max(response.prompt_tokens for response in responses)
        lengths = [
            len(example.prompt) + sum(len(text) for exchange in example.exchanges for text in exchange)
            for example, response in zip(self.task.examples, responses, strict=True)
            if response.prompt_tokens == longest > 0
        ]
        if len(lengths) >= _SAME_PROMPTS and max(lengths) >= _CLEARLY_LONGER * min(lengths):
            self._progress.say(
                f"{self.name}: its server {self.server} counts {longest:,} tokens for prompts of {min(lengths):,} and "
                f"of {max(lengths):,} characters: it cuts prompts or does not count them; raise its context length"
            )


def question_key(key: Mapping[str, Any], example: Example, task: Task, settings: Settings) -> str:
    """The key of a response: the models and the method, the question, and how to generate."""
    question: dict[str, Any] = {**key, "decoding": _DECODING, "prompt": example.prompt}
    if example.own_prompts:
        question["prompts"] = list(example.own_prompts.values())
    if example.exchanges:
        question["exchanges"] = example.exchanges
    # Causal models read only the prompt, so that a source must not change their keys.
    if example.source is not None and any("encoder" in member for member in key.get("members", ())):
        question["source"] = example.source
    if task.metric == "choice":
        question["choices"] = task.continuations(example)
        if task.scoring != "texts":
            # Another option may be chosen, or another text stored for it.
            question["scoring"] = task.scoring
        return key_of(question)
    if settings.temperature:
        question |= {"temperature": settings.temperature, "seed": settings.seed}
        question |= {"top_p": settings.top_p} if settings.top_p < 1 else {}
    return key_of({**question, "max_new_tokens": settings.max_new_tokens, "stop": list(settings.stop)})


def stored_texts(
    cache: ResponseCache, key: Mapping[str, Any], task: Task, thinking: ThinkingTags | None
) -> dict[str, str | None]:
    """The responses to the questions of a task that the cache has, as :func:`next_turns` takes them."""
    said: dict[str, str | None] = {}
    # The key of a later turn has the responses before it.
    while examples := next_turns(task, said).examples:
        keys = [question_key(key, example, task, task.settings) for example in examples]
        stored = cache.get(keys)
        if not stored:
            break
        ids = [each.id for each, key in zip(examples, keys, strict=True) if key in stored]
        found = split_thinking((stored[key] for key in keys if key in stored), thinking)
        said |= {number: None if each.error else each.text for number, each in zip(ids, found, strict=True)}
    return said


def _answer(example: Example, response: Response, score: Score | None) -> Answer:
    if score is None:
        return Answer(example.id, "", None, 0.0, "error", response.error, group=example.group)
    return Answer(
        example.id,
        response.text,
        score.extracted,
        score.value,
        response.finish_reason,
        options=response.options,
        group=example.group,
        tokens=response.tokens,
        prompt_tokens=response.prompt_tokens,
        seconds=response.seconds,
        thinking=response.thinking,
        thought=bool(response.thinking or response.thinking_tokens),
        problem=score.problem,
    )


def continued(task: Task, said: Mapping[str, str | None]) -> Task:
    """A task with a model's responses, by the ids of their questions, in its later turns; None for one that failed."""
    # The same object, so that tasks of one turn keep all that is computed for them.
    if all(example.earlier is None for example in task.examples):
        return task
    exchanges: dict[str, tuple[tuple[str, str], ...]] = {}
    examples = []
    for example in task.examples:
        before = () if example.earlier is None else exchanges.get(example.earlier, ())
        response = said.get(example.id)
        # A conversation ends with a response that failed: what comes after it has no exchanges.
        if response is not None and (before or example.earlier is None):
            exchanges[example.id] = (*before, (example.prompt, response))
        examples.append(replace(example, exchanges=before))
    return replace(task, examples=tuple(examples))


def next_turns(task: Task, said: Mapping[str, str | None]) -> Task:
    """The questions without a response that can be answered now; see :func:`continued`."""
    examples = tuple(
        example
        for example in continued(task, said).examples
        if example.id not in said and (example.earlier is None or example.exchanges)
    )
    return replace(task, examples=examples)


def profile_in_turns(
    names: Sequence[str],
    task: Task,
    run: Callable[[Mapping[str, Task]], Iterable[tuple[str, Profile | MemberError]]],
) -> dict[str, Profile | MemberError]:
    """Let models answer a task, turn by turn: `run` is called once a turn, without the models that have failed."""
    parts: dict[str, list[Profile]] = {name: [] for name in names}
    failed: dict[str, MemberError] = {}
    waiting = {name: next_turns(task, {}) for name in names}
    while waiting:
        for name, result in run(waiting):
            if isinstance(result, Profile):
                parts[name].append(result)
            else:
                failed[name] = result
        left = {name: next_turns(task, responses(*own)) for name, own in parts.items() if name not in failed}
        # Models whose responses have all come drop out; each round answers one more turn, so this ends.
        waiting = {name: turns for name, turns in left.items() if turns.examples}
    return {name: failed.get(name) or _joined(task, own) for name, own in parts.items()}


def responses(*profiles: Profile) -> dict[str, str | None]:
    """The responses of profiles by the ids of their questions; None for one that failed."""
    answers = (answer for profile in profiles for answer in profile.answers)
    return {answer.id: answer.text if answer.error is None else None for answer in answers}


def conversation_end(examples: Sequence[Example], n: int) -> int:
    """How many of some examples there are up to the end of the conversation that the n-th one is in; at least n."""
    while 0 < n < len(examples) and examples[n].earlier is not None:
        n += 1
    return n


def _joined(task: Task, parts: Sequence[Profile]) -> Profile:
    # One turn: nothing to put together, and its cost stays as it was measured.
    if len(parts) == 1 and len(parts[0].answers) == len(task.examples):
        return parts[0]
    answers = {answer.id: answer for part in parts for answer in part.answers}
    for example in task.examples:
        reason = f"the turn before it, {example.earlier}, has no response"
        answers.setdefault(example.id, Answer(example.id, "", None, 0.0, "error", reason, group=example.group))
    ordered = tuple(answers[example.id] for example in task.examples)
    return Profile(parts[0].model, ordered, Cost.total([part.cost for part in parts]))
