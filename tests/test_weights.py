"""The members' weights: from the dev questions, from right texts, and as numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pools import Place, Prepare
from tiny import byte_tokenizer, save_member, tiny_model

from advisor.commands import check
from advisor.models.likelihood import best_weights, texts_of, weights_to_try
from advisor.models.run_config import read_numbers
from advisor.records import Answer, Profile
from advisor.run.folder import Run
from advisor.strategies.strategy import Decoded
from advisor.tasks import load_task
from ensemble import Ensemble

pytest_plugins = ["pools"]

DEMO = Path(__file__).parents[1] / "advisor" / "demo" / "models"

SELECT = ("select", "--pool", "models.txt", "--task", "task.yaml", "--max-gap", "100", "--max-length-ratio", "1e9")
Select = Callable[[str], dict[str, Any]]
RECORDS = [{"question": f"{n} + {n} is {2 * n + n % 2}?", "answer": "BA"[n % 2]} for n in range(1, 25)]


@pytest.fixture
def chosen(place: Place, models: Path, prepare: Prepare) -> Place:
    """A place with a choice task, on which every model is right sometimes, and a run with weights by accuracy."""

    def make() -> None:
        place.job(models)
        place.task(RECORDS, prompt="{{question}}", choices=["A", "B"], metric="choice")
        assert place.advisor(*SELECT, "--weights", "accuracy", "--out", "accuracy", "--quiet").err == ""

    prepare("weights of choices", place, make)
    return place


@pytest.fixture
def selected(place: Place, models: Path, prepare: Prepare) -> Select:
    """Makes a run with some weights, once for all tests, of whose texts no model knows the right one; its result."""

    def select(weights: str) -> dict[str, Any]:
        def make() -> None:
            place.job(models)
            assert place.advisor(*SELECT, "--weights", weights, "--out", weights, "--quiet").err == ""

        prepare(f"weights {weights}", place, make)
        found: dict[str, Any] = place.json(f"{weights}/result.json")
        return found

    return select


def test_weights_follow_from_the_dev_questions(chosen: Place) -> None:
    found = chosen.json("accuracy/result.json")
    own = {each["model"]: each["accuracy"] for each in found["candidates"]}
    expected = [own[name] / 100 for name in found["selected"]]
    assert len(expected) == 3
    assert found["ensemble"]["weights"] == pytest.approx(expected, abs=1e-12)


def test_by_default_a_set_decodes_with_the_weights_that_right_texts_gave(place: Place) -> None:
    names = "terse-neox,novice-llama,stepwise-llama"
    options = ("--pool", "demo", "--only", names, "--task", "word_problems", *SELECT[-4:], "--limit", "100")
    ran = place.advisor("select", *options, "--out", "run")
    assert ran.status == 0
    assert re.search(
        r"note the weights of .* are [\d.]+ : [\d.]+ : [\d.]+, from [\d,]+ tokens of \d+ right texts", ran.err
    )
    result = place.json("run/result.json")
    found = result["ensemble"]
    weights = dict(zip([each["model"] for each in found["members"]], found["weights"], strict=True))
    assert sum(weights.values()) == pytest.approx(1) and weights["stepwise-llama"] > 0.6
    assert weights["novice-llama"] < 0.1
    weak = "novice-llama" if weights["terse-neox"] >= 0.1 else "terse-neox and novice-llama"
    assert sum(f"{weak} adds next to nothing: by right texts" in each for each in result["advice"]["warnings"]) == 1
    folders = [DEMO / each["model"] for each in found["members"]]
    ensemble = Ensemble.from_pretrained(folders, weights=found["weights"], dtype="float32")
    samples = place.samples("held_out")[:8]
    texts = ensemble.generate([each["prompt"] for each in samples], max_new_tokens=64, stop=["\n"])
    assert [each.text for each in texts] == [each["ensemble"]["text"] for each in samples]


def test_without_a_right_text_no_set_is_decoded_and_the_reason_is_said(place: Place, models: Path) -> None:
    place.job(models)
    ran = place.advisor(*SELECT, "--weights", "likelihood", "--out", "run")
    assert ran.status == 0
    assert "cannot all read right texts here: one of them is behind a server, or no response is right" in ran.err
    assert place.json("run/result.json")["ensemble"] is None


def test_by_default_weights_are_equal_where_there_is_no_right_text(place: Place, models: Path) -> None:
    place.job(models)
    ran = place.advisor(*SELECT, "--out", "run")
    found = place.json("run/result.json")["ensemble"]
    assert (ran.status, len(found["members"]), found["weights"]) == (0, 3, None)


def test_by_default_other_methods_weigh_members_alike(place: Place) -> None:
    options = ("--pool", "demo", "--only", "terse-neox,novice-llama", "--task", "word_problems", *SELECT[-4:])
    found = {}
    for weights in ([], ["--weights", "likelihood"]):
        ran = place.advisor(
            "select", *options, "--limit", "20", "--method", "geometric", *weights, "--out", "run", "--force"
        )
        assert ran.status == 0
        found[len(weights)] = place.json()["ensemble"]["weights"]
    assert found[0] is None and found[2] is not None


def answers(model: str, texts: str, thought: bool = False) -> Profile:
    """A response a character: a capital is right, and x is wrong."""
    return Profile(
        model,
        tuple(
            Answer(f"dev-{n}", f" {model}{text}", text, float(text.isupper()), "eos" if text < "C" else "stop")
            if not thought
            else Answer(f"dev-{n}", f" {model}{text}", text, 1.0, "eos", thinking="so", thought=True)
            for n, text in enumerate(texts)
        ),
    )


def test_right_responses_are_the_texts_that_members_read() -> None:
    dev = load_task("word_problems", split="dev", limit=4)
    profiles = {"a": answers("a", "AxCA"), "b": answers("b", "xBxx"), "c": answers("c", "AAAA", thought=True)}
    found = texts_of(dev, profiles)
    assert found == {"a": [(0, " aA", True), (2, " aC", False), (3, " aA", True)], "b": [(1, " bB", True)], "c": []}


def test_of_a_choice_the_right_option_is_read_whatever_names_it(place: Place) -> None:
    records = [{"question": f"{n}?", "answer": answer} for n, answer in enumerate(("B", "ten", "A", "nine"))]
    place.task([*records, *records], choices=["nine", "ten"], metric="choice")
    dev = load_task(str(place.folder / "task.yaml"), split="dev")
    found = texts_of(dev, {"a": answers("a", "xxxx")})["a"]
    right = {"B": " ten", "ten": " ten", "A": " nine", "nine": " nine"}
    assert found == [(n, right[each.reference], False) for n, each in enumerate(dev.examples)]


def test_where_texts_are_compared_the_references_are_read_as_responses_begin() -> None:
    dev = replace(load_task("word_problems", split="dev", limit=3), metric="chrf")
    found = texts_of(dev, {"a": answers("a", "xxx"), "b": answers("b", "xxx")})
    assert found["a"] == found["b"] == [(n, f" {each.reference}", False) for n, each in enumerate(dev.examples)]


@pytest.mark.parametrize(
    ("right", "weights"),
    [
        # Of the grid 0, 0.5, 1 of the first member's weight, by 100 steps that the first or the last writes right.
        ((100, 100, 100), 0.5),
        ((10, 60, 100), 1.0),
        ((10, 96, 100), 1.0),
        ((10, 99, 100), 0.75),  # one step more is noise
        ((100, 60, 10), 0.0),
    ],
)
def test_the_weights_are_the_mean_of_those_that_are_as_good_as_the_best(right: tuple[int, ...], weights: float) -> None:
    grid = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    steps = np.array([np.arange(100) < count for count in right])
    assert best_weights(grid, steps) == pytest.approx([weights, 1 - weights])


def test_the_grid_begins_with_equal_weights_and_each_of_its_points_sums_to_1() -> None:
    for members in (1, 2, 3, 4):
        grid = weights_to_try(members)
        assert grid[0].tolist() == [1 / members] * members
        assert (
            np.allclose(grid.sum(axis=1), 1)
            and np.eye(members).tolist() == [each for each in grid[::-1].tolist() if max(each) == 1][:members]
        )


def test_numbers_follow_the_lines_of_the_pool(selected: Select) -> None:
    found = selected("9,2,1")
    numbers = {"alpha": 9.0, "beta": 2.0, "gamma": 1.0}
    assert found["ensemble"]["weights"] == [numbers[name] for name in found["selected"]]


def test_a_run_decodes_with_the_weights_of_its_folder(place: Place, models: Path, selected: Select) -> None:
    found = selected("9,2,1")
    ran = place.advisor("run", "9,2,1", "What is 7 + 7?\nAnswer:", "--method", "unite")
    assert ran.status == 0
    weights = found["ensemble"]["weights"]
    ensemble = Ensemble.from_pretrained([models / name for name in found["selected"]], weights=weights)
    (expected,) = ensemble.generate(["What is 7 + 7?\nAnswer:"], max_new_tokens=6)
    assert ran.out.strip() == expected.text.strip()


def test_a_strategy_named_by_the_user_keeps_the_weights(place: Place, selected: Select) -> None:
    found = selected("9,2,1")
    ran = place.advisor("export", "9,2,1", "saved", "--strategy", "unite")
    assert ran.status == 0, ran.err
    assert place.json("saved/ensemble.json")["weights"] == found["ensemble"]["weights"] is not None


def test_a_check_decodes_with_the_weights_of_the_run(place: Place, selected: Select) -> None:
    selected("9,2,1")
    found = Run.open(place.folder / "9,2,1").result.ensemble
    assert found is not None and isinstance(found.weights, tuple)
    names = [each.model for each in found.members]
    entries = [SimpleNamespace(name=name) for name in ("other", *reversed(names))]
    by_name = dict(zip(names, found.weights, strict=True))
    text = check._weights(found, Decoded(tuple(names), "unite"), entries)  # type: ignore[arg-type]
    assert read_numbers(text) == (0.0, *(by_name[name] for name in reversed(names)))
    assert check._weights(found, Decoded(tuple(names), "gac"), entries) == "equal"  # type: ignore[arg-type]


def test_weights_of_a_run_that_do_not_fit_are_refused(place: Place, selected: Select) -> None:
    selected("9,2,1")
    for weights in [[], [1], [0, 0, 0], [1, 2, 3, 4]]:
        place.edit(lambda result, weights=weights: result["ensemble"].update(weights=weights), "9,2,1/result.json")
        ran = place.advisor("run", "9,2,1", "What is 7 + 7?", "--method", "unite")
        assert (ran.status, ran.out) == (2, "")
        assert "weights should be 3 numbers" in ran.err


def test_evaluate_weighs_the_members_and_leaves_out_what_takes_no_weights(chosen: Place) -> None:
    common = ("evaluate", "accuracy", "--task", "task.yaml", "--json", "--quiet", "--methods", "unite,sweetspan")
    ran = chosen.advisor(*common, "--weights", "accuracy")
    assert (ran.status, ran.err) == (0, "")
    found = json.loads(ran.out)
    unite, sweetspan, _ = found["methods"]
    assert (found["weights"], unite["left_out"]) == ("accuracy", None)
    assert "weights" in sweetspan["left_out"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("1,2", "--weights 1,2: 2 numbers for 3 models; give one for each"),
        ("best", "--weights best: give equal, accuracy, likelihood, or numbers such as 2,1,1"),
        ("1,-1,1", "--weights 1,-1,1: each number must be 0 or more, and one of them above 0"),
        ("0,0,0", "--weights 0,0,0: each number must be 0 or more, and one of them above 0"),
    ],
)
def test_other_weights_are_refused(place: Place, models: Path, weights: str, message: str) -> None:
    place.job(models)
    assert message in place.refused(*SELECT, "--weights", weights, "--out", "run")


def test_a_set_of_one_family_and_tokenizer_gets_a_warning_and_other_sets_do_not(place: Place, models: Path) -> None:
    place.job(models)
    tokenizer = byte_tokenizer(("What", " is"))
    delta = save_member(place.folder / "delta", tiny_model(tokenizer, seed=7, hidden=16, positions=256), tokenizer)
    place.pool(str(models / "alpha"), str(delta))
    place.select()
    kin = place.json()["advice"]["warnings"]
    place.job(models)
    place.select("--force")
    assert [
        sum("of one family: one kind of model" in each for each in found)
        for found in (kin, place.json()["advice"]["warnings"])
    ] == [1, 0]
