"""The plan of each model: whether it is found, what it needs, whether that fits, and how long it may take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from advisor.planning.speed import Speed, measure_speed
from advisor.pool.checks import check_pool
from advisor.pool.fit import free_on, need_of_entry, too_large
from advisor.pool.pool_file import PoolEntry
from ensemble.errors import InputError, UniteError
from ensemble.models.hub import cached_folder, weights_on_hub
from ensemble.models.spec import Checkpoint
from ensemble.servers.address import ServerAddress

if TYPE_CHECKING:
    from ensemble.models.memory import MemoryNeed

ROWS = 64
"""Questions of a batch, if the memory holds so many."""


def plan_model(entry: PoolEntry, device: str, dtype: str, *, prompt: int = 512, new: int = 256) -> dict[str, Any]:
    """The plan of one model. It is not loaded, nothing but its small files is downloaded, and no server is asked.

    Args:
        entry: The model.
        device: The device of candidates that name none.
        dtype: The numeric type of candidates that name none.
        prompt: Tokens of a prompt.
        new: Tokens of a response at most.

    Returns:
        ``model``, ``device``, ``parameters``, ``dtype``, ``weights`` and ``memory`` (with a batch) in bytes, ``rows``
        of a batch, ``free`` bytes of the device, ``fits``, ``download`` in bytes, and ``problem``: why it cannot run.
        A value that is not known is None.
    """
    plan: dict[str, Any] = {
        "model": entry.name,
        **dict.fromkeys(("device", "parameters", "dtype", "weights", "memory", "rows", "free", "fits", "download")),
        "quantization": entry.quantization,
        "problem": None,
        "need": None,
    }
    # A server's memory is not ours to count.
    if isinstance(entry.checkpoint, ServerAddress):
        return {**plan, "device": entry.checkpoint.url}
    # One by one: a model that cannot be used must not hide what the others need.
    try:
        check_pool([entry], device, "auto", on_this_machine=True)
    except UniteError as error:
        return {**plan, "problem": str(error)}
    place = entry.placed(device, "local")
    plan |= {"device": place, "free": free_on(place), "download": download_size(entry.checkpoint)}
    need = need_of_entry(entry, dtype)
    if need is None:
        return plan
    # The weights decide whether it fits, because a batch becomes smaller where memory is short.
    rows = rows_of(need, plan["free"], prompt + new)
    fits = None if plan["free"] is None else need.weights <= plan["free"]
    return {
        **plan,
        "parameters": need.parameters,
        "dtype": need.dtype,
        "weights": need.weights,
        "memory": need.total(rows, prompt + new),
        "rows": rows,
        "fits": fits,
        "problem": too_large({entry.name: need}, place, plan["free"]) if fits is False else None,
        "need": need,
    }


def rows_of(need: MemoryNeed, free: int | None, tokens: int) -> int:
    """Questions of a batch, as :mod:`advisor.profile.generate` chooses them."""
    from ensemble.models.memory import rows_that_fit

    left = None if free is None else free - need.weights
    return min(ROWS, rows_that_fit(need.per_token, tokens, left) or ROWS)


def download_size(checkpoint: Checkpoint) -> int | None:
    """Bytes that the first run downloads; 0 for local and downloaded models, None if the hub does not tell."""
    from ensemble.models.model_files import stored_weights

    if checkpoint.is_local:
        return 0
    folder = cached_folder(checkpoint)
    try:
        # A download that was stopped has its small files, and no weights.
        if folder is not None and stored_weights(checkpoint.name, Checkpoint(str(folder))) is not None:
            return 0
    except InputError:
        return None
    found = weights_on_hub(checkpoint)
    return None if found is None else found[1]


def expected_seconds(plan: dict[str, Any], questions: int, prompt: float, new: float) -> float | None:
    """The expected time of a model; None where its size is not known, or a server computes.

    Args:
        plan: See :func:`plan_model`.
        questions: Questions that it answers.
        prompt: Tokens of a prompt, on average.
        new: Tokens of a response, on average.
    """
    if (need := plan["need"]) is None or plan["problem"] is not None:
        return None
    # Models in other types (float8, int8) are computed in one of these.
    dtype = need.dtype if need.dtype in ("float32", "float16") else "bfloat16"
    return speed_of(plan["device"], dtype).seconds(need, questions, prompt, new, plan["rows"])


@cache
def speed_of(device: str, dtype: str) -> Speed:
    """The speed of a device, measured once."""
    return measure_speed(device, dtype)


def plan_together(plans: Sequence[dict[str, Any]], most: int) -> dict[str, Any] | None:
    """The memory of the largest set that a run may load at the same time, on the device where it needs most.

    Args:
        plans: The plans of the candidates.
        most: Members of a set at most.

    Returns:
        ``device``, ``models``, ``memory`` in bytes of the weights, ``free`` and ``fits``; None without two models.
    """
    by_device: dict[str, list[dict[str, Any]]] = {}
    for plan in plans:
        if plan["need"] is not None:
            by_device.setdefault(plan["device"], []).append(plan)
    found = []
    for device, each in by_device.items():
        # Which models will be chosen is not known yet, so the largest ones count.
        largest = sorted(each, key=lambda plan: -plan["weights"])[:most]
        memory, free = sum(plan["weights"] for plan in largest), largest[0]["free"]
        names = [plan["model"] for plan in largest]
        fits = None if free is None else memory <= free
        found.append({"device": device, "models": names, "memory": memory, "free": free, "fits": fits})
    return max(found, key=lambda each: each["memory"]) if len(plans) > 1 and found else None
