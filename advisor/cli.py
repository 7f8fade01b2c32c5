"""The ``advisor`` command: its commands put together, and every error turned into a line and an exit status."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from advisor.commands.command_line import PROFILING, GroupedOptions, versions, with_options
from advisor.commands.lists import methods, schema, tasks
from advisor.commands.lm_eval import PASSED_ON, lm_eval
from advisor.options.finished_run import (
    CheckOptions,
    CompareOptions,
    EvaluateOptions,
    ExportOptions,
    JudgeRunOptions,
    ReportOptions,
    RunOptions,
    ServeOptions,
)
from advisor.options.new_run import DoctorOptions, InitOptions, LabelOptions, ProfileOptions, SelectOptions
from advisor.options.option import Options
from ensemble.common.garbage import collect_seldom
from ensemble.errors import UniteError

COMMANDS: dict[str, type[Options]] = {
    "init": InitOptions,
    "doctor": DoctorOptions,
    "label": LabelOptions,
    "select": SelectOptions,
    "profile": ProfileOptions,
    "report": ReportOptions,
    "run": RunOptions,
    "serve": ServeOptions,
    "evaluate": EvaluateOptions,
    "check": CheckOptions,
    "judge": JudgeRunOptions,
    "compare": CompareOptions,
    "export": ExportOptions,
}
"""The options of each command, whose docstring is its help; ``advisor/commands`` has a file for each."""

_PACKAGE = Path(__file__).parent
# The wheel has the pages in the package; a checkout has them beside it.
_DOCS = next((page for page in (_PACKAGE / "docs", _PACKAGE.parent / "docs") if page.is_dir()), None)

app = typer.Typer(
    epilog=f"\b\nDocumentation: {_DOCS / 'index.md'}" if _DOCS else None,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(is_given: bool) -> None:
    if is_given:
        # The first line is what scripts read; the others are what a bug report needs.
        of_packages = sorted(versions().items(), key=lambda version: version[0] != "unite-advisor")
        print("\n".join(f"{name} {number}" for name, number in of_packages))
        raise typer.Exit


@app.callback()
def about(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; can also follow a command.")
    ] = False,
) -> None:
    """Find out which of your language models to ensemble, in which order, and whether it pays.

    A file, a folder or the URL of a server may take the place of a command: advisor alone shows how.
    """


for name, options in COMMANDS.items():
    app.command(name, cls=GroupedOptions, short_help=options.__doc__)(with_options(name, options))
for listing in (tasks, methods, schema):
    app.command(short_help=listing.__doc__)(listing)
app.command("lm-eval", short_help=lm_eval.__doc__, context_settings=PASSED_ON, add_help_option=False)(lm_eval)


def main() -> None:
    """Run the command. An error that the user can correct is one line and an exit status."""
    if "_ADVISOR_COMPLETE" in os.environ:
        # A shell asks for the words that can follow; typer answers it and exits.
        app(prog_name="advisor")
    words, debug = _without_debug(sys.argv[1:])
    _set_up(debug=debug)
    try:
        # Not the command's own main(), because that exits without a message at Ctrl-C and at a closed pipe.
        command: Any = typer.main.get_command(app)
        with command.make_context("advisor", _command_of(words, command.commands)) as parsed:
            command.invoke(parsed)
        # Here and not at exit, so that a closed pipe is handled below.
        sys.stdout.flush()
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        # An option that lacks its value has no context.
        named = [word for word in sys.argv[1:2] if word in command.commands]
        place = context.command_path if context is not None else " ".join(["advisor", *named])
        message = error.format_message().rstrip(".")
        _fail(f"{message}{' See' if message.endswith('?') else '; see'} {place} --help", 2)
    except UniteError as error:
        if debug:
            raise
        _fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        _fail(stopped(), 130)
    except BrokenPipeError:
        # The reader of the output, for example `head`, has closed it, which is no error. The interpreter still flushes
        # standard output at exit, so what is left goes to the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except Exception as error:
        if _is_from_ctrl_c(error):
            _fail(stopped(), 130)
        if debug:
            raise
        if isinstance(error, ModuleNotFoundError) and (line := _missing_extra(error)) is not None:
            _fail(line, 2)
        if (lack := _lack_of_machine(error)) is not None:
            # As for a closed pipe: what is left of the output could not be written at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            _fail(f"{lack} ({type(error).__name__}: {error})", 1)
        _fail(f"{type(error).__name__}: {error} (a bug in advisor; run it again with --debug to see where)", 1)


def _command_of(words: list[str], commands: Collection[str]) -> list[str]:
    """The words of a command: those that are given, or those that files stand for; it exits if all is printed."""
    first = words[0] if words else ""
    if first.startswith("-") or first in commands:
        return words
    from advisor.commands.look import SCREEN, is_looked_at, look

    if not words:
        print(SCREEN, end="")
    elif is_looked_at(first):
        words = look(words)
        # The run folder keeps the command, which is also in the message after Ctrl-C.
        sys.argv[1:] = words
    if not words:
        sys.stdout.flush()
        raise typer.Exit
    return words


def _without_debug(words: list[str]) -> tuple[list[str], bool]:
    """The command line without ``--debug``, which every command has, and whether it was there."""
    end = words.index("--") if "--" in words else len(words)
    return [word for n, word in enumerate(words) if word != "--debug" or n > end], "--debug" in words[:end]


def _set_up(*, debug: bool) -> None:
    collect_seldom()
    # Warnings of libraries and tracebacks of candidates are for developers, so only --debug shows them.
    if debug or not sys.warnoptions:
        import logging

        if debug:
            logging.basicConfig()
            logging.getLogger("advisor").setLevel(logging.DEBUG)
        else:
            warnings.simplefilter("ignore")
            logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # Closed ones; a file that is opened later must not take their place.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115  # until the end
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal's encoding lacks is shown as its number instead of raising an error.
            stream.reconfigure(errors="backslashreplace")


def stopped() -> str:
    """The message after Ctrl-C."""
    if PROFILING.isdisjoint(sys.argv[1:2]):
        return "stopped"
    return "stopped; complete responses are cached, and the same command continues from there"


def _missing_extra(error: ModuleNotFoundError) -> str | None:
    """The line for a command that needs an extra of the installation; None if no extra has the module."""
    from ensemble.common.extras import lacks

    return lacks((error.name or "").partition(".")[0], " ".join(["advisor", *sys.argv[1:2]]))


def _lack_of_machine(error: BaseException | None) -> str | None:
    """What this machine lacks, where that is the reason of an error, and the way out."""
    while error is not None:
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, MemoryError) or number == errno.ENOMEM or "allocate memory" in str(error):
            return "the memory is full; end other programs, or take smaller models or files"
        if number in (errno.ENOSPC, errno.EDQUOT):
            return "the disk is full, or standard output cannot be written; free some space"
        if number in (errno.EMFILE, errno.ENFILE):
            return "too many files are open; allow more, for example with: ulimit -n 4096"
        if number == errno.EAGAIN or "can't start new thread" in str(error):
            return "no more processes or threads can be started; end other programs, or allow more (ulimit -u)"
        if isinstance(error, ImportError) and (error.name or "").lstrip("_") in sys.stdlib_module_names:
            return f"this Python was built without {error.name}; take another one"
        error = error.__cause__
    return None


def _is_from_ctrl_c(error: BaseException | None) -> bool:
    # A library that Ctrl-C stops while it is imported may raise its own error from KeyboardInterrupt.
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _fail(message: str, status: int) -> None:
    from ensemble.common.text import visible

    # Messages quote files, models and servers: split() makes one line, visible() keeps escapes from the terminal.
    print(f"advisor: {visible(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(status)
