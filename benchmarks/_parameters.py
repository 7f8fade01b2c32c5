"""Optional parameters of product functions that no product code passes: nobody but tests and benchmarks needs them.

Calls are matched by the function's name alone, so that two functions of one name are taken for one: what is found is
almost certainly so, and some may be missed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Calls:
    """The calls of one name: the keywords that are given, and the largest number of positional arguments."""

    keywords: set[str] = field(default_factory=set)
    positional: int = 0
    any_keyword: bool = False

    def pass_on(self, parameter: str, place: int | None) -> bool:
        """Whether a parameter is given; its place is None for one by keyword alone."""
        return self.any_keyword or parameter in self.keywords or (place is not None and place < self.positional)


def never_passed(trees: Mapping[str, ast.Module], templates: str) -> list[str]:
    """The parameters, each as ``module.function(parameter)``.

    Args:
        trees: The modules of the product by name.
        templates: The text of its templates, whose filters are functions.
    """
    calls: dict[str, _Calls] = defaultdict(_Calls)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                _note(node, calls)
            for child in ast.iter_child_nodes(node):
                # A function that is handed on may get any arguments.
                is_called = isinstance(node, ast.Call) and child is node.func
                if isinstance(child, ast.Name | ast.Attribute) and not is_called:
                    calls[_name(child)].any_keyword |= isinstance(child.ctx, ast.Load)
    for name in re.findall(r"\|\s*(\w+)\(", templates):
        calls[name].any_keyword = True
    return [
        f"{module}.{name}({parameter})"
        for module, tree in trees.items()
        for name, function, is_method in _functions(tree, "")
        for parameter, place in _optional(function, is_method)
        if not calls[_called(name)].pass_on(parameter, place)
    ]


def _called(name: str) -> str:
    """The name by which a function is called: a class is called by its own."""
    return name.removesuffix(".__init__").rpartition(".")[2]


def _note(call: ast.Call, calls: dict[str, _Calls]) -> None:
    found = calls[_name(call.func)]
    is_open = any(isinstance(each, ast.Starred) for each in call.args)
    found.positional = max(found.positional, 1_000 if is_open else len(call.args))
    found.keywords.update(each.arg for each in call.keywords if each.arg is not None)
    found.any_keyword |= any(each.arg is None for each in call.keywords)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _functions(node: ast.AST, outer: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Functions and methods with their qualified names; whether the first parameter is the object."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{outer}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.name.startswith("__") or child.name == "__init__":
                is_static = any("staticmethod" in ast.unparse(each) for each in child.decorator_list)
                yield f"{outer}{child.name}", child, isinstance(node, ast.ClassDef) and not is_static
            yield from _functions(child, "")
        else:
            yield from _functions(child, outer)


def _optional(function: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool) -> Iterator[tuple[str, int | None]]:
    """The parameters with a default, each with its place among the positional ones."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][is_method:]
    first = len(names) - len(function.args.defaults)
    yield from ((name, first + place) for place, name in enumerate(names[first:]))
    for each, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None:
            yield each.arg, None
