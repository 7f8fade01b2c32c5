"""SweetSpan against a slow implementation of section 2 of its paper, how texts end, and input errors."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import ReferenceMember
from tiny import tokenizer_named, writer_of

from ensemble import Ensemble
from ensemble.errors import InputError
from ensemble.methods.sweetspan import OpenSpan, best_span, mean_perplexity
from ensemble.models.member import Member

NAMES = ("bytes", "unigram with bytes", "unigram", "bytes")
PROMPTS = ["The capital of France is", "Question: 12 + 30 = ?\nAnswer:", "  two leading spaces", "Trailing space "]
TEXT = " James went to the big old house and sat down by the cat there, didn't he?\n"


@cache
def pair(n: int) -> tuple[Member, ReferenceMember]:
    """The n-th member and its slow reference. Each member prefers a text with spaces, from a different place on."""
    tokenizer, start = tokenizer_named(NAMES[n]), 9 * n
    made = writer_of(tokenizer, TEXT[start:] + TEXT[:start], n, strength=4.0, eos_rate=0.02)
    return made, ReferenceMember(made.model, tokenizer)


def ensemble(count: int, tables: Path, **options: Any) -> Ensemble:
    return Ensemble([pair(n)[0] for n in range(count)], method="sweetspan", cache_dir=tables, **options)


def slow(count: int, prompt: str, tokens: int, words: int, outlier: float) -> bytes:
    """Section 2, with every context read again for every token."""
    members = [pair(n)[1] for n in range(count)]
    text = b""
    while True:
        spans = [write(member, prompt, text, words) for member in members]
        means = []
        for span in spans:
            given = sorted(perplexity(member, prompt, text, *span) for member in members)
            kept = given[1:-1] if len(given) > 2 and given[-1] > outlier * given[0] else given
            means.append(sum(kept) / len(kept))
        data, ended = spans[means.index(min(means))]
        text += data
        ids = members[0].continuation(text)
        if len(ids) > tokens:
            return b"".join(members[0].token_bytes(token) for token in ids[:tokens])
        if ended or len(ids) == tokens or not data:
            return text


def write(member: ReferenceMember, prompt: str, text: bytes, words: int) -> tuple[bytes, bool]:
    ids, data = member.prompt(prompt) + member.continuation(text), b""
    for _ in range(16 * words):
        token = int(member.z(ids).argmax())
        if token == member.eos_id:
            return data, True
        ids.append(token)
        data += member.token_bytes(token)
        found = list(re.finditer(rb"\S+", data))
        if len(found) >= words and (end := found[words - 1].end()) < len(data):
            return data[:end], False
    return data, False


def perplexity(member: ReferenceMember, prompt: str, text: bytes, data: bytes, ended: bool) -> float:
    before, after = member.continuation(text), member.continuation(text + data)
    same = next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(map(len, (before, after)))
    )
    tokens = [*after[same:], *([member.eos_id] if ended else [])]
    logs = []
    for n, token in enumerate(tokens):
        z = member.z([*member.prompt(prompt), *after[:same], *tokens[:n]])
        logs.append(float(z[token] - z.logsumexp(dim=0)))
    return math.exp(-sum(logs) / len(logs)) if logs else math.inf


@pytest.mark.parametrize("words", [1, 3])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_text_is_that_of_the_slow_implementation(count: int, words: int, tables: Path) -> None:
    decoded = ensemble(count, tables, words=words, outlier=2.0).generate(PROMPTS[:2], max_new_tokens=16)
    wanted = [slow(count, prompt, 16, words, 2.0).decode(errors="replace") for prompt in PROMPTS[:2]]
    assert [generation.text for generation in decoded] == wanted
    assert len(set(wanted)) > 1


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_span_holds_whole_words_wherever_its_tokens_end(size: int) -> None:
    span, data = OpenSpan(3), b"\n word by\tword, and more"
    found = [span.append(0, data[first : first + size]) for first in range(0, len(data), size)]
    assert next(whole for whole in found if whole is not None) == b"\n word by\tword,"


def test_a_long_text_without_white_space_is_read_once() -> None:
    # The work must not grow with the ways to split the letters into eight words: that would take for ever.
    span = OpenSpan(8)
    assert [span.append(0, b"abcdefgh") for _ in range(4000)] == [None] * 4000
    assert span.append(0, b" b c d e f g h ") == b"abcdefgh" * 4000 + b" b c d e f g h"


def test_the_best_span_is_that_of_the_equations_in_1000_random_cases() -> None:
    draws = np.random.default_rng(20)
    for _ in range(1000):
        members, limit = int(draws.integers(3, 7)), float(draws.uniform(1, 20))
        table = np.exp(draws.normal(1, 1.5, (members, members)))  # [span, member]
        means = []
        for row in table:
            left_out = {int(row.argmax()), int(row.argmin())} if row.max() / row.min() > limit else set()
            kept = [value for n, value in enumerate(row) if n not in left_out]
            means.append(sum(kept) / len(kept))
        assert best_span(table.tolist(), limit) == int(np.argmin(means))
        assert [mean_perplexity(row, limit) for row in table.tolist()] == pytest.approx(means, abs=0, rel=1e-12)


def test_a_ratio_of_exactly_the_limit_is_no_outlier_and_ties_go_to_the_primary() -> None:
    assert mean_perplexity((1.0, 10.0, 4.0), 10) == 5.0
    assert best_span([(2.0, 2.0, 2.0), (2.0, 2.0, 2.0)], 10) == 0


def test_a_stop_string_ends_a_text_before_it(tables: Path) -> None:
    sweetspan = ensemble(3, tables)
    whole = sweetspan.generate(PROMPTS[:1], max_new_tokens=20)[0].text
    cut = sweetspan.generate(PROMPTS[:1], max_new_tokens=20, stop=[whole[5:8]])[0]
    assert (cut.text, cut.finish_reason) == (whole[: whole.find(whole[5:8])], "stop")


def test_a_full_context_ends_a_text(tables: Path) -> None:
    members = [replace(pair(n)[0], context=24 if n == 1 else None) for n in range(3)]
    sweetspan = Ensemble(members, method="sweetspan", cache_dir=tables)
    generation = sweetspan.generate(["James"], max_new_tokens=400)[0]
    assert generation.finish_reason in ("length", "eos")
    assert len(members[1].vocabulary.continue_ids(generation.text.encode())) < 24 + 64


def test_sampling_and_scoring_are_refused(tables: Path) -> None:
    with pytest.raises(InputError, match="its members write greedily"):
        ensemble(3, tables).generate(PROMPTS, temperature=1.0)
    with pytest.raises(InputError, match="it scores no tokens"):
        ensemble(3, tables).score("a", ["b"])
