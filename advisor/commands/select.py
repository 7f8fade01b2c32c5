"""``advisor select``: the whole job, from the pool to the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from advisor.commands.command_line import command_line, print_json
from advisor.commands.label import run_on_labels
from advisor.jobs.planning.plan import dry_run_lines
from advisor.jobs.select import looks_or_note, run, run_on_logs, run_on_numbers
from advisor.jobs.session import open_session, with_devices
from advisor.models.loaded_models import silence_libraries
from advisor.models.run_config import RunConfig
from advisor.options.select import ProfileOptions, SelectOptions
from advisor.progress import Progress
from advisor.run.folder import check_out, check_settings, folder_name, keep_first_date, write_run
from advisor.run.result import Result
from ensemble.common.pool_option import dumped
from ensemble.common.schema import written
from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec
from reports import write_report
from reports.terminal import print_conclusion, print_tables


def select(options: SelectOptions) -> None:
    """Do the job, and print the tables and the conclusion."""
    if options.dry_run:
        print_dry_run(options)
        return
    folder, result = select_run(options, command_line(), Progress(quiet=options.quiet))
    if not options.quiet:
        print_tables(result)
    if options.as_json:
        print_json(written(result))
    else:
        print_conclusion(result, folder / "report.html")


def select_run(options: SelectOptions, command: str, progress: Progress) -> tuple[Path, Result]:
    """Do the whole job, write the run folder with its report, and return it with the contents of ``result.json``."""
    settings = options.stored_settings()
    if options.labels is not None:
        result, samples = run_on_labels(options, command, progress)
        folder = _folder(options, result.task.name, settings)
    elif options.scores is not None:
        folder = _folder(options, options.scores.stem, settings)
        result, samples = run_on_numbers(options.scores, options.rules, command), iter(())
    elif options.logs:
        result, samples = run_on_logs(options, command, progress)
        folder = _folder(options, result.task.name, settings)
    else:
        config = with_devices(RunConfig.from_options(options, command), progress)
        # Before the hours of work, not after them.
        folder, settings = run_folder(options, config)
        with open_session(config, progress) as (cache, engine):
            result, samples = run(config, cache, progress, engine, looks_or_note(folder, progress))
    origin = result.provenance.model_copy(update={"settings": settings})
    result = keep_first_date(folder, result.model_copy(update={"provenance": origin}))
    write_run(folder, result, samples)
    write_report(folder)
    return folder, result


def run_folder(options: SelectOptions, config: RunConfig) -> tuple[Path, dict[str, Any]]:
    """The folder of a run that runs models, and the settings that it keeps there."""
    settings = {
        **options.stored_settings(),
        # The pool file, the task file and the data may have changed since.
        "models": [_with_options(entry) for entry in config.candidates],
        "questions": [task.fingerprint[:12] for task in (config.dev, config.held_out) if task is not None],
    }
    return _folder(options, config.dev.name, settings), settings


def _with_options(entry: ModelSpec) -> str:
    """A model with the options that may change its responses; where it runs is no setting."""
    given = entry.options("result") | (dumped(entry.checkpoint, "key") if entry.is_remote else {})
    return " ".join((entry.name, *(f"{name}={value}" for name, value in given.items() if name != "device")))


def _folder(options: SelectOptions, task: str, settings: Mapping[str, Any]) -> Path:
    """The run folder, after a check that it can be written, and has no run with other settings."""
    folder = options.out or Path("runs") / folder_name(task)
    check_out(folder)
    if not options.force:
        check_settings(folder, settings)
    return folder


def print_dry_run(options: SelectOptions, profile: ProfileOptions | None = None) -> None:
    """Print what a run, or profiling, with these options would do; status 1 if something keeps it from working."""
    from advisor.jobs.planning.dry_run import dry_run

    silence_libraries(quiet=True)
    config = RunConfig.from_options(options, command_line(), profile=profile)
    config = with_devices(config, Progress(quiet=options.as_json))
    plan = dry_run(config)
    if profile is None:
        try:
            run_folder(options, config)
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
