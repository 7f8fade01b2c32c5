"""One member alone against ``transformers.generate``, for models of many kinds: with a cache to keep, and without."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import ReferenceMember, generate
from tiny import PROMPTS, byte_tokenizer, large_tokenizer, tiny_model, tokenizer_named

from ensemble import Ensemble
from ensemble.models.load import member_of
from ensemble.models.member import Member

CACHED = (
    *("llama", "gpt2", "gpt_neox", "gpt_bigcode", "mistral", "qwen2", "qwen3", "phi", "phi3", "gemma", "gemma3_text"),
    *("falcon", "opt", "starcoder2", "stablelm", "olmo", "cohere", "granite"),
)
RECOMPUTED = ("mamba", "rwkv", "recurrent_gemma", "openai-gpt", "bloom")
"""Models whose state cannot be padded and rolled back; bloom's can, but not in float64."""


@cache
def member_named(arch: str, tokenizer: str = "bytes", **config: Any) -> Member:
    layers = 3 if arch == "recurrent_gemma" else 2  # every third of its layers has attention
    model = tiny_model(tokenizer_named(tokenizer), seed=3, arch=arch, layers=layers, **config)
    return member_of(model, tokenizer_named(tokenizer), name=arch, chat_template="never")


def greedy(member: Member, prompt: str, length: int) -> list[int]:
    """What transformers writes after a prompt, with only the tokens that the page on UNITE allows."""
    allowed = {*member.vocabulary.representatives.values(), *member.vocabulary.eos_ids}
    inputs = member.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    out = member.model.generate(  # type: ignore[operator]  # transformers mixes it in
        **inputs,
        do_sample=False,
        max_new_tokens=length,
        suppress_tokens=[token for token in range(member.vocabulary.size) if token not in allowed],
        pad_token_id=0,
    )
    ids: list[int] = out[0, inputs["input_ids"].shape[1] :].tolist()
    return ids


def assert_greedy(member: Member, prompts: Sequence[str], length: int, tables: Path) -> None:
    """Compare, in one batch: rows of different lengths, some of which end before the others."""
    for prompt, got in zip(
        prompts, Ensemble([member], cache_dir=tables).generate(prompts, max_new_tokens=length), strict=True
    ):
        end = member.vocabulary.eos_ids[:1] if got.finish_reason == "eos" else ()
        assert [*got.tokens, *end] == greedy(member, prompt, length)


@pytest.mark.parametrize("arch", [*CACHED, *RECOMPUTED])
def test_one_member_alone_writes_what_transformers_does(arch: str, tables: Path) -> None:
    assert_greedy(member_named(arch), PROMPTS[:2], 12, tables)


@pytest.mark.parametrize("arch", CACHED)
def test_a_cache_is_kept_where_it_can_be(arch: str) -> None:
    assert member_named(arch).recompute_reason is None


@pytest.mark.parametrize(
    ("arch", "config"),
    [
        ("mistral", {"sliding_window": 8}),
        ("gemma3_text", {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
        ("gemma2", {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
        ("gpt_neo", {"window_size": 8, "attention_types": [[["global", "local"], 1]]}),
    ],
)
def test_a_text_may_be_longer_than_a_sliding_window(arch: str, config: dict[str, Any], tables: Path) -> None:
    member = member_of(tiny_model(byte_tokenizer(), 3, arch, layers=2, **config), byte_tokenizer(), name=arch)
    assert_greedy(member, PROMPTS[:3], 16, tables)


def test_a_text_may_be_longer_than_a_chunk_of_attention(tables: Path) -> None:
    chunks = {"attention_chunk_size": 24, "layer_types": ["chunked_attention", "full_attention"]}
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 64, "head_dim": 16}
    model = tiny_model(byte_tokenizer(), 3, "llama4_text", layers=2, **chunks, **experts)
    member = member_of(model, byte_tokenizer(), name="llama4")
    assert member.recompute_reason == "it attends in chunks"
    assert_greedy(member, PROMPTS[:3], 16, tables)


def assert_the_references(members: Sequence[Member], tables: Path) -> None:
    plain = [ReferenceMember(member.model, member.tokenizer) for member in members]
    made = Ensemble(members, cache_dir=tables).generate(PROMPTS[:2], max_new_tokens=6)
    expected = [generate(plain, prompt, max_new_tokens=6) for prompt in PROMPTS[:2]]
    assert [list(got.tokens) for got in made] == [wanted.ids for wanted in expected]


@pytest.mark.parametrize("arch", RECOMPUTED[:3])
@pytest.mark.parametrize("order", [1, -1], ids=["primary", "other"])
def test_a_member_without_a_cache_goes_together_with_one_that_has(arch: str, order: int, tables: Path) -> None:
    assert_the_references([member_named(arch), member_named("gpt2", "unigram with bytes")][::order], tables)


@pytest.mark.parametrize("order", [1, -1], ids=["primary", "other"])
def test_a_member_with_a_sliding_window_goes_together_with_one_that_has_none(order: int, tables: Path) -> None:
    slides = member_named("mistral", sliding_window=8)
    assert_the_references([slides, member_named("gpt2", "unigram with bytes")][::order], tables)


@pytest.mark.slow
def test_members_with_262_144_ids_go_together_with_one_that_has_few(tables: Path) -> None:
    large, other = (
        member_of(tiny_model(large_tokenizer(), seed, hidden=8), large_tokenizer(), name=f"large {seed}")
        for seed in (3, 4)
    )
    assert_the_references([large, member_named("gpt2", "unigram with bytes"), other], tables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("arch", ["llama", "gpt2", "bloom", "falcon"])
def test_a_cache_is_kept_in_less_precision(arch: str, dtype: torch.dtype) -> None:
    model = tiny_model(byte_tokenizer(), 3, arch, dtype)
    assert member_of(model, byte_tokenizer(), name=arch).recompute_reason is None
