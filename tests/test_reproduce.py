"""The page on the paper's tables: its numbers are the paper's, and its commands could run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import click
import pytest
import typer
from pages import blocks

from advisor.cli import app
from advisor.models.pool_file import read_pool
from advisor.tasks.load import find_task
from advisor.tasks.task_file import read_definition
from ensemble.methods import list_methods, option_fields

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PAGE = ROOT / "docs" / "how-to" / "reproduce.md"


# --- Commands that cannot run here ---


def calls_of(page: Path, folder: Path) -> list[list[str]]:
    """The arguments of each call of ``advisor`` in the page's blocks that are not run; the shell expands them."""
    recorder = folder / "bin" / "advisor"
    recorder.parent.mkdir()
    recorder.write_text('#!/bin/sh\nfor each; do printf "%s\\0" "$each"; done >> "$CALLS"; printf "\\n" >> "$CALLS"\n')
    recorder.chmod(0o755)
    for name in ("pip", "grep"):
        (recorder.parent / name).symlink_to("/bin/true")
    found = list(blocks(page.read_text(encoding="utf-8")))
    for block in found:
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.code, encoding="utf-8")
    # Nothing else is on the path, so that no other command of a page runs.
    env = {"PATH": str(recorder.parent), "CALLS": str(folder / "calls")}
    for block in found:
        if block.mark == "not run" and re.search(r"^ *(advisor|compare) ", block.code, re.MULTILINE):
            bash = ["/bin/bash", "-euo", "pipefail", "-c", block.code]
            subprocess.run(bash, cwd=folder, env=env, check=True, timeout=60)
    lines = (folder / "calls").read_text(encoding="utf-8").splitlines() if (folder / "calls").exists() else []
    return [line.split("\0")[:-1] for line in lines]


def parsed(call: list[str]) -> dict[str, object]:
    """The options of a call by parameter name; an unknown one is an error."""
    group = typer.main.get_command(app)
    if call[0].startswith("--"):  # of the command without a subcommand; parsing it would do what it says
        assert any(call[0] in option.opts for option in group.params)
        return {}
    name, command, rest = group.resolve_command(click.Context(group), call)  # type: ignore[attr-defined]  # a group
    return {**command.make_context(name, rest).params, "command": name}


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- not run" in page.read_text(encoding="utf-8")])
def test_commands_that_are_not_run_have_only_options_that_exist(page: Path, tmp_path: Path) -> None:
    for call in calls_of(page, tmp_path):
        parsed(call)


def test_the_commands_name_tasks_methods_settings_and_models_that_exist(tmp_path: Path) -> None:
    calls = [parsed(call) for call in calls_of(PAGE, tmp_path)]
    assert len(calls) > 50
    made: dict[object, set[str]] = {}
    for given in calls:
        path, variant = find_task(str(given["task"]))
        read_definition(path, variant)
        if given["command"] == "select":
            made[given["out"]] = {entry.name for entry in read_pool(str(tmp_path / str(given["pool"])))}
            continue
        # A run folder comes from a command before.
        assert set(str(given["members"]).split(",")) <= made[given["run"]]
        methods = str(given["methods"]).split(",")
        assert set(methods) <= list_methods().keys()
        for setting in given["settings"] or ():  # type: ignore[attr-defined]  # a list
            method, option = setting.partition("=")[0].split(".")
            assert method in methods
            assert option in {field.name for field in option_fields(method)}


def test_each_line_of_the_pools_has_a_revision(tmp_path: Path) -> None:
    calls_of(PAGE, tmp_path)
    entries = [entry for file in sorted(tmp_path.glob("table*.txt")) for entry in read_pool(str(file))]
    assert len(entries) == 10
    assert {json.dumps(getattr(entry.checkpoint, "revision", None)) for entry in entries} == {'"main"'}
