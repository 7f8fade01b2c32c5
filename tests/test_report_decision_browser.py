"""Questions and groups by models in a real browser: sort, filter, keyboard, screen readers, phones and paper."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from report_browser import browser, click, find, open_report, resize
from report_fixture import make_result, make_samples, write_json, write_samples

from reports import write_report

pytestmark = pytest.mark.browser

A4 = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}


def rows(window: Any) -> list[list[str]]:
    """The cells of the table of questions, as read aloud."""
    script = """const said = (cell) => cell.ariaLabel ?? (cell.querySelector('.id') ?? cell).textContent;
                const rows = [...document.querySelectorAll('#questions-tool tbody tr')];
                return rows.map((row) => [...row.cells].map(said))"""
    return [list(row) for row in window.execute_script(script)]


def said(window: Any) -> str:
    return str(find(window, "#questions-tool .said")[0].text)


@pytest.mark.parametrize(("kind", "word"), [("recovered", "Recovered"), ("broken", "Broken"), ("wrong", "All wrong")])
def test_a_filter_shows_the_questions_of_its_kind(window: Any, kind: str, word: str) -> None:
    count = int(find(window, f"#questions-tool [data-filter={kind}] .count")[0].text)
    click(window, f"#questions-tool [data-filter={kind}]")
    shown = rows(window)
    assert 0 < len(shown) == min(count, 30) and said(window).endswith(f"of {count} questions")
    # A question that all models get wrong may be one that the strategy recovered.
    assert {row[1] for row in shown} == {word} or kind == "wrong"
    assert all(set(row[4:]) <= {"wrong", "not asked"} for row in shown) or kind != "wrong"
    assert [find(window, "#questions-tool [aria-pressed=true]")[0].get_attribute("data-filter")] == [kind]


def test_columns_sort_by_keyboard_and_say_how(window: Any) -> None:
    heads = find(window, "#questions-tool thead th")
    right = next(head for head in heads if head.text.startswith("Right"))
    button = right.find_element("tag name", "button")
    window.execute_script("arguments[0].focus()", button)
    for direction, order in (("ascending", 1), ("descending", -1)):
        button.send_keys("\ue007")
        assert right.get_attribute("aria-sort") == direction
        counts = [int(row[2]) for row in rows(window)]
        assert counts == sorted(counts, key=lambda count: order * count)
    # A model's column begins with the questions that it gets right.
    window.execute_script("arguments[0].click()", heads[4].find_element("tag name", "button"))
    assert {row[4] for row in rows(window)} == {"right"}
    assert right.get_attribute("aria-sort") is None


def test_a_question_links_to_its_example(window: Any) -> None:
    link = find(window, "#questions-tool tbody a")[0]
    name = link.text
    window.execute_script("arguments[0].click()", link)
    window.execute_async_script("setTimeout(arguments[0], 200)")
    assert find(window, "#explorer .example[open] .id")[0].text.endswith(name)


def test_every_control_and_cell_has_a_name_for_screen_readers(window: Any) -> None:
    nodes = window.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    for role in ("button", "searchbox", "image", "region", "columnheader", "link", "rowheader"):
        names = [name for kind, name in named if kind == role]
        assert names and all(names), role
    cells = {name for kind, name in named if kind in ("cell", "gridcell")}
    assert {"right", "wrong", "not asked"} <= cells and not cells & {"✓", "✗", "·"}


def many_models(folder: Path) -> Path:
    """A run with 28 models and 12 groups, whose tables are wider than a screen, and 20 warnings."""
    samples = make_samples(dev=60, held_out=60)
    result = make_result()
    others = [f"an-organisation/another-model-{number:02}-instruct-v0.{number}" for number in range(23)]
    groups = {f"subject {number}": {"n": 30, "accuracy": 60.0, "accuracy_ci": [42.0, 75.0]} for number in range(12)}
    last = result["candidates"].pop()
    result["candidates"] += [result["candidates"][-1] | {"model": name} for name in others]
    for candidate in result["candidates"]:
        candidate["groups"] = groups
    result["candidates"].append(last)
    result["advice"]["warnings"] = [
        f"group {number} loses by more than chance, look at its questions" for number in range(20)
    ]
    for sample in samples:
        sample["responses"] |= dict.fromkeys(others, sample["responses"]["terse-bytes"])
    return write_report(write_samples(write_json(folder, result), samples))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return many_models(tmp_path_factory.mktemp("runs") / "wide")


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_wide_tables_scroll_within_the_page(driver: Any, wide: Path, width: int) -> None:
    resize(driver, width)
    open_report(driver, wide)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    script = """return [...document.querySelectorAll('#questions .scroll, #group_models .scroll')]
                  .map((box) => [box.tabIndex, box.getAttribute('role'), box.scrollWidth > box.clientWidth])"""
    # The keyboard reaches what is scrolled out of sight.
    assert driver.execute_script(script) == [[0, "region", True]] * 2


@pytest.mark.parametrize("name", ["report", "wide"])
def test_the_decision_is_printed_on_three_pages_at_most(driver: Any, request: pytest.FixtureRequest, name: str) -> None:
    open_report(driver, request.getfixturevalue(name))
    printed = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", A4)["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 3
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        text = find(driver, "body")[0].text
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    for part in ("ms a question", "Accuracy and cost", "Strategies", "Leaderboard", "Printed: the decision."):
        assert part in text
    assert "Questions and models" not in text and "Search" not in text
    assert ("15 more warnings in the file" in text) is (name == "wide")
    assert "The first 30 of" not in text and "advisor select" in text and "advisor serve ." in text


def test_without_javascript_questions_and_groups_are_tables(report: Path) -> None:
    with browser(script=False) as window:
        resize(window, 390)
        open_report(window, report)
        text = find(window, "#questions")[0].text
        assert "Recovered" in text and "With JavaScript, this page has 400" in text
        assert find(window, "#group_models .cells td")
        assert window.execute_script("return document.documentElement.scrollWidth") <= 390
