"""Reading ``--model_args``: which models, how they are loaded, and how they decode together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from advisor.config import check_decodes
from advisor.options.shared import InferenceOptions, WeightOptions
from advisor.pool.checks import check_set
from advisor.running.models_to_run import chosen_by_folder, chosen_by_hand
from ensemble.errors import InputError
from ensemble.methods import make_options, option_fields
from ensemble.models.spec import THINK, ChatTemplate, EnsembleSpec, ModelSpec

NAMES = ("run", "models", "method", "k", "weights", "dtype", "device", "chat_template", "max_gen_toks", "seed")
"""The model's own arguments; the method's settings come in addition."""
_EXAMPLE = "--model_args run=runs/demo, or models=FOLDER+FOLDER"


@dataclass(frozen=True)
class Decoding:
    """How the models decode, as ``--model_args`` says it; None for what the run or the saved ensemble has.

    Attributes:
        method: The method.
        k: Candidate tokens of each member in a step.
        weights: The members' weights.
        settings: The method's own settings.
    """

    method: object
    k: object
    weights: object
    settings: Mapping[str, object]


def chosen(
    run: object, models: object, *, device: object, dtype: object, chat_template: object, decoding: Decoding
) -> EnsembleSpec:
    """The models of a run folder, or some given by hand, and how they decode.

    Args:
        run: A run folder, or None.
        models: Folders and hub ids, as a list or with ``+`` between them, or None.
        device: One for all models, or one for each as a list or with ``+`` between them; None for the run's devices;
            without a run, ``auto``.
        dtype: For all models; None for the run's, or for the type of the stored weights.
        chat_template: For all models.
        decoding: How they decode.

    Raises:
        InputError: An argument is wrong.
    """
    if (run is None) == (models is None):
        raise InputError(f"lm-eval: the model needs either a run folder or models; give {_EXAMPLE}")
    found = chosen_by_hand(_listed("models", models)) if run is None else chosen_by_folder(Path(str(run)))
    # A run folder may come from other people, and the harness has no option for the user's consent to its servers.
    if remote := next((each.name for each in found.members if each.is_remote), None):
        raise InputError(f"lm-eval: {remote} is behind a server; the models of the harness are loaded in this process")
    template = cast("ChatTemplate", str(chat_template))
    InferenceOptions(dtype="auto" if dtype is None else str(dtype), chat_template=template)  # checks the values
    found = found.with_loading(dtype=None if dtype is None else str(dtype), chat_template=template)
    members = _placed(found.members, device)
    check_set(members)
    return _decoding(found, members, decoding)


def _listed(name: str, value: object) -> list[str]:
    """The entries of a list, or of a text with ``+`` between them."""
    parts = [str(part) for part in value] if isinstance(value, (list, tuple)) else str(value).split("+")
    if not parts or not all(parts):
        raise InputError(f"--model_args {name}={value}: an entry is empty; write one + between two entries")
    return parts


def _placed(models: Sequence[ModelSpec], device: object) -> tuple[ModelSpec, ...]:
    """The models where they are to be loaded."""
    if device is None:
        return tuple(models)
    places = _listed("device", device)
    if len(places) == 1:
        places *= len(models)
    if len(places) != len(models):
        raise InputError(
            f"--model_args device={device}: {len(places)} devices for {len(models)} models; give one device for each"
        )
    return tuple(dataclasses.replace(model, device=place) for model, place in zip(models, places, strict=True))


def _decoding(found: EnsembleSpec, members: tuple[ModelSpec, ...], given: Decoding) -> EnsembleSpec:
    method = found.method if given.method is None else str(given.method)
    k = found.k if given.k is None else given.k
    # lm-eval turns the text of --model_args into numbers where it can; what is still a text is no number.
    if not isinstance(k, int):
        raise InputError(f"--model_args k={k}: must be a number of candidates")
    check_decodes(method)
    WeightOptions(k=k)  # checks the range
    known = [*(field.name for field in option_fields(method)), THINK]
    for unknown in given.settings.keys() - set(known):
        of_method = f"; method={method} also has {', '.join(known)}" if known else ""
        raise InputError(f"--model_args: unknown argument '{unknown}'; use one of {', '.join(NAMES)}{of_method}")
    settings, weights = given.settings, given.weights
    if method == found.method:
        # What the run or the saved ensemble has, where nothing else is given.
        settings, weights = {**found.options, **settings}, found.weights if weights is None else weights
    make_options(method, settings)
    # One alone writes as itself, and its probabilities are those of its whole vocabulary.
    if len(members) == 1:
        return EnsembleSpec(members, "average", 1)
    options = settings if weights is None else {"weights": weights, **settings}
    return EnsembleSpec(members, method, k, options=options)
