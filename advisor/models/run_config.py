"""What a run works on: the options of its command, and what they name, loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.models.own_prompts import with_own_prompts
from advisor.models.pool_file import entries_named, read_line, read_pool
from advisor.options.new_run import ProfileOptions, SelectOptions
from advisor.options.shared import (
    ClusterOptions,
    JudgeOptions,
    TaskOptions,
    TrustOptions,
    split_names,
)
from advisor.records import MOST_QUESTIONS
from advisor.strategies import asked_for, kinds
from advisor.tasks import Task, load_task
from ensemble.common.files import default_cache_dir
from ensemble.errors import InputError
from ensemble.methods import list_methods, make_options, plugins
from ensemble.models.spec import THINK, ModelSpec

# The weights of a set's members: equal, their accuracies on dev (GaC: Yu et al., EMNLP 2024, section 4.3), or those
# with which the set writes right texts best (see `advisor.models.likelihood`).
EQUAL = "equal"
ACCURACY = "accuracy"
LIKELIHOOD = "likelihood"
_WEIGHTS = f"{EQUAL}, {ACCURACY}, {LIKELIHOOD}, or numbers such as 2,1,1"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run does: the options of its command, and what is loaded for it."""

    options: SelectOptions  # or what another command has of them; the limit of tokens is in the tasks
    candidates: tuple[ModelSpec, ...]
    dev: Task  # the questions that candidates are profiled on
    held_out: Task | None  # the questions that the chosen set is verified on; None to skip that
    cluster: ClusterOptions = ClusterOptions()
    cache_dir: Path  # the folder of responses and tables
    command: str  # the command line, for the record
    # Of a task with a rubric: the judge, and the one that checks it if there are two.
    judges: tuple[ModelSpec, ...] = ()

    def __post_init__(self) -> None:
        method, think = self.options.method, self.options.think
        check_decodes(method)
        check_weights(self.options.weights, len(self.candidates))
        if think is not None:
            make_options(method, {THINK: think})
            if self.dev.metric == "choice":
                raise InputError(
                    f"--think {think}: {self.dev.name} has options, which are chosen by their likelihood; leave it out"
                )

    @classmethod
    def from_options(
        cls,
        options: SelectOptions,
        command: str,
        *,
        profile: ProfileOptions | None = None,
        needs_reference: bool = True,
    ) -> RunConfig:
        """Load the pool and the task; models are checked later, by :func:`advisor.jobs.session.open_session`."""
        if options.pool is None:
            raise InputError(
                "--pool is missing; give a file with one model per line, or a bundled pool: demo or demo-thinking"
            )
        options.needed_task()
        # Checked before the task is loaded as well, because that may take a download.
        check_decodes(options.method)
        pool = read_pool(options.pool)
        candidates = entries_named(pool, split_names(options.only or ""), options.pool)
        names = [entry.name for entry in candidates]
        for kind in kinds().values():
            kind.check_options(options, names)
        check_consent(candidates, options)
        if options.budget is not None and (unpriced := [each.name for each in candidates if each.price is None]):
            raise InputError(
                f"--budget {options.budget:g}: {unpriced[0]} has no price; "
                f"give price_in= and price_out= in {options.pool}"
            )
        seed, limit = options.seed, options.max_new_tokens
        split = profile.split if profile else "dev"
        dev = load_split(options, split, seed, candidates, needs_reference=needs_reference, max_new_tokens=limit)
        dev.check_allowed()
        if dev.metric == "choice" and (writing := asked_for(options, names, names, names)):
            raise InputError(
                f"--{writing[0].name}: a writer writes a text, and this task chooses options by their likelihood"
            )
        # A model of the pool that is no candidate may judge.
        judges = read_judges(options, pool, dev)
        held_out = None
        if not options.no_verify:
            # With a limit they come in the order of the seed, so that the first ones are a sample of all.
            asked = replace(options, limit=options.limit or MOST_QUESTIONS) if options.until_sure else options
            held_out = load_split(
                asked, "held_out", seed, candidates, needs_reference=needs_reference, max_new_tokens=limit
            )
            held_out.check_allowed()
        return cls(
            options=options,
            candidates=candidates,
            dev=dev,
            held_out=held_out,
            cluster=profile or ClusterOptions(),
            cache_dir=options.cache_dir or default_cache_dir(),
            command=command,
            judges=judges,
        )


def load_split(
    options: TaskOptions,
    split: str,
    seed: int = 0,
    models: Sequence[ModelSpec] = (),
    *,
    needs_reference: bool = True,
    max_new_tokens: int | None = None,
    questions: Path | None = None,
) -> Task:
    """Load one split of the task that the options name, drawn with a seed; see :func:`advisor.tasks.load_task`.

    It has the prompts of the models that have their own. A limit of tokens takes the place of the one of the task.
    """

    def load(shots: int | None) -> Task:
        return load_task(
            options.needed_task(),
            split=split,
            data_dir=options.data,
            shots=shots,
            limit=options.limit,
            seed=seed,
            allow_code_execution=options.allow_code_execution,
            # A property of the machine, and not of a run.
            allow_weak_sandbox=os.environ.get("ADVISOR_WEAK_SANDBOX") == "1",
            needs_reference=needs_reference,
            questions=questions,
        )

    task = load(options.shots)
    return with_own_prompts(replace(task, max_new_tokens=max_new_tokens or task.max_new_tokens), models, load)


def check_consent(candidates: Sequence[ModelSpec], options: TrustOptions) -> None:
    """Check that the user allows models to run their code, and the variables that lines of a pool name for keys."""
    for entry in candidates:
        entry.check_consent(options.trust_remote_code, None, f"{entry.place}: {entry.name}")


def read_judges(options: JudgeOptions, candidates: Sequence[ModelSpec], task: Task) -> tuple[ModelSpec, ...]:
    """The judge that scores, and the one that checks it if there is one: candidates, or lines as in a pool file."""
    if task.rubric is None and options.judge:
        raise InputError(
            f"--judge {options.judge[0]}: {task.name} has metric {task.metric}, which needs no judge; leave it out"
        )
    if task.rubric is not None and not options.judge:
        raise InputError(
            f"{task.name} has metric judge; add --judge with the name of a candidate, or a line as in a pool file"
        )
    if len(options.judge) > 2:
        raise InputError(f"--judge {options.judge[2]}: give one judge, or a second one that checks the first")
    judges = tuple(_read_judge(line, candidates) for line in options.judge)
    check_consent(judges, options)
    if len({judge.name for judge in judges}) < len(judges):
        raise InputError(
            f"--judge {judges[1].name}: the first judge has this name, too; give another model, or add "
            "name=ANOTHER to its line"
        )
    return judges


def _read_judge(line: str, candidates: Sequence[ModelSpec]) -> ModelSpec:
    if named := next((each for each in candidates if each.name == line.strip()), None):
        return named
    # A word is a misspelt candidate rather than a folder or a hub id, unless there is a folder.
    if line.strip() and not any(mark in line for mark in "/:\\ ") and not Path(line.strip()).exists():
        raise InputError(
            f"--judge {line}: no candidate and no folder has this name; give one of them, a hub id, or a server as in "
            "a pool file"
        )
    return read_line(line, "--judge")


def check_decodes(method: str) -> None:
    """Raise InputError if no method that decodes has this name."""
    names = [name for name, found in list_methods().items() if found.level != "response"]
    plugins().check(method)
    if method not in names:
        raise InputError(f"--method {method}: not one of {', '.join(names)}")


def check_weights(weights: str | None, candidates: int) -> None:
    """Check the value of ``--weights`` for a pool or a set of so many candidates."""
    if weights in (None, EQUAL, ACCURACY, LIKELIHOOD):
        return
    numbers = read_numbers(weights)
    if len(numbers) != candidates:
        raise InputError(f"--weights {weights}: {len(numbers)} numbers for {candidates} models; give one for each")


def read_numbers(weights: str) -> tuple[float, ...]:
    """Numbers with commas between them: none is negative, and one at least is above 0."""
    try:
        numbers = tuple(float(part) for part in weights.split(","))
    except ValueError:
        raise InputError(f"--weights {weights[:60]}: give {_WEIGHTS}") from None
    if any(not math.isfinite(number) or number < 0 for number in numbers) or not sum(numbers) > 0:
        raise InputError(f"--weights {weights}: each number must be 0 or more, and one of them above 0")
    return numbers
