"""Labels in place of references: which questions need one, and that the comparison is that of all labels."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from logs import write_lines, write_table
from pools import Place, Prepare

from advisor.advice.comparison import compare_by_labels, fitting_voters
from advisor.advice.gain import cross_fitted_gain
from advisor.advice.labels import (
    OpenQuestion,
    accuracy_by_labels,
    gain_by_labels,
    open_questions,
    with_labels,
)
from advisor.logs.join import join_logs
from advisor.records import Limits, Profile
from advisor.run.folder import Run
from advisor.statistics import scores
from advisor.strategies import default_strategy
from advisor.strategies.replay import replay_all
from advisor.strategies.strategy import FEWEST_VOTERS, AnsweredSplit, Single

pytest_plugins = ["pools"]

POOLS = Path(__file__).resolve().parents[1].parent / "shared" / "pools"
MODELS = ("small", "medium", "large", "other")
QUESTIONS = 120


def truth(number: int) -> str:
    return str(number + 3)


def write_log(folder: Path, *, scored: bool = False, changed: int | None = None) -> Path:
    """A log of four models, each right on about 70% of sums; without scores and references unless it is scored."""
    chance, lines = np.random.default_rng(1), []
    for number in range(QUESTIONS):
        right = truth(number)
        models: dict[str, list[Any]] = {}
        for model in MODELS:
            answer = right if chance.random() < 0.7 else str(number + int(chance.integers(4, 7)))
            models[model] = [answer, float(answer == right) if scored else None, 5]
        if number == changed:
            models["large"][0] = "-1"
        lines.append({"id": number, "question": f"{number} + 3?", "models": models})
    return write_lines(folder / "sums.jsonl", lines)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fill(path: Path, only: Callable[[int, dict[str, str]], bool] = lambda _, __: True) -> None:
    """Label the rows of a table, as a person who knows how to add."""
    rows = rows_of(path)
    for number, row in enumerate(rows):
        if only(number, row):
            answer = truth(int(row["question"].partition(" ")[0]))
            row["right"] = next((letter for letter in "ABCD" if row.get(letter) == answer), "none")
    write_table(path, rows)


@pytest.fixture
def begun(place: Place, prepare: Prepare) -> Place:
    """A folder with a log and a table whose first round is labelled, and whose second one is not."""

    def make() -> None:
        write_log(place.folder)
        assert place.advisor("label", "--logs", "sums.jsonl").status == 0
        fill(place.folder / "labels.csv")
        ran = place.advisor("label", "--logs", "sums.jsonl", "--labels", "labels.csv", "--accuracy", "20")
        assert ran.status == 0, ran.err

    prepare("begun", place, make)
    return place


@pytest.fixture
def labelled(begun: Place, prepare: Prepare) -> Place:
    """The same with all labels, and with the run that they give."""

    def make() -> None:
        fill(begun.folder / "labels.csv")
        select(begun)

    prepare("labelled", begun, make)
    return begun


def select(place: Place, *more: str) -> Any:
    ran = place.advisor("select", "--logs", "sums.jsonl", "--labels", "labels.csv", "--out", "run", "--force", *more)
    assert ran.status == 0, ran.err
    return result_of(place)


def result_of(place: Place) -> Any:
    return Run.open(place.folder / "run").result


def refused(place: Place, *more: str) -> str:
    ran = place.advisor("select", "--logs", "sums.jsonl", "--labels", "labels.csv", "--quiet", *more)
    assert ran.status == 2, ran.err
    return ran.line


@pytest.mark.parametrize(
    "name", ["math-l5", pytest.param("mmlu-pro", marks=pytest.mark.second_lane), "lineage-2025", "bfcl-part"]
)
def test_the_labels_of_the_table_give_the_comparison_of_all_labels_to_the_last_digit(name: str) -> None:
    path = POOLS / f"{name}.jsonl.xz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    logs = join_logs([str(path)])
    chance, compared = np.random.default_rng(0), 0
    right: dict[tuple[str, str | None], float] = {}
    for profile in logs.profiles.values():
        for answer in profile.answers:
            # In some pools an answer has another score with one model than with another one.
            right.setdefault((answer.id, answer.extracted), float(answer.score))
    for _ in range(5):
        models = chance.choice(list(logs.profiles), 6, replace=False).tolist()
        dev, held_out = (
            AnsweredSplit(
                logs.task(split, own, 0),
                {
                    each: Profile(
                        each,
                        tuple(
                            replace(answer, score=right[answer.id, answer.extracted])
                            for answer in logs.profiles[each].part(own).answers
                        ),
                    )
                    for each in models
                },
            )
            for split, own in zip(("dev", "held_out"), logs.split(0, min(100, len(logs.examples) // 2)), strict=True)
        )

        def labels_of(questions: Sequence[OpenQuestion], split: AnsweredSplit) -> dict[str, frozenset[int]]:
            return {
                each.key: frozenset(
                    place
                    for place, answer in enumerate(each.answers)
                    if right[split.task.examples[each.number].id, answer] == 1
                )
                for each in questions
            }

        first = open_questions(dev, list(dev.profiles.values()), "choose", 0)
        labels = labels_of(first, dev)
        voters = fitting_voters(list(dev.profiles.values()), Limits())
        assert voters == fitting_voters(
            [with_labels(own, first, labels, 0.0) for own in dev.profiles.values()], Limits()
        )
        if len(voters) < FEWEST_VOTERS:
            continue
        strategy, single = default_strategy(voters), held_out.profiles[voters[0]]
        voted = replay_all(strategy, held_out).profile
        verify = open_questions(held_out, [voted, single], "verify", 0)
        found = labels_of(verify, held_out)
        profiles = {each: with_labels(own, verify, found) for each, own in held_out.profiles.items()}
        known = replace(held_out, profiles=profiles)
        labelled = np.zeros(len(held_out.task.examples), dtype=bool)
        labelled[[each.number for each in verify]] = True
        result = next(
            each
            for each in compare_by_labels(known, strategy, voters[0], labelled)
            if not isinstance(each.strategy, Single)
        )
        gain = cross_fitted_gain(scores(voted) - scores(single))
        assert result.gain == gain
        assert (result.figures.p_adjusted, result.gain.interval()) == (gain.p_no_gain, gain.interval())
        compared += 1
    assert compared


def test_select_gives_the_gain_that_it_gives_with_all_scores(labelled: Place) -> None:
    row = next(each for each in result_of(labelled).strategies if not each.is_single)
    logs = join_logs([str(write_log(labelled.folder, scored=True))])
    numbers = logs.split(0, QUESTIONS // 2)[1]
    held_out = {name: own.part(numbers) for name, own in logs.profiles.items()}
    voted = replay_all(row.key, AnsweredSplit(logs.task("held_out", numbers, 0), held_out)).profile
    gain = cross_fitted_gain(scores(voted) - scores(held_out[row.best_single_model or ""]))
    assert (row.measured_gain, row.measured_gain_ci, row.p_no_gain) == (gain.points, gain.interval(), gain.p_no_gain)


def test_within_recommends_the_cheapest_strategy_with_labels_too(labelled: Place) -> None:
    assert result_of(labelled).advice.recommendation.strategy == "vote"
    assert select(labelled, "--within", "100").advice.recommendation.strategy == "single"


def test_a_table_names_no_model_and_its_order_of_answers_tells_none(begun: Place) -> None:
    table = begun.folder / "labels.csv"
    text = table.read_text(encoding="utf-8")
    assert not any(model in text for model in MODELS)
    logs = join_logs([str(write_log(begun.folder, scored=True))])
    answers = {each.question: number for number, each in enumerate(logs.examples)}
    for model in MODELS:
        given = [
            (row, logs.profiles[model].answers[answers[row["question"]]].extracted)
            for row in rows_of(table)
            if row["round"] == "choose"
        ]
        first = np.mean([row["A"] == answer for row, answer in given])
        assert 0.25 < first < 0.75


def test_only_questions_with_different_answers_are_asked_for(place: Place) -> None:
    write_log(place.folder)
    place.advisor("label", "--logs", "sums.jsonl")
    rows = rows_of(place.folder / "labels.csv")
    assert all(row["A"] != row["B"] for row in rows)
    assert 0 < len(rows) < QUESTIONS // 2


def test_accuracy_is_null_without_labels_where_the_answers_agree(begun: Place) -> None:
    fill(begun.folder / "labels.csv", lambda _, row: row["round"] == "verify" or bool(row["right"]))
    result = select(begun)
    assert {each.accuracy for each in (*result.candidates, *result.strategies)} == {None}
    assert any("No accuracy is known" in warning for warning in result.advice.warnings)
    assert 'class="' in (begun.folder / "run" / "report.html").read_text(encoding="utf-8")


def test_accuracy_is_estimated_from_a_sample_of_the_other_questions(labelled: Place) -> None:
    for row in result_of(labelled).strategies:
        low, high = row.accuracy_ci
        assert low < row.accuracy < high


def test_an_answer_without_a_label_has_no_score(labelled: Place) -> None:
    known = {each["score"] for line in labelled.samples() for each in line["responses"].values()}
    assert known == {None, 0.0, 1.0}


def test_the_first_rows_of_the_second_round_are_enough(begun: Place) -> None:
    rows = [row for row in rows_of(begun.folder / "labels.csv") if row["round"] == "verify"]
    wanted = {row["key"] for row in rows[: len(rows) // 2]}
    fill(begun.folder / "labels.csv", lambda _, row: row["key"] in wanted)
    row = next(each for each in select(begun).strategies if not each.is_single)
    assert row.questions == QUESTIONS // 2


def test_labels_with_a_gap_are_refused(begun: Place) -> None:
    rows = [row for row in rows_of(begun.folder / "labels.csv") if row["round"] == "verify"]
    fill(begun.folder / "labels.csv", lambda _, row: row["key"] != rows[2]["key"])
    assert f"row {rows[2]['key']} of the round `verify` has no label" in refused(begun)


def test_a_spreadsheet_may_sort_the_rows_and_a_reference_is_as_good_as_a_letter(labelled: Place) -> None:
    table, before = labelled.folder / "labels.csv", result_of(labelled).strategies
    rows = sorted(rows_of(table), key=lambda row: row["question"])
    for row in rows[::2]:
        row["right"], row["reference"] = "", truth(int(row["question"].partition(" ")[0]))
    write_table(table, rows)
    assert select(labelled).strategies == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"right": "Z"}, "labels.csv:2: right is 'Z'; give A to"),
        ({"right": "A", "reference": "4"}, "labels.csv:2: it has both right and reference"),
        ({"key": "q0", "right": "A"}, "no question with these answers has the key 'q0'"),
        ({"A": "99"}, "labels.csv:2: answer A is '99', and was"),
        ({"right": ""}, "labels.csv: 1 of "),
        ({"round": "first"}, "labels.csv:2: round should be"),
    ],
)
def test_a_wrong_row_is_named_with_its_place(labelled: Place, change: dict[str, str], said: str) -> None:
    table = labelled.folder / "labels.csv"
    rows = rows_of(table)
    rows[0] |= change
    write_table(table, rows)
    assert said in refused(labelled)


def test_a_row_that_occurs_twice_is_refused(labelled: Place) -> None:
    table = labelled.folder / "labels.csv"
    rows = rows_of(table)
    write_table(table, [*rows, rows[0]])
    assert "its question is in labels.csv:2, too" in refused(labelled)


def test_answers_that_changed_since_are_refused(labelled: Place) -> None:
    chosen = rows_of(labelled.folder / "labels.csv")[0]
    write_log(labelled.folder, changed=int(chosen["question"].partition(" ")[0]))
    assert "the answers or earlier labels have changed" in refused(labelled)


def test_each_wrong_row_has_a_line(labelled: Place) -> None:
    table = labelled.folder / "labels.csv"
    rows = rows_of(table)
    for row in rows[:3]:
        row["right"] = "Z"
    write_table(table, rows)
    ran = labelled.advisor("select", "--logs", "sums.jsonl", "--labels", "labels.csv")
    assert ran.status == 2
    assert all(f"labels.csv:{line}: right is 'Z'" in ran.err for line in (2, 3, 4))


def test_a_table_is_not_written_over(begun: Place) -> None:
    ran = begun.advisor("label", "--logs", "sums.jsonl")
    assert (ran.status, ran.line) == (
        2,
        "advisor: --out labels.csv: it exists, and may have labels; give it as --labels, or give another --out",
    )


def test_formulas_in_answers_are_no_formulas_in_the_table(place: Place) -> None:
    lines = [
        {
            "id": n,
            "question": f"=q{n}",
            "models": {"a": ["=1+1", None, 4], "b": ["+2", None, 2], "c": [f"-{n}", None, 2]},
        }
        for n in range(20)
    ]
    write_lines(place.folder / "sums.jsonl", lines)
    assert place.advisor("label", "--logs", "sums.jsonl").status == 0
    rows = rows_of(place.folder / "labels.csv")
    assert all(cell.startswith("'") for row in rows for cell in (row["question"], row["A"], row["B"], row["C"]))


def test_json_lines_are_a_table_too(place: Place) -> None:
    write_log(place.folder)
    assert place.advisor("label", "--logs", "sums.jsonl", "--out", "labels.jsonl").status == 0
    table = place.folder / "labels.jsonl"
    rows = [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["reference"] = truth(int(row["question"].partition(" ")[0]))
    write_lines(table, rows)
    ran = place.advisor("label", "--logs", "sums.jsonl", "--labels", "labels.jsonl", "--json")
    assert (ran.status, json.loads(ran.out)["choose"]) == (0, len(rows))


def test_responses_of_a_table_without_references_are_read_by_a_metric(place: Place) -> None:
    rows = [
        {"question": f"{n} + 3?", **{model: f"It is {n + 3 + (n + k) % 3}." for k, model in enumerate("abc")}}
        for n in range(30)
    ]
    write_table(place.folder / "answers.csv", rows)
    ran = place.advisor("label", "--logs", "answers.csv", "--column", "models=a,b,c", "--metric", "number")
    assert ran.status == 0, ran.err
    assert {row["A"] for row in rows_of(place.folder / "labels.csv")} <= {str(n) for n in range(40)}


def test_a_task_without_references_is_for_labels_only(place: Place, models: Path) -> None:
    place.job(models)
    task = yaml.safe_load((place.folder / "task.yaml").read_text(encoding="utf-8"))
    del task["reference"]
    place.write("task.yaml", yaml.safe_dump({**task, "metric": "exact_match"}))
    line = place.refused("select", "--pool", "models.txt", "--task", "task.yaml")
    assert "reference is missing; add it, or label some answers (advisor label)" in line
    ran = place.advisor("label", "--pool", "models.txt", "--task", "task.yaml", "--quiet")
    assert ran.status == 0, ran.err
    assert len(rows_of(place.folder / "labels.csv")) == 6


@pytest.mark.parametrize("option", ["--no-verify", "--until-sure"])
def test_options_without_an_effect_are_refused(place: Place, option: str) -> None:
    line = place.refused("select", "--pool", "demo", "--task", "x", "--labels", "x.csv", option)
    assert "has no effect with --labels" in line


def test_the_interval_of_a_sample_of_the_labels_has_its_confidence() -> None:
    chance, inside, cases = np.random.default_rng(0), 0, 1500
    n, share, better = 300, 0.3, 0.6
    for _ in range(cases):
        differ = chance.random(n) < share
        wins = chance.random(n) < better
        labelled = differ & (chance.random(n) < 0.4)
        gain = gain_by_labels(wins.astype(float), (~wins).astype(float), differ, labelled)
        low, high = gain.interval()
        inside += low <= 100 * share * (2 * better - 1) <= high
    # 0.9 with a standard error of 0.008.
    assert 0.88 <= inside / cases <= 0.94


def test_the_interval_of_the_accuracy_has_its_confidence() -> None:
    chance, inside, cases = np.random.default_rng(0), 0, 1500
    n, share = 300, 0.3
    for _ in range(cases):
        differ = chance.random(n) < share
        right = np.where(differ, chance.random(n) < 0.5, chance.random(n) < 0.8).astype(float)
        sample = chance.choice(right[~differ], 40, replace=False)
        found = accuracy_by_labels(right[differ], sample, n)
        assert found is not None
        inside += found[1][0] <= 100 * (share * 0.5 + (1 - share) * 0.8) <= found[1][1]
    assert 0.935 <= inside / cases <= 0.985


@pytest.mark.parametrize("command", [("select", "--out", "run"), ("label",)])
def test_a_table_that_cannot_be_read_is_refused_before_a_model_runs(
    place: Place, models: Path, command: tuple[str, ...]
) -> None:
    place.job(models)
    place.task(metric="exact_match")
    run = (*command, "--pool", "models.txt", "--task", "task.yaml", "--labels")
    assert "gone.csv: cannot be read (No such file or directory); give another file" in place.refused(*run, "gone.csv")
    other = place.write("other.csv", "key,question\n1,What?\n")
    assert f"{other}: it has no column round; give a table that `advisor label` wrote" in place.refused(*run, other)
