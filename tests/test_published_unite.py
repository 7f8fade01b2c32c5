"""``unite`` with the rule of the published script, against a slow version written from its description."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from reference import Entry, ReferenceMember, ReferenceVocabulary
from test_methods_token import outcome, slow
from tiny import MADE_UP, PROMPTS, byte_tokenizer, member, real_tokenizers, tiny_model

from ensemble import Ensemble
from ensemble.decode.settings import MAX_DRAFT_TOKENS, Batch, Settings
from ensemble.errors import InputError
from ensemble.models.load import member_of
from ensemble.models.member import Member


def first_id(judge: ReferenceMember, other: ReferenceMember, entry: Entry) -> int | None:
    """The id of an entry: where the vocabulary lacks it, the first id of the other one's spelling as a text."""
    if isinstance(entry, str) or entry in judge.candidates or judge.vocabulary.style != "byte-level":
        return judge.id_of(entry)
    name = other.tokenizer.convert_ids_to_tokens(other.candidates[entry]).replace("▁", "Ġ")
    return int(judge.tokenizer.encode(name, add_special_tokens=False)[0])


@cache
def numbered(first: ReferenceVocabulary, second: ReferenceVocabulary) -> dict[bytes, int]:
    """The order of all tokens: the primary's first."""
    return {entry: n for n, entry in enumerate(dict.fromkeys([*first.candidates, *second.candidates]))}


def published(judges: Sequence[ReferenceMember], z: Sequence[torch.Tensor], _text: bytes) -> tuple[Entry, bool]:
    """The entry of the id that the primary emits. Entries whose id another one has before them have the logit 0."""
    numbers = numbered(judges[0].vocabulary, judges[1].vocabulary)
    found = {entry for judge, own in zip(judges, z, strict=True) for entry in judge.top(own, 10)}
    p: list[dict[Entry, float]] = []
    for judge, other, own in zip(judges, judges[::-1], z, strict=True):
        powers = dict.fromkeys(found, 0.0)
        seen: set[int] = set()
        # The member's own tokens first.
        for entry in sorted(
            found, key=lambda e: (0, 0) if isinstance(e, str) else (e not in judge.candidates, numbers[e])
        ):
            if (token := first_id(judge, other, entry)) is not None:
                is_zero = token in seen and judge.vocabulary.style == "byte-level"
                powers[entry] = 1.0 if is_zero else math.exp(own[token])
                seen.add(token)
        p.append({entry: power / sum(powers.values()) for entry, power in powers.items()})
    emitted = {entry: token for entry in found if (token := first_id(judges[0], judges[1], entry)) is not None}
    best = max(emitted, key=lambda entry: (p[0][entry] + p[1][entry], p[0][entry]))
    return judges[0].entry(emitted[best]), False


def made(name: str, seed: int) -> Member:
    """A member with this tokenizer, or one of drawn words, many of which begin alike."""
    if name in MADE_UP or name in real_tokenizers():
        return member(name, seed)
    chance = random.Random(name)
    words = {"".join(chance.choices(["the", "cat", "Ja", "mes", " ", " a"], k=3)) for _ in range(40)}
    tokenizer = byte_tokenizer(tuple(sorted(words)))
    # In the type that the compiled step takes.
    model = tiny_model(tokenizer, seed, dtype=torch.float32)
    with torch.no_grad():
        # So that words often win, which the other one lacks, and the logit 0 is not a small one.
        model.get_output_embeddings().weight[256:] *= 4
    model.get_output_embeddings().register_forward_hook(lambda _head, _args, logits: logits - 24)
    return member_of(model, tokenizer, name=name, chat_template="never")


REAL = [("qwen2", "llama-3"), ("llama-2", "qwen2")] if real_tokenizers() else []


@pytest.mark.parametrize(
    "names",
    [
        *((f"drawn {n}", f"drawn too {n}") for n in range(12)),
        ("bytes", "unigram with bytes"),
        ("unigram with bytes", "bytes"),
        *(pytest.param(names, marks=pytest.mark.second_lane) for names in REAL),
    ],
    ids="-".join,
)
def test_texts_are_those_of_the_slow_version_drafted_or_not(names: tuple[str, str], tables: Path) -> None:
    members = [made(name, seed) for seed, name in enumerate(names)]
    expected = [slow(members, prompt, published, 8) for prompt in PROMPTS[:2]]
    ensemble = Ensemble(members, cache_dir=tables, published=True)
    for draft in (0, MAX_DRAFT_TOKENS):
        found = dict(ensemble.generate_each([*map(ensemble.encode, PROMPTS[:2])], Settings(8), Batch(2, draft)))
        assert [outcome(found[n]) for n in range(2)] == expected


def test_the_published_rule_is_refused_for_three_members(tables: Path) -> None:
    with pytest.raises(InputError, match=r"^method unite: published is for one or two members"):
        Ensemble([member("bytes", seed) for seed in range(3)], cache_dir=tables, published=True)
