"""Models with own prompts and settings, by options of their lines: ``prompt=``, ``shots=``, ...

So one model with three prompts is a pool of three. A template is a stranger's file; see :mod:`advisor.tasks.templates`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.tasks.data_files import Record
from advisor.tasks.task import Example, Task
from advisor.tasks.templates import Template
from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings

PROMPT = "prompt"
"""The name of the task's prompt in a template."""


def with_own_prompts(task: Task, models: Sequence[ModelSpec], with_shots: Callable[[int], Task]) -> Task:
    """A task with the prompts of the models that have their own; `with_shots` loads it with other worked examples."""
    templates, loaded = dict(task.templates), {task.shots: task}
    prompts: dict[str, dict[str, str]] = {example.id: {} for example in task.examples}
    for model in models:
        count = task.shots if model.shots is None else model.shots
        if model.prompt is None and count == task.shots:
            continue
        place = model.place or model.name
        if any(example.earlier is not None for example in task.examples):
            raise InputError(
                f"prompt= and shots= are for questions of one turn, and {task.name} has conversations; leave them out",
                of=place,
            )
        if count not in loaded:
            loaded[count] = with_shots(count)
        found = loaded[count].examples
        if [example.id for example in found] != [*prompts]:
            raise InputError(f"shots={count}: {task.name} asks other questions then; give fewer", of=place)
        template = Template(model.prompt or f"{{{{{PROMPT}}}}}", file=place, key=PROMPT)
        for example in found:
            record = Record({**example.fields, PROMPT: example.prompt}, f"question {example.id}")
            prompts[example.id][model.name] = template.text(record)
        if (own := loaded[count].template) is not None:
            templates[model.name] = own.model_copy(update={"around": model.prompt})
    if not any(prompts.values()):
        return task
    examples = tuple(replace(example, own_prompts=prompts[example.id]) for example in task.examples)
    return replace(task, examples=examples, templates=templates)


def asked_of(task: Task, models: Sequence[ModelSpec]) -> Task:
    """A task as a model is asked it, or a set that decodes together, the primary first."""
    primary, names = models[0], [model.name for model in models]
    examples = tuple(_of_models(example, names) if example.own_prompts else example for example in task.examples)
    asked = replace(task, examples=examples, max_new_tokens=primary.max_new_tokens or task.max_new_tokens)
    if len(models) > 1:
        return asked
    return replace(asked, temperature=primary.temperature or 0.0, top_p=primary.top_p or 1.0)


def _of_models(example: Example, names: Sequence[str]) -> Example:
    own = {name: example.own_prompts[name] for name in names if name in example.own_prompts}
    if len(names) == 1:
        return replace(example, prompt=example.prompt_of(names[0]), own_prompts={})
    return replace(example, own_prompts=own)


def own_settings(model: ModelSpec, settings: Settings, default_tokens: int | None) -> Settings:
    """How a model is asked in production: its own values hold where a request leaves the default ones."""
    is_default = settings.max_new_tokens == default_tokens
    return replace(
        settings,
        temperature=settings.temperature or model.temperature or 0.0,
        top_p=settings.top_p if settings.top_p < 1 else model.top_p or 1.0,
        max_new_tokens=(is_default and model.max_new_tokens) or settings.max_new_tokens,
    )
