"""What ``advisor run`` and ``advisor serve`` share: what is loaded, and how it decodes."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.options.option import Options, argument, changed, option
from advisor.options.shared import (
    InferenceOptions,
    LoadingOptions,
    ServerOptions,
    StrategyOptions,
    WeightOptions,
)
from advisor.records import Think
from ensemble.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SourceArgument(Options):
    """A folder, or models without one."""

    run: str | None = argument("A run folder or a saved ensemble; or give --models.", "RUN", None)


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(Options, panel="Models and questions"):
    """Models without a run."""

    models: tuple[str, ...] = option(
        (), "A folder, a hub id, or a server as in a pool file, once for each model; the primary first."
    )


@dataclass(frozen=True, kw_only=True)
class GroupOptions(StrategyOptions, panel="Models and questions"):
    """Which strategy of a run, and for which group."""

    group: str | None = option(None, "The group of the prompt, for a router by groups.")


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
    GroupOptions,
    ModelsOptions,
    SourceArgument,
    panel="Permissions",
):
    """What ``run`` and ``serve`` share: what is loaded, and how it decodes."""

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
