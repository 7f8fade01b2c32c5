"""The options of ``advisor export``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.on_run import RunArgument
from advisor.options.option import argument, option
from advisor.options.shared import ServerOptions, StrategyOptions
from ensemble.errors import InputError


@dataclass(frozen=True, kw_only=True)
class FolderArgument(RunArgument):
    """A run folder, and the folder to write."""

    folder: Path = argument("A new or empty folder, or an earlier export.", "FOLDER")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ServerOptions, StrategyOptions, FolderArgument):
    """Of ``advisor export``."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        # An export contacts no server; these files make another program do so.
        if self.allow_server and not self.compose and self.target is None:
            raise InputError("--allow-server has no effect without --compose or --as; add one of them, or leave it out")
