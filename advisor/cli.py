"""The ``advisor`` command: its commands put together, and every error turned into a line and an exit status."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings

import typer
from typer.exceptions import TyperException

from advisor.commands.lists import methods, tasks
from advisor.commands.profile import profile
from advisor.commands.report import report
from advisor.commands.run import run
from advisor.commands.select import select
from ensemble.errors import UniteError

app = typer.Typer(
    help="Which of your language models can be ensembled, in which order, and whether it pays.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (select, profile, report, run, tasks, methods):
    app.command()(command)


def main() -> None:
    """Run the command; every error that is the user's to mend is one line and an exit status."""
    debug = "--debug" in sys.argv
    # What a library warns of, and where a candidate failed, is for whoever works on this program.
    if debug:
        logging.basicConfig()
        logging.getLogger("advisor").setLevel(logging.DEBUG)
    elif not sys.warnoptions:
        warnings.simplefilter("ignore")
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character shows its number; that is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    try:
        _run_command(sys.argv[1:] or ["--help"])
        sys.stdout.flush()
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        place = context.command_path if context is not None else "advisor"
        _fail(f"{error.format_message().rstrip('.')}; see {place} --help", 2)
    except UniteError as error:
        if debug:
            raise
        _fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        _fail("stopped; what was answered so far is kept, and the same command goes on from there", 130)
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing is wrong. What is still to be written goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except Exception as error:
        if debug:
            raise
        _fail(f"{type(error).__name__}: {error} (a fault of advisor; run it again with --debug to see where)", 1)


def _run_command(arguments: list[str]) -> None:
    # Not the command's own main(): that turns Ctrl-C and a closed pipe into exits without a word.
    command = typer.main.get_command(app)
    with command.make_context("advisor", arguments) as context:
        command.invoke(context)


def _fail(message: str, status: int) -> None:
    from reports.visible import visible

    print(f"advisor: {visible(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(status)
