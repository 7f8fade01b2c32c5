"""The commands that ask the candidates of a pool: ``advisor select``, ``profile`` and ``label``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import typer

from advisor.commands.command_line import command_line, print_json
from advisor.options.option import options_of
from advisor.options.select import LabelOptions, ProfileOptions, SelectOptions

if TYPE_CHECKING:
    from advisor.config import RunConfig


def print_dry_run(
    options: SelectOptions,
    check_folder: Callable[[RunConfig], object] = lambda _: None,
    *,
    profile: ProfileOptions | None = None,
) -> None:
    """Print what a run with these options would do. The status is 1 if something keeps it from working.

    Args:
        options: The options of the command.
        check_folder: Raises InputError if the run cannot write its folder.
        profile: Those of ``advisor profile``.
    """
    from advisor.config import RunConfig
    from advisor.jobs.planning.dry_run import dry_run
    from advisor.jobs.planning.plan import dry_run_lines
    from advisor.jobs.session import with_devices
    from advisor.profile.loaded_models import silence_libraries
    from advisor.progress import Progress
    from ensemble.errors import InputError

    silence_libraries(quiet=True)
    config = with_devices(
        RunConfig.from_options(options, command_line(), profile=profile), Progress(quiet=options.as_json)
    )
    plan = dry_run(config)
    try:
        check_folder(config)
    except InputError as error:
        # Said with the plan, which is of use for another folder as well.
        plan["problems"].append(str(error))
    if options.as_json:
        without_need = {
            part: [{name: value for name, value in model.items() if name != "need"} for model in plan[part]]
            for part in ("models", "readers", "judges")
        }
        print_json({**plan, **without_need})
    else:
        for line in dry_run_lines(plan):
            print(line)
    if plan["problems"]:
        raise typer.Exit(1)


def select(options: SelectOptions) -> None:
    """Profile every candidate, choose a set by the rules, run it on held-out questions, write a report."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.jobs.select import run_folder, select_run
    from advisor.terminal.tables import print_conclusion, print_tables
    from ensemble.common.schema import written

    if options.dry_run:
        print_dry_run(options, check_folder=partial(run_folder, options))
        return
    folder, result = select_run(options, command_line(), progress)
    if not options.quiet:
        print_tables(result)
    if options.as_json:
        print_json(written(result))
    else:
        print_conclusion(result, folder / "report.html")


def profile(options: ProfileOptions) -> None:
    """Only profile: fill the cache and print the leaderboard. --json has the form that --scores reads."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.choose.profiled_pool import profile_candidates
    from advisor.config import RunConfig
    from advisor.jobs.planning.dry_run import say_judging
    from advisor.jobs.session import open_session, with_devices
    from advisor.judge.judge import open_profiler

    # It is the first half of a run that verifies nothing.
    of_select = options_of(SelectOptions)
    of_run = SelectOptions(**{name: each for name, each in vars(options).items() if name in of_select}, no_verify=True)
    if options.dry_run:
        print_dry_run(of_run, profile=options)
        return
    config = with_devices(RunConfig.from_options(of_run, command_line(), profile=options), progress)
    with open_session(config, progress) as (cache, run_engine):
        say_judging(config, progress)
        profiler, profile_judge = open_profiler(config, cache, progress, engine=run_engine)
        profiled = profile_candidates(config, profiler)
    ranked = [profiled.profiles[decision.model] for decision in profiled.select(config.rules).decisions]
    if options.as_json:
        dev = profile_judge.sign(config.dev) if profile_judge else config.dev
        numbers = [
            {"model": p.model, "accuracy": p.accuracy, "mean_length": p.mean_length, "truncated": p.truncated}
            | p.no_answer
            for p in ranked
        ]
        print_json({"task": dev.name, "signature": str(dev.signature), "profiles": numbers})
        return
    for p in ranked:
        # A choice task has no lengths.
        length = "" if p.mean_length is None else f"{p.mean_length:7.0f} characters  "
        lacking = "".join(f"{count:4d} {reason}  " for reason, count in p.no_answer.items() if count)
        print(f"{p.accuracy:6.1f} points  {length}{p.truncated:4d} cut off  {lacking}{p.model}")


def label(options: LabelOptions) -> None:
    """Write a table of the questions whose labels decide, where there are no references; select --labels reads it."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.jobs.label import label_run
    from ensemble.common.text import visible

    summary = label_run(options, command_line(), progress)
    if options.as_json:
        print_json(summary)
    else:
        print(visible(summary["text"]))
