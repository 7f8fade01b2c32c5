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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import cast

from advisor.tasks import metrics
from advisor.tasks.data_files import Record, read_text
from advisor.tasks.data_sources import DataSpec, Files
from advisor.tasks.task import JUDGE, MODES, SCORINGS, VERDICTS, Mode, Rubric, Scoring
from advisor.tasks.templates import Template, check_pattern
from advisor.tasks.yaml_text import parse_yaml
from ensemble.common.limits import LimitedProcess
from ensemble.errors import InputError

_REQUIRED = ("name", "data", "prompt", "reference", "metric")
_OPTIONAL = (
    "summary",
    "id",
    "variant",
    "follow_ups",
    "instructions",
    "choices",
    "scoring",
    "group",
    "cluster",
    "source",
    "extract",
    "stop",
    "max_new_tokens",
    "shots",
    "shots_by_group",
    "shot_response",
    "dev_size",
    "forms",
    "judge",
)
_FORM_KEYS = ("prompt", "choices", "scoring", "instructions", "shot_response", "shots", "stop", "extract", "judge")
"""What a form of a task may change: how it is put, and not what is asked."""
# The keys that decide what a model or a judge reads, and where its response ends.
_PROMPT_KEYS = (
    "prompt",
    "follow_ups",
    "source",
    "reference",
    "choices",
    "scoring",
    "instructions",
    "shots_by_group",
    "shot_response",
    "stop",
    "extract",
    "max_new_tokens",
    "judge",
)
_HUB_KEYS = ("config", "revision", "fields")
_ROLES = ("dev", "held_out", "shots")
_MAX_NEW_TOKENS = 256
_RUBRIC_KEYS = ("mode", "verdict", "pattern", "scale", "max_new_tokens")
_PATTERNS = {"single": r"\[\[(-?\d+(?:\.\d+)?)\]\]", "pairwise": r"\[\[([ABC])\]\]"}
"""How a judge writes its verdict by default: as in MT-Bench (Zheng et al., 2023, appendix A)."""
_SHOWN = {"single": {"response"}, "pairwise": {"response_a", "response_b"}}
"""The fields of a judge's prompt that hold responses."""
_FIELDS = {"question", "reference", "turns", "group"}
"""Its other fields; ``turns`` has responses, too."""
_LARGEST = 2**18  # bytes of a task file: a hundred times the largest built-in one, and YAML is read in seconds
_LONGEST_PATH = 1000  # characters; a file system has names of 255 bytes, and errors that differ
_MOST = 10**9  # of every count; a number of thousands of digits cannot even be printed


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """The content of a task file.

    Attributes:
        name: The task's name, with ``:variant`` and ``:form`` if the user chose them.
        file: The task file, for messages.
        summary: One line for lists.
        variant: The value of ``{{variant}}``; None if the file has no variants.
        data: Where the records come from.
        id: Renders a question's id; None for the field ``id``.
        prompt: Renders a question.
        follow_ups: Render what the user says after the responses to the question; empty for questions of one turn.
        reference: Render the accepted texts; a template whose value is a list gives several.
        choices: Render the options of a choice task; empty for others.
        metric: Name of the metric.
        scoring: What decides between the options of a choice task.
        instructions: Renders the text before the shots; None for none.
        group: Renders the part of the task that a question belongs to.
        cluster: Renders what a question shares with others, for example its passage.
        source: Renders the bare text that encoder-decoder models read; None if they read the prompt.
        extract: Regular expression on the response.
        stop: Stop strings, not empty.
        max_new_tokens: At least 1.
        shots: Demonstrations, if the user gives no other number.
        shots_by_group: Whether the demonstrations of a question are of its group.
        shot_response: Renders the response of a demonstration; None for the reference.
        dev_size: Questions of the dev split, drawn from its data; None for all of them.
        digest: SHA-256 of the file's content, without its layout, and of the variant.
        prompt_digest: SHA-256 of the keys that decide what a model reads and where its response ends.
        rubric: How a judge grades the responses; None for other metrics.
    """

    name: str
    file: Path
    summary: str
    variant: str | None
    data: DataSpec
    id: Template | None
    prompt: Template
    follow_ups: tuple[Template, ...]
    reference: tuple[Template, ...]
    choices: tuple[Template, ...]
    metric: str
    scoring: Scoring
    instructions: Template | None
    group: Template | None
    cluster: Template | None
    source: Template | None
    extract: str | None
    stop: tuple[str, ...]
    max_new_tokens: int
    shots: int
    shots_by_group: bool
    shot_response: Template | None
    dev_size: int | None
    digest: str
    prompt_digest: str
    rubric: Rubric | None


class Keys:
    """The keys of one mapping of a YAML file. Messages name the file and the key.

    Args:
        values: The mapping.
        file: The file.
        child: The process that compiles and renders what could waste time or memory.
        under: The keys above this mapping, each followed by a dot.
    """

    __slots__ = ("_child", "file", "under", "values")

    def __init__(self, values: Mapping[str, object], file: str, child: LimitedProcess, under: str = "") -> None:
        self.values, self.file, self._child, self.under = values, file, child, under

    def with_values(self, values: Mapping[str, object]) -> Keys:
        """Other values of the same mapping."""
        return Keys(values, self.file, self._child, self.under)

    def error(self, key: str, message: str) -> InputError:
        """An error about one key."""
        return InputError(f"{self.file}: {self.under}{key} {message}")

    def check(self, required: Iterable[str], optional: Iterable[str]) -> None:
        """Raise InputError if a required key is missing, or if a key is neither required nor optional."""
        required = tuple(required)
        known = {*required, *optional}
        for key in self.values:
            if key not in known:
                raise self.error(key, f"is not a key of a task file; use one of {', '.join(sorted(known))}")
        for key in required:
            if key not in self.values:
                raise self.error(key, "is missing; add it")

    def text(self, key: str) -> str | None:
        """A text that is not blank; None if the key is absent."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"must be text that is not blank, not {_shown(value)}")
        return self._valid(key, value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A text or a list of texts, as a tuple; empty if the key is absent. White space alone is allowed."""
        if key not in self.values:
            return ()
        value = self.values[key]
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            raise self.error(key, f"must be a text or a list of texts that are not empty, not {_shown(value)}")
        return tuple(self._valid(key, item) for item in items)

    def count(self, key: str, *, least: int) -> int | None:
        """A whole number of at least ``least``; None if the key is absent."""
        if key not in self.values:
            return None
        value = self.values[key]
        # Python counts True as 1; in a task file it is a mistake.
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(key, f"must be a whole number of at least {least}, not {_shown(value)}")
        if value > _MOST:
            raise self.error(key, f"is larger than {_MOST:,}; give a smaller number")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false if the key is absent."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {_shown(value)}")
        return value

    def mapping(self, key: str) -> Keys:
        """The mapping under a key; empty if the key is absent."""
        value = self.values.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self.error(key, f"must hold keys of text with values, not {_shown(value)}")
        return Keys(value, self.file, self._child, f"{self.under}{key}.")

    def template(self, key: str) -> Template | None:
        """The template under a key; None if the key is absent."""
        source = self.text(key)
        return None if source is None else self.compiled(key, source)

    def templates(self, key: str) -> tuple[Template, ...]:
        """The template or the list of templates under a key; empty if the key is absent."""
        if key in self.values and not self.values[key]:
            raise self.error(key, "is empty; give a text or a list of texts")
        return tuple(self.compiled(key, source) for source in self.texts(key))

    def pattern(self, key: str) -> str | None:
        """The regular expression under a key; None if the key is absent."""
        pattern = self.text(key)
        problem = None if pattern is None else check_pattern(pattern, self._child)
        if problem is not None:
            raise self.error(key, f"is not a regular expression that can be used: {problem}; correct it")
        return pattern

    def compiled(self, key: str, source: str) -> Template:
        """The template of a text under a key."""
        return Template(source, file=self.file, key=f"{self.under}{key}", child=self._child)

    def all_templates(self) -> dict[str, Template]:
        """The templates under all keys, by key."""
        return {key: template for key in self.values if (template := self.template(key)) is not None}

    def check_path(self, key: str, path: str) -> str:
        """Check that a path stays within the folder that it starts from, as far as its text tells; gives the path.

        Task files are shared. One that names a file elsewhere could put private files into prompts and reports.
        """
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

    def _valid(self, key: str, text: str) -> str:
        # "\\ud800" in YAML is half a surrogate pair, which no tokenizer and no UTF-8 file can hold.
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise self.error(key, "holds half a surrogate pair; write the whole character")
        return text


def read_definition(path: Path, variant: str | None, child: LimitedProcess) -> TaskDefinition:
    """Read a task file.

    Args:
        path: The file.
        variant: The text after the colon of the task's name: a variant, a form, or both (``anatomy:texts``). None
            takes the file's ``variant`` and its first form.
        child: The process that compiles and renders what could waste time or memory; the templates keep it.

    Raises:
        InputError: The file, one of its keys, or the variant cannot be used.
    """
    keys = read_keys(path, child)
    # A judge can grade responses to questions that have no right answer.
    optional = {"reference"} if keys.values.get("metric") == JUDGE else set()
    keys.check([key for key in _REQUIRED if key not in optional], (*_OPTIONAL, *optional))
    name = keys.text("name") or ""
    forms = keys.mapping("forms").values
    keys, form, variant = _in_form(keys, variant)
    default = keys.text("variant")
    if variant is not None:
        if default is None:
            names = ", ".join([name, *(f"{name}:{each}" for each in forms)])
            raise keys.error("variant", f"is missing, so there is no {name}:{variant}; write {names}")
        name = f"{name}:{variant}"
    name += f":{form}" if form else ""
    chosen = variant or default
    metric = keys.text("metric") or ""
    metrics.plugins().check(metric)
    if metric not in metrics.metric_names():
        known = ", ".join(map(metrics.plugins().label, metrics.metric_names()))
        raise keys.error("metric", f"{_shown(metric)} is not known; choose among {known}")
    if ("choices" in keys.values) != (metric == "choice"):
        raise keys.error("choices", "and `metric: choice` go together; give both or neither")
    scoring = keys.text("scoring") or "texts"
    if scoring not in SCORINGS or ("scoring" in keys.values and metric != "choice"):
        raise keys.error("scoring", f"goes with `metric: choice` and is {', '.join(SCORINGS)}, not {_shown(scoring)}")
    # An encoder reads one source, and options are no response that a second turn could be about.
    for key in ("source", "choices"):
        if "follow_ups" in keys.values and key in keys.values:
            raise keys.error("follow_ups", f"cannot be used with `{key}`; leave out one of them")
    if ("judge" in keys.values) != (metric == JUDGE):
        raise keys.error("judge", "and `metric: judge` go together; give both or neither")
    if metric == JUDGE and "extract" in keys.values:
        raise keys.error("extract", "has no effect with `metric: judge`, which reads whole responses; leave it out")
    by_group = keys.flag("shots_by_group")
    if by_group and "group" not in keys.values:
        raise keys.error("shots_by_group", "needs `group`; add it, or leave this out")
    return TaskDefinition(
        name=name,
        file=path,
        summary=keys.text("summary") or "",
        variant=chosen,
        data=_data_spec(keys.mapping("data"), chosen or ""),
        id=_field(keys, "id"),
        # `check` has made sure that the prompt is there, and `text` that it is not blank.
        prompt=keys.compiled("prompt", keys.text("prompt") or ""),
        follow_ups=keys.templates("follow_ups"),
        reference=keys.templates("reference"),
        choices=keys.templates("choices"),
        metric=metric,
        scoring=cast(Scoring, scoring),
        instructions=keys.template("instructions"),
        group=keys.template("group"),
        cluster=_field(keys, "cluster"),
        source=keys.template("source"),
        extract=keys.pattern("extract"),
        stop=keys.texts("stop"),
        max_new_tokens=keys.count("max_new_tokens", least=1) or _MAX_NEW_TOKENS,
        shots=keys.count("shots", least=0) or 0,
        shots_by_group=by_group,
        shot_response=keys.template("shot_response"),
        dev_size=keys.count("dev_size", least=1),
        digest=_digest(keys.values, tuple(keys.values), chosen),
        prompt_digest=_digest(keys.values, _PROMPT_KEYS, chosen),
        rubric=_rubric(keys.mapping("judge")) if metric == JUDGE else None,
    )


def _in_form(keys: Keys, chosen: str | None) -> tuple[Keys, str, str | None]:
    """The keys of the chosen form, or else of the first one; its name, empty if none was chosen; and the variant."""
    forms = keys.mapping("forms")
    if not forms.values:
        return keys, "", chosen
    variant, colon, form = (chosen or "").rpartition(":")
    if form not in forms.values:
        if colon:
            raise keys.error("forms", f"has no {form}; use one of {', '.join(forms.values)}")
        variant, form = chosen or "", ""
    changes = forms.mapping(form or next(iter(forms.values)))
    changes.check((), _FORM_KEYS)
    values = {key: value for key, value in keys.values.items() if key != "forms"} | dict(changes.values)
    return keys.with_values(values), form, variant or None


def _rubric(keys: Keys) -> Rubric:
    """How a judge grades, from the mapping under ``judge``."""
    keys.check(("prompt",), _RUBRIC_KEYS)
    mode, verdict = keys.text("mode") or MODES[0], keys.text("verdict") or VERDICTS[0]
    for key, value, allowed in (("mode", mode, MODES), ("verdict", verdict, VERDICTS)):
        if value not in allowed:
            raise keys.error(key, f"is {' or '.join(allowed)}, not {_shown(value)}")
    if verdict == "likelihood" and (stray := {"pattern", "max_new_tokens"} & keys.values.keys()):
        raise keys.error(min(stray), "has no effect with `verdict: likelihood`, which writes no text; leave it out")
    if mode == "pairwise" and "scale" in keys.values:
        raise keys.error("scale", "has no effect with `mode: pairwise`, which gives no grades; leave it out")
    scale = keys.values.get("scale", [1, 10] if verdict == "text" else [1, 5])
    # No grade is the beginning of another one, so that the probability of 1 has no part of that of 10.
    most = 1000 if verdict == "text" else 9
    if (
        not isinstance(scale, list)
        or len(scale) != 2
        or not all(type(end) is int for end in scale)
        or not 0 <= scale[0] < scale[1] <= most
    ):
        raise keys.error("scale", f"must be two whole numbers from 0 to {most}, the lower first, not {_shown(scale)}")
    source = keys.text("prompt") or ""
    named = keys.compiled("prompt", source).named
    responses = _SHOWN[mode]
    if unknown := named - responses - _FIELDS:
        known = ", ".join(sorted(responses | _FIELDS))
        raise keys.error("prompt", f"names the field '{min(unknown)}', and with `mode: {mode}` there is only {known}")
    if "turns" not in named and not responses <= named:
        raise keys.error("prompt", f"must show what is judged; add {{{{{min(responses - named)}}}}}")
    return Rubric(
        mode=cast(Mode, mode),
        prompt=source,
        file=keys.file,
        verdict=verdict,
        pattern=keys.pattern("pattern") or _PATTERNS[mode],
        scale=(scale[0], scale[1]),
        max_new_tokens=keys.count("max_new_tokens", least=1) or _MAX_NEW_TOKENS,
    )


def _field(keys: Keys, key: str) -> Template | None:
    source = keys.text(key)
    # A text without a template is a field's name: the same cluster or id for all questions would say nothing.
    if source is not None and "{" not in source:
        source = f"{{{{{source}}}}}"
    return None if source is None else keys.compiled(key, source)


def _data_spec(keys: Keys, variant: str) -> DataSpec:
    """Check the mapping under ``data``; ``{{variant}}`` is filled in everywhere but in ``fields`` and ``where``."""
    hub, local = keys.text("hub"), _files(keys.mapping("local"), variant, skip=())
    where = keys.mapping("where").all_templates()
    if hub is None and not local:
        stray = [key for key in _HUB_KEYS if key in keys.values]
        if stray:
            raise keys.error(stray[0], "goes with `hub`; add `hub`, or leave this out")
        for role in ("dev", "held_out"):
            if role not in keys.values:
                raise keys.error(role, "is missing; give its file, or `hub` and a split of its data")
        files = _files(keys, variant, skip=("local", "where"))
        return DataSpec(None, None, None, {}, {split: split for split in files}, files, {}, where)
    if hub is not None and hub.startswith((".", "/")):
        keys.check_path("hub", hub)
    keys.check(("dev", "held_out"), ("hub", *_HUB_KEYS, "shots", "local", "where"))
    return DataSpec(
        hub=hub,
        config=_filled(keys, "config", variant),
        revision=keys.text("revision"),
        fields=keys.mapping("fields").all_templates(),
        roles={role: split for role in _ROLES if (split := _filled(keys, role, variant)) is not None},
        files={},
        local=local,
        where=where,
    )


def _files(keys: Keys, variant: str, *, skip: tuple[str, ...]) -> dict[str, Files]:
    files: dict[str, Files] = {}
    for split, value in keys.values.items():
        if split in skip:
            continue
        if isinstance(value, dict):
            columns = keys.mapping(split)
            files[split] = {
                field: columns.check_path(field, _filled(columns, field, variant) or "") for field in columns.values
            }
        else:
            files[split] = keys.check_path(split, _filled(keys, split, variant) or "")
    return files


def _filled(keys: Keys, key: str, variant: str) -> str | None:
    source = keys.text(key)
    if source is None or "{" not in source:
        return source
    return keys.compiled(key, source).text(Record({"variant": variant}, "the variant in the task's name"))


def _digest(values: Mapping[str, object], chosen: tuple[str, ...], variant: str | None) -> str:
    content = {key: value for key, value in values.items() if key in chosen}
    text = json.dumps([content, variant], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def read_keys(path: Path, child: LimitedProcess) -> Keys:
    """Read a file that holds one mapping, without checking the keys.

    Raises:
        InputError: The file cannot be read, is not YAML, or does not hold one mapping.
    """
    text = read_text(path, _LARGEST, "give the path of a task file, or a name that `advisor tasks` lists")
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{path} must hold keys with values, such as `name: refunds`, not {_shown(values)}")
    return Keys(values, str(path), child)


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists
        return f"{type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."
