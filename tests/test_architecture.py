"""The rules of the code base: who imports whom, that the map is true, and that a class name means one thing."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.structure import PACKAGES, imports, modules, needless_parameters, odd_phrases, public_classes

ROOT = Path(__file__).resolve().parents[1]
MAP = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## The map\n")[2].partition("\n## ")[0]

# One list for the three packages: a floor may import those before it, and itself.
ORDER = [
    "ensemble.errors",
    "ensemble.common",
    "ensemble.plugins",
    "ensemble.servers",
    "ensemble.vocabulary",
    "ensemble.runtime",
    "ensemble.models",
    "ensemble.step",
    "ensemble.decode",
    "ensemble.score",
    "ensemble.methods",
    "ensemble.reading",
    "ensemble.saved",
    "ensemble.api",
    "ensemble",
    # ground
    "advisor.progress",
    "advisor.records",
    "advisor.statistics",
    "advisor.options",
    "advisor.sandbox",
    # material, whose questions become answers
    "advisor.tasks",
    "advisor.strategies",
    "advisor.models",
    "advisor.run",
    "advisor.logs",
    "advisor.judge",
    # advice
    "advisor.advice",
    # what people see
    "reports.charts",
    "reports.report_data",
    "reports.tables",
    "reports.terminal",
    "reports.sections",
    "reports.page",
    "reports.formats",
    "reports.run_index",
    "reports",
    # jobs and doors
    "advisor.jobs",
    "advisor.serving",
    "advisor.lm_eval",
    "advisor.demo",
    "advisor.commands",
    "advisor.cli",
    "advisor.__main__",
    "advisor.api",
    "advisor",
]


@cache
def edges() -> dict[str, set[str]]:
    return imports(ROOT)


def top(module: str) -> str:
    """The folder or file at the top of a package that a module belongs to."""
    return ".".join(module.split(".")[:2])


def floor(module: str) -> int:
    """The number of the floor that a module stands on."""
    return ORDER.index(top(module))


def test_every_folder_and_file_at_the_top_of_a_package_has_its_floor() -> None:
    assert {top(name) for name, _ in modules(ROOT)} == set(ORDER)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_floor_imports_only_floors_before_it(package: str) -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in edges().items()
        if module.partition(".")[0] == package
        for target in sorted(targets)
        if floor(target) > floor(module)
    ]
    assert wrong == []


def named(package: str) -> list[str]:
    """What the package's table of the map names, in order, without the ends of the names."""
    table = MAP.partition(f"\n**`{package}/`**")[2].partition("\n**`")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def at_the_top(package: str) -> set[str]:
    """The folders and modules of a package as the map writes them; the package itself is no entry."""
    paths = [path for path in (ROOT / package).iterdir() if not path.name.startswith(("_", "."))]
    folders = {f"{path.name}/" for path in paths if path.is_dir() and _has_files(path)}
    return folders | {path.name for path in paths if path.suffix == ".py"}


def _has_files(folder: Path) -> bool:
    """A folder that was moved may have left its compiled files."""
    return any(path.is_file() and "__pycache__" not in path.parts for path in folder.rglob("*"))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_names_every_folder_and_file_at_the_top_of_a_package(package: str) -> None:
    assert sorted(named(package)) == sorted(at_the_top(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_is_in_the_order_of_the_floors(package: str) -> None:
    modules_named = [f"{package}.{name.removesuffix('/').removesuffix('.py')}" for name in named(package)]
    floors = [name for name in modules_named if name in ORDER]  # folders of other files have none
    assert floors == sorted(floors, key=ORDER.index)


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


def test_a_public_class_name_is_used_once() -> None:
    repeated = {name: places for name, places in public_classes(ROOT).items() if len(places) > 1}
    repeated.pop("Options", None)  # each method has its own
    assert repeated == {}


def test_product_code_passes_each_optional_parameter_somewhere() -> None:
    assert needless_parameters(ROOT) == []


def test_texts_avoid_phrases_that_are_hard_to_read() -> None:
    assert odd_phrases(ROOT) == []
