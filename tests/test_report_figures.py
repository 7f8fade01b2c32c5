"""The drawings: valid markup without styles, names that do not collide, a region where the rules put it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox
from report_fixture import make_evaluation, make_result, read, write_evaluation, write_json, write_run

from advisor.run.result import Result
from reports.charts.axes import (
    NARROW,
    WIDE,
    draw_lines,
    linear_limits,
    log_limits,
    mark,
    point_axes,
    set_ticks,
    write_names,
)
from reports.charts.svg import plain_style
from reports.page import section_values
from reports.report_data import ReportData
from reports.sections import models

Figures = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    folder = write_run(tmp_path_factory.mktemp("figures"))
    return read(write_evaluation(folder, make_evaluation()))


@pytest.fixture(scope="module")
def result(report: ReportData) -> Result:
    return report.result


@pytest.fixture(scope="module")
def figures(report: ReportData) -> Figures:
    return section_values(report)


def every(figures: Figures) -> list[str]:
    parts = (figures["strategies"], figures["models"]["map"], figures["set"]["together"], figures["set"]["methods"])
    return [svg for part in (*parts, figures["lengths"]) for svg in part["figure"].values()]


def test_everything_is_drawn(figures: Figures) -> None:
    assert len(every(figures)) == 5 * 2


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


def test_each_candidate_has_one_mark_with_its_name_and_figures(figures: Figures, result: Result) -> None:
    root = ElementTree.fromstring(figures["models"]["map"]["figure"]["wide"])
    titles = [(title.text or "").partition(":")[0] for title in root.iter("title")]
    assert sorted(titles) == sorted(each.name for each in result.candidates if each.status != "failed")


def test_names_are_written_as_they_are(tmp_path: Path) -> None:
    made = make_result()
    made["candidates"][0]["model"] = "$x^2$ <b>&"
    with plain_style():
        drawn = models.models(read(write_json(tmp_path, made)))
    svg = drawn["map"]["figure"]["wide"]
    texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert "$x^2$ <b>&" in texts


def test_a_pair_without_a_value_is_an_empty_cell(tmp_path: Path) -> None:
    made = make_result()
    made["pairs"][0]["length_ratio"] = None
    pairs = models.pairs(read(write_json(tmp_path, made)).result)
    assert pairs is not None
    _, staircase = pairs["matrices"][1]
    cells = [cell for _, row in staircase for cell in row]
    assert [cell[:2] for cell in cells].count((None, "–")) == 1 and all(0 <= (cell[0] or 0) <= 8 for cell in cells)
    assert [len(row) for _, row in staircase] == [*range(len(staircase))]


@settings(max_examples=15, deadline=None)
@example(spots=[(60, 60), (60, 60), (60, 79)], names=["000"] * 14)
@given(
    spots=st.lists(st.tuples(st.integers(60, 300), st.integers(60, 330)), min_size=1, max_size=14),
    names=st.lists(st.text("abcdefgh-0123", min_size=3, max_size=18), min_size=14, max_size=14),
)
def test_names_on_a_map_never_collide(spots: list[tuple[int, int]], names: list[str]) -> None:
    with plain_style():
        axes = point_axes(NARROW, 380, (40, 356), (46, 350))
        write_names(axes, [(x, y, name, False) for (x, y), name in zip(spots, names, strict=False)], spots)
        marks = [Bbox.from_bounds(x - 7, y - 7, 14, 14) for x, y in axes.transData.transform(spots)]
        written = [text.get_window_extent() for text in axes.texts]
    for one, other in itertools.combinations([*written, *marks], 2):
        assert (one in marks and other in marks) or not one.overlaps(other)
    # A name may begin two pixels beside the axes, and a line above them.
    assert all(axes.bbox.padded(13).contains(*corner) for box in written for corner in (box.min, box.max))


def test_an_upright_line_is_left_out_where_names_stand_on_it() -> None:
    with plain_style():
        axes = point_axes(WIDE, 300, (0, 10), (0, 10))
        names = [Bbox([[4.0, low], [6.0, high]]) for low, high in ((8.0, 9.5), (3.0, 4.0))]
        draw_lines(axes, [Bbox([[5, 1], [5, 9]]), Bbox([[7, 1], [7, 9]])], names, "muted", 1)
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[1, 3], [4, 8], [1, 9]]


@settings(deadline=None)
@given(st.floats(1, 1e6), st.floats(1, 1e6), st.integers(3, 10))
def test_ticks_of_lengths_are_few_and_on_the_scale(low: float, high: float, most: int) -> None:
    with plain_style():
        axes = point_axes(WIDE, 300, log_limits([low, high], 1.15), (0, 1), log=True)
        set_ticks(axes.xaxis, most)
        start, end = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if start <= tick <= end]
    assert 0 < len(ticks) <= most + 1


@given(st.lists(st.floats(-1e18, 1e18), min_size=1, max_size=3))
def test_limits_are_wider_than_the_values(values: list[float]) -> None:
    low, high = linear_limits(values)
    assert low < min(values) and max(values) < high


def test_a_mark_outside_of_the_scale_is_drawn_at_its_end() -> None:
    with plain_style():
        axes = point_axes(WIDE, 300, (0, 10), (0, 10))
        mark(axes, 1e18, -4, "primary")
        (drawn,) = (child for child in axes.get_children() if isinstance(child, Line2D))
    assert (drawn.get_xdata(), drawn.get_ydata()) == ([10], [0])


def test_methods_stand_on_lines_of_their_own_by_accuracy_and_cost(figures: Figures) -> None:
    for svg in figures["set"]["methods"]["figure"].values():
        root = ElementTree.fromstring(svg)
        titles = [title.text or "" for title in root.iter("title")]
        # Each has a mark on either scale; what was left out has none.
        for name in ("unite", "gac-threshold", "voting", "self-consistency", "terse-bytes"):
            assert sum(title.startswith(f"{name}: ") for title in titles) == 2, name
        assert "voting: 1,234 ms" in titles
        assert not any(title.startswith("average") for title in titles)
        assert any(element.get("stroke-dasharray") for element in root.iter("path"))
