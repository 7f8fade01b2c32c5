"""``advisor evaluate``: methods of ensembling side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from advisor.commands import options as opt
from advisor.commands.output import command_line, print_json


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, whose chosen set is taken.")],
    *,
    task: opt.Task = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Names between commas; see: advisor methods.")
    ] = "unite,voting",
    members: Annotated[
        str, typer.Option("--members", help="Candidates of the run between commas, the primary first; its set if none.")
    ] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="METHOD.NAME=VALUE", help="A setting of a method.")
    ] = None,
    data: opt.Data = None,
    split: Annotated[str, typer.Option("--split", help="The split to evaluate on.")] = "held_out",
    limit: opt.Limit = None,
    shots: opt.Shots = None,
    seed: opt.Seed = 0,
    allow_code_execution: opt.Code = False,
    k: opt.K = 10,
    max_new_tokens: opt.Tokens = None,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    batch_size: opt.Batch = "auto",
    chat_template: opt.Template = "auto",
    cache_dir: opt.Cache = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Score methods of ensembling, and every member alone, on the same questions; writes RUN/evaluation.json."""
    from advisor.checks import check_options
    from advisor.output.run_folder import replace
    from advisor.output.terminal import Terminal
    from advisor.planning import opened, plan_of_run, setting_of
    from advisor.pool import provenance
    from reports import write_report

    terminal = Terminal(quiet=quiet)
    names, chosen = _names(methods), _names(members)
    plan = plan_of_run(
        run,
        task=task,
        data=data,
        split=split,
        limit=limit,
        shots=shots,
        seed=seed,
        allow_code_execution=allow_code_execution,
        inference=setting_of(device, dtype, chat_template, max_new_tokens, batch_size),
        methods=names,
        k=k,
        cache_dir=cache_dir,
        command=command_line(),
        members=chosen,
    )
    options = check_options(
        [*learnt(run, names, [candidate.name for candidate in plan.candidates]), *(settings or ())], names
    )
    from advisor.output.evaluation_json import evaluation_of
    from advisor.verify.methods import Evaluator

    with opened(plan, terminal, quiet=quiet) as (store, _):
        evaluator = Evaluator(plan, names, options, store, terminal)
        profiles, results = evaluator.run()
    made = provenance.of_run(plan.command, plan.seed, plan.inference, plan.candidates, evaluator.identities)
    result = evaluation_of(profiles, results, plan, evaluator.task, made)
    replace(run / "evaluation.json", f"{json.dumps(result, indent=2, allow_nan=False)}\n")
    write_report(run)
    if as_json:
        print_json(result)
    else:
        terminal.compare(result)


def _names(between_commas: str) -> list[str]:
    return [name.strip() for name in between_commas.split(",") if name.strip()]


def learnt(run: Path, methods: Sequence[str], members: Sequence[str]) -> list[str]:
    """Settings that a run has found out, as ``--set`` takes them.

    DeePEn-Adapt weighs the members by their accuracies on dev.
    """
    from advisor.output.result_json import read_result

    if "deepen-adapt" not in methods:
        return []
    result = read_result(run)
    accuracy = {candidate["model"]: candidate["accuracy"] for candidate in result["candidates"]}
    return [f"deepen-adapt.accuracies={[accuracy.get(model) for model in members]}"]
