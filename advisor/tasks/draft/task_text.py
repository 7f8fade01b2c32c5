"""The text of a new task file with a comment for each guess, and what the task looks like once it is loaded."""

from __future__ import annotations

import itertools
import math
import random
import re
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from advisor.tasks.data_sources import open_source
from advisor.tasks.draft.columns import Columns
from advisor.tasks.draft.data import DraftData
from advisor.tasks.draft.guesses import Guess
from advisor.tasks.load import load_task
from advisor.tasks.metrics import COMPARING, READERS
from advisor.tasks.questions import QuestionBank
from advisor.tasks.task import JUDGE, Example, Score, Task
from advisor.tasks.task_file import read_definition
from ensemble.common.files import write_text
from ensemble.common.text import first_of, shortened, visible
from ensemble.errors import InputError

_MOST_SCORED = 2_500
"""References of a split that are scored: enough to find a wrong metric, in seconds."""
_MOST_COMPARED, _LONGEST_COMPARED = 10_000, 500
"""Pairs of an accepted text and another reference, and characters of the latter: together less than a second."""
_WIDTH = 118
_FEW_LINES = 5
"""Line ends of a text that stays on one line."""
_MOST_PLACES = 5
"""Places of records that are listed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A task file that loads, and what its references score."""

    dev: Task  # the dev questions
    held_out: Task  # the held-out questions
    scored: int  # how many references were scored; 0 for a judge, or without the permission to run programs
    # The questions whose reference does not score 1, and the responses that were scored.
    wrong: Sequence[tuple[Example, str]]
    # Pairs of different references that count as one answer; of a choice task, pairs of such options.
    alike: Sequence[tuple[str, str]]


def text_of_task(name: str, found: Guess, data: DraftData, columns: Columns, command: str) -> str:
    """The task file; its first comment has the command that writes it."""
    why, keys = data.why, dict(data.keys)
    needed = [found.question] if found.keys["metric"] == JUDGE else [found.question, found.reference]
    blank = {
        name: [n for n, texts in enumerate(columns.texts(name)) if not texts]
        for name in needed
        if name is not None and columns.filled(name) < 1
    }
    if blank:
        counts = "; ".join(f"{len(each):,} of {columns.count:,} records have no {name}" for name, each in blank.items())
        places = [data.records[n].place.rpartition("/")[2] for n in sorted(set().union(*blank.values()))]
        why += f"; {counts}, and are left out: {first_of(places, _MOST_PLACES)}"
        keys["where"] = _filled_only(keys.get("where"), keys, list(blank))
    lines = [
        *_comment(f"Written by `{shortened(command, 200)}`. Each comment says why; change what is wrong."),
        *_comment("docs/how-to/own-task.md describes every key."),
        _entry("name", name),
        *_comment(f"Data: {why}."),
        _entry("data", keys),
    ]
    if data.dev_size is not None:
        lines.append(f"dev_size: {data.dev_size}")
    for key, value in found.keys.items():
        if key in found.why:
            lines += _comment(f"{key}: {found.why[key]}.")
        lines.append(_entry(key, value))
    return "\n".join(lines) + "\n"


def try_out(text: str, out: Path, data_dir: Path | None, *, allow_code_execution: bool = False) -> Trial:
    """Load a task file before it is written to `out`, and score its references."""
    try:
        # In the same folder, because the paths of a task file start there.
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115  # it is closed below
            "w", encoding="utf-8", prefix=".", suffix=".yaml", dir=out.parent
        )
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}; give another --out") from error
    with file:
        file.write(text)
        file.flush()
        draft = file.name
        try:
            dev, held_out = (
                load_task(draft, split, data_dir, allow_code_execution=allow_code_execution)
                for split in ("dev", "held_out")
            )
            pairs = (
                [] if dev.metric == JUDGE else _references(Path(draft), data_dir, {"dev": dev, "held_out": held_out})
            )
        except InputError as error:
            raise InputError(str(error).replace(draft, str(out)).replace(str(Path(draft).name), out.name)) from error
    if dev.runs_code:
        pairs = pairs[:3] if allow_code_execution else []
    scores = dev.score_all(pairs) if pairs else ()
    # BLEU of a text with itself is 0.99...
    wrong = [pair for pair, score in zip(pairs, scores, strict=True) if score.value < 1 - 1e-6]
    alike = _alike_options(dev, pairs) if dev.metric == "choice" else _alike(dev, pairs, scores)
    return Trial(dev, held_out, len(pairs), wrong, alike)


def _alike(task: Task, pairs: Sequence[tuple[Example, str]], scores: Sequence[Score]) -> list[tuple[str, str]]:
    """Different references that count as one answer: the response of one question is right for another."""
    if task.runs_code or task.metric in READERS or task.metric in COMPARING:
        return []
    first: dict[str | None, tuple[Example, str]] = {}
    compared = [(first.setdefault(score.extracted, pair), pair) for pair, score in zip(pairs, scores, strict=True)]
    # A metric such as `contains` has no common form of an answer, so each is compared with all others of a sample.
    short = [pair for pair in pairs if len(pair[1]) <= _LONGEST_COMPARED]
    size = math.isqrt(_MOST_COMPARED * len(short) // max(1, sum(len(example.accepted) for example, _ in short)))
    compared += itertools.permutations(random.Random(0).sample(short, min(len(short), size)), 2)
    parts = {id(one): {_what_differs(text, task.metric) for text in one.accepted} for one, _ in pairs}
    found = {}
    for (one, _), (other, response) in compared:
        if parts[id(one)].isdisjoint(parts[id(other)]) and task.score(one, response).value == 1:
            names = one.accepted[0], other.accepted[0]
            found[frozenset(names)] = names
    return list(found.values())


def _what_differs(text: str, metric: str) -> str:
    """What makes two references different: of numbers the unit, of texts more than articles, full stops and titles."""
    if metric.startswith("number"):
        return re.sub(r"\\\w+|[\W\d_]", "", text)
    words = [word.lower() if word.istitle() else word for word in text.strip(" .").split()]
    return re.sub(r"^(?:an?|the) ", "", " ".join(words), flags=re.IGNORECASE)


def _alike_options(task: Task, pairs: Sequence[tuple[Example, str]]) -> list[tuple[str, str]]:
    """Options that are read as one, in the order of the task or in the other direction."""
    found = []
    for example, _ in random.Random(0).sample(pairs, min(len(pairs), _MOST_SCORED // 10)):
        for choices in (example.choices, example.choices[::-1]):
            first: dict[str | None, int] = {}
            for place, choice in enumerate(choices):
                letter = task.score(replace(example, choices=choices), choice).extracted
                if (other := first.setdefault(letter, place)) != place:
                    found.append((choices[other], choice))
    return list(dict.fromkeys(found))


def write_task(text: str, out: Path) -> None:
    """Write the task file, whole or not at all."""
    try:
        write_text(out, text)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}; give another --out") from error


def check_free(out: Path, *, force: bool) -> None:
    """Check that a task file can be written, and replaces another only with `force`."""
    if out.suffix.lower() not in (".yaml", ".yml") or not out.parent.is_dir():
        raise InputError(f"--out {out}: give a file that ends in .yaml, in a folder that exists")
    if out.exists() and (not force or not out.is_file()):
        raise InputError(f"{out} exists; give --force to replace it, or another --out")


def _references(path: Path, data_dir: Path | None, tasks: Mapping[str, Task]) -> list[tuple[Example, str]]:
    """Questions of the splits, and for each what a model should write: the response of a demonstration."""
    pairs = []
    definition = read_definition(path, None)
    source = open_source(definition.settings.data, path, data_dir)
    bank = QuestionBank(definition, source)
    for split, task in tasks.items():
        questions = {question.id: question for question in bank.split(source.split_of(split))}
        for example in task.examples[:_MOST_SCORED]:
            question = questions[example.id]
            pairs.append((example, bank.shot(question).removeprefix(question.text)))
    return pairs


def _filled_only(where: object, keys: Mapping[str, object], names: Sequence[str]) -> dict[str, str]:
    """Conditions that leave out the records without a value in some columns, added to those of the splits."""
    # Blanks and empty lists are as empty as nothing.
    filled = " and ".join(
        f"{name} is defined and {name} is not none and {name} | string | trim not in ('', '[]')" for name in names
    )
    # The conditions of local files are by role, and those of the hub by its split.
    splits = [str(keys[role]) for role in ("dev", "held_out")] if "hub" in keys else ["dev", "held_out"]
    before = where if isinstance(where, dict) else {}
    return {
        split: f"{{{{{before[split].strip('{}')} and {filled}}}}}" if split in before else f"{{{{{filled}}}}}"
        for split in splits
    }


def _comment(text: str) -> list[str]:
    # Names of files and columns are in it: one line each, so that none can end the comment.
    plain = " ".join(visible(text).split())
    return textwrap.wrap(plain, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


class _Dumper(yaml.SafeDumper):
    """Writes texts in double quotes, or as they are where they are names or have many lines."""

    def text(self, text: str) -> yaml.ScalarNode:
        is_plain = re.fullmatch(r"[A-Za-z_][\w./-]*", text)
        style = None if is_plain else "|" if text.count("\n") > _FEW_LINES else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.text)


def _entry(key: str, value: object) -> str:
    """A key with its value: on one line, or a long mapping with a line for each of its keys."""
    line = f"{key}: {_yaml(value, flow=True)}"
    is_long = isinstance(value, dict) and len(line) >= _WIDTH
    return f"{key}:\n{textwrap.indent(_yaml(value, flow=False), '  ')}" if is_long else line


def _yaml(value: object, *, flow: bool) -> str:
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=flow, width=math.inf, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("...\n").rstrip("\n")
