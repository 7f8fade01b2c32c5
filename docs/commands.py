"""Writes the commands' own help into ``reference/commands.md``, where that says ``<!-- commands -->``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from advisor.cli import app

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The hook of mkdocs: a page's text before it is turned into HTML."""
    return markdown.replace(MARK, "\n".join(_lines())) if MARK in markdown else markdown


def _lines() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        yield from (f"## advisor {name}", "", _help(command), "")
        rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        if rows:
            yield from ("| option | what it does | without |", "|---|---|---|", *rows, "")


def _help(command: Any) -> str:
    return " ".join((command.help or "").split())


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        names = ", ".join(f"`{name}`" for name in parameter.opts)
    else:
        names = f"`{(parameter.metavar or parameter.name.upper()).strip('[]')}`"
    left_out = "needed" if parameter.required else _value(parameter.default)
    text = getattr(parameter, "help", None) or ""
    return f"| {names} | {text.replace('|', chr(92) + '|')} | {left_out} |"


def _value(default: object) -> str:
    return "" if default is None or default is False or default in ("", (), []) else f"`{default}`"
