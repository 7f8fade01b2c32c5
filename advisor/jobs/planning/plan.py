"""The plan of each model: whether it is found, what it needs, and whether that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from advisor.config import InferenceConfig
from advisor.pool.fit import check_pool, free_on, need_of_model, too_large, weights_here
from advisor.pool.resources import device_of, kind_of, resources_of
from advisor.profile.loaded_models import WHILE_LOADING
from advisor.tasks.task import Task
from ensemble.errors import UniteError
from ensemble.models.gguf import check_name
from ensemble.models.hub import check_on_hub, weights_on_hub
from ensemble.models.spec import Checkpoint, ModelSpec

if TYPE_CHECKING:
    from ensemble.models.memory import MemoryNeed

ROWS = 64
"""Questions of a batch, if the memory holds so many."""


def tokens_written(task: Task, inference: InferenceConfig) -> int:
    """Tokens of a response at most; 0 for choice tasks, whose options are read and scored."""
    return 0 if task.metric == "choice" else inference.limit(task)


def problem_of(entry: ModelSpec, inference: InferenceConfig) -> str | None:
    """Why a model cannot run, by its files and its place; None if nothing speaks against it, and for a server.

    Nothing but small files is downloaded. If the hub does not answer, one request finds that out.
    """
    if entry.checkpoint.is_remote:
        return None
    try:
        if inference.engine == "ray":
            resources_of(entry.resources, entry.device or inference.device, entry.place)
        checkpoint = entry.checkpoint
        if checkpoint.gguf is not None and weights_here(entry.name, checkpoint) is None and not checkpoint.is_local:
            # The configuration of a GGUF file is in the file, and that is the whole download.
            check_name(checkpoint.gguf)
            check_on_hub(checkpoint)
        else:
            on_this_machine = inference.engine == "local"
            check_pool([entry], inference.device, inference.chat_template, on_this_machine=on_this_machine)
    except UniteError as error:
        return str(error)
    return None


def plan_model(
    entry: ModelSpec, inference: InferenceConfig, *, prompt: int = 512, new: int = 256, problem: str | None = None
) -> dict[str, Any]:
    """The plan of one model. It is not loaded, and no server gets a request.

    Args:
        entry: The model.
        inference: How the run loads its models.
        prompt: Tokens of a prompt.
        new: Tokens of a response at most.
        problem: Why it cannot run; see :func:`problem_of`.

    Returns:
        ``model``, ``device``, ``parameters``, ``dtype``, ``weights`` and ``memory`` (with a batch) in bytes, ``rows``
        of a batch, ``free`` bytes of the device, ``fits``, ``download`` in bytes, ``resources`` on a node of a
        cluster, and ``problem``. A value that is not known is None.
    """
    names = ("device", "parameters", "dtype", "weights", "memory", "rows", "free", "fits", "download", "resources")
    plan: dict[str, Any] = {
        "model": entry.name,
        **dict.fromkeys(names),
        "quantization": kind_of(entry.quantization),
        "problem": problem,
        "need": None,
    }
    # A server's memory is not ours to count.
    if entry.checkpoint.is_remote:
        return {**plan, "device": entry.checkpoint.url}
    if problem is not None:
        return plan
    place = device_of(entry, inference.device, inference.engine)
    plan |= {"device": place, "download": download_size(entry.checkpoint)}
    if inference.engine == "ray":
        # The memory and the files of the cluster's nodes are known there only.
        wanted = resources_of(entry.resources, place, entry.place)
        plan |= {"resources": {"num_cpus": wanted.num_cpus, "num_gpus": wanted.num_gpus}, "download": None}
    else:
        plan["free"] = free_on(place)
    need = need_of_model(entry, inference.dtype, place)
    if need is None:
        return plan
    # The weights decide whether it fits, because a batch becomes smaller where memory is short.
    rows = inference.batch_size or rows_of(need, plan["free"], prompt + new)
    fits = None if plan["free"] is None else need.weights <= plan["free"]
    return {
        **plan,
        "parameters": need.parameters,
        "dtype": need.dtype,
        "quantization": need.quantization,
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
    if checkpoint.is_local:
        return 0
    try:
        if weights_here(checkpoint.name, checkpoint) is not None:
            return 0
        found = weights_on_hub(checkpoint)
    except UniteError:
        return None
    return None if found is None else found[1]


def plan_loads(plans: Sequence[dict[str, Any]], phases: int) -> dict[str, Any] | None:
    """Which models of this process stay loaded from the first to the last phase of a run.

    Args:
        plans: The plans of the models that are loaded.
        phases: How often a model is needed in turn with the others.

    Returns:
        ``stay`` and ``leave``, names; ``loads``, how many all of them take, without those of the turns of
        conversations; None if none is loaded here.
    """
    by_device: dict[str, list[dict[str, Any]]] = {}
    for plan in plans:
        if plan["need"] is not None and plan["resources"] is None and plan["problem"] is None:
            by_device.setdefault(plan["device"], []).append(plan)
    staying, leaving = list[str](), list[str]()
    for each in by_device.values():
        # The largest stay, because they take longest to load again.
        stay, leave = sorted(each, key=lambda plan: -plan["weights"]), list[dict[str, Any]]()
        while stay and not _stay_loaded(stay, leave):
            leave.append(stay.pop())
        staying += [plan["model"] for plan in stay]
        leaving += [plan["model"] for plan in leave]
    if not by_device:
        return None
    return {"stay": staying, "leave": leaving, "loads": len(staying) + phases * len(leaving)}


def _stay_loaded(stay: Sequence[dict[str, Any]], leave: Sequence[dict[str, Any]]) -> bool:
    """Whether there is room beside the models that stay, for each of the others in turn, and for a batch of each."""
    free, weights = stay[0]["free"], sum(plan["weights"] for plan in stay)
    own = [max((WHILE_LOADING - 1) * plan["weights"], plan["memory"] - plan["weights"]) for plan in stay]
    others = [max(WHILE_LOADING * plan["weights"], plan["memory"]) for plan in leave]
    return free is not None and weights + max(own + others) <= free


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
        # On a cluster each set has a node of its choice.
        if plan["need"] is not None and plan["resources"] is None:
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
