"""The compiled step against the same with tensors, which other tests compare with a restatement of the method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_unite_step import LOGITS, Case, cases, quick, tables

from ensemble.methods.unite import union
from ensemble.step import compiled
from ensemble.step.distribution import Distribution, greedy, mask_
from ensemble.vocabulary.joint import NONE, JointVocabulary

pytestmark = pytest.mark.skipif(compiled.library is None, reason="compiled.c was not built: no C compiler was there")

TYPES = st.sampled_from([torch.float32, torch.bfloat16])
FAR_APART = (*LOGITS, -1e30, 1e30, 88.0, 800.0)


def by_tensors(case: Case) -> Distribution:
    """Both members in float64, which the compiled code does not take."""
    return union([z.double() for z in case.logits], case.joint, case.k, case.weights)


def by_compiled(case: Case) -> Distribution:
    logits = [z.clone() for z in case.logits]
    for z, side in zip(logits, case.joint.members, strict=True):
        mask_(z, side)
    step = compiled.union(logits, case.joint, case.k, case.weights)
    assert step is not None
    return step


def converted(case: Case, *dtypes: torch.dtype) -> Case:
    return replace(case, logits=[z.to(dtypes[n % len(dtypes)]) for n, z in enumerate(case.logits)])


def assert_same(step: Distribution, expected: Distribution) -> None:
    for name in ("entries", "present", "ids"):
        assert torch.equal(getattr(step, name), getattr(expected, name)), name
    assert all(map(torch.equal, step.tops or (), expected.tops or ()))
    for name in ("members", "mean"):
        torch.testing.assert_close(getattr(step, name).double(), getattr(expected, name).double(), equal_nan=True)


@quick
@given(cases(FAR_APART), TYPES, TYPES)
def test_a_step_is_the_same_with_tensors(case: Case, one: torch.dtype, another: torch.dtype) -> None:
    case = converted(case, one, another)
    assert_same(by_compiled(case), by_tensors(case))


@pytest.mark.parametrize("width", [63, 64, 65, 1000, 5003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_row_is_searched_to_its_end_and_the_lower_of_equals_comes_first(
    width: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    case = large(3, width, generator)
    # Whole numbers: tens of equals.
    case = replace(case, logits=[z.round().to(dtype) for z in case.logits])
    assert_same(by_compiled(case), by_tensors(case))


def test_rows_that_are_a_part_of_a_larger_tensor_are_read_in_place(generator: torch.Generator) -> None:
    case = large(6, 200, generator)
    every_second = replace(case, logits=[z[::2] for z in case.logits])
    expected = by_tensors(every_second)
    logits = [z.clone() for z in case.logits]
    for z, side in zip(logits, case.joint.members, strict=True):
        mask_(z, side)
    step = compiled.union([z[::2] for z in logits], case.joint, case.k, case.weights)
    assert step is not None
    assert_same(step, expected)


@quick
@given(cases(), st.data())
def test_nan_in_a_row_is_nan_in_its_mean_alone(case: Case, data: st.DataObject) -> None:
    case = converted(case, torch.float32)
    rows = len(case.logits[0])
    row, member = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, len(case.logits) - 1))
    own = case.joint.members[member].entry_of
    column = data.draw(st.sampled_from((own != NONE).nonzero()[:, 0].tolist()))
    case.logits[member][row, column] = torch.nan
    step = by_compiled(case)
    assert step.mean.sum(dim=1).isnan().tolist() == [n == row for n in range(rows)]


@quick
@given(cases(FAR_APART), TYPES)
def test_the_choice_is_the_greedy_one(case: Case, dtype: torch.dtype) -> None:
    step = by_compiled(converted(case, dtype))
    numbers = compiled.choice(step)
    assert numbers is not None
    total, tokens, handled = numbers.unbind(dim=1)
    winners = greedy(step)[:, None]
    sure = ~step.mean.sum(dim=1).isnan()
    assert torch.equal(tokens[sure], step.ids.gather(1, winners)[:, 0].double()[sure])
    assert torch.equal(total.isnan(), ~sure)
    assert handled.tolist() == step.present.sum(dim=1).tolist()


@pytest.mark.parametrize("change", ["k", "dtype", "columns"])
def test_what_it_does_not_take_is_left_to_tensors(change: str, generator: torch.Generator) -> None:
    case = large(2, 200, generator)
    logits = [z.clone() for z in case.logits]
    k = 65 if change == "k" else case.k
    if change == "dtype":
        logits[0] = logits[0].half()
    if change == "columns":
        logits[0] = logits[0].repeat_interleave(2, dim=1)[:, ::2]
    assert compiled.union(logits, case.joint, k, case.weights) is None
    assert union(logits, case.joint, k, case.weights).mean.sum(dim=1).tolist() == pytest.approx([1, 1], abs=1e-3)


def large(rows: int, width: int, generator: torch.Generator) -> Case:
    """Two members with the same entries in other orders."""
    orders = [torch.randperm(width, generator=generator).tolist() for _ in range(2)]
    sides = tuple(tables(width, {n: entry + 1 for n, entry in enumerate(order)}, {}, width + 1, []) for order in orders)
    logits = [3 * torch.randn(rows, width, generator=generator) for _ in sides]
    return Case(logits, JointVocabulary(width + 1, sides), 10, torch.tensor([0.6, 0.4], dtype=torch.float64))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
