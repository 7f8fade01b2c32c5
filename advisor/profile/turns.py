"""Conversations: which turns of a task can be answered now, with a model's own responses in the prompts of later turns.

A later turn's prompt holds the responses to the turns before it. So all first turns are answered together, then all
second ones, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from advisor.records import Answer, Cost, Profile
from advisor.tasks.task import Example, Task
from ensemble.errors import MemberError


def continued(task: Task, said: Mapping[str, str | None]) -> Task:
    """A task with a model's responses in its later turns.

    Args:
        task: The task.
        said: The responses by the ids of their questions; None for one that failed. A turn after a response that is not
            there stays as it is, without exchanges.
    """
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
    """The questions without a response that can be answered now; see :func:`continued` for the arguments."""
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
    """Let models answer a task, turn by turn.

    Args:
        names: The models.
        task: The questions.
        run: Lets each model answer its questions; gives its answers, or why it failed, in any order. It is called once
            for each turn, without the models that have failed.

    Returns:
        By name, a model's answers in the order of the task, or why it failed. A turn after one that failed has failed.
    """
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
    return Profile(
        parts[0].model,
        tuple(answers.get(example.id) or _unasked(example) for example in task.examples),
        Cost.total([part.cost for part in parts]),
    )


def _unasked(example: Example) -> Answer:
    reason = f"the turn before it, {example.earlier}, has no response"
    return Answer(example.id, "", None, 0.0, "error", reason, group=example.group)
