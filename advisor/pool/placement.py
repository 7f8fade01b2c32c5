"""Placement: which model of a run is on which GPU, where the machine has several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from advisor.pool.fit import free_on, need_of_model
from ensemble.models.spec import ModelSpec


def place(needs: Mapping[str, int], free: Mapping[str, int], fixed: Mapping[str, str]) -> dict[str, str]:
    """Place models side by side: the largest first, each on the device that has most left.

    Args:
        needs: Bytes that each model needs, by name.
        free: Bytes that each device has free, by name, at least one device.
        fixed: The device of each model that has one already. It takes room there, if it is among ``free``.

    Returns:
        The device of each model of ``needs``. Models that fit nowhere go where most is left, too.
    """
    # Those with a device come first in the loop, because they leave the others no choice.
    left = dict(free)
    placed = dict(fixed)
    for name in sorted(needs, key=lambda name: (name not in fixed, -needs[name], name)):
        # max() takes the first of equal devices, so the order of `free` decides, and not that of a hash.
        device = placed.setdefault(name, max(left, key=lambda each: left[each]))
        if device in left:
            left[device] -= needs[name]
    return {name: placed[name] for name in needs}


def place_models(
    models: Sequence[ModelSpec], device: str = "auto", dtype: str = "auto"
) -> tuple[tuple[ModelSpec, ...], str | None]:
    """Place models that name no device, if the machine has several GPUs and ``--device`` is ``auto``.

    Args:
        models: The pool, or a set.
        device: The device of models that name none.
        dtype: The numeric type of models that name none.

    Returns:
        The models, and what was placed where, in one line; None if nothing was placed.
    """
    # A server has placed its model already.
    here = [model for model in models if not model.is_remote]
    wanted = {model.name: model.device or device for model in here}
    if "auto" not in wanted.values() or not (free := _gpus()):
        return tuple(models), None
    fixed = {name: each for name, each in wanted.items() if each != "auto"}
    needs = {model.name: need.weights if (need := need_of_model(model, dtype)) else 0 for model in here}
    placed = place(needs, free, fixed)
    return tuple(replace(model, device=placed.get(model.name, model.device)) for model in models), _in_words(placed)


def _gpus() -> dict[str, int]:
    """The free bytes of each GPU; empty where fewer than two are there, since then nothing is to choose."""
    import torch

    count = torch.cuda.device_count()
    return {f"cuda:{n}": free_on(f"cuda:{n}") or 0 for n in range(count)} if count > 1 else {}


def _in_words(placed: Mapping[str, str]) -> str:
    by_device: dict[str, list[str]] = {}
    for name, device in placed.items():
        by_device.setdefault(device, []).append(name)
    return "; ".join(f"{device}: {', '.join(names)}" for device, names in sorted(by_device.items()))
