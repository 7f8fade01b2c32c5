"""``advisor profile``: only the candidates' own answers."""

from __future__ import annotations

from advisor.commands import options as opt
from advisor.commands.output import command_line, print_json


def profile(
    *,
    pool: opt.Pool = None,
    task: opt.Task = None,
    data: opt.Data = None,
    split: opt.Split = "dev",
    limit: opt.Limit = None,
    shots: opt.Shots = None,
    seed: opt.Seed = 0,
    allow_code_execution: opt.Code = False,
    max_new_tokens: opt.Tokens = None,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    batch_size: opt.Batch = "auto",
    chat_template: opt.Template = "auto",
    engine: opt.Engine = "local",
    ray_address: opt.Address = None,
    cache_dir: opt.Cache = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Only profile: fill the store, print the leaderboard. --json has the form that --profiles reads."""
    from advisor.output.terminal import Terminal
    from advisor.planning import opened, plan_of, setting_of
    from advisor.records import Rules

    terminal = Terminal(quiet=quiet)
    plan = plan_of(
        pool=pool,
        task=task,
        data=data,
        split=split,
        limit=limit,
        shots=shots,
        seed=seed,
        allow_code_execution=allow_code_execution,
        rules=Rules(),
        inference=setting_of(device, dtype, chat_template, max_new_tokens, batch_size, engine, ray_address),
        method="unite",
        k=1,
        verify=False,
        cache_dir=cache_dir,
        command=command_line(),
    )
    from advisor.choose.race import profile_candidates
    from advisor.profile.profiler import Profiler

    with opened(plan, terminal, quiet=quiet) as (store, at):
        found = profile_candidates(plan, Profiler(plan, store, terminal, engine=at), terminal)
    ranked = [found.profiles[decision.model] for decision in found.select(plan.rules).decisions]
    if as_json:
        numbers = [{"model": p.model, "accuracy": p.accuracy, "mean_length": p.mean_length} for p in ranked]
        print_json({"task": plan.dev.name, "signature": str(plan.dev.signature), "profiles": numbers})
        return
    for p in ranked:
        print(f"{p.accuracy:6.1f} points  {p.mean_length:7.0f} characters  {p.truncated:4d} cut off  {p.model}")
