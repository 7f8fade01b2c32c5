"""The decoder against the judge: the ids, the text and the end of what it writes are those of ``reference``.

Models are in float64, where two ways to compute one thing agree to about 1e-12. Some primaries write texts that are
hard to tokenize (see `SCRIPT`), since random weights alone would never come to write them, or be sure enough to draft.
"""

from __future__ import annotations

import inspect
import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import ReferenceMember, generate
from tiny import (
    BYTES,
    MADE_UP,
    PIECES,
    PROMPTS,
    TEXTS,
    let_write,
    passes_of,
    real_tokenizers,
    tiny_model,
    tokenizer_named,
)

from ensemble import Ensemble, Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.models.load import member_of
from ensemble.models.member import Member
from ensemble.runtime.draft import Drafter

TIE = 1e-9
"""A margin of the reference below which rounding may decide."""
SETTINGS_EACH = 4
"""Settings of a combination (k, weights, stop strings, length), with four prompts each; two where vocabularies are
large, because the reference takes long for them."""
WAYS = ("batched", "one by one", "one by one, without drafts")
SCRIPT = [
    *(TEXTS[key].encode() for key in ("sentence", "chinese", "emoji", "combining", "composed", "rare")),
    *BYTES.values(),
    *(TEXTS[key].encode() for key in ("eos of llama", "eos of llama and space", "chat", "eos of gpt", "other control")),
    *(TEXTS[key].encode() for key in ("leading spaces", "newlines", "digits", "code", "tabs", "byte token", "block")),
]
"""What writers write, round and round."""
ARCHITECTURES = ("llama", "gpt2", "gpt_neox", "qwen2", "mistral", "phi", "phi3", "gemma", "falcon", "starcoder2")


@dataclass(frozen=True)
class Part:
    """A member of a combination: a tokenizer's name, a seed of the weights, and whether it writes the script."""

    tokenizer: str
    seed: int = 0
    writes: bool = False


def parts(line: str) -> tuple[Part, ...]:
    """``llama-2* gpt-2``: the tokenizers of a combination, the primary first; a star where it writes the script."""
    names = [name.replace("_", " ") for name in line.split()]
    return tuple(Part(name.rstrip("*"), n, name.endswith("*")) for n, name in enumerate(names))


COMBINATIONS = [
    "bytes unigram",
    "unigram bytes unigram_with_bytes",
    "unigram_with_bytes* bytes",
    "bytes* unigram_with_bytes unigram",
    "unigram* bytes",
    "llama-2* gpt-2",
    "qwen2* llama-3",
    "llama-3 qwen2 gpt-2",
    "gpt-2* unigram_with_bytes",
    "gpt-2 llama-2 mistral-v1 starcoder",
    "phi-3* gpt-neox",
    "gpt-neox* phi-3 falcon",
    "falcon* internlm2",
    "internlm2* deepseek-coder",
    "deepseek-llm* mistral-v3",
    "deepseek-coder* deepseek-llm bytes",
    "mistral-v3* unigram phi-3",
    "mistral-v1 mistral-v1",
    "starcoder* starcoder",
    "gpt-neox",
]


# The decoder is the same for all; these have further vocabularies, and each takes seconds.
FURTHER = frozenset(COMBINATIONS[5:]) - {"gpt-neox"} | {"gpt-2*", "llama-2*"}


def available(line: str) -> Any:
    missing = sorted({part.tokenizer for part in parts(line)} - {*MADE_UP, *PIECES, *real_tokenizers()})
    reason = f"../shared/tokenizers/{' and '.join(missing)} is absent"
    marks = [pytest.mark.skip(reason=reason)] if missing else []
    return pytest.param(
        line, marks=[*marks, pytest.mark.second_lane, pytest.mark.further] if line in FURTHER else marks
    )


class Remembered:
    """A model as the reference calls it: logits of the last place alone, kept for contexts that come again soon."""

    def __init__(self, model: Any) -> None:
        self.model, self.generation_config = model, model.generation_config
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        self._seen: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        context = tuple(input_ids[0].tolist())
        if context not in self._seen:
            # A copy: what is left of all places would keep their memory.
            logits = self.model(input_ids=input_ids, use_cache=use_cache, **self._options).logits
            self._seen[context] = logits[:, -1:].clone()
        self._seen.move_to_end(context)
        while len(self._seen) > 48:
            self._seen.popitem(last=False)
        return SimpleNamespace(logits=self._seen[context])


@cache
def first_member(tokenizer: str) -> Member:
    return member_of(tiny_model(tokenizer_named(tokenizer)), tokenizer_named(tokenizer), name=tokenizer)


@lru_cache(maxsize=8)
def both(part: Part) -> tuple[Member, ReferenceMember]:
    """A member, for the decoder and for the reference."""
    tokenizer = tokenizer_named(part.tokenizer)
    arch = ARCHITECTURES[(part.seed + len(part.tokenizer)) % len(ARCHITECTURES)]
    model = tiny_model(tokenizer, part.seed, arch, sharpness=2 + part.seed % 2)
    plain = ReferenceMember(Remembered(model), tokenizer)
    if part.writes:
        let_write(model, [token for text in SCRIPT for token in plain.continuation(text)], strength=24)
    member = member_of(model, tokenizer, name=f"{part.tokenizer} {part.seed}", chat_template="never")
    assert member.recompute_reason is None
    # Members with the same tokenizer share their vocabulary, which takes a while to read.
    return replace(member, vocabulary=first_member(part.tokenizer).vocabulary), plain


@dataclass(frozen=True)
class Setting:
    """How some prompts are decoded."""

    k: int
    weights: tuple[float, ...] | None
    stop: tuple[str, ...]
    max_new_tokens: int
    prompts: tuple[str, ...]


def settings_of(line: str) -> Iterator[Setting]:
    """Some settings of a combination, drawn by its name."""
    chance = random.Random(line)
    texts = [*PROMPTS, *(text for text in TEXTS.values() if text)]
    prompts = 4 if all(part.tokenizer in MADE_UP for part in parts(line)) else 2
    for n in range(SETTINGS_EACH):
        weights = tuple(chance.choice((0.0, 0.2, 0.5, 1.0, 3.0)) + 0.1 * (m == 0) for m, _ in enumerate(parts(line)))
        # As with few-shot examples: what all prompts begin with is computed once.
        shared = "Question: 1 + 1 = ?\nAnswer: 2\n\n" if n == 3 else ""
        yield Setting(
            k=chance.choice((1, 2, 3, 5, 10, 10, 20, 50)),
            weights=weights if n % 2 else None,
            stop=chance.choice(((), ("t",), ("\n", "ab"), ("。", "</s>", " "))),
            max_new_tokens=chance.choice((6, 9, 12) if "*" in line else (3, 5, 7)),
            prompts=tuple(shared + text for text in chance.sample(texts, prompts)),
        )


@dataclass(frozen=True)
class Judged:
    """What the reference makes of a case."""

    outcome: tuple[list[int], str, str]
    is_tie: bool


@cache
def judged(line: str) -> list[tuple[Setting, list[Judged]]]:
    """A combination's cases, as the reference decides them."""
    members = [both(part)[1] for part in parts(line)]
    found = []
    for s in settings_of(line):
        made = [
            generate(members, prompt, k=s.k, weights=s.weights, max_new_tokens=s.max_new_tokens, stop=s.stop)
            for prompt in s.prompts
        ]
        found.append((s, [Judged((g.ids, g.text, g.finish_reason), g.margin < TIE) for g in made]))
    return found


def ensemble_of(line: str, tables: Path, k: int = 10, weights: Sequence[float] | None = None) -> Ensemble:
    return Ensemble([both(part)[0] for part in parts(line)], k=k, weights=weights, cache_dir=tables)


def decode(ensemble: Ensemble, setting: Setting, way: str) -> list[Generation]:
    made, batch = Settings(setting.max_new_tokens, setting.stop), Batch(3)
    if way == "batched":
        return ensemble.generate(setting.prompts, max_new_tokens=made.max_new_tokens, stop=made.stop, batch_size=3)
    if way == "one by one, without drafts":
        batch = replace(batch, draft=0)
    prompts = [[ensemble.encode(prompt)] for prompt in setting.prompts]
    return [generation for prompt in prompts for _, generation in ensemble.generate_each(prompt, made, batch)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("line", [available(line) for line in COMBINATIONS])
def test_ids_text_and_end_are_those_of_the_reference(line: str, way: str, tables: Path) -> None:
    for setting, expected in judged(line):
        made = decode(ensemble_of(line, tables, setting.k, setting.weights), setting, way)
        for prompt, got, wanted in zip(setting.prompts, made, expected, strict=True):
            assert wanted.is_tie or outcome(got) == wanted.outcome, (prompt, setting)


@pytest.mark.second_lane
@pytest.mark.further
def test_there_are_enough_cases_and_hardly_a_tie_among_them() -> None:
    here = [line for line in COMBINATIONS if "skip" not in {mark.name for mark in available(line).marks}]
    cases = [case for line in here for _, found in judged(line) for case in found]
    assert len(cases) >= (190 if real_tokenizers() else 60)
    assert sum(case.is_tie for case in cases) <= max(1, len(cases) / 100)
    assert {case.outcome[2] for case in cases} == {"eos", "stop", "length"}


def test_hard_texts_are_written(tables: Path) -> None:
    """Or else the cases above would say nothing about them."""
    line = "bytes* unigram_with_bytes unigram"
    longest = Setting(10, None, (), len(b"".join(SCRIPT)), ("x",))
    [written] = decode(ensemble_of(line, tables, weights=[9, 1, 1]), longest, "batched")
    hard = ("chinese", "emoji", "combining", "eos of llama", "chat", "leading spaces", "digits")
    assert [key for key in hard if TEXTS[key] not in written.text] == []


def outcome(made: Generation) -> tuple[list[int], str, str]:
    return list(made.tokens), made.text, made.finish_reason


def test_a_sure_primary_spares_the_others_passes(tables: Path) -> None:
    line = "bytes* unigram_with_bytes"
    ensemble = ensemble_of(line, tables, weights=[3, 1])
    setting = Setting(10, None, (), 40, (PROMPTS[0],))
    # However long that takes: here a plain step may be faster.
    ensemble._drafters[Batch(3)] = Drafter(ensemble._joint.members[0], 24, modes=("check",))
    with passes_of(both(parts(line)[1])[0].model) as passes:
        drafted, count = decode(ensemble, setting, "one by one"), len(passes)
        plain = decode(ensemble, setting, "one by one, without drafts")
    assert drafted == plain
    # How long the drafts are depends on the measured times; the shortest have one token, and each is accepted.
    assert count < 30
    assert len(passes) - count == 40


def test_a_first_draft_is_read_together_with_the_prompt(tables: Path) -> None:
    line = "bytes* unigram_with_bytes"
    ensemble = ensemble_of(line, tables, weights=[3, 1])
    other = both(parts(line)[1])[0]
    setting = Setting(10, None, (), 7, (PROMPTS[0],))
    with passes_of(other.model) as passes:
        drafted = decode(ensemble, setting, "one by one")
    assert drafted == decode(ensemble, setting, "one by one, without drafts")
    assert passes[0][1] > len(other.encode_prompt(PROMPTS[0]))


# What must not matter


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("name", [available(name) for name in ("bytes*", "unigram_with_bytes*", "gpt-2*", "llama-2*")])
def test_copies_of_one_model_write_what_it_writes_alone(name: str, copies: int, tables: Path) -> None:
    """Where its ids are those that the text has anyway.

    Where they are not ("Jam" + "es" was emitted, and the text is read as "James"), the copies, which read the text, see
    other ids than the primary: by the page on UNITE the primary alone keeps the ids that it emitted.
    """
    member, plain = both(*parts(name))
    alone = Ensemble([member], cache_dir=tables).generate([*PROMPTS, "x"], max_new_tokens=12)
    together = Ensemble([member] * copies, cache_dir=tables).generate([*PROMPTS, "x"], max_new_tokens=12)
    canonical = [is_canonical(plain, made.tokens) for made in alone]
    assert sum(canonical) >= 3
    assert [t for t, same in zip(together, canonical, strict=True) if same] == [
        a for a, same in zip(alone, canonical, strict=True) if same
    ]


def is_canonical(member: ReferenceMember, tokens: Sequence[int]) -> bool:
    """Whether ids are those of their text after every step."""
    texts = [b"".join(map(member.token_bytes, tokens[:n])) for n in range(len(tokens) + 1)]
    return all(member.continuation(text) == list(tokens[:n]) for n, text in enumerate(texts))
