"""``advisor select``: the whole job."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from advisor.commands import options as opt
from advisor.commands.dry_run import print_dry_run


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
    quantization: opt.Quantization = None,
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
    force: Annotated[bool, typer.Option("--force", help="Replace a run with other settings in this folder.")] = False,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Profile every candidate, choose a set by the rules, run it on held-out questions, write a report."""
    from advisor.progress import Progress
    from ensemble.errors import InputError

    progress = Progress(quiet=quiet)
    progress.starting()
    from advisor.jobs.select import run_folder, select_run
    from advisor.terminal.tables import print_conclusion, print_tables
    from ensemble.common.schema import written

    if dry_run:
        if profiles is not None or logs:
            raise InputError("--dry-run shows prompts and times of models, and --logs and --profiles run none")
        print_dry_run(context.params, as_json=as_json, check_folder=partial(run_folder, context.params))
        return
    folder, result = select_run(context.params, opt.command_line(), progress)
    content = written(result)
    if not quiet:
        print_tables(content)
    if as_json:
        opt.print_json(content)
    else:
        print_conclusion(content, folder / "report.html")
