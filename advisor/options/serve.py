"""The options of ``advisor serve``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.chosen import ChosenOptions, TextOptions
from advisor.options.option import Range, changed, option
from advisor.options.shared import InferenceOptions


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ChosenOptions, panel="Server"):
    """Of ``advisor serve``."""

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
    max_texts: int = option(
        64,
        "Texts that may run or wait; further ones get status 429.",
        within=Range(least=1),
    )
    request_max_new_tokens: int = option(
        4096,
        "The highest limit that a request may set.",
        within=Range(least=1),
    )
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
