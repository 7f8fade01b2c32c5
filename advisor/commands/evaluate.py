"""``advisor evaluate``: methods of ensembling side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from advisor.commands import options as opt


def evaluate(
    context: typer.Context,
    run: opt.Run,
    *,
    task: opt.Task = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Names with commas between them; see advisor methods.")
    ] = "unite,voting",
    members: Annotated[
        str,
        typer.Option(
            "--members",
            help="Candidates of the run with commas between them, the primary first. Default: the chosen set.",
        ),
    ] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="METHOD.NAME=VALUE", help="An option of a method.")
    ] = None,
    data: opt.Data = None,
    split: Annotated[str, typer.Option("--split", help="The split to evaluate on.")] = "held_out",
    limit: opt.Limit = None,
    shots: opt.Shots = None,
    judge: opt.Judge = None,
    second_judge: opt.SecondJudge = None,
    seed: opt.Seed = 0,
    allow_code_execution: opt.Code = False,
    allow_server: opt.Servers = None,
    allow_key_env: opt.KeyNames = None,
    allow_weak_sandbox: opt.WeakSandbox = False,
    k: opt.K = 10,
    weights: opt.Weights = "equal",
    max_new_tokens: opt.Tokens = None,
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
    """Score methods of ensembling, and every member alone, on the same questions; write RUN/evaluation.json."""
    from advisor.progress import Progress

    progress = Progress(quiet=quiet)
    progress.starting()
    from advisor.jobs.evaluate import evaluate_run
    from advisor.runs.run import Run
    from advisor.runs.run_folder import write_json
    from advisor.terminal.tables import print_methods
    from ensemble.common.schema import written
    from reports import write_report

    evaluation = evaluate_run(Run.open(run), context.params, opt.command_line(), progress)
    content = written(evaluation)
    # Before the report, which reads it.
    write_json(run / "evaluation.json", content)
    write_report(run)
    if as_json:
        opt.print_json(content)
    else:
        print_methods(content)
