"""Two runs against each other: what changed, counted and tested independently, as a page and as Markdown."""

from __future__ import annotations

import copy
import html
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_browser import browser, open_report, prefer, resize
from report_fixture import make_result, make_samples, write_json
from scipy.stats import binomtest

from advisor.cli import main
from advisor.compare.run_difference import MOST_EXAMPLES, run_difference
from advisor.runs.run import Run
from ensemble.errors import InputError
from reports.run_difference import difference_markdown, headline, write_difference

SAMPLES = make_samples(dev=60, held_out=80)
RESULT = make_result(SAMPLES)
Line = dict[str, Any]


def write(folder: Path, change: Callable[[Line], None] | None = None, **recommended: Any) -> Path:
    """Write a run whose recommendation and lines are changed."""
    result, lines = copy.deepcopy(RESULT), copy.deepcopy(SAMPLES)
    result["advice"]["recommendation"].update(recommended)
    for line in lines if change else ():
        change(line)
    write_json(folder, result)
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def single(folder: Path, model: str, change: Callable[[Line], None] | None = None) -> Path:
    """Write a run that recommends one model alone."""
    return write(folder, change, strategy="single", members=[model], draws=1)


def weaken(line: Line) -> None:
    """Make one member wrong on two of three held-out questions."""
    if line["split"] == "held_out" and int(line["id"].rpartition("-")[2]) % 3:
        line["responses"]["terse-unigram"]["score"] = 0.0


def take_second(line: Line) -> None:
    """Say that the recommended strategy takes the response of one member."""
    if line["split"] == "held_out":
        taken = line["responses"]["terse-pieces"]
        line["recommended"] = {"model": "terse-pieces", "draw": 0} | {key: taken[key] for key in ("extracted", "score")}


def difference_of(a: Path, b: Path) -> dict[str, Any]:
    return run_difference(Run.open(a), Run.open(b))


def scores(model: str) -> list[float]:
    return [line["responses"][model]["score"] for line in SAMPLES if line["split"] == "held_out"]


def test_fixed_and_broken_questions_and_the_p_value_are_those_of_a_plain_count(tmp_path: Path) -> None:
    found = difference_of(single(tmp_path / "a", "terse-bytes"), single(tmp_path / "b", "terse-unigram", weaken))
    weak = [0.0 if n % 3 else score for n, score in enumerate(scores("terse-unigram"))]
    pairs = list(zip(scores("terse-bytes"), weak, strict=True))
    fixed, broken = sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
    assert found["n"] == 80
    assert (found["pair"]["gained"], found["pair"]["lost"]) == (fixed, broken)
    assert (len(found["fixed"]), len(found["broken"])) == (min(fixed, MOST_EXAMPLES), min(broken, MOST_EXAMPLES))
    assert found["pair"]["p_two_sided"] == pytest.approx(binomtest(fixed, fixed + broken).pvalue)
    assert found["pair"]["difference"] == pytest.approx(100 * (fixed - broken) / 80)
    assert headline(found) == "B is worse than A"


def test_the_same_run_twice_has_no_difference(tmp_path: Path) -> None:
    run = write(tmp_path / "a")
    found = difference_of(run, run)
    assert (found["pair"]["gained"], found["pair"]["lost"], found["pair"]["p_two_sided"]) == (0, 0, 1.0)
    assert found["same_decision"] and found["settings"] == []
    assert headline(found) == "A and B score the same on every question"


@pytest.mark.parametrize("strategy", ["cascade", "unite", "single"])
def test_the_answers_are_those_of_the_recommended_strategy(tmp_path: Path, strategy: str) -> None:
    member = RESULT["advice"]["recommendation"]["members"][0]
    members = [member] if strategy == "single" else RESULT["selected"]
    run = write(tmp_path / "a", take_second, strategy=strategy, members=members)
    other = single(tmp_path / "b", "terse-unigram", weaken)
    found = difference_of(run, other)["runs"][0]["points"]
    lines = [line for line in SAMPLES if line["split"] == "held_out"]
    expected = {
        "cascade": scores("terse-pieces"),
        "unite": [line["ensemble"]["score"] for line in lines],
        "single": [line["responses"][member]["score"] for line in lines],
    }[strategy]
    assert found == pytest.approx(100 * sum(expected) / len(expected))


def test_turns_of_a_conversation_are_one_cluster(tmp_path: Path) -> None:
    def pair_up(line: Line) -> None:
        line["cluster"] = str(int(line["id"].rpartition("-")[2]) // 4)

    def both(line: Line) -> None:
        weaken(line)
        pair_up(line)

    plain = difference_of(single(tmp_path / "a", "terse-bytes"), single(tmp_path / "b", "terse-unigram", weaken))
    a, b = single(tmp_path / "c", "terse-bytes", pair_up), single(tmp_path / "d", "terse-unigram", both)
    found = difference_of(a, b)["pair"]
    assert found["difference"] == plain["pair"]["difference"]
    assert found["test"] != plain["pair"]["test"] and "cluster" in found["difference_method"]


def test_runs_with_different_scores_are_refused(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    result = json.loads((b / "result.json").read_text(encoding="utf-8"))
    result["task"]["metric"] = "chrf"
    write_json(b, result)
    with pytest.raises(InputError, match="give two runs with the same score"):
        difference_of(a, b)


def test_only_common_questions_count_and_the_others_are_said(tmp_path: Path) -> None:
    def rename(line: Line) -> None:
        if line["id"].endswith("7"):
            line["id"] = f"{line['id']}-new"

    found = difference_of(write(tmp_path / "a"), write(tmp_path / "b", rename))
    assert found["n"] == 72
    assert "8 held-out questions of run A are not in the other run; left out" in found["notes"]


def test_changed_settings_and_models_are_said(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    result = json.loads((b / "result.json").read_text(encoding="utf-8"))
    result["provenance"]["versions"]["torch"] = "9.9"
    result["candidates"][0]["accuracy"] -= 7
    result["candidates"][1]["status"] = "rejected"
    write_json(b, result)
    found = difference_of(a, b)
    assert [each["name"] for each in found["settings"]] == ["version of torch"]
    first, second, *_ = found["candidates"]
    assert first["difference"] == pytest.approx(-7)
    assert second["status"] == [RESULT["candidates"][1]["status"], "rejected"]
    assert "now Not chosen" in difference_markdown(found)


def test_runs_without_a_common_question_are_refused_with_the_reason(tmp_path: Path) -> None:
    def rewrite(line: Line) -> None:
        line["prompt"] = f"Please. {line['prompt']}"

    with pytest.raises(InputError, match=r"no held-out question is in both runs: .*80 ids are in both, with other pro"):
        difference_of(write(tmp_path / "a"), write(tmp_path / "b", rewrite))


def test_a_run_without_a_recommendation_is_refused(tmp_path: Path) -> None:
    bare = write(tmp_path / "a")
    result = json.loads((bare / "result.json").read_text(encoding="utf-8"))
    del result["advice"]["recommendation"]
    write_json(bare, result)
    with pytest.raises(InputError, match="recommends nothing"):
        difference_of(bare, write(tmp_path / "b"))


def test_texts_of_models_are_no_markup(tmp_path: Path) -> None:
    attack = "</pre><script>alert(1)</script>"

    def say(line: Line) -> None:
        line["responses"]["terse-bytes"]["text"] = attack
        line["prompt"] += f" {attack} **bold**"

    found = difference_of(single(tmp_path / "a", "terse-bytes", say), single(tmp_path / "b", "terse-unigram", say))
    page = write_difference(tmp_path / "diff.html", found).read_text(encoding="utf-8")
    assert attack not in page and html.escape(attack, quote=False) in page
    assert page.count("<script>") == 1


def test_a_loss_has_its_sign_its_word_and_its_colour(tmp_path: Path) -> None:
    found = difference_of(single(tmp_path / "a", "terse-bytes"), single(tmp_path / "b", "terse-unigram", weaken))
    page = write_difference(tmp_path / "diff.html", found).read_text(encoding="utf-8")
    assert "<h1>B is worse than A</h1>" in page and 'class="verdict shown-no"' in page
    assert re.search(r'<p class="delta loss"><span class="figure-of">−\d', page)
    assert "verdict-ensemble" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--diff"], "--diff compares two run folders; give both"),
        (["a", "b"], "give one folder, or two and --diff"),
        (["a", "b", "--diff", "--format", "csv"], "a difference is a page or Markdown"),
        (["a", "--out", "x.html"], "--out goes with --diff and its page"),
        (["a", "b", "--diff", "--out", "nowhere/x.html"], "give the name of a file in a folder that exists"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    write(tmp_path / "a"), write(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["advisor", "report", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert message in capsys.readouterr().err


def test_the_command_writes_the_page_and_says_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    a, b = single(tmp_path / "a", "terse-bytes"), single(tmp_path / "b", "terse-unigram", weaken)
    monkeypatch.setattr("sys.argv", ["advisor", "report", str(a), str(b), "--diff"])
    main()
    said = capsys.readouterr()
    assert said.out.strip() == str(b / "diff.html") and (b / "diff.html").is_file()
    assert re.search(r"B is worse than A: -\d+\.\d points", said.err)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    found = difference_of(single(folder / "a", "terse-bytes"), single(folder / "b", "terse-unigram", weaken))
    return write_difference(folder / "b" / "diff.html", found)


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with browser() as driver:
        yield driver


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_fits_a_phone_and_loads_nothing(window: Any, page: Path, theme: str) -> None:
    resize(window, 390)
    prefer(window, theme)
    window.get_log("browser")
    open_report(window, page)
    assert window.execute_script("return document.documentElement.scrollWidth") <= 390
    assert window.get_log("browser") == []
    body = window.find_element("css selector", "body")
    assert body.value_of_css_property("background-color").startswith(
        {"light": "rgba(244, 246, 248", "dark": "rgba(14, 19, 25"}[theme]
    )


@pytest.mark.browser
def test_a_question_opens_with_both_responses_by_keyboard_alone(window: Any, page: Path) -> None:
    resize(window, 1280)
    open_report(window, page)
    summary = window.find_element("css selector", "#broken summary")
    window.execute_script("arguments[0].focus()", summary)
    summary.send_keys("\ue007")
    opened = window.find_element("css selector", "#broken details[open]").text
    assert "right" in opened and "wrong" in opened and "Reference" in opened


@pytest.mark.browser
def test_without_javascript_everything_is_there(page: Path) -> None:
    with browser(script=False) as plain:
        resize(plain, 1280)
        open_report(plain, page)
        text = plain.find_element("css selector", "body").text
        assert "B is worse than A" in text and "Not chosen" in text
        assert not plain.find_elements("css selector", "thead button")
