"""Loads the models of a set, and keeps the loading libraries quiet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble.models.spec import THINK, EnsembleSpec, ModelSpec

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.models.member import Member

ALONE = "average"
"""The method of a single model: it gives the whole vocabulary's probabilities, which draws and requests need."""


def load_ensemble(spec: EnsembleSpec, cache_dir: Path) -> Ensemble:
    """Load models as an ensemble; see :func:`ensemble_of`.

    Args:
        spec: The models and how they decode.
        cache_dir: The folder of the joint vocabularies' tables.

    Raises:
        InputError: The spec cannot be used, or the method needs all logits of members that are elsewhere.
        MemberError: A model failed while it was loaded.
    """
    check_spec(spec)
    return ensemble_of(load_models(spec.members), spec, cache_dir)


def check_spec(spec: EnsembleSpec) -> None:
    """Make sure that a spec's method can combine its members, before anything is loaded.

    Raises:
        InputError: It cannot.
    """
    from ensemble.methods import check_members

    if len(spec.members) > 1 or spec.method == "average":
        check_members(spec.method, spec.members)


def load_models(models: Sequence[ModelSpec]) -> Sequence[Member]:
    """Load models without their libraries' messages.

    Raises:
        InputError: One of them cannot be used.
        MemberError: One of them failed while it was loaded.
    """
    from ensemble.models.load import load_members

    if any(not model.is_remote and model.weights.gguf for model in models):
        _silence_gguf()
    return load_members(models)


def ensemble_of(members: Sequence[Member], spec: EnsembleSpec, cache_dir: Path) -> Ensemble:
    """Loaded models as an ensemble. A single model decodes exactly as it does without one, whatever the method."""
    from ensemble.api import Ensemble

    tables = cache_dir / "tables"
    # Greedy decoding of a single model needs only its likeliest token. Sampling and likelihoods need the whole
    # vocabulary, which the method "average" reads.
    if len(members) == 1 and spec.method != "average":
        think = {THINK: spec.options[THINK]} if THINK in spec.options else {}
        return Ensemble(members, k=1, cache_dir=tables, **think)
    options = dict(spec.options) if spec.weights is None else {**spec.options, "weights": spec.weights}
    return Ensemble(members, method=spec.method, k=spec.k, cache_dir=tables, **options)


def _silence_gguf() -> None:
    import transformers.modeling_gguf_pytorch_utils as gguf
    from transformers.utils import logging

    # The GGUF reader uses tqdm itself, so it ignores transformers' switch for progress bars. Their wrapper obeys it.
    vars(gguf)["tqdm"] = logging.tqdm


def silence_libraries(*, quiet: bool = False) -> None:
    """Hide the libraries' own progress bars and warnings. Their errors are still raised.

    Args:
        quiet: Whether to hide the progress bars of downloads, too.
    """
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging

    # A bar for every file of weights would break into the run's own bars.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # huggingface_hub types nearly all
    if quiet:
        disable_progress_bars()
