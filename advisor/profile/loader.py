"""Loading models as the members of an ensemble, as the commands do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ensemble.models.spec import ModelSpec

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.models.member import Member


@dataclass(frozen=True, slots=True)
class Decoding:
    """How members decode together.

    Attributes:
        method: A token- or span-level method's name.
        k: Candidates that each member brings, where the method restricts itself to some.
        options: The method's own settings, by name.
    """

    method: str = "unite"
    k: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)

    def key(self) -> dict[str, Any]:
        """As part of a response's key."""
        return {"method": self.method, "k": self.k, **self.options}


class Loader(Protocol):
    """Where the models of a run come from."""

    def __call__(self, models: Sequence[ModelSpec], decoding: Decoding) -> Ensemble:
        """Models as an ensemble, the primary first; one alone writes exactly as itself, whatever the decoding.

        Raises:
            InputError: What was given cannot be used.
            MemberError: A model failed while it was loaded.
        """
        ...


@dataclass(frozen=True, slots=True)
class FreshLoader:
    """Loads models whenever they are asked for, and keeps none: no more are in memory than decode together.

    Attributes:
        cache_dir: Where the tables of joint vocabularies are kept.
    """

    cache_dir: Path

    def __call__(self, models: Sequence[ModelSpec], decoding: Decoding) -> Ensemble:
        """See :class:`Loader`."""
        return _ensemble([_load(model) for model in models], decoding, self.cache_dir)


@dataclass(frozen=True, slots=True)
class SpreadLoader:
    """Loads each model on a node of its own of the Ray cluster that is joined (:mod:`ensemble.distributed`).

    Attributes:
        cache_dir: Where the tables of joint vocabularies are kept.
    """

    cache_dir: Path

    def __call__(self, models: Sequence[ModelSpec], decoding: Decoding) -> Ensemble:
        """See :class:`Loader`; a method that needs its members in one process is refused before any is loaded."""
        from ensemble.distributed.engine import check_engine, load_members

        if len(models) > 1 or decoding.method == "average":
            check_engine("ray", decoding.method)
        return _ensemble(load_members(models, "ray"), decoding, self.cache_dir)


@dataclass(frozen=True, slots=True)
class KeepingLoader:
    """Loads each model once and keeps it, for runs that need all of them in memory anyway.

    Attributes:
        cache_dir: Where the tables of joint vocabularies are kept.
    """

    cache_dir: Path
    _members: dict[str, Member] = field(default_factory=dict)

    def __call__(self, models: Sequence[ModelSpec], decoding: Decoding) -> Ensemble:
        """See :class:`Loader`."""
        for model in models:
            if model.name not in self._members:
                self._members[model.name] = _load(model)
        return _ensemble([self._members[model.name] for model in models], decoding, self.cache_dir)


def _load(model: ModelSpec) -> Member:
    from ensemble.models.load import load_member

    if model.checkpoint.gguf is not None:
        _hush_gguf()
    return load_member(model)


def _ensemble(members: Sequence[Member], decoding: Decoding, cache_dir: Path) -> Ensemble:
    from ensemble.api import Ensemble

    # One alone writes greedily whatever the method; what is drawn is drawn from its whole vocabulary.
    if len(members) == 1 and decoding.method != "average":
        return Ensemble(members, k=1, cache_dir=cache_dir / "tables")
    return Ensemble(members, method=decoding.method, k=decoding.k, cache_dir=cache_dir / "tables", **decoding.options)


def _hush_gguf() -> None:
    """Let the bar of GGUF files ask whether bars are wanted, as all others do."""
    import transformers.modeling_gguf_pytorch_utils as gguf
    from transformers.utils import logging

    vars(gguf)["tqdm"] = logging.tqdm


def hush(*, quiet: bool = False) -> None:
    """Keep the libraries' own bars and warnings off the terminal: what matters of them is an error, or a note.

    Args:
        quiet: Whether the bars of downloads are to go too.
    """
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging

    # A bar for every file of weights would break into the run's own.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # huggingface_hub types nearly all
    if quiet:
        disable_progress_bars()
