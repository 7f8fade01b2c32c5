"""Replace ``<!-- commands -->`` in ``reference/commands.md`` by the help of all commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import typer

from advisor.cli import app
from advisor.options.option import Panel

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Hook of mkdocs: change the text of a page before mkdocs converts it to HTML."""
    return markdown.replace(MARK, "\n".join(_lines())) if MARK in markdown else markdown


def _lines() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        # The help is wrapped for a terminal, so join its lines.
        yield from (f"## advisor {name}", "", " ".join((command.help or "").split()), "")
        panels: dict[str, list[str]] = {}
        for parameter in command.params:
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(_row(parameter))
        for panel in ("", *get_args(Panel)):
            if rows := panels.get(panel):
                yield from ([f"**{panel}**", ""] if panel else [])
                yield from ("| option | what it does | default |", "|---|---|---|", *rows, "")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        names = ", ".join(f"`{name}`" for name in parameter.opts)
    else:
        names = f"`{(parameter.metavar or parameter.name.upper()).strip('[]')}`"
    default = parameter.default
    # Click has several values for "no default": flags have False, and repeated options have () or [].
    shown = "" if default is None or default is False or default in ("", (), []) else f"`{default}`"
    # An unescaped | ends the cell of the table.
    text = (getattr(parameter, "help", None) or "").replace("|", r"\|")
    return f"| {names} | {text} | {'required' if parameter.required else shown} |"
