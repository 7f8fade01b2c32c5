r"""The task file: YAML, read and checked before any data is loaded.

    name: refunds
    data: {dev: dev.jsonl, held_out: test.jsonl}
    prompt: "Question: {{question}}\nAnswer:"
    reference: "{{answer}}"
    metric: exact_match

docs/how-to/own-task.md lists all keys. ``data`` names local files, relative to the task file, or a data set of the hub:

    data:
      hub: openai/gsm8k
      config: main
      dev: train
      held_out: test
      local: {train: gsm8k/train.jsonl, test: gsm8k/test.jsonl}   # the same data below --data DIR
      where: {train: "{{level < 3}}"}                       # which records belong to a split; without it, all of them

Not covered: Python in a task, tasks made of other tasks, several YAML documents in one file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

import yaml

from advisor.tasks import metrics
from advisor.tasks.data_files import Record, read_text
from advisor.tasks.task import JUDGE
from advisor.tasks.templates import FAILURES, Template, check_pattern
from ensemble.errors import InputError

if TYPE_CHECKING:
    from advisor.tasks.schema import FileData, HubData, Rubric, TaskFile

# The keys that decide what a model or a judge reads, and where its response ends.
_PROMPT_KEYS = (
    *("prompt", "follow_ups", "source", "reference", "choices", "scoring", "instructions", "shots_by_group"),
    *("shot_response", "stop", "extract", "max_new_tokens", "judge"),
)
_HUB_KEYS = ("config", "revision", "fields")
_SHOWN = {"single": {"response"}, "pairwise": {"response_a", "response_b"}}
"""The fields of a judge's prompt that hold responses."""
_FIELDS = {"question", "reference", "turns", "group"}
"""Its other fields; ``turns`` has responses, too."""
_LAST_NUMBER = r"((?:(?<![\w)\]%])[-\u2212])?(?<!\d|\d[.,])\d(?:[\d.,]*\d)?)\D*\Z"
"""The pattern of ``extract: last_number``: the last number of a response, whatever stands around it."""
_LARGEST = 2**18  # bytes of a task file: a hundred times the largest built-in one, and YAML is read in seconds
_LONGEST_PATH = 1000  # characters; a file system has names of 255 bytes, and errors that differ
_WAY_OUT = "correct it as docs/how-to/own-task.md says"


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """A task file, and what follows from its keys, from the variant and from the form that the user chose."""

    name: str  # with ``:variant`` and ``:form`` if they were chosen
    file: Path
    settings: TaskFile
    variant: str | None  # the value of ``{{variant}}``; None if the file has no variants
    metric: str
    extract: str | None
    digest: str  # SHA-256 of the file's content, without its layout, and of the variant
    prompt_digest: str  # the same of the keys that decide what a model reads and where its response ends


@dataclass(frozen=True, slots=True)
class Texts:
    """What compiles the texts of a task file. Messages name the file and the key."""

    file: str

    def error(self, key: str, message: str) -> InputError:
        """An error about one key."""
        return InputError(f"{self.file}: {key} {message}")

    def pattern(self, key: str, pattern: str | None) -> str | None:
        """A regular expression under a key, after a check that it can be used; None for None."""
        problem = None if pattern is None else check_pattern(pattern)
        if problem is not None:
            raise self.error(key, f"is not a regular expression that can be used: {problem}; correct it")
        return pattern

    def filled(self, key: str, source: str, variant: str) -> str:
        """A text under a key with ``{{variant}}`` filled in."""
        if "{" not in source:
            return source
        return Template(source, file=self.file, key=key).text(
            Record({"variant": variant}, "the variant in the task's name")
        )

    def check_path(self, key: str, path: str) -> str:
        """Check that a path stays within the folder that it starts from, as far as its text tells; gives the path."""
        # Task files are shared. One that names a file elsewhere could put private files into prompts and reports.
        if len(path) > _LONGEST_PATH:
            raise self.error(key, f"is longer than {_LONGEST_PATH:,} characters; give a shorter path")
        parts = PurePosixPath(path).parts
        # By its text, so that the message can name the key. The names may be links, so `check_files` looks again.
        parent = os.path.normpath(Path(self.file).absolute().parent)
        if not Path(os.path.normpath(Path(parent, path))).is_relative_to(parent) or "\0" in path:
            raise self.error(
                key,
                f"must be a path within the folder of the task file or of --data, not {_shown(path)}; move the data",
            )
        # Each level of * multiplies the folders that are listed, and ** lists all of them.
        if sum("*" in part for part in parts) > 2 or "**" in path:
            raise self.error(key, f"may have * in at most two names of the path, and no **, not {_shown(path)}")
        return path


def read_definition(path: Path, variant: str | None, *, needs_reference: bool = True) -> TaskDefinition:
    """Read a task file; the `variant` may also be a form, or both (``anatomy:texts``). By default forms, the first."""
    # The child process imports this module, and its time counts.
    from advisor.tasks.schema import TaskFile
    from ensemble.common.schema import validated

    values = read_mapping(path)
    texts = Texts(str(path))
    whole = validated(TaskFile, values, texts.file, _WAY_OUT, clean=False)
    values, form, variant = _in_form(whole, values, variant, texts)
    name, chosen = whole.name, variant or whole.variant
    if variant is not None:
        if whole.variant is None:
            names = ", ".join([name, *(f"{name}:{each}" for each in whole.forms)])
            raise texts.error("variant", f"is missing, so there is no {name}:{variant}; write {names}")
        name = f"{name}:{variant}"
    name += f":{form}" if form else ""
    data = _with_variant(whole.data, cast("Mapping[str, object]", values["data"]), chosen or "", texts)
    file = TaskFile.model_validate({**values, "data": data}, context=texts.file)
    _check_together(file, texts, needs_reference=needs_reference)
    return TaskDefinition(
        name=name,
        file=path,
        settings=file,
        variant=chosen,
        # Another metric, so that votes and run folders need only its name.
        metric="number_comma" if file.decimal == "," else "exact_match_squad" if file.normalise else file.metric,
        extract=_LAST_NUMBER if file.extract == "last_number" else texts.pattern("extract", file.extract),
        digest=_digest(values, tuple(values), chosen),
        prompt_digest=_digest(values, _PROMPT_KEYS, chosen),
    )


def _check_together(file: TaskFile, texts: Texts, *, needs_reference: bool) -> None:
    """Raise InputError if the metric is not known, or keys do not go together."""
    metrics.plugins().check(file.metric)
    if file.metric not in metrics.metric_names():
        known = ", ".join(map(metrics.plugins().label, metrics.metric_names()))
        raise texts.error("metric", f"{_shown(file.metric)} is not known; choose among {known}")
    # A judge can grade responses to questions that have no right answer.
    if needs_reference and not file.reference and file.metric != JUDGE:
        raise texts.error("reference", "is missing; add it, or label some answers (advisor label)")
    if bool(file.choices) != (file.metric == "choice"):
        raise texts.error("choices", "and `metric: choice` go together; give both or neither")
    for name, metric, given in (
        ("decimal", "number", file.decimal),
        ("normalise", "exact_match", file.normalise),
        ("scoring", "choice", file.scoring),
        ("extract: last_number", "number", file.extract if file.extract == "last_number" else None),
    ):
        if given is not None and file.metric != metric:
            raise texts.error(name, f"goes with `metric: {metric}`; leave it out")
    # An encoder reads one source, and options are no response that a second turn could be about.
    for key, value in (("source", file.source), ("choices", file.choices)):
        if file.follow_ups and value:
            raise texts.error("follow_ups", f"cannot be used with `{key}`; leave out one of them")
    if (file.judge is not None) != (file.metric == JUDGE):
        raise texts.error("judge", "and `metric: judge` go together; give both or neither")
    if file.metric == JUDGE and file.extract is not None:
        raise texts.error("extract", "has no effect with `metric: judge`, which reads whole responses; leave it out")
    if file.shots_by_group and file.group is None:
        raise texts.error("shots_by_group", "needs `group`; add it, or leave this out")
    if file.judge is not None:
        _check_rubric(file.judge, texts)


def _in_form(
    file: TaskFile, values: Mapping[str, object], chosen: str | None, texts: Texts
) -> tuple[dict[str, object], str, str | None]:
    """The keys in the chosen form, or else in the first one; its name, empty if none was chosen; and the variant."""
    if not file.forms:
        return dict(values), "", chosen
    variant, colon, form = (chosen or "").rpartition(":")
    if form not in file.forms:
        if colon:
            raise texts.error("forms", f"has no {form}; use one of {', '.join(file.forms)}")
        variant, form = chosen or "", ""
    forms = cast("Mapping[str, Mapping[str, object]]", values["forms"])
    # As they are written, so that the digest does not depend on how they are read.
    changes = forms[form or next(iter(forms))]
    return {key: value for key, value in values.items() if key != "forms"} | dict(changes), form, variant or None


def _check_rubric(rubric: Rubric, texts: Texts) -> None:
    """Raise InputError if keys under ``judge`` do not go together."""
    given = rubric.model_fields_set
    for key in ("max_new_tokens", "pattern"):
        if rubric.verdict == "likelihood" and key in given:
            effect = "has no effect with `verdict: likelihood`, which writes no text; leave it out"
            raise texts.error(f"judge.{key}", effect)
    if rubric.mode == "pairwise" and "scale" in given:
        raise texts.error("judge.scale", "has no effect with `mode: pairwise`, which gives no grades; leave it out")
    # No grade is the beginning of another one, so that the probability of 1 has no part of that of 10.
    if rubric.verdict == "likelihood" and rubric.scale[1] > 9:
        raise texts.error(
            "judge.scale", "should be two whole numbers from 0 to 9 with `verdict: likelihood`; correct it"
        )
    texts.pattern("judge.pattern", rubric.pattern)
    named = Template(rubric.prompt, file=texts.file, key="judge.prompt").named
    responses = _SHOWN[rubric.mode]
    if unknown := named - responses - _FIELDS:
        known = ", ".join(sorted(responses | _FIELDS))
        message = f"names the field '{min(unknown)}', and with `mode: {rubric.mode}` there is only {known}"
        raise texts.error("judge.prompt", message)
    if "turns" not in named and not responses <= named:
        raise texts.error("judge.prompt", f"must show what is judged; add {{{{{min(responses - named)}}}}}")


def _with_variant(
    data: HubData | FileData, values: Mapping[str, object], variant: str, texts: Texts
) -> dict[str, object]:
    """The keys of ``data`` with ``{{variant}}`` filled in, except in ``fields`` and ``where``; paths are checked."""
    from advisor.tasks.schema import FileData

    is_of_files = isinstance(data, FileData)
    if isinstance(data, FileData):
        if stray := next((key for key in _HUB_KEYS if key in values), None):
            raise texts.error(f"data.{stray}", "goes with `hub`; add `hub`, or leave this out")
    elif (data.hub or "").startswith((".", "/")):
        raise texts.error("data.hub", "is the id of a data set, ORG/NAME; write files under `dev` and `held_out`")

    def filled(key: str, value: object) -> object:
        if isinstance(value, Mapping):
            return {name: filled(f"{key}.{name}", each) for name, each in value.items()}
        if not isinstance(value, str):
            return value
        text = texts.filled(key, value, variant)
        return texts.check_path(key, text) if is_of_files or key.startswith("data.local.") else text

    kept = ("hub", "revision", "fields", "where")
    return {key: value if key in kept else filled(f"data.{key}", value) for key, value in values.items()}


def _digest(values: Mapping[str, object], chosen: tuple[str, ...], variant: str | None) -> str:
    content = {key: value for key, value in values.items() if key in chosen}
    text = json.dumps([content, variant], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses two things that do harm in a shared file: aliases, and a key twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # By aliases a short file can describe an endless one.
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        # YAML would silently take the last of two equal keys.
        if len(mapping) < len(node.value):
            names = [self.construct_object(key) for key, _ in node.value]
            twice = next(name for name in names if names.count(name) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice} is given twice", node.start_mark)
        return mapping


def _parse_yaml(text: str, place: str) -> object:
    """The value of a YAML text; `place` is the file, for messages, which name the line."""
    try:
        # The class derives from SafeLoader, so YAML tags cannot create Python objects.
        return yaml.load(text, Loader=_Loader)
    # Not only YAMLError: the library's own tags raise what their conversion raises. `!!int ""` is an IndexError,
    # `!!bool x` a KeyError, `!!timestamp x` an AttributeError.
    except (yaml.YAMLError, *FAILURES) as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or error).partition("\n")[0]
        where = f"{place}:{mark.line + 1}" if mark is not None else place
        hint = "quote text that begins with {{" if "unhashable" in problem else "correct the line"
        raise InputError(f"{where}: not valid YAML: {problem}; {hint}") from error


def read_mapping(path: Path) -> dict[str, object]:
    """Read a file that holds one mapping, without checking its keys."""
    text = read_text(path, _LARGEST, "give the path of a task file, or a name that `advisor tasks` lists")
    values = _parse_yaml(text, str(path))
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{path} must hold keys with values, such as `name: refunds`, not {_shown(values)}")
    return values


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists
        return f"{type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."
