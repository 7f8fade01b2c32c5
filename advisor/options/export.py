"""The options of ``advisor export``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.on_run import RunArgument
from advisor.options.option import argument, changed, option
from advisor.options.shared import DebugOptions, ServerOptions, StrategyOptions


@dataclass(frozen=True, kw_only=True)
class FolderArgument(RunArgument):
    """A run folder, and the folder to write."""

    folder: Path = argument("A new or empty folder, or an earlier export.", "FOLDER")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(DebugOptions, ServerOptions, StrategyOptions, FolderArgument):
    """Of ``advisor export``."""

    push: str | None = option(None, "Push it to the hub under this id.", metavar="ID")
    public: bool = option(False, "Make the new model of --push public.", needs=("push", ()))
    compose: bool = option(False, "Also write files for Docker Compose: the server, vLLM and Prometheus.")
    # An export contacts no server.
    allow_server: tuple[str, ...] = changed(ServerOptions, "allow_server", needs=("compose", ()))
    allow_key_env: tuple[str, ...] = changed(ServerOptions, "allow_key_env", needs=("compose", ()))
