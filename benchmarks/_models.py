"""What is measured with: the demo's models, random ones of any size, and real or made-up vocabularies."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from advisor.models.pool_file import read_pool
from benchmarks._measure import ROOT
from ensemble.models.load import load_member, member_of
from ensemble.models.member import Member
from ensemble.models.spec import ModelSpec
from ensemble.vocabulary.token_bytes import Vocabulary

if TYPE_CHECKING:
    pass

TOKENIZERS = ROOT.parent / "shared" / "tokenizers"
ROWS = {"qwen2": 151_936, "llama-3": 128_256, "llama-2": 32_000}
"""Rows of the real models' outputs."""
QUESTIONS = ROOT / "advisor" / "demo" / "data" / "dev.jsonl"
_WORD = re.compile(rb" [a-z]{2,12}")
_COMMON = 20_000
"""Entries that made-up vocabularies have in common at most."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's size: width, layers, heads (as many for keys and values), width within a layer's perceptron."""

    hidden: int
    layers: int
    heads: int
    intermediate: int


TINY = Shape(64, 2, 2, 128)
MIDDLE = Shape(512, 8, 8, 1408)
SEVEN_BILLION = Shape(4096, 32, 32, 11008)
"""Llama 2 7B's."""


def demo_members(pool: str) -> list[Member]:
    """The pool's models, in its order."""
    return [
        load_member(ModelSpec(each.checkpoint, each.name, dtype="float32", chat_template="never"))
        for each in read_pool(pool)
    ]


def demo_folders(pool: str, names: Sequence[str]) -> list[str]:
    """The folders of some of the pool's models."""
    by_name = {each.name: each.checkpoint.location for each in read_pool(pool) if not each.checkpoint.is_remote}
    return [by_name[name] for name in names]


def demo_prompts(count: int) -> list[str]:
    """The first questions of the demo's development split."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()[:count]
    return [f"Question: {json.loads(line)['question']}\nAnswer:" for line in lines]


@cache
def vocabulary(name: str, *, quick: bool) -> tuple[PreTrainedTokenizerFast, int]:
    """A tokenizer and the rows of its model's output; a made-up one of the same size where the real one is absent.

    Args:
        name: Of the model.
        quick: A small made-up one.
    """
    if quick:
        return made_up_tokenizer(2000, name), 2048
    if (TOKENIZERS / name).is_dir():
        return PreTrainedTokenizerFast.from_pretrained(TOKENIZERS / name), ROWS[name]
    return made_up_tokenizer(ROWS[name], name), ROWS[name]


def vocabularies_note(names: Sequence[str], *, quick: bool) -> str:
    """What these vocabularies are, in words."""
    kind = "real" if not quick and all((TOKENIZERS / name).is_dir() for name in names) else "made-up"
    rows = " + ".join(f"{vocabulary(name, quick=quick)[1]:,}" for name in names)
    return f"{kind} vocabularies of {' + '.join(names)} ({rows} rows)"


def made_up_tokenizer(size: int, seed: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of ``size`` ids: bytes, made-up words with every beginning of theirs, one EOS.

    Two of them share their first words and no others, as real vocabularies share the commonest.
    """
    entries = {character: n for n, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    space = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(" ")[0][0]
    merges = []
    common = min(_COMMON, size // 2)
    random = Random("common")
    while len(entries) < size - 1:
        if common and len(entries) >= common:
            random, common = Random(seed), 0
        syllables = (
            random.choice("bcdfghjklmnpqrstvwxz") + random.choice("aeiou") for _ in range(random.randint(1, 5))
        )
        word = space + "".join(syllables)
        for end in range(2, len(word) + 1):
            if word[:end] not in entries and len(entries) < size - 1:
                entries[word[:end]] = len(entries)
                merges.append((word[: end - 1], word[end - 1]))
    backend = Tokenizer(BPE(entries, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def random_member(
    name: str,
    tokenizer: PreTrainedTokenizerFast,
    rows: int,
    shape: Shape,
    *,
    sure: bool,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Member:
    """A model of Llama's architecture with random weights, which writes words and never ends.

    Random models agree on nothing, and drafting would never pay. So one that is ``sure`` of its next word is put beside
    one that has no opinion, and the two agree about as often as real models do.

    Args:
        name: Its name; the weights' seed too.
        tokenizer: Its tokenizer.
        rows: Rows of its output.
        shape: Its size.
        sure: Whether its logits are far apart, or nearly equal.
        dtype: Of the weights.
        device: Where they are made and stay.
    """
    torch.manual_seed(zlib.crc32(name.encode()))
    with device or torch.device("cpu"):
        model = random_llama(tokenizer, rows, shape, is_tied=False, dtype=dtype)
    _teach_words(model, Vocabulary(tokenizer, (), rows), spread=30.0 if sure else 0.01)
    return member_of(model, tokenizer, name=name, chat_template="never")


def random_llama(
    tokenizer: PreTrainedTokenizerFast, rows: int, shape: Shape, *, is_tied: bool, dtype: torch.dtype = torch.float32
) -> Any:
    """A model of Llama's architecture with random weights; if tied, its output's are those of its input."""
    config = AutoConfig.for_model(
        "llama",
        vocab_size=rows,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=is_tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


@contextmanager
def writing(member: Member, text: str, strength: float = 100.0) -> Iterator[None]:
    """Make a member's model want the tokens of a text, one after the other: after n tokens of any kind the n-th.

    Args:
        member: The member, in this process.
        text: The text; it begins again after its end.
        strength: What is added to the wanted token's logit. By default it is above all that a model wants by itself.
    """
    ids = torch.tensor(member.vocabulary.continue_ids(text.encode()))

    def want(_model: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        logits, positions = output.logits, kwargs.get("position_ids")
        if positions is None:
            positions = torch.arange(kwargs["input_ids"].shape[1]).expand(len(logits), -1)
        wanted = ids[(positions[:, -logits.shape[1] :] + 1) % len(ids)]
        logits.scatter_add_(2, wanted[:, :, None], torch.full_like(logits[:, :, :1], strength))
        return output

    hook = member.local.model.register_forward_hook(want, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def _teach_words(model: Any, vocabulary: Vocabulary, spread: float) -> None:
    """Let only words have logits other than 0, and these a standard deviation of about ``spread``."""
    words = [index for data, index in vocabulary.representatives.items() if _WORD.fullmatch(data)]
    head = model.get_output_embeddings().weight
    rows = torch.tensor(words, device=head.device)
    # What comes out of the last norm has a square of about 1 in each of its places.
    kept = torch.randn(len(words), head.shape[1], dtype=head.dtype, device=head.device) * (
        spread / math.sqrt(head.shape[1])
    )
    head.zero_()
    head[rows] = kept
