"""Hostile content in every field of all files: the page's markup stays the same, and nothing invisible is in it."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import os
import unicodedata
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from report_fixture import (
    make_evaluation,
    make_judges,
    make_result,
    make_samples,
    read,
    write_evaluation,
    write_json,
    write_samples,
    written,
)

from ensemble.common.text import visible
from ensemble.errors import InputError
from reports import write_report
from reports.charts.svg import plain_style
from reports.page import SECTIONS

SAMPLES = make_samples(dev=6, held_out=4)
RESULT = make_result()
EVALUATION = make_evaluation()
RESULT["judge"], EVALUATION["judge"] = make_judges()


FIXED = {"status", "verdict", "split", "finish_reason", "level", "shown", "mode", "set_by", "reason_code", "code"}
"""Fields whose values are words that the report acts upon; what they may be is checked when they are read."""

NASTY = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "</style><svg onload=alert(1)>",
    "<!--",
    "]]>",
    "\"' onfocus=alert(1) autofocus x='",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1}{0}$ $",
    "\\u003c\\",
    "\u2028\u2029\x00\x1b[31m\r\n\t",
    "\u202eevil\u2066\u200e\ufeff\u00ad",
    "\ud800",
    "\ufffe\uffff\U000e0041",
    "&lt;&#60;&amp",
]


class Structure(HTMLParser):
    """Tags with their attributes' names, in order; the scripts' and styles' text; everything else as text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        # Whether a name on a map finds room, and gets a line to its point, is a matter of its width.
        if tag not in ("path", "text"):
            self.tags.append(f"{tag} {' '.join(name for name, _ in attrs)}")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""
        if tag not in ("path", "text"):
            self.tags.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self.inside in self.raw:
            self.raw[self.inside].append(data)

    def handle_comment(self, _data: str) -> None:
        self.tags.append("comment")


def poisoned(value: Any, poison: Callable[[str], str], key: str = "") -> Any:
    """Return the value with the poison in every string of it, names of models among them."""
    if isinstance(value, str):
        return value if key in FIXED else poison(value)
    if isinstance(value, list):
        # The objects of a list have fixed keys, also where an object of the same name has names as keys.
        return [poisoned(item, poison, "" if isinstance(item, dict) else key) for item in value]
    if isinstance(value, dict):
        by_name = key in ("responses", "models", "files", "versions", "times", "groups")
        return {poison(name) if by_name else name: poisoned(item, poison, name) for name, item in value.items()}
    return value


def page_with(folder: Path, payload: str) -> str:
    def poison(text: str) -> str:
        return f"{text[:1]}{payload}{text[1:]}"

    write_samples(folder, [poisoned(sample, poison) for sample in SAMPLES])
    write_evaluation(folder, poisoned(EVALUATION, poison))
    return written(folder, poisoned(RESULT, poison))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def harmless(folder: Path) -> Structure:
    return Structure(page_with(folder, "harmless"))


def check(page: str, harmless: Structure) -> None:
    structure = Structure(page)
    assert structure.tags == harmless.tags
    assert structure.raw["style"] == harmless.raw["style"]
    data, script = structure.raw["script"]
    assert script == harmless.raw["script"][1]
    assert not set(data) & set("<>&\u2028\u2029")
    assert len(json.loads(data)["examples"]) == len(SAMPLES)
    unseen = {char for char in page if unicodedata.category(char) in ("Cc", "Cf", "Cs")} - set("\n\t\u200c\u200d")
    assert not unseen


@pytest.mark.parametrize("payload", NASTY)
def test_what_is_known_to_be_nasty_does_not_change_the_markup(folder: Path, harmless: Structure, payload: str) -> None:
    check(page_with(folder, payload), harmless)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.text(st.characters(), min_size=1, max_size=40))
@example(payload="".join(NASTY))
def test_no_payload_changes_the_markup(folder: Path, harmless: Structure, payload: str) -> None:
    check(page_with(folder, payload), harmless)


@given(text=st.text(st.characters()), keep_lines=st.booleans())
def test_visible_text_has_nothing_unseen_and_stays_as_it_is(text: str, keep_lines: bool) -> None:
    shown = visible(text, keep_lines=keep_lines)
    kept = set("\u200c\u200d\n\t") if keep_lines else set("\u200c\u200d")
    assert not {char for char in shown if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - kept
    assert visible(shown, keep_lines=keep_lines) == shown
    shown.encode("utf-8")


def test_what_is_no_number_has_no_column(tmp_path: Path) -> None:
    names = ("accuracy", "measured_gain", "p_adjusted", "calls_per_question")
    strategy = {"strategy": "vote", "members": ["a", "b", "c"], **dict.fromkeys(names, math.nan)}
    strategy |= {"accuracy_ci": [math.nan, math.inf], "measured_gain_ci": [None, 1]}
    advice = {
        **RESULT["advice"],
        "recommendation": {**strategy, "expected_gain": math.nan, "shown": "yes", "text": "x"},
    }
    page = written(tmp_path, {**RESULT, "strategies": [strategy], "advice": advice})
    table = page.partition('<table class="board sortable strategies">')[2].partition("</table>")[0]
    assert table.count('scope="col"') == 1 and "<td" not in table


def test_a_thousand_strategies_with_a_thousand_members_each_make_a_small_page(tmp_path: Path) -> None:
    members = [f"m{number}" for number in range(1000)]
    strategy = {**RESULT["strategies"][0], "strategy": "vote", "members": members}
    result = {**RESULT, "strategies": [strategy] * 1_000}
    page = written(tmp_path, result)
    assert len(page) < 1_000_000
    assert "The first 100 of 1,000" in page and "and 988 more" in page


@pytest.mark.parametrize("part", ["warnings", "looks", "sets", "groups"])
def test_no_list_is_shown_at_any_length(tmp_path: Path, part: str) -> None:
    result = json.loads(json.dumps(RESULT))
    row = next(row for row in result["strategies"] if row["groups"])
    result["advice"]["recommendation"] |= {key: row[key] for key in ("strategy", "members")}
    result["advice"]["warnings"] = ["a warning"]
    owner = {"warnings": result["advice"], "looks": result, "sets": result["prediction"], "groups": row}[part]
    owner[part] = owner[part][:1] * 20_000
    assert len(written(tmp_path, result)) < 1_000_000


def test_controls_and_bidi_marks_are_spelt_out() -> None:
    assert visible("a\x1b[2J\u202eb\x7f\ud800") == "a␛[2J⟨U+202E⟩b␡⟨U+D800⟩"
    assert visible("a\r\nb\tc", keep_lines=True) == "a\nb\tc"
    assert visible("नमस्ते क्\u200dष 👩\u200d🚀") == "नमस्ते क्\u200dष 👩\u200d🚀"


def numbers_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all numbers."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else list(enumerate(value))[:2]
        return [path for key, child in items for path in numbers_in(child, (*at, key))]
    return [at] if isinstance(value, int | float) and not isinstance(value, bool) and at[-1] != "schema_version" else []


def with_all_numbers(value: Any, number: float) -> Any:
    if isinstance(value, dict):
        return {
            key: child if key == "schema_version" else with_all_numbers(child, number) for key, child in value.items()
        }
    if isinstance(value, list):
        return [with_all_numbers(child, number) for child in value]
    return number if isinstance(value, int | float) and not isinstance(value, bool) else value


@pytest.mark.parametrize("number", [1e308, -1e308, 1e18, -1e18, 5e-324, 0, -1, 10**400])
def test_no_size_of_number_is_more_than_a_report_can_draw(tmp_path: Path, number: float) -> None:
    """Every number of all three files at once."""
    write_samples(tmp_path, [with_all_numbers(sample, number) for sample in SAMPLES])
    write_evaluation(tmp_path, with_all_numbers(EVALUATION, number))
    write_json(tmp_path, with_all_numbers(RESULT, number))
    with contextlib.suppress(InputError):
        write_report(tmp_path)


@pytest.mark.slow
def test_no_single_number_is_more_than_the_sections_can_show(tmp_path: Path) -> None:
    # Each takes a tenth of a second, so a part of the fields is tested; `make fuzz` goes on with the others.
    for path, number in zip(numbers_in(RESULT)[::18], itertools.cycle((1e308, 1e17, -1e308, 5e-324, 0)), strict=False):
        changed = copy.deepcopy(RESULT)
        at: Any = changed
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = number
        with contextlib.suppress(InputError), plain_style():
            report = read(write_json(tmp_path, changed))
            for _, _, values in SECTIONS:
                values(report)


@pytest.mark.parametrize("name", ["samples.jsonl", "evaluation.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    write_json(tmp_path, RESULT)
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=f"{name}: it is a pipe or a device"):
        read(tmp_path)


@pytest.mark.parametrize("place", ["name", "notes", "stop"])
def test_a_text_that_is_nested_as_deeply_as_can_be_read_is_refused_or_shown(tmp_path: Path, place: str) -> None:
    content = json.dumps({**RESULT, "task": {**RESULT["task"], place: "DEEP"}})
    for depth in (100, 500, 900, 960, 980):
        deep = content.replace('"DEEP"', "[" * depth + "1" + "]" * depth)
        (tmp_path / "result.json").write_text(deep, encoding="utf-8")
        with contextlib.suppress(InputError):
            read(tmp_path)
