"""The cores and GPUs that a model needs on a node of a cluster, under Ray's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec, Resources, resolve_device

OPTIONS = ("num_cpus", "num_gpus")


def read_resources(options: Mapping[str, str], place: str) -> Resources:
    """Read the options of a line of the pool file.

    Args:
        options: All options of the line, by name.
        place: File and line, for messages.

    Raises:
        InputError: A value is not a number in its range.
    """
    cpus, gpus = (_number(options, name, place) for name in OPTIONS)
    if cpus is not None and (cpus < 1 or cpus % 1):
        raise InputError(f"{place}: num_cpus={options['num_cpus']}: give a whole number, at least 1")
    # Ray shares one GPU between several models, but a model cannot have one GPU and a half.
    if gpus is not None and gpus > 1 and gpus % 1:
        raise InputError(f"{place}: num_gpus={options['num_gpus']}: give a whole number, or a part of one GPU")
    return Resources(cpus, gpus)


def resources_of(requested: Resources, device: str, place: str) -> Resources:
    """The resources of a model, with a number for every value that its line leaves open.

    Args:
        requested: What its line requests.
        device: The model's device: ``cpu``, ``cuda``, or ``auto`` for the one that the request needs.
        place: File and line, or the model's name, for messages.

    Raises:
        InputError: The device and the number of GPUs do not fit.
    """
    if device == "auto":
        # GPUs that torch sees here are not the cluster's, and one is reserved only where it is requested.
        device = "cuda" if requested.num_gpus else "cpu"
    if device not in ("cpu", "cuda"):
        raise InputError(f"{place}: device {device}: --engine ray assigns the GPUs itself; use cuda or cpu")
    cuda = device == "cuda"
    gpus = float(cuda) if requested.num_gpus is None else requested.num_gpus
    if cuda != (gpus > 0):
        way_out = "give it more" if cuda else "add device=cuda, or leave out num_gpus"
        raise InputError(f"{place}: num_gpus={gpus:g} for a model on {device}; {way_out}")
    return Resources(requested.num_cpus or 1, gpus)


def device_of(model: ModelSpec, device: str, engine: str) -> str:
    """The device that a model of the pool runs on.

    Args:
        model: The model.
        device: The device of models that name none; ``auto`` to choose one.
        engine: Where models run, one of ENGINES of :mod:`advisor.config`.
    """
    wanted = model.device or device
    if wanted == "auto" and engine == "ray":
        return "cuda" if resources_of(model.resources, wanted, model.place).num_gpus else "cpu"
    return resolve_device(wanted)


def combined(resources: Sequence[Resources]) -> Resources:
    """The resources of models that decode together on one node."""
    # The models compute in turns, so they share their cores; but each keeps its weights on its own GPUs.
    return Resources(max(model.num_cpus or 1 for model in resources), sum(model.num_gpus or 0 for model in resources))


def devices(resources: Sequence[Resources]) -> list[str]:
    """The device of each model within its worker, where Ray numbers the GPUs of the worker from 0."""
    names, used = [], 0.0
    for model in resources:
        names.append(f"cuda:{int(used)}" if model.num_gpus else "cpu")
        # Parts of one GPU share its number: int() of 0.0 and of 0.5 is 0.
        used += model.num_gpus or 0
    return names


def _number(options: Mapping[str, str], name: str, place: str) -> float | None:
    if name not in options:
        return None
    try:
        number = float(options[name])
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        form = "a whole number, at least 1" if name == "num_cpus" else "a number, 0 or more"
        raise InputError(f"{place}: {name}={options[name]}: give {form}")
    return number
