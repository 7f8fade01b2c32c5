"""The rules of the code base: who imports whom, how large a folder is, and that a class name means one thing."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from benchmarks.structure import PACKAGES, data_classes, imports, measure, modules, public_classes

ROOT = Path(__file__).resolve().parents[1]

# In each list a place may import those before it, and itself. A package may import the packages before it.
ORDER = {
    "ensemble": [
        "errors",
        "files",
        "limits",
        "plugins",
        "servers",
        "vocabulary",
        "runtime",
        "models",
        "step",
        "decode",
        "score",
        "methods",
        "distributed",
        "saved",
        "api",
        "",
    ],
    "reports": [
        "text",
        "read",
        "script_data",
        "charts",
        "sections",
        "page",
        "comparison",
        "formats",
        "run_difference",
        "run_index",
        "",
    ],
    "advisor": [
        "progress",
        "records",
        "statistics",
        "sandbox",
        "tables",
        "tasks",
        "draft",
        "response_cache",
        "servers",
        "pool",
        "logs",
        "config",
        "profile",
        "judge",
        "session",
        "planning",
        "compare",
        "choose",
        "verify",
        "output",
        "production",
        "pipeline",
        "evaluation",
        "check",
        "serving",
        "lm_eval",
        "demo",
        "commands",
        "cli",
        "api",
        "",
    ],
}
LARGE_FOLDERS = {"ensemble/methods", "reports/sections", "advisor/logs", "advisor/commands"}
"""A method, a section of the report, a format of logs and a command are one file each, so these folders may have 32
files; all others have 12."""
PLUG_INS = ("ensemble/methods/", "advisor/tasks/metrics/", "advisor/commands/", "reports/sections/", "advisor/logs/")
"""Where a file is one method, metric, command, section or format of logs, however small."""


@cache
def edges() -> dict[str, set[str]]:
    return imports(ROOT)


def place(module: str) -> tuple[int, int]:
    """Where a module stands: its package's number, and its folder's or file's number in the package."""
    package, _, rest = module.partition(".")
    return list(ORDER).index(package), ORDER[package].index(rest.partition(".")[0])


def test_every_folder_and_file_at_the_top_of_a_package_has_its_place() -> None:
    tops = {name.split(".")[0]: set() for name, _ in modules(ROOT)} | {}
    for name, _ in modules(ROOT):
        package, _, rest = name.partition(".")
        tops[package].add(rest.partition(".")[0])
    assert tops == {package: set(places) for package, places in ORDER.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_place_imports_only_places_before_it(package: str) -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in edges().items()
        if module.partition(".")[0] == package
        for target in sorted(targets)
        if place(target) > place(module)
    ]
    assert wrong == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    done: set[str] = set()

    def circle(module: str, path: tuple[str, ...]) -> tuple[str, ...]:
        if module in path:
            return (*path[path.index(module) :], module)
        if module in done:
            return ()
        found = next((way for target in sorted(edges()[module]) if (way := circle(target, (*path, module)))), ())
        done.add(module)
        return found

    assert [way for module in sorted(edges()) if (way := circle(module, ()))] == []


def test_a_folder_has_few_files() -> None:
    sizes = Counter(path.parent.relative_to(ROOT).as_posix() for _, path in modules(ROOT))
    assert {folder: n for folder, n in sizes.items() if n > (32 if folder in LARGE_FOLDERS else 12)} == {}


def test_a_public_class_name_is_used_once() -> None:
    repeated = {name: places for name, places in public_classes(ROOT).items() if len(places) > 1}
    repeated.pop("Options", None)  # each method has its own
    assert repeated == {}


def test_a_file_is_one_subject() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n") for _, path in modules(ROOT)
    }
    assert {name: lines for name, lines in lengths.items() if lines > 550} == {}
    small = {
        name: lines
        for name, lines in lengths.items()
        if lines < 40 and not name.endswith(("__init__.py", "errors.py", "files.py")) and not name.startswith(PLUG_INS)
    }
    assert small == {}


def test_there_are_few_data_classes() -> None:
    figures = measure(ROOT)
    assert figures["data_classes_per_1000_lines"] <= 4, data_classes(ROOT)


def test_reasons_stand_beside_the_lines() -> None:
    assert measure(ROOT)["comment_percent"] >= 4


def test_texts_avoid_phrases_that_are_hard_to_read() -> None:
    assert measure(ROOT)["odd_phrases"] == 0
