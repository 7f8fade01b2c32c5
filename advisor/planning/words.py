"""Plans as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def duration(seconds: float | None) -> str:
    """Seconds as people read them: "20 s", "12 min", "3.5 h"."""
    if seconds is None:
        return "unknown"
    # Fewer digits than are known: the estimate is good to a factor of about two.
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def memory(count: int | None) -> str:
    """Bytes, or "unknown"."""
    from ensemble.models.memory import gigabytes

    return "unknown" if count is None else gigabytes(count)


def model_line(plan: Mapping[str, Any]) -> str:
    """A model of a plan, in one line."""
    if plan["problem"] is not None:
        return f"{plan['model']}: cannot run: {plan['problem']}"
    # A model behind a server, or one whose files do not tell.
    if plan["need"] is None:
        where = plan["device"]
        return f"{plan['model']}: {where}; its size is not known here"
    fits = {True: "fits", False: "does not fit", None: "free memory unknown"}[plan["fits"]]
    parts = [
        f"{plan['parameters']:,} parameters",
        plan["quantization"] or plan["dtype"],
        f"weights {memory(plan['weights'])}, {memory(plan['memory'])} with {plan['rows']} texts at a time",
        f"{fits} on {plan['device']} ({memory(plan['free'])} free)",
    ]
    # 0 where the files are here already.
    if plan["download"]:
        parts.append(f"download {memory(plan['download'])}")
    if plan.get("seconds") is not None:
        parts.append(f"at most about {duration(plan['seconds'])} for {plan['questions']:,} questions")
    return f"{plan['model']}: {', '.join(parts)}"


def together_line(together: Mapping[str, Any] | None) -> Iterator[str]:
    """The set of a plan, in one line; none without two models."""
    if together is not None:
        fits = {True: "fit", False: "do not fit", None: "free memory unknown"}[together["fits"]]
        yield (
            f"together, at most {len(together['models'])} models on {together['device']}: weights "
            f"{memory(together['memory'])}, {fits} ({memory(together['free'])} free)"
        )


def machine_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What ``advisor doctor`` says of the machine and the installation."""
    here, hub, cache = found["machine"], found["hub"], found["cache"]
    yield f"processor    {here['processor']}, {here['cores']} cores, {memory(here['free'])} of memory free"
    for gpu in here["gpus"]:
        yield f"GPU          {gpu['device']} {gpu['name']}, {memory(gpu['memory'])}, {memory(gpu['free'])} free"
    if not here["gpus"]:
        build = "torch is built without CUDA" if here["cuda"] is None else f"torch is built for CUDA {here['cuda']}"
        yield f"GPU          torch sees none ({build})"
    yield f"versions     {', '.join(f'{name} {number}' for name, number in found['versions'].items())}"
    for name, is_there in found["extras"].items():
        way_out = "installed" if is_there else f"missing; pip install 'unite-advisor[{name}]'"
        yield f"extra        {name}: {way_out}"
    token = "token set" if hub["token"] else "no token (hf auth login, for gated models)"
    if hub["offline"]:
        state = "switched off by HF_HUB_OFFLINE; only downloaded models"
    else:
        state = "answers" if hub["answers"] else "does not answer; only downloaded models"
    yield f"hub          {hub['endpoint']}: {state}; {token}"
    writable = "writable" if cache["writable"] else "cannot be written; give --cache-dir"
    yield f"cache        {cache['folder']}: {memory(cache['size'])}, {memory(cache['free'])} of disk free, {writable}"


def prompt_lines(name: str, shown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The prompts of a dry run for a model."""
    for n, prompt in enumerate(shown, start=1):
        tokens = "unknown number of" if prompt["tokens"] is None else f"{prompt['tokens']:,}"
        yield f"--- {name}, prompt {n} of {len(shown)} ({prompt['id']}, {tokens} tokens)"
        yield prompt["text"]
