"""The report as Markdown and as CSV, and the gain as right answers of 1,000."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from report_fixture import make_result, make_samples, write_json
from typer.testing import CliRunner

from advisor.cli import app
from advisor.runs.run import Run
from advisor.runs.schema.result import Result
from ensemble.common.text import of_thousand
from reports import write_report
from reports.formats import leaderboard_csv, markdown

HOSTILE = "=cmd|<b>x</b>`[a](b)"


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return make_result(make_samples())


def read(folder: Path, figures: dict[str, Any]) -> Result:
    return Run.open(write_json(folder, figures)).result


def renamed(folder: Path, figures: dict[str, Any]) -> Result:
    first = {**figures["candidates"][0], "model": HOSTILE}
    return read(folder, {**figures, "candidates": [first, *figures["candidates"][1:]]})


@pytest.mark.parametrize(
    ("gain", "ends", "said"),
    [
        (3.3, (1.2, 5.4), "33 more right (between 12 and 54)"),
        (-3.3, (-5.4, -1.2), "33 fewer right (between 12 and 54)"),
        (0.3, (-0.5, 1.1), "3 more right (between 5 fewer and 11 more)"),
        (0.0, (-0.5, 0.5), "as many right (between 5 fewer and 5 more)"),
        (200.0 / 3, None, "667 more right"),
    ],
)
def test_a_gain_is_told_as_right_answers(gain: float, ends: tuple[float, float] | None, said: str) -> None:
    assert of_thousand(gain, ends) == f"of 1,000 questions, {said}"


def test_markdown_has_the_decision_and_both_tables(tmp_path: Path, figures: dict[str, Any]) -> None:
    written = markdown(read(tmp_path, figures))
    for part in ("Expected gain: ", "of 1,000 questions", "Price of 1,000", "### Leaderboard", "### Strategies"):
        assert part in written


def test_names_are_no_markup_in_markdown(tmp_path: Path, figures: dict[str, Any]) -> None:
    written = markdown(renamed(tmp_path, figures))
    assert "<b>" not in written
    (row,) = (line for line in written.splitlines() if "=cmd" in line)
    assert row.replace("\\|", "").count("|") == 6


def test_csv_has_every_candidate_and_no_formula(tmp_path: Path, figures: dict[str, Any]) -> None:
    result = renamed(tmp_path, figures)
    rows = list(csv.DictReader(io.StringIO(leaderboard_csv(result))))
    assert len(rows) == len(result.candidates)
    assert rows[0]["model"] == f"'{HOSTILE}"
    assert float(rows[0]["points"]) == result.candidates[0].accuracy


def test_the_command_writes_to_standard_output_alone(tmp_path: Path, figures: dict[str, Any]) -> None:
    folder = write_json(tmp_path, figures)
    ran = CliRunner().invoke(app, ["report", str(folder), "--format", "csv"])
    assert (ran.exit_code, ran.stdout.splitlines()[0][:12]) == (0, "model,status")
    assert not (folder / "report.html").exists()


def test_the_first_screen_has_the_gain_in_answers_and_what_was_not_checked(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    page = write_report(write_json(tmp_path, figures)).read_text(encoding="utf-8").partition("<nav")[0]
    assert "Of 1,000 questions, " in page
    assert "Not checked: " in page


def test_grades_are_not_told_as_right_answers(tmp_path: Path, figures: dict[str, Any]) -> None:
    first = {**figures["candidates"][0], "corpus_score": 31.0}
    result = read(tmp_path, {**figures, "candidates": [first, *figures["candidates"][1:]]})
    assert "of 1,000 questions, " not in markdown(result)
