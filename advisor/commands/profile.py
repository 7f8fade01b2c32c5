"""``advisor profile``: the answers of each candidate alone."""

from __future__ import annotations

from advisor.commands.command_line import command_line, print_json
from advisor.commands.dry_run import print_dry_run
from advisor.options.option import options_of
from advisor.options.profile import ProfileOptions
from advisor.options.select import SelectOptions


def profile(options: ProfileOptions) -> None:
    """Only profile: fill the cache and print the leaderboard. --json has the form that --scores reads."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.choose.profiled_pool import profile_candidates
    from advisor.config import RunConfig
    from advisor.jobs.planning.judging import say_judging
    from advisor.jobs.session import open_session, with_devices
    from advisor.judge.judged_profiler import open_profiler

    # It is the first half of a run that verifies nothing.
    of_select = options_of(SelectOptions)
    of_run = SelectOptions(**{name: each for name, each in vars(options).items() if name in of_select}, no_verify=True)
    if options.dry_run:
        print_dry_run(of_run, profile=options)
        return
    config = with_devices(RunConfig.from_options(of_run, command_line(), profile=options), progress)
    with open_session(config, progress) as (cache, run_engine):
        say_judging(config, progress)
        profiler, profile_judge = open_profiler(config, cache, progress, engine=run_engine)
        profiled = profile_candidates(config, profiler)
    ranked = [profiled.profiles[decision.model] for decision in profiled.select(config.rules).decisions]
    if options.as_json:
        dev = profile_judge.sign(config.dev) if profile_judge else config.dev
        numbers = [{"model": p.model, "accuracy": p.accuracy, "mean_length": p.mean_length} for p in ranked]
        print_json({"task": dev.name, "signature": str(dev.signature), "profiles": numbers})
        return
    for p in ranked:
        # A choice task has no lengths.
        length = "" if p.mean_length is None else f"{p.mean_length:7.0f} characters  "
        print(f"{p.accuracy:6.1f} points  {length}{p.truncated:4d} cut off  {p.model}")
