"""``advisor profile``: the answers of each candidate alone."""

from __future__ import annotations

import typer

from advisor.commands import options as opt
from advisor.commands.dry_run import print_dry_run


def profile(
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
    max_new_tokens: opt.Tokens = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    quantization: opt.Quantization = None,
    batch_size: opt.Batch = "auto",
    deterministic: opt.Deterministic = False,
    chat_template: opt.Template = "auto",
    engine: opt.Engine = "local",
    ray_address: opt.Address = None,
    cache_dir: opt.Cache = None,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Only profile: fill the cache and print the leaderboard. --json has the form that --profiles reads."""
    from advisor.progress import Progress

    progress = Progress(quiet=quiet)
    progress.starting()
    from advisor.choose.race import profile_candidates
    from advisor.config import RunConfig
    from advisor.jobs.planning.judging import say_judging
    from advisor.jobs.session import open_session, with_devices
    from advisor.judge.judged_profiler import open_profiler

    if dry_run:
        print_dry_run({**context.params, "no_verify": True}, as_json=as_json)
        return
    config = with_devices(RunConfig.from_options({**context.params, "no_verify": True}, opt.command_line()), progress)
    with open_session(config, progress) as (cache, run_engine):
        say_judging(config, progress)
        profiler, profile_judge = open_profiler(config, cache, progress, engine=run_engine)
        profiled = profile_candidates(config, profiler, progress)
    ranked = [profiled.profiles[decision.model] for decision in profiled.select(config.rules).decisions]
    if as_json:
        dev = profile_judge.sign(config.dev) if profile_judge else config.dev
        numbers = [{"model": p.model, "accuracy": p.accuracy, "mean_length": p.mean_length} for p in ranked]
        opt.print_json({"task": dev.name, "signature": str(dev.signature), "profiles": numbers})
        return
    for p in ranked:
        # A choice task has no lengths.
        length = "" if p.mean_length is None else f"{p.mean_length:7.0f} characters  "
        print(f"{p.accuracy:6.1f} points  {length}{p.truncated:4d} cut off  {p.model}")
