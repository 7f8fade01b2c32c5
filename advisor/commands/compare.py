"""``advisor compare``: pairs of models on the questions that they share, and a gate for CI."""

from __future__ import annotations

import math
from contextlib import nullcontext

import typer

from advisor.advice.compared_models import (
    MOST_PAIRS,
    check_gate,
    compare_pairs,
    comparison_of,
    gate_texts,
    shown_pairs,
)
from advisor.advice.score_table import read_columns, read_runs
from advisor.commands.command_line import GATE_FAILED, command_line, print_json
from advisor.options.finished_run import CompareOptions
from advisor.progress import Progress
from ensemble.common.text import visible
from reports.page import write_comparison
from reports.terminal import print_comparison

SLOW = 1000
"""Pairs; from so many on a bar shows how far the comparison is."""


def compare(options: CompareOptions) -> None:
    """Compare the models, write the page, and print the comparison; status 3 if the gate failed."""
    progress = Progress(quiet=options.quiet)
    # The arguments are models only beside --logs, and paths otherwise.
    table = read_columns(options, options.models) if options.logs else read_runs(options, options.models)
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
        pairs, tested = compare_pairs(
            table,
            alpha=options.alpha,
            margin=options.margin,
            seed=options.seed,
            baseline_only=baseline_only,
            advance=advance,
        )
    worse = options.fail_if_worse
    # The gate looks at one side only, so all of its false alarms are on that side.
    gate = [] if worse is None else check_gate(table, worse, alpha=2 * options.alpha, seed=options.seed)
    comparison = comparison_of(table, pairs, tested, gate, options, command_line())
    if options.html is not None:
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
    if any(result["verdict"] in failing for result in gate):
        raise typer.Exit(GATE_FAILED)
