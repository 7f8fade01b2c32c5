"""Options scored in one pass and long texts piece by piece: the same as step by step, whatever their batches are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import ReferenceMember
from tiny import MADE_UP, PROMPTS, SENTENCES, byte_tokenizer, let_write, member, passes_of, tiny_model, tokenizer_named

from ensemble import Ensemble
from ensemble.errors import InputError
from ensemble.models.load import member_of
from ensemble.score import ChoiceQuestion, Passage, batches, paths, states
from ensemble.vocabulary.token_bytes import Vocabulary

OPTIONS = [" Paris", "James", " the cat", "今天", "🙂", "a</s>b", "\n", "  two", "1234", "e\u0301", "A"]
LONGER = [" James's cat isn’t 今天", "12🙂\n\tcafe\u0301", " A"]
"""Options whose beginnings other vocabularies cut elsewhere."""


def slow(ensemble: Ensemble, prompt: str, options: Sequence[str]) -> list[float]:
    """The page's definition, token by token without a cache."""
    judges = [ReferenceMember(each.model, each.tokenizer) for each in ensemble.members]
    return [reference.score(judges, prompt, option, ensemble.k, ensemble.weights) for option in options]


# --- The same as the slow definition ---


@pytest.mark.parametrize(
    ("names", "k", "weights"),
    [
        (("bytes",), 10, None),
        (("bytes", "unigram with bytes"), 10, None),
        (("unigram with bytes", "bytes"), 3, [1, 2]),
        (("bytes", "unigram", "unigram with bytes"), 1, [0.2, 0.5, 0.3]),
        (("unigram with bytes", "unigram", "bytes"), 50, [0, 1, 1]),
    ],
)
def test_a_score_is_the_references(names: tuple[str, ...], k: int, weights: list[float] | None, tables: Path) -> None:
    members = [member(name, n) for n, name in enumerate(names)]
    ensemble = Ensemble(members, k=k, weights=weights, cache_dir=tables)
    assert ensemble.score(PROMPTS[0], OPTIONS) == pytest.approx(slow(ensemble, PROMPTS[0], OPTIONS), rel=1e-9)


@pytest.mark.parametrize("name", MADE_UP)
def test_a_member_reads_the_continuation_of_each_beginning(name: str) -> None:
    primary, other = (
        Vocabulary(tokenizer_named(each), (), len(tokenizer_named(each))) for each in ("unigram with bytes", name)
    )
    for option in [*OPTIONS, *LONGER]:
        tokens = primary.continue_ids(option.encode())
        beginnings = [b"".join(primary.token_bytes(token) or b"" for token in tokens[:n]) for n in range(len(tokens))]
        own, read = states([primary, other], tokens)
        assert own == [tuple(tokens[:n]) for n in range(len(tokens))]
        assert read == [tuple(other.continue_ids(beginning)) for beginning in beginnings]


@pytest.mark.parametrize(
    ("arch", "config"),
    [("gpt2", {}), ("mistral", {"sliding_window": 16}), ("openai-gpt", {}), ("recurrent_gemma", {"layers": 3})],
)
def test_a_score_is_the_references_whatever_cache_a_member_has(arch: str, config: dict[str, Any], tables: Path) -> None:
    ensemble = Ensemble([member("bytes"), member("unigram with bytes", 1, arch, **config)], cache_dir=tables)
    assert ensemble.score(PROMPTS[1], LONGER) == pytest.approx(slow(ensemble, PROMPTS[1], LONGER), abs=1e-6)


def test_an_option_that_the_primary_cannot_write_has_no_chance(tables: Path) -> None:
    ensemble = Ensemble([member("unigram"), member("bytes", 1)], cache_dir=tables)
    assert ensemble.score("the", ["🙂", "the", "a🙂"])[::2] == [-math.inf, -math.inf]
    assert ensemble.score("the", ["🙂"]) == [-math.inf]


def test_an_option_with_an_unused_token_of_the_primary_cannot_be_had(tables: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<unused1>"])
    primary = member_of(tiny_model(tokenizer, 1), tokenizer, name="primary")
    other = member("bytes", 2)
    for members in ([primary], [primary, other]):
        assert Ensemble(members, cache_dir=tables).score("x", ["a<unused1>b"]) == [-math.inf]


def test_an_option_that_is_very_unlikely_still_has_a_score(tables: Path) -> None:
    model = tiny_model(byte_tokenizer(), 1, dtype=torch.float32)
    ensemble = Ensemble([member_of(let_write(model, [5], 200.0), byte_tokenizer(), name="sure")], cache_dir=tables)
    (expected,) = slow(ensemble, "x", ["a"])
    assert expected < -150
    assert ensemble.score("x", ["a"]) == pytest.approx([expected], rel=1e-4)


# --- Batches ---


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_a_batch_scores_as_each_question_alone(batch_size: int, tables: Path) -> None:
    ensemble = Ensemble([member("bytes"), member("unigram with bytes", 1)], cache_dir=tables)
    shots = "Question: one or two?\nAnswer: two\n\n"
    options = [OPTIONS[n % 5 : n + 2] + LONGER[: n % 3] for n in range(len(PROMPTS))]
    questions = [ensemble.encode_options(shots + prompt, options[n]) for n, prompt in enumerate(PROMPTS)]
    found = dict(ensemble.score_each(questions, batch_size))
    for n, prompt in enumerate(PROMPTS):
        assert [score.value for score in found[n]] == pytest.approx(
            ensemble.score(shots + prompt, options[n]), abs=1e-9
        )


def test_all_tokens_of_all_options_are_read_at_once(tables: Path) -> None:
    primary = member("bytes", 5)
    with passes_of(primary.model) as passes:
        Ensemble([primary], cache_dir=tables).score("x" * 50, ["a" * 30, "b" * 20, "a" * 30 + "b", "c"])
    # The prompt; its last token again, and the row behind it: "c" needs none of its own.
    assert passes == [(1, 50), (2, 31)]


def question(prompt: int, rows: Sequence[int]) -> ChoiceQuestion:
    own = paths([(n,) * length for n, length in enumerate(rows)])
    return ChoiceQuestion([[0] * prompt], [0.0] * len(rows), [], [], [], [[]], [own])


@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=4)), max_size=12),
    st.integers(1, 12),
    st.integers(1, 60),
)
def test_batches_hold_every_question_once_and_keep_the_limits(
    sizes: list[tuple[int, list[int]]], most_rows: int, most_places: int
) -> None:
    questions = [question(*size) for size in sizes]
    found = [*batches(questions, most_rows, most_places)]
    assert sorted(n for batch in found for n in batch) == [*range(len(questions))]
    for batch in found:
        rows = sum(questions[n].rows() for n in batch)
        places = rows * (1 + max(questions[n].longest() for n in batch))
        assert len(batch) == 1 or (rows <= most_rows and places <= most_places)


# --- What greedy decoding would write ---


@pytest.mark.parametrize("method", ["unite", "gac", "gac-threshold", "safe", "mined"])
def test_greedy_are_those_options_that_greedy_decoding_writes(method: str, tables: Path) -> None:
    ensemble = Ensemble([member("bytes"), member("unigram with bytes", 1)], method=method, k=3, cache_dir=tables)
    primary = ensemble.members[0].vocabulary
    written = ensemble.generate(PROMPTS, max_new_tokens=6)
    seen = set()
    for prompt, generation in zip(PROMPTS, written, strict=True):
        text = b"".join(primary.token_bytes(token) or b"" for token in generation.tokens).decode(errors="ignore")
        options = [option for end in (1, 3, len(text)) for option in (text[:end], text[: end - 1] + "e") if option]
        ((_, scores),) = ensemble.score_each([ensemble.encode_options(prompt, options or ["e"])], greedy=True)
        for option, score in zip(options, scores, strict=False):
            tokens = tuple(primary.continue_ids(option.encode()))
            assert score.greedy == (generation.tokens[: len(tokens)] == tokens), (prompt, option)
            seen.add(score.greedy)
    assert seen == {True, False}


# --- Few rows ---

sequences = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=20)


@given(sequences)
def test_every_state_is_the_beginning_of_its_row_and_no_row_could_be_spared(reached: list[tuple[int, ...]]) -> None:
    found = paths(reached)
    for state in reached:
        assert found.rows[found.row_of[state]][: len(state)] == state
    assert {*found.rows} <= {*reached, ()}
    for row in found.rows:
        assert not any(other != row and other[: len(row)] == row for other in found.rows)


# --- Refusals ---


@pytest.mark.parametrize("place", [0, 1])
def test_an_option_that_does_not_fit_a_context_is_refused(place: int, tables: Path) -> None:
    members = [member("bytes"), member("unigram with bytes", 1)]
    members[place] = member("bytes", 3, positions=32)
    ensemble = Ensemble(members, cache_dir=tables)
    assert len(ensemble.score("x" * 20, ["y" * 13])) == 1
    with pytest.raises(InputError, match=r"^bytes-3: a prompt and an option of 33 tokens together do not fit its"):
        ensemble.score("x" * 20, ["y" * 14])


# --- Long texts, piece by piece ---

TEXTS = [SENTENCES[0], SENTENCES[4][:40], "James's 🙂 12", "e"]


def passage(ensemble: Ensemble, prompt: str, text: str) -> Passage:
    return Passage(ensemble.encode(prompt), ensemble.members[0].vocabulary.continue_ids(text.encode()))


@pytest.mark.parametrize(
    ("names", "arch", "config"),
    [
        (("bytes",), "llama", {}),
        (("bytes", "unigram with bytes"), "llama", {}),
        (("unigram with bytes", "bytes", "bytes"), "gpt2", {}),
        (("unigram with bytes", "bytes"), "recurrent_gemma", {"layers": 3}),
    ],
)
def test_a_passage_has_the_score_of_an_option(
    names: tuple[str, ...], arch: str, config: dict[str, Any], tables: Path
) -> None:
    members = [member(name, n, arch if n else "llama", **(config if n else {})) for n, name in enumerate(names)]
    ensemble = Ensemble(members, cache_dir=tables)
    passages = [passage(ensemble, prompt, text) for prompt, text in zip(PROMPTS, TEXTS, strict=False)]
    found = dict(ensemble.score_passages(passages, 3))
    for n, (prompt, text) in enumerate(zip(PROMPTS, TEXTS, strict=False)):
        assert found[n] == pytest.approx(ensemble.score(prompt, [text])[0], abs=1e-6 * len(text))


def test_each_token_is_read_hardly_more_than_once(tables: Path) -> None:
    alone = member("bytes", 5)
    ensemble = Ensemble([alone], cache_dir=tables)
    text = passage(ensemble, "x", "y" * 700)
    with passes_of(alone.model) as passes:
        assert len(dict(ensemble.score_passages([text]))) == 1
    assert len(text.tokens) == 700
    assert sum(rows * columns for rows, columns in passes) <= 700 + 2 * len(passes)


def test_a_passage_that_the_primary_cannot_write_has_no_chance_and_an_empty_one_is_sure(tables: Path) -> None:
    ensemble = Ensemble([member("unigram"), member("bytes", 1)], cache_dir=tables)
    (prompts,) = [ensemble.encode("the")]
    unknown = member("unigram").tokenizer.unk_token_id
    passages = [Passage(prompts, [unknown]), Passage(prompts, []), passage(ensemble, "the", "the")]
    found = dict(ensemble.score_passages(passages))
    assert found[0] == -math.inf
    assert found[1] == 0
    assert found[2] == pytest.approx(ensemble.score("the", ["the"])[0])


@pytest.mark.parametrize("place", [0, 1])
def test_a_passage_that_does_not_fit_a_context_is_refused(place: int, tables: Path) -> None:
    members = [member("bytes"), member("unigram with bytes", 1)]
    members[place] = member("bytes", 3, positions=32)
    ensemble = Ensemble(members, cache_dir=tables)
    assert len(dict(ensemble.score_passages([passage(ensemble, "x" * 20, "y" * 13)]))) == 1
    with pytest.raises(InputError, match=r"^bytes-3: .* do not fit its context of 32"):
        dict(ensemble.score_passages([passage(ensemble, "x" * 20, "y" * 14)]))
