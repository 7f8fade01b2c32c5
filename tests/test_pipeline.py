"""The whole job with candidates that fail, copies, sets that the rules did not choose, numbers, and what is written."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pools import Place, Prepare

from advisor.advice.profiled_pool import find_copies
from advisor.advice.rules import read_standings, select, with_chosen_set
from advisor.models.fingerprint import Fingerprint
from advisor.models.loaded_models import LoadedModels
from advisor.records import Answer, Limits, Profile, Standing
from advisor.run.figures import Sample
from advisor.run.folder import Run, check_out, folder_name, replace, write_run
from advisor.run.result import PredictedFigures, Result, TaskInfo
from ensemble import Ensemble
from ensemble.errors import InputError, MemberError, UniteError
from ensemble.models.spec import Checkpoint, EnsembleSpec, ModelSpec
from reports.tables import leaderboard

pytest_plugins = ["pools"]


def run(place: Place, models: Path, names: str, *options: str) -> dict[str, Any]:
    """The result of the whole job on some models."""
    place.pool(*(str(models / name) for name in names.split()))
    place.select("--quiet", *options)
    found: dict[str, Any] = place.json()
    return found


def spoil_ensembles(monkeypatch: pytest.MonkeyPatch, change: Callable[[Sequence[str], Ensemble], None]) -> list[str]:
    """Change every ensemble that is made; the names of those, joined by +, in order."""
    made: list[str] = []
    make = LoadedModels.ensemble

    def spoiled(models: LoadedModels, spec: EnsembleSpec) -> Ensemble:
        ensemble = make(models, spec)
        names = [model.name for model in spec.members]
        made.append("+".join(names))
        change(names, ensemble)
        return ensemble

    monkeypatch.setattr(LoadedModels, "ensemble", spoiled)
    return made


def break_forward(ensemble: Ensemble) -> None:
    def forward(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("kaput")

    ensemble.members[-1].model.forward = forward


@pytest.mark.parametrize("names", ["alpha", "alpha beta"])
def test_a_model_that_no_other_fits_is_recommended_and_asked_the_held_out_questions(
    place: Place, models: Path, names: str
) -> None:
    place.task()
    limits = ("--max-gap", "0", "--max-length-ratio", "1", "--max-voters", "1", "--min-gain", "100")
    result = run(place, models, names, *limits)
    recommended, (best,) = result["advice"]["recommendation"], result["selected"]
    assert (recommended["strategy"], recommended["members"]) == ("single", [best])
    assert recommended["text"].startswith(f"Use {best} alone")
    assert [(each["strategy"], each["n"]) for each in result["strategies"]] == [("single", 6)]


# --- Candidates that fail ---


def test_a_candidate_that_fails_is_listed_with_its_reason_and_the_others_go_on(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_ensembles(monkeypatch, lambda names, ensemble: break_forward(ensemble) if names == ["gamma"] else None)
    place.task()
    result = run(place, models, "incomplete alpha numberless gamma beta", "--no-verify")
    failed = {each["model"]: each["reason"] for each in result["candidates"] if each["status"] == "failed"}
    assert failed.keys() == {"incomplete", "numberless", "gamma"}
    assert failed["incomplete"].startswith("its weights lack ")
    assert failed["numberless"].endswith("its logits are not numbers (NaN) at step 1")
    assert failed["gamma"].endswith("RuntimeError: kaput")
    assert not any("\n" in reason for reason in failed.values())
    assert set(result["selected"]) == {"alpha", "beta"}
    assert len(result["pairs"]) == 1


def test_where_memory_is_short_a_model_is_freed_before_the_next_is_loaded_also_where_it_failed(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("advisor.models.loaded_models.free_on", lambda _: 1)
    alive: list[int] = []
    seen: list[weakref.ref[torch.nn.Module]] = []

    def watch(names: Sequence[str], ensemble: Ensemble) -> None:
        own = [member.model for member in ensemble.members]
        alive.append(sum(model is not None and model not in own for model in (ref() for ref in seen)))
        seen.extend(map(weakref.ref, own))
        if names == ["beta"]:
            break_forward(ensemble)

    spoil_ensembles(monkeypatch, watch)
    place.task()
    run(place, models, "alpha beta gamma", "--no-verify")
    assert alive == [0, 0, 0, 0]  # beta is asked once more


def test_a_member_that_fails_on_held_out_questions_leaves_the_pool(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []

    def fail_the_second_time(names: Sequence[str], ensemble: Ensemble) -> None:
        counted.extend(names if len(names) == 1 else [])
        if names == ["alpha"] and counted.count("alpha") == 2:
            break_forward(ensemble)

    spoil_ensembles(monkeypatch, fail_the_second_time)
    place.task()
    result = run(place, models, "alpha beta gamma")
    [reason] = [each["reason"] for each in result["candidates"] if each["status"] == "failed"]
    assert "RuntimeError: kaput" in reason
    assert {*result["selected"]} == {member["model"] for member in result["ensemble"]["members"]} == {"beta", "gamma"}


def test_a_set_that_cannot_be_run_together_is_said_in_the_advice(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_together(names: Sequence[str], ensemble: Ensemble) -> None:
        if len(names) > 1:
            raise MemberError("not enough memory beside the others", of="alpha")

    spoil_ensembles(monkeypatch, fail_together)
    place.task()
    result = run(place, models, "alpha beta")
    assert result["ensemble"] is None
    assert result["advice"]["verdict"] == "unclear"
    assert "alpha: not enough memory beside the others" in result["advice"]["text"]


def test_a_candidate_may_have_the_name_of_the_method(place: Place, models: Path) -> None:
    place.task()
    place.pool(f"{models / 'alpha'} name=unite", str(models / "beta"))
    place.select("--quiet")
    ensemble = place.json()["ensemble"]
    assert ensemble["seconds_total"] not in [member["seconds_total"] for member in ensemble["members"]]


# --- Runs that go on ---


def test_a_second_run_loads_no_model_and_writes_the_same_bytes(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.task()
    made = spoil_ensembles(monkeypatch, lambda *_: None)
    files = []
    for _ in range(2):
        run(place, models, "alpha beta gamma")
        files.append([Path("run", name).read_bytes() for name in ("result.json", "samples.jsonl", "report.html")])
    # Three on dev, three and their ensemble on held-out questions, and one that traces; all only once.
    assert len(made) == 8
    assert files[0] == files[1]


# --- What is written ---


@pytest.fixture
def choosing(place: Place, models: Path, prepare: Prepare, drawings: None) -> Place:
    """A place with the run of a task whose questions have options of two lengths, in two groups."""

    def make() -> None:
        records = [{"question": f"{n}?", "answer": "AB"[n % 2], "part": "xxy"[n % 3]} for n in range(12)]
        place.task(records, metric="choice", choices=["no", "a long text"], group="{{part}}")
        run(place, models, "alpha beta", "--max-length-ratio", "2")

    prepare("choosing", place, make)
    return place


def test_choices_and_groups_have_figures_of_their_own(choosing: Place) -> None:
    result = choosing.json()
    for found in (*result["candidates"], result["ensemble"], *result["ensemble"]["members"]):
        groups = found["groups"]
        assert {name: group["n"] for name, group in groups.items()} == {"x": 4, "y": 2}
        assert all(
            low <= group["accuracy"] <= high for group in groups.values() for low, high in [group["accuracy_ci"]]
        )
        assert found["accuracy_macro"] == pytest.approx((groups["x"]["accuracy"] + groups["y"]["accuracy"]) / 2)
        assert found["accuracy"] == pytest.approx((4 * groups["x"]["accuracy"] + 2 * groups["y"]["accuracy"]) / 6)
        assert 0 <= found["accuracy_bytes"] <= 100


def test_the_lengths_of_options_are_not_the_models(choosing: Place) -> None:
    result = choosing.json()
    primary, second = result["candidates"]
    assert (primary["mean_length"], second["mean_length"]) == (None, None)
    assert second["status"] == "selected"
    assert "the length rule was not checked, as the task has options to choose from" in second["reason"]
    assert [pair["length_ratio"] for pair in result["pairs"]] == [None]
    responses = [answer for line in choosing.samples() for answer in line["responses"].values()]
    assert {response["length"] for response in responses} == {None}
    assert all(response["text"] for response in responses)
    page = Path("run", "report.html").read_text(encoding="utf-8")
    assert 'id="lengths"' not in page
    assert "characters on average" not in page
    assert 'data-label="Mean length"' not in page
    assert not leaderboard(Run.open(Path("run")).result).has("Length")


def test_models_that_write_nothing_give_no_infinities(place: Place, models: Path) -> None:
    place.task(stop=[chr(code) for code in range(1, 256)])  # every text ends before its first character
    result = run(place, models, "alpha beta gamma")
    assert [candidate["mean_length"] for candidate in result["candidates"]] == [0, 0, 0]


def test_a_single_question_is_enough(place: Place, models: Path) -> None:
    place.task()
    result = run(place, models, "alpha gamma", "--limit", "1")
    assert result["task"]["n"] == result["ensemble"]["n"] == 1


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    replace(path, "old")
    with pytest.raises(UnicodeEncodeError):
        replace(path, "new \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


def test_a_folder_that_cannot_be_written_is_said_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("", encoding="utf-8")
    with pytest.raises(UniteError, match=r"cannot be written .* the cache keeps all responses") as caught:
        write_run(tmp_path / "run", *made_up("x"))
    assert not isinstance(caught.value, InputError)


def test_a_run_that_is_killed_leaves_the_old_files_the_new_files_or_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever change of the folder is the last one, no samples stand beside the result of another run."""
    found = set()
    for last in range(8):
        out = tmp_path / str(last)
        write_run(out, *made_up("old"))
        (out / "report.html").write_text("old", encoding="utf-8")
        killed = Killed(monkeypatch, last)
        try:
            write_run(out, *made_up("new"))
        except KeyboardInterrupt:
            pass
        finally:
            killed.undo()
        state = tuple(
            ("new" if '"new"' in text else "old") if (text := read_if_there(out / name)) is not None else None
            for name in ("result.json", "samples.jsonl", "report.html")
        )
        found.add(state)
    assert ("old", "old", "old") in found and ("new", "new", None) in found
    assert all(result is None or (result == samples and report in (result, None)) for result, samples, report in found)


def made_up(name: str) -> tuple[Result, list[Sample]]:
    """A result and samples that have a name."""
    task = TaskInfo(name=name)
    return Result(schema_version=2, task=task, selected=()), [Sample(id=name, split="dev")]


class Killed:
    """Stops after a number of changes of files: renaming and removing a file raise KeyboardInterrupt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        self._monkeypatch, self._left = monkeypatch, left
        for name in ("replace", "rename", "unlink"):
            monkeypatch.setattr(Path, name, self._counted(getattr(Path, name)))

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **more: Any) -> Any:
            if self._left == 0:
                raise KeyboardInterrupt
            self._left -= 1
            return change(*arguments, **more)

        return counted

    def undo(self) -> None:
        self._monkeypatch.undo()


def read_if_there(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def test_a_disk_that_is_full_keeps_the_old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, *made_up("old"))
    write_text = Path.write_text

    def full(path: Path, text: str, **more: Any) -> int:
        if path.name == "result.json":
            raise OSError(28, "No space left on device")
        return write_text(path, text, **more)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UniteError, match="No space left"):
        write_run(tmp_path, *made_up("new"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "samples.jsonl"]
    assert '"old"' in (tmp_path / "samples.jsonl").read_text(encoding="utf-8")
    assert '"old"' in (tmp_path / "result.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("gsm8k", "gsm8k"), ("mmlu:anatomy", "mmlu-anatomy"), ("lm_eval:arc/easy", "lm_eval-arc-easy"),
        ("..", "run"), ("../../etc", "etc"), (".hidden", "hidden"), ("\x1b[2J name", "2J-name"), ("Größe", "Größe"),
    ],
)  # fmt: skip
def test_a_run_folder_is_named_after_the_task_and_stays_below_runs(name: str, folder: str) -> None:
    assert folder_name(name) == folder


@pytest.mark.parametrize("out", ["file", "file/below", "x" * 5000])
def test_a_run_folder_that_cannot_be_is_refused(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"^--out "):
        check_out(tmp_path / out)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_run_folder_without_the_right_to_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        check_out(tmp_path / "run")


# --- Numbers instead of models ---


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON"),
        ('{"profiles": ' + "[" * 100_000, "not usable JSON"),
        ('{"profiles": []}', "profiles should be a list of different models"),
        ('{"profiles": [{"accuracy": 5}]}', "profiles[0].model is missing"),
        ('{"profiles": [{"model": "a\\u001b[2J", "accuracy": 5}]}', "a printable name"),
        ('{"profiles": [{"model": "a", "accuracy": 100.1}]}', "accuracy should be at most 100"),
        ('{"profiles": [{"model": "a", "accuracy": 5, "mean_length": -1}]}', "mean_length should be at least 0"),
        ('{"profiles": [{"model": "a", "accuracy": 5}, {"model": "a", "accuracy": 6}]}', "different models"),
    ],
)
def test_numbers_in_another_form_are_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "numbers.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_standings(path)
    message = str(caught.value)
    assert message.removeprefix("--scores ").startswith(f"{path}: ")
    assert says in message and 'write it in the form {"task": NAME, ' in message
    assert "\n" not in message


def test_a_length_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    profiles = [{"model": "a", "accuracy": 5, "mean_length": None}, {"model": "b", "accuracy": 6, "mean_length": 0}]
    path.write_text("\ufeff" + json.dumps({"profiles": profiles}), encoding="utf-8")
    task, standings = read_standings(path)
    assert task == "unnamed"
    assert [standing.mean_length for standing in standings] == [None, 0]


def profile(model: str, answers: str) -> Profile:
    """A letter a question: R is right, any other a wrong answer, a space a response that failed."""
    return Profile(
        model,
        tuple(
            Answer(f"q{n}", letter, letter, float(letter == "R"), "eos")
            if letter != " "
            else Answer(f"q{n}", None, None, 0.0, "error", "no memory")
            for n, letter in enumerate(answers)
        ),
    )


def test_equal_answers_make_a_copy_and_the_first_by_rank_stays() -> None:
    profiles = [profile(name, "RR" * 15 if name == "c" else "Rx" * 15) for name in "bcda"]
    assert find_copies(profiles) == dict.fromkeys("bd", "the same model as a: all 30 answers are equal")
    assert find_copies(profiles, apart=["a"]).keys() == {"a", "d"}  # one that can be decoded stays


@pytest.mark.parametrize(
    "answers", ["Rx" * 14 + "R", "R" * 40, " " * 40], ids=["too few questions", "all right", "failed"]
)
def test_answers_that_may_be_equal_by_chance_make_no_copy(answers: str) -> None:
    assert find_copies([profile("a", answers), profile("b", answers)]) == {}


def test_scores_alone_make_no_copy() -> None:
    def bare(model: str) -> Profile:
        return Profile(model, tuple(Answer(f"q{n}", None, None, float(n % 2), "unknown") for n in range(40)))

    assert find_copies([bare("a"), bare("b")]) == {}


@pytest.mark.parametrize("change", [{"text": "y"}, {"extracted": "y"}, {"score": 0.5}, {"options": (-1.0,)}])
def test_one_different_answer_makes_another_model(change: dict[str, object]) -> None:
    one = profile("a", "Rx" * 20)
    first = dataclasses.replace(one.answers[0], **change)  # type: ignore[arg-type]
    assert find_copies([one, Profile("b", (first, *one.answers[1:]))]) == {}


def test_weights_are_equal_in_another_numeric_type_and_folder_but_not_with_another_template() -> None:
    def weights(path: str, **options: Any) -> str:
        return Fingerprint(ModelSpec(Checkpoint(path), path, **{"chat_template": "auto", **options})).weights

    files = {"config.json": "1", "model.safetensors": "2"}
    one = weights("a", files=files, dtype="float32")
    assert one == weights("b", files={"model.safetensors": "2"}, dtype="bfloat16", device="cuda")
    assert one != weights("a", files=files, dtype="float32", chat_template="never")
    assert one != weights("a", files=files, dtype="float32", thinking_budget=4)
    assert one != weights("a", files={**files, "model.safetensors": "3"}, dtype="float32")


def test_a_copied_folder_is_rejected_with_the_name_of_its_original(place: Place, models: Path) -> None:
    shutil.copytree(models / "alpha", "alpha-2")
    place.task()
    place.pool(str(models / "alpha"), str(models / "beta"), str(Path("alpha-2").resolve()))
    place.select("--quiet")
    result = place.json()
    found = {each["model"]: (each["status"], each["reason"]) for each in result["candidates"]}
    assert found["alpha-2"] == ("rejected", "the same model as alpha: their weights are equal")
    assert len(result["selected"]) == 2 and "alpha-2" not in result["selected"]
    assert all("alpha-2" not in row["members"] for row in result["strategies"])


STANDINGS = [Standing(model, points, 20.0) for model, points in zip("abcd", (80.0, 78.0, 76.0, 60.0), strict=True)]


def test_another_set_has_its_own_primary_and_reasons() -> None:
    greedy = select(STANDINGS, Limits(max_models=2))
    moved = with_chosen_set(greedy, ("b", "c"), STANDINGS, Limits(max_models=2))
    assert moved.selected == ("b", "c")
    assert [d.model for d in moved.decisions] == list("abcd")
    assert [d.status for d in moved.decisions] == ["rejected", "primary", "selected", "rejected"]
    a, b, c, d = (decision.reason for decision in moved.decisions)
    assert "the set with the largest expected gain is one without it" in a
    assert "the most accurate of the set with the largest" in b
    assert c.startswith("its gap to the primary is 2.00 points")
    assert d == greedy.decisions[3].reason
    assert with_chosen_set(moved, moved.selected, STANDINGS, Limits()) is moved


# --- With models ---


def test_sets_are_verified_in_the_order_of_their_predicted_gain(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.task()
    loaded = spoil_ensembles(monkeypatch, lambda *_: None)
    result = run(place, models, "alpha beta gamma", "--set-by", "predicted")
    sets = result["prediction"]["sets"]
    gains = [one["predicted_gain"] for one in sets]
    assert gains == sorted(gains, reverse=True)
    decoded = [one for one in sets if one["decoded"]]
    assert 1 <= len(decoded) <= 4 and decoded == sets[: len(decoded)]
    assert next(name for name in loaded if "+" in name) == "+".join(sets[0]["models"])
    assert result["selected"] in [one["models"] for one in decoded]


def test_a_decoded_set_has_the_measured_gain_of_its_strategy(place: Place, models: Path) -> None:
    place.task()
    result = run(place, models, "alpha beta")
    [own] = [row for row in result["strategies"] if row["strategy"] == "unite"]
    [found] = [one for one in result["prediction"]["sets"] if one["decoded"]]
    assert found["measured_gain"] == own["measured_gain"]


@pytest.mark.parametrize("gain", [1.0, -1.0])
def test_where_the_rules_leave_one_model_a_promising_set_is_still_verified(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch, gain: float
) -> None:
    promise = PredictedFigures(
        models=("alpha", "beta"), predicted_gain=gain, predicted_gain_ci=(gain - 3, gain + 3), vote=50.0, oracle=60.0
    )
    monkeypatch.setattr("advisor.jobs.held_out.predicted_sets", lambda *_: (promise,))
    place.task()
    result = run(place, models, "alpha beta", "--max-models", "1")
    assert len(result["selected"]) == 1
    verified = result["ensemble"] and [member["model"] for member in result["ensemble"]["members"]]
    assert verified == (["alpha", "beta"] if gain > 0 else None)
