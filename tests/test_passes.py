"""Which prompts are read together, and which rows move when others leave."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ensemble.decode.contexts import fill_gaps
from ensemble.runtime.forward_pass import pass_logits, plan_passes, to_device

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(rows=lengths, most=st.integers(1, 200))
def test_rows_of_like_length_are_read_together(rows: list[int], most: int) -> None:
    passes = plan_passes(rows, most)
    ends = [(min(rows[n] for n in numbers), max(rows[n] for n in numbers)) for numbers in passes]
    assert all(longest <= shortest for (_, longest), (shortest, _) in itertools.pairwise(ends))


def test_rows_that_one_pass_holds_stay_in_their_order() -> None:
    assert plan_passes([3, 1, 2], 9) == [[0, 1, 2]]
    assert plan_passes([3, 1, 2], 8) == [[1, 2], [0]]


@given(rows=lengths, most=st.integers(1, 200), extra=st.none() | st.integers(0, 30))
def test_every_row_is_in_one_pass_that_is_not_too_large_nor_too_uneven(
    rows: list[int], most: int, extra: int | None
) -> None:
    passes = plan_passes(rows, most, extra)
    assert sorted(n for numbers in passes for n in numbers) == list(range(len(rows)))
    for numbers in passes:
        own = [rows[n] for n in numbers]
        assert extra is None or len(own) * (max(own) - min(own)) <= extra
        assert len(own) == 1 or len(own) * max(own) <= most


def test_a_pass_has_no_more_logits_than_its_memory_is_planned_for() -> None:
    cpu = torch.device("cpu")
    assert pass_logits(cpu, 50_264) * 50_264 * 4 <= 2**28
    assert pass_logits(cpu, 2**27) == 1


def test_a_copy_to_a_gpu_is_pinned_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def pin(tensor: Tensor) -> Tensor:
        calls.append("pinned")
        return tensor

    def move(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        calls.append((*args, options))
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", move)
    gpu = torch.device("cuda")
    to_device(torch.arange(3), gpu)
    assert calls == ["pinned", (gpu, {"non_blocking": True})]


@given(gone=st.sets(st.integers(0, 19)))
def test_no_more_rows_move_than_leave(gone: set[int]) -> None:
    kept = [n for n in range(20) if n not in gone]
    found = fill_gaps(kept)
    assert sorted(found) == kept
    assert sum(n != row for n, row in enumerate(found)) <= len(gone)
