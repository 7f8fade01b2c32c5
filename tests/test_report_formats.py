"""The report as Markdown and as CSV, and the gain as right answers of 1,000."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from report_browser import open_report, resize
from report_fixture import make_result, text_of, write_json, write_run
from rich.console import Console
from typer.testing import CliRunner

from advisor.api import SelectResult
from advisor.cli import app, main
from advisor.run.folder import Run
from advisor.run.result import Result
from advisor.run.sentences import summary
from ensemble.common.text import difference_interval, sentence
from ensemble.errors import InputError
from ensemble.saved.model_card import escaped
from reports import run_index, write_report
from reports.formats import as_csv, latex, markdown
from reports.run_index import find_runs, index_csv, index_markdown, index_rows, write_index
from reports.tables import leaderboard, strategies
from reports.terminal import draw, print_conclusion

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
    rows = list(csv.DictReader(io.StringIO(as_csv(leaderboard(result).data))))
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
    (row, *_) = csv.DictReader(io.StringIO(as_csv(strategies(result).data)))
    low, high = result.strategies[0].expected_gain_ci or (0.0, 0.0)
    assert [float(row[f"expected_gain_{end}"]) for end in ("low", "high")] == pytest.approx([low, high], rel=1e-5)
    assert f"| {difference_interval((low, high))} |" in markdown(result)


@pytest.mark.parametrize("width", range(60, 200, 20))
def test_no_terminal_shows_an_interval_without_its_figure(tmp_path: Path, figures: dict[str, Any], width: int) -> None:
    scored = {**figures["candidates"][0], "corpus_score": 41.25, "corpus_score_ci": [40.5, 42.5]}
    result = read(tmp_path, {**figures, "candidates": [scored, *figures["candidates"][1:]]})
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(draw(leaderboard(result), width))
    drawn = console.export_text()
    assert ("40.5 to 42.5" in drawn) <= ("41.2" in drawn)


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
    roles = {row["model"]: row["role"] for row in leaderboard(result).data if row["role"]}
    assert roles == expected
    for name, role in expected.items():
        assert f"| {name} | {role} |" in markdown(result)


def test_no_bracket_is_escaped_as_the_beginning_of_a_formula() -> None:
    assert escaped(r"[a](b) \(unite\)") == r"&#91;a&#93;(b) \\(unite\\)"


def test_the_command_writes_to_standard_output_alone(tmp_path: Path, figures: dict[str, Any]) -> None:
    folder = write_json(tmp_path, figures)
    ran = CliRunner().invoke(app, ["report", str(folder), "--format", "csv"])
    assert (ran.exit_code, ran.stdout.splitlines()[0][:12]) == (0, "model,role,a")
    assert not (folder / "report.html").exists()


def test_grades_are_not_told_as_right_answers(tmp_path: Path, figures: dict[str, Any]) -> None:
    first = {**figures["candidates"][0], "corpus_score": 31.0}
    result = read(tmp_path, {**figures, "candidates": [first, *figures["candidates"][1:]]})
    assert "right of 100" not in markdown(result)


def test_a_sentence_has_minus_signs_and_names_keep_their_hyphens() -> None:
    assert sentence("it loses -1.5 points (-2.0 to -1.0) to gpt-2") == "It loses −1.5 points (−2.0 to −1.0) to gpt-2."


def test_every_form_has_the_sentences_of_the_summary(
    tmp_path: Path, figures: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_json(tmp_path, figures)
    result = Run.open(folder).result
    told = summary(result)
    assert [*told] == ["Recommended", "Expected gain", "Where", "How sure", "Cost"]
    first = text_of(write_report(folder).read_text(encoding="utf-8").partition("<details")[0])
    assert "Not checked: " in first
    print_conclusion(result)
    lines = capsys.readouterr().out.splitlines()
    for line, (name, said) in zip(SelectResult(folder).summary.splitlines(), told.items(), strict=True):
        assert line == f"{name}: {said}" and line in lines
        # The first screen of the page has the gain and the cost as a table.
        assert name in ("Expected gain", "Cost") or said.lower() in first.lower()
        assert escaped(said).lower() in markdown(result).lower()


# --- All runs below a folder ---


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, one without a report and one that gains nothing, and a folder with half a file."""
    folder = tmp_path_factory.mktemp("index") / "runs"
    first = write_run(folder / "first", dev=20, held_out=20)
    (first / "report.html").write_text("a report", encoding="utf-8")
    odd = write_run(folder / "deep" / "a #1 <b>", dev=20, held_out=20)
    (odd / "report.html").write_text("a report", encoding="utf-8")
    result = json.loads((first / "result.json").read_text(encoding="utf-8"))
    result["advice"]["recommendation"] |= {"expected_gain": -3.0, "expected_gain_ci": [-6.0, 0.0], "probability": 0.05}
    write_json(folder / "losing", result)
    (folder / "half").mkdir()
    (folder / "half" / "result.json").write_text("{", encoding="utf-8")
    return folder


def test_every_run_below_the_folder_is_found_and_links_are_not_followed(runs: Path, tmp_path: Path) -> None:
    assert [str(run.relative_to(runs)) for run in find_runs(runs)] == ["deep/a #1 <b>", "first", "half", "losing"]
    (tmp_path / "link").symlink_to(runs)
    with pytest.raises(InputError, match="no folder below it has one"):
        find_runs(tmp_path)


def test_each_run_has_its_link_or_the_reason_why_it_cannot_be_read(runs: Path) -> None:
    rows = {row["name"]: row for row in index_rows(runs, find_runs(runs))}
    assert "not JSON" in rows["half"]["problem"]
    assert rows["first"]["problem"] is None and rows["first"]["held_out"] == 100
    assert rows["deep/a #1 <b>"]["link"] == "deep/a%20%231%20%3Cb%3E/report.html"
    assert rows["losing"]["link"] is None
    page = write_index(runs, list(rows.values())).read_text(encoding="utf-8")
    assert "Not readable" in page


def test_a_file_of_any_size_is_not_read(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "_LARGEST", 1000)
    rows = index_rows(runs, [runs / "first"])
    assert "larger than" in rows[0]["problem"]


def test_a_page_of_somebody_else_is_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "run", dev=20, held_out=20)
    rows = index_rows(tmp_path, find_runs(tmp_path))
    write_index(tmp_path, rows)
    write_index(tmp_path, rows)
    (tmp_path / "index.html").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"index\.html exists and is no index of runs"):
        write_index(tmp_path, rows)


def test_markdown_and_csv_have_every_run(runs: Path) -> None:
    rows = index_rows(runs, find_runs(runs))
    lines = index_markdown(rows).splitlines()
    (losing,) = (line for line in lines if line.startswith("| losing |"))
    assert len(lines) == 2 + 3 + 2 and "−3.0" in losing and "| 0.05 |" in losing
    table = list(csv.DictReader(io.StringIO(index_csv(rows))))
    assert [row["name"] for row in table] == [row["name"] for row in rows]
    assert {row["name"]: row["gain"] for row in table}["losing"] == "-3.0"


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    for name, day in (("a", "2026-03-01"), ("b", "2026-03-03"), ("c", "2026-03-02")):
        path = write_run(tmp_path / name, dev=5, held_out=5) / "result.json"
        result = json.loads(path.read_text(encoding="utf-8"))
        result["provenance"]["date"] = f"{day}T00:00:00+00:00"
        path.write_text(json.dumps(result), encoding="utf-8")
    rows = index_rows(tmp_path, find_runs(tmp_path))
    assert [(row["name"], row["written"]) for row in rows] == [
        ("b", "2026-03-03 00:00"),
        ("c", "2026-03-02 00:00"),
        ("a", "2026-03-01 00:00"),
    ]


def test_the_command_writes_an_index_where_the_folder_is_no_run(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["advisor", "report", str(runs)])
    main()
    assert capsys.readouterr().out == f"{runs}/index.html\n"


@pytest.mark.browser
def test_the_table_is_sorted_and_searched(driver: Any, runs: Path) -> None:
    resize(driver, 1280)
    open_report(driver, write_index(runs, index_rows(runs, find_runs(runs))))

    def shown() -> list[str]:
        heads = driver.find_elements("css selector", "tbody th")
        return [head.text for head in heads if head.is_displayed()]

    assert sorted(shown()) == ["deep/a #1 <b>", "first", "losing"]
    driver.find_element("xpath", "//thead//button[.='Expected gain']").click()
    assert shown()[-1] == "losing"
    driver.find_element("css selector", "input[type=search]").send_keys("first")
    assert shown() == ["first"]
    loss = driver.find_element("xpath", "//tr[th='losing']//*[contains(@class, 'loss')]")
    assert loss.get_attribute("textContent") == "−3.0"


@pytest.mark.browser
def test_the_index_fits_a_phone(driver: Any, runs: Path) -> None:
    resize(driver, 390)
    open_report(driver, write_index(runs, index_rows(runs, find_runs(runs))))
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
