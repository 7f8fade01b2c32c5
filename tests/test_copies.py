"""The same model twice: which candidates are copies, and that they take no part in sets and votes."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_pipeline import plan_of_pool, run, statuses

from advisor.advice.rules import find_copies
from advisor.models.fingerprint import Fingerprint
from advisor.records import Answer, Profile
from ensemble.models.spec import Checkpoint, ModelSpec

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]


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
    profiles = [profile("b", "Rx" * 15), profile("c", "RR" * 15), profile("a", "Rx" * 15)]
    assert find_copies(profiles) == {"b": "the same model as a: all 30 answers are equal"}


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


def test_a_copy_that_can_be_decoded_stays_instead_of_the_one_on_a_server() -> None:
    profiles = [profile("a", "Rx" * 15), profile("b", "Rx" * 15)]
    assert list(find_copies(profiles, apart=["a"])) == ["a"]


def test_three_copies_name_the_same_original() -> None:
    found = find_copies([profile(name, "Rx" * 20) for name in "cab"])
    assert list(found) == ["b", "c"]
    assert all(reason.startswith("the same model as a:") for reason in found.values())


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
    result = run(plan_of_pool(place))
    assert statuses(result)["alpha-2"] == "rejected"
    assert len(result.selected) == 2 and "alpha-2" not in result.selected
    reasons = {candidate.model: candidate.reason for candidate in result.candidates}
    assert reasons["alpha-2"] == "the same model as alpha: their weights are equal"
    assert all("alpha-2" not in row.members for row in result.strategies)
