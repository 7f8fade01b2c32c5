"""All runs below a folder in one table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from report_browser import open_report, resize
from report_fixture import write_json, write_run

from advisor.cli import main
from ensemble.errors import InputError
from reports import run_index
from reports.run_index import find_runs, index_csv, index_markdown, index_rows, write_index


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, one without a report and one that gains nothing, and a folder with half a file."""
    folder = tmp_path_factory.mktemp("index") / "runs"
    first = write_run(folder / "first", dev=20, held_out=20)
    (first / "report.html").write_text("a report", encoding="utf-8")
    odd = write_run(folder / "deep" / "a #1 <b>", dev=20, held_out=20)
    (odd / "report.html").write_text("a report", encoding="utf-8")
    result = json.loads((first / "result.json").read_text(encoding="utf-8"))
    result["advice"]["recommendation"] |= {"expected_gain": -3.0, "expected_gain_ci": [-6.0, 0.0], "shown": "no"}
    write_json(folder / "losing", result)
    (folder / "half").mkdir()
    (folder / "half" / "result.json").write_text("{", encoding="utf-8")
    return folder


def test_every_run_below_the_folder_is_found_and_links_are_not_followed(runs: Path, tmp_path: Path) -> None:
    assert [str(run.relative_to(runs)) for run in find_runs(runs)] == ["deep/a #1 <b>", "first", "half", "losing"]
    (tmp_path / "link").symlink_to(runs)
    with pytest.raises(InputError, match="no folder below it has one"):
        find_runs(tmp_path)


def test_a_run_that_cannot_be_read_is_listed_with_its_reason(runs: Path) -> None:
    rows = {row["name"]: row for row in index_rows(runs, find_runs(runs))}
    assert "not JSON" in rows["half"]["problem"]
    assert rows["first"]["problem"] is None and rows["first"]["held_out"] == 100
    page = write_index(runs, list(rows.values())).read_text(encoding="utf-8")
    assert "Not readable" in page


def test_a_file_of_any_size_is_not_read(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "_LARGEST", 1000)
    rows = index_rows(runs, [runs / "first"])
    assert "larger than" in rows[0]["problem"]


def test_links_lead_to_the_reports_whatever_the_folder_is_called(runs: Path) -> None:
    rows = {row["name"]: row for row in index_rows(runs, find_runs(runs))}
    assert rows["deep/a #1 <b>"]["link"] == "deep/a%20%231%20%3Cb%3E/report.html"
    assert rows["losing"]["link"] is None


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
    assert len(lines) == 2 + 3 + 2 and "−3.0" in losing and "| no |" in losing
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
