"""What a run works on: the options of its command, and what they name, loaded."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from advisor.models.pool_file import entries_named, read_line, read_pool
from advisor.options.new_run import ProfileOptions, SelectOptions
from advisor.options.option import Options
from advisor.options.shared import (
    ClusterOptions,
    DecodingOptions,
    InferenceOptions,
    JudgeOptions,
    QuestionOptions,
    SeedOptions,
    TrustOptions,
    VerificationOptions,
    split_names,
)
from advisor.records import MOST_QUESTIONS, Limits
from advisor.strategies.fusion import check_prompt
from advisor.tasks import Task, load_task
from ensemble.common.files import default_cache_dir
from ensemble.errors import InputError
from ensemble.methods import list_methods, make_options, plugins
from ensemble.methods._response import read_prompt
from ensemble.models.spec import THINK, ModelSpec

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings

# The weights of a set's members: equal, their accuracies on dev (GaC: Yu et al., EMNLP 2024, section 4.3), or from each
# prompt (PackLLM; see `ensemble.score`).
EQUAL = "equal"
ACCURACY = "accuracy"
PERPLEXITY: Literal["perplexity"] = "perplexity"
_WEIGHTS = f"{EQUAL}, {ACCURACY}, {PERPLEXITY}, or numbers such as 2,1,1"

BEST = "best"
"""The writer of a fusion who is the most accurate model on dev."""


@dataclass(frozen=True, kw_only=True)
class InferenceConfig(InferenceOptions, ClusterOptions, SeedOptions):
    """How a run loads its models and generates; a temperature of 0 is greedy decoding, others draw with the seed."""

    temperature: float = 0.0
    deterministic: bool = False

    @classmethod
    def from_options(cls, options: Options) -> InferenceConfig:
        """Take these options from those of a command. One that it lacks, or that is None, has its default value."""
        given = {**options.shared(cls), "seed": None, "temperature": None}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def settings(self, task: Task) -> Settings:
        """How responses to the questions of a task are decoded."""
        from ensemble.decode.settings import Settings

        return Settings(self.limit(task), task.stop, self.temperature, seed=self.seed)

    def limit(self, task: Task) -> int:
        """Tokens after which a response to a question of a task is cut off."""
        return self.max_new_tokens or task.max_new_tokens


@dataclass(frozen=True, kw_only=True)
class FusionLine:
    """What ``--fusion`` says: ``WRITER panel=NAME,... drafts=N rounds=N prompt=FILE``, all but the writer optional."""

    writer: str  # a candidate, or :data:`BEST`
    panel: tuple[str, ...] = ()  # candidates that write drafts; empty for the voters
    drafts: int = 1  # drafts of each of them, 1 to 100; several are drawn at temperature 0.7
    rounds: int = 1  # how often the panel writes, 1 to 10; from the second time on it reads the drafts
    prompt: str | None = None  # the file of the prompt, a template over ``prompt`` and ``responses``

    @classmethod
    def read(cls, text: str) -> FusionLine:
        """Read the value of the option; InputError for another word, or a number out of range."""
        try:
            writer, *words = shlex.split(text)
        except ValueError:
            raise InputError(
                f"--fusion {text!r}: give a candidate or best, then options, with quotes in pairs"
            ) from None
        given: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not (equals and value) or name not in ("panel", "drafts", "rounds", "prompt") or name in given:
                raise InputError(
                    f"--fusion: {word}: give panel=NAME,... drafts=N rounds=N prompt=FILE, each at most once"
                )
            given[name] = _number(name, value) if name in _MOST else split_names(value) if name == "panel" else value
            if not given[name]:
                raise InputError("--fusion: panel: no name is given; give candidates, or leave it out")
        line = cls(writer=writer, **given)
        if line.drafts > 1 and line.rounds > 1:
            raise InputError(
                f"--fusion: rounds={line.rounds}: models that write several drafts read none; leave one out"
            )
        return line

    @property
    def template(self) -> str:
        """The writer's prompt; InputError if the file cannot be read."""
        return read_prompt(self.prompt)[0]


_MOST = {"drafts": 100, "rounds": 10}


def _number(name: str, text: str) -> int:
    # isdigit alone accepts the digits of other scripts.
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST[name]):
        raise InputError(f"--fusion: {name}={text}: give a number from 1 to {_MOST[name]}")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class RunConfig(DecodingOptions, VerificationOptions, SeedOptions):
    """What a run does: these options, and what is loaded for it."""

    candidates: tuple[ModelSpec, ...]
    dev: Task  # the questions that candidates are profiled on
    held_out: Task | None  # the questions that the chosen set is verified on; None to skip that
    rules: Limits
    inference: InferenceConfig
    cache_dir: Path  # the folder of responses and tables
    command: str  # the command line, for the record
    fusion: FusionLine | None = None
    # Of a task with a rubric: the judge, and the one that checks it if there are two.
    judges: tuple[ModelSpec, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decodes(self.method)
        check_weights(self.weights, len(self.candidates))
        if self.think is not None:
            make_options(self.method, {THINK: self.think})
            if self.dev.metric == "choice":
                raise InputError(
                    f"--think {self.think}: {self.dev.name} has options, which are chosen by their likelihood; "
                    "leave it out"
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
        fusion = None if options.fusion is None else FusionLine.read(options.fusion)
        pool = read_pool(options.pool)
        candidates = entries_named(pool, split_names(options.only or ""), options.pool)
        check_consent(candidates, options)
        if options.budget is not None and (unpriced := [each.name for each in candidates if each.price is None]):
            raise InputError(
                f"--budget {options.budget:g}: {unpriced[0]} has no price; "
                f"give price_in= and price_out= in {options.pool}"
            )
        dev = load_split(options, profile.split if profile else "dev", options.seed, needs_reference=needs_reference)
        dev.check_allowed()
        # A model of the pool that is no candidate may judge.
        judges = read_judges(options, pool, dev)
        held_out = None
        if not options.no_verify:
            # With a limit they come in the order of the seed, so that the first ones are a sample of all.
            asked = replace(options, limit=options.limit or MOST_QUESTIONS) if options.until_sure else options
            held_out = load_split(asked, "held_out", options.seed, needs_reference=needs_reference)
            held_out.check_allowed()
        loaded = {
            "candidates": candidates,
            "dev": dev,
            "held_out": held_out,
            "rules": options.rules,
            "inference": InferenceConfig.from_options(profile or options),
            "cache_dir": options.cache_dir or default_cache_dir(),
            "command": command,
            "fusion": fusion,
            "judges": judges,
        }
        if fusion is not None:
            _check_fusion(fusion, candidates, dev)
        return cls(**{**options.shared(cls), **loaded})


def load_split(options: QuestionOptions, split: str, seed: int = 0, *, needs_reference: bool = True) -> Task:
    """Load one split of the task that the options name, drawn with a seed; see :func:`advisor.tasks.load_task`."""
    return load_task(
        options.needed_task(),
        split=split,
        data_dir=options.data,
        shots=options.shots,
        limit=options.limit,
        seed=seed,
        allow_code_execution=options.allow_code_execution,
        allow_weak_sandbox=options.allow_weak_sandbox,
        needs_reference=needs_reference,
    )


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


def _check_fusion(fusion: FusionLine, candidates: Sequence[ModelSpec], task: Task) -> None:
    """Raise InputError if the fusion that the options name cannot be asked."""
    if task.metric == "choice":
        raise InputError("--fusion: a writer writes a text, and this task chooses options by their likelihood")
    names = [entry.name for entry in candidates]
    named = (fusion.writer, *fusion.panel) if fusion.writer != BEST else fusion.panel
    if unknown := next((name for name in named if name not in names), None):
        raise InputError(f"--fusion: no candidate has the name {unknown}; their names are {', '.join(names)}")
    check_prompt(fusion.template, fusion.prompt or "--fusion", ("prompt",))


def check_decodes(method: str) -> None:
    """Raise InputError if no method that decodes has this name."""
    names = [name for name, found in list_methods().items() if found.level != "response"]
    plugins().check(method)
    if method not in names:
        raise InputError(f"--method {method}: not one of {', '.join(names)}")


def check_weights(weights: str, candidates: int) -> None:
    """Check the value of ``--weights`` for a pool or a set of so many candidates."""
    if weights in (EQUAL, ACCURACY, PERPLEXITY):
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


def weights_from_dev(accuracies: Sequence[float]) -> tuple[float, ...]:
    """Weights, 0 to 1, from the members' accuracies in points; an InputError says that all are 0."""
    if not any(accuracies):
        raise InputError(f"--weights {ACCURACY}: the weights of all members are 0; leave out --weights")
    return tuple(accuracy / 100 for accuracy in accuracies)
