"""What a model asks of a node of a cluster: cores and GPUs, by Ray's own names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ensemble.errors import InputError

OPTIONS = ("num_cpus", "num_gpus")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a line of the pool file asks for; what it leaves open (None) follows from its device.

    Attributes:
        num_cpus: Cores, which are the threads that it computes with: a whole number, 1 where None.
        num_gpus: GPUs: a whole number, or a share of one; where None, 1 for a model on ``cuda``, else 0.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None


def read_needs(options: Mapping[str, str], place: str) -> Needs:
    """Read the options of a line of the pool file.

    Args:
        options: All of them, by name.
        place: File and line, for messages.

    Raises:
        InputError: One is no such number.
    """
    cpus, gpus = (_number(options, name, place) for name in OPTIONS)
    if cpus is not None and (cpus < 1 or cpus % 1):
        raise InputError(f"{place}: num_cpus={options['num_cpus']}: give a whole number, at least 1")
    if gpus is not None and gpus > 1 and gpus % 1:
        raise InputError(f"{place}: num_gpus={options['num_gpus']}: give a whole number, or a share below 1")
    return Needs(cpus, gpus)


def needs_of(asked: Needs, device: str, place: str) -> Needs:
    """What a model asks for, with what it leaves open.

    Args:
        asked: What its line says.
        device: Where it is to compute.
        place: Who asks, for messages.

    Raises:
        InputError: The device is not the one that it would be given.
    """
    if device not in ("cpu", "cuda"):
        raise InputError(f"{place}: device {device}: with --engine ray a model is given its GPU; use cuda, or cpu")
    cuda = device == "cuda"
    gpus = float(cuda) if asked.num_gpus is None else asked.num_gpus
    if cuda != (gpus > 0):
        way = "give it more" if cuda else "add device=cuda, or leave num_gpus out"
        raise InputError(f"{place}: num_gpus={gpus:g} for a model on {device}; {way}")
    return Needs(asked.num_cpus or 1, gpus)


def together(needs: Sequence[Needs]) -> Needs:
    """What models that decode together ask of one node: GPUs for each, cores for one, as they compute in turns."""
    return Needs(max(one.num_cpus or 1 for one in needs), sum(one.num_gpus or 0 for one in needs))


def devices(needs: Sequence[Needs]) -> list[str]:
    """Each model's device as its worker sees it, where the GPUs that it was given are counted from 0."""
    found, before = [], 0.0
    for one in needs:
        found.append(f"cuda:{int(before)}" if one.num_gpus else "cpu")
        before += one.num_gpus or 0
    return found


def _number(options: Mapping[str, str], name: str, place: str) -> float | None:
    if name not in options:
        return None
    try:
        number = float(options[name])
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        what = "a whole number, at least 1" if name == "num_cpus" else "a number, 0 or more"
        raise InputError(f"{place}: {name}={options[name]}: give {what}")
    return number
