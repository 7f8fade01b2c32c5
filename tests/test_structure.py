"""What `benchmarks/structure.py` counts, on a small package."""

from __future__ import annotations

import ast

import pytest

from benchmarks._parameters import never_passed


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def f(a=1): ...\nf()", ["m.f(a)"]),
        ("def f(a=1): ...\nf(2)", []),
        ("def f(*, a=1): ...\nf(a=2)", []),
        ("def f(*, a=1, b=2): ...\nf(a=2)", ["m.f(b)"]),
        ("def f(a, b=1): ...\nf(1)", ["m.f(b)"]),
        ("def f(a=1): ...\nf(**x)", []),
        ("def f(a=1): ...\nf(*x)", []),
        ("def f(a=1): ...\ncall(f)", []),
        ("class A:\n    def __init__(self, a=1): ...\nA()", ["m.A.__init__(a)"]),
        ("class A:\n    def f(self, a=1): ...\nx.f(3)", []),
        ("class A:\n    @staticmethod\n    def f(a, b=1): ...\nA.f(3)", ["m.A.f(b)"]),
    ],
)
def test_a_parameter_is_needless_if_no_call_gives_it(code: str, found: list[str]) -> None:
    assert never_passed({"m": ast.parse(code)}, "") == found


def test_a_filter_of_a_template_is_a_call() -> None:
    assert never_passed({"m": ast.parse("def f(a, b=1): ...\nf(1)")}, "{{ x | f(2) }}") == []
