"""Checks of models before a run: they fit, each can be loaded on its device, and its weights can be read.

Also what a model needs of a cluster's node, under Ray's names. Quantisation rounds weights to 4 or 8 bits while a model
is loaded, by bitsandbytes on a CUDA GPU. A quantised model is another model: its responses differ, so its name in the
cache and in a saved ensemble says it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.models.server_model import identify_server
from ensemble.common.extras import check_installed, is_installed
from ensemble.common.text import memory
from ensemble.errors import InputError, UniteError, first_line
from ensemble.models.choices import ChatTemplate
from ensemble.models.hub import cached_file
from ensemble.models.model_files import check, check_tokenizer, files_of, stored_weights, weights_on_hub
from ensemble.models.spec import Checkpoint, ModelSpec, Resources, resolve_device

if TYPE_CHECKING:
    from ensemble.models.memory import MemoryNeed


ROUNDING = "bitsandbytes"
"""The package that quantisation needs besides a GPU and the extra ``local``."""
Placed = tuple[str, "MemoryNeed | None"]
"""A model's device, and what it needs there; None if that is not known."""


def need_of_model(model: ModelSpec, dtype: str = "auto", device: str | None = None) -> MemoryNeed | None:
    """What a model needs; None for a model behind a server, and for files that do not tell."""
    checkpoint, dtype = model.checkpoint, model.dtype or dtype
    if checkpoint.is_remote:
        return None
    import torch
    from transformers import PretrainedConfig

    from ensemble.models.memory import need_of, stored_dtype, usable_dtype
    from ensemble.models.model_files import check

    try:
        here = weights_here(model.name, checkpoint)
        found = weights_on_hub(checkpoint) if here is None and not checkpoint.is_local else here
        if found is None:
            return None
        count, stored = found
        if checkpoint.gguf is not None:
            # The weights of a GGUF file are loaded unquantised, so its bytes do not tell how many there are. Its
            # configuration is in the same file, which may not be here yet.
            config = check(checkpoint) if here is not None else PretrainedConfig()
            loaded = "float32" if dtype == "auto" else dtype
            return need_of(count, 0, config, loaded, "gguf") if count else None
        config = check(checkpoint)
        # Where the hub counts no weights, their type tells how many are in the bytes.
        count = count or stored // (2 if "16" in stored_dtype(config) else 4)
        place, rounded = torch.device(resolve_device(device or model.device or "auto")), model.rounding
        used = usable_dtype(dtype, config, place, count if rounded is None else 0)
        need = need_of(count, stored, config, used, rounded)
        return need if used == dtype else need._replace(stored=stored_dtype(config))
    except UniteError:
        return None  # the check of the model, or the library that loads it, reports the problem


def weights_here(name: str, checkpoint: Checkpoint) -> tuple[int, int] | None:
    """The number of a model's weights and the bytes of their files; None if they are not on this machine."""
    if not checkpoint.is_local:
        file = cached_file(checkpoint, checkpoint.config_file)
        if file is None:
            return None
        # A download that was stopped has its small files only, and no weights.
        checkpoint = Checkpoint(str(file.parent if checkpoint.gguf is None else file))
    return stored_weights(name, checkpoint)


def free_on(device: str) -> int | None:
    """Bytes that are free on a device; None if that is not known."""
    import torch

    from ensemble.models.memory import free_memory

    return free_memory(torch.device(resolve_device(device)))


def check_together(models: Mapping[str, Placed]) -> None:
    """Check that the weights of models which are loaded at the same time fit on their devices."""
    by_device: dict[str, dict[str, MemoryNeed]] = {}
    for name, (device, need) in models.items():
        if need is not None:
            by_device.setdefault(resolve_device(device), {})[name] = need
    for device, needs in by_device.items():
        free = free_on(device)
        # The weights alone: with a small batch the rest is small, and a run that would work must not be refused.
        if free is not None and sum(need.weights for need in needs.values()) > free:
            raise InputError(too_large(needs, device, free))


def check_candidates(
    entries: Sequence[ModelSpec],
    device: str,
    dtype: str,
    *,
    decode_together: bool,
    is_stored: Callable[[ModelSpec], bool] = lambda _: False,
) -> list[str]:
    """Check that candidates fit, each alone and two of them together; return notes on those that do not."""
    if all(entry.is_remote for entry in entries):
        return []
    from ensemble.models.memory import in_words

    fitting: dict[str, list[tuple[int, str, MemoryNeed]]] = {}
    refused: list[tuple[ModelSpec, str]] = []
    replaced: dict[str, list[str]] = {}
    unknown = False
    seen, shared = set[ModelSpec](), set[str]()
    for entry in entries:
        place = device_of(entry, device, "local")
        need = need_of_model(entry, dtype, place or None)
        free = free_on(place) if need is not None else None
        if need is not None and need.stored is not None:
            replaced.setdefault(need.stored, []).append(entry.name)
        if need is None or free is None:
            unknown = True
        elif need.weights > free:
            refused.append((entry, f"{entry.place}: {too_large({entry.name: need}, place, free)}"))
        elif entry.loaded in seen:
            shared.add(place)
        else:
            fitting.setdefault(place, []).append((need.weights, entry.name, need))
        seen.add(entry.loaded)
    # A model whose need is not known may fit, so the run goes on.
    if refused and not fitting and not unknown and not any(is_stored(entry) for entry, _ in refused):
        raise InputError(refused[0][1])
    notes = [note for _, note in refused]
    notes += [
        f"{', '.join(names)}: computed in float32, since the processor is slow in {stored}, the type of the files; "
        f"dtype={stored} needs half the memory"
        for stored, names in replaced.items()
    ]
    for place, each in fitting.items():
        free = free_on(place)
        pair = [] if place in shared else sorted(each)[:2]
        # Candidates on other devices, and servers, can still be members together with one of these.
        if decode_together and len(pair) == 2 and free is not None and sum(need for need, _, _ in pair) > free:
            needs = {name: need for _, name, need in pair}
            notes.append(
                f"no two models fit on {place} together: the smallest, {in_words(needs)}; {memory(free)} are free. "
                "Each is profiled alone, and votes work, but no set decodes there"
            )
    return notes


def too_large(needs: Mapping[str, MemoryNeed], device: str, free: int) -> str:
    """Models that do not fit, the memory, and the way out, in one line."""
    from ensemble.models.memory import in_words

    them = "it" if len(needs) == 1 else "them"
    # Other quantised weights cannot be rounded again while they are loaded, and GGUF files not at all.
    if device.startswith("cuda") and any(need.quantization in (None, "8bit") for need in needs.values()):
        way_out = f"load {them} in 4 bits with quantization=4bit"
    elif any(need.dtype in ("float32", "float64") and need.quantization in (None, "gguf") for need in needs.values()):
        way_out = f"load {them} with dtype=bfloat16"
    else:
        way_out = "take a smaller model" if len(needs) == 1 else "take fewer or smaller models"
    way_out += f", or serve {them}"
    return f"{in_words(needs)}; {device} has {memory(free)} free: {way_out} (openai:http://HOST:PORT/v1#MODEL)"


def place(needs: Mapping[str, int], free: Mapping[str, int], fixed: Mapping[str, str]) -> dict[str, str]:
    """Place models side by side: the largest first, on the device with most bytes left, even if they are too few."""
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
    """Place models that name no device on several GPUs; return them and a line about it, None if none was placed."""
    # A server has placed its model already.
    here = [model for model in models if not model.is_remote]
    wanted = {model.name: model.device or device for model in here}
    if "auto" not in wanted.values() or not (free := _gpus()):
        return tuple(models), None
    fixed = {name: each for name, each in wanted.items() if each != "auto"}
    # Lines with the same weights share them, and so their device.
    first = {model.loaded: model for model in reversed(here)}
    needs = {model.name: need.weights if (need := need_of_model(model, dtype)) else 0 for model in first.values()}
    placed = place(needs, free, fixed)
    placed |= {model.name: placed[first[model.loaded].name] for model in here}
    by_device: dict[str, list[str]] = {}
    for name, each in placed.items():
        by_device.setdefault(each, []).append(name)
    words = "; ".join(f"{each}: {', '.join(names)}" for each, names in sorted(by_device.items()))
    return tuple(replace(model, device=placed.get(model.name, model.device)) for model in models), words


def _gpus() -> dict[str, int]:
    """The free bytes of each GPU; empty where fewer than two are there, since then nothing is to choose."""
    if not is_installed("torch"):
        return {}
    import torch

    count = torch.cuda.device_count()
    return {f"cuda:{n}": free_on(f"cuda:{n}") or 0 for n in range(count)} if count > 1 else {}


def check_pool(
    entries: Sequence[ModelSpec], device: str, chat_template: ChatTemplate, *, on_this_machine: bool
) -> None:
    """Check that the run can use every candidate; a server gets a request for its models and one for a few tokens."""
    if on_this_machine:
        check_libraries(entries, device)
    for entry in entries:
        # The devices of a cluster's nodes are checked where Ray knows them.
        if on_this_machine and entry.device is not None:
            check_device(f"{entry.place}: device", entry.device)
        try:
            if entry.checkpoint.is_remote:
                identify_server(replace(entry, chat_template=entry.chat_template or chat_template))
            else:
                if on_this_machine:
                    check_quantization(entry.name, entry.rounding, device_of(entry, device, "local"))
                _check_checkpoint(entry.checkpoint)
        except InputError as error:
            raise InputError(f"{entry.place}: {error}") from error


def check_set(models: Sequence[ModelSpec], *, of_run: bool = False) -> None:
    """Check that every model of a set can be loaded on its device, which an option gives, or the run (`of_run`)."""
    for model in models:
        check_installed("torch", model.name)
        if model.checkpoint.is_remote:
            check_tokenizer(model.tokenizer)
            continue
        device = model.device or "auto"
        check_device(f"{model.name} ran on another device, which --device replaces" if of_run else "--device", device)
        check_quantization(model.name, model.rounding, resolve_device(device))
        _check_checkpoint(model.checkpoint)
    # Lines with the same weights share them.
    distinct = {model.loaded: model for model in models}.values()
    check_together({model.name: (model.device or "auto", need_of_model(model)) for model in distinct})


def check_libraries(models: Sequence[ModelSpec], device: str) -> None:
    """Check, where a model or its tokenizer is loaded here, that this installation and the device can do it."""
    if model := next((each for each in models if each.can_decode), None):
        check_installed("torch", f"{model.place}: {model.name}" if model.place else model.name)
        check_device("--device", device)


def check_device(option: str, device: str) -> None:
    """Raise InputError, which begins with the option, unless a model can run on a device of this machine."""
    # Loads torch, so it is not at the top of the file.
    from ensemble.models.memory import parse_device

    try:
        parsed = parse_device(device)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
    # torch knows this device, but tensors on it have no values.
    if parsed.type == "meta":
        raise InputError(f"{option}: device meta holds no numbers; use a device that computes, for example cpu")


def _check_checkpoint(checkpoint: Checkpoint) -> None:
    try:
        check(checkpoint)
    except UniteError:
        raise
    # Code that comes with a model can raise anything.
    except Exception as error:
        raise InputError(
            f"its configuration cannot be read ({type(error).__name__}: {first_line(error)}); "
            "correct it, or remove the model",
            of=checkpoint.path_or_id,
        ) from error
    # Now, because an unreadable shard would end the run only when this model's turn comes.
    for path in files_of(checkpoint):
        if not os.access(path, os.R_OK):
            raise InputError(f"{path}: cannot be read; check that the download is complete, and the file permissions")


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
    """The device of a model of the pool, empty behind a server; `device`, perhaps ``auto``, if it names none."""
    if model.is_remote:
        return ""
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
    if not is_installed(ROUNDING):
        raise InputError(f"{said} needs {ROUNDING}; install it (pip install {ROUNDING}), or leave it out")
