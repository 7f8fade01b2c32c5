"""What ``--model_args`` says: which models, how they are loaded, and how they decode together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from advisor.checks import check_loading, check_method, check_models
from advisor.output.chosen_set import chosen_by_folder, chosen_by_hand
from ensemble.errors import InputError
from ensemble.methods import NoOptions, get_module, make_options
from ensemble.models.spec import ChatTemplate, EnsembleSpec, ModelSpec

NAMES = ("run", "models", "method", "k", "weights", "dtype", "device", "chat_template", "max_gen_toks", "seed")
"""What there is beside the method's own settings."""
_EXAMPLE = "--model_args run=runs/demo, or models=FOLDER+FOLDER"


def chosen(
    run: object, models: object, *, device: object, dtype: object, chat_template: object, given: Mapping[str, Any]
) -> EnsembleSpec:
    """The models of a run folder, or some given by hand, and how they decode.

    Args:
        run: A run folder, or None.
        models: Folders and hub ids, as a list or with ``+`` between them, or None.
        device: One for all, or one for each as a list or with ``+`` between them; None for the run's own, and for CUDA
            where it is there.
        dtype: For all; None for the run's own, or as they are stored.
        chat_template: For all.
        given: ``method``, ``k``, ``weights``, and the method's own settings.

    Raises:
        InputError: Something of it cannot be used.
    """
    if (run is None) == (models is None):
        raise InputError(f"lm-eval: the model needs a run folder or models, one of the two; give {_EXAMPLE}")
    found = chosen_by_hand(_listed("models", models)) if run is None else chosen_by_folder(Path(str(run)))
    check_loading("auto" if dtype is None else str(dtype), str(chat_template))
    found = found.with_loading(
        dtype=None if dtype is None else str(dtype), chat_template=cast("ChatTemplate", str(chat_template))
    )
    members = _placed(found.members, device, fresh=run is None)
    check_models(members)
    return _decoding(found, members, given)


def _listed(name: str, value: object) -> list[str]:
    """A list, or what stands between plus signs."""
    parts = [str(part) for part in value] if isinstance(value, (list, tuple)) else str(value).split("+")
    if not parts or not all(parts):
        raise InputError(f"--model_args {name}={value}: one of them is empty; give them with one + between two")
    return parts


def _placed(models: Sequence[ModelSpec], device: object, *, fresh: bool) -> tuple[ModelSpec, ...]:
    """The models where they are to be loaded."""
    if device is None:
        if not fresh:
            return tuple(models)
        import torch

        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    places = _listed("device", device)
    if len(places) == 1:
        places *= len(models)
    if len(places) != len(models):
        raise InputError(f"--model_args device={device}: {len(places)} devices for {len(models)} models; give one each")
    return tuple(dataclasses.replace(model, device=place) for model, place in zip(models, places, strict=True))


def _decoding(found: EnsembleSpec, members: tuple[ModelSpec, ...], given: Mapping[str, Any]) -> EnsembleSpec:
    method = str(given.get("method", found.method))
    k = given.get("k", found.k)
    if not isinstance(k, int):
        raise InputError(f"--model_args k={k}: give a number of candidates")
    check_method(method, k)
    options = {name: value for name, value in given.items() if name not in {"method", "k"}}
    known = [field.name for field in fields(getattr(get_module(method), "Options", NoOptions))]
    for unknown in options.keys() - {"weights", *known}:
        own = f", and with method={method} also {', '.join(known)}" if known else ""
        raise InputError(f"--model_args: the model has no argument '{unknown}'; it has {', '.join(NAMES)}{own}")
    make_options(method, {name: value for name, value in options.items() if name != "weights"})
    # One alone writes as itself, and its probabilities are those of its whole vocabulary.
    if len(members) == 1:
        return EnsembleSpec(members, "average", 1)
    return EnsembleSpec(members, method, k, options=options)
