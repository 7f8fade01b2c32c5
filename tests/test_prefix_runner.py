"""Contexts that are sent whole: whatever was sent before, their logits are those of a fresh run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rows import CLOSE, model_of, sliding
from tiny import passes_of
from torch import Tensor
from transformers import PreTrainedModel

from ensemble.runtime import local_server
from ensemble.runtime.cached_runner import CachedRunner
from ensemble.runtime.local_runner import LocalRunner, RecomputingRunner
from ensemble.runtime.local_server import LocalTokenServer, PrefixRunner
from ensemble.servers.token_server import NextToken

KINDS: dict[str, Callable[[], LocalRunner]] = {
    "cached": lambda: CachedRunner(model_of("llama")),
    "absolute positions": lambda: CachedRunner(model_of("gpt2")),
    "sliding": lambda: CachedRunner(sliding("mistral"), 8),
    "recomputing": lambda: RecomputingRunner(model_of("llama")),
}
# Few different ids, so that contexts often share a beginning.
context_lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=8)


def model_behind(make: Callable[[], LocalRunner]) -> PreTrainedModel:
    model: PreTrainedModel = make()._model
    return model


@torch.inference_mode()
def fresh(model: PreTrainedModel, contexts: Sequence[Sequence[int]]) -> Tensor:
    """The logits of runs that know nothing of each other."""
    return torch.cat([model(torch.tensor([list(ids)])).logits[:, -1] for ids in contexts])


def together(runner: PrefixRunner, contexts: Sequence[Sequence[int]]) -> Tensor:
    """All parts of an answer, in the order of the contexts."""
    parts = list(runner.logits(contexts))
    numbers = [number for part, _ in parts for number in part]
    assert sorted(numbers) == list(range(len(contexts)))
    return torch.cat([logits for _, logits in parts])[torch.tensor(numbers).argsort()]


def check(runner: PrefixRunner, model: PreTrainedModel, contexts: Sequence[Sequence[int]]) -> None:
    assert float((together(runner, contexts) - fresh(model, contexts)).abs().max()) < CLOSE


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(calls=st.lists(context_lists, min_size=1, max_size=6), rows=st.integers(1, 6), idle=st.integers(0, 2))
def test_any_calls_give_the_logits_of_fresh_runs(kind: str, calls: list[list[list[int]]], rows: int, idle: int) -> None:
    make = KINDS[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_server, "_MAX_IDLE_CALLS", idle)
        runner = PrefixRunner(make, rows)
        for contexts in calls:
            check(runner, model_behind(make), contexts)
            assert sum(len(batch.rows) for batch in runner._batches) <= rows


def fed_by(runner: PrefixRunner, contexts: list[list[int]]) -> list[tuple[int, int]]:
    """The shapes of the forward passes of a call."""
    with passes_of(model_of("llama")) as fed:
        list(runner.logits(contexts))
    return fed


def test_a_text_that_grew_costs_its_new_tokens() -> None:
    runner = PrefixRunner(KINDS["cached"])
    texts = [[n, *range(20)] for n in range(3)]
    fed_by(runner, texts)
    assert fed_by(runner, [[*text, 7] for text in texts]) == [(3, 1)]


def test_a_draft_is_read_in_one_pass() -> None:
    runner = PrefixRunner(KINDS["cached"])
    text = list(range(20))
    fed_by(runner, [text])
    assert fed_by(runner, [[*text, *range(50, 50 + n)] for n in range(9)]) == [(1, 9)]


def test_many_places_of_a_row_are_read_in_passes_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "_MAX_LOGITS", 4)
    runner = PrefixRunner(KINDS["cached"])
    contexts = [[*range(n)] for n in range(1, 11)]
    assert fed_by(runner, contexts) == [(1, 1), (1, 4), (1, 4), (1, 1)]
    check(runner, model_of("llama"), contexts)


def test_some_of_the_last_contexts_again_cost_nothing() -> None:
    runner = PrefixRunner(KINDS["cached"])
    texts = [[n, *range(20)] for n in range(3)]
    fed_by(runner, texts)
    again = [texts[2], texts[0], texts[2]]
    assert fed_by(runner, again) == []
    check(runner, model_of("llama"), again)


def test_texts_of_one_client_do_not_cost_another_one() -> None:
    runner = PrefixRunner(KINDS["cached"])
    mine, theirs = [[1, *range(20)]], [[n, *range(50, 70)] for n in range(2, 6)]
    for texts in (mine, theirs):
        fed_by(runner, texts)
    assert fed_by(runner, [[*mine[0], 5]]) == [(1, 1)]


def test_the_least_recently_used_rows_are_dropped() -> None:
    runner = PrefixRunner(KINDS["cached"], rows=2)
    texts = [[n, *range(20)] for n in range(3)]
    for text in (texts[0], texts[1], texts[0], texts[2]):
        fed_by(runner, [text])
    assert fed_by(runner, [texts[0]]) == [(1, 1)]
    assert fed_by(runner, [texts[1]]) == [(1, 21)]


def test_a_row_that_is_no_longer_needed_leaves_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "_MAX_IDLE_CALLS", 1)
    runner = PrefixRunner(KINDS["cached"])
    fed_by(runner, [[1, 2, 3], [4, 5, 6]])
    assert [fed_by(runner, [[1, 2, 3, *range(n)]]) for n in (1, 2, 3)] == [[(2, 1)], [(1, 1)], [(1, 1)]]


def test_after_a_pass_that_failed_the_rows_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = PrefixRunner(KINDS["cached"])
    check(runner, model_of("llama"), [[1, 2, 3], [1, 2, 4]])

    def fail(**_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(model_of("llama"), "forward", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            list(runner.logits([[1, 2, 3, 4], [1, 2, 4]]))
    check(runner, model_of("llama"), [[1, 2, 3, 4], [1, 2, 4, 5]])


# The model as a token server


def server(kind: str = "cached", **more: int) -> LocalTokenServer:
    return LocalTokenServer(KINDS[kind], (), None, 320, **more)


def written(
    by: LocalTokenServer, contexts: list[list[int]], most: int, wanted: int | list[int]
) -> list[list[NextToken]]:
    """What a server tells after contexts, when all of its steps are made."""
    steps = by.steps(contexts, most, wanted)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            tokens: list[list[NextToken]] = end.value
            return tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_is_the_greedy_one(kind: str) -> None:
    contexts = [[1, 2, 3], [1, 2], [9]]
    told = written(server(kind), contexts, 5, 3)
    for ids, tokens in zip(contexts, told, strict=True):
        row = list(ids)
        for token in tokens:
            logprobs = fresh(model_behind(KINDS[kind]), [row])[0].log_softmax(0)
            values, best = logprobs.topk(3)
            assert token.token == int(best[0])
            assert token.top == pytest.approx(dict(zip(best.tolist(), values.tolist(), strict=True)), abs=CLOSE)
            row.append(token.token)
    assert [len(tokens) for tokens in told] == [5, 5, 5]


def test_chosen_ids_have_their_log_probabilities_in_the_precision_of_the_model() -> None:
    contexts, ids = [[1, 2, 3], [4]], [300, 5, 5, 0]
    logprobs = fresh(model_of("gpt2"), contexts).log_softmax(1)
    for row, (token,) in zip(logprobs, written(server("absolute positions"), contexts, 1, ids), strict=True):
        chosen = {index: token.top[index] for index in ids}
        assert chosen == pytest.approx({index: float(row[index]) for index in ids}, abs=1e-10)


def test_a_text_ends_with_the_context() -> None:
    limited = LocalTokenServer(KINDS["cached"], (), 5, 320)
    assert [len(tokens) for tokens in written(limited, [[1, 2, 3], [1, 2, 3, 4]], 9, 1)] == [2, 1]


def test_more_contexts_than_rows_are_answered_in_order() -> None:
    contexts = [[n, n + 1] for n in range(300)]
    wanted = fresh(model_of("llama"), contexts[:9]).argmax(1).tolist()
    assert [tokens[0].token for tokens in written(server(rows=3), contexts[:9], 1, 1)] == wanted
    assert [tokens[0].token for tokens in written(server(), [[n % 256] for n in range(300)], 1, 1)[256:265]] == [
        int(token) for token in fresh(model_of("llama"), [[n % 256] for n in range(256, 265)]).argmax(1)
    ]


def test_log_probabilities_of_logits_far_apart_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.tensor([[-300.0, 5.0, -90.0, 4.0, -torch.inf, -62.0]], dtype=torch.float64)
    monkeypatch.setattr(PrefixRunner, "logits", lambda *_: iter([([0], logits)]))
    ((token,),) = written(server(), [[1]], 1, 6)
    assert token.top == pytest.approx(dict(enumerate(logits[0].log_softmax(0).tolist())), abs=1e-15)
