"""Which prompts are read together, and which rows move when others leave."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from ensemble.decode.contexts import fill_gaps
from ensemble.runtime.forward_pass import pass_tokens, plan_passes

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(rows=lengths, most=st.integers(1, 200))
def test_every_row_is_in_one_pass_and_no_pass_is_too_large(rows: list[int], most: int) -> None:
    passes = plan_passes(rows, most)
    assert sorted(n for numbers in passes for n in numbers) == list(range(len(rows)))
    assert all(len(numbers) == 1 or len(numbers) * max(rows[n] for n in numbers) <= most for numbers in passes)


@given(rows=lengths, most=st.integers(1, 200))
def test_rows_of_like_length_are_read_together(rows: list[int], most: int) -> None:
    passes = plan_passes(rows, most)
    ends = [(min(rows[n] for n in numbers), max(rows[n] for n in numbers)) for numbers in passes]
    assert all(longest <= shortest for (_, longest), (shortest, _) in itertools.pairwise(ends))


def test_rows_that_one_pass_holds_stay_in_their_order() -> None:
    assert plan_passes([3, 1, 2], 9) == [[0, 1, 2]]
    assert plan_passes([3, 1, 2], 8) == [[1, 2], [0]]


def test_an_accelerator_reads_more_at_a_time() -> None:
    assert pass_tokens(torch.device("cuda")) > pass_tokens(torch.device("cpu"))


@given(gone=st.sets(st.integers(0, 19)))
def test_no_more_rows_move_than_leave(gone: set[int]) -> None:
    kept = [n for n in range(20) if n not in gone]
    found = fill_gaps(kept)
    assert sorted(found) == kept
    assert sum(n != row for n, row in enumerate(found)) <= len(gone)
