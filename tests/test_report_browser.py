"""The report in a real browser: themes, sorting, limits, examples, phones, and with JavaScript off."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from report_browser import browser, click, find, open_report, prefer, resize
from report_fixture import make_result, make_samples, write_json, write_samples

from reports import write_report

pytestmark = pytest.mark.browser

LIGHT, DARK = "rgb(244, 246, 248)", "rgb(14, 19, 25)"
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


def test_nothing_complains_and_nothing_is_asked_for(window: Any) -> None:
    assert window.get_log("browser") == []
    assert window.execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize(
    ("system", "choice", "background"),
    [("light", "system", LIGHT), ("dark", "system", DARK), ("light", "dark", DARK), ("dark", "light", LIGHT)],
)
def test_the_theme_follows_the_switch_or_the_system(window: Any, system: str, choice: str, background: str) -> None:
    prefer(window, system)
    click(window, f"#theme-{choice}")
    assert window.execute_script(BACKGROUND) == background


def test_the_theme_is_remembered(window: Any, report: Path) -> None:
    click(window, "#theme-dark")
    open_report(window, report)
    assert window.execute_script(BACKGROUND) == DARK


def test_figures_take_the_themes_colours(window: Any) -> None:
    script = "return getComputedStyle(document.querySelector('#map .wide text')).fill"
    light = window.execute_script(script)
    click(window, "#theme-dark")
    assert window.execute_script(script) != light


def board(window: Any) -> list[str]:
    return [name.text for name in find(window, ".leaderboard tbody th > bdi")]


def test_the_leaderboard_sorts_by_real_buttons_and_says_how(window: Any) -> None:
    best_first = board(window)
    heads = {head.text.split("\u2009")[0]: head for head in find(window, ".leaderboard thead th")}
    assert heads["No."].get_attribute("aria-sort") == "ascending"
    button = heads["Length"].find_element("tag name", "button")
    button.click()
    assert heads["Length"].get_attribute("aria-sort") == "ascending"
    assert heads["No."].get_attribute("aria-sort") is None
    shortest_first = board(window)
    assert shortest_first != best_first and shortest_first[-1] == "broken-pieces"
    button.click()
    assert heads["Length"].get_attribute("aria-sort") == "descending"
    # What is unknown stays at the end.
    assert board(window) == [*reversed(shortest_first[:-1]), "broken-pieces"]
    heads["Accuracy"].find_element("tag name", "button").click()
    assert board(window) == best_first


def examples(window: Any) -> list[dict[str, Any]]:
    data = json.loads(window.execute_script("return document.getElementById('data').textContent"))
    return list(data["examples"])


def shown_examples(window: Any) -> list[str]:
    script = "return [...document.querySelectorAll('#explorer .example:not([hidden]) .id')].map((id) => id.textContent)"
    return list(window.execute_script(script))


@pytest.mark.parametrize("tag", ["recovered", "cut"])
def test_a_filter_shows_the_examples_with_its_tag(window: Any, tag: str) -> None:
    every = examples(window)
    expected = [example["id"] for example in every if tag in example["tags"]]
    click(window, f"#explorer [data-filter={tag}]")
    assert shown_examples(window) == expected[:10]
    assert find(window, "#explorer .said")[0].text == f"{len(expected)} of {len(every)} examples"
    assert find(window, "#explorer [aria-pressed=true]")[0].get_attribute("data-filter") == tag


def test_search_looks_into_responses(window: Any) -> None:
    expected = [
        example["id"]
        for example in examples(window)
        if any("answer is 45." in response["text"] for response in example["responses"])
    ]
    find(window, "#explorer input")[0].send_keys("ANSWER IS 45.")
    assert shown_examples(window) == expected[:10] != []


def test_what_differs_from_the_ensembles_response_is_marked(window: Any) -> None:
    click(window, "#explorer [data-filter=recovered]")
    find(window, "#explorer .example:not([hidden]) summary")[0].click()
    time.sleep(0.1)
    assert find(window, "#explorer .inside .answer.false mark")
    assert find(window, "#explorer .inside .answer u.read")[0].text.isdigit()
    assert not find(window, "#explorer .inside .answer.joint mark")


def test_a_link_opens_its_example(window: Any, report: Path) -> None:
    last = examples(window)[-1]["id"]
    open_report(window, report, f"#example={last}", folded=True)
    time.sleep(0.2)
    assert [each.text.split()[-1] for each in find(window, "#explorer .example[open] .id")] == [last]
    top = window.execute_script("return document.querySelector('.example[open]').getBoundingClientRect().top")
    assert 0 <= top < 600  # the page ends soon after the last example


def test_keys_go_from_example_to_example_of_a_filter(window: Any) -> None:
    wanted = [example["id"] for example in examples(window) if "broken" in example["tags"]]
    click(window, "#explorer [data-filter=broken]")
    window.execute_script("document.querySelector('#explorer [data-filter=broken]').focus()")
    for key, place in (("\ue014", 0), ("\ue014", 1), ("\ue014", 2), ("\ue012", 1)):
        window.switch_to.active_element.send_keys(key)
        assert [each.text for each in find(window, "#explorer .example[open] .id")] == [wanted[place]]
    # The buttons do the same, for those without keys.
    next(each for each in find(window, "#explorer .foot button") if "Next" in each.text and each.is_displayed()).click()
    assert find(window, "#explorer .example[open] .id")[0].text.endswith(wanted[2])


def test_hostile_text_runs_nothing(driver: Any, tmp_path: Path) -> None:
    samples = make_samples(dev=6, held_out=6)
    attack = "<img src=x onerror=document.title='pwned'></script><script>document.title='pwned'</script>"
    for sample in samples:
        sample["prompt"] += attack
        sample["id"] += attack
        for response in sample["responses"].values():
            response["text"] += attack
    result = make_result()
    result["advice"]["text"] += attack
    open_report(driver, write_report(write_samples(write_json(tmp_path, result), samples)))
    for summary in find(driver, "#explorer .example:not([hidden]) summary"):
        summary.click()
    time.sleep(0.2)
    assert "pwned" not in driver.title
    assert not find(driver, "img")
    assert attack in find(driver, "#explorer .answer pre")[0].text
    assert driver.get_log("browser") == []


def test_without_javascript_everything_but_the_tools_is_there(report: Path) -> None:
    with browser(script=False) as window:
        resize(window, 1440)
        prefer(window, "light")
        open_report(window, report, folded=True)
        text = find(window, "body")[0].text
        assert "Take a vote of three models." in text and "Not chosen" not in text
        for summary in find(window, "details.row:not([open]) > summary, #questions > summary, #group_models > summary"):
            summary.click()
        text = find(window, "body")[0].text
        assert "Not chosen" in text and "With JavaScript, this page has 200 examples to filter and search." in text
        assert not find(window, "thead button")
        find(window, "label:has(#theme-dark)")[0].click()
        assert find(window, "body")[0].value_of_css_property("background-color").startswith("rgba(14, 19, 25")
        questions = find(window, "#questions")[0].text
        assert "Recovered" in questions and "With JavaScript, this page has 400" in questions
        assert find(window, "#group_models .cells td")
        resize(window, 390)
        open_report(window, report)
        assert window.execute_script("return document.documentElement.scrollWidth") <= 390


class Strict(SimpleHTTPRequestHandler):
    """A server whose policy forbids scripts and style sheets, as those that show strangers' pages do."""

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", "sandbox; default-src 'none'")
        super().end_headers()


def test_under_a_policy_that_forbids_scripts_and_styles_all_that_decides_is_text(driver: Any, report: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Strict, directory=report.parent)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        driver.get(f"http://127.0.0.1:{server.server_port}/{report.name}")
        text = " ".join(find(driver, "body")[0].text.split())
        heights = [each.rect["height"] for each in find(driver, "svg.glyph") if each.is_displayed()]
        server.shutdown()
    assert "Take a vote of three models. +7.2 points expected over terse-pieces, the best single model 90%" in text
    assert "with probability 0.99. terse-pieces alone recommended right of 100 81.0 88.2 calls a question 1 2.3" in text
    assert "advisor serve ." in text and "terse-pieces alone 81.0 0.0" in text
    assert text.count("↑ accuracy, points") == 1  # the drawing for phones is hidden
    assert max(heights) < 20


CONTRASTS = """
const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
const probe = document.body.appendChild(document.createElement("span"));
function luminance(variable) {
  probe.style.color = `var(${variable})`;
  context.fillStyle = getComputedStyle(probe).color;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3)
    .map((value) => value / 255).map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
return arguments[0].map(([one, other]) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
});
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(window: Any, theme: str) -> None:
    click(window, f"#theme-{theme}")
    pairs = [(text, ground) for text in ("--ink", "--muted", "--accent") for ground in ("--page", "--paper", "--band")]
    pairs += [(f"--heat-{level}", "--heat-low" if level < 5 else "--heat-high") for level in range(9)]
    contrasts = window.execute_script(CONTRASTS, pairs)
    assert {pair: round(ratio, 2) for pair, ratio in zip(pairs, contrasts, strict=True) if ratio < 4.5} == {}


def test_on_a_phone_each_strategy_is_a_card_with_all_its_figures(window: Any, report: Path) -> None:
    resize(window, 390)
    open_report(window, report)
    rows = find(window, "#strategies tbody tr")
    assert len(rows) >= 4
    script = """return [...arguments[0].querySelectorAll('td')].filter((cell) => cell.offsetWidth)
                  .map((cell) => [getComputedStyle(cell, '::before').content, cell.getBoundingClientRect().right])"""
    shown = window.execute_script(script, rows[0])
    labels = {label.strip('"') for label, _ in shown}
    assert {
        "Expected accuracy",
        "Expected gain",
        "Probability that it is better",
        "Calls a question",
        "Tokens a question",
        "Price of 1,000 questions",
    } <= labels
    assert max(right for _, right in shown) <= 390


FIRST = """return ['h1', '.figure-of', '.evidence .certainty:last-of-type', '.beside']
  .map((part) => document.querySelector(`#verdict ${part}`).getBoundingClientRect().bottom)"""


@pytest.mark.parametrize("source", ["models", "logs"])
def test_what_to_run_its_gain_how_sure_and_its_cost_are_on_the_first_screen_of_a_phone(
    driver: Any, tmp_path: Path, source: str
) -> None:
    result = make_result()
    if source == "logs":
        result["provenance"]["logs"] = [{"path": "answers.jsonl", "format": "pool"}]
        text = json.dumps(result).replace("terse-pieces", "organisation/pieces-2024-09-12-instruct")
        result = json.loads(text)
    resize(driver, 390, 844)
    open_report(driver, write_report(write_json(tmp_path, result)), folded=True)
    assert max(driver.execute_script(FIRST)) < 844


WORDS = """document.querySelectorAll('details:not(.example)').forEach((part) => { part.open = true; });
return document.body.innerText.split(/\\s+/).length"""
"""All words of the page with its sections unfolded, in which each example and question has one line."""


def test_the_page_is_short(driver: Any, report: Path) -> None:
    for width, height, screens in ((1440, 900, 3), (390, 844, 5)):
        resize(driver, width, height)
        open_report(driver, report, folded=True)
        assert driver.execute_script("return document.documentElement.scrollHeight") <= screens * height
    resize(driver, 1440)
    assert driver.execute_script(WORDS) <= 2200


CROSSED = """const found = [];
for (const svg of document.querySelectorAll('figure.drawing svg')) {
  const frame = svg.getBoundingClientRect();
  if (!frame.width) continue;
  const texts = [...svg.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()]);
  texts.forEach(([words, box], place) => {
    const beside = Math.max(frame.left - box.left, box.right - frame.right);
    if (Math.max(beside, frame.top - box.top, box.bottom - frame.bottom) > 1) found.push(`${words} is cut`);
    for (const [others, other] of texts.slice(0, place)) {
      const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
      const high = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
      if (across > 1 && high > 4) found.push(`${words} is on ${others}`);
    }
  });
  // The grid and a dashed line are behind the texts, which cover them.
  for (const line of svg.querySelectorAll('path[stroke]:not([stroke="var(--rule)"], [stroke-dasharray])')) {
    for (let at = 0; at <= line.getTotalLength(); at += 1) {
      const { x, y } = line.getPointAtLength(at).matrixTransform(line.getScreenCTM());
      const within = ([, box]) => x > box.left + 1 && x < box.right - 1 && y > box.top + 4 && y < box.bottom - 4;
      const hit = texts.find(within);
      if (hit) { found.push(`a line goes through ${hit[0]}`); break; }
    }
  }
}
return found"""


@pytest.mark.parametrize("name", ["report", "wide"])
@pytest.mark.parametrize(("width", "media"), [(1440, ""), (390, ""), (1440, "print")])
def test_no_text_of_a_drawing_is_cut_or_crossed(
    driver: Any, request: pytest.FixtureRequest, name: str, width: int, media: str
) -> None:
    resize(driver, width)
    open_report(driver, request.getfixturevalue(name))
    with emulated(driver, media):
        assert driver.execute_script("return document.querySelectorAll('figure.drawing').length") >= 3
        assert driver.execute_script(CROSSED) == []


@contextmanager
def emulated(driver: Any, media: str) -> Iterator[None]:
    """The page as another medium shows it."""
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


# --- Questions, groups and print ---


A4 = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}


def rows(window: Any) -> list[list[str]]:
    """The cells of the table of questions, as read aloud."""
    script = """const said = (cell) => cell.ariaLabel ?? (cell.querySelector('.id') ?? cell).textContent;
                const rows = [...document.querySelectorAll('#questions-tool tbody tr')];
                return rows.map((row) => [...row.cells].map(said))"""
    return [list(row) for row in window.execute_script(script)]


def said(window: Any) -> str:
    return str(find(window, "#questions-tool .said")[0].text)


@pytest.mark.parametrize(("kind", "word"), [("recovered", "Recovered"), ("wrong", "All wrong")])
def test_a_filter_shows_the_questions_of_its_kind(window: Any, kind: str, word: str) -> None:
    count = int(find(window, f"#questions-tool [data-filter={kind}] .count")[0].text)
    click(window, f"#questions-tool [data-filter={kind}]")
    shown = rows(window)
    assert 0 < len(shown) == min(count, 10) and said(window).endswith(f"of {count} questions")
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
    open_report(driver, request.getfixturevalue(name), folded=True)
    printed = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", A4)["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 3
    with emulated(driver, "print"):
        text = driver.execute_script("return document.body.innerText")
    for part in (
        "time of a question",
        "Strategies",
        "Three models together beat any one",
        "Not chosen",
        "Printed: the",
    ):
        assert part in text
    assert "Who is right" not in text and "Search" not in text
    assert ("15 more warnings in the file" in text) is (name == "wide")
    assert "The first 30 of" not in text and "advisor select" in text and "advisor serve ." in text
