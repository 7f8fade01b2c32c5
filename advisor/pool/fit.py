"""Does it fit: what models need, alone and together, and what their devices have free. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from advisor.pool.pool_file import PoolEntry
from advisor.pool.quantization import kind_of
from ensemble.errors import InputError, UniteError
from ensemble.models.hub import cached_folder, weights_on_hub
from ensemble.models.model_files import stored_weights
from ensemble.models.spec import Checkpoint, ModelSpec, resolve_device
from ensemble.servers.address import ServerAddress

if TYPE_CHECKING:
    from ensemble.models.memory import MemoryNeed

Placed = tuple[str, "MemoryNeed | None"]
"""A model's device, and what it needs there; None if that is not known."""


def need_of_entry(entry: PoolEntry, dtype: str) -> MemoryNeed | None:
    """What a candidate needs; None for a model behind a server, and for files that do not tell.

    Args:
        entry: The candidate.
        dtype: The numeric type of candidates that name none.
    """
    if isinstance(entry.checkpoint, ServerAddress):
        return None
    return _need(entry.name, entry.checkpoint, entry.dtype or dtype, entry.quantization)


def need_of_model(model: ModelSpec) -> MemoryNeed | None:
    """What a model of a set needs; see :func:`need_of_entry`."""
    if isinstance(model.checkpoint, ServerAddress):
        return None
    return _need(model.name, model.checkpoint, model.dtype, kind_of(model.quantization))


def _need(name: str, checkpoint: Checkpoint, dtype: str, quantization: str | None) -> MemoryNeed | None:
    from ensemble.models.check import check
    from ensemble.models.memory import need_of

    try:
        found = weights_of(name, checkpoint)
        if found is None:
            return None
        config = check(checkpoint)
        count, stored = found
        # Where the hub counts no weights, their type tells how many are in the bytes.
        half = "16" in str(getattr(config, "dtype", ""))
        # The weights of a GGUF file are loaded unquantised.
        loaded = "float32" if dtype == "auto" and checkpoint.gguf is not None else dtype
        return need_of(count or stored // (2 if half else 4), stored, config, loaded, quantization)
    except UniteError:
        return None  # the check of the model, or the library that loads it, reports the problem


def weights_of(name: str, checkpoint: Checkpoint) -> tuple[int | None, int] | None:
    """The number of weights of a model and the bytes of their files, without a download; None if they are not known.

    Raises:
        UniteError: A file of the model is damaged.
    """
    if checkpoint.is_local:
        return stored_weights(name, checkpoint)
    folder = cached_folder(checkpoint) if checkpoint.gguf is None else None
    # A download that was stopped has its small files only.
    return (stored_weights(name, Checkpoint(str(folder))) if folder else None) or weights_on_hub(checkpoint)


def free_on(device: str) -> int | None:
    """Bytes that are free on a device; None if that is not known."""
    import torch

    from ensemble.models.memory import free_memory

    return free_memory(torch.device(resolve_device(device)))


def check_together(models: Mapping[str, Placed]) -> None:
    """Check that models which are loaded at the same time fit on their devices.

    Args:
        models: Each model's device and need, by name.

    Raises:
        InputError: Their weights alone need more than a device has free.
    """
    by_device: dict[str, dict[str, MemoryNeed]] = {}
    for name, (device, need) in models.items():
        if need is not None:
            by_device.setdefault(resolve_device(device), {})[name] = need
    for device, needs in by_device.items():
        free = free_on(device)
        # The weights alone: with a small batch the rest is small, and a run that would work must not be refused.
        if free is not None and sum(need.weights for need in needs.values()) > free:
            raise InputError(too_large(needs, device, free))


def check_candidates(entries: Sequence[PoolEntry], device: str, dtype: str, *, decode_together: bool) -> list[str]:
    """Check that candidates fit, each alone as they are profiled, and two of them together.

    Args:
        entries: The pool.
        device: The device of candidates that name none.
        dtype: The numeric type of candidates that name none.
        decode_together: Whether a set will be loaded at the same time.

    Returns:
        Notes about candidates and sets that do not fit.

    Raises:
        InputError: No candidate fits, so that the run cannot do anything.
    """
    from ensemble.models.memory import gigabytes, in_words

    fitting: dict[str, list[tuple[int, str, MemoryNeed]]] = {}
    refusals, unknown = [], False
    for entry in entries:
        place = entry.placed(device, "local") if isinstance(entry.checkpoint, Checkpoint) else ""
        need = need_of_entry(entry, dtype)
        free = free_on(place) if need is not None else None
        if need is None or free is None:
            unknown = True
        elif need.weights > free:
            refusals.append(f"{entry.place}: {too_large({entry.name: need}, place, free)}")
        else:
            fitting.setdefault(place, []).append((need.weights, entry.name, need))
    # A model whose need is not known may fit, so the run goes on.
    if refusals and not fitting and not unknown:
        raise InputError(refusals[0])
    notes = list(refusals)
    for place, each in fitting.items():
        free = free_on(place)
        pair = sorted(each)[:2]
        # Candidates on other devices, and servers, can still be members together with one of these.
        if decode_together and len(pair) == 2 and free is not None and sum(need for need, _, _ in pair) > free:
            needs = {name: need for _, name, need in pair}
            notes.append(
                f"no two models fit on {place} together: the smallest, {in_words(needs)}; {gigabytes(free)} are free. "
                "Each is profiled alone, and votes work, but no set decodes there"
            )
    return notes


def too_large(needs: Mapping[str, MemoryNeed], device: str, free: int) -> str:
    """Models that do not fit, the memory, and the way out, in one line."""
    from ensemble.models.memory import gigabytes, in_words

    them = "it" if len(needs) == 1 else "them"
    if device.startswith("cuda"):
        way_out = f"load {them} in 4 bits with quantization=4bit, or serve {them}"
    else:
        halved = any(need.dtype in ("float32", "float64") for need in needs.values())
        way_out = f"{f'load {them} with dtype=bfloat16' if halved else 'take fewer or smaller models'}, or serve {them}"
    return f"{in_words(needs)}; {device} has {gigabytes(free)} free: {way_out} (openai:http://HOST:PORT/v1#MODEL)"
