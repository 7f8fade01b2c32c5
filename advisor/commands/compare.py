"""``advisor compare``: runs, logs or columns of one log against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advisor.commands import options as opt
from ensemble.errors import InputError

GATE_FAILED = 3
"""The exit status if the gate of ``--fail-if-worse`` failed."""


def compare(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B",
            help="Run folders or logs, each with #MODEL if it has several; with --logs, models of these logs. "
            "The first is the baseline.",
        ),
    ] = None,
    *,
    logs: opt.Logs = None,
    log_format: opt.LogFormat = None,
    log_task: opt.LogTask = None,
    score: opt.LogScore = None,
    metric: opt.Metric = None,
    extract: opt.Extract = None,
    column: opt.Column = None,
    model_columns: opt.ModelColumns = None,
    cluster: opt.Cluster = None,
    margin: Annotated[float, typer.Option("--margin", help="Points within which models count as equal.")] = 1.0,
    level: Annotated[float, typer.Option("--level", help="Accepted probability of a false alarm.")] = 0.05,
    seed: opt.Seed = 0,
    fail_if_worse: Annotated[
        float | None,
        typer.Option(
            "--fail-if-worse",
            metavar="POINTS",
            help="End with status 3 if a model is shown to be worse than the first by more than these points.",
        ),
    ] = None,
    fail_if_unsure: Annotated[
        bool,
        typer.Option("--fail-if-unsure", help="With --fail-if-worse: also fail if the questions are too few to tell."),
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page.")] = None,
    as_json: opt.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no notes on what was left out of the logs.")] = False,
    debug: opt.Debug = False,
) -> None:
    """Compare models on the questions that they share: differences with intervals, exact tests, a gate for CI."""
    _check(margin, level, fail_if_worse, html, fail_if_unsure=fail_if_unsure)
    if not (models or logs):
        raise InputError("nothing to compare; give two run folders or logs, or --logs with the logs of several models")
    from advisor.compare.paired import check_gate, compare_pairs
    from advisor.compare.score_table import read_columns, read_runs
    from advisor.config import LogsConfig
    from advisor.progress import Progress
    from advisor.terminal.comparison import comparison_of, gate_texts, print_comparison, shown_pairs
    from ensemble.common.text import visible

    progress = Progress(quiet=quiet)
    # The arguments are models only beside --logs, and paths otherwise.
    config = LogsConfig.from_options({**context.params, "models": None, "logs": logs or models}, opt.command_line())
    table = read_columns(config, models or ()) if logs else read_runs(config)
    for note in table.notes:
        progress.say(note)
    pairs = compare_pairs(table, alpha=level / 2, margin=margin, seed=seed)
    gate = [] if fail_if_worse is None else check_gate(table, fail_if_worse, alpha=level, seed=seed)
    comparison = comparison_of(table, pairs, gate, config, confidence=1 - level, margin=margin, points=fail_if_worse)
    if html is not None:
        from reports.comparison import write_comparison

        write_comparison(html, comparison, shown_pairs(comparison))
    if as_json:
        opt.print_json(comparison)
        for sentence in gate_texts(comparison):
            progress.say(sentence)
    else:
        print_comparison(comparison)
        if html is not None:
            print(f"Page: {visible(str(html))}")
    failing = {"worse", "unclear"} if fail_if_unsure else {"worse"}
    if any(result.verdict in failing for result in gate):
        raise typer.Exit(GATE_FAILED)


def _check(
    margin: float, level: float, fail_if_worse: float | None, html: Path | None, *, fail_if_unsure: bool
) -> None:
    # Written as ranges, so that NaN fails them, too.
    if not 0 < margin <= 100:
        raise InputError(f"--margin {margin:g}: give points above 0, up to 100")
    if not 0 < level < 0.5:
        raise InputError(f"--level {level:g}: give a probability above 0 and below 0.5, for example 0.05")
    if fail_if_worse is not None and not 0 <= fail_if_worse <= 100:
        raise InputError(f"--fail-if-worse {fail_if_worse:g}: give points from 0 to 100")
    if fail_if_unsure and fail_if_worse is None:
        raise InputError("--fail-if-unsure needs --fail-if-worse; add for example --fail-if-worse 1")
    # Before the logs are read, which can take a minute.
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise InputError(f"--html {html}: give the name of a file in a folder that exists")
