"""What `benchmarks/structure.py` counts, on a small package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks._parameters import never_passed
from benchmarks.structure import (
    PACKAGES,
    TARGETS,
    definitions,
    dispatches_on_strategies,
    measure,
    server_checks,
    states_a_difference,
    untyped_options,
)


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


@pytest.mark.parametrize(
    ("code", "dispatches"),
    [
        ("name == 'cascade'", True),
        ("name in ('vote', 'other')", True),
        ("match name:\n    case 'router': ...", True),
        ("x = {'vote': 1, 'cascade': 2}", True),
        ("strategy.name == 'single'", True),
        ("mode == 'single'", False),
        ("x = {'vote': 1}", False),
        ("x = {'vote': 1, 'oracle': 2}", False),
        ("x = 'cascade'", False),
    ],
)
def test_code_that_decides_by_a_strategys_name_is_told_from_other_code(code: str, dispatches: bool) -> None:
    assert dispatches_on_strategies(ast.parse(code)) == dispatches


def test_checks_of_servers_and_options_by_name_are_counted() -> None:
    code = "isinstance(a, ServerAddress)\nisinstance(b, int | ServerAddress)\nisinstance(c, int)\n"
    assert server_checks(ast.parse(code)) == 2
    code = "options['a']\nself.options.get('b')\nmethod_options[name]\noptions.a\nother['a']\n"
    assert untyped_options(ast.parse(code)) == 3


def test_definitions_are_at_the_top_of_a_module_whatever_their_form() -> None:
    code = "class Run: ...\ndef read(): ...\n_ASKING = 1\nVerdict: str = 'a'\ndef g():\n    class Inner: ...\n"
    assert set(definitions(ast.parse(code))) == {"Run", "read", "ASKING", "Verdict", "g"}


def test_every_target_is_of_a_figure(tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text('"""Nothing."""\n', encoding="utf-8")
    found = measure(tmp_path)
    assert TARGETS.keys() <= found.keys()
    assert found["lines"] == 3


@pytest.mark.parametrize(
    ("fields", "states"),
    [
        ("estimate: float; interval: Interval", True),
        ("gain: float; gain_ci: Interval", True),
        ("points: float; p_value: float | None", True),
        ("difference: Difference; interval: Interval", False),
        ("accuracy: float; accuracy_ci: Interval", False),
        ("gain: float; calls: float", False),
    ],
)
def test_a_class_states_a_difference_by_an_estimate_and_its_uncertainty(fields: str, states: bool) -> None:
    (node,) = ast.parse(f"class A: {fields}").body
    assert isinstance(node, ast.ClassDef)
    assert states_a_difference(node) == states
