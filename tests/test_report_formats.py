"""The report as Markdown and as CSV, and the gain as right answers of 1,000."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from report_fixture import make_result, text_of, write_json
from typer.testing import CliRunner

from advisor.api import SelectResult
from advisor.cli import app
from advisor.run.folder import Run
from advisor.run.result import Result
from advisor.run.sentences import summary
from ensemble.common.text import difference_interval, of_thousand, sentence
from ensemble.saved.model_card import escaped
from reports import write_report
from reports.formats import as_csv, latex, leaderboard_rows, markdown, strategy_rows
from reports.terminal import print_conclusion

pytestmark = pytest.mark.usefixtures("no_drawings")

HOSTILE = "=cmd|<b>x</b>`[a](b)"


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return make_result()


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


def test_markdown_has_the_date_and_both_tables(tmp_path: Path, figures: dict[str, Any]) -> None:
    written = markdown(read(tmp_path, figures))
    assert f"- Date: {escaped(figures['provenance']['date'][:10])}\n" in written
    assert "### Leaderboard" in written and "### Strategies" in written


def test_names_are_no_markup_in_markdown(tmp_path: Path, figures: dict[str, Any]) -> None:
    written = markdown(renamed(tmp_path, figures))
    assert "<b>" not in written
    (row,) = (line for line in written.splitlines() if "=cmd" in line)
    assert row.replace("\\|", "").count("|") == 9


def test_csv_has_every_candidate_and_no_formula(tmp_path: Path, figures: dict[str, Any]) -> None:
    result = renamed(tmp_path, figures)
    rows = list(csv.DictReader(io.StringIO(as_csv(leaderboard_rows(result)))))
    assert len(rows) == len(result.candidates)
    assert rows[0]["model"] == f"'{HOSTILE}"
    assert float(rows[0]["accuracy"]) == pytest.approx(result.candidates[0].accuracy, rel=1e-5)


@pytest.mark.parametrize("text", [" =1+1", "\n=1", "\t@a", "＝1+1", "＠a", "\u3000-1"])
def test_no_white_space_or_full_width_sign_hides_a_formula(text: str) -> None:
    (_, row) = csv.reader(io.StringIO(as_csv([{"model": text}])))
    assert row == [f"'{text}"]


def test_numbers_in_csv_have_six_digits() -> None:
    assert (
        as_csv([{"p": 1e-12 / 3, "accuracy": 200 / 3, "n": 1234567}]) == "p,accuracy,n\n3.33333e-13,66.6667,1234567\n"
    )


def test_strategies_have_their_intervals_in_csv_and_markdown(tmp_path: Path, figures: dict[str, Any]) -> None:
    result = read(tmp_path, figures)
    (row, *_) = csv.DictReader(io.StringIO(as_csv(strategy_rows(result))))
    low, high = result.strategies[0].expected_gain_ci or (0.0, 0.0)
    assert [float(row[f"expected_gain_{end}"]) for end in ("low", "high")] == pytest.approx([low, high], rel=1e-5)
    assert f"| {difference_interval((low, high))} |" in markdown(result)


def test_tables_of_latex_escape_names(tmp_path: Path, figures: dict[str, Any]) -> None:
    result = renamed(tmp_path, figures)
    first = {**figures["candidates"][0], "model": r"a_b & 50% {\x}"}
    written = latex(read(tmp_path, {**figures, "candidates": [first]}))
    assert r"a\_b \& 50\% \{\textbackslash{}x\} & " in written
    assert written.count(r"\begin{tabular}") == written.count(r"\end{tabular}") == 2
    assert "<b>" in latex(result)  # nothing that LaTeX reads


def test_the_role_in_the_recommendation_is_told_in_every_form(tmp_path: Path, figures: dict[str, Any]) -> None:
    result = read(tmp_path, figures)
    told = result.advice.recommendation
    assert told is not None and told.strategy == "vote"
    expected = {name: f"voter {n}" for n, name in enumerate(told.members, 1)}
    roles = {row["model"]: row["role"] for row in leaderboard_rows(result) if row["role"]}
    assert roles == expected
    for name, role in expected.items():
        assert f"| {name} | {role} |" in markdown(result)


def test_no_bracket_is_escaped_as_the_beginning_of_a_formula() -> None:
    assert escaped(r"[a](b) \(unite\)") == r"&#91;a&#93;(b) \\(unite\\)"


def test_the_command_writes_to_standard_output_alone(tmp_path: Path, figures: dict[str, Any]) -> None:
    folder = write_json(tmp_path, figures)
    ran = CliRunner().invoke(app, ["report", str(folder), "--format", "csv"])
    assert (ran.exit_code, ran.stdout.splitlines()[0][:12]) == (0, "model,role,s")
    assert not (folder / "report.html").exists()


def test_grades_are_not_told_as_right_answers(tmp_path: Path, figures: dict[str, Any]) -> None:
    first = {**figures["candidates"][0], "corpus_score": 31.0}
    result = read(tmp_path, {**figures, "candidates": [first, *figures["candidates"][1:]]})
    assert "of 1,000 questions, " not in markdown(result)


def test_a_sentence_has_minus_signs_and_names_keep_their_hyphens() -> None:
    assert sentence("gpt-2 loses -1.5 points (-2.0 to -1.0)") == "Gpt-2 loses −1.5 points (−2.0 to −1.0)."


def test_every_form_has_the_sentences_of_the_summary(
    tmp_path: Path, figures: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_json(tmp_path, figures)
    result = Run.open(folder).result
    told = summary(result)
    assert [*told] == ["Recommended", "That is", "Where", "Shown by the test", "Cost"]
    first = text_of(write_report(folder).read_text(encoding="utf-8").partition("<nav")[0])
    assert "Not checked: " in first
    print_conclusion(result, folder / "report.html")
    lines = capsys.readouterr().out.splitlines()
    for line, (name, said) in zip(SelectResult(folder).summary.splitlines(), told.items(), strict=True):
        assert line == f"{name}: {said}" and line in lines
        assert said.lower() in first.lower() and escaped(said).lower() in markdown(result).lower()
