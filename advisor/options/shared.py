"""Groups of options that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from advisor.options.option import AT_LEAST_0, AT_LEAST_1, PERCENT, Options, Range, option
from advisor.records import Limits, Think
from ensemble.errors import InputError
from ensemble.models.choices import CHAT_TEMPLATES, DTYPES, ChatTemplate

EngineName = Literal["local", "ray"]
SetBy = Literal["rules", "predicted"]

MODELS: Any = {"sources": ("models",)}
"""Of an option that has an effect only where models answer."""
LOGS: Any = {"sources": ("logs",)}
"""Of an option that says how logs are read."""
ANSWERS: Any = {"sources": ("models", "logs")}
"""Of an option that needs answers, not only numbers."""
VERIFIED: Any = {**MODELS, "unless": ("no_verify", "labels")}
"""Of an option that has an effect only where a set answers held-out questions, and these have references."""
MEANS: Any = {"is_setting": False}
"""Of an option that changes no figure: where results go, where and how fast models run, and what is allowed."""


def read_batch_size(text: str) -> int | None:
    """The number of prompts in a batch; None for ``auto``."""
    if text == "auto":
        return None
    # isdigit alone accepts the digits of other scripts.
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InputError(f"--batch-size {text}: give a number of at least 1, or auto")
    return int(text)


def split_names(names: str) -> tuple[str, ...]:
    """The names of an option that takes several, with commas between them."""
    return tuple(name.strip() for name in names.split(",") if name.strip())


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Options, panel="Files and output"):
    """What a command prints."""

    as_json: bool = option(False, "Print the result as JSON, and nothing else, on standard output.", "--json", **MEANS)
    quiet: bool = option(False, "Show no progress, notes and tables. The report has the notes.", is_rare=True, **MEANS)


@dataclass(frozen=True, kw_only=True)
class CacheOptions(Options, panel="Files and output", are_rare=True):
    """Where responses are kept."""

    cache_dir: Path | None = option(None, "The folder of responses that later runs use again.", **MEANS)


@dataclass(frozen=True, kw_only=True)
class TrustOptions(Options, panel="Permissions", are_rare=True):
    """Which models may run code."""

    trust_remote_code: tuple[str, ...] = option(
        (), "A model that may run the code in its own files, by its name or id.", metavar="NAME", **MODELS, **MEANS
    )


@dataclass(frozen=True, kw_only=True)
class PoolOptions(TrustOptions, panel="Models and questions"):
    """The candidates."""

    pool: str | None = option(None, "A file with one candidate per line, demo, or a URL.", metavar="FILE", **MODELS)


@dataclass(frozen=True, kw_only=True)
class SeedOptions(Options, panel="Models and questions", are_rare=True):
    """The seed of draws."""

    seed: int = option(0, "The seed of every draw.", within=AT_LEAST_0, **ANSWERS)


@dataclass(frozen=True, kw_only=True)
class TaskOptions(Options, panel="Models and questions"):
    """The questions, and what may be done with the answers."""

    task: str | None = option(None, "The name of a task, or a task file.", metavar="TASK", **ANSWERS)
    data: Path | None = option(
        None,
        "A folder with the task's data, looked in before the hub and the task file's folder.",
        is_rare=True,
        **MODELS,
    )
    limit: int | None = option(
        None, "The number of questions of each split.", within=Range("at least 1 question", least=1), **MODELS
    )
    shots: int | None = option(
        None, "The number of demonstrations before each question.", within=AT_LEAST_0, is_rare=True, **MODELS
    )

    allow_code_execution: bool = option(
        False,
        "Run programs that models write, in a sandbox; mbpp needs it.",
        is_rare=True,
        panel="Permissions",
        **MODELS,
        **MEANS,
    )

    def needed_task(self) -> str:
        """The task; InputError if none is given."""
        if self.task is None:
            raise InputError("--task is missing; give a task file, or a name that `advisor tasks` lists")
        return self.task


@dataclass(frozen=True, kw_only=True)
class ServerOptions(TrustOptions, panel="Permissions"):
    """Which servers of a run may be contacted."""

    allow_server: tuple[str, ...] = option(
        (), "A server of the run that may be contacted; kept for this run.", metavar="URL", **MODELS, **MEANS
    )


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(TrustOptions, panel="Judge"):
    """Who grades responses."""

    judge: tuple[str, ...] = option(
        (),
        "For a task with metric judge: a candidate's name, or a model as a line of a pool file has it. A second one "
        "shows how far two judges agree.",
        metavar="LINE",
        **MODELS,
    )


@dataclass(frozen=True, kw_only=True)
class LogsOptions(Options, panel="Logs"):
    """The logs of other tools, and how they are read."""

    logs: tuple[str, ...] = option(
        (), "A file, folder or glob with logs of other tools; can be given several times.", metavar="PATH", **LOGS
    )
    metric: str | None = option(
        None,
        "Score the responses of logs again with this metric. A regular expression behind it, json or tool_call finds "
        "the answer.",
        metavar="METRIC[:PATTERN]",
        **LOGS,
    )
    column: tuple[str, ...] = option(
        (),
        "The column or the field of a role, for example question=prompt, score=exact_match, cluster=passage, or "
        "models=GLOB,... for a table with one column per model; task=GLOB takes one of several evaluations.",
        metavar="ROLE=NAME",
        is_rare=True,
        **LOGS,
    )

    score_map: str | None = option(
        None,
        "What the scores of logs mean that are no numbers from 0 to 1: correct=1,incorrect=0,=0 (an empty value is an "
        "empty cell), or the worst and the best of a scale, such as 1-5.",
        also="--score-range",
        metavar="VALUE=SCORE,...",
        is_rare=True,
        **LOGS,
    )

    def columns(self) -> dict[str, str]:
        """The names of columns and fields by role, from ``ROLE=NAME`` each."""
        columns: dict[str, str] = {}
        for value in self.column:
            role, equals, name = value.partition("=")
            if not equals or not role or not name:
                raise InputError(f"--column {value}: give ROLE=NAME, for example question=prompt")
            if role in columns:
                raise InputError(f"--column {value}: the role {role} is given twice; give each role once")
            columns[role] = name
        return columns


@dataclass(frozen=True, kw_only=True)
class AnswersOptions(Options, panel="Models and questions"):
    """Which models' answers count, and labels in place of references."""

    only: str | None = option(
        None,
        "Models of the pool or the logs to take, or to leave out (!GLOB). Default: all.",
        metavar="GLOB,...",
        **ANSWERS,
    )
    labels: Path | None = option(
        None, "A table of advisor label with its labels, for questions without references.", metavar="FILE", **ANSWERS
    )


@dataclass(frozen=True, kw_only=True)
class VoterOptions(Options, panel="Limits", are_rare=True):
    """Which models vote."""

    max_gap: float | None = option(
        None, "Points that a member may be worse than the best model.", shown_default="10; 15 for votes", within=PERCENT
    )
    max_voters: int = option(5, "The maximum number of models in a vote.", within=AT_LEAST_1, **ANSWERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_voters == 2:
            raise InputError("--max-voters 2: a vote needs 3 models; give 3 or more, or 1 for no vote")


@dataclass(frozen=True, kw_only=True)
class LimitsOptions(VoterOptions, panel="Limits", are_rare=True):
    """The limits of sets and votes, and which strategies may be recommended."""

    max_length_ratio: float = option(
        2.0, "How many times longer or shorter a member's responses may be.", within=Range("a ratio of at least 1", 1)
    )
    # A set of one asks which model is the best, without an ensemble.
    max_models: int = option(3, "The maximum number of members.", within=AT_LEAST_1)
    min_gain: float | None = option(
        None,
        "Points that a strategy with more than one model or call must gain.",
        shown_default="0.2 for each call, or multiple of the price",
        within=PERCENT,
        **ANSWERS,
    )
    within: float | None = option(
        None,
        "Recommend the cheapest strategy at most this many points below the best one.",
        is_rare=False,
        within=PERCENT,
        **ANSWERS,
    )
    budget: float | None = option(
        None,
        "Recommend a strategy that costs at most this many dollars for 1,000 questions.",
        is_rare=False,
        within=Range("dollars above 0 for 1,000 questions", above=0),
        **ANSWERS,
    )
    latency: float | None = option(
        None,
        "Recommend a strategy that answers 95% of the questions in at most this many seconds.",
        within=Range("seconds above 0", above=0),
        **ANSWERS,
    )

    @property
    def rules(self) -> Limits:
        """These limits; ``max_gap`` holds for votes, too."""
        given = self.shared(Limits)
        gap = given.pop("max_gap")
        return Limits(**given, **({} if gap is None else {"max_gap": gap, "vote_gap": gap}))


@dataclass(frozen=True, kw_only=True)
class WeightOptions(Options, panel="Decoding", are_rare=True):
    """How members' distributions are joined."""

    k: int = option(10, "Candidate tokens of each member in a step.", within=AT_LEAST_1, **VERIFIED)
    weights: str | None = option(
        None,
        "The members' weights: equal, accuracy (on dev), likelihood (of right dev texts), or "
        "a number for each model of the pool or the set: 2,1,1.",
        shown_default="likelihood for unite where all members are on this machine",
        **VERIFIED,
    )
    think: Think | None = option(
        None,
        "apart: each member of a set thinks alone, and then they answer together. Default: they write all together.",
        shown_default="",
        one_of=get_args(Think),
        **VERIFIED,
    )


@dataclass(frozen=True, kw_only=True)
class VerificationOptions(Options, panel="Choosing and verifying", are_rare=True):
    """How a set decodes and is verified, and which strategies with new calls are compared with it."""

    until_sure: bool = option(False, "Ask held-out questions in batches until the test shows a difference.", **VERIFIED)
    set_by: SetBy = option(
        "rules",
        "rules, or predicted (verify the sets with the largest predicted gains).",
        metavar="HOW",
        one_of=get_args(SetBy),
        **VERIFIED,
    )
    equal_cost: bool = option(
        False,
        "Where several calls a question are recommended, compare with one model that is asked as often.",
        **VERIFIED,
    )
    method: str = option("unite", "How the set decodes; see advisor methods.", panel="Decoding", **VERIFIED)
    # Strategies that take new calls, each by its name.
    fusion: str | None = option(
        None,
        "Compare a fusion, too: WRITER, a candidate or best (on dev), writes one answer from the drafts of a panel "
        "(the voters). Behind it, in one text: panel=NAME,... drafts=N of each, rounds=N, prompt=FILE.",
        metavar="WRITER",
        **VERIFIED,
    )


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(Options, panel="Running models", are_rare=True):
    """How models are loaded and generate."""

    max_new_tokens: int | None = option(
        None, "The maximum number of tokens of a response.", within=AT_LEAST_1, **MODELS
    )
    device: str = option(
        "auto",
        "cpu, cuda, cuda:1, mps, ..., or auto: CUDA, MPS or the CPU, the first that is there.",
        is_rare=False,
        **MODELS,
    )
    dtype: str = option("auto", "auto, float32, bfloat16, ...", one_of=DTYPES, **MODELS)
    batch_size: int | None = option(
        None,
        "The number of prompts in a batch, or auto.",
        shown_default="auto",
        read=read_batch_size,
        within=AT_LEAST_1,
        **MODELS,
        **MEANS,
    )
    chat_template: ChatTemplate = option("auto", "auto, always or never.", one_of=CHAT_TEMPLATES, **MODELS)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options, panel="Running models", are_rare=True):
    """On which machines models run."""

    engine: EngineName = option(
        "local", "Where models run: local, or ray for a cluster.", one_of=get_args(EngineName), **MODELS, **MEANS
    )
    ray_address: str | None = option(
        None,
        "host:port of the cluster. Default: RAY_ADDRESS, or a new cluster on this machine.",
        needs=("engine", ("ray",)),
        **MODELS,
        **MEANS,
    )


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(Options, panel="Running models", are_rare=True):
    """How models of a run are loaded; None for what the run says."""

    device: str | None = option(
        None, "auto, cpu, cuda, cuda:1, mps, ... Default: as in the run, or auto.", is_rare=False, **MODELS
    )
    dtype: str | None = option(None, "auto, float32, bfloat16, ... Default: as in the run.", one_of=DTYPES, **MODELS)
    chat_template: ChatTemplate | None = option(
        None, "auto, always or never. Default: as in the run.", one_of=CHAT_TEMPLATES, **MODELS
    )


@dataclass(frozen=True, kw_only=True)
class StrategyOptions(TrustOptions, panel="Models and questions"):
    """Which strategy of a run, and where its models are."""

    strategy: str | None = option(
        None,
        "A strategy that the run compared: single, vote (the best one), vote/3, ... Default: the recommended one.",
        metavar="NAME",
    )
    pool: str | None = option(
        None, "A pool file that says where the models of the run are, by name.", metavar="FILE", **MODELS
    )
