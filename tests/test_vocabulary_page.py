"""The page that names each concept once, against the keys of files, the options, and the names of classes."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from pydantic import BaseModel

import advisor.options
import advisor.run
from advisor.options.option import Options, options_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "vocabulary.md"
FAMILIES = re.compile(
    r"(.+_)?(gain|accuracy|difference|confidence|verdict|shown|gap|length_ratio|close_call)|p_\w+|.*single.*"
)
"""Keys and options that stand for a concept of the page."""
OTHERS = {"dev_accuracy", "gain", "gain_ci", "vote_gap", "min_gain", "p_value"}
"""Figures of these families that belong to one section of one file, or limit a concept that the page has."""


@cache
def keys() -> dict[str, str]:
    """The keys of the files of a run, and the class that states each."""
    found = {}
    for module in iter_modules(advisor.run.__path__, "advisor.run."):
        for name, value in vars(import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, BaseModel):
                found |= dict.fromkeys(value.model_fields, name)
    return found


@cache
def options() -> dict[str, str]:
    """The options of all commands, and the class that states each."""
    found = {}
    for module in iter_modules(advisor.options.__path__, "advisor.options."):
        for name, value in vars(import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, Options) and value is not Options:
                found |= dict.fromkeys(options_of(value), name)
    return found


def rows() -> list[list[str]]:
    """The cells of the page's tables, without the headings."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [cells for line in lines if (cells := [cell.strip() for cell in line[1:-1].split("|")])[0] != "term"]


def words() -> set[str]:
    """The keys and options that the page has."""
    return {word for _, _, names in rows() for word in re.findall(r"`([^`]+)`", names)}


def test_every_key_and_option_of_the_page_is_one() -> None:
    assert words() - {*keys(), *options()} == set()


def test_every_key_and_option_that_is_a_concept_is_on_the_page() -> None:
    named = {name.removesuffix("_ci") for name in words()}
    concepts = {name for name in {*keys(), *options()} - OTHERS if FAMILIES.fullmatch(name.removesuffix("_ci"))}
    assert {name for name in concepts if name.removesuffix("_ci") not in named} == set()


READS = {"startswith", "endswith", "removeprefix", "removesuffix", "replace", "partition", "rpartition", "find"}
FOR_PEOPLE = {"reason", "sentence", "certainty", "verdict_headline"}
OF_LIBRARIES = {
    *(("advisor/tasks/data_files.py", "str(error)"), ("advisor/tasks/templates.py", "str(error)")),
    *(("advisor/models/response_cache.py", "str(error)"), ("ensemble/models/model_files.py", "str(error)")),
    *(("advisor/cli.py", "str(error)"), ("advisor/tasks/draft/data.py", "str(error)")),
    ("advisor/tasks/draft/task_text.py", "str(error)"),  # puts the name of the file in place of that of its draft
    ("advisor/run/figures.py", "str(error)"),  # removes the place and the way out, which another error adds
}
"""Messages of other packages, which have no code, and names of files."""


def test_no_program_reads_a_sentence_that_was_written_for_people() -> None:
    found = []
    for package in ("advisor", "ensemble", "reports"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                read: list[ast.expr] = []
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS:
                    read = [node.func.value]
                elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                    read = [node.comparators[0]]
                for each in map(ast.unparse, read):
                    name = each.rpartition(".")[2]
                    if name in FOR_PEOPLE or re.fullmatch(r"str\((error|failure|reply)\)", each):
                        found.append((str(path.relative_to(ROOT)), each))
    assert set(found) - OF_LIBRARIES == set()
