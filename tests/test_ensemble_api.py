"""What users call: generate, stream, sampling and traces."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tiny import byte_tokenizer, member, writer_of

from ensemble import Ensemble
from ensemble.models.member import Member

SCRIPT = "The cat sat on the mat. 今天天气很好 🙂 cafe\u0301\n\nEnd </s> it.\n"


@cache
def writer(arch: str = "llama", positions: int = 2048) -> Member:
    """A member that writes `SCRIPT` round and round, byte by byte."""
    return writer_of(byte_tokenizer(), SCRIPT, arch=arch, positions=positions)


# The end of a text


@pytest.mark.parametrize("stop", ["sat on", "mat. 今", "天气", "🙂", "\n\n", "e\u0301", "</s>", "."])
def test_a_stop_string_ends_the_text_before_it_wherever_tokens_end(sure: Ensemble, stop: str) -> None:
    (whole,) = sure.generate(["x"], max_new_tokens=75)
    (made,) = sure.generate(["x"], max_new_tokens=75, stop=[stop])
    assert made.finish_reason == "stop"
    assert made.text == whole.text[: whole.text.index(stop)]
    # The tokens of the stop string were emitted.
    assert len(made.tokens) == len((made.text + stop).encode())


def test_a_stop_string_of_a_prompt_ends_nothing(sure: Ensemble) -> None:
    (made,) = sure.generate(["zzz qqq"], max_new_tokens=20, stop=["q"])
    assert made.finish_reason == "length"


@pytest.mark.parametrize("limit", [1, 2, 13, 40])
def test_the_limit_counts_the_primarys_tokens(sure: Ensemble, limit: int) -> None:
    (made,) = sure.generate(["x"], max_new_tokens=limit)
    assert (len(made.tokens), made.finish_reason) == (limit, "length")


def test_no_prompts_give_no_generations(pair: Ensemble) -> None:
    assert pair.generate([]) == []


@pytest.mark.parametrize("arch", ["gpt2", "opt", "llama"])
def test_a_full_context_ends_the_text(arch: str, tables: Path) -> None:
    primary = writer(arch, positions=32)
    ensemble = Ensemble([primary, member("unigram with bytes", 1)], weights=[9, 1], cache_dir=tables)
    for prompt in ("x", "0123456789", "0" * 31):
        (made,) = ensemble.generate([prompt], max_new_tokens=100)
        assert made.finish_reason == "length"
        assert len(prompt) + len(made.tokens) == 33  # the last one is written, and never read


# Streaming


@pytest.mark.parametrize(
    "stop", [[], ["\n\n"], ["on the mat", "cafe"], ["🙂 c"], ["今天天气很好吗", "End </s> them"], ["."]]
)
def test_streamed_pieces_are_the_text_and_nothing_of_a_stop_string(sure: Ensemble, stop: list[str]) -> None:
    (whole,) = sure.generate(["x"], max_new_tokens=70, stop=stop)
    pieces = [*sure.stream("x", max_new_tokens=70, stop=stop)]
    assert "".join(pieces) == whole.text
    assert all(pieces)
    assert len(pieces) > 3


def test_a_stream_shows_no_half_characters(sure: Ensemble) -> None:
    assert "\ufffd" not in "".join(sure.stream("x", max_new_tokens=57))


# Sampling


def test_draws_are_those_of_the_seed_and_equal_prompts_have_draws_of_their_own(pair: Ensemble) -> None:
    first, again, other = (pair.generate(["x"] * 6, max_new_tokens=12, temperature=1.0, seed=n) for n in (7, 7, 8))
    assert first == again
    assert len({made.tokens for made in (*first, *other)}) > 6


def test_top_k_draws_come_as_often_as_the_ensembles_likeliest_tokens(pair: Ensemble) -> None:
    (greedy,) = pair.generate(["x"], max_new_tokens=1, trace=True)
    shares = sorted((c.mean for c in greedy.trace[0].candidates if c.token is not None), reverse=True)[:4]
    likeliest = {c.token: c.mean / sum(shares) for c in greedy.trace[0].candidates if c.mean in shares}
    made = pair.generate(["x"] * 3000, max_new_tokens=1, temperature=1.0, top_k=4, seed=1, batch_size=500)
    ends = {c.token for c in greedy.trace[0].candidates if c.data is None}
    drawn = Counter(g.tokens[0] if g.tokens else next(iter(ends)) for g in made)
    assert drawn.keys() <= likeliest.keys()
    chi_squared = sum((drawn[token] - 3000 * p) ** 2 / (3000 * p) for token, p in likeliest.items())
    # The 99.9% point of chi-squared with 3 degrees of freedom.
    assert chi_squared < 16.27
