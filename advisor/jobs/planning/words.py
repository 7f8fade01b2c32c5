"""Plans as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from advisor.records import join
from ensemble.common.text import counted, price, visible


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


def together_line(together: Mapping[str, Any] | None) -> Iterator[str]:
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
    here, hub, cache = found["machine"], found["hub"], found["cache"]
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
    token = "token set" if hub["token"] else "no token (hf auth login, for gated models)"
    if hub["offline"] is not None:
        state = f"switched off by {hub['offline']}; only downloaded models"
    else:
        state = "answers" if hub["answers"] else "does not answer; only downloaded models"
    yield f"hub          {hub['endpoint']}: {state}; {token}"
    writable = "writable" if cache["writable"] else "cannot be written"
    yield f"cache        {cache['folder']}: {memory(cache['size'])}, {memory(cache['free'])} of disk free, {writable}"


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
    yield from together_line(plan["together"])
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
    """The prompts of a dry run for a model."""
    for n, prompt in enumerate(shown, start=1):
        tokens = "unknown number of" if prompt["tokens"] is None else f"{prompt['tokens']:,}"
        yield f"--- {name}, prompt {n} of {len(shown)} ({prompt['id']}, {tokens} tokens)"
        yield prompt["text"]
