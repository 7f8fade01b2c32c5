"""``advisor run``: one text, by the recommended strategy of a run or from any models."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.commands import options as opt
from ensemble.errors import InputError

if TYPE_CHECKING:
    from advisor.progress import Progress
    from advisor.strategies.running.plan import StrategyPlan
    from ensemble.decode.settings import Settings


def run(
    context: typer.Context,
    run: opt.RunOrModels = None,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="A prompt, or - to read it from standard input.")
    ] = None,
    *,
    models: opt.Members = None,
    strategy: opt.StrategyName = None,
    group: opt.Group = None,
    pool: opt.Places = None,
    allow_server: opt.Servers = None,
    allow_key_env: opt.KeyNames = None,
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
    quantization: opt.Quantization = None,
    chat_template: opt.SetTemplate = None,
    deterministic: opt.Deterministic = False,
    engine: Annotated[str, typer.Option("--engine", help="local, or ray to run each model on its own node.")] = "local",
    ray_address: opt.Address = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text while it is written.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show the candidates of every member at every step.")] = False,
    trust_remote_code: opt.Trust = False,
    no_check_files: opt.NoCheck = False,
    debug: opt.Debug = False,
) -> None:
    """Answer a prompt by the recommended strategy of a run, or by any models that decode together."""
    if models and prompt is None:
        # With --models, the only positional argument is the prompt.
        prompt, run = run, None
    elif models:
        raise InputError("give a run folder or --models, not both")
    if prompt is None:
        raise InputError("the prompt is missing; give one, or - to read it from standard input")

    from advisor.progress import Progress
    from advisor.runs import chosen_set
    from advisor.runs.strategy_to_run import plan_by_options
    from advisor.strategies.running.plan import StrategyPlan
    from advisor.terminal.tables import trace_lines
    from ensemble.distributed.ray_cluster import cluster
    from ensemble.methods import check_greedy

    progress = Progress()
    spec = plan_by_options({**context.params, "run": run}, progress.say)
    text = _read_prompt(prompt)
    settings: dict[str, Any] = {
        "max_new_tokens": spec.max_new_tokens or 256,
        "stop": spec.stop,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    if isinstance(spec, StrategyPlan):
        from ensemble.decode.settings import Settings

        _answer(spec, text, Settings(**settings), group, progress, trace=trace)
        return
    if not (temperature or spec.options.get("temperature")):
        # Before the models are loaded, which takes long.
        check_greedy(spec.method, "give --temperature above 0; with 1 the members draw from their own probabilities")
    # Joined before loading: the members are placed on the nodes of this cluster.
    with cluster(ray_address) if engine == "ray" else nullcontext():
        ensemble = chosen_set.load_chosen(spec, engine)
        if stream and not trace:
            for piece in ensemble.stream(text, deterministic=deterministic, **settings):
                print(opt.for_output(piece), end="", flush=True)
            print()
            return
        (generation,) = ensemble.generate([text], trace=trace, deterministic=deterministic, **settings)
        print(opt.for_output(generation.text))
        if trace:
            names = [member.name for member in spec.members]
            print(*trace_lines(generation.trace, names), sep="\n", file=sys.stderr)


def _answer(
    plan: StrategyPlan, prompt: str, settings: Settings, group: str | None, progress: Progress, *, trace: bool
) -> None:
    """Print the response that a strategy takes, when it is known which one that is."""
    from advisor.strategies.running.asking import answer_prompt

    answered = answer_prompt(plan, prompt, settings, group)
    for name, reason in answered.failures:
        progress.say(f"{name} failed, and the others answered: {reason}")
    print(opt.for_output(answered.response.text))
    if trace:
        for name, answer in answered.answers:
            what = "answered" if plan.reader is None else "gave no answer" if answer is None else f"answered {answer!r}"
            progress.say(f"{name} {what}")
        progress.say(f"the response is that of {answered.model}, after {answered.calls} calls")


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
