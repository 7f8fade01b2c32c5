"""The options of the commands on finished runs: check, evaluate, judge, report, export, compare, run, serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from advisor.options.new_run import ProfileOptions, SelectOptions
from advisor.options.option import AT_LEAST_0, AT_LEAST_1, PERCENT, Options, Range, Source, argument, changed, option
from advisor.options.shared import (
    CacheOptions,
    InferenceOptions,
    JudgeOptions,
    LoadingOptions,
    LogsOptions,
    OutputOptions,
    SeedOptions,
    ServerOptions,
    StrategyOptions,
    TaskOptions,
    WeightOptions,
)
from advisor.records import FIGURE_CONFIDENCE, Think, alpha_of
from ensemble.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RunArgument(Options):
    """A run folder."""

    run: Path = argument("A run folder.", "RUN")


@dataclass(frozen=True, kw_only=True)
class RerunOptions(ServerOptions, LoadingOptions, JudgeOptions, RunArgument, panel="Running models"):
    """How the models of a run answer again."""

    max_new_tokens: int | None = changed(InferenceOptions, "max_new_tokens")
    batch_size: int | None = changed(InferenceOptions, "batch_size")

    def of_select(self, **more: Any) -> SelectOptions:
        """The same options of ``select``, and more of them; a model that the run does not know is loaded as there."""
        return SelectOptions(
            device=self.device or "auto",
            dtype=self.dtype or "auto",
            chat_template=self.chat_template or "auto",
            batch_size=self.batch_size,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class CheckOptions(
    OutputOptions,
    CacheOptions,
    RerunOptions,
    LogsOptions,
    StrategyOptions,
    SeedOptions,
    TaskOptions,
    RunArgument,
    panel="Choosing and verifying",
):
    """Ask the recommended strategy and the best single model fresh questions; status 3 if the advice fails on them."""

    questions: Path | None = argument(
        "Fresh questions, all of which are asked: a file like the data of the run's task, or a log.",
        "FILE",
        None,
        unless=("logs", "split"),
    )
    min_gain: float | None = option(
        None,
        "The least gain that pays. Default: as in the run, or 0.",
        metavar="POINTS",
        within=PERCENT,
    )
    task: str | None = changed(TaskOptions, "task", help="The name of a task, or a task file. Default: the run's.")
    split: str = changed(ProfileOptions, "split", default="held_out", help="The split with fresh questions.")
    limit: int | None = changed(
        TaskOptions,
        "limit",
        help="The number of fresh questions.",
        shown_default="100; all of FILE or a log",
        sources=("models", "logs"),
    )
    seed: int = changed(SeedOptions, "seed", help="Another seed draws other fresh questions.")
    max_new_tokens: int | None = changed(
        RerunOptions, "max_new_tokens", help="The maximum number of tokens of a response. Default: as in the run."
    )

    @property
    def source(self) -> Source:
        """Where the answers come from."""
        return "logs" if self.logs else "models"


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(
    OutputOptions,
    CacheOptions,
    RerunOptions,
    WeightOptions,
    JudgeOptions,
    TaskOptions,
    RunArgument,
    panel="Decoding",
):
    """Score methods of ensembling, and every member alone, on the same questions; write RUN/evaluation.json."""

    methods: str = option("unite,voting", "Names with commas between them, or all; see advisor methods.")
    pool: str | None = changed(StrategyOptions, "pool")
    members: str = option(
        "", "Candidates of the run with commas between them, the primary first. Default: the chosen set."
    )
    weights: str = changed(WeightOptions, "weights", default="equal", shown_default=None)
    settings: tuple[str, ...] = option((), "An option of a method.", "--set", metavar="METHOD.NAME=VALUE")
    task: str | None = changed(
        TaskOptions,
        "task",
        help="The name of a task, or a task file. Default: the run's, with its seed, limit, shots and tokens.",
    )
    split: str = changed(ProfileOptions, "split", default="held_out", help="The split to evaluate on.")
    seed: int | None = changed(SeedOptions, "seed", default=None, help="The seed of every draw. Default: the run's.")


@dataclass(frozen=True, kw_only=True)
class JudgeRunOptions(OutputOptions, RunArgument):
    """Correct the judge's scores of a run by a few labels of people, and say what misleads the judge."""

    labels: Path | None = option(
        None,
        "A table with the columns id, model and label: the scores that people give.",
        metavar="FILE",
        panel="Judge",
    )


ReportFormat = Literal["html", "md", "csv", "latex"]
ReportTable = Literal["leaderboard", "strategies"]


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Write the report.html of a run again, or an index of all runs in a folder."""

    run: Path = argument("A run folder, or a folder with several.", "RUN")
    form: ReportFormat = option(
        "html",
        "Markdown of the decision (md), a table (csv) or all tables (latex), to standard output.",
        "--format",
        metavar="<html|md|csv|latex>",
        one_of=get_args(ReportFormat),
    )
    table: ReportTable = option(
        "leaderboard",
        "The table of --format csv.",
        metavar="<leaderboard|strategies>",
        one_of=get_args(ReportTable),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table != "leaderboard" and self.form != "csv":
            raise InputError("--table goes with --format csv; leave it out")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ServerOptions, StrategyOptions, RunArgument):
    """Write the recommended strategy of a run, without weights, and a card with the evidence; push it on request."""

    folder: Path = argument("A new or empty folder, or an earlier export.", "FOLDER")
    push: str | None = option(None, "Push it to the hub under this id.", metavar="ID")
    public: bool = option(False, "Make the new model of --push public.", needs=("push", ()))
    compose: bool = option(False, "Also write files for Docker Compose: the server, vLLM and Prometheus.")
    target: str | None = option(
        None,
        "Write the strategy as configuration of LiteLLM's proxy instead.",
        "--as",
        metavar="litellm",
        one_of=("litellm",),
        unless=("push", "compose"),
    )


@dataclass(frozen=True, kw_only=True)
class CompareOptions(OutputOptions, LogsOptions, SeedOptions, panel="Choosing and verifying"):
    """Compare models on the questions that they share: differences with intervals, exact tests, a gate for CI."""

    models: tuple[str, ...] = argument(
        "Run folders or logs, each with #MODEL if it has several; with --logs, models of these logs. "
        "The first is the baseline.",
        "A B",
        (),
    )
    confidence: float = option(
        FIGURE_CONFIDENCE,
        "Confidence of the intervals and tests of differences.",
        within=Range("a number above 0 and below 1, for example 0.95", above=0, below=1),
    )
    margin: float = option(
        1.0, "Points within which models count as equal.", within=Range("points above 0, up to 100", above=0, most=100)
    )
    fail_if_worse: float | None = option(
        None,
        "End with status 3 if a model is shown to be worse than the first by more than these points.",
        metavar="POINTS",
        within=PERCENT,
    )
    fail_if_unsure: bool = option(
        False,
        "With --fail-if-worse: also fail if the questions are too few to tell.",
        needs=("fail_if_worse", ()),
    )
    html: Path | None = option(None, "Also write a page.", panel="Files and output", metavar="FILE")
    quiet: bool = changed(OutputOptions, "quiet", help="Show no notes on what was left out of the logs.")

    def __post_init__(self) -> None:
        super().__post_init__()
        # Before the logs are read, which can take a minute.
        if self.html is not None and (self.html.is_dir() or not self.html.absolute().parent.is_dir()):
            raise InputError(f"--html {self.html}: give the name of a file in a folder that exists")
        if not (self.models or self.logs):
            raise InputError(
                "nothing to compare; give two run folders or logs, or --logs with the logs of several models"
            )

    @property
    def alpha(self) -> float:
        """The probability that the truth is beyond one end of an interval."""
        return alpha_of(self.confidence)


@dataclass(frozen=True, kw_only=True)
class SourceOptions(Options, panel="Models and questions"):
    """A folder, or models without one."""

    run: str | None = argument("A run folder or a saved ensemble; or give --models.", "RUN", None)
    models: tuple[str, ...] = option(
        (), "A folder, a hub id, or a server as in a pool file, once for each model; the primary first."
    )


@dataclass(frozen=True, kw_only=True)
class TextOptions(Options, panel="Decoding"):
    """How texts are decoded; None for what the run says."""

    method: str | None = option(None, "How the set decodes; see advisor methods. Default: as in the run.")
    k: int | None = changed(
        WeightOptions,
        "k",
        default=None,
        help="Candidate tokens of each member in a step. Default: as in the run.",
    )
    think: Think | None = changed(
        WeightOptions,
        "think",
        help="apart: each member thinks alone, and then they answer together. Default: as in the run.",
    )
    max_new_tokens: int | None = changed(InferenceOptions, "max_new_tokens")
    stop: tuple[str, ...] = option((), "A string that ends the text; can be given several times.")


@dataclass(frozen=True, kw_only=True)
class ChosenOptions(
    LoadingOptions,
    TextOptions,
    ServerOptions,
    StrategyOptions,
    SourceOptions,
    panel="Permissions",
):
    """What ``run`` and ``serve`` share: what is loaded, and how it decodes."""

    group: str | None = option(
        None, "The group of the prompt, for a router by groups.", panel="Models and questions", is_rare=True
    )
    raw: bool = option(False, "Send prompts as they are, and not in the template of the run's task.")
    deterministic: bool = option(
        False,
        "Decode each text by itself, so that it does not depend on the others in bfloat16 and float16; slow.",
        panel="Running models",
        is_rare=True,
    )
    no_check_files: bool = option(
        False, "Load a saved ensemble even if the files of a member have changed.", is_rare=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.models and self.run is not None:
            raise InputError("give a run folder or --models, not both")
        if not self.models and self.run is None:
            raise InputError("give a run folder, or --models for each model, the primary first")


@dataclass(frozen=True, kw_only=True)
class RunOptions(ChosenOptions, panel="Decoding"):
    """Answer a prompt by the recommended strategy of a run, or by any models that decode together."""

    prompt: str | None = argument(
        "A question of the run's task or another prompt, or - for standard input.", "PROMPT", None
    )
    as_json: bool = changed(
        OutputOptions,
        "as_json",
        help="Print the text, the answer in it and what it took as JSON, and nothing else, on standard output.",
        unless=("stream",),
    )
    seed: int = changed(SeedOptions, "seed")
    temperature: float = option(0.0, "0 takes the most likely token.", within=AT_LEAST_0)
    top_p: float = option(
        1.0,
        "Draw from the most likely tokens that have this probability together.",
        within=Range("a number above 0, up to 1", above=0, most=1),
        is_rare=True,
    )
    stream: bool = option(False, "Print the text while it is written.")
    trace: bool = option(False, "Show the candidates of every member at every step.", is_rare=True)
    answer: bool = option(False, "Print only the answer that the task's metric reads in the text.", is_rare=True)

    def __post_init__(self) -> None:
        if self.models and self.prompt is None:
            # With --models, the only argument is the prompt.
            object.__setattr__(self, "prompt", self.run)
            object.__setattr__(self, "run", None)
        if self.prompt is None:
            raise InputError(
                "the prompt is missing; give a run folder (or --models) and a prompt, or - to read standard input"
            )
        if self.stream and self.answer:
            raise InputError("--stream and --answer: the answer is known at the end of the text; leave out one")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class RequestLimitOptions(Options, panel="Server", are_rare=True):
    """What requests may take of the server."""

    max_texts: int = option(64, "Texts that may run or wait; further ones get status 429.", within=AT_LEAST_1)
    request_max_new_tokens: int = option(4096, "The highest limit that a request may set.", within=AT_LEAST_1)
    max_queued_tokens: int | None = option(
        None,
        "Tokens in the prompts of all texts that run or wait. Default: 4096 for each of --max-texts.",
        within=AT_LEAST_1,
    )
    max_connections: int | None = option(
        None,
        "Connections at a time. Default: by the limit of open files, at most 1000.",
        within=AT_LEAST_1,
    )
    allow_host: tuple[str, ...] = option((), "A name by which clients reach the server, for example behind a proxy.")
    allow_origin: tuple[str, ...] = option(
        (), "An address of web pages that may use the server, such as http://localhost:3000; * for all."
    )
    max_body: int = option(2**20, "Bytes of a request; a larger one gets status 413.", within=AT_LEAST_1)
    deadline: float = option(
        600,
        "Seconds after which a strategy goes on without a model's answer.",
        within=AT_LEAST_1,
    )


@dataclass(frozen=True, kw_only=True)
class ServeOptions(RequestLimitOptions, ChosenOptions, panel="Server"):
    """Serve the recommended strategy of a run, or any models that decode together, to clients of OpenAI's API."""

    max_new_tokens: int | None = changed(
        TextOptions, "max_new_tokens", help="The limit for requests that name none. Default: as in the run."
    )
    stop: tuple[str, ...] = changed(
        TextOptions, "stop", help="A stop string for requests that name none. Default: as in the run."
    )
    host: str = option("127.0.0.1", "The address to listen on; only this machine reaches 127.0.0.1.")
    port: int = option(
        8000, "The port; 0 takes a free one.", within=Range("a number from 0 to 65535", least=0, most=65535)
    )
    name: str | None = option(None, "The name of the model in requests. Default: the run's folder.")
    api_key_env: str | None = option(
        None, "The environment variable with the key of clients. Default: ADVISOR_API_KEY, or no key."
    )
    api_key_file: Path | None = option(None, "A file with the key.", unless=("api_key_env",))
    batch_size: int | None = changed(InferenceOptions, "batch_size", help="The number of texts in a batch, or auto.")
