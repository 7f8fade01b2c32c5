"""``advisor select``: the whole job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advisor.commands import options as opt


def select(
    context: typer.Context,
    *,
    pool: opt.Pool = None,
    task: opt.Task = None,
    data: opt.Data = None,
    split: opt.Split = "dev",
    limit: opt.Limit = None,
    shots: opt.Shots = None,
    judge: opt.Judge = None,
    second_judge: opt.SecondJudge = None,
    seed: opt.Seed = 0,
    allow_code_execution: opt.Code = False,
    allow_key_env: opt.KeyNames = None,
    allow_weak_sandbox: opt.WeakSandbox = False,
    logs: opt.Logs = None,
    log_format: opt.LogFormat = None,
    log_task: opt.LogTask = None,
    models: opt.LogModels = None,
    score: opt.LogScore = None,
    metric: opt.Metric = None,
    extract: opt.Extract = None,
    column: opt.Column = None,
    model_columns: opt.ModelColumns = None,
    cluster: opt.Cluster = None,
    dev_size: opt.DevSize = None,
    max_gap: opt.Gap = None,
    max_length_ratio: opt.Ratio = 2.0,
    max_models: opt.Models = 3,
    max_calls: opt.Calls = 5,
    level: opt.Level = 0.05,
    min_gain: opt.MinGain = 0.0,
    verify_on: opt.VerifyOn = "held_out",
    until_sure: opt.UntilSure = False,
    max_questions: opt.MaxQuestions = None,
    method: opt.Method = "unite",
    k: opt.K = 10,
    weights: opt.Weights = "equal",
    max_new_tokens: opt.Tokens = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    batch_size: opt.Batch = "auto",
    deterministic: opt.Deterministic = False,
    chat_template: opt.Template = "auto",
    engine: opt.Engine = "local",
    ray_address: opt.Address = None,
    race: opt.Race = False,
    race_level: opt.RaceLevel = None,
    choose: opt.Choose = None,
    tries: opt.Tries = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not run the set on held-out questions.")] = False,
    profiles: Annotated[
        Path | None, typer.Option("--profiles", help="A file with numbers, instead of models that run.")
    ] = None,
    cache_dir: opt.Cache = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder. Default: runs/TASK.")] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Profile every candidate, choose a set by the rules, run it on held-out questions, write a report."""
    from advisor.config import LogsConfig, RunConfig, rules_for_numbers
    from advisor.output.result_json import result_of, samples_of
    from advisor.output.run_folder import check_out, folder_name, write_run
    from advisor.output.terminal import print_conclusion, print_tables
    from advisor.pipeline import run, run_on_logs, run_on_numbers
    from advisor.progress import Progress
    from advisor.session import open_session
    from advisor.verify.sequential import looks_or_note
    from reports import write_report

    command = opt.command_line()
    if profiles is not None:
        outcome = run_on_numbers(profiles, rules_for_numbers(context.params), command)
        folder = out or Path("runs") / folder_name(profiles.stem)
        check_out(folder)
    elif logs:
        outcome = run_on_logs(LogsConfig.from_options(context.params, command), Progress(quiet=quiet))
        folder = out or Path("runs") / folder_name(outcome.task_info["name"])
        check_out(folder)
    else:
        config, progress = RunConfig.from_options(context.params, command), Progress(quiet=quiet)
        folder = out or Path("runs") / folder_name(config.dev.name)
        # Before the hours of work, not after them.
        check_out(folder)
        with open_session(config, progress) as (cache, run_engine):
            outcome = run(config, cache, progress, run_engine, looks_or_note(folder, progress))
    result = result_of(outcome)
    write_run(folder, result, samples_of(outcome))
    report = write_report(folder)
    if not quiet:
        print_tables(result)
    if as_json:
        opt.print_json(result)
    else:
        print_conclusion(result, report)
