"""Members over the same weights, each with its own prompt: one forward pass, and the texts of separate passes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import PROMPTS, member, passes_of
from ways import assert_alike

from ensemble import Ensemble, Sourced
from ensemble.decode.settings import Batch, Settings
from ensemble.models.member import Member
from ensemble.runtime.draft import Drafter, DraftMode

SHOTS = "1 + 1 = 2\n2 + 3 = 5\n"
KINDS = (Settings(9), Settings(4), Settings(7, temperature=1.0, seed=3), Settings(11, ("e", "\n"), alternatives=2))


def lines(*, share: bool = True) -> list[Member]:
    """Three lines of one model, which share its weights or have copies of them."""
    one = member("bytes", 5)
    names = ("plain", "polite", "shots")
    return [replace(one, name=name, model=one.model if share else deepcopy(one.model)) for name in names]


def asked(text: str) -> Sourced:
    """A question that each line is asked in its own way."""
    return Sourced(text, own={"polite": f"Please: {text}", "shots": f"{SHOTS}{text}"})


def decoded(members: list[Member], batch: Batch, mode: DraftMode, tables: Path) -> dict[int, Any]:
    """Questions of which some join and some leave while others run; the results by their numbers."""
    ensemble, found = Ensemble(members, cache_dir=tables), dict[int, Any]()
    ensemble._drafters[batch] = Drafter(ensemble._joint.members[0], batch.draft, (mode,))
    decoder = ensemble.decoder(batch)
    for number, text in enumerate(PROMPTS):
        decoder.add(number, ensemble.encode(asked(text)), KINDS[number % len(KINDS)])
        found |= decoder.step() if number % 3 else ()
    decoder.remove(7)
    return found | dict(decoder)


@pytest.mark.parametrize("place", [None, 0, 1])
@pytest.mark.parametrize("mode", ["plain", "check", "repeat"])
def test_texts_and_traces_are_those_of_separate_passes(mode: DraftMode, place: int | None, tables: Path) -> None:
    sets = [lines(share=share) for share in (True, False)]
    for each in sets if place is not None else ():
        each.insert(place or 0, member("unigram with bytes", 1))
    joined, separate = (decoded(each, Batch(3, trace=True), mode, tables) for each in sets)
    assert joined.keys() == separate.keys()
    for number, made in joined.items():
        assert_alike(made, separate[number])


def test_a_step_is_one_forward_pass_with_a_row_of_each_member(tables: Path) -> None:
    members = lines()
    with passes_of(members[0].local.model) as passes:
        (made,) = Ensemble(members, cache_dir=tables).generate([asked("x")], max_new_tokens=9, deterministic=True)
    assert [rows for rows, _ in passes] == [3] * made.counts.steps


def test_where_another_model_drafts_one_pass_checks_for_all_of_them(tables: Path) -> None:
    members = [member("bytes"), *lines()]
    with passes_of(members[1].local.model) as passes:
        decoded(members, Batch(1), "check", tables)
    assert {rows for rows, _ in passes} == {3}


def test_each_member_reads_the_common_beginning_of_its_prompts_once(tables: Path) -> None:
    members, questions = lines(), [f"{n} + 1 =" for n in range(6)]
    with passes_of(members[0].local.model) as passes:
        Ensemble(members, cache_dir=tables).generate([asked(text) for text in questions], max_new_tokens=1)
    assert [columns for rows, columns in passes if rows == 1] == [len("Please: "), len(SHOTS)]
    assert sum(rows * columns for rows, columns in passes if rows > 1) == 3 * 6 * len(questions[0])
