"""The kept cache against the plain way: whatever is done to a batch of contexts, the logits are those of whole rows."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import byte_tokenizer, passes_of, tiny_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from ensemble.models.load import member_of
from ensemble.models.memory import token_size
from ensemble.runtime.cached_runner import CachedRunner
from ensemble.runtime.forward_pass import GrowingCache, GrowingLayer
from ensemble.runtime.local_runner import RecomputingRunner, can_skip_logits

CLOSE = 1e-4  # rotary embeddings and some softmaxes are computed in float32; a wrong context is off by far more
ARCHITECTURES = ("llama", "gpt2", "gpt_neox", "gemma3_text", "falcon", "opt")
PREFIX = [7, 3, 9, 9, 1, 30, 31, 32, 33, 8, 2]

tokens = st.integers(0, 255)
prompts = st.lists(
    st.one_of(
        st.lists(tokens, min_size=1, max_size=12),
        st.lists(tokens, min_size=1, max_size=4).map(lambda own: [*PREFIX, *own]),
    ),
    min_size=1,
    max_size=4,
)


ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}
SLIDING: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 8},
    "qwen2": {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0},
    "gemma3_text": {"sliding_window": 8, **ALTERNATING},
    "gpt_neo": {"window_size": 8, "attention_types": [[["global", "local"], 1]]},
}
"""Models that attend to the last 8 tokens, in some layers or all."""


@cache
def model_of(arch: str) -> PreTrainedModel:
    return tiny_model(byte_tokenizer(), arch=arch, layers=2)


@cache
def sliding(arch: str) -> PreTrainedModel:
    return tiny_model(byte_tokenizer(), arch=arch, layers=2, **SLIDING[arch])


class Both:
    """The same batch kept in both ways; every call compares them."""

    def __init__(self, model: PreTrainedModel, window: int | None = None) -> None:
        self.cached, self.plain = CachedRunner(model, window), RecomputingRunner(model)

    @torch.inference_mode()
    def admit(self, prompts: Sequence[Sequence[int]], last: int = 1) -> None:
        assert_close(self.cached.prefill(prompts, last), self.plain.prefill(prompts, last))
        assert self.cached.lengths == self.plain.lengths

    @torch.inference_mode()
    def feed(self, keep: Sequence[int], new: Sequence[Sequence[int]], last: int = 1) -> None:
        got, expected = self.cached.extend(keep, new, last), self.plain.extend(keep, new, last)
        assert got.shape == expected.shape
        for row, ids in enumerate(new):
            own = min(last, len(ids))  # what stands before a row's own new tokens means nothing
            assert_close(got[row, last - own :], expected[row, last - own :])
        assert self.cached.lengths == self.plain.lengths == [k + len(ids) for k, ids in zip(keep, new, strict=True)]

    @torch.inference_mode()
    def drop(self, kept: Sequence[int]) -> None:
        self.cached.drop(kept)
        self.plain.drop(kept)
        assert self.cached.lengths == self.plain.lengths


def assert_close(got: Tensor, expected: Tensor) -> None:
    assert float((got - expected).abs().max()) < CLOSE


def in_turn(turn: int) -> list[list[int]]:
    """Tokens for six rows, of which each gets four at every sixth turn, and one at the others."""
    return [[(31 * turn + 7 * row + n) % 256 for n in range(4 if row == turn % 6 else 1)] for row in range(6)]


def slots(rows: CachedRunner) -> int:
    return rows._slots


@pytest.mark.parametrize("arch", ARCHITECTURES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_order_of_calls_gives_the_logits_of_whole_rows(arch: str, data: st.DataObject) -> None:
    compare(Both(model_of(arch)), data)


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_prompts_that_are_read_in_several_passes_are_read_alike(arch: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ensemble.runtime.cached_runner.pass_tokens", lambda _: 12)
        compare(Both(model_of(arch)), data)


@pytest.mark.parametrize("arch", SLIDING)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_sliding_window_sees_the_same_tokens_of_whole_rows(arch: str, data: st.DataObject) -> None:
    compare(Both(sliding(arch), window=8), data)


def compare(rows: Both, data: st.DataObject) -> None:
    """Do some things to a batch, in both ways."""
    rows.admit(data.draw(prompts))
    for _ in range(data.draw(st.integers(1, 10))):
        lengths = rows.plain.lengths
        match data.draw(st.sampled_from(["admit", "feed", "feed", "feed", "drop"])) if lengths else "admit":
            case "admit":
                rows.admit(data.draw(prompts))
            case "drop":
                rows.drop(data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(0, len(lengths)))])
            case _:
                back = [data.draw(st.sampled_from((0, 0, 0, 1, 2, 5, 99))) for _ in lengths]
                new = [data.draw(st.lists(tokens, min_size=1, max_size=4)) for _ in lengths]
                keep = [max(0, length - n) for length, n in zip(lengths, back, strict=True)]
                rows.feed(keep, new, data.draw(st.integers(1, max(map(len, new)))))


def test_rows_that_take_turns_leave_no_more_slots_than_twice_the_longest() -> None:
    rows = Both(model_of("gpt2"))
    rows.admit([[n] for n in range(6)])
    for turn in range(24):
        rows.feed(rows.plain.lengths, in_turn(turn))
        assert slots(rows.cached) <= 2 * max(rows.cached.lengths)


def test_rows_of_very_different_length_are_not_packed_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = CachedRunner(model_of("llama"))
    with torch.inference_mode():
        rows.admit([[1] * 90, [2], [3]])
        monkeypatch.setattr(GrowingLayer, "arrange", lambda *_: pytest.fail("the cache was copied"))
        for _ in range(5):
            rows.feed(rows.lengths, [[1], [2], [3]])
    assert slots(rows) == 95


def test_slots_of_a_dropped_long_row_are_given_up() -> None:
    rows = Both(model_of("llama"))
    rows.admit([[1] * 40, [2, 3]])
    rows.feed([40, 2], [[1], [4]])
    rows.drop([1])
    assert slots(rows.cached) <= 6
    rows.feed([3], [[5]])


def test_slots_of_a_draft_that_was_taken_back_are_given_up() -> None:
    rows = Both(model_of("llama"))
    rows.admit([[1, 2, 3]])
    rows.feed([3], [[4] * 12], last=12)
    rows.feed([4], [[5]])
    assert slots(rows.cached) == 5


def test_the_last_logits_of_a_prompt_may_reach_into_what_it_shares() -> None:
    rows = Both(model_of("llama"))
    rows.admit([[*PREFIX, 4], [*PREFIX, 5]])
    rows.drop([])
    rows.admit([[*PREFIX, 6]], last=5)


@pytest.mark.parametrize("prompts", [[[1, 2]], [[1, 2], [5, 6, 7, 8, 9, 10]], [[*PREFIX, 4], [*PREFIX, *PREFIX]]])
def test_a_prompt_may_have_fewer_tokens_than_the_logits_that_another_needs(prompts: list[list[int]]) -> None:
    cached, plain = CachedRunner(model_of("llama")), RecomputingRunner(model_of("llama"))
    with torch.inference_mode():
        got, expected = cached.prefill(prompts, last=14), plain.prefill(prompts, last=14)
        for row, prompt in enumerate(prompts):
            assert_close(got[row, -len(prompt) :], expected[row, -len(prompt) :])


def test_a_shared_beginning_is_computed_once() -> None:
    rows = CachedRunner(model_of("llama"))
    with torch.inference_mode(), passes_of(model_of("llama")) as fed:
        rows.admit([[*PREFIX, 4], [*PREFIX, 5, 6], [*PREFIX, 7]])
        rows.admit([[*PREFIX, 8]])
    assert fed == [(1, len(PREFIX)), (3, 2), (1, 1)]


def test_a_short_shared_beginning_is_computed_with_the_rest() -> None:
    rows = CachedRunner(model_of("llama"))
    with torch.inference_mode(), passes_of(model_of("llama")) as fed:
        rows.admit([[1, 2, 3, 4], [1, 2, 3, 5]])
    assert fed == [(2, 4)]


# Memory


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are there at the same time: those given, and all that are made meanwhile."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._seen = [weakref.ref(tensor) for tensor in tensors]
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self._seen.append(weakref.ref(found))
        live = [tensor for seen in self._seen if (tensor := seen()) is not None]
        self._seen = [weakref.ref(tensor) for tensor in live]
        self.most = max(self.most, bytes_of(live))
        return found


def bytes_of(tensors: Iterable[Tensor]) -> int:
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def kept_by(rows: CachedRunner) -> list[Tensor]:
    return [tensor for layer in rows._cache.growing for tensor in (layer.keys, layer.values)]


def numbered(rows: int, length: int) -> list[list[int]]:
    return [[(row + n) % 256 for n in range(length)] for row in range(rows)]


@cache
def layered() -> PreTrainedModel:
    """A model whose cache takes much more memory than its passes."""
    return tiny_model(byte_tokenizer(), layers=8, num_key_value_heads=2, hidden=64)


@pytest.mark.parametrize(("old", "new", "length"), [(16, 8, 100), (0, 12, 200)])
@torch.inference_mode()
def test_rows_join_without_a_second_cache(old: int, new: int, length: int) -> None:
    rows = CachedRunner(layered())
    if old:
        rows.prefill(numbered(old, 400))
        rows.extend([400] * old, [[1]] * old)
    with LiveBytes(kept_by(rows)) as live:
        rows.prefill(numbered(new, length))
    most, kept = live.most, bytes_of(kept_by(rows))
    assert most < 1.25 * kept


@torch.inference_mode()
def test_a_row_that_joins_takes_a_free_place_and_no_other_row_is_copied() -> None:
    rows = CachedRunner(layered())
    rows.prefill(numbered(8, 400))
    rows.drop([0, 7, 2, 3, 4, 5, 6])
    before = [tensor.data_ptr() for tensor in kept_by(rows)]
    with LiveBytes(kept_by(rows)) as live:
        rows.prefill(numbered(1, 100))
    assert [tensor.data_ptr() for tensor in kept_by(rows)] == before
    # What the pass over the prompt makes is as much as a sixth of the cache.
    most, kept = live.most, bytes_of(kept_by(rows))
    assert most < 7 / 6 * kept


@torch.inference_mode()
def test_rows_that_come_one_at_a_time_seldom_move_the_others() -> None:
    rows, places = CachedRunner(layered()), set[int]()
    for row in range(32):
        rows.prefill([[row] * 20])
        places.add(kept_by(rows)[0].data_ptr())
    assert len(places) < 16


def test_memory_of_rows_that_are_gone_is_given_up_once_it_is_most() -> None:
    cache, there = GrowingCache(), torch.arange(6.0).reshape(6, 1, 1, 1)
    cache.update(there, there, 0)
    before = cache.growing[0].keys.untyped_storage().nbytes()
    cache.keep([0, 1], there.device)
    assert cache.growing[0].values.flatten().tolist() == [0, 1]
    assert cache.growing[0].keys.untyped_storage().nbytes() == before // 3


# Which of the two ways a member takes


@pytest.mark.parametrize("arch", SLIDING)
def test_the_window_of_a_model_is_known_and_its_cache_used(arch: str) -> None:
    member = member_of(sliding(arch), byte_tokenizer(), name=arch)
    assert (member.window, member.recompute_reason) == (8, None)


def test_without_its_window_a_slid_cache_would_be_wrong() -> None:
    """Or else the tests above would say nothing."""
    rows = Both(sliding("mistral"))
    rows.admit([[n] for n in range(6)])
    with pytest.raises(AssertionError):
        for turn in range(16):
            rows.feed(rows.plain.lengths, in_turn(turn))


@pytest.mark.parametrize(
    ("arch", "why"),
    [
        ("mamba", "its cache cannot be used"),
        ("rwkv", "its state cannot be padded and rolled back"),
        ("recurrent_gemma", "its state cannot be padded and rolled back"),
        ("openai-gpt", "its cache cannot be used"),
        ("bloom", "its state cannot be padded and rolled back"),  # it makes NaN of padding in float64
    ],
)
def test_a_cache_that_cannot_be_rolled_back_is_not_used_and_the_note_says_why(arch: str, why: str) -> None:
    member = member_of(model_of(arch), byte_tokenizer(), name=arch)
    assert why in (member.recompute_reason or "")
    assert isinstance(member.runner(), RecomputingRunner)


@pytest.mark.parametrize("arch", ["llama", "mamba", "openai-gpt"])
def test_rows_that_are_recomputed_have_no_more_logits_than_their_lengths_ask_for(arch: str) -> None:
    model, rows = model_of(arch), RecomputingRunner(model_of(arch))
    prompts, made = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11]], list[int]()
    hook = model.register_forward_hook(lambda _, __, output: made.append(output.logits.shape[1]))
    with torch.inference_mode():
        found = rows.prefill(prompts, last=2)
        hook.remove()
        expected = [model(torch.tensor([prompt]), use_cache=False).logits[0, -2:] for prompt in prompts]
    torch.testing.assert_close(found, torch.stack(expected))
    assert made == [3 if can_skip_logits(type(model).forward) else 6]


@pytest.mark.parametrize("arch", ["llama", "openai-gpt"])
def test_recomputed_rows_of_other_lengths_are_read_in_pieces(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(arch)
    vocabulary, longest = model.config.vocab_size, 60
    monkeypatch.setattr("ensemble.runtime.forward_pass._CPU_PASS_LOGITS", 30 * vocabulary)
    rows, made = RecomputingRunner(model), list[int]()
    prompts = [list(range(longest)), *([n] * 5 for n in range(8))]
    hook = model.register_forward_hook(lambda _, __, output: made.append(output.logits.numel()))
    with torch.inference_mode():
        found = rows.prefill(prompts)
        hook.remove()
        expected = [model(torch.tensor([prompt]), use_cache=False).logits[0, -1:] for prompt in prompts]
    torch.testing.assert_close(found, torch.stack(expected))
    # A single row has the logits of all of its tokens where the model cannot leave any out.
    most = 8 if can_skip_logits(type(model).forward) else longest
    assert max(made) <= most * vocabulary


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma", "falcon"])
def test_a_token_takes_the_room_that_the_configuration_says(arch: str) -> None:
    model = model_of(arch)
    rows = CachedRunner(model)
    rows.admit([[1] * 10] * 3)
    taken = sum(tensor.nbytes for layer in rows._cache.layers for tensor in (layer.keys, layer.values))
    assert taken == 30 * token_size(model.config, model.dtype)
