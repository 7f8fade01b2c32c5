"""The union step on made-up logits and tables, against a plain restatement of steps 1 to 7 of the page on UNITE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ensemble.methods.unite import union
from ensemble.step import compiled
from ensemble.step.distribution import Distribution, greedy, sample
from ensemble.vocabulary.joint import EOS, NONE, JointVocabulary, MemberTables

quick = settings(max_examples=25, deadline=None, derandomize=True)
# Few and plain values, so that ties come up; an eighth apart, so that sums of them are exact.
LOGITS = (-math.inf, -2.0, -1.0, 0.0, 0.0, 0.5, 1.0, 1.125, 3.0)


@dataclass(frozen=True)
class Case:
    """A step of a batch: for each member its logits [B, V] and its tables."""

    logits: list[Tensor]
    joint: JointVocabulary
    k: int
    weights: Tensor

    def run(self, also: Tensor | None = None) -> Distribution:
        # A copy, because the step masks logits in place.
        return union([z.clone() for z in self.logits], self.joint, self.k, self.weights, also)


def tables(
    rows: int, entry_of: dict[int, int], others: dict[int, int], size: int, eos_ids: Sequence[int]
) -> MemberTables:
    """A member's tables from plain dictionaries: `others` are the ids for entries that are not its own."""
    forward = torch.full((rows,), NONE)
    back = torch.full((size,), NONE)
    for token, entry in (entry_of | dict.fromkeys(eos_ids[:1], EOS)).items():
        forward[token], back[entry] = entry, token
    for entry, token in others.items():
        back[entry] = token
    return MemberTables(forward, back, (forward == NONE).nonzero().squeeze(1), torch.tensor(eos_ids, dtype=torch.long))


@st.composite
def members(draw: st.DrawFn, size: int) -> MemberTables:
    rows = draw(st.integers(3, 12))
    tokens = draw(st.permutations(range(rows)))
    eos_ids = sorted(tokens[: draw(st.integers(0, 2))])
    own = draw(st.lists(st.sampled_from(tokens[len(eos_ids) :]), unique=True, min_size=1, max_size=size - 1))
    entries = draw(st.permutations(range(1, size)))
    entry_of = dict(zip(own, entries, strict=False))
    spelled = {entry: draw(st.sampled_from([NONE, *own])) for entry in entries[len(own) :]}
    return tables(rows, entry_of, spelled, size, eos_ids)


@st.composite
def cases(draw: st.DrawFn, values: Sequence[float] = LOGITS, batch: int | None = None) -> Case:
    size = draw(st.integers(3, 14))
    joint = JointVocabulary(size, tuple(draw(st.lists(members(size), min_size=1, max_size=3))))
    batch = batch or draw(st.integers(1, 3))
    logits = []
    for member in joint.members:
        rows = len(member.entry_of)
        numbers = draw(st.lists(st.sampled_from(values), min_size=batch * rows, max_size=batch * rows))
        logits.append(torch.tensor(numbers, dtype=torch.float64).view(batch, rows))
    given_weights = draw(st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=len(logits), max_size=len(logits)))
    weights = torch.tensor(given_weights, dtype=torch.float64)
    case = Case(logits, joint, draw(st.sampled_from([1, 2, 3, 20])), weights / weights.sum())
    # A member that wants nothing at all is an error of its own.
    assume(all(wanted(case, m, row) for m in range(len(logits)) for row in range(batch)))
    return case


def scores(case: Case, member: int, row: int) -> dict[int, float]:
    """Step 1: the logits of the candidates of a member."""
    side, z = case.joint.members[member], case.logits[member][row].tolist()
    eos = {token: max(z[t] for t in side.eos_ids) for token in side.eos_ids[:1].tolist()}
    return {t: z[t] for t, entry in enumerate(side.entry_of.tolist()) if entry not in (EOS, NONE)} | eos


def wanted(case: Case, member: int, row: int) -> list[int]:
    """Step 2: the entries of a member's top k."""
    z = scores(case, member, row)
    best = sorted((t for t in z if z[t] > -math.inf), key=lambda t: (-z[t], t))[: case.k]
    return [int(case.joint.members[member].entry_of[t]) for t in best]


def plain_union(case: Case, row: int) -> set[int]:
    """Step 3."""
    return {entry for member in range(len(case.logits)) for entry in wanted(case, member, row)}


def plain_probabilities(case: Case, member: int, row: int) -> dict[int, float]:
    """Steps 4 and 5."""
    z = scores(case, member, row)
    ids = {entry: int(case.joint.members[member].id_of[entry]) for entry in plain_union(case, row)}
    exponentials = {entry: math.exp(z[token]) if token != NONE else 0.0 for entry, token in ids.items()}
    return {entry: value / sum(exponentials.values()) for entry, value in exponentials.items()}


def batch_of(case: Case) -> range:
    return range(len(case.logits[0]))


# Steps 1 to 6


@quick
@given(cases())
def test_the_union_its_probabilities_and_their_mean_are_those_of_the_page(case: Case) -> None:
    step = case.run()
    id_of = case.joint.members[0].id_of
    for row in batch_of(case):
        present = step.present[row]
        entries = step.entries[row][present].tolist()
        assert entries == sorted(plain_union(case, row))
        for member in range(len(case.logits)):
            # What each member has among its top k is told, too.
            assert {e for e in step.tops[member][row].tolist() if e != NONE} == {*wanted(case, member, row)}
            got = dict(zip(entries, step.members[member, row][present].tolist(), strict=True))
            assert got == pytest.approx(plain_probabilities(case, member, row))
        assert step.ids[row].tolist() == [
            int(id_of[entry]) if there else NONE
            for entry, there in zip(step.entries[row].tolist(), present.tolist(), strict=True)
        ]
    assert torch.allclose(step.mean, torch.einsum("m,mbu->bu", case.weights, step.members))


@quick
@given(cases(), st.integers(1, 13), st.integers(1, 13))
def test_the_union_also_holds_what_is_asked_for(case: Case, first: int, second: int) -> None:
    assume(max(first, second) < case.joint.size)
    step = case.run(also=torch.tensor([[first, second]] * len(batch_of(case))))
    for row in batch_of(case):
        assert step.entries[row][step.present[row]].tolist() == sorted(plain_union(case, row) | {first, second})


@quick
@given(cases(), st.sampled_from([math.nan, math.inf, 50.0]))
def test_logits_of_what_is_no_candidate_are_not_looked_at(case: Case, noise: float) -> None:
    noisy = []
    for z, side in zip(case.logits, case.joint.members, strict=True):
        hidden = [token for token in side.outside.tolist() if token not in side.eos_ids.tolist()]
        noisy.append(z.index_fill(1, torch.tensor(hidden, dtype=torch.long), noise))
    assert torch.equal(replace(case, logits=noisy).run().mean, case.run().mean)


@quick
@given(cases(), st.data())
def test_a_candidate_that_is_no_number_makes_the_mean_no_number(case: Case, data: st.DataObject) -> None:
    member = data.draw(st.integers(0, len(case.logits) - 1))
    side = case.joint.members[member]
    token = data.draw(st.sampled_from((side.entry_of != NONE).nonzero().flatten().tolist()))
    row = data.draw(st.sampled_from([*batch_of(case)]))
    broken = case.logits[member].clone()
    broken[row, token] = math.nan
    step = replace(case, logits=[broken if n == member else z for n, z in enumerate(case.logits)]).run()
    assert step.mean[row].isnan().any()
    others = [n for n in batch_of(case) if n != row]
    assert not step.mean[others].isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_counted_in_single(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiled step takes no float16, and its sums are not those of tensors to the last bit.
    monkeypatch.setattr(compiled, "library", None)
    side = tables(4, {0: 1, 1: 2, 2: 3}, {}, 4, eos_ids=[3])
    z = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    joint, weights = JointVocabulary(4, (side,)), torch.ones(1, dtype=torch.float64)
    half = union([z.to(dtype)], joint, 4, weights)
    assert half.mean.dtype == torch.float32
    assert torch.equal(half.mean, union([z.clone()], joint, 4, weights).mean)


# Step 7


def made(mean: Sequence[float], own: Sequence[float], ids: Sequence[int]) -> Distribution:
    """A step of one row with these means, probabilities of the primary and ids."""
    entries = torch.arange(1, len(mean) + 1)[None]
    members = torch.tensor([[own]], dtype=torch.float64)
    present = torch.ones_like(entries, dtype=torch.bool)
    return Distribution(
        entries, present, torch.tensor([ids]), members, torch.tensor([mean], dtype=torch.float64), (entries,)
    )


@pytest.mark.parametrize(
    ("mean", "own", "ids", "winner"),
    [
        ([0.2, 0.5, 0.3], [0.9, 0.0, 0.1], [4, 5, 6], 5),
        ([0.4, 0.4, 0.2], [0.1, 0.7, 0.2], [4, 5, 6], 5),
        ([0.4, 0.4, 0.2], [0.3, 0.3, 0.4], [5, 4, 6], 4),
        ([0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [NONE, 5, 6], 5),
    ],
    ids=["larger mean", "tie: larger share of the primary", "tie: lower id", "what the primary can express"],
)
def test_the_rule_of_step_7(mean: list[float], own: list[float], ids: list[int], winner: int) -> None:
    step = made(mean, own, ids)
    assert int(step.ids[0, int(greedy(step))]) == winner


def draw(
    step: Distribution, temperature: float, top_p: float, uniform: Sequence[float], limit: int = 0
) -> torch.Tensor:
    heat, share, most = (
        torch.full((len(uniform),), value, dtype=torch.float64) for value in (temperature, top_p, limit)
    )
    return sample(step, heat, share, torch.tensor(uniform, dtype=torch.float64), most if limit else None)


@quick
@given(cases(), st.floats(0, 1, exclude_max=True), st.sampled_from([0.3, 1.0, 5.0]), st.sampled_from([0.1, 0.5, 1.0]))
def test_what_is_drawn_is_something_that_the_primary_can_express(
    case: Case, uniform: float, temperature: float, top_p: float
) -> None:
    step = case.run()
    # Where the primary can express nothing that anybody gives a share, there is nothing to draw.
    assume(bool((step.mean.masked_fill(step.ids == NONE, 0) > 0).any(dim=1).all()))
    drawn = draw(step, temperature, top_p, [uniform] * len(step.mean))
    assert (step.ids.gather(1, drawn[:, None]) != NONE).all()
    assert (step.mean.gather(1, drawn[:, None]) > 0).all()


@pytest.mark.parametrize(
    ("temperature", "top_p", "limit", "expected"),
    [
        (1.0, 1.0, 0, [0.5, 0.3, 0.2]),
        (0.5, 1.0, 0, [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38]),
        (1.0, 0.75, 0, [0.625, 0.375, 0]),
        (1.0, 0.5, 0, [1, 0, 0]),
        (1.0, 0.01, 0, [1, 0, 0]),
        (1.0, 1.0, 1, [1, 0, 0]),
        (1.0, 1.0, 2, [0.625, 0.375, 0]),
        (1.0, 1.0, 9, [0.5, 0.3, 0.2]),
        # The share of top_p is one of the two that are left.
        (1.0, 0.6, 2, [1, 0, 0]),
    ],
)
def test_draws_come_as_often_as_they_are_likely(
    temperature: float, top_p: float, limit: int, expected: list[float]
) -> None:
    one = made([0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [4, 5, 6])
    n = 1000
    step = Distribution(
        one.entries.expand(n, -1),
        one.present.expand(n, -1),
        one.ids.expand(n, -1),
        one.members.expand(-1, n, -1),
        one.mean.expand(n, -1),
        one.tops,
    )
    drawn = draw(step, temperature, top_p, [(place + 0.5) / n for place in range(n)], limit)
    assert (drawn.bincount(minlength=3) / n).tolist() == pytest.approx(expected, abs=2 / n)


def test_a_mass_of_what_the_primary_cannot_express_is_shared_among_the_rest() -> None:
    step = made([0.6, 0.3, 0.1], [0.0, 0.75, 0.25], [NONE, 5, 6])
    drawn = [int(draw(step, 1.0, 1.0, [u])) for u in (0.0, 0.74, 0.76, 0.99)]
    assert drawn == [1, 1, 2, 2]
