"""The drawings: valid markup without styles, names that do not collide, a region where the rules put it."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_fixture import make_evaluation, make_result, make_samples, write_evaluation, write_json, write_run

from advisor.runs.run import Run
from advisor.runs.schema.result import Result
from reports.charts.canvas import Canvas, plain_style
from reports.charts.labels import Box, place, text_width
from reports.charts.rows import NARROW, WIDE
from reports.charts.scales import Scale, length_scale, points_scale
from reports.page import section_values
from reports.report_data import ReportData, report_data


def read(folder: Path) -> ReportData:
    return report_data(Run.open(folder))


Figures = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return Run.open(write_run(tmp_path_factory.mktemp("figures"))).result


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    folder = write_run(tmp_path_factory.mktemp("figures"))
    write_evaluation(folder, make_evaluation(make_result(make_samples())))
    return section_values(read(folder))


def every(figures: Figures) -> list[str]:
    both = [svg for name in ("map", "ensemble", "lengths", "methods") for svg in figures[name]["figure"].values()]
    return [*both, *(svg for _, svg in figures["pairs"]["matrices"]), figures["verdict"]["figure"]]


def test_everything_is_drawn(figures: Figures) -> None:
    assert len(every(figures)) == 4 * 2 + 10 + 1


def test_drawings_are_xml_with_the_themes_colours_and_no_style_or_id(figures: Figures) -> None:
    for svg in every(figures):
        root = ElementTree.fromstring(svg)
        for element in root.iter():
            assert element.tag in {"svg", "g", "path", "text", "title"}
            assert not {"style", "id", "class", "transform"} & set(element.attrib)
            colours = {element.get(name) for name in ("fill", "stroke")} - {None, "none"}
            assert all(re.fullmatch(r"var\(--[a-z0-9-]+\)", str(colour)) for colour in colours)


def test_every_colour_is_one_of_the_style_sheets(figures: Figures) -> None:
    folder = Path(__file__).parent.parent / "reports" / "templates"
    styles = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.css"))
    used = {name for svg in every(figures) for name in re.findall(r"var\((--[a-z0-9-]+)\)", svg)}
    assert all(f"{name}:" in styles for name in used)


def test_every_drawing_says_what_it_shows(figures: Figures) -> None:
    assert all(len(ElementTree.fromstring(svg).get("aria-label", "")) > 20 for svg in every(figures))


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_the_region_is_where_the_rules_put_it(figures: Figures, result: Result, size: str) -> None:
    assert result.primary is not None
    root = ElementTree.fromstring(figures["map"]["figure"][size])
    at = {name.removeprefix("data-"): float(value) for name, value in root.attrib.items() if name.startswith("data-")}
    x = Scale(at["x-low"], at["x-high"], at["left"], at["right"], log=True)
    y = Scale(at["y-low"], at["y-high"], at["bottom"], at["top"])
    path = root.find("g[@data-region]/path")
    assert path is not None
    corners = [tuple(map(float, corner)) for corner in re.findall(r"[ML] (\S+) (\S+)", path.get("d", ""))]
    length, accuracy = result.primary.mean_length or 0, result.primary.accuracy or 0
    expected = {
        "left": x(length / result.rules.max_length_ratio),
        "right": x(length * result.rules.max_length_ratio),
        "bottom": y(accuracy - result.rules.max_gap),
    }
    assert min(corner[0] for corner in corners) == pytest.approx(expected["left"], abs=0.05)
    assert max(corner[0] for corner in corners) == pytest.approx(expected["right"], abs=0.05)
    assert max(corner[1] for corner in corners) == pytest.approx(expected["bottom"], abs=0.05)


def test_each_candidate_shows_the_one_mark_of_its_status(figures: Figures, result: Result) -> None:
    root = ElementTree.fromstring(figures["map"]["figure"]["wide"])
    shown = {int(mark.get("data-point", "")): mark.get("data-shape") for mark in root.findall("g[@data-shown='1']")}
    assert shown == {place: each.status for place, each in enumerate(result.candidates) if each.status != "failed"}


def test_names_are_written_as_they_are(tmp_path: Path) -> None:
    samples = make_samples(dev=6, held_out=4)
    made = make_result(samples)
    made["candidates"][0]["model"] = "$x^2$ <b>&"
    svg = section_values(read(write_json(tmp_path, made)))["map"]["figure"]["wide"]
    texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert "$x^2$ <b>&" in texts


def test_a_pair_without_a_value_is_an_empty_cell(tmp_path: Path) -> None:
    made = make_result(make_samples(dev=6, held_out=4))
    made["pairs"][0]["length_ratio"] = None
    _, svg = section_values(read(write_json(tmp_path, made)))["pairs"]["matrices"][1]
    assert [element.text for element in ElementTree.fromstring(svg).iter("text")].count("–") == 1


@settings(max_examples=60, deadline=None)
@given(
    spots=st.lists(st.tuples(st.integers(60, 300), st.integers(60, 330)), min_size=1, max_size=14),
    names=st.lists(st.text("abcdefgh-0123", min_size=3, max_size=18), min_size=14, max_size=14),
)
def test_names_on_a_map_never_collide(spots: list[tuple[int, int]], names: list[str]) -> None:
    bounds = Box(40, 46, 356, 350)
    marks = [Box(x - 8, y - 8, x + 8, y + 8) for x, y in spots]
    labels = [((x, y), name, "no. 1") for (x, y), name in zip(spots, names, strict=False)]
    placed = [each for each in place(labels, 12.5, marks, [], bounds) if each is not None]
    for one, other in itertools.combinations([*(box for _, box, _ in placed), *marks], 2):
        assert (one in marks and other in marks) or not one.overlap(other)
    assert all(box.within(bounds) for _, box, _ in placed)


def test_a_lone_name_stands_right_of_its_mark() -> None:
    (placed,) = place([((100, 100), "model", "no. 1")], 12.5, [Box(92, 92, 108, 108)], [], Box(0, 0, 400, 400))
    assert placed is not None
    text, box, leader = placed
    assert text == "model" and leader is None
    assert box.left > 108 and box.bottom < 100 < box.top


def test_wide_characters_take_more_room() -> None:
    assert text_width("模型", 10) > text_width("ab", 10)


@given(st.floats(0, 100), st.floats(0, 100), st.integers(2, 10))
def test_ticks_of_points_are_few_and_on_the_scale(low: float, high: float, most: int) -> None:
    scale = points_scale([low, high], 0, 100)
    ticks = scale.ticks(most)
    assert 0 < len(ticks) <= most + 1
    assert all(scale.low - 1e-6 <= tick <= scale.high + 1e-6 for tick in ticks)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(3, 10))
def test_ticks_of_lengths_are_few_and_on_the_scale(low: float, high: float, most: int) -> None:
    scale = length_scale([low, high], 0, 100)
    ticks = scale.ticks(most)
    assert 0 < len(ticks) <= most
    assert all(scale.low - 1e-6 <= tick <= scale.high + 1e-6 for tick in ticks)


def test_equal_ratios_are_equally_long_on_a_scale_of_lengths() -> None:
    scale = length_scale([10, 1000], 0, 900)
    assert math.isclose(scale(40) - scale(20), scale(400) - scale(200))


def test_a_drawing_is_the_same_every_time_and_keeps_its_order() -> None:
    def drawn() -> str:
        with plain_style():
            canvas = Canvas(100, 50)
            canvas.line((0, 0), (10, 10), "ink")
            canvas.box(0, 0, 5, 5, "band", title="a <b>")
            canvas.text(3, 3, "x", bold=True)
            return canvas.markup("A drawing that is tested")

    assert drawn() == drawn()
    assert re.findall(r"<(path|text|title)", drawn()) == ["path", "title", "path", "text"]
    assert "a &lt;b&gt;" in drawn()


def test_sizes_are_those_of_the_page() -> None:
    assert (WIDE, NARROW) == (904, 358)


def test_methods_stand_on_lines_of_their_own_by_accuracy_and_cost(figures: Figures) -> None:
    for svg in figures["methods"]["figure"].values():
        root = ElementTree.fromstring(svg)
        titles = [title.text or "" for title in root.iter("title")]
        # Each has a mark on either scale; what was left out has none.
        for name in ("unite", "gac-threshold", "voting", "self-consistency", "terse-bytes"):
            assert sum(title.startswith(f"{name}: ") for title in titles) == 2, name
        assert "voting: 1,234 ms" in titles
        assert not any(title.startswith("average") for title in titles)
        assert any(element.get("stroke-dasharray") for element in root.iter("path"))
