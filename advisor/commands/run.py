"""``advisor run``: one text, from the chosen set of a run or from any models."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from advisor.commands import options as opt
from ensemble.errors import InputError


def run(
    context: typer.Context,
    run: opt.RunOrModels = None,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="A prompt, or - to read it from standard input.")
    ] = None,
    *,
    models: opt.Members = None,
    method: opt.SetMethod = None,
    k: opt.SetK = None,
    max_new_tokens: opt.Tokens = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="A string that ends the text; can be given several times.")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the most likely token.")] = 0.0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Draw from the most likely tokens that have this probability together.")
    ] = 1.0,
    seed: opt.Seed = 0,
    device: opt.SetDevice = None,
    dtype: opt.SetDtype = None,
    chat_template: opt.SetTemplate = None,
    engine: Annotated[str, typer.Option("--engine", help="local, or ray to run each model on its own node.")] = "local",
    ray_address: opt.Address = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text while it is written.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show the candidates of every member at every step.")] = False,
    trust_remote_code: opt.Trust = False,
    no_check_files: opt.NoCheck = False,
    debug: opt.Debug = False,
) -> None:
    """Generate with the chosen set of a run, or with any models."""
    if models and prompt is None:
        # With --models, the only positional argument is the prompt.
        prompt, run = run, None
    elif models:
        raise InputError("give a run folder or --models, not both")
    if prompt is None:
        raise InputError("the prompt is missing; give one, or - to read it from standard input")

    from advisor.output import chosen_set
    from advisor.output.terminal import trace_lines
    from ensemble.distributed.ray_cluster import cluster

    spec = chosen_set.chosen_by_options({**context.params, "run": run})
    text = _read_prompt(prompt)
    settings: dict[str, Any] = {
        "max_new_tokens": spec.max_new_tokens or 256,
        "stop": spec.stop,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    # Joined before loading: the members are placed on the nodes of this cluster.
    with cluster(ray_address) if engine == "ray" else nullcontext():
        ensemble = chosen_set.load_chosen(spec, engine)
        if stream and not trace:
            for piece in ensemble.stream(text, **settings):
                print(opt.for_output(piece), end="", flush=True)
            print()
            return
        (generation,) = ensemble.generate([text], trace=trace, **settings)
        print(opt.for_output(generation.text))
        if trace:
            names = [member.name for member in spec.members]
            print(*trace_lines(generation.trace, names), sep="\n", file=sys.stderr)


def _read_prompt(prompt: str) -> str:
    try:
        text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
        # An argument that is not valid UTF-8 has surrogates, which only fail when they are encoded.
        text.encode()
    except UnicodeError as error:
        raise InputError(f"the prompt is not UTF-8 text ({error}); convert it") from None
    if not text:
        raise InputError("the prompt is empty; give a text to continue")
    return text
