"""``advisor export``: a run's chosen set as a folder, with a card whose figures are the run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from markdown_it import MarkdownIt
from scipy.stats import binomtest

from advisor.run.folder import Run
from reports.formats import evidence

if TYPE_CHECKING:
    from pools import Place, Prepare

pytest_plugins = ["hubs", "pools"]

SELECT = ("select", "--pool", "models.txt", "--task", "task.yaml", "--quiet", "--out", "run")
TOGETHER = ("--strategy", "unite")
LENIENT = ("--max-gap", "100", "--max-length-ratio", "1e9")
HOSTILE = "](http://x)<script>alert(1)</script>|`*_\n# {{ 7 * 7 }} <!--"


@pytest.fixture
def run(place: Place, models: Path, prepare: Prepare) -> Path:
    def make() -> None:
        place.task(metric="contains", stop=["\n\n"])
        place.pool(*(str(models / name) for name in ("alpha", "beta")))
        assert place.advisor(*SELECT, *LENIENT).status == 0

    prepare("export", place, make)
    return place.folder / "run"


def result_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return found


def test_what_a_run_chose_is_exported_and_runs_alike(place: Place, run: Path) -> None:
    ran = place.advisor("export", "run", "out", *TOGETHER)
    assert (ran.status, ran.out) == (0, "out\n")
    result, saved = result_of(run), json.loads((place.folder / "out" / "ensemble.json").read_text(encoding="utf-8"))
    sources = result["provenance"]["models"]
    assert [member["name"] for member in saved["members"]] == result["selected"]
    assert [member["files"] for member in saved["members"]] == [sources[name]["files"] for name in result["selected"]]
    assert saved["generation"] == {"max_new_tokens": 6, "stop": ["\n\n"]}
    prompt = "What is 1 + 1?\nAnswer:"
    assert place.advisor("run", "out", prompt).out == place.advisor("run", "run", prompt, *TOGETHER).out

    card = (place.folder / "out" / "README.md").read_text(encoding="utf-8")
    figures = result["ensemble"]
    assert f"| {figures['accuracy']:.1f} |" in card
    assert f"On {figures['n']} held-out questions" in card
    (entry,) = yaml.safe_load(card.split("---")[1])["model-index"]
    assert entry["results"][0]["metrics"][0]["value"] == round(figures["accuracy"], 2)


def test_no_name_or_text_is_markup_in_a_card(run: Path, tmp_path: Path) -> None:
    result = result_of(run)
    result["task"]["name"] = result["advice"]["text"] = result["candidates"][0]["model"] = HOSTILE
    result["ensemble"]["best_single_model"] = result["ensemble"]["members"][0]["model"] = HOSTILE
    result["selected"][0] = HOSTILE
    (tmp_path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    text = evidence(Run.open(tmp_path).result)
    page = MarkdownIt("commonmark").enable("table").render(text)
    assert "{{ 7 * 7 }}" in page
    for markup in ("<script", "<a ", "<h1", "<!--", "<code"):
        assert markup not in page
    # A row of the table of members has its four cells, whatever a name has in it.
    assert all(row.count("<td") in (4, 5) for row in page.split("<tr>")[2:] if "<td" in row)


def test_the_interval_that_a_card_names_for_ten_questions_is_wilsons(run: Path) -> None:
    found = binomtest(7, 10).proportion_ci(0.95, method="wilson")
    text = " ".join(evidence(Run.open(run).result).split())
    assert f"7 right of 10 fits any accuracy from {100 * found.low:.1f} to {100 * found.high:.1f}" in text


def test_a_set_that_was_not_verified_says_so(place: Place, models: Path) -> None:
    place.task()
    place.pool(*(str(models / name) for name in ("alpha", "beta")))
    assert place.advisor(*SELECT, *LENIENT, "--no-verify").status == 0
    assert place.advisor("export", "run", "out").status == 0
    assert "nothing was verified on held-out questions" in place.advisor("run", "run", "What is 1 + 1?").err
    card = (place.folder / "out" / "README.md").read_text(encoding="utf-8")
    assert "The set was not run on held-out questions" in card
    assert "model-index" not in card


def test_what_cannot_be_exported_is_refused_in_a_line(place: Place, run: Path) -> None:
    def refused(*arguments: str) -> str:
        ran = place.advisor(*arguments)
        assert (ran.status, ran.out) == (2, "")
        return ran.line

    assert "is a local model, which others cannot load" in refused("export", "run", "out", "--push", "org/new")
    assert "--public has no effect without --push" in refused("export", "run", "out", "--public")
    assert "gone: no such folder; give a run folder" in refused("export", "gone", "out")
    assert "is not a saved ensemble, and has " in refused("export", "run", "run")
    assert not (place.folder / "out").exists()
    result = result_of(run)
    files = result["provenance"]["models"][result["selected"][0]]["files"]
    files["config.json"] = "0" * 64
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    assert "changed since the run (config.json differs)" in refused("export", "run", "out")


def test_a_set_of_the_hub_is_pushed(place: Place, shelf: Path) -> None:
    place.task()
    place.pool("org/alpha", "org/beta")
    assert place.advisor(*SELECT, *LENIENT).status == 0
    ran = place.advisor("export", "run", "out", "--push", "org/set", "--public", *TOGETHER)
    assert ran.status == 0
    assert "/org/set/commit/" in ran.out
    assert (shelf / "set" / ".gitattributes").read_text(encoding="utf-8") == "public"
    card = (shelf / "set" / "README.md").read_text(encoding="utf-8")
    assert sorted(yaml.safe_load(card.split("---")[1])["base_model"]) == ["org/alpha", "org/beta"]


def test_a_saved_ensemble_runs_with_what_is_said_in_place_of_its_own(place: Place, run: Path, models: Path) -> None:
    assert place.advisor("export", "run", "out", *TOGETHER).status == 0
    long = place.advisor("run", "out", "What is", "--max-new-tokens", "20", "--method", "gac", "--dtype", "float32")
    assert (long.status, long.err) == (0, "")
    path = place.folder / "out" / "ensemble.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    saved["members"][0]["files"]["config.json"] = "0" * 64
    path.write_text(json.dumps(saved), encoding="utf-8")
    line = place.advisor("run", "out", "What is").line
    assert "config.json differs" in line and "--no-check-files" in line
    assert place.advisor("run", "out", "What is", "--no-check-files").status == 0
