"""Reading ``--model_args``: which models, how they are loaded, and how they decode together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from advisor.config import check_loading, check_method
from advisor.pool.checks import check_set
from advisor.runs.chosen_set import chosen_by_folder, chosen_by_hand
from ensemble.errors import InputError
from ensemble.methods import make_options, option_fields
from ensemble.models.spec import ChatTemplate, EnsembleSpec, ModelSpec

NAMES = ("run", "models", "method", "k", "weights", "dtype", "device", "chat_template", "max_gen_toks", "seed")
"""The model's own arguments; the method's settings come in addition."""
_EXAMPLE = "--model_args run=runs/demo, or models=FOLDER+FOLDER"


def chosen(
    run: object, models: object, *, device: object, dtype: object, chat_template: object, given: Mapping[str, Any]
) -> EnsembleSpec:
    """The models of a run folder, or some given by hand, and how they decode.

    Args:
        run: A run folder, or None.
        models: Folders and hub ids, as a list or with ``+`` between them, or None.
        device: One for all models, or one for each as a list or with ``+`` between them; None for the run's devices;
            without a run, ``auto``.
        dtype: For all models; None for the run's, or for the type of the stored weights.
        chat_template: For all models.
        given: ``method``, ``k``, ``weights``, and the method's settings.

    Raises:
        InputError: An argument is wrong.
    """
    if (run is None) == (models is None):
        raise InputError(f"lm-eval: the model needs either a run folder or models; give {_EXAMPLE}")
    found = chosen_by_hand(_listed("models", models)) if run is None else chosen_by_folder(Path(str(run)))
    # A run folder may come from other people, and the harness has no option for the user's consent to its servers.
    if remote := next((each.name for each in found.members if each.is_remote), None):
        raise InputError(f"lm-eval: {remote} is behind a server; the models of the harness are loaded in this process")
    check_loading("auto" if dtype is None else str(dtype), str(chat_template))
    found = found.with_loading(
        dtype=None if dtype is None else str(dtype), chat_template=cast("ChatTemplate", str(chat_template))
    )
    members = _placed(found.members, device)
    check_set(members)
    return _decoding(found, members, given)


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


def _decoding(found: EnsembleSpec, members: tuple[ModelSpec, ...], given: Mapping[str, Any]) -> EnsembleSpec:
    method = str(given.get("method", found.method))
    k = given.get("k", found.k)
    # lm-eval turns the text of --model_args into numbers where it can; what is still a text is no number.
    if not isinstance(k, int):
        raise InputError(f"--model_args k={k}: must be a number of candidates")
    check_method(method, k)
    options = {name: value for name, value in given.items() if name not in {"method", "k"}}
    known = [field.name for field in option_fields(method)]
    for unknown in options.keys() - {"weights", *known}:
        of_method = f"; method={method} also has {', '.join(known)}" if known else ""
        raise InputError(f"--model_args: unknown argument '{unknown}'; use one of {', '.join(NAMES)}{of_method}")
    if method == found.method:
        # What the run or the saved ensemble has, where nothing else is given.
        options = {**({} if found.weights is None else {"weights": found.weights}), **found.options, **options}
    make_options(method, {name: value for name, value in options.items() if name != "weights"})
    # One alone writes as itself, and its probabilities are those of its whole vocabulary.
    if len(members) == 1:
        return EnsembleSpec(members, "average", 1)
    return EnsembleSpec(members, method, k, options=options)
