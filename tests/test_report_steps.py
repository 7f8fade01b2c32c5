"""Inside a step: the traces of samples.jsonl on the page, from the file to the strip of tokens in a browser."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from report_browser import find, open_report, resize
from report_fixture import (
    TERSE,
    TRACED,
    data_of,
    make_result,
    make_samples,
    make_step,
    make_trace,
    page_of,
    write_run,
    write_samples,
    written,
)

pytestmark = pytest.mark.usefixtures("no_drawings")


@pytest.fixture(scope="module")
def steps(report: Path) -> list[dict[str, Any]]:
    """The steps of the first traced question, as the file has them."""
    lines = (report.parent / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    sample = next(sample for sample in map(json.loads, lines) if (sample["ensemble"] or {}).get("trace"))
    return list(sample["ensemble"]["trace"]["steps"])


def test_traced_questions_are_on_the_page_with_their_tag(tmp_path: Path) -> None:
    examples = data_of(page_of(write_run(tmp_path, dev=5, held_out=20)))["examples"]
    traced = [example for example in examples if "trace" in example]
    assert len(traced) == TRACED
    assert [example["id"] for example in examples if "traced" in example["tags"]] == [each["id"] for each in traced]


def test_traced_questions_are_shown_before_others(tmp_path: Path) -> None:
    samples = make_samples(dev=5, held_out=220)
    for sample in samples[5:]:
        sample["ensemble"]["trace"] = None
    samples[-1]["ensemble"]["trace"] = make_trace("The answer is 4.", random.Random(1))
    page = written(write_samples(tmp_path, samples), make_result())
    assert data_of(page)["examples"][-1]["id"] == samples[-1]["id"]


def test_traces_that_the_page_has_no_room_for_stay_in_the_file(tmp_path: Path) -> None:
    samples, chance = make_samples(dev=5, held_out=20), random.Random(3)
    for sample in samples[5:17]:
        steps = [make_step(f" <word {step}>", chance) for step in range(256)]
        sample["ensemble"]["trace"] = {"members": list(TERSE), "steps": steps, "left_out": 0}
    page = written(write_samples(tmp_path, samples), make_result())
    traced = [example for example in data_of(page)["examples"] if "trace" in example]
    assert 0 < len(traced) < 12
    assert len(page.encode()) <= 2_000_000


@pytest.fixture
def window(driver: Any, report: Path) -> Any:
    """The report with its first traced example open."""
    resize(driver, 1440)
    open_report(driver, report)
    driver.execute_script("document.querySelector('[data-filter=traced]').click()")
    driver.execute_script("document.querySelector('#explorer .example:not([hidden])').open = true")
    time.sleep(0.1)
    return driver


def labels(window: Any) -> list[str]:
    return [str(token.get_attribute("aria-label")) for token in find(window, ".strip .token")]


def pressed(window: Any) -> int:
    return [token.get_attribute("aria-pressed") for token in find(window, ".strip .token")].index("true")


@pytest.mark.browser
def test_the_strip_has_a_token_for_each_step_with_whose_first_choice_it_was(
    window: Any, steps: list[dict[str, Any]]
) -> None:
    members = list(TERSE)
    for number, (step, label) in enumerate(zip(steps, labels(window), strict=True), start=1):
        text = "end" if step["text"] is None else step["text"].replace(" ", "␣", 1)
        assert label.startswith(f"Step {number}, {text}: ")
        assert label.endswith(f"disagreement {step['disagreement']:.2f}")
        if 0 < len(step["won_by"]) < len(members):
            assert f"the first choice of {', '.join(members[n] for n in step['won_by'])}" in label
    votes = [len(token.find_elements("css selector", ".vote:not(.against)")) for token in find(window, ".strip .token")]
    assert votes == [len(step["won_by"]) for step in steps]


@pytest.mark.browser
def test_the_step_that_divides_the_members_most_is_open_first(window: Any, steps: list[dict[str, Any]]) -> None:
    apart = [step["disagreement"] for step in steps]
    assert pressed(window) == apart.index(max(apart))


@pytest.mark.browser
def test_a_click_shows_what_each_member_gave_to_the_candidates(window: Any, steps: list[dict[str, Any]]) -> None:
    find(window, ".strip .token")[1].click()
    assert pressed(window) == 1
    rows = [row.find_elements("css selector", ".amount") for row in find(window, ".step tbody tr")]
    for row, candidate in zip(rows, steps[1]["candidates"], strict=True):
        expected = [100 * share for share in (candidate["mean"], *candidate["probabilities"])]
        assert [float(cell.text.removesuffix("%")) for cell in row] == pytest.approx(expected, abs=0.06)
    assert len(find(window, ".step .chosen")) == 1
    heads = [head.text for head in find(window, ".step thead th")]
    assert heads == ["Candidate", "Mean", *TERSE]


@pytest.mark.browser
def test_the_arrow_keys_go_from_token_to_token_and_tab_stops_once(window: Any, steps: list[dict[str, Any]]) -> None:
    find(window, ".strip .token")[0].click()
    for key, place in [
        ("\ue014", 1),
        ("\ue014", 2),
        ("\ue012", 1),
        ("\ue010", len(steps) - 1),
        ("\ue014", len(steps) - 1),
        ("\ue011", 0),
    ]:
        window.switch_to.active_element.send_keys(key)
        assert pressed(window) == place
        assert window.switch_to.active_element == find(window, ".strip .token")[place]
    assert len(find(window, '.strip .token[tabindex="0"]')) == 1


@pytest.mark.browser
def test_matrix_cells_say_their_value_on_hover_and_by_keyboard(window: Any) -> None:
    window.execute_script("document.querySelector('.matrix [data-row]').focus()")
    cells = find(window, ".matrix:first-of-type [data-row]")
    assert find(window, ".matrix .tip:not([hidden])")[0].text == cells[0].get_attribute("aria-label")
    window.switch_to.active_element.send_keys("\ue015")
    assert window.switch_to.active_element == cells[1]
    shown = find(window, ".matrix .tip:not([hidden])")
    assert [tip.text for tip in shown] == [cells[1].get_attribute("aria-label")]
    assert re.fullmatch(r"[\w-]+ and [\w-]+: [\d.]+", shown[0].text)
    assert all(len(matrix.find_elements("css selector", '[tabindex="0"]')) == 1 for matrix in find(window, ".matrix"))
