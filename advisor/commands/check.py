"""``advisor check``: whether the recommendation of a run still holds on fresh questions."""

from __future__ import annotations

from typing import Annotated

import typer

from advisor.commands import options as opt
from advisor.commands.compare import GATE_FAILED


def check(
    context: typer.Context,
    run: opt.Run,
    *,
    task: opt.Task = None,
    data: opt.Data = None,
    split: Annotated[str, typer.Option("--split", help="The split with fresh questions.")] = "held_out",
    limit: Annotated[
        int | None,
        typer.Option("--limit", help="The number of fresh questions.", show_default="100; all of a log"),
    ] = None,
    shots: opt.Shots = None,
    judge: opt.Judge = None,
    seed: Annotated[int, typer.Option("--seed", help="Another seed draws other fresh questions.")] = 0,
    strategy: opt.StrategyName = None,
    min_gain: Annotated[
        float | None,
        typer.Option("--min-gain", metavar="POINTS", help="The least gain that pays. Default: as in the run, or 0."),
    ] = None,
    level: Annotated[float, typer.Option("--level", help="Accepted probability of a false alarm.")] = 0.05,
    pool: opt.Places = None,
    allow_server: opt.Servers = None,
    allow_key_env: opt.KeyNames = None,
    allow_code_execution: opt.Code = False,
    allow_weak_sandbox: opt.WeakSandbox = False,
    logs: opt.Logs = None,
    log_format: opt.LogFormat = None,
    log_task: opt.LogTask = None,
    score: opt.LogScore = None,
    metric: opt.Metric = None,
    extract: opt.Extract = None,
    column: opt.Column = None,
    model_columns: opt.ModelColumns = None,
    cluster: opt.Cluster = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", help="The maximum number of tokens of a response. Default: as in the run."),
    ] = None,
    device: opt.SetDevice = None,
    dtype: opt.SetDtype = None,
    batch_size: opt.Batch = "auto",
    deterministic: opt.SetDeterministic = None,
    chat_template: opt.SetTemplate = None,
    cache_dir: opt.Cache = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Ask the recommended strategy and the best single model fresh questions; status 3 if the advice fails on them."""
    from advisor.progress import Progress

    progress = Progress(quiet=quiet)
    progress.starting()
    from advisor.jobs.check import check_run
    from advisor.runs.run import Run
    from ensemble.common.text import visible

    found = check_run(Run.open(run), context.params, opt.command_line(), progress)
    if as_json:
        opt.print_json(found)
    else:
        print(visible(found["text"]))
    if found["verdict"] == "worse":
        raise typer.Exit(GATE_FAILED)
