"""The base of all file schemas: strict values, clean strings, and one line for each wrong value."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from advisor.commands.lists import SCHEMAS, schema
from advisor.run.evaluation import EvaluatedMethod, EvaluatedModel
from advisor.run.result import CandidateFigures, EnsembleResult, MemberFigures, Result, StrategyFigures
from advisor.strategies.schema import StrategyFile
from ensemble.common.schema import (
    Count,
    Exact,
    Figure,
    Flag,
    Interval,
    Json,
    Line,
    Name,
    Names,
    Number,
    Positive,
    Prose,
    Schema,
    Share,
    SparseSchema,
    Texts,
    read_lines,
    validated,
    written,
)
from ensemble.errors import InputError

WAY_OUT = "write it again"


class Part(Schema):
    name: Name
    share: Share = 0.0


class Whole(Schema):
    line: Line = ""
    prose: Prose = ""
    exact: Exact = ""
    names: Names | None = None
    texts: Texts = ()
    flag: Flag = False
    number: Number = 0.0
    count: Count = 0
    positive: Positive = 1
    figure: Figure = None
    interval: Interval = None
    word: Literal["yes", "no"] = "yes"
    parts: tuple[Part, ...] = ()
    by_name: dict[Name, Part] = Field(default_factory=dict)
    anything: Json = None


class Given(SparseSchema):
    line: Line = ""
    part: Part | None = None


def read(values: Any, **options: Any) -> Whole:
    return validated(Whole, values, "f.json", WAY_OUT, **options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"line": 3}, "line should be a text"),
        ({"exact": "a\0"}, "exact should be a text"),
        ({"exact": "\ud800"}, "exact should be a text"),
        ({"names": []}, "names should be a list of different, printable names"),
        ({"names": ["a", "a"]}, "names should be a list of different, printable names"),
        ({"names": ["a", "\x1b"]}, "names[1] should be a printable name"),
        ({"names": "a"}, "names should be a list"),
        ({"flag": 1}, "flag should be true or false"),
        ({"number": True}, "number should be a number"),
        ({"number": "1"}, "number should be a number"),
        ({"number": float("nan")}, "number should be a finite number"),
        ({"number": 1e19}, "number should be at most 1e+18"),
        ({"number": 10**400}, "number should be a number"),
        ({"count": 1.0}, "count should be a whole number"),
        ({"count": -1}, "count should be at least 0"),
        ({"count": 10**4000}, "count should be at most 1e+18"),
        ({"positive": 0}, "positive should be at least 1"),
        ({"figure": "1"}, "figure should be a number"),
        ({"interval": [1]}, "interval"),
        ({"interval": [1, "2"]}, "interval[1] should be a number"),
        ({"word": "maybe"}, "word should be yes or no"),
        ({"parts": [{}]}, "parts[0].name is missing"),
        ({"parts": [3]}, "parts[0] should be an object"),
        ({"parts": [{"name": "a"}, {"name": "b", "share": 2}]}, "parts[1].share should be at most 1"),
        ({"by_name": {"a\u202e": {"name": "a"}}}, "by_name.a⟨U+202E⟩ should be a printable name"),
        ({"by_name": []}, "by_name should be an object"),
        ([], "it should be an object"),
    ],
)
def test_a_wrong_value_is_one_line_for_people(values: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(values)
    said = str(caught.value)
    assert said.startswith(f"f.json: {message}") and said.endswith(f"; {WAY_OUT}")
    assert "\n" not in said and "input" not in said.lower() and "valid" not in said and len(said) < 300


def test_strings_that_are_read_are_clean_and_built_ones_are_as_given() -> None:
    raw = "a\x1b\n\u202eb"
    values = {"line": raw, "prose": raw, "exact": raw, "texts": raw, "anything": {raw: [raw, 1e400, True]}}
    whole = read(values)
    assert whole.line == "a␛␊⟨U+202E⟩b"
    assert whole.prose == whole.texts[0] == "a␛\n⟨U+202E⟩b"
    assert whole.exact == raw
    assert whole.anything == {"a␛␊⟨U+202E⟩b": ["a␛\n⟨U+202E⟩b", None, True]}
    for built in (Whole(line=raw), read({"line": raw}, clean=False)):
        assert built.line == raw


def test_numbers_that_are_not_finite_are_unknown_where_a_figure_may_be() -> None:
    for number in (float("inf"), float("nan"), 1e19, -(10**400)):
        whole = read({"figure": number, "interval": [0, number]})
        assert (whole.figure, whole.interval) == (None, None)
    assert read({"interval": [None, 1]}).interval is None
    assert read({"interval": [0, 1]}).interval == (0, 1)


def test_unknown_keys_are_ignored_and_of_some_classes_only_given_keys_are_written() -> None:
    whole = read({"other": 1, "count": 3, "interval": None})
    assert written(whole) == {**written(Whole()), "count": 3}
    assert json.dumps(written(Given(part=Part(name="a")))) == '{"part": {"name": "a", "share": 0.0}}'


def test_lines_are_read_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"count": 1}\n\n{"line": "\xe2\x80\xa8\\r"}\n{"count": "x"}\n')
    lines = read_lines(Whole, path, WAY_OUT)
    assert next(lines).count == 1
    assert next(lines).line == "⟨U+2028⟩␍"
    with pytest.raises(InputError, match=r"f\.jsonl:4: count should be a whole number; write it again"):
        next(lines)
    path.write_bytes(b'\n{"a": "\xff"}')
    with pytest.raises(InputError, match=r"f\.jsonl:2: not UTF-8 text at byte 7 of the line"):
        list(read_lines(Whole, path, WAY_OUT))


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_file_has_a_json_schema_with_a_description_of_each_key(name: str) -> None:
    module, _, model = SCHEMAS[name].partition(":")
    found = getattr(import_module(module), model).model_json_schema()
    objects = [found, *found.get("$defs", {}).values()]
    keys = {key: value for each in objects for key, value in each.get("properties", {}).items()}
    assert found["type"] == "object" and keys
    if name not in ("ensemble", "task"):
        assert [key for key, value in keys.items() if not value.get("description")] == []


def test_the_schemas_of_a_run_and_of_a_strategy_list_the_own_keys_of_strategies() -> None:
    parts = Result.model_json_schema()["$defs"]
    for each in (parts["StrategyFigures"], parts["RecommendedStrategy"], StrategyFile.model_json_schema()):
        assert {"strategy", "members", "weights", "routes", "draws"} <= set(each["properties"])
        assert each["properties"]["routes"]["type"] == "object"


def test_advisor_schema_prints_it_and_refuses_another_name(capsys: pytest.CaptureFixture[str]) -> None:
    schema("samples")
    assert json.loads(capsys.readouterr().out)["title"] == "Sample"
    with pytest.raises(InputError, match="schema other: no schema has this name; give one of result"):
        schema("other")


def test_no_field_of_a_file_is_loose() -> None:
    """A bare type of Python would take true for 1 and a text for a number, and any type everything."""
    module = import_module("advisor.run.result")
    loose = {str, int, float, bool, object, Any}
    classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Schema)]
    wrong = [
        f"{each.__name__}.{name}"
        for each in classes
        for name, field in each.model_fields.items()
        if field.annotation in loose and not field.metadata
    ]
    assert len(classes) > 15 and wrong == []


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (CandidateFigures, "model"),
        (MemberFigures, "model"),
        (EnsembleResult, "method"),
        (StrategyFigures, "strategy"),
        (EvaluatedModel, "model"),
        (EvaluatedMethod, "method"),
    ],
)
def test_a_file_names_a_thing_before_its_figures(kind: type[Schema], first: str) -> None:
    assert next(iter(kind.model_fields)) == first
