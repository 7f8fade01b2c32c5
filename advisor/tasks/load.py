"""Load a task: read its file, fetch its data, draw its splits, render its prompts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.tasks.data_files import TABLES, Record, data_suffix
from advisor.tasks.data_sources import GIVEN, open_source
from advisor.tasks.metrics import RULES, get_metric, plugins, runs_code
from advisor.tasks.questions import QuestionBank, draw_shots, outside_clusters, sample, seeded, without
from advisor.tasks.task import LM_EVAL, Task, fingerprint, sha256
from advisor.tasks.task_file import read_definition, read_mapping
from ensemble.common.files import exists
from ensemble.common.text import did_you_mean
from ensemble.errors import InputError

if TYPE_CHECKING:
    from ensemble.models.prompts import PromptTemplate


def load_task(  # noqa: PLR0913  # the documented API: each has its default
    name_or_path: str | Path,
    split: str = "dev",
    data_dir: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    allow_code_execution: bool = False,
    allow_weak_sandbox: bool = False,
    needs_reference: bool = True,
    questions: str | Path | None = None,
) -> Task:
    """Load one split of a task.

    Args:
        name_or_path: A built-in task's name, or the path of a task file; ``:variant`` may follow. Or
            ``lm_eval:NAME``, see :mod:`advisor.tasks.lm_eval_tasks`.
        split: ``dev``; ``held_out``, which never holds a dev question or a shot (for the same seed and shots); or the
            name of a split of the data, such as ``test``, which is taken whole, without the shots.
        data_dir: Folder with local copies of the data, instead of the hub. A task's own files are looked for there
            first, and then beside the task file.
        shots: Demonstrations before each question, at least 0; None for the task's own number.
        limit: Maximum number of questions, at least 1. They are the first of a seeded order, so that 20 questions are
            the start of 50. A conversation counts as one, with all its turns.
        seed: Seed of every draw: the shots, the dev sample, the limit.
        allow_code_execution: Whether to allow programs that models wrote to run. Without it, a task that runs programs
            gives no scores.
        allow_weak_sandbox: Whether they may run where the system has no namespaces: with network, and, unless root runs
            this process, with this process's environment variables in reach.
        needs_reference: Whether the task must say what is right. Otherwise a task file may lack ``reference``, and no
            score means anything before labels give it.
        questions: A file like those of the task's data, all of whose questions are taken, in place of a split.

    Raises:
        InputError: The task, its data or an argument cannot be used.
        UniteError: Programs are allowed to run, but this system cannot run them.
    """
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: give at least 1 question")
    if shots is not None and shots < 0:
        raise InputError(f"--shots {shots}: give at least 0")
    folder = None if data_dir is None else Path(data_dir)
    if str(name_or_path).startswith(LM_EVAL):
        from advisor.tasks.lm_eval_tasks import load_lm_eval_task  # here, since few tasks need it

        return load_lm_eval_task(str(name_or_path), split=split, folder=folder, shots=shots, limit=limit, seed=seed)
    path, variant = find_task(name_or_path)
    definition = read_definition(path, variant, needs_reference=needs_reference)
    source = open_source(definition.settings.data, path, folder)
    if questions is not None:
        source.given, split = Path(questions), GIVEN
    count = definition.settings.shots if shots is None else shots
    bank = QuestionBank(definition, source)
    # Before the questions: a demonstration must be in no split.
    demonstrations = _shots(bank, count, seed)
    drawn = _questions(bank, split, [shot for shots in demonstrations.values() for shot in shots], seed)
    repeated = len(drawn) - len({(question.text, question.choices) for question in drawn})
    if repeated and definition.settings.cluster is None and not definition.settings.follow_ups:
        bank.notes.append(
            f"{split}: {repeated:,} of {len(drawn):,} questions repeat an earlier one; with `cluster`, tests "
            "count equal ones as one"
        )
    if limit is not None and limit > len(drawn):
        bank.notes.append(f"{split}: the limit is {limit}, and there are only {len(drawn)} questions")
    if allow_code_execution and runs_code(definition.metric):
        from advisor import sandbox  # here, since few tasks need it

        # Before any model runs: a system that cannot run programs is refused at once, not after hours of decoding.
        if not allow_weak_sandbox:
            sandbox.check_strong()
        bank.notes.extend(sandbox.gaps())
    examples = tuple(
        example
        for question in (drawn if limit is None else seeded(drawn, seed)[:limit])
        for example in bank.examples(question, _prefix(bank, question, demonstrations))
    )
    metric, is_own = definition.metric, path in _builtin_files().values()
    packages = ("unite-advisor", *plugins().version(metric), *get_metric(metric).packages, *source.packages)
    return Task(
        name=definition.name,
        metric=metric,
        split=split,
        examples=examples,
        stop=definition.settings.stop,
        max_new_tokens=definition.settings.max_new_tokens,
        shots=count,
        seed=seed,
        extract=definition.extract,
        notes=(*source.notes, *bank.notes),
        origin=source.origin,
        fingerprint=fingerprint(definition.digest, split, examples),
        prompt_digest=sha256(definition.prompt_digest, *sorted({example.prefix for example in examples}))[:12],
        versions=(("rules", str(RULES)), *((each, version(each)) for each in dict.fromkeys(packages))),
        scoring=definition.settings.scoring or "texts",
        allow_code_execution=allow_code_execution,
        rubric=definition.settings.judge,
        template=_prompt_template(bank, demonstrations),
        # Data that was given takes the place of what a task of this package has.
        files=({} if is_own else {path.name: path}) | ({} if is_own and folder is None else source.files()),
    )


def _shots(bank: QuestionBank, count: int, seed: int) -> dict[str | None, list[Record]]:
    """The demonstrations of each group; those of all questions under None if the task draws them for all together."""
    if count == 0:
        return {}
    split = bank.source.split_of("shots")
    groups: dict[str | None, list[Record]] = {}
    for question in bank.split(split):
        group = bank.group(question) if bank.definition.settings.shots_by_group else None
        groups.setdefault(group, []).append(question)
    drawn = {group: draw_shots(questions, count, seed) for group, questions in groups.items()}
    for group, shots in drawn.items():
        if len(shots) < count:
            of = "" if group is None else f" of {group}"
            raise InputError(
                f"--shots {count}: the split '{split}' has only {len(shots)} different questions{of}; give fewer"
            )
    return drawn


def _prefix(bank: QuestionBank, question: Record, demonstrations: Mapping[str | None, Sequence[Record]]) -> str:
    """The instructions and the shots before a question."""
    shots: Sequence[Record] = ()
    if demonstrations:
        group = bank.group(question) if bank.definition.settings.shots_by_group else None
        if group not in demonstrations:
            raise InputError(f"{question.place}: there are no demonstrations of {group}; give --shots 0")
        shots = demonstrations[group]
    parts = [bank.instructions(question), *map(bank.shot, shots)]
    return "".join(f"{part}\n\n" for part in parts if part)


def _prompt_template(
    bank: QuestionBank, demonstrations: Mapping[str | None, Sequence[Record]]
) -> PromptTemplate | None:
    """How the prompts are made, for texts that are no questions of the task's data."""
    # Here, since pydantic takes time to load.
    from pydantic import ValidationError

    from ensemble.models.prompts import PromptTemplate

    settings = bank.definition.settings
    instructions, group, source = settings.instructions, settings.group, settings.source
    named = settings.prompt.named | (frozenset() if instructions is None else instructions.named)
    shots = {of or "": "".join(f"{bank.shot(shot)}\n\n" for shot in drawn) for of, drawn in demonstrations.items()}
    try:
        return PromptTemplate(
            question=settings.prompt.source,
            instructions=None if instructions is None else instructions.source,
            shots=shots,
            group=group.source if settings.shots_by_group and group is not None else None,
            choices=tuple(each.source for each in settings.choices) if "_options" in named else (),
            variant=bank.definition.variant,
            source=None if source is None else source.source,
            follow_ups=bool(settings.follow_ups),
        )
    except ValidationError:  # a null character in a worked example: files and prompts elsewhere cannot have it
        return None


def _questions(bank: QuestionBank, split: str, shots: list[Record], seed: int) -> list[Record]:
    """The questions of the split that the user named, before the limit."""
    definition, source = bank.definition, bank.source
    whole = bank.split(source.split_of(split))
    left = without(whole, shots)
    if split in ("dev", "held_out"):
        # The dev sample is drawn for held_out as well, since its questions are left out there.
        pool = without(bank.split(source.split_of("dev")), shots)
        size = len(pool) if definition.settings.dev_size is None else definition.settings.dev_size
        # At most half of shared data is dev, so that held_out is not the smaller part: the verdict is made on it.
        is_shared = source.is_same("dev", "held_out")
        dev = sample(pool, min(size, len(pool) // 2) if is_shared else size, seed)
        if is_shared and size > len(pool) // 2:
            bank.notes.append(
                f"dev: {len(dev)} of the {len(pool)} questions that it shares with held_out; the rest is held out"
            )
        if is_shared and pool and pool[0].cluster is not None and len(dev) == len(pool):
            raise InputError(
                f"{definition.file}: all questions that dev and held_out share are in one cluster, "
                f"'{pool[0].cluster}'; give each its data, or correct `cluster`"
            )
        left = dev if split == "dev" else without(left, dev)
        outside = left if split == "dev" else outside_clusters(left, dev)
        if is_shared:
            left = outside
        elif len(outside) < len(left):
            # They may be counted from 0 in each file, so equal labels need not be the same passage.
            bank.notes.append(
                f"held_out: {len(left) - len(outside)} of {len(left)} questions are in a cluster that dev has, too; "
                "they are kept"
            )
    if split != "dev" and len(left) < len(whole):
        bank.notes.append(
            f"{split}: {len(whole) - len(left)} of {len(whole)} questions left out, because they are in dev or are "
            "shots"
        )
    if not left:
        why = "has no records" if not whole else "has nothing but shots and questions of the dev split"
        raise InputError(f"{definition.file}: the split '{split}' {why}; give it other data, or fewer shots")
    return left


_BUILTIN = Path(__file__).parent / "builtin"
# The demo's task is beside its data and not in `builtin`: the paths in a task file are part of the task's fingerprint.
_DEMO = Path(__file__).parents[1] / "demo" / "word_problems.yaml"
_ENDINGS = (".yaml", ".yml")
_FILE = re.compile(r"(.*\.ya?ml):([^/]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A built-in task in a list."""

    name: str
    metric: str
    summary: str  # one line about the task
    file: Path


def list_tasks() -> tuple[TaskSummary, ...]:
    """All built-in tasks, by name."""
    # Only the texts: checking the templates would start a process, and the tests load every built-in task.
    files = [(path, read_mapping(path)) for path in _builtin_files().values()]
    return tuple(
        TaskSummary(str(values["name"]), str(values["metric"]), str(values.get("summary", "")), path)
        for path, values in files
    )


def task_file_of(name: str) -> str | None:
    """The path in the name of a task, without the variant; None for a task that is no file of the user's."""
    path = found[1] if (found := _FILE.fullmatch(name)) else name
    return path if path.endswith(_ENDINGS) or os.sep in name else None


def find_task(name_or_path: str | Path) -> tuple[Path, str | None]:
    """The file of a built-in task or of a path, and its variant and form, as in ``mmlu:anatomy:texts``."""
    text = str(name_or_path)
    path = Path(text)
    # First, since a path may contain a colon.
    is_file = exists(path) and path.is_file()
    if path.suffix in _ENDINGS and is_file:
        return path, None
    if data_suffix(path) in (*TABLES, ".jsonl") and is_file:
        raise InputError(f"{path} is data and not a task file; write one with `advisor init {path}`")
    # For the same reason the variant of a file begins after its ending.
    file = _FILE.fullmatch(text)
    name, _, variant = (file[1], ":", file[2]) if file else text.partition(":")
    if name.endswith(_ENDINGS) or isinstance(name_or_path, Path) or os.sep in text:
        if not exists(name) or not Path(name).is_file():
            raise InputError(
                f"there is no task file {name}; correct the path, or give a name that `advisor tasks` lists"
            )
        return Path(name), variant
    files = _builtin_files()
    if name not in files:
        raise InputError(
            f"there is no task '{name}'; {did_you_mean(name, files)}`advisor tasks` lists them; FILE.yaml is "
            "your own task, and lm_eval:NAME is a task of lm-eval"
        )
    return files[name], variant or None


def _builtin_files() -> dict[str, Path]:
    """The file of each built-in task, in the order of the names."""
    return {path.stem: path for path in sorted((*_BUILTIN.glob("*.yaml"), _DEMO), key=lambda path: path.stem)}
