"""``advisor evaluate``: methods side by side, those that do not fit left out, and everything once computed kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pools import Place, Prepare

from advisor.commands.evaluate import evaluation_config
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.options.finished_run import EvaluateOptions
from advisor.progress import Progress
from advisor.run.folder import Run
from advisor.statistics import holm
from ensemble.methods import list_methods

pytest_plugins = ["pools"]

METHODS = "unite,gac,average,sweetspan,voting,rerank"


@pytest.fixture
def run(place: Place, models: Path, prepare: Prepare) -> Place:
    """A place with the run folder of three tiny models, and its evaluation."""

    def make() -> None:
        place.job(models)
        place.task(metric="exact_match")
        place.select("--quiet")
        assert evaluate(place, "--methods", METHODS) == place.json("run/evaluation.json")

    prepare("evaluate", place, make)
    return place


def evaluate(place: Place, *options: str) -> dict[str, Any]:
    ran = place.advisor("evaluate", "run", "--task", "task.yaml", "--json", "--quiet", *options)
    assert (ran.status, ran.err) == (0, "")
    found: dict[str, Any] = json.loads(ran.out)
    return found


def by_name(evaluation: dict[str, Any]) -> dict[str, Any]:
    return {entry["method"]: entry for entry in evaluation["methods"]}


def test_every_method_stands_beside_the_members_and_a_control(run: Place) -> None:
    found, result = run.json("run/evaluation.json"), run.json()
    assert [member["model"] for member in found["members"]] == result["selected"]
    methods = by_name(found)
    assert list(methods) == [*METHODS.split(","), "self-consistency"]
    assert methods["unite"]["accuracy"] == result["ensemble"]["accuracy"]
    assert methods["unite"]["difference"] == result["ensemble"]["difference"]
    assert methods["gac"]["handled_per_step"] > methods["unite"]["handled_per_step"] > 0
    assert methods["unite"]["share_ensembled"] == 1


def test_a_method_that_does_not_fit_is_left_out_with_its_reason(run: Place) -> None:
    methods = by_name(run.json("run/evaluation.json"))
    assert "it needs one vocabulary" in methods["average"]["left_out"]
    assert "it needs a reward model" in methods["rerank"]["left_out"]
    assert methods["average"]["accuracy"] is None
    assert [name for name, entry in methods.items() if entry["left_out"]] == ["average", "rerank"]


def test_all_methods_are_those_that_are_listed(run: Place) -> None:
    methods = by_name(evaluate(run, "--methods", "all", "--limit", "2"))
    assert list(methods) == [*list_methods(), "self-consistency"]
    assert not methods["unite"]["left_out"]


def test_there_is_no_vote_where_answers_are_read_with_a_look_at_the_reference(run: Place) -> None:
    run.task(metric="contains")
    methods = by_name(evaluate(run, "--methods", "unite,voting"))
    assert "votes are counted only for short, fixed answers" in methods["voting"]["left_out"]
    assert "votes are counted" in methods["self-consistency"]["left_out"]


def test_deepen_adapt_is_given_the_accuracies_that_the_run_found(run: Place) -> None:
    found = evaluate(run, "--methods", "deepen-adapt,unite")["methods"][0]
    # What untrained models get right is nothing, which leaves nothing to weigh them by.
    assert "chance" in found["left_out"]
    accuracies = "--set", "deepen-adapt.accuracies=[60,50,40]"
    found = evaluate(run, "--methods", "deepen-adapt", *accuracies)["methods"][0]
    assert found["left_out"] is None


def test_what_the_control_draws_differs_from_draw_to_draw(run: Place) -> None:
    options = EvaluateOptions(run=run.folder / "run", task="task.yaml", methods="unite", max_new_tokens=6)
    plan = evaluation_config(Run.open(options.run), options, "")
    with ResponseCache(plan.cache_dir) as store:
        profiler = Profiler(plan, store, Progress(quiet=True))
        name, task = plan.candidates[0].name, plan.dev
        greedy = profiler.alone([name], task)[name]
        drawn = [profiler.drawn(name, task, 1.0, seed) for seed in (0, 1, 0)]
    texts = [tuple(answer.text for answer in one.answers) for one in (greedy, *drawn)]
    assert texts[1] == texts[3]
    assert len({*texts}) == 3


def test_where_no_method_fits_nothing_is_run(run: Place) -> None:
    (run.folder / "run" / "evaluation.json").unlink()
    line = run.refused("evaluate", "run", "--task", "task.yaml", "--methods", "rerank", "--quiet")
    assert "it needs a reward model" in line


def test_a_second_evaluation_loads_no_model_and_finds_the_same(run: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run.json("run/evaluation.json")
    monkeypatch.setattr("advisor.models.loaded_models.load_models", lambda *_: pytest.fail("a model was loaded"))
    again = evaluate(run, "--methods", "unite,gac,sweetspan,voting")
    kept = {name: each for name, each in by_name(first).items() if not each["left_out"]}
    assert (again["members"], by_name(again)) == (first["members"], kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--methods", "unite,nothing"), "--methods nothing: not one of unite"),
        (("--methods", "unite,unite"), "--methods: unite appears twice"),
        (("--methods", ","), "--methods: name at least one of"),
        (("--k", "0"), "--k 0"),
        (("--set", "unite"), "--set unite: give METHOD.NAME=VALUE"),
        (("--set", "unite.nonsense=1"), "method unite has no option nonsense"),
        (("--methods", "gac-threshold", "--set", "gac-threshold.threshold=7"), "threshold 7"),
        (("--split", "nothing"), "nothing"),
    ],
)
def test_bad_options_are_refused(run: Place, options: tuple[str, ...], message: str) -> None:
    assert message in run.refused("evaluate", "run", "--task", "task.yaml", *options)


def test_without_a_task_that_of_the_run_is_taken_and_without_a_run_folder_it_is_refused(run: Place) -> None:
    ran = run.advisor("evaluate", "run", "--methods", "voting", "--json", "--quiet")
    assert (ran.status, json.loads(ran.out)["task"]) == (0, "sums")
    # Without --json the table goes to standard output.
    ran = run.advisor("evaluate", "run", "--methods", "voting,rerank", "--quiet")
    assert (ran.status, ran.err) == (0, "")
    for text in ("voting", "self-consistency", "rerank: Left out: it needs a reward model"):
        assert text in ran.out
    assert "gone: no such folder" in run.advisor("evaluate", "gone", "--task", "task.yaml").line


def test_without_a_task_the_questions_and_prompts_are_those_of_the_run(place: Place, models: Path) -> None:
    place.job(models, "alpha", "beta")
    place.task(metric="exact_match", max_new_tokens=4)
    place.select("--quiet", "--shots", "1", "--seed", "3", "--limit", "4", "--max-new-tokens", "5")
    ran = place.advisor("evaluate", "run", "--methods", "unite", "--json", "--quiet")
    assert (ran.status, ran.err) == (0, "")
    found, ensemble = json.loads(ran.out), place.json()["ensemble"]
    assert (found["n"], found["methods"][0]["accuracy"]) == (4, ensemble["accuracy"])
    assert "|shots:1|seed:3|" in found["signature"]


def test_holms_correction_is_the_textbooks() -> None:
    # Sorted, each times how many are left, and never falling: 4 * 0.005, 3 * 0.01, 2 * 0.03, 1 * 0.04.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_on_options_a_gate_plays_no_part_which_is_said_and_spans_score_none(run: Place) -> None:
    records = [{"question": f"{n} is even?", "answer": "AB"[n % 2]} for n in range(12)]
    run.task(records, prompt="{{question}}", choices=["A", "B"], metric="choice")
    methods = ("--methods", "unite,gac,gac-threshold,safe,sweetspan")
    entries = by_name(evaluate(run, *methods))
    noted = [name for name, entry in entries.items() if entry["note"]]
    assert noted == ["gac-threshold", "safe"]
    assert entries["safe"]["note"].startswith("its gate plays no part")
    assert "it scores no tokens" in entries["sweetspan"]["left_out"]
    assert "Its gate plays no part" in run.advisor("evaluate", "run", "--task", "task.yaml", *methods, "--quiet").out
    assert "Its gate plays no part" in (run.folder / "run" / "report.html").read_text(encoding="utf-8")


def test_the_report_has_the_scores_of_the_corpus(run: Place) -> None:
    run.task([{"question": f"{n}", "answer": f"the answer is {n}"} for n in range(12)], metric="bleu")
    run.select("--force", "--quiet")
    evaluate(run, "--methods", "unite")
    result = run.json()
    text = (run.folder / "run" / "report.html").read_text(encoding="utf-8")
    assert result["ensemble"]["corpus_score"] is not None
    assert text.count("Corpus score</th>") == 1
    assert text.count('data-label="Corpus"') == len(result["candidates"]) + len(result["selected"]) + 2
