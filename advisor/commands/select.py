"""``advisor select``: the whole job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from advisor.commands import options as opt
from advisor.commands.output import command_line, print_json
from ensemble.errors import InputError

Number = TypeVar("Number", int, float)


def select(
    *,
    pool: opt.Pool = None,
    task: opt.Task = None,
    data: opt.Data = None,
    split: opt.Split = "dev",
    limit: opt.Limit = None,
    shots: opt.Shots = None,
    seed: opt.Seed = 0,
    allow_code_execution: opt.Code = False,
    max_gap: opt.Gap = 10.0,
    max_length_ratio: opt.Ratio = 2.0,
    max_models: opt.Models = 3,
    level: opt.Level = 0.05,
    method: opt.Method = "unite",
    k: opt.K = 10,
    max_new_tokens: opt.Tokens = None,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    batch_size: opt.Batch = "auto",
    chat_template: opt.Template = "auto",
    engine: opt.Engine = "local",
    ray_address: opt.Address = None,
    race: opt.Race = False,
    race_level: opt.RaceLevel = None,
    search: opt.Search = False,
    tries: opt.Tries = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not run the set on held-out questions.")] = False,
    profiles: Annotated[Path | None, typer.Option("--profiles", help="Numbers instead of models.")] = None,
    cache_dir: opt.Cache = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder; runs/TASK where left out.")] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Profile every candidate, choose a set by the rules, run it on held-out questions, write a report."""
    from advisor.checks import check_rules
    from advisor.choose.search import TRIES
    from advisor.output.run_folder import check_out, folder_name, write_run
    from advisor.output.terminal import Terminal
    from advisor.planning import opened, plan_of, setting_of
    from advisor.records import LEVEL

    terminal = Terminal(quiet=quiet)
    rules = check_rules(max_gap, max_length_ratio, max_models)
    if profiles is not None:
        from advisor.pipeline import run_on_numbers

        if pool is not None:
            raise InputError("--profiles gives numbers instead of models; leave out --pool")
        if race or search:
            option = "--race" if race else "--search"
            raise InputError(f"{option} asks models, and --profiles has only their numbers; leave one of the two out")
        outcome = run_on_numbers(profiles, rules, command_line())
        folder = out or Path("runs") / folder_name(profiles.stem)
        check_out(folder)
    else:
        plan = plan_of(
            pool=pool,
            task=task,
            data=data,
            split=split,
            limit=limit,
            shots=shots,
            seed=seed,
            allow_code_execution=allow_code_execution,
            rules=rules,
            inference=setting_of(device, dtype, chat_template, max_new_tokens, batch_size, engine, ray_address),
            method=method,
            k=k,
            verify=not no_verify,
            cache_dir=cache_dir,
            command=command_line(),
            race=_setting_of("--race", race, "--race-level", race_level, LEVEL),
            level=level,
            search=_setting_of("--search", search, "--tries", tries, TRIES),
        )
        folder = out or Path("runs") / folder_name(plan.dev.name)
        check_out(folder)
        from advisor.pipeline import run

        with opened(plan, terminal, quiet=quiet) as (store, at):
            outcome = run(plan, store, terminal, at)

    from advisor.output.result_json import result_of, samples_of
    from reports import write_report

    result = result_of(outcome)
    write_run(folder, result, samples_of(outcome))
    report = write_report(folder)
    terminal.show(result)
    if as_json:
        print_json(result)
    else:
        terminal.conclude(result, report)


def _setting_of(switch: str, is_on: bool, option: str, value: Number | None, default: Number) -> Number | None:
    """What a switch does by an option of its own; None where it is off.

    Raises:
        InputError: The option is given without the switch.
    """
    if value is not None and not is_on:
        raise InputError(f"{option} {value:g} does nothing without {switch}; add {switch}, or leave {option} out")
    return (default if value is None else value) if is_on else None
