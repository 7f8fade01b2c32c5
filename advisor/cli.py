"""The ``advisor`` command: arguments in, text out. Results go to standard output, all else to standard error."""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from ensemble.errors import InputError, UniteError

app = typer.Typer(
    help="Which of your language models can be ensembled, in which order, and whether it pays.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

PoolOption = Annotated[str | None, typer.Option("--pool", metavar="FILE", help="The candidates, one a line; or: demo.")]
TaskOption = Annotated[str | None, typer.Option("--task", metavar="TASK", help="A task's name, or a task file.")]
DataOption = Annotated[Path | None, typer.Option("--data", help="Folder with the task's data, instead of the hub.")]
SplitOption = Annotated[str, typer.Option("--split", help="The split to profile on.")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Questions of each split.")]
ShotsOption = Annotated[int | None, typer.Option("--shots", help="Demonstrations before each question.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Of every draw.")]
GapOption = Annotated[float, typer.Option("--max-gap", help="Points that a member may be behind the best.")]
RatioOption = Annotated[float, typer.Option("--max-length-ratio", help="How many times as long, or as short.")]
ModelsOption = Annotated[int, typer.Option("--max-models", help="Members at the most.")]
MethodOption = Annotated[str, typer.Option("--method", help="How the set decodes; see: advisor methods.")]
KOption = Annotated[int, typer.Option("--k", help="Candidates that each member brings to the union.")]
TokensOption = Annotated[int | None, typer.Option("--max-new-tokens", help="Where a response is cut off.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16, ...")]
BatchOption = Annotated[str, typer.Option("--batch-size", help="Prompts at a time, or auto.")]
TemplateOption = Annotated[str, typer.Option("--chat-template", help="auto, always or never.")]
CacheOption = Annotated[Path | None, typer.Option("--cache-dir", help="Where responses are kept for the next run.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Write the result to standard output, and nothing else there.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress, no tables.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@app.command()
def select(
    *,
    pool: PoolOption = None,
    task: TaskOption = None,
    data: DataOption = None,
    split: SplitOption = "dev",
    limit: LimitOption = None,
    shots: ShotsOption = None,
    seed: SeedOption = 0,
    max_gap: GapOption = 10.0,
    max_length_ratio: RatioOption = 2.0,
    max_models: ModelsOption = 3,
    method: MethodOption = "unite",
    k: KOption = 10,
    max_new_tokens: TokensOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "auto",
    batch_size: BatchOption = "auto",
    chat_template: TemplateOption = "auto",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not run the set on held-out questions.")] = False,
    profiles: Annotated[Path | None, typer.Option("--profiles", help="Numbers instead of models.")] = None,
    cache_dir: CacheOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder; runs/TASK where left out.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Profile every candidate, choose a set by the rules, run it on held-out questions, write a report."""
    from advisor.checks import check_rules
    from advisor.planning import opened_store, plan_of, setting_of
    from advisor.runfolder import check_out, folder_name, write_run
    from advisor.terminal import Terminal

    terminal = Terminal(quiet=quiet)
    rules = check_rules(max_gap, max_length_ratio, max_models)
    if profiles is not None:
        from advisor.pipeline import run_on_numbers

        if pool is not None:
            raise InputError("--profiles gives numbers instead of models; leave out --pool")
        outcome = run_on_numbers(profiles, rules, _command())
        folder = out or Path("runs") / folder_name(profiles.stem)
        check_out(folder)
    else:
        plan = plan_of(
            pool=pool,
            task=task,
            data=data,
            split=split,
            limit=limit,
            shots=shots,
            seed=seed,
            rules=rules,
            setting=setting_of(device, dtype, chat_template, max_new_tokens, batch_size),
            method=method,
            k=k,
            verify=not no_verify,
            cache_dir=cache_dir,
            command=_command(),
        )
        folder = out or Path("runs") / folder_name(plan.dev.name)
        check_out(folder)
        from advisor.pipeline import run

        with opened_store(plan, terminal, quiet=quiet) as store:
            outcome = run(plan, store, terminal)

    from advisor.result import result_of, samples_of
    from reports import write_report

    result = result_of(outcome)
    write_run(folder, result, samples_of(outcome))
    report = write_report(folder)
    terminal.show(result, report)
    if as_json:
        _print_json(result)


@app.command()
def profile(
    *,
    pool: PoolOption = None,
    task: TaskOption = None,
    data: DataOption = None,
    split: SplitOption = "dev",
    limit: LimitOption = None,
    shots: ShotsOption = None,
    seed: SeedOption = 0,
    max_new_tokens: TokensOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "auto",
    batch_size: BatchOption = "auto",
    chat_template: TemplateOption = "auto",
    cache_dir: CacheOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Only profile: fill the store, print the leaderboard. --json has the form that --profiles reads."""
    from advisor.planning import opened_store, plan_of, setting_of
    from advisor.records import Rules
    from advisor.terminal import Terminal

    terminal = Terminal(quiet=quiet)
    plan = plan_of(
        pool=pool,
        task=task,
        data=data,
        split=split,
        limit=limit,
        shots=shots,
        seed=seed,
        rules=Rules(),
        setting=setting_of(device, dtype, chat_template, max_new_tokens, batch_size),
        method="unite",
        k=1,
        verify=False,
        cache_dir=cache_dir,
        command=_command(),
    )
    from advisor.pipeline import profile_pool

    with opened_store(plan, terminal, quiet=quiet) as store:
        found = profile_pool(plan, store, terminal)
    ranked = [found.profiles[decision.model] for decision in found.select(plan.rules).decisions]
    if as_json:
        numbers = [{"model": p.model, "accuracy": p.accuracy, "mean_length": p.mean_length} for p in ranked]
        _print_json({"task": plan.dev.name, "signature": str(plan.dev.signature), "profiles": numbers})
        return
    for p in ranked:
        print(f"{p.accuracy:6.1f} points  {p.mean_length:7.0f} characters  {p.truncated:4d} cut off  {p.model}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    *,
    debug: DebugOption = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Write a run's report.html again, from result.json and samples.jsonl alone."""
    from reports import write_report

    print(write_report(run))


@app.command()
def run(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run folder; or give --models.")] = None,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="A prompt; - reads standard input.")] = None,
    *,
    models: Annotated[list[str] | None, typer.Option("--models", help="A folder or hub id; the primary first.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="How the set decodes.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Candidates that each member brings to the union.")] = None,
    max_new_tokens: TokensOption = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Ends the text; can be given several times.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Draw from the likeliest that reach it together.")] = 1.0,
    seed: SeedOption = 0,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, ...; the run's own.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32, ...; the run's own.")] = None,
    chat_template: Annotated[str | None, typer.Option("--chat-template", help="auto, ...; the run's own.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Write the text as it comes.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show what each member wanted at every step.")] = False,
    debug: DebugOption = False,  # noqa: ARG001  # read by main, before the command
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

    from advisor import running
    from advisor.loading import hush

    hush()
    chosen = running.chosen_by_hand(models) if models else running.chosen_by_run(Path(str(run)))
    chosen = chosen.but(method, k, max_new_tokens, stop).loaded_by(device, dtype, chat_template)
    checks.check_models(chosen.models)
    text = running.read_prompt(prompt)
    if stream and not trace:
        for piece in running.pieces(chosen, text, temperature=temperature, top_p=top_p, seed=seed):
            print(_for_output(piece), end="", flush=True)
        print()
        return
    generation = running.generation(chosen, text, temperature=temperature, top_p=top_p, seed=seed, trace=trace)
    print(_for_output(generation.text))
    if trace:
        print(
            *running.trace_lines(generation.trace, [model.name for model in chosen.models]), sep="\n", file=sys.stderr
        )


@app.command()
def tasks() -> None:
    """List the tasks, a line each."""
    from advisor.tasks import list_tasks

    for task in list_tasks():
        print(f"{task.name:16} {task.metric:12} {task.summary}")


@app.command()
def methods() -> None:
    """List the methods of ensembling, a line each."""
    from ensemble.methods import METHODS

    for name, summary in METHODS.items():
        print(f"{name:16} {summary}")


def main() -> None:
    """Run the command; every error that is the user's to mend is one line and an exit status."""
    debug = "--debug" in sys.argv
    # What a library warns of, and where a candidate failed, is for whoever works on this program.
    if debug:
        logging.basicConfig()
        logging.getLogger("advisor").setLevel(logging.DEBUG)
    elif not sys.warnoptions:
        warnings.simplefilter("ignore")
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character shows its number; that is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    try:
        _run_command(sys.argv[1:] or ["--help"])
        sys.stdout.flush()
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        place = context.command_path if context is not None else "advisor"
        _fail(f"{error.format_message().rstrip('.')}; see {place} --help", 2)
    except UniteError as error:
        if debug:
            raise
        _fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        _fail("stopped; what was answered so far is kept, and the same command goes on from there", 130)
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing is wrong. What is still to be written goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except Exception as error:
        if debug:
            raise
        _fail(f"{type(error).__name__}: {error} (a fault of advisor; run it again with --debug to see where)", 1)


def _run_command(arguments: list[str]) -> None:
    # Not the command's own main(): that turns Ctrl-C and a closed pipe into exits without a word.
    command = typer.main.get_command(app)
    with command.make_context("advisor", arguments) as context:
        command.invoke(context)


def _fail(message: str, status: int) -> None:
    from reports.visible import visible

    print(f"advisor: {visible(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(status)


def _command() -> str:
    return shlex.join(["advisor", *sys.argv[1:]])


def _for_output(text: str) -> str:
    """A model's text: as it is for a file or a program, but a terminal obeys no command in it."""
    from reports.visible import visible

    return visible(text, keep_lines=True) if sys.stdout.isatty() else text


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=True))
