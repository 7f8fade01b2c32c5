"""The cores and GPUs that a model needs on a node of a cluster, under Ray's names."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec, Resources, resolve_device


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
