r"""A task file, read and checked: what a task is, before any of its data is loaded.

A user's file, and every file in this folder, looks like this:

    name: refunds
    data: {dev: dev.jsonl, held_out: test.jsonl}
    prompt: "Question: {{question}}\nAnswer:"
    reference: "{{answer}}"
    metric: exact_match

docs/how-to/own-task.md lists all keys. Not covered: Python in a task, a task made of other tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from advisor.tasks import patterns
from advisor.tasks.dataspec import DataSpec, read_data_spec
from advisor.tasks.metrics import metric_names
from advisor.tasks.templates import Template
from advisor.tasks.yamlfile import Keys, read_yaml

_REQUIRED = ("name", "data", "prompt", "reference", "metric")
_OPTIONAL = (
    "summary",
    "variant",
    "instructions",
    "choices",
    "group",
    "source",
    "extract",
    "stop",
    "max_new_tokens",
    "shots",
    "shot_response",
    "dev_size",
)
_ANSWERED = ("reference", "choices", "instructions", "shot_response", "stop", "extract", "max_new_tokens")
_MAX_NEW_TOKENS = 256


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """The content of a task file.

    Attributes:
        name: The task's name, with ``:variant`` where one was asked for.
        file: The task file, for messages.
        summary: One line for lists.
        variant: What stands for ``{{variant}}``; None where the file has no variants.
        data: Where the records come from.
        prompt: Renders a question.
        reference: Render the accepted texts; one that evaluates to a list gives several.
        choices: Render the options of a choice task; empty for others.
        metric: Name of the metric.
        instructions: Text before the shots; empty for none.
        group: Renders the part of the task that a question belongs to.
        source: Renders the bare text that encoder-decoder models read; None for the prompt.
        extract: Regular expression on the response.
        stop: Stop strings, none of them empty.
        max_new_tokens: At least 1.
        shots: Demonstrations unless the user asks for another number.
        shot_response: Renders the response of a demonstration; None for the reference.
        dev_size: Questions of the dev split, drawn from its data; None for all of them.
        digest: SHA-256 of the file's content, whatever its layout, and of the variant.
        prompt_digest: SHA-256 of what decides on prompts and on where responses end.
    """

    name: str
    file: Path
    summary: str
    variant: str | None
    data: DataSpec
    prompt: Template
    reference: tuple[Template, ...]
    choices: tuple[Template, ...]
    metric: str
    instructions: str
    group: Template | None
    source: Template | None
    extract: str | None
    stop: tuple[str, ...]
    max_new_tokens: int
    shots: int
    shot_response: Template | None
    dev_size: int | None
    digest: str
    prompt_digest: str


def read_definition(path: Path, variant: str | None = None) -> TaskDefinition:
    """Read a task file.

    Args:
        path: The file.
        variant: What the user wrote after the colon of the name; None takes the file's own ``variant``.

    Raises:
        InputError: The file, one of its keys, or the variant cannot be used.
    """
    keys = read_yaml(path)
    keys.check(_REQUIRED, _OPTIONAL)
    name = keys.text("name") or ""
    default = keys.text("variant")
    if variant is not None:
        if default is None:
            raise keys.error("variant", f"is missing, so there is no {name}:{variant}; write {name}")
        name = f"{name}:{variant}"
    chosen = variant or default

    def template(key: str) -> Template | None:
        source = keys.text(key)
        return None if source is None else Template(source, file=str(path), key=key)

    prompt = template("prompt")
    if prompt is None:  # cannot be: the key is required
        raise keys.error("prompt", "is missing; add it")
    definition = TaskDefinition(
        name=name,
        file=path,
        summary=keys.text("summary") or "",
        variant=chosen,
        data=read_data_spec(keys.mapping("data"), chosen or ""),
        prompt=prompt,
        reference=_templates(keys, "reference"),
        choices=_templates(keys, "choices"),
        metric=_metric(keys),
        instructions=keys.text("instructions") or "",
        group=template("group"),
        source=template("source"),
        extract=_extract(keys),
        stop=keys.texts("stop"),
        max_new_tokens=keys.count("max_new_tokens", least=1) or _MAX_NEW_TOKENS,
        shots=keys.count("shots", least=0) or 0,
        shot_response=template("shot_response"),
        dev_size=keys.count("dev_size", least=1),
        digest=_digest(keys.values, tuple(keys.values), chosen),
        prompt_digest=_digest(
            keys.values,
            ("prompt", "source", *_ANSWERED),
            chosen,
        ),
    )
    if bool(definition.choices) != (definition.metric == "choice"):
        raise keys.error("choices", "and `metric: choice` go together; give both or neither")
    return definition


def _templates(keys: Keys, key: str) -> tuple[Template, ...]:
    if key in keys.values and not keys.values[key]:
        raise keys.error(key, "is empty; give a text or a list of texts")
    return tuple(Template(source, file=keys.file, key=key) for source in keys.texts(key))


def _metric(keys: Keys) -> str:
    name = keys.text("metric") or ""
    known = ", ".join(metric_names())
    if name not in metric_names():
        raise keys.error("metric", f"{name} is not known; choose among {known}")
    return name


def _extract(keys: Keys) -> str | None:
    pattern = keys.text("extract")
    problem = patterns.problem(pattern) if pattern is not None else None
    if problem is not None:
        raise keys.error("extract", f"is not a regular expression: {problem}; correct it")
    return pattern


def _digest(values: Mapping[str, object], chosen: tuple[str, ...], variant: str | None) -> str:
    content = {key: value for key, value in values.items() if key in chosen}
    text = json.dumps([content, variant], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
