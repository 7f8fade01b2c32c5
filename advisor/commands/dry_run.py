"""``--dry-run`` of ``advisor select`` and ``advisor profile``: a run that is planned and not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from advisor.commands.command_line import command_line, print_json
from advisor.options.select import SelectOptions

if TYPE_CHECKING:
    from advisor.config import RunConfig
    from advisor.options.profile import ProfileOptions


def print_dry_run(
    options: SelectOptions,
    check_folder: Callable[[RunConfig], object] = lambda _: None,
    *,
    profile: ProfileOptions | None = None,
) -> None:
    """Print what a run with these options would do. The status is 1 if something keeps it from working.

    Args:
        options: The options of the command.
        check_folder: Raises InputError if the run cannot write its folder.
        profile: Those of ``advisor profile``.
    """
    from advisor.config import RunConfig
    from advisor.jobs.planning.dry_run import dry_run
    from advisor.jobs.planning.words import dry_run_lines
    from advisor.jobs.session import with_devices
    from advisor.profile.loader import silence_libraries
    from advisor.progress import Progress
    from ensemble.errors import InputError

    silence_libraries(quiet=True)
    config = with_devices(
        RunConfig.from_options(options, command_line(), profile=profile), Progress(quiet=options.as_json)
    )
    plan = dry_run(config)
    try:
        check_folder(config)
    except InputError as error:
        # Said with the plan, which is of use for another folder as well.
        plan["problems"].append(str(error))
    if options.as_json:
        without_need = {
            part: [{name: value for name, value in model.items() if name != "need"} for model in plan[part]]
            for part in ("models", "readers", "judges")
        }
        print_json({**plan, **without_need})
    else:
        for line in dry_run_lines(plan):
            print(line)
    if plan["problems"]:
        raise typer.Exit(1)
