"""Scores of logs that cannot be read: refused where one outcome may be what is not read, and said for each model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pools import Place

from tests.logs import write_lines, write_table

pytest_plugins = ["pools"]

N = 60
MODELS = {"alpha": 0.7, "beta": 0.6}
VALUES = [
    *(("1", ""), ("1", "-1"), ("1", "-"), ("correct", ""), ("yes", ""), ("1", "N/A"), ("TRUE", ""), ("1.0", "nan")),
    *(("correct", "-"), ("right", "null"), ("True", "None"), ("OK", "KO"), ("", "0"), ("x", "false")),
]
"""How a right and a wrong answer are written; one of the two or both cannot be read."""


def outcomes() -> dict[str, list[bool]]:
    chance = np.random.default_rng(0)
    return {name: (chance.random(N) < accuracy).tolist() for name, accuracy in MODELS.items()}


def write(form: str, folder: Path, right: object, wrong: object) -> tuple[str, ...]:
    """A log in which all answers are right or wrong; the arguments that name it."""
    known = outcomes()
    values = {name: [right if is_right else wrong for is_right in own] for name, own in known.items()}
    if form == "wide":
        rows = [{"id": n, "question": f"Q{n}?", **{name: values[name][n] for name in MODELS}} for n in range(N)]
    else:
        rows = [
            {"id": n, "question": f"Q{n}?", "model": name, "score": values[name][n]}
            for n in range(N)
            for name in MODELS
        ]
    if form == "pool":
        of_question = [{m: ["A", values[m][n], 3] for m in MODELS} for n in range(N)]
        rows = [{"id": str(n), "question": "?", "reference": "A", "models": each} for n, each in enumerate(of_question)]
    if form in ("jsonl", "pool"):
        lines = [{key: value for key, value in row.items() if value != ""} for row in rows]
        return "--logs", str(write_lines(folder / "log.jsonl", lines))
    write_table(folder / "log.csv", rows)
    return "--logs", "log.csv", *(("--column", "models=alpha,beta") if form == "wide" else ())


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [*(("wide", *pair) for pair in VALUES)]
    + [(form, *pair) for form in ("long", "jsonl", "pool") for pair in VALUES[:3]],
)
def test_scores_of_one_readable_outcome_are_refused_and_a_map_reads_them(
    form: str, right: str, wrong: str, place: Place
) -> None:
    arguments = write(form, place.folder, right, wrong)
    ran = place.advisor("compare", *arguments)
    assert (ran.status, ran.out) == (2, "")
    line = ran.err.splitlines()[-1]
    assert "cannot be read: " in line
    assert "alpha (" in line
    assert "--score-map" in line
    ran = place.advisor("compare", *arguments, "--score-map", f"{right}=1,{wrong}=0", "--json")
    assert ran.status == 0, ran.err
    points = {each["model"]: each["accuracy"] for each in json.loads(ran.out)["models"]}
    assert points == {name: pytest.approx(100 * np.mean(own)) for name, own in outcomes().items()}


def test_few_unreadable_scores_are_said_of_each_model(place: Place) -> None:
    arguments = write("long", place.folder, 1, 0)
    path = place.folder / "log.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[1] = lines[1].rpartition(",")[0] + ",-"
    path.write_text("\n".join(lines), encoding="utf-8")
    ran = place.advisor("compare", *arguments)
    assert ran.status == 0
    assert "1 score cannot be read, and the responses are left out: alpha (1)" in ran.err


def test_where_all_answers_are_right_and_nothing_is_unread_the_models_are_compared(place: Place) -> None:
    assert place.advisor("compare", *write("long", place.folder, 1, 1)).status == 0


@pytest.mark.parametrize("text", ["correct", "correct=2", "correct=x", "a=1,A=0", "", "3-3", "1-"])
def test_a_map_that_cannot_be_read_is_refused(text: str, place: Place) -> None:
    arguments = write("long", place.folder, 1, 0)
    assert place.refused("compare", *arguments, "--score-map", text).startswith("advisor: --score-")


SCALES = {
    "1-5": (5, 2, 0.25),
    "0-100": (100, 40, 0.4),
    "-1-1": (1, -1, 0.0),
    "0-10": (10, 0, 0.0),
    "1-10": (9.0, 3.0, 2 / 9),
    "0-5": ("5", "0.5", 0.1),
}
"""A scale, what right and wrong answers have on it, and the score of a wrong one."""


@pytest.mark.parametrize(("form", "scale"), [*(("wide", each) for each in SCALES), ("long", "1-5"), ("pool", "-1-1")])
def test_another_scale_is_named_and_read(form: str, scale: str, place: Place) -> None:
    right, wrong, low = SCALES[scale]
    arguments = write(form, place.folder, right, wrong)
    line = place.refused("compare", *arguments)
    assert f"--score-range {scale}," in line
    ran = place.advisor("compare", *arguments, "--score-range", scale, "--json")
    high = 8 / 9 if right == 9 else 1
    points = {each["model"]: each["accuracy"] for each in json.loads(ran.out)["models"]}
    assert points == {
        name: pytest.approx(100 * np.mean([high if is_right else low for is_right in own]))
        for name, own in outcomes().items()
    }


def test_a_value_outside_of_the_scale_is_not_clipped(place: Place) -> None:
    arguments = write("long", place.folder, 6, 1)
    assert "cannot be read: " in place.refused("compare", *arguments, "--score-range", "1-5")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("Y", "N"), ("PASS", "FAIL"), ("TRUE", "incorrect"), ("100%", "0%"), ("1,0", "0,0"), ("Right", "Wrong")],
)
def test_usual_words_and_spellings_are_scores(right: str, wrong: str, place: Place) -> None:
    arguments = write("wide", place.folder, right, wrong)
    ran = place.advisor("compare", *arguments, "--json")
    points = {each["model"]: each["accuracy"] for each in json.loads(ran.out)["models"]}
    assert points == {name: pytest.approx(100 * np.mean(own)) for name, own in outcomes().items()}


def test_a_model_with_many_unread_scores_is_refused_beside_many_others(place: Place) -> None:
    known = outcomes()["alpha"]
    rows = [(n, f"m{m}", int(known[n]) if m or known[n] else "") for n in range(N) for m in range(20)]
    text = "id,model,score\n" + "".join(f"{n},{model},{score}\n" for n, model, score in rows)
    (place.folder / "log.csv").write_text(text, encoding="utf-8")
    assert "cannot be read: m0 (" in place.refused("compare", "--logs", "log.csv")
