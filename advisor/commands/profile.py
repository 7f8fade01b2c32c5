"""``advisor profile``: only profile, and print the leaderboard."""

from __future__ import annotations

from advisor.advice.profiled_pool import profile_candidates
from advisor.commands.command_line import command_line, print_json
from advisor.jobs.session import open_session, with_devices
from advisor.judge.judge import open_profiler
from advisor.models.run_config import RunConfig
from advisor.options.new_run import ProfileOptions, SelectOptions
from advisor.progress import Progress


def profile(options: ProfileOptions) -> None:
    """Fill the cache and print the leaderboard; its JSON is what ``select --scores`` reads."""
    progress = Progress(quiet=options.quiet)
    # It is the first half of a run that verifies nothing.
    of_run = SelectOptions(**options.shared(SelectOptions), no_verify=True)
    if options.dry_run:
        # Here, because `select` loads the libraries of its statistics and its report.
        from advisor.commands.select import print_dry_run

        print_dry_run(of_run, options)
        return
    config = with_devices(RunConfig.from_options(of_run, command_line(), profile=options), progress)
    with open_session(config, progress) as (cache, run_engine):
        profiler, profile_judge = open_profiler(config, cache, progress, engine=run_engine)
        profiled = profile_candidates(config, profiler)
    ranked = [profiled.profiles[decision.model] for decision in profiled.select(of_run.rules).decisions]
    if options.as_json:
        dev = profile_judge.sign(config.dev) if profile_judge else config.dev
        numbers = [
            {"model": p.model, "accuracy": p.accuracy, "mean_length": p.mean_length, "truncated": p.truncated}
            | p.no_answer
            for p in ranked
        ]
        print_json({"task": dev.name, "signature": dev.signature, "profiles": numbers})
        return
    for p in ranked:
        # A choice task has no lengths.
        length = "" if p.mean_length is None else f"{p.mean_length:7.0f} characters  "
        lacking = "".join(f"{count:4d} {reason}  " for reason, count in p.no_answer.items() if count)
        print(f"{p.accuracy:6.1f} points  {length}{p.truncated:4d} cut off  {lacking}{p.model}")
