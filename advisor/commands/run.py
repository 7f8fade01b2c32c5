"""``advisor run``: one text, by the recommended strategy of a run or from any models."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from advisor.commands.command_line import for_output
from advisor.options.run import RunOptions
from ensemble.errors import InputError

if TYPE_CHECKING:
    from advisor.progress import Progress
    from advisor.running.plan import StrategyPlan
    from ensemble.decode.settings import Settings


def run(options: RunOptions) -> None:
    """Answer a prompt by the recommended strategy of a run, or by any models that decode together."""
    from advisor.progress import Progress
    from advisor.running import models_to_run
    from advisor.running.plan import StrategyPlan
    from advisor.running.strategy_to_run import plan_by_options
    from advisor.terminal.tables import trace_lines
    from ensemble.distributed.ray_cluster import cluster
    from ensemble.methods import check_greedy

    progress = Progress()
    spec = plan_by_options(options, progress.say)
    text = _read_prompt(options.prompt or "")
    settings: dict[str, Any] = {
        "max_new_tokens": spec.max_new_tokens or 256,
        "stop": spec.stop,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
    }
    if isinstance(spec, StrategyPlan):
        from ensemble.decode.settings import Settings

        _answer(spec, text, Settings(**settings), options.group, progress, trace=options.trace)
        return
    if not (options.temperature or spec.options.get("temperature")):
        # Before the models are loaded, which takes long.
        check_greedy(spec.method, "give --temperature above 0; with 1 the members draw from their own probabilities")
    # Joined before loading: the members are placed on the nodes of this cluster.
    with cluster(options.ray_address) if options.engine == "ray" else nullcontext():
        ensemble = models_to_run.load_chosen(spec, options.engine)
        if options.stream and not options.trace:
            for piece in ensemble.stream(text, deterministic=options.deterministic, **settings):
                print(for_output(piece), end="", flush=True)
            print()
            return
        (generation,) = ensemble.generate([text], trace=options.trace, deterministic=options.deterministic, **settings)
        print(for_output(generation.text))
        if options.trace:
            names = [member.name for member in spec.members]
            print(*trace_lines(generation.trace, names), sep="\n", file=sys.stderr)


def _answer(
    plan: StrategyPlan, prompt: str, settings: Settings, group: str | None, progress: Progress, *, trace: bool
) -> None:
    """Print the response that a strategy takes, when it is known which one that is."""
    from advisor.running.asking import answer_prompt

    answered = answer_prompt(plan, prompt, settings, group)
    for name, reason in answered.failures:
        progress.say(f"{name} failed, and the others answered: {reason}")
    print(for_output(answered.response.text))
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
