"""The report from a run folder's files: what is in it, and what happens where the files are not as they should be."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_fixture import (
    make_result,
    make_samples,
    page_of,
    read,
    recommend,
    text_of,
    write_json,
    write_run,
    write_samples,
    written,
)

from advisor.run.folder import Run
from advisor.run.result import GroupFigures
from advisor.run.sentences import source_of_gain
from ensemble.errors import InputError
from reports import write_report
from reports.formats import evidence
from reports.page import section_values

pytestmark = pytest.mark.usefixtures("no_drawings")


@pytest.fixture(scope="module")
def run(report: Path) -> Path:
    return report.parent


@pytest.fixture(scope="module")
def page(report: Path) -> str:
    return report.read_text(encoding="utf-8")


@pytest.fixture
def result() -> dict[str, Any]:
    return make_result()


def test_what_to_run_what_it_gains_and_costs_and_how_sure_it_is_come_first(page: str, run: Path) -> None:
    text = text_of(page)
    told = json.loads((run / "result.json").read_text(encoding="utf-8"))["advice"]["recommendation"]
    low, high = told["expected_gain_ci"]
    places = (
        "Take a vote of three models.",
        f"{told['expected_gain']:+.1f} points expected over terse-pieces",
        f"90% interval {low:+.1f} to {high:+.1f}.",
        "Better than terse-pieces alone with probability 0.99",
        "right of 100 81.0 88.2",
        "calls a question 1 2.3",
        " ms",
        "Ask terse-bytes, terse-pieces and terse-unigram",
        "advisor run .",
        "Not checked: ",
        "Strategies Three models together beat any one, at 2.3 times the price",
        "Examples Wrong alone and right together: ",
        "Models Alone, ",
        "Decoding together Three models that decode together are better than one",
        "Provenance What is needed",
    )
    assert [text.index(place) for place in places] == sorted(text.index(place) for place in places)


def test_the_first_screen_has_one_gain_the_expected_one(tmp_path: Path, result: dict[str, Any]) -> None:
    changed = recommending(result, "vote")
    told = changed["advice"]["recommendation"]
    told |= {"expected_gain": 4.4, "expected_gain_ci": [1.1, 7.7], "text": "take a vote", "groups": None}
    changed["strategies"][0] |= {"expected_gain": 4.4, "expected_gain_ci": [1.1, 7.7]}
    page = written(tmp_path, changed)
    first = first_screen(page)
    assert re.findall("[+\u2212][0-9]+[.][0-9]", first) == ["+4.4", "+1.1", "+7.7"]
    assert not re.search("[Mm]easured|[Pp]redicted", first)
    # The points before and after differ by the gain, and the row of the table has the same ones.
    levels = re.findall("[0-9]+[.][0-9]", first.partition("right of 100 ")[2])
    before, after = map(float, levels[:2])
    assert after - before == pytest.approx(4.4)
    assert f">{after:.1f}<" in strategies_table(page) and ">+4.4 <" in strategies_table(page)


def first_screen(page: str) -> str:
    return text_of(page.partition('id="verdict">')[2].partition("</section>")[0])


@pytest.mark.parametrize(
    ("logs", "commands"),
    [
        ([], 'advisor run . "..." advisor serve .'),
        (
            [{"path": "a.jsonl", "format": "pool"}],
            'advisor run . "..." --pool models.txt advisor serve . --pool models.txt',
        ),
    ],
)
def test_the_first_screen_has_the_next_command_below_the_date(
    tmp_path: Path, result: dict[str, Any], logs: list[Any], commands: str
) -> None:
    changed = recommending(result, "vote")
    changed["provenance"] = {**changed["provenance"], "logs": logs, "date": "2026-03-04T05:06:07+00:00"}
    page = written(tmp_path, changed)
    assert f": {commands} " in first_screen(page)
    assert ", 2026-03-04" in text_of(page).partition("Not checked")[0]


def groups_of(*gains: tuple[str, int, float, str]) -> list[dict[str, Any]]:
    return [{"group": name, "n": n, "gain": gain, "gain_ci": None, "shown": shown} for name, n, gain, shown in gains]


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        (
            groups_of(("math", 100, 13.4, "yes"), ("law", 90, -0.5, "not_yet"), ("art", 10, -9.0, "no")),
            "The gain comes mostly from math (+13.4); 2 of 3 groups lose, 1 of them by more than chance.",
        ),
        (
            groups_of(*((name, 10, 2.0, "not_yet") for name in "abcde")),
            "The gain is spread over 5 groups, most of it in a (+2.0), b (+2.0) and c (+2.0).",
        ),
        (
            groups_of(*((name, 10, 2.0, "not_yet") for name in "abcdefg")),
            "The gain is spread over 7 groups, the largest part in a (+2.0), b (+2.0) and c (+2.0).",
        ),
        (groups_of(("a", 10, -2.0, "not_yet"), ("b", 10, 1.0, "not_yet")), ""),
        (groups_of(("a", 10, 2.0, "not_yet")), ""),
    ],
)
def test_where_a_gain_comes_from_is_one_sentence(groups: list[dict[str, Any]], sentence: str) -> None:
    assert source_of_gain([GroupFigures.model_validate(each) for each in groups]) == sentence


def test_a_group_without_a_measured_gain_is_no_source_of_it() -> None:
    groups = groups_of(("math", 100, 2.0, "yes"), ("law", 100, 1.0, "not_yet"))
    groups[1]["observed"] = -0.2
    sentence = source_of_gain([GroupFigures.model_validate(each) for each in groups])
    assert sentence == "The gain comes mostly from math (+2.0)."


def test_the_report_says_how_to_repeat_and_to_cite_it(page: str) -> None:
    assert "advisor select --pool demo --task word_problems --out runs/demo" in page
    assert "@inproceedings{yao2025determine," in page and "@software{unite_advisor," in page


def test_the_interval_of_the_gain_has_its_true_confidence_and_warnings_follow(
    tmp_path: Path, result: dict[str, Any]
) -> None:
    changed = recommending(result, "vote")
    changed["advice"] |= {"confidence": 0.8, "warnings": ["these questions were looked at before"]}
    first = first_screen(written(tmp_path, changed))
    places = ("80% interval ", "Better than terse-pieces alone", "these questions were looked at before.")
    assert [first.index(place) for place in places] == sorted(first.index(place) for place in places)


def recommending(result: dict[str, Any], *names: str) -> dict[str, Any]:
    """A result that recommends the first strategy of a name."""
    strategies = sorted(result["strategies"], key=lambda row: row["strategy"] not in names)
    return {**result, "strategies": strategies, "advice": {**result["advice"], "recommendation": recommend(strategies)}}


def without_recommendation(result: dict[str, Any]) -> dict[str, Any]:
    """A result without held-out questions for strategies."""
    return {**result, "strategies": [], "advice": {**result["advice"], "recommendation": None}}


def test_without_a_recommendation_the_headline_is_the_verdict(tmp_path: Path, result: dict[str, Any]) -> None:
    text = text_of(written(tmp_path, without_recommendation(result)))
    assert "Ensemble these three models." in text
    assert "Recommended" not in text and "Calls" not in text


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("vote", "Take a vote of three models."),
        ("unite", "Decode these three models together."),
        ("single", "Use {} alone."),
    ],
)
def test_the_headline_is_what_to_run(tmp_path: Path, result: dict[str, Any], name: str, headline: str) -> None:
    changed = recommending(result, name)
    page = written(tmp_path, changed)
    assert headline.format(changed["strategies"][0]["members"][0]) in text_of(page)
    assert "too close to call" not in text_of(page).lower()
    # The row of the table is marked once.
    assert strategies_table(page).count('<span class="tag">recommended</span>') == 1
    marked = page.partition('<tr class="recommended">')[2].partition("</tr>")[0]
    assert changed["strategies"][0]["members"][0] in marked


@pytest.mark.parametrize(
    ("name", "change", "finding"),
    [
        ("vote", {}, "Three models together beat any one, at 2.3 times the price"),
        (
            "vote",
            {"probability": 0.7, "price_per_1000": 1.0},
            "Three models together probably beat any one, at twice the price",
        ),
        (
            "vote",
            {"price_per_1000": None, "calls_per_question": 3.1},
            "Three models together beat any one, at three times the calls",
        ),
        ("single", {}, "No combination is worth its cost: terse-pieces alone is the choice"),
        (
            "vote",
            {"strategy": "group_router", "routes": {"law": "terse-bytes"}, "price_per_1000": 0.5},
            "One of three models for each question beats any one, at the same price",
        ),
        (
            "vote",
            {"strategy": "self_consistency", "members": ["terse-pieces"], "draws": 3, "price_per_1000": None},
            "Several answers of one model beat any one, at 2.3 times the calls",
        ),
    ],
)
def test_the_title_of_the_strategies_says_what_was_found(
    tmp_path: Path, result: dict[str, Any], name: str, change: dict[str, Any], finding: str
) -> None:
    changed = recommending(result, name)
    changed["advice"]["recommendation"] |= change
    values = section_values(read(write_json(tmp_path, changed)))
    assert values["strategies"]["finding"] == finding
    # The first screen says how far the next model is behind one that is recommended alone.
    models = r"Five models have [0-9.]+ to [0-9.]+ points"
    if name != "single":
        models = r"Alone, [\w-]+ is the best of five; [\w-]+ is [0-9.]+ points behind"
    assert re.fullmatch(models, values["models"]["finding"])


def test_the_title_of_the_examples_counts_what_changes(tmp_path: Path, result: dict[str, Any]) -> None:
    samples = make_samples(dev=0, held_out=8)
    for sample in samples:
        sample["ensemble"] = sample["responses"][result["ensemble"]["best_single_model"]]
    folder = write_samples(write_json(tmp_path, result), samples)
    finding = section_values(read(folder))["examples"]["finding"]
    assert finding == "Together and alone, the same questions are right"


def test_the_only_strategy_is_not_compared_with_others(tmp_path: Path, result: dict[str, Any]) -> None:
    changed = recommending(result, "single")
    changed["strategies"] = changed["strategies"][:1]
    page = written(tmp_path, changed)
    assert "Nothing was compared, because this is the only strategy." in first_screen(page)
    assert "Strategies There was no combination to compare" in text_of(page)


def test_how_sure_it_is_and_the_verdict_on_the_set_are_two_things(tmp_path: Path, result: dict[str, Any]) -> None:
    changed = recommending(result, "vote")
    told = changed["advice"]["recommendation"]
    told |= {"probability": 0.8, "expected_gain": 1.0, "expected_gain_ci": [-1.0, 3.0]}
    told |= {"questions": 200, "measured_gain_ci": [-1.5, 3.5]}
    text = text_of(written(tmp_path, changed))
    assert re.search("probability 0.80; [0-9]+ more labels: 0.90 if the gain is real[.]", text)
    assert "Strategies Three models together probably beat any one" in text
    assert "Three models that decode together are better than one" in text


def test_another_best_model_on_the_held_out_questions_is_explained(tmp_path: Path, result: dict[str, Any]) -> None:
    primary = result["selected"][0]
    other = result["selected"][1]
    for row in result["strategies"]:
        row["best_single_model"] = other
    result["ensemble"]["best_single_model"] = other
    sentence = f"{primary} is the most accurate model on the dev questions, {other} on the dev and held-out questions"
    assert text_of(written(tmp_path, result)).count(sentence) == 1
    for row in result["strategies"]:
        row["best_single_model"] = primary
    result["ensemble"]["best_single_model"] = primary
    assert "the most accurate model on the dev questions," not in text_of(written(tmp_path, result))


def test_every_candidate_is_there_with_its_status_and_reason(run: Path, page: str) -> None:
    text = text_of(page)
    for candidate in json.loads((run / "result.json").read_text(encoding="utf-8"))["candidates"]:
        assert candidate["model"] in text
        assert candidate["reason"][1:] in text
    for status in ("Primary", "Chosen", "Not chosen", "Failed"):
        assert status in text


def test_the_policy_allows_the_one_style_and_the_one_script(page: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy and "default-src 'none'" in policy[1].replace("&#39;", "'")
    for element, directive in (("style", "style-src"), ("script", "script-src")):
        contents = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        assert len(contents) == 1
        digest = base64.b64encode(hashlib.sha256(contents[0].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy[1].replace("&#39;", "'").replace("&#43;", "+")
    assert not re.search(r"<[^>]*\sstyle=|<[^>]*\son[a-z]+=", page)


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    assert not re.search(r"""\ssrc=|\shref="(?!#)|@import|url\(|https?://(?!www\.w3\.org/2000/svg)""", page)


def test_the_same_files_give_the_same_bytes_and_no_other_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path, dev=5, held_out=5)
    assert write_report(folder).read_bytes() == write_report(folder).read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "result.json", "samples.jsonl"]


def test_an_old_report_stays_where_the_new_one_fails(tmp_path: Path) -> None:
    folder = write_run(tmp_path, dev=5, held_out=5)
    before = write_report(folder).read_bytes()
    (folder / "samples.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(InputError):
        write_report(folder)
    assert (folder / "report.html").read_bytes() == before


def test_no_library_that_runs_models_is_loaded(run: Path) -> None:
    code = f"import sys; from pathlib import Path; from reports import write_report; write_report(Path({str(run)!r}))"
    early = "import sys, reports.report_data; assert 'matplotlib' not in sys.modules"
    loaded = "sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", f"{early}; {code}; {loaded}"], check=True)


def test_without_samples_the_report_is_made_and_says_so(tmp_path: Path, result: dict[str, Any]) -> None:
    assert "The run folder has no samples.jsonl" in text_of(written(tmp_path, result))
    (tmp_path / "samples.jsonl").write_text("\n", encoding="utf-8")
    assert "samples.jsonl has no examples" in text_of(written(tmp_path, result))


def test_a_result_of_bare_profiles_is_drawn(tmp_path: Path) -> None:
    candidates = [{"model": "a", "accuracy": 70.0, "status": "primary"}, {"model": "b", "accuracy": None}]
    page = written(tmp_path, {"schema_version": 2, "candidates": candidates, "selected": ["a"], "news": {"x": 1}})
    assert "Too close to call." in text_of(page)


def test_a_result_where_every_candidate_failed_is_drawn(tmp_path: Path) -> None:
    failed = {"model": "a", "status": "failed", "reason": "out of memory"}
    result = {"schema_version": 2, "candidates": [failed], "selected": []}
    assert "out of memory" in text_of(written(tmp_path, result))


def test_of_many_candidates_the_best_are_compared_in_pairs(tmp_path: Path) -> None:
    candidates = [
        {"model": f"m{i}", "accuracy": 80 - i / 4, "accuracy_ci": [70, 82], "mean_length": 50 + i, "status": "rejected"}
        for i in range(100)
    ]
    candidates[0]["status"] = "primary"
    pairs = [{"a": f"m{i}", "b": f"m{j}", "gap": (j - i) / 4} for i in range(100) for j in range(i + 1, 100)]
    result = {"schema_version": 2, "candidates": candidates, "selected": ["m0"], "pairs": pairs}
    page = written(tmp_path, result)
    assert page.count('<figure class="matrix">') == 1 and page.count(' data-row="11" ') == 11
    assert 'data-row="12"' not in page and "88 other models are in result.json" in text_of(page)
    assert len(page.encode()) < 2_000_000


def test_the_page_marks_the_answer_in_a_response_and_has_the_share_of_responses_with_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    result["candidates"][0]["answered"] = 91.5
    page = page_of(write_json(folder, result))
    assert re.search(
        r'"text":"The answer is \d+\.",[^}]*"place":\[14,1[5-7]\]', page.replace(": ", ":").replace(", ", ",")
    )
    assert re.search(r'data-label="Answered" data-value="91.5">91.5%', page)


def test_five_candidates_and_many_long_examples_stay_below_two_megabytes(tmp_path: Path) -> None:
    samples = make_samples(dev=60, held_out=60)
    for number, sample in enumerate(samples):
        sample["prompt"] = f"Question {number}: {'why? <&> ' * 300}"
        for response in (*sample["responses"].values(), *([sample["ensemble"]] if sample["ensemble"] else [])):
            response["text"] += " because of this & <that>" * 200
    page = written(write_samples(tmp_path, samples), make_result())
    assert len(page.encode()) <= 2_000_000
    assert "the others are in samples.jsonl" in text_of(page)


def test_what_every_prompt_begins_with_is_kept_once(tmp_path: Path) -> None:
    shots = "Question: What is 1 + 1?\nAnswer: The answer is 2, as everyone knows well.\n\n" * 5
    samples = make_samples(dev=4, held_out=4)
    for sample in samples:
        sample["prompt"] = shots + sample["prompt"]
    page = written(write_samples(tmp_path, samples), make_result())
    assert page.count("as everyone knows well") == 5


_EMPTY = '{"schema_version": 2, "candidates": [], "selected": []}'


@pytest.mark.parametrize(
    ("files", "place", "way_out"),
    [
        (None, "nowhere: no such folder", "give a run folder"),
        ({}, "has no result.json", "give a run folder"),
        ({"result.json": '{\n"schema_version":\n}'}, "result.json:3: not JSON", "restore the file"),
        (
            {"result.json": '{"schema_version": 3}'},
            "result.json: schema_version should be 2",
            "run `advisor select` again",
        ),
        (
            {"result.json": _EMPTY, "samples.jsonl": '{"id": "a", "split": "dev"}\n{"id":\n'},
            "samples.jsonl:2: not JSON",
            "restore the file",
        ),
        (
            {"result.json": _EMPTY, "samples.jsonl": '{"id": "a", "split": "dev", "responses": []}\n'},
            "samples.jsonl:1: responses should be an object",
            "restore the file",
        ),
    ],
)
def test_bad_input_is_one_line_with_place_and_way_out(
    tmp_path: Path, files: dict[str, str] | None, place: str, way_out: str
) -> None:
    folder = tmp_path / "nowhere"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        write_report(folder)
    message = str(caught.value)
    assert place in message and way_out in message and "\n" not in message
    assert not (folder / "report.html").exists()


def test_groups_and_memory_are_shown_where_they_are_known(page: str) -> None:
    text = text_of(page)
    assert "three steps 180 70.0 70.0 70.0 70.0 70.0 two steps 120 81.5" in text
    assert "640 MB" in text and "1.7 GB" in text


def test_a_refusal_does_not_wait_for_the_drawing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reports.page", None)  # which loads it: an import would be an error
    with pytest.raises(InputError, match=r"has no result\.json"):
        write_report(tmp_path)


@pytest.mark.parametrize(("name", "is_said"), [("vote", True), ("unite", False)])
def test_a_card_of_the_set_says_if_another_strategy_is_recommended(
    tmp_path: Path, result: dict[str, Any], name: str, is_said: bool
) -> None:
    changed = recommending(result, name)
    for row in changed["strategies"]:
        row["members"] = result["selected"] if len(row["members"]) > 1 else row["members"]
    card = evidence(Run.open(write_json(tmp_path, changed)).result)
    assert "**Ensemble these" in card
    assert ("The run recommends another strategy than this set." in card) is is_said


def strategies_table(page: str) -> str:
    return page.partition('<table class="board sortable strategies">')[2].partition("</table>")[0]


def test_strategies_are_a_table_with_their_figures(tmp_path: Path, result: dict[str, Any]) -> None:
    vote = next(row for row in result["strategies"] if row["strategy"] == "vote")
    vote |= {
        "strategy": "learned_vote",
        "weights": [1.52, 0.7, 0.66],
        "expected_gain": -4.0,
        "expected_gain_ci": [-9.0, 1.0],
        "probability": 0.71,
        "price_per_1000": 1.2,
    }
    table = strategies_table(written(tmp_path, result))
    row = table.partition('data-value="Learned vote, 3 models"')[2].partition("</tr>")[0]
    for shown in (
        "77.0",
        "\u22124.0",
        "\u22129.0 to +1.0",
        "0.71",
        f"{vote['calls_per_question']:.2f}",
        f"{vote['tokens_per_question']:.1f}",
        f"{1000 * vote['seconds_per_question']:.1f} ms",
        "$1.20",
        "(1.5)",
    ):
        assert shown in row, shown
    # A loss has another colour than a gain.
    assert '<span class="loss">\u22124.0' in row and table.count('class="loss"') == 2


def test_a_loss_has_another_colour_than_a_gain(tmp_path: Path, page: str, result: dict[str, Any]) -> None:
    assert "a loss" not in first_screen(page)
    told = result["advice"]["recommendation"]
    told |= {"expected_gain": -34.0, "expected_gain_ci": [-40.0, -28.0]}
    lost = written(tmp_path, result)
    assert '<p class="delta loss">' in lost and '<p class="delta">' in page
    assert "\u221234.0 points expected – a loss – against" in text_of(lost)


def section(page: str, name: str) -> str:
    return text_of(page.partition(f'<details class="row" id="{name}"')[2].partition('<details class="row"')[0])


def test_of_many_groups_those_that_are_hurt_are_shown_first(tmp_path: Path, result: dict[str, Any]) -> None:
    changed = recommending(result, "vote")
    group = {"n": 9, "observed": 1.0, "gain": 1.0, "gain_ci": [0.0, 2.0], "shown": "not_yet"}
    groups = [{**group, "group": f"g{number}", "gain": float(number)} for number in range(200)]
    changed["advice"]["recommendation"]["groups"] = [*groups, {**group, "group": "hurt", "gain": 300.0, "shown": "no"}]
    text = section(written(tmp_path, changed), "groups")
    assert text.partition("Shown ")[2].startswith("hurt 9 +300.0 ")
    assert "g38 9" in text and "g39 9" not in text
    assert "40 of 201 groups" in text


def test_looks_are_a_table_with_what_each_shows(tmp_path: Path, result: dict[str, Any]) -> None:
    text = section(written(tmp_path, result), "set")
    assert "50 0.040 0.015 nothing yet" in text and "100 0.031 0.045 a gain" in text


def single_with_groups(result: dict[str, Any]) -> dict[str, Any]:
    changed = recommending(result, "single")
    changed["strategies"][0]["groups"] = groups_of(("math", 100, 0.0, "not_yet"), ("law", 90, 0.0, "not_yet"))
    return changed


def without_groups(result: dict[str, Any]) -> dict[str, Any]:
    return {**result, "candidates": [{**candidate, "groups": None} for candidate in result["candidates"]]}


@pytest.mark.parametrize(
    ("section", "part", "change"),
    [
        ("groups", "gains", single_with_groups),  # a single model gains nothing over itself
        ("groups", "gains", lambda result: recommending(result, "unite")),
        ("groups", "models", without_groups),
        ("set", "looks", lambda result: {**result, "looks": result["looks"][:1]}),  # a single look is not worth a table
        ("strategies", "", lambda result: {**result, "strategies": []}),
    ],
)
def test_a_section_that_would_say_nothing_is_left_out(
    tmp_path: Path,
    result: dict[str, Any],
    section: str,
    part: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    found = section_values(read(write_json(tmp_path, change(result)))).get(section)
    assert found is None or found[part] is None
