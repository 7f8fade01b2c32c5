"""What a model needs of a machine or a cluster's node: cores and GPUs under Ray's names, and rounded weights.

Quantisation rounds weights to 4 or 8 bits while a model is loaded, by bitsandbytes on a CUDA GPU. A quantised model is
another model: its responses differ, so its name in the cache and in a saved ensemble says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec, Resources, resolve_device


def resources_of(requested: Resources, device: str, place: str) -> Resources:
    """The resources of a model, with a number for every value that its line leaves open."""
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
    """The device that a model of the pool runs on; `device`, which may be ``auto``, is for models that name none."""
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


ROUNDING = ("bitsandbytes", "accelerate")
"""The packages that it needs besides a GPU."""


def check_quantization(name: str, quantization: str | None, device: str) -> None:
    """Check that this machine can quantise a model; `device` is not ``auto``, and None quantises nothing."""
    if quantization is None:
        return
    # Here and not while it is loaded, where the library's error would come after the download.
    said = f"{name}: quantization={quantization}"
    if device.partition(":")[0] != "cuda":
        raise InputError(
            f"{said} needs a CUDA GPU, and it runs on {device}; leave it out, or serve the model (openai:http://...)"
        )
    for package in ROUNDING:
        if find_spec(package) is None:
            raise InputError(f"{said} needs {package}; install it (pip install {package}), or leave it out")
