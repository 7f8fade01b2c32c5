"""How large the code base is and how it is divided: ``python -m benchmarks.structure``; ``--json`` prints one object.

It counts the three packages that users install, the tests, the benchmarks and the documentation. Nothing is run; the
files are read as text, so that ``--root`` may be any checkout, of any layout. Of the figures with a target, the second
column has it; no test holds the code to a size.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks._parameters import never_passed

PACKAGES = ("ensemble", "advisor", "reports")
ODD_PHRASES = re.compile(
    # "is none" in lower case only: Python's own "is None" is code.
    r"\b((?i:whoever|nobody|somebody|hire[sd]?|dismiss(?:es|ed)?|to be had|of (?:its|their) own)|is none|are none|"
    r"is no \w+ (?:here|there)|what is there)\b"
)
"""Phrases that readers with English as a second language stumble over; code and prose are searched."""

PASSED_FROM_OUTSIDE = ("advisor.cli.", "advisor.api.", "advisor.lm_eval.model.")
"""Modules whose functions are called by users, the command line or lm-eval."""
TARGETS = {
    "lines": 54_000,
    "lines_of_tests": 44_000,
    "lines_of_benchmarks": 9_000,
    "pages": 35,
    "words": 35_000,
    "arrows_of_advisor": 95,
    "repeated_class_names": 0,
    "parameters_that_no_code_passes": 0,
    "odd_phrases": 0,
}
"""At most so many."""


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """The name and file of each module of the packages, in order."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def public_classes(root: Path) -> dict[str, list[str]]:
    """The modules that define each public class, by the class's name."""
    found: dict[str, list[str]] = {}
    for name, path in modules(root):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    return found


def data_classes(root: Path) -> list[str]:
    """The data classes, each with its module."""
    return [
        f"{name}.{node.name}"
        for name, path in modules(root)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    ]


def imports(root: Path) -> dict[str, set[str]]:
    """The modules of the packages that each module imports, also inside of functions and for annotations only."""
    known = dict(modules(root))
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        found[name] = set()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
                targets = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= {target if target in known else node.module for target in targets}
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names if alias.name in known}
        found[name].discard(name)
    return found


def arrows(root: Path) -> set[tuple[str, str]]:
    """Which folder or file at the top of ``advisor`` imports which other one."""
    tops = {
        (*module.split(".")[:2], *target.split(".")[:2])
        for module, targets in imports(root).items()
        for target in targets
        if module.startswith("advisor.") and target.startswith("advisor.")
    }
    return {(here, there) for _, here, _, there in tops if here != there}


def needless_parameters(root: Path) -> list[str]:
    """Optional parameters that no product code passes, of functions that users do not call themselves."""
    public = {f"{package}.{name}" for package in PACKAGES for name in _public(root, package)}
    templates = "".join(path.read_text(encoding="utf-8") for path in sorted(root.glob("reports/templates/**/*.j2")))
    found = never_passed({name: tree(path) for name, path in modules(root)}, templates)
    return [
        each
        for each in found
        if not each.startswith(PASSED_FROM_OUTSIDE) and not any(_is_part(each, package) for package in public)
    ]


def _public(root: Path, package: str) -> list[str]:
    """The classes and functions of a package's ``__all__``."""
    for node in tree(root / package / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _is_part(function: str, public: str) -> bool:
    """Whether a function is one of the public ones, or a method of a public class."""
    package, name = public.split(".")
    return function.startswith(f"{package}.") and re.search(rf"\.{name}(\.[a-z]\w*)?\(", function) is not None


def odd_phrases(root: Path) -> list[str]:
    """The phrases that are hard to read, each with its file."""
    return [
        f"{path.relative_to(root)}: {match[0]}"
        for _, path in modules(root)
        for match in ODD_PHRASES.finditer(path.read_text(encoding="utf-8"))
    ]


def measure(root: Path) -> dict[str, int]:
    """The figures, by name."""
    texts = [path.read_text(encoding="utf-8") for _, path in modules(root)]
    pages = [path.read_text(encoding="utf-8") for path in sorted((root / "docs").rglob("*.md"))]
    repeated = {name for name, places in public_classes(root).items() if len(places) > 1 and name != "Options"}
    return {
        "files": len(texts),
        "lines": sum(text.count("\n") for text in texts),
        "lines_of_tests": _lines(root / "tests"),
        "lines_of_benchmarks": _lines(root / "benchmarks"),
        "pages": len(pages),
        "words": sum(len(page.split()) for page in pages),
        "data_classes": len(data_classes(root)),
        "repeated_class_names": len(repeated),
        "arrows_of_advisor": len(arrows(root)),
        "parameters_that_no_code_passes": len(needless_parameters(root)),
        "odd_phrases": len(odd_phrases(root)),
    }


def _lines(folder: Path) -> int:
    """The lines of Python in a folder."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in folder.rglob("*.py"))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Count files, lines, types and phrases.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="another checkout")
    parser.add_argument("--parameters", action="store_true", help="list the parameters that no product code passes")
    given = parser.parse_args()
    if given.parameters:
        print("\n".join(needless_parameters(given.root)))
        return
    figures = measure(given.root)
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        target = f"{TARGETS[name]:10,}" if name in TARGETS else ""
        print(f"{name:32} {value:10,} {target}".rstrip())


if __name__ == "__main__":
    main()
