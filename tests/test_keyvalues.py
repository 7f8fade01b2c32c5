"""The key-value cache with room to grow, compared with the library's, which concatenates."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from ensemble.runtime.kv_cache import GrowingCache, GrowingLayer

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 90)),
        st.tuples(st.just("cut"), st.integers(1, 90)),
        st.tuples(st.just("select"), st.lists(st.integers(0, 1), min_size=2, max_size=4)),
        st.tuples(st.just("keep"), st.lists(st.integers(0, 1), min_size=2, max_size=4)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=8,
)


@given(actions=ACTIONS)
def test_it_holds_what_the_librarys_layer_holds(actions: list[tuple[str, int | list[int]]]) -> None:
    ours, theirs = GrowingLayer(), DynamicLayer()
    random = torch.Generator().manual_seed(0)
    rows = 2
    for layer in (ours, theirs):
        layer.update(torch.ones(rows, 2, 3, 4), torch.zeros(rows, 2, 3, 4))
    for action, value in actions:
        slots = theirs.get_seq_length()
        if action == "append" and isinstance(value, int):
            new = torch.rand(2, rows, 2, value, 4, generator=random)
            assert torch.equal(ours.update(new[0], new[1])[1], theirs.update(new[0], new[1])[1])
        elif action == "cut" and isinstance(value, int):
            ours.cut(min(value, slots))
            theirs.crop(min(value, slots) - slots)
        elif isinstance(value, list):
            if action == "keep":
                moved = [n for n, row in enumerate(value) if n != row]
                ours.keep(
                    torch.tensor(value),
                    *(torch.tensor(t, dtype=torch.long) for t in (moved, [value[n] for n in moved])),
                )
            else:
                # All rows as rows that move, also those that stay.
                ours.keep(torch.tensor(value), torch.arange(len(value)), torch.tensor(value))
            theirs.batch_select_indices(torch.tensor(value))
            rows = len(value)
        else:
            ours.begin(ours.keys.flip(2), ours.values.flip(2))
            theirs.keys, theirs.values = theirs.keys.flip(2), theirs.values.flip(2)
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


def test_a_step_writes_into_the_room_there_is() -> None:
    layer = GrowingLayer()
    step = torch.ones(1, 1, 1, 2)
    layer.update(step.expand(1, 1, 100, 2), step.expand(1, 1, 100, 2))
    before = layer.keys.data_ptr()
    for _ in range(20):
        layer.update(step, step)
    assert layer.keys.data_ptr() == before


def test_taking_tokens_back_and_going_on_leaves_a_copy_alone() -> None:
    layer = GrowingLayer()

    def slots(*values: float) -> Tensor:
        return torch.tensor(values).reshape(1, 1, -1, 1)

    layer.update(slots(1, 2, 3), slots(1, 2, 3))
    other = GrowingLayer()
    other.begin(layer.keys, layer.values)
    other.update(slots(4), slots(4))
    layer.cut(2)
    layer.update(slots(5), slots(5))
    assert other.keys.flatten().tolist() == [1, 2, 3, 4]
    assert layer.keys.flatten().tolist() == [1, 2, 5]


def test_rows_that_are_kept_are_copied_only_where_they_move() -> None:
    cache, there = GrowingCache(), torch.arange(6.0).reshape(6, 1, 1, 1)
    cache.update(there, there, 0)
    before = cache.growing[0].keys.data_ptr()
    cache.keep([0, 5, 2, 3], there.device)
    assert cache.growing[0].keys.flatten().tolist() == [0, 5, 2, 3]
    assert cache.growing[0].keys.data_ptr() == before


def test_memory_of_rows_that_are_gone_is_given_up_once_it_is_most() -> None:
    cache, there = GrowingCache(), torch.arange(6.0).reshape(6, 1, 1, 1)
    cache.update(there, there, 0)
    before = cache.growing[0].keys.untyped_storage().nbytes()
    cache.keep([0, 1], there.device)
    assert cache.growing[0].values.flatten().tolist() == [0, 1]
    assert cache.growing[0].keys.untyped_storage().nbytes() == before // 3
