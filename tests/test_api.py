"""``select`` in Python, and the run folders that it keeps from being replaced by surprise."""

from __future__ import annotations

import gc
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from pools import LENIENT, Place

from advisor import SelectResult, select
from ensemble.errors import InputError

pytest_plugins = ["pools"]

SELECT = ("select", "--pool", "models.txt", "--task", "task.yaml", "--quiet")


def again(place: Place, **options: object) -> SelectResult:
    """A run in Python on what `Place.job` wrote."""
    return select("models.txt", "task.yaml", quiet=True, **options)


@pytest.fixture
def run(finished: SimpleNamespace) -> SelectResult:
    """A run of three models that all fit."""
    return SelectResult(finished.run)


def test_a_run_in_python_writes_the_result_of_the_command_line(place: Place, models: Path) -> None:
    place.job(models)
    run = again(place, k=4, out="b")
    # It leaves the garbage collector as it was.
    assert gc.get_freeze_count() == 0
    assert place.advisor(*SELECT, "--k", "4", "--out", "a").status == 0
    printed = json.loads((place.folder / "a" / "result.json").read_text(encoding="utf-8"))
    for result in (printed, run.json):
        # What differs: how the run was called, and when, and that the second one found all responses.
        for key in ("command", "date", "loads"):
            del result["provenance"][key]
    assert run.json == printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "20"}, "select: limit should be a whole number; got '20'"),
        ({"pool": ["a", "b"]}, "select: pool should be a text; got ['a', 'b']"),
        ({"task": {"name": "a\nb"}}, "select: task should be a text; got {'name': 'a\\nb'}"),
        ({"out": 3}, "select: out should be a path; got 3"),
        ({"quiet": "yes"}, "select: quiet should be True or False; got 'yes'"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_name_of_the_option(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        select(**options)  # type: ignore[arg-type]
    assert str(refused.value) == message
    with pytest.raises(InputError, match="folder should be a path; got 3"):
        SelectResult(3)  # type: ignore[arg-type]


def test_tables_recommendation_and_plot_are_those_of_the_result(run: SelectResult) -> None:
    table = run.leaderboard()
    assert list(table["model"]) == [each["model"] for each in run.json["candidates"]]
    assert list(table["accuracy"]) == [each["accuracy"] for each in run.json["candidates"]]
    assert list(run.strategies()["strategy"]) == [each["strategy"] for each in run.json["strategies"]]
    assert run.recommendation is not None
    assert run.recommendation.text == run.json["advice"]["recommendation"]["text"]
    ((points, *_),) = run.plot().containers
    assert sorted(points.get_xdata()) == sorted(each["accuracy"] for each in run.json["strategies"])


def test_a_notebook_shows_the_result_as_text_and_not_as_markup(run: SelectResult, tmp_path: Path) -> None:
    result = (run.folder / "result.json").read_text(encoding="utf-8")
    (tmp_path / "result.json").write_text(result.replace('"alpha"', '"<b>alpha</b>"'), encoding="utf-8")
    shown = SelectResult(tmp_path)._repr_html_()
    assert "&lt;b&gt;alpha&lt;/b&gt;" in shown and "<b>alpha" not in shown


@pytest.mark.parametrize("name", ["limits", "dry_run"])  # a dry run is for the command line
def test_an_option_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"select: {name} is no option; use .*, limit, "):
        select("demo", "word_problems", **{name: True})


# --- A run folder that is there already ---


def test_a_rerun_keeps_the_date_of_the_same_result(place: Place, models: Path) -> None:
    place.job(models)
    path, first = place.folder / "runs" / "sums" / "result.json", '"date": "2020-01-02T03:04:05+00:00"'
    place.advisor(*SELECT, "--limit", "4", "--no-verify")
    for also, is_kept in (("", True), (', "more": 1', False)):
        written, found = re.subn('"date": "[-0-9T:]+[+]00:00"', first + also, path.read_text(encoding="utf-8"))
        assert found == 1
        path.write_text(written, encoding="utf-8")
        place.advisor(*SELECT, "--limit", "4", "--no-verify")
        assert (first in path.read_text(encoding="utf-8")) == is_kept


def test_a_run_with_other_settings_or_models_is_replaced_by_force_only(
    place: Place, models: Path, finished: SimpleNamespace
) -> None:
    place.job(models)
    shutil.copytree(finished.run, place.folder / "runs" / "sums")
    before = (place.folder / "runs" / "sums" / "result.json").read_bytes()
    line = place.refused(*SELECT, *LENIENT, "--limit", "4", "--no-verify")
    assert line == (
        "advisor: --out runs/sums: it has a run with other settings (--limit was not given, and is 4; --no-verify was "
        "not given, and is given); give another --out, or --force to replace it"
    )
    assert (place.folder / "runs" / "sums" / "result.json").read_bytes() == before
    assert place.advisor(*SELECT, "--limit", "4", "--no-verify", "--force").status == 0
    assert SelectResult(place.folder / "runs" / "sums").json["task"]["n"] == 4
    place.pool(str(models / "alpha"), f"{models / 'beta'} thinking_budget=0")
    says = "models was alpha, beta, gamma, and is alpha, beta thinking_budget=0"
    assert says in place.advisor(*SELECT, "--limit", "4", "--no-verify").line


@pytest.mark.parametrize("content", ['{"provenance": {}}', '{"provenance": {"settings": 3}}', "[", "{}"])
def test_a_result_of_unknown_settings_is_not_replaced(place: Place, models: Path, content: str) -> None:
    place.job(models)
    (place.folder / "run").mkdir()
    place.write("run/result.json", content)
    line = place.refused(*SELECT, "--out", "run")
    assert line.endswith("give another --out, or --force to replace it")


def test_a_run_on_logs_is_not_replaced_by_one_on_other_logs(place: Place) -> None:
    rows = [{"id": n, "a": str(n), "b": str(n % 3), "reference": str(n)} for n in range(40)]
    for name in ("one", "two"):
        place.write(f"{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    columns = ("--column", "models=a,b", "--metric", "exact_match", "--quiet", "--out", "run")
    assert place.advisor("select", "--logs", "one.jsonl", *columns).status == 0
    assert "--logs was one.jsonl, and is two.jsonl" in place.advisor("select", "--logs", "two.jsonl", *columns).line
    # In Python, logs may be one path.
    run = select(logs=Path("one.jsonl"), column=["models=a,b"], metric="exact_match", quiet=True)
    assert run.json["provenance"]["settings"]["logs"] == ["one.jsonl"]


def test_some_models_of_a_pool_are_taken(place: Place, models: Path) -> None:
    place.job(models)
    run = again(place, only="al*", limit=1, out="some")
    assert [each["model"] for each in run.json["candidates"]] == ["alpha"]
    assert run.recommendation is not None and run.recommendation.is_single
