"""``advisor run``: one text, from a run's chosen set or from any models."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from advisor.commands import options as opt
from advisor.commands.output import for_output
from ensemble.errors import InputError

if TYPE_CHECKING:
    from ensemble.models.spec import ChatTemplate


def run(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run folder or a saved one; or --models.")
    ] = None,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="A prompt; - reads standard input.")] = None,
    *,
    models: Annotated[list[str] | None, typer.Option("--models", help="A folder or hub id; the primary first.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="How the set decodes.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Candidates that each member brings to the union.")] = None,
    max_new_tokens: opt.Tokens = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Ends the text; can be given several times.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Draw from the likeliest that reach it together.")] = 1.0,
    seed: opt.Seed = 0,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, ...; the run's own.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32, ...; the run's own.")] = None,
    chat_template: Annotated[str | None, typer.Option("--chat-template", help="auto, ...; the run's own.")] = None,
    engine: Annotated[str, typer.Option("--engine", help="local, or ray: each model on its own node.")] = "local",
    ray_address: opt.Address = None,
    stream: Annotated[bool, typer.Option("--stream", help="Write the text as it comes.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show what each member wanted at every step.")] = False,
    trust_remote_code: opt.Trust = False,
    no_check_files: opt.NoCheck = False,
    debug: opt.Debug = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Generate with the chosen set of a run, or with any models."""
    if models:
        # With --models the one positional argument is the prompt.
        if prompt is not None:
            raise InputError("give a run folder or --models, not both")
        prompt, run = run, None
    if prompt is None:
        raise InputError("there is no prompt; give one, or - to read it from standard input")
    if run is None and not models:
        raise InputError("give a run folder, or --models for each model, the primary first")

    from advisor import checks

    checks.check_method(method or "unite", 1 if k is None else k)
    checks.check_tokens(max_new_tokens)
    checks.check_loading(dtype or "auto", chat_template or "auto")
    checks.check_sampling(temperature, top_p)
    checks.check_seed(seed)
    checks.check_stop(stop or ())
    checks.check_engine(engine, ray_address)

    from advisor.output import chosen_set
    from advisor.profile.loader import hush
    from ensemble.methods import check_distributed

    hush()
    if models:
        spec = chosen_set.chosen_by_hand(models)
    else:
        spec = chosen_set.chosen_by_folder(
            Path(str(run)), trust_remote_code=trust_remote_code, check_files=not no_check_files
        )
    spec = spec.with_decoding(method=method, k=k, max_new_tokens=max_new_tokens, stop=stop)
    spec = spec.with_loading(device=device, dtype=dtype, chat_template=cast("ChatTemplate | None", chat_template))
    if engine == "ray" and len(spec.members) > 1:
        check_distributed(spec.method)
    checks.check_models(spec.members)
    text = chosen_set.read_prompt(prompt)
    settings: dict[str, Any] = {
        "max_new_tokens": spec.max_new_tokens or 256,
        "stop": spec.stop,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    from ensemble.distributed.ray_cluster import cluster

    with cluster(ray_address) if engine == "ray" else nullcontext():
        ensemble = chosen_set.load_chosen(spec, engine)
        if stream and not trace:
            for piece in ensemble.stream(text, **settings):
                print(for_output(piece), end="", flush=True)
            print()
            return
        (generation,) = ensemble.generate([text], trace=trace, **settings)
        print(for_output(generation.text))
        if trace:
            names = [member.name for member in spec.members]
            print(*chosen_set.trace_lines(generation.trace, names), sep="\n", file=sys.stderr)
