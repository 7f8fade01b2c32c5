"""The ``advisor`` command: its commands put together, and every error turned into a line and an exit status."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from importlib import metadata
from typing import Annotated

import typer
from typer.exceptions import TyperException

from advisor.commands.evaluate import evaluate
from advisor.commands.export import export
from advisor.commands.lists import methods, tasks
from advisor.commands.lm_eval import PASSED_ON, lm_eval
from advisor.commands.profile import profile
from advisor.commands.report import report
from advisor.commands.run import run
from advisor.commands.select import select
from advisor.commands.serve import serve
from ensemble.errors import UniteError

_KEEPING = {"select", "profile", "evaluate"}
"""The commands that keep each response as soon as it is there."""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"unite-advisor {metadata.version('unite-advisor')}")
        raise typer.Exit


@app.callback()
def about(
    *,
    version: Annotated[  # its callback is all
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Which of your language models can be ensembled, in which order, and whether it pays."""


for command in (select, profile, report, run, serve, evaluate, export, tasks, methods):
    app.command()(command)
app.command("lm-eval", context_settings=PASSED_ON, add_help_option=False)(lm_eval)


def main() -> None:
    """Run the command; every error that is the user's to mend is one line and an exit status."""
    debug = "--debug" in sys.argv
    _set_up(debug=debug)
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
        _fail(stopped(), 130)
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing is wrong. What is still to be written goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except Exception as error:
        if _was_stopped(error):
            _fail(stopped(), 130)
        if debug:
            raise
        _fail(f"{type(error).__name__}: {error} (a fault of advisor; run it again with --debug to see where)", 1)


def _set_up(*, debug: bool) -> None:
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


def _run_command(arguments: list[str]) -> None:
    # Not the command's own main(): that turns Ctrl-C and a closed pipe into exits without a word.
    command = typer.main.get_command(app)
    with command.make_context("advisor", arguments) as context:
        command.invoke(context)


def stopped() -> str:
    """What is said where Ctrl-C ended a command."""
    kept = "; what was answered so far is kept, and the same command goes on from there"
    return "stopped" + kept * (not _KEEPING.isdisjoint(sys.argv[1:2]))


def _was_stopped(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: a library that was being imported may make one of its own of it."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _fail(message: str, status: int) -> None:
    from reports.text import visible

    print(f"advisor: {visible(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(status)
