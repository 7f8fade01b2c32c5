"""Models whose rotary factors depend on the length of the text: each row gets those that it gets alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rows import assert_close, tokens
from tiny import byte_tokenizer, passes_of, tiny_model
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ensemble import Ensemble
from ensemble.models.load import member_of
from ensemble.models.member import LocalMember
from ensemble.runtime.local_server import PrefixRunner
from ensemble.runtime.long_rope import rope_border

BORDER = 24
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [1.5, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": BORDER,
}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@cache
def phi(dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return tiny_model(
        byte_tokenizer(),
        arch="phi3",
        dtype=dtype,
        rope_parameters=dict(LONG),
        original_max_position_embeddings=BORDER,
        positions=128,
    )


@cache
def phi_member(reason: str | None = None) -> LocalMember:
    member = member_of(phi(), byte_tokenizer(), name="phi")
    assert member.recompute_reason is None
    return replace(member, recompute_reason=reason)


@cache
def _alone(ids: tuple[int, ...]) -> Tensor:
    with torch.inference_mode():
        return phi()(torch.tensor([ids]), use_cache=False).logits[0, -1]


def alone(ids: Sequence[int]) -> Tensor:
    """The logits after a text that is read at once."""
    return _alone(tuple(ids))


def check(rows: Sequence[Sequence[int]], logits: Tensor, counts: Sequence[int]) -> None:
    """The last logits of each row, as many as the counts say, are those that it has alone."""
    for row, own, count in zip(rows, logits, counts, strict=True):
        for back in range(count):
            assert_close(own[len(own) - 1 - back], alone(row[: len(row) - back]))


def test_the_border_of_a_configuration_is_found() -> None:
    assert rope_border(phi().config) == BORDER
    assert rope_border(tiny_model(byte_tokenizer()).config) is None


def test_a_long_row_changes_the_factors_of_its_pass() -> None:
    """Or else the tests below would say nothing."""
    short, long = [5, 6, 7, 8] * 4, list(range(40))
    both = torch.tensor([long, short + [0] * (len(long) - len(short))])
    with torch.inference_mode():
        beside = phi()(both, use_cache=False).logits[1, len(short) - 1]
    assert float((beside - alone(short)).abs().max()) > 0.1


prompts = st.lists(st.lists(tokens, min_size=1, max_size=8).map(lambda own: [*range(18), *own]), min_size=1, max_size=3)


@pytest.mark.parametrize("reason", [None, "no cache"])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_order_of_calls_gives_each_row_its_own_factors(reason: str | None, data: st.DataObject) -> None:
    runner, rows = phi_member(reason).runner(), list[list[int]]()
    with torch.inference_mode():
        for _ in range(data.draw(st.integers(1, 8))):
            match data.draw(st.sampled_from(["admit", "feed", "feed", "feed", "drop", "take"])) if rows else "admit":
                case "admit" | "take" as how:
                    new, last = data.draw(prompts), data.draw(st.integers(1, 4))
                    reader = runner if how == "admit" else phi_member(reason).runner()
                    check(new, reader.prefill(new, last), [last] * len(new))
                    if reader is not runner:
                        runner.take(reader)
                    rows += new
                case "drop":
                    kept = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=4))
                    runner.drop(kept)
                    rows = [list(rows[n]) for n in kept]
                case _:
                    new = [data.draw(st.lists(tokens, min_size=1, max_size=5)) for _ in rows]
                    keep = [max(0, len(row) - data.draw(st.sampled_from((0, 0, 1, 3, 9)))) for row in rows]
                    last = data.draw(st.integers(1, max(map(len, new))))
                    rows = [[*row[:kept], *ids] for row, kept, ids in zip(rows, keep, new, strict=True)]
                    check(rows, runner.extend(keep, new, last), [min(last, len(ids)) for ids in new])
            assert runner.lengths == list(map(len, rows))


@torch.inference_mode()
def test_texts_of_a_batch_are_those_that_transformers_writes_alone(tmp_path: Path) -> None:
    """Also of those that cross the border: where they do, it reads a text again."""
    member = phi_member()
    texts = ["short", "a text that is longer than that, and so long", "twenty two characters."]
    ids = [member.encode_prompt(text) for text in texts]
    assert len(ids[0]) + 12 < BORDER < len(ids[1])
    assert len(ids[2]) < BORDER < len(ids[2]) + 12
    ensemble = Ensemble([member], cache_dir=tmp_path)
    written = [list(each.tokens) for each in ensemble.generate(texts, max_new_tokens=12, batch_size=3)]
    options = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=member.tokenizer.eos_token_id)
    for own, prompt in zip(written, ids, strict=True):
        expected = phi().generate(torch.tensor([prompt]), generation_config=options)[0, len(prompt) :].tolist()
        assert own == [index for index in expected if index != member.tokenizer.eos_token_id]


@torch.inference_mode()
def test_contexts_of_a_server_are_on_their_sides() -> None:
    runner, text = PrefixRunner(phi_member().runner), list(range(60))
    for ends in ([10, 40], [11, 12, 41], [23, 24, 25, 26, 42], [43, 20]):
        contexts = [text[:end] for end in ends]
        for numbers, logits in runner.logits(contexts):
            for n, own in zip(numbers, logits, strict=True):
                assert_close(own, alone(contexts[n]))


def test_a_step_over_short_texts_is_one_pass() -> None:
    runner = phi_member().runner()
    with torch.inference_mode(), passes_of(phi()) as fed:
        runner.admit([[1, 2, 3], [4, 5]])
        runner.feed([3, 2], [[6], [7]])
    assert fed == [(2, 3), (2, 1)]


def test_the_factors_of_dynamic_rope_do_not_change_within_a_context(tmp_path: Path) -> None:
    model = tiny_model(byte_tokenizer(), rope_parameters=dict(DYNAMIC), positions=40)
    member = member_of(model, byte_tokenizer(), name="dynamic")
    ensemble = Ensemble([member], cache_dir=tmp_path)
    texts = ["short", "a text nearly as long as it can be", "twenty two characters."]
    together = ensemble.generate(texts, max_new_tokens=30, batch_size=3)
    assert together == [ensemble.generate([text], max_new_tokens=30)[0] for text in texts]
    rope = model.model.rotary_emb
    assert rope.max_seq_len_cached == rope.original_max_seq_len == member.context
