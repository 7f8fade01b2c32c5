"""The plan of each model: whether it is found, what it needs, whether that fits; and plans as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advisor.models.fit import check_pool, free_on, need_of_model, too_large, weights_here
from advisor.models.loaded_models import WHILE_LOADING
from advisor.models.resources import device_of, resources_of
from advisor.models.run_config import InferenceConfig
from advisor.records import join
from advisor.tasks.task import Task
from ensemble.common.text import counted, price, visible
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
    """Why a model cannot run, by its files and its place; None if nothing speaks against it, and for a server."""
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
    """The plan of one model, which is not loaded, for prompts and responses of so many tokens; sizes are in bytes."""
    names = ("device", "parameters", "dtype", "weights", "memory", "rows", "free", "fits", "download", "resources")
    plan: dict[str, Any] = {
        "model": entry.name,
        **dict.fromkeys(names),
        "quantization": entry.rounding,
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
    """Questions of a batch, as :mod:`advisor.models.local_model` chooses them."""
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
    """Which models of this process stay loaded through all phases of a run, and which leave; None if it loads none."""
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
    """The bytes of the largest set of at most `most` members, on the device where it needs most; None for one model."""
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


def memory(count: int | None) -> str:
    """Bytes, or "unknown"."""
    from ensemble.models.memory import gigabytes

    return "unknown" if count is None else gigabytes(count)


def model_line(plan: Mapping[str, Any]) -> str:
    """A model of a plan, in one line."""
    if plan["problem"] is not None:
        return f"{plan['model']}: cannot run: {plan['problem']}"
    where = plan["device"]
    if (wanted := plan["resources"]) is not None:
        where = f"on a node of the cluster ({', '.join(f'{name}={value:g}' for name, value in wanted.items())})"
    # A model behind a server, or one whose files do not tell.
    if plan["need"] is None:
        return f"{plan['model']}: {where}; its size is not known here"
    fits = {True: "fits", False: "does not fit", None: "free memory unknown"}[plan["fits"]]
    parts = [
        f"{plan['parameters']:,} parameters",
        plan["need"].kind,
        f"weights {memory(plan['weights'])}, {memory(plan['memory'])} with {counted(plan['rows'], 'text')} at a time",
        where if wanted is not None else f"{fits} on {where} ({memory(plan['free'])} free)",
    ]
    # 0 if the files are here already.
    if plan["download"]:
        parts.append(f"download {memory(plan['download'])}")
    return f"{plan['model']}: {', '.join(parts)}"


def set_summary(together: Mapping[str, Any] | None) -> Iterator[str]:
    """The set of a plan, in one line; none without two models."""
    if together is not None:
        fits = {True: "fit", False: "do not fit", None: "free memory unknown"}[together["fits"]]
        yield (
            f"together, at most {len(together['models'])} models on {together['device']}: weights "
            f"{memory(together['memory'])}, {fits} ({memory(together['free'])} free)"
        )


def loading_line(loading: Mapping[str, Any] | None) -> Iterator[str]:
    """Which models of a plan stay loaded, in one line; none if this process loads none."""
    if loading is not None:
        stay, leave = (", ".join(loading[key]) for key in ("stay", "leave"))
        loads = f"at most {counted(loading['loads'], 'load')}"
        if not leave:
            yield f"loading      all models stay loaded from the first to the last phase, {loads}"
        else:
            yield f"loading      stays loaded: {stay or 'no model'}; leaves for others: {leave}; {loads}"


def machine_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What ``advisor doctor`` says of the machine and the installation."""
    here, hub = found["machine"], found["hub"]
    slow = f", slow in {' and '.join(here['slow_in'])}" if here["slow_in"] else ""
    yield f"processor    {here['processor']}, {here['cores']} cores{slow}, {memory(here['free'])} of memory free"
    for gpu in here["gpus"]:
        yield f"GPU          {gpu['device']} {gpu['name']}, {memory(gpu['memory'])}, {memory(gpu['free'])} free"
    if not here["gpus"]:
        build = "torch is built without CUDA" if here["cuda"] is None else f"torch is built for CUDA {here['cuda']}"
        yield f"GPU          torch sees none ({build})"
    if not here["compiled_step"]:
        yield "step         not compiled, so it takes longer; install a C compiler, and then unite-advisor again"
    yield f"versions     {', '.join(f'{name} {number}' for name, number in found['versions'].items())}"
    for name, is_there in found["extras"].items():
        way_out = "installed" if is_there else f"missing; pip install 'unite-advisor[{name}]'"
        yield f"extra        {name}: {way_out}"
    for name, number in found["quantization"].items():
        yield f"quantization {name}: {number or f'missing; pip install {name}'}"
    states = {True: "token accepted", False: "token refused", None: "token set"}
    token = states[hub["accepted"]] if hub["token"] else "no token (hf auth login, for gated models)"
    if hub["offline"] is not None:
        state = f"switched off by {hub['offline']}; only downloaded models"
    else:
        state = "answers" if hub["answers"] else "does not answer; only downloaded models"
    yield f"hub          {hub['endpoint']}: {state}; {token}"
    for name in ("cache", "downloads"):
        folder = found[name]
        state = f"{memory(folder['free'])} of disk free, {'writable' if folder['writable'] else 'cannot be written'}"
        yield f"{name:<12} {folder['folder']}: {memory(folder['size'])}, {state}"


def dry_run_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """A dry run for a terminal. Prompts come from files, so control characters are shown as their numbers."""
    asked = [("", model) for model in plan["models"]]
    asked += [(f"{reader['role']} ", reader) for reader in plan["readers"]]
    asked += [("judge ", judge) for judge in plan["judges"]]
    for role, model in asked:
        for line in _prompt_lines(f"{role}{model['model']}", model["prompts"]):
            yield visible(line, keep_lines=True)
    yield ""
    for role, model in asked:
        yield visible(f"{role}{model_line(model)}")
        tokens = model["prompt_tokens"]
        if tokens is not None:
            new = model["new_tokens"]
            written = f"responses of at most {new:,}" if new else "options are scored, so nothing is written"
            yield (
                f"  prompts of {tokens['min']:,} to {tokens['max']:,} tokens, median {tokens['median']:,}; {written}"
            )
    yield from set_summary(plan["together"])
    yield from map(visible, loading_line(plan["loading"]))
    total = plan["total"]
    yield f"profiling    {counted(total['profiling'], 'generation')}; what the cache has is subtracted"
    if plan["held_out"] is not None:
        yield f"verifying    at most {total['alone']:,} of single models, and {total['together']:,} of sets"
    if plan["readers"]:
        yield f"fusing       at most {counted(total['reading'], 'call')}; those that are stored are not asked again"
    if plan["judges"]:
        yield f"judging      at most {counted(total['judging'], 'verdict')}; those that are stored are not asked again"
    if total["price"] is None:
        yield "price        no prices in the pool file"
    else:
        yield f"price        at most {price(total['price'])} for {_whose(total)}"
    said = {model["problem"] for _, model in asked}
    yield from problem_lines([problem for problem in plan["problems"] if problem not in said])
    yield "Nothing was run or written."


def problem_lines(problems: Sequence[str]) -> Iterator[str]:
    """What keeps a run from working, one line each, besides what the models' own lines say."""
    for problem in problems:
        yield visible(f"problem      {problem}")


def _whose(total: Mapping[str, Any]) -> str:
    parts = ["single models", *(["the fusion"] if total["reading"] else []), *(["judges"] if total["judging"] else [])]
    return join(parts)


def _prompt_lines(name: str, shown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for n, prompt in enumerate(shown, start=1):
        tokens = "unknown number of" if prompt["tokens"] is None else f"{prompt['tokens']:,}"
        yield f"--- {name}, prompt {n} of {len(shown)} ({prompt['id']}, {tokens} tokens)"
        yield prompt["text"]
