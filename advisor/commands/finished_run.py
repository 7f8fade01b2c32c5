"""The commands on finished runs: ``advisor check``, ``evaluate``, ``judge``, ``report``, ``export`` and ``compare``."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import typer

from advisor.commands.command_line import command_line, print_json
from advisor.options.finished_run import (
    CheckOptions,
    CompareOptions,
    EvaluateOptions,
    ExportOptions,
    JudgeRunOptions,
    ReportOptions,
)
from ensemble.errors import InputError

SLOW = 1000
"""Pairs; from so many on a bar shows how far the comparison is."""
GATE_FAILED = 3
"""The exit status if the gate of ``--fail-if-worse`` failed."""


def compare(options: CompareOptions) -> None:
    """Compare models on the questions that they share: differences with intervals, exact tests, a gate for CI."""
    from advisor.compare.paired import check_gate, compare_pairs
    from advisor.compare.score_table import read_columns, read_runs
    from advisor.config import LogsConfig
    from advisor.progress import Progress
    from advisor.terminal.comparison import MOST_PAIRS, comparison_of, gate_texts, print_comparison, shown_pairs
    from ensemble.common.text import visible

    progress = Progress(quiet=options.quiet)
    # The arguments are models only beside --logs, and paths otherwise.
    config = LogsConfig.from_options(replace(options, logs=options.logs or options.models), command_line())
    table = read_columns(config, options.models) if options.logs else read_runs(config)
    for note in table.notes:
        progress.say(note)
    count = math.comb(len(table.models), 2)
    baseline_only = count > MOST_PAIRS and not options.as_json
    compared = len(table.models) - 1 if baseline_only else count
    with (
        progress.stage(f"Pairs of {len(table.models):,} models", count + compared)
        if count > SLOW
        else nullcontext(lambda _: None) as advance
    ):
        pairs = compare_pairs(
            table,
            alpha=options.alpha,
            margin=options.margin,
            seed=options.seed,
            baseline_only=baseline_only,
            advance=advance,
        )
    worse, confidence = options.fail_if_worse, options.confidence
    # The gate looks at one side only, so all of its false alarms are on that side.
    gate = [] if worse is None else check_gate(table, worse, alpha=2 * options.alpha, seed=options.seed)
    comparison = comparison_of(table, pairs, gate, config, confidence=confidence, margin=options.margin, points=worse)
    if options.html is not None:
        from reports.comparison import write_comparison

        write_comparison(options.html, comparison, shown_pairs(comparison))
    if options.as_json:
        print_json(comparison)
        for sentence in gate_texts(comparison):
            progress.say(sentence)
    else:
        print_comparison(comparison)
        if options.html is not None:
            print(f"Page: {visible(str(options.html))}")
    failing = {"worse", "unclear"} if options.fail_if_unsure else {"worse"}
    if any(result.verdict in failing for result in gate):
        raise typer.Exit(GATE_FAILED)


def check(options: CheckOptions) -> None:
    """Ask the recommended strategy and the best single model fresh questions; status 3 if the advice fails on them."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.jobs.check import check_run
    from ensemble.common.text import visible

    found = check_run(options, command_line(), progress)
    if options.as_json:
        print_json(found)
    else:
        print(visible(found["text"]))
    if found["verdict"] == "worse":
        raise typer.Exit(GATE_FAILED)


def evaluate(options: EvaluateOptions) -> None:
    """Score methods of ensembling, and every member alone, on the same questions; write RUN/evaluation.json."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.jobs.evaluate import evaluate_run
    from advisor.runs.run import write_json
    from advisor.terminal.tables import print_methods
    from ensemble.common.schema import written
    from reports import write_report

    evaluation = evaluate_run(options, command_line(), progress)
    content = written(evaluation)
    # Before the report, which reads it.
    write_json(options.run / "evaluation.json", content)
    write_report(options.run)
    if options.as_json:
        print_json(content)
    else:
        print_methods(evaluation)


def judge(options: JudgeRunOptions) -> None:
    """Correct the judge's scores of a run by a few labels of people, and say what misleads the judge."""
    from advisor.jobs.judge import judge_run
    from advisor.progress import Progress
    from ensemble.common.text import visible

    found = judge_run(options, Progress(quiet=options.quiet))
    if options.as_json:
        print_json(found)
    else:
        print(visible("\n".join(found["text"]), keep_lines=True))


def report(options: ReportOptions) -> None:
    """Write the report.html of a run again, or an index of all runs in a folder."""
    run = options.run
    if run.is_dir() and not (run / "result.json").exists():
        _write_index(run, options.form)
    else:
        _write_report(run, options)


def _write_report(run: Path, options: ReportOptions) -> None:
    from reports import write_report

    if options.form == "html":
        print(write_report(run))
        return
    from advisor.runs.run import Run
    from reports.formats import as_csv, latex, leaderboard_rows, markdown, strategy_rows

    result = Run.open(run).result
    if options.form == "csv":
        print(as_csv((leaderboard_rows if options.table == "leaderboard" else strategy_rows)(result)), end="")
    else:
        print((markdown if options.form == "md" else latex)(result), end="")


def _write_index(folder: Path, form: str) -> None:
    from reports.run_index import find_runs, index_csv, index_markdown, index_rows, write_index

    rows = index_rows(folder, find_runs(folder))
    if form == "latex":
        raise InputError(f"{folder}: has several runs; --format latex needs one run folder")
    if form == "html":
        print(write_index(folder, rows))
    else:
        print((index_markdown if form == "md" else index_csv)(rows), end="")


def export(options: ExportOptions) -> None:
    """Write the recommended strategy of a run, without weights, and a card with the evidence; push it on request."""
    from advisor.jobs.export import export as write

    print(write(options))
    if options.compose:
        from advisor.jobs.compose import wheel
        from advisor.progress import Progress

        put = f"put {wheel()} into {options.folder}: the image is built with it"
        Progress().say(f"before `docker compose up --build`, {put}")
