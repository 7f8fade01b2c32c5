"""Lines that tell which test reaches them: marks that benchmarks/mutations.py puts into a copy of the code.

A mark is a call that costs a microsecond. Unlike a tracer it slows nothing, works in several processes, and tells of
child processes, too: they inherit the name of the test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

MODULE = "sitecustomize.py"
"""The name of the file with :func:`code`: Python runs it at its start, if it is in a folder of the search path. An
isolated process does not; there a mark does nothing."""
_CODE = '''
import builtins
import os

_known = set()


def at(place):
    """Write down that the present test is here, once in each process. False, so that `at(...) or x` is x."""
    test = os.environ.get("REACHED_BY") or os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (place, test) not in _known:
        _known.add((place, test))
        try:
            with open({log!r}, "a", encoding="utf-8") as log:
                log.write(f"{{place}}\\t{{test}}\\n")
        except OSError:  # a process that may write no file
            pass
    return False


builtins.reached = at
'''


def code(log: Path) -> str:
    """The module that the marks call. `log` is the file that it writes to."""
    return _CODE.format(log=str(log))


def marked(source: str, path: str, lines: Iterable[int]) -> str:
    """A file with marks.

    Args:
        source: The file's text.
        path: Its path, which is the mark of all its functions.
        lines: Lines in functions, from 1, that have marks of their own: ``PATH:LINE``.
    """
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    marks: dict[ast.stmt, list[str]] = {}
    for function in functions:
        body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
        if body:
            marks.setdefault(body[0], []).append(path)
    for line in lines:
        marks.setdefault(_innermost(functions, line), []).append(f"{path}:{line}")
    text = [line.encode() for line in source.splitlines(keepends=True)]
    # From the end, so that the places before a mark stay what they are.
    for statement in sorted(marks, key=lambda each: (each.lineno, each.col_offset), reverse=True):
        calls = (f"getattr(__import__('builtins'), 'reached', lambda _: False)({mark!r})" for mark in marks[statement])
        _mark(text, statement, " or ".join(calls))
    return b"".join(text).decode()


def _innermost(functions: list[ast.FunctionDef | ast.AsyncFunctionDef], line: int) -> ast.stmt:
    """The smallest statement of a function that has the line."""
    found = [
        node
        for function in functions
        for each in function.body
        for node in ast.walk(each)
        if isinstance(node, ast.stmt) and _first_line(node) <= line <= (node.end_lineno or node.lineno)
    ]
    return min(found, key=lambda node: (node.end_lineno or node.lineno) - _first_line(node))


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _mark(text: list[bytes], node: ast.stmt, call: str) -> None:
    """Put a call before a statement."""
    row = _first_line(node) - 1
    before = text[row][: node.col_offset]
    if isinstance(node, ast.If) and text[row][node.col_offset :].startswith(b"elif"):
        # Nothing may stand before an `elif`, so its test makes the call.
        end, last = node.test.end_col_offset or 0, (node.test.end_lineno or 0) - 1
        text[last] = text[last][:end] + b")" + text[last][end:]
        first, start = node.test.lineno - 1, node.test.col_offset
        text[first] = text[first][:start] + f"{call} or (".encode() + text[first][start:]
    elif before.strip():
        # Behind another statement on its line, which is then simple.
        text[row] = before + f"{call}; ".encode() + text[row][node.col_offset :]
    else:
        text[row] = before + f"{call}\n".encode() + text[row]
