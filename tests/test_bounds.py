"""Steps of members elsewhere that know some logits only from above: the winners of one process, and few requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import torch
from hypothesis import given
from test_token_client import threads
from test_unite_step import Case, cases, quick, tables
from torch import Tensor

from ensemble.methods.unite import union
from ensemble.runtime.logits import top_k
from ensemble.runtime.remote_runner import RemoteRows, RemoteRunner
from ensemble.servers.token_client import TokenClient
from ensemble.servers.token_server import Ids, Logprobs, NextToken, ServerLimits
from ensemble.step.distribution import Distribution, greedy, is_certain
from ensemble.vocabulary.joint import EOS, Candidates, JointVocabulary, MemberTables


@dataclass
class Shelf:
    """A server that answers a context of one id with that row of logits [B, V]."""

    logits: Tensor
    limits: ServerLimits
    chosen_ids: list[int] = field(default_factory=list)
    client: Any = field(default_factory=threads)

    def write(self, contexts: Sequence[Ids], max_tokens: int, k: int) -> list[list[NextToken]]:  # noqa: ARG002
        rows = self.logits[[context[0] % len(self.logits) for context in contexts]]
        values, ids = top_k(rows, min(k, rows.shape[1]))
        tops = [dict(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
        return [[NextToken(next(iter(top)), top)] for top in tops]

    def chosen(self, contexts: Sequence[Ids], ids: Ids) -> list[Logprobs]:
        self.chosen_ids.append(len(ids))
        return [{index: float(self.logits[context[0], index]) for index in ids} for context in contexts]

    def tokenize(self, text: str) -> None:
        pass


def shelves(case: Case) -> list[Shelf]:
    # As few top ones as the method takes, and room for special tokens: the others must be requested.
    made = []
    for z, side in zip(case.logits, case.joint.members, strict=True):
        most = min(case.k + len(side.outside) + len(side.eos_ids), z.shape[1])
        made.append(Shelf(z, ServerLimits(k=most, contexts=100, chosen=100)))
    return made


def apart(shelf: Shelf, side: MemberTables, k: int) -> RemoteRows:
    own = (side.entry_of > EOS).nonzero().flatten().tolist()
    vocabulary = SimpleNamespace(
        representatives={bytes(str(index), "ascii"): index for index in own},
        eos_ids=tuple(side.eos_ids.tolist()),
        size=shelf.logits.shape[1],
    )
    runner = RemoteRunner(TokenClient("m", shelf, 0), Candidates(cast("Any", vocabulary)))
    return runner.admit([[row] for row in range(len(shelf.logits))])


def step(case: Case, *, winner: bool) -> tuple[Distribution, list[Shelf]]:
    made = shelves(case)
    rows = [apart(shelf, side, case.k) for shelf, side in zip(made, case.joint.members, strict=True)]
    return union(rows, case.joint, case.k, case.weights, winner=winner), made


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


def test_nothing_is_requested_where_nothing_can_change_the_winner() -> None:
    _, made = step(pair([9.0, 1.0, 0.0, 0.0], [5.0, 0.0, 1.0, 0.0]), winner=True)
    assert [each.chosen_ids for each in made] == [[], []]


def test_only_the_rows_that_are_open_are_requested() -> None:
    sure, undecided = pair([9.0, 1.0, 0.0, 0.0], [5.0, 0.0, 1.0, 0.0]), pair([2.0, 1.5, 0.0, 0.0], [0.0, 0.0, 2.0, 1.5])
    both = [torch.cat(rows) for rows in zip(sure.logits, undecided.logits, strict=True)]
    _, made = step(Case(both, sure.joint, 2, sure.weights), winner=True)
    assert [each.chosen_ids for each in made] == [[2], [2]]


def test_a_logit_that_is_no_number_leaves_its_row_open() -> None:
    highest = torch.tensor([[[9.0, 0.0], [torch.nan, 0.0]]])
    known = torch.ones(1, 2, 2, dtype=torch.bool)
    assert is_certain(highest, known, torch.tensor([1.0]), known[0]).tolist() == [True, False]


def test_rows_that_join_do_not_change_the_logits_that_are_still_on_the_way() -> None:
    case = pair([2.0, 1.5, 0.0, 0.0], [0.0, 0.0, 2.0, 1.5])
    runner = apart(shelves(case)[0], case.joint.members[0], case.k)._runner
    fed = runner.feed([1], [[0]])
    runner.admit([[0, 0]])
    assert [row.context for row in fed.rows] == [[0, 0]]
