"""Steps of members apart that know some logits only from above: the winners of one process, and few questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from test_unite_step import Case, cases, quick, tables
from torch import Tensor

from ensemble.distributed.ray_cluster import settle
from ensemble.methods.unite import top_k, union
from ensemble.step.distribution import Distribution, candidate_logits, greedy, is_certain
from ensemble.vocabulary.joint import JointVocabulary, MemberTables

settle()  # this module may be the first to import Ray in a process of tests
pytest.importorskip("ray", reason="Ray is not installed")

from ensemble.distributed.ray_runner import RayLogits, Reply  # noqa: E402  # needs Ray


@dataclass
class Shelf:
    """What a node would answer about logits [B, V], and the numbers of logits that it was asked for."""

    logits: Tensor
    k: int
    asked: list[int] = field(default_factory=list)

    def candidates(self, _reply: Reply) -> tuple[Tensor, Tensor]:
        return top_k([self.logits], self.k)[0]

    def at(self, rows: Tensor, ids: Tensor) -> Callable[[], Tensor]:
        self.asked.append(len(ids))
        return lambda: self.logits[rows, ids]


def shelves(logits: Sequence[Tensor], sides: Sequence[MemberTables], k: int) -> list[Shelf]:
    return [Shelf(candidate_logits(z.clone(), side), k) for z, side in zip(logits, sides, strict=True)]


def apart(shelf: Shelf) -> RayLogits:
    reply = Reply(None, ("admit", ()), 0, len(shelf.logits), shelf.k)
    return RayLogits(shelf, (reply,))  # type: ignore[arg-type]  # it has what is called here


def step(case: Case, *, winner: bool) -> tuple[Distribution, list[Shelf]]:
    made = shelves(case.logits, case.joint.members, case.k)
    return union([apart(each) for each in made], case.joint, case.k, case.weights, winner=winner), made


@quick
@given(cases())
def test_members_apart_have_the_probabilities_of_one_process(case: Case) -> None:
    far, near = step(case, winner=False)[0], case.run()
    assert torch.equal(far.mean, near.mean)
    assert torch.equal(far.members, near.members)


@quick
@given(cases())
def test_where_the_winner_alone_is_wanted_it_is_that_of_one_process(case: Case) -> None:
    far, near = step(case, winner=True)[0], case.run()
    assert torch.equal(far.present, near.present)
    assert torch.equal(greedy(far), greedy(near))


def pair(first: list[float], second: list[float]) -> Case:
    """Two members with the same candidates."""
    same = {n: n + 1 for n in range(len(first))}
    side = tables(len(first), same, {}, len(first) + 1, [])
    joint = JointVocabulary(len(first) + 1, (side, side))
    weights = torch.tensor([0.5, 0.5], dtype=torch.float64)
    return Case([torch.tensor([z], dtype=torch.float64) for z in (first, second)], joint, 2, weights)


def test_nobody_is_asked_where_nothing_can_change_the_winner() -> None:
    _, made = step(pair([9.0, 1.0, 0.0, 0.0], [5.0, 0.0, 1.0, 0.0]), winner=True)
    assert [each.asked for each in made] == [[], []]


def test_both_are_asked_where_what_they_did_not_send_decides() -> None:
    _, made = step(pair([2.0, 1.5, 0.0, 0.0], [0.0, 0.0, 2.0, 1.5]), winner=True)
    assert [each.asked for each in made] == [[2], [2]]


def test_only_the_rows_that_are_open_are_asked_for() -> None:
    sure, undecided = pair([9.0, 1.0, 0.0, 0.0], [5.0, 0.0, 1.0, 0.0]), pair([2.0, 1.5, 0.0, 0.0], [0.0, 0.0, 2.0, 1.5])
    both = [torch.cat(rows) for rows in zip(sure.logits, undecided.logits, strict=True)]
    _, made = step(Case(both, sure.joint, 2, sure.weights), winner=True)
    assert [each.asked for each in made] == [[2], [2]]


def test_members_of_different_precision_go_together() -> None:
    case = pair([2.0, 1.5, 0.0, 0.0], [0.0, 0.0, 2.0, 1.5])
    case.logits[1] = case.logits[1].float()
    assert torch.equal(step(case, winner=False)[0].mean, case.run().mean)


def test_a_logit_that_is_no_number_leaves_its_row_open() -> None:
    highest = torch.tensor([[[9.0, 0.0], [torch.nan, 0.0]]])
    known = torch.ones(1, 2, 2, dtype=torch.bool)
    assert is_certain(highest, known, torch.tensor([1.0]), known[0]).tolist() == [True, False]
