"""How large the code base is and how it is divided: ``python -m benchmarks.structure``; ``--json`` prints one object.

It counts the three packages that users install. Nothing is run; the files are read as text. tests/test_architecture.py
holds the limits.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("ensemble", "advisor", "reports")
ODD_PHRASES = re.compile(
    # "is none" in lower case only: Python's own "is None" is code.
    r"\b((?i:whoever|nobody|somebody|hire[sd]?|dismiss(?:es|ed)?|to be had|of (?:its|their) own)|is none|are none|"
    r"is no \w+ (?:here|there)|what is there)\b"
)
"""Phrases that readers with English as a second language stumble over; code and prose are searched."""


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """The name and file of each module of the packages, in order."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def public_classes(root: Path) -> dict[str, list[str]]:
    """The modules that define each public class, by the class's name."""
    found: dict[str, list[str]] = {}
    for name, path in modules(root):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    return found


def data_classes(root: Path) -> list[str]:
    """The data classes, each with its module."""
    return [
        f"{name}.{node.name}"
        for name, path in modules(root)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    ]


def imports(root: Path) -> dict[str, set[str]]:
    """The modules of the packages that each module imports when it runs, also inside of functions.

    Imports for type annotations only (``if TYPE_CHECKING``) are left out.
    """
    known = dict(modules(root))
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        found[name] = set()
        for node in _running(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
                targets = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= {target if target in known else node.module for target in targets}
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names if alias.name in known}
        found[name].discard(name)
    return found


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _running(node)


def reasons(path: Path) -> int:
    """Lines with a comment that is not an instruction to a tool."""
    source = io.StringIO(path.read_text(encoding="utf-8"))
    comments = (token.string for token in tokenize.generate_tokens(source.readline) if token.type == tokenize.COMMENT)
    plain = (re.sub(r"#\s*(noqa|type: ignore)\S*[^#]*", "", comment) for comment in comments)
    return sum(bool(comment.strip(" #")) for comment in plain)


def measure(root: Path) -> dict[str, float]:
    """The figures, by name."""
    files = [path for _, path in modules(root)]
    texts = [path.read_text(encoding="utf-8") for path in files]
    lines = sum(text.count("\n") for text in texts)
    classes = len(data_classes(root))
    repeated = {name for name, places in public_classes(root).items() if len(places) > 1 and name != "Options"}
    folders = Counter(path.parent for path in files)
    return {
        "files": len(files),
        "lines": lines,
        "lines_per_file": lines / len(files),
        "data_classes": classes,
        "data_classes_per_1000_lines": 1000 * classes / lines,
        "repeated_class_names": len(repeated),
        "files_in_largest_folder": max(folders.values()),
        "comment_percent": 100 * sum(map(reasons, files)) / lines,
        "odd_phrases": sum(len(ODD_PHRASES.findall(text)) for text in texts),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Count files, lines, types and phrases of the packages.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="another checkout")
    given = parser.parse_args()
    figures = measure(given.root)
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:30} {value:10,.1f}")


if __name__ == "__main__":
    main()
