"""The options of the commands that write texts with chosen models: run, serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.option import Options, Range, argument, changed, option
from advisor.options.shared import (
    InferenceOptions,
    LoadingOptions,
    SeedOptions,
    ServerOptions,
    StrategyOptions,
    WeightOptions,
)
from advisor.records import Think
from ensemble.errors import InputError


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

    group: str | None = option(None, "The group of the prompt, for a router by groups.", panel="Models and questions")
    raw: bool = option(False, "Send prompts as they are, and not in the template of the run's task.")
    deterministic: bool = option(
        False,
        "Decode each text by itself, so that it does not depend on the others in bfloat16 and float16; slow.",
        panel="Running models",
    )
    no_check_files: bool = option(False, "Load a saved ensemble even if the files of a member have changed.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.models and self.run is not None:
            raise InputError("give a run folder or --models, not both")
        if not self.models and self.run is None:
            raise InputError("give a run folder, or --models for each model, the primary first")

    @property
    def names_places(self) -> bool:
        """Whether the user's own words say where the models are, and not a folder that may come from other people."""
        return bool(self.models) or self.pool is not None


@dataclass(frozen=True, kw_only=True)
class RunOptions(ChosenOptions, panel="Decoding"):
    """Answer a prompt by the recommended strategy of a run, or by any models that decode together."""

    prompt: str | None = argument(
        "A question of the run's task or another prompt, or - for standard input.", "PROMPT", None
    )
    seed: int = changed(SeedOptions, "seed")
    temperature: float = option(0.0, "0 takes the most likely token.", within=Range(least=0))
    top_p: float = option(
        1.0, "Draw from the most likely tokens that have this probability together.", within=Range(above=0, most=1)
    )
    stream: bool = option(False, "Print the text while it is written.")
    trace: bool = option(False, "Show the candidates of every member at every step.")
    answer: bool = option(False, "Print only the answer that the task's metric reads in the text.")

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
class ServeOptions(ChosenOptions, panel="Server"):
    """Serve the recommended strategy of a run, or any models that decode together, to clients of OpenAI's API."""

    max_new_tokens: int | None = changed(
        TextOptions, "max_new_tokens", help="The limit for requests that name none. Default: as in the run."
    )
    stop: tuple[str, ...] = changed(
        TextOptions, "stop", help="A stop string for requests that name none. Default: as in the run."
    )
    host: str = option("127.0.0.1", "The address to listen on; only this machine reaches 127.0.0.1.")
    port: int = option(8000, "The port; 0 takes a free one.", within=Range(least=0, most=65535))
    name: str | None = option(None, "The name of the model in requests. Default: the run's folder.")
    api_key_file: Path | None = option(None, "A file with the key. Default: $ADVISOR_API_KEY, or no key.")
    batch_size: int | None = changed(InferenceOptions, "batch_size", help="The number of texts in a batch, or auto.")
    max_texts: int = option(64, "Texts that may run or wait; further ones get status 429.", within=Range(least=1))
    request_max_new_tokens: int = option(4096, "The highest limit that a request may set.", within=Range(least=1))
    most_prompt_tokens: int | None = option(
        None,
        "Tokens of a prompt. Default: the members' context.",
        within=Range(least=1),
    )
    max_queued_tokens: int | None = option(
        None,
        "Tokens in the prompts of all texts that run or wait. Default: 4096 for each of --max-texts.",
        within=Range(least=1),
    )
    max_connections: int | None = option(
        None,
        "Connections at a time. Default: by the limit of open files, at most 1000.",
        within=Range(least=1),
    )
    allow_host: tuple[str, ...] = option((), "A name by which clients reach the server, for example behind a proxy.")
    max_body: int = option(2**20, "Bytes of a request; a larger one gets status 413.", within=Range(least=1))
    deadline: float = option(
        600,
        "Seconds after which a strategy goes on without a model's answer.",
        within=Range(least=1),
    )
