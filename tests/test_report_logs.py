"""The report of a run on logs: no model ran, texts and lengths may be missing."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from logs import write_lines
from pools import Place, shared_place
from report_fixture import data_of

pytest_plugins = ["pools"]

SKILLS = {"large": 0.75, "medium": 0.72, "small": 0.7, "weak": 0.02}


def pool(*, lengths: bool) -> list[dict[str, Any]]:
    """The lines of a pool of four models, three of which are about equally good."""
    chance = random.Random(3)
    lines = []
    for number in range(120):
        answers = {}
        for place, (name, skill) in enumerate(SKILLS.items()):
            right = chance.random() < skill
            length = 40 + 10 * place if lengths else None
            answers[name] = ["7" if right else f"-{place}", int(right), length]
        line = {"id": number, "question": f"{number} + 7 = ?", "group": "sums", "reference": "7", "models": answers}
        lines.append(line)
    return lines


def logs_run(place: Place, *, lengths: bool) -> SimpleNamespace:
    write_lines(place.folder / "sums.jsonl", pool(lengths=lengths))
    ran = place.advisor("select", "--logs", "sums.jsonl", "--out", "run")
    assert ran.status == 0
    page = (place.folder / "run" / "report.html").read_text(encoding="utf-8")
    return SimpleNamespace(out=ran.out, err=ran.err, result=place.json(), samples=place.samples(), page=page)


def sections(page: str) -> list[str]:
    return [part.partition('"')[0] for part in page.split('<details class="row" id="')[1:]]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    with shared_place(tmp_path_factory.mktemp("logs")) as place:
        return logs_run(place, lengths=True)


def test_what_only_models_have_is_left_out(logs: SimpleNamespace) -> None:
    assert sections(logs.page) == ["strategies", "examples", "models", "lengths", "provenance"]
    assert logs.result["ensemble"] is None
    assert logs.result["task"]["max_new_tokens"] is None


def test_without_lengths_nothing_about_lengths_is_shown(drawings: None, place: Place) -> None:
    run = logs_run(place, lengths=False)
    assert "lengths" not in sections(run.page) and 'id="map"' not in run.page
    assert 'data-label="Mean length"' not in run.page and "characters on average" not in run.page
    leaderboard = run.err.partition("Strategies")[0]
    assert "length" not in leaderboard.splitlines()[2]


def test_the_logs_and_their_format_are_in_the_provenance(logs: SimpleNamespace) -> None:
    table = logs.page.partition('<table class="plain logs">')[2].partition("</table>")[0]
    assert "sums.jsonl" in table and "<bdi>pool</bdi>" in table


def test_one_group_is_the_whole_task_and_has_no_figures(logs: SimpleNamespace) -> None:
    for candidate in logs.result["candidates"]:
        assert candidate["groups"] is None and candidate["accuracy_macro"] is None
    assert "macro" not in logs.err and "kinds of questions" not in logs.page


def test_what_is_said_first_of_logs_does_not_speak_of_decoding(logs: SimpleNamespace) -> None:
    for words in (logs.page.partition("<body>")[2].partition('id="provenance"')[0], logs.out, logs.err):
        assert not re.search("decod|[Rr]ejected|[Pp]rimary", re.sub("<[^>]*>", " ", words))
    assert "In the recommendation" in logs.page


def test_no_option_is_named_that_was_not_given(logs: SimpleNamespace) -> None:
    assert "--no-verify" not in logs.out + logs.page and "--scores" not in logs.out + logs.page


def brute_tags(sample: dict[str, Any], best: str) -> set[str]:
    """What the response that is taken changes, without the project's code."""
    right, alone = (sample["responses"][name]["score"] == 1 for name in (sample["recommended"]["model"], best))
    return {"recovered"} if right and not alone else {"broken"} if alone and not right else set()


def test_examples_are_tagged_by_what_the_recommended_strategy_changed(logs: SimpleNamespace) -> None:
    data = data_of(logs.page)
    best = logs.result["strategies"][0]["best_single_model"]
    samples = {sample["id"]: sample for sample in logs.samples if sample["split"] == "held_out"}
    shown = [example for example in data["examples"] if example["split"] == "held_out"]
    assert len(shown) == len(samples) == 60
    tagged = {example["id"]: {"recovered", "broken"} & set(example["tags"]) for example in shown}
    assert tagged == {name: brute_tags(sample, best) for name, sample in samples.items()}
    assert any(tagged.values())
    names = [candidate["model"] for candidate in logs.result["candidates"]]
    assert all(names[example["taken"]] == samples[example["id"]]["recommended"]["model"] for example in shown)
    for example in shown:
        read = {
            names[each["by"]]: each.get("extracted") for each in example["responses"] if isinstance(each["by"], int)
        }
        found = samples[example["id"]]["responses"]
        assert read == {name: found[name]["extracted"] for name in read} != {}


def test_answers_without_a_text_are_shown_as_answers(logs: SimpleNamespace) -> None:
    assert all(response["text"] is None for response in logs.samples[0]["responses"].values())
    data = data_of(logs.page)
    shown = data["examples"][0]["responses"]
    assert all("text" not in each and each["extracted"] for each in shown) and 40 in {each["length"] for each in shown}


def test_groups_of_models_have_all_questions(place: Place) -> None:
    lines = [{**line, "group": "even" if line["id"] % 2 == 0 else "odd"} for line in pool(lengths=False)]
    write_lines(place.folder / "sums.jsonl", lines)
    assert place.advisor("select", "--logs", "sums.jsonl", "--out", "run").status == 0
    result = place.json()
    for model in result["single_models"]:
        right = [line["models"][model["model"]][1] for line in lines if line["group"] == "even"]
        found = model["groups"]["even"]
        assert (found["n"], found["accuracy"]) == (len(right), pytest.approx(100 * sum(right) / len(right)))
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "On all 120 questions, dev and held-out" in page
