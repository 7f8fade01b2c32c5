"""Small defects in code: one line of Python with another comparison, number, result, or without a call."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "ceil": "floor", "floor": "ceil"}
_WITHOUT_EFFECT = {"dataclass", "Literal", "TypeVar", "NewType", "cast", "overload"}


@dataclass(frozen=True, slots=True)
class Change:
    """A defect in one line.

    Attributes:
        path: The file, relative to the checkout.
        line: Its line, from 1.
        start: Where the changed part begins, in bytes from the line's start.
        end: Where it ends.
        text: What stands there instead.
        kind: What was done, in a word or two.
        in_function: Whether the line runs when a function is called, not when the module is imported.
    """

    path: str
    line: int
    start: int
    end: int
    text: str
    kind: str
    in_function: bool

    def apply(self, source: str) -> str:
        """The source with the defect."""
        lines = source.splitlines(keepends=True)
        old = lines[self.line - 1].encode()
        lines[self.line - 1] = (old[: self.start] + self.text.encode() + old[self.end :]).decode()
        return "".join(lines)

    def describe(self, source: str) -> str:
        """The line before and after."""
        before, after = (text.splitlines()[self.line - 1].strip() for text in (source, self.apply(source)))
        return f"{self.path}:{self.line} {self.kind}: {before} -> {after}"


def changes(path: str, source: str) -> list[Change]:
    """Every defect that can be put into a file."""
    found = []
    for node, in_function in _nodes(ast.parse(source), False):
        if getattr(node, "lineno", None) is None or node.lineno != node.end_lineno:  # type: ignore[attr-defined]
            continue
        for text, kind in _instead(node):
            place = (node.lineno, node.col_offset, node.end_col_offset)  # type: ignore[attr-defined]
            found.append(Change(path, *place, text, kind, in_function))
    return found


def chosen(root: Path, packages: tuple[str, ...], number: int, seed: int) -> list[Change]:
    """Changes from all folders of a checkout in turn, each from a line of its own."""
    chance = random.Random(seed)
    folders: dict[Path, list[Path]] = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            folders.setdefault(path.parent, []).append(path)
    order = sorted(folders)
    chance.shuffle(order)
    found: list[Change] = []
    seen: set[tuple[str, int]] = set()
    possible = {folder: _of(root, folders[folder]) for folder in order}
    while len(found) < number and any(possible.values()):
        for folder in order:
            candidates = possible[folder] = [each for each in possible[folder] if (each.path, each.line) not in seen]
            if candidates and len(found) < number:
                # First a line, so that one with many numbers in it is not the likeliest.
                line = chance.choice(sorted({(each.path, each.line) for each in candidates}))
                seen.add(line)
                change = chance.choice([each for each in candidates if (each.path, each.line) == line])
                if _is_python(change.apply((root / change.path).read_text(encoding="utf-8"))):
                    found.append(change)
    return found


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _of(root: Path, paths: list[Path]) -> list[Change]:
    return [
        change
        for path in paths
        for change in changes(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    ]


def _nodes(node: ast.AST, in_function: bool) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes that run: no annotation, no decorator, nothing that is only for type checkers or scripts."""
    if isinstance(node, ast.If) and ("TYPE_CHECKING" in (test := ast.unparse(node.test)) or "__main__" in test):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _WITHOUT_EFFECT:
        return
    # Before Python 3.12 the parts of an f-string have other places. strict=True is for mistakes of the programmer.
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return
    yield node, in_function
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        inside = in_function or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name == "body")
        inside = inside or isinstance(node, ast.Lambda)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, inside)


def _instead(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What may stand in a node's place, and what was done."""
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "return None", "returns None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield "pass", "call left out"
    elif isinstance(node, ast.Constant):
        yield from _other_constant(node.value)
    elif isinstance(node, ast.expr):
        yield from _other_expression(node)


def _other_constant(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool):
        yield str(not value), "constant"
    elif isinstance(value, int):
        yield str(value + 1), "off by one"
    elif isinstance(value, float):
        yield repr(value * 2 + 1), "constant"


def _other_expression(node: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _COMPARISONS[type(node.ops[0])]()
        yield f"({ast.unparse(ast.Compare(node.left, [other], node.comparators))})", "comparison"
    elif isinstance(node, ast.BoolOp):
        swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"({ast.unparse(ast.BoolOp(swapped, node.values))})", "and/or"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})", "not left out"
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if not any(isinstance(each, ast.Constant | ast.JoinedStr) and not _is_number(each) for each in ast.walk(node)):
            yield f"({ast.unparse(ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right))})", "operator"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        if node.func.id == "sorted" and (len(node.args) > 1 or node.keywords):
            return  # list takes neither key nor reverse
        yield _CALLS[node.func.id] + ast.unparse(node).removeprefix(node.func.id), "other call"


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)
