"""The top k of a step in all number types, against a stable sort."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble.runtime.logits import top_k

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
many = settings(max_examples=60, deadline=None, derandomize=True)


def sorted_ids(values: torch.Tensor, k: int) -> torch.Tensor:
    return values.sort(dim=1, descending=True, stable=True).indices[:, :k]


@st.composite
def rows(draw: st.DrawFn) -> torch.Tensor:
    """Logits [B, V] with many ties; wide enough for one, two or no levels of chunks."""
    count = draw(st.sampled_from([1, 2, 9]))
    width = draw(st.sampled_from([1, 7, 300, 401, 2_000, 9_001, 33_000]))
    different = draw(st.sampled_from([1, 2, 12, 200, 5_000]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    numbers = torch.randint(different, (count, width), generator=generator) - draw(st.sampled_from([0, different // 2]))
    values = numbers.double() * draw(st.sampled_from([1.0, 0.01, 1e-43, 1e36]))
    values[torch.rand(count, width, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.999]))] = -math.inf
    return values.to(draw(st.sampled_from(DTYPES)))


@many
@given(rows(), st.sampled_from([1, 2, 10, 64]))
def test_it_is_the_beginning_of_a_stable_sort(values: torch.Tensor, k: int) -> None:
    found, ids = top_k(values, k)
    assert torch.equal(ids, sorted_ids(values, k))
    assert torch.equal(found, values.gather(1, ids))


@pytest.mark.parametrize("start", [0.0, 1e-45, 1.0, -1.0, 3.3e38, -3.3e38])
def test_neighbours_among_the_numbers_are_told_apart_at_any_distance(start: float) -> None:
    # The larger number has the higher position, so what is subtracted for the position speaks for the smaller one.
    lower = torch.tensor([start])
    upper = torch.nextafter(lower, torch.tensor([math.inf]))
    values = torch.cat([lower.expand(40_000), upper])[None]
    for width in (10, 320, 40_001):
        assert top_k(values[:, -width:], 2)[1].tolist() == [[width - 1, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [30, 40_003])
def test_a_row_without_numbers_shows_it_and_the_others_do_not(dtype: torch.dtype, width: int) -> None:
    values = torch.zeros(4, width, dtype=dtype)
    values[1, width - 1] = math.nan
    values[2] = math.nan
    # The sign of NaN differs from processor to processor.
    values[3, 5] = -torch.tensor(math.nan)
    found, _ = top_k(values, 10)
    assert found.isnan().any(dim=1).tolist() == [False, True, True, True]


def test_infinity_comes_before_all_numbers_and_both_zeros_are_equal() -> None:
    assert top_k(torch.tensor([[-0.0, 0.0, -0.0, 0.0]]), 3)[1].tolist() == [[0, 1, 2]]
    values = torch.full((1, 20_000), 3e38)
    values[0, 17_000] = math.inf
    assert top_k(values, 2)[1].tolist() == [[17_000, 0]]


def test_rows_of_a_larger_tensor_are_read_where_they_are() -> None:
    whole = torch.randn(3, 50_000, generator=torch.Generator().manual_seed(0))
    part = whole[::2, 1_000:41_003]
    assert torch.equal(top_k(part, 10)[1], sorted_ids(part, 10))
