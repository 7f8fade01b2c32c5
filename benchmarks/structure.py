"""How large the code base is and how it is divided: ``python -m benchmarks.structure``; ``--json`` prints one object.

It counts the three packages that users install: their size, and how many homes a concept has. Nothing is run; the files
are read as text, so that ``--root`` may be any checkout, of any layout. Of the figures with a target, the second column
has it; no test holds the code to a size.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks._parameters import never_passed, parsed

PACKAGES = ("ensemble", "advisor", "reports")
ODD_PHRASES = re.compile(
    # "is none" in lower case only: Python's own "is None" is code.
    r"\b((?i:whoever|nobody|somebody|hire[sd]?|dismiss(?:es|ed)?|to be had|of (?:its|their) own)|is none|are none|"
    r"is no \w+ (?:here|there)|what is there)\b"
)
"""Phrases that readers with English as a second language stumble over; code and prose are searched."""

STRATEGIES = frozenset(
    {"vote", "weighted_vote", "learned_vote", "cascade", "router", "group_router", "group_cascade", "self_consistency"}
)
"""Strategies whose name is no other word; ``single`` counts where the code beside it says that a strategy is meant."""
CONCEPTS = {
    "a_run": ("Run", "read_result", "read_samples", "read_samples_jsonl"),
    "a_model": ("ModelSpec", "PoolEntry"),
    "the_names_of_strategies": ("ASKING",),
    "the_shape_of_a_file": ("Fields", "Keys"),
    "a_verdict": ("Verdict", "Held", "GateOutcome"),
}
"""Types and functions that state a concept, by the concept: the names of any version of the code."""
ESTIMATES = frozenset({"estimate", "points", "observed", "delta", "difference", "gain", "expected_gain", "gap"})
UNCERTAINTIES = re.compile(r"interval|error|deviation|(p|level)(_\w+)?|\w+_ci")
"""Fields that state a difference, and how uncertain it is."""
PASSED_FROM_OUTSIDE = (
    "advisor.commands.",
    "advisor.cli.",
    "advisor.api.",
    "advisor.demo.train.",
    "advisor.lm_eval.model.",
)
"""Modules whose functions are called by users, the command line or lm-eval."""
TARGETS = {
    "lines": 48_500,
    "repeated_class_names": 0,
    "isinstance_server_address": 10,
    "untyped_options": 0,
    "folders_that_dispatch_on_strategies": 1,
    **{f"homes_of_{concept}": 1 for concept in (*CONCEPTS, "a_difference")},
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


def homes_of_a_difference(root: Path) -> list[str]:
    """The data classes that state a difference and its uncertainty as numbers, each with its module.

    A class that has a field of another one's type states nothing itself. The shapes of files are left out.
    """
    return [
        f"{name}.{node.name}"
        for name, path in modules(root)
        if ".schema" not in name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and states_a_difference(node)
    ]


def states_a_difference(node: ast.ClassDef) -> bool:
    """Whether a class has an estimate and its uncertainty as fields."""
    numbers = [
        field.target.id
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and re.search(r"\b(float|Interval)\b", ast.unparse(field.annotation))
    ]
    return not ESTIMATES.isdisjoint(numbers) and any(UNCERTAINTIES.fullmatch(each) for each in numbers)


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


def server_checks(tree: ast.AST) -> int:
    """How often a model is asked whether it is a server's address."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and "ServerAddress" in ast.unparse(node.args[1])
        for node in ast.walk(tree)
    )


def untyped_options(tree: ast.AST) -> int:
    """How often an option is looked up by its name in a mapping: ``options["seed"]``, ``options.get("seed")``."""
    return sum(
        _is_options(node.value)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant | ast.Name)
        else isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and _is_options(node.func.value)
        for node in ast.walk(tree)
    )


def _is_options(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name == "options" or name.endswith("_options")


def dispatches_on_strategies(tree: ast.AST) -> bool:
    """Whether code decides by a strategy's name: a comparison, a ``case``, or a table with these names as keys."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            about = "strategy" in ast.unparse(node)
            names = _words([node.left, *node.comparators])
        elif isinstance(node, ast.MatchValue):
            about, names = False, _words([node.value])
        elif isinstance(node, ast.Dict):
            about, names = False, _words([key for key in node.keys if key is not None])
            if len(names & STRATEGIES) < 2:  # a record may have such a word as a key
                continue
        else:
            continue
        if names & STRATEGIES or (about and "single" in names):
            return True
    return False


def _words(nodes: Iterable[ast.AST]) -> set[str]:
    """The texts among some expressions, and in the lists that they write out."""
    parts = (node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node] for node in nodes)
    flat = (part for each in parts for part in each)
    return {node.value for node in flat if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def definitions(tree: ast.Module) -> Counter[str]:
    """The names that a module defines at its top: classes, functions, and constants without their underscore."""
    found: Counter[str] = Counter()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] += 1
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(target.id.lstrip("_") for target in targets if isinstance(target, ast.Name))
    return found


def needless_parameters(root: Path) -> list[str]:
    """Optional parameters that no product code passes, of functions that users do not call themselves."""
    public = {f"{package}.{name}" for package in PACKAGES for name in _public(root, package)}
    templates = "".join(path.read_text(encoding="utf-8") for path in sorted(root.glob("reports/templates/**/*.j2")))
    found = never_passed(parsed(dict(modules(root))), templates)
    return [
        each
        for each in found
        if not each.startswith(PASSED_FROM_OUTSIDE) and not any(_is_part(each, package) for package in public)
    ]


def _public(root: Path, package: str) -> list[str]:
    """The classes and functions of a package's ``__all__``."""
    for node in ast.parse((root / package / "__init__.py").read_text(encoding="utf-8")).body:
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


def measure(root: Path) -> dict[str, float]:
    """The figures, by name."""
    files = [path for _, path in modules(root)]
    texts = [path.read_text(encoding="utf-8") for path in files]
    trees = [ast.parse(text) for text in texts]
    lines = sum(text.count("\n") for text in texts)
    classes = len(data_classes(root))
    repeated = {name for name, places in public_classes(root).items() if len(places) > 1 and name != "Options"}
    dispatching = [path for path, tree in zip(files, trees, strict=True) if dispatches_on_strategies(tree)]
    defined = sum(map(definitions, trees), Counter())
    return {
        "files": len(files),
        "lines": lines,
        "lines_per_file": lines / len(files),
        "data_classes": classes,
        "data_classes_per_1000_lines": 1000 * classes / lines,
        "repeated_class_names": len(repeated),
        "isinstance": sum(text.count("isinstance(") for text in texts),
        "isinstance_server_address": sum(map(server_checks, trees)),
        "untyped_options": sum(map(untyped_options, trees)),
        "files_that_dispatch_on_strategies": len(dispatching),
        "folders_that_dispatch_on_strategies": len({path.parent for path in dispatching}),
        **{f"homes_of_{concept}": sum(defined[name] for name in names) for concept, names in CONCEPTS.items()},
        "homes_of_a_difference": len(homes_of_a_difference(root)),
        "parameters_that_no_code_passes": len(needless_parameters(root)),
        "odd_phrases": len(odd_phrases(root)),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Count files, lines, types and phrases of the packages.")
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
        print(f"{name:36} {value:10,.{1 if value % 1 else 0}f} {target}".rstrip())


if __name__ == "__main__":
    main()
