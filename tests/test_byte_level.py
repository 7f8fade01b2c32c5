"""Byte-level ensembling against sums over all tokenizations, and what it decodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from tiny import byte_tokenizer, tiny_model, tokenizer_named

from ensemble import Ensemble
from ensemble.errors import InputError, MemberError
from ensemble.methods.byte_level import combine
from ensemble.models.load import member_of
from ensemble.models.member import Member
from ensemble.step.byte_model import END, ByteModel, SortedVocabulary, next_symbols
from ensemble.vocabulary.joint import load_or_build

PROMPT = "Q: 1?"


@cache
def member(name: str, seed: int = 0) -> Member:
    tokenizer = tokenizer_named(name)
    return member_of(tiny_model(tokenizer, seed), tokenizer, name=f"{name}-{seed}")


def candidates(own: Member, tables: object) -> dict[int, bytes]:
    vocabulary, eos = own.vocabulary, set(own.vocabulary.eos_ids)
    entry_of = tables.entry_of.tolist()
    return {
        index: data
        for index, entry in enumerate(entry_of)
        if entry >= 0 and index not in eos and (data := vocabulary.token_bytes(index))
    }


def brute_force(own: Member, tables: object, prompt: list[int], text: bytes) -> list[float]:
    """The sums of the module, over all sequences of tokens, each probability by whole forward passes."""
    tokens = candidates(own, tables)
    allowed = torch.full((own.local.model.get_output_embeddings().weight.shape[0],), -math.inf, dtype=torch.float64)
    eos = [index for index in own.vocabulary.eos_ids if tables.entry_of[index] >= 0]
    allowed[[*tokens, *eos[:1]]] = 0

    @cache
    def after(ids: tuple[int, ...]) -> list[float]:
        with torch.no_grad():
            logits = own.local.model(torch.tensor([[*prompt, *ids]])).logits[0, -1].double()
        if len(eos) > 1:
            logits[eos[0]] = logits[eos].max()
        return (logits + allowed).softmax(0).tolist()

    def sequences(rest: bytes, ids: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], bytes]]:
        """Every sequence of complete tokens of some beginning of the text, with what is left of it."""
        yield ids, rest
        for index, data in tokens.items():
            if rest.startswith(data):
                yield from sequences(rest[len(data) :], (*ids, index))

    sums = [0.0] * 257
    for ids, rest in sequences(text, ()):
        written = text[: len(text) - len(rest)]
        # Complete tokens are as the tokenizer writes them.
        if list(ids) != own.vocabulary.continue_ids(written):
            continue
        share = math.prod(after(ids[:n])[index] for n, index in enumerate(ids))
        for index, data in tokens.items():
            if data.startswith(rest) and len(data) > len(rest):
                sums[data[len(rest)]] += share * after(ids)[index]
        if not rest and eos:
            sums[END] += share * after(ids)[eos[0]]
    return [value / sum(sums) for value in sums]


@pytest.mark.parametrize("text", [b"", b"t", b"the", b" the in", "é the".encode(), b"\xe2\x82", b"  \n a"])
@pytest.mark.parametrize("name", ["bytes", "unigram with bytes", "words"])
def test_the_next_byte_has_the_sum_over_all_tokenizations(name: str, text: bytes, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer((" the", "the", "th", "ing", " in", "in", "é")) if name == "words" else None
    own = member_of(tiny_model(tokenizer), tokenizer, name="words") if tokenizer else member(name)
    tables = load_or_build([own.vocabulary], tmp_path).members[0]
    prompt = own.encode_prompt(PROMPT)
    model = ByteModel(own, SortedVocabulary(own, tables))
    with torch.inference_mode():
        model.admit([prompt])
        for byte in text:
            model.append([byte])
    made = model.texts[0].next_symbols()
    assert made == pytest.approx(brute_force(own, tables, prompt, text), abs=1e-9)
    assert made.sum() == pytest.approx(1)


@cache
def third() -> Member:
    tokenizer = byte_tokenizer((" the", "the", "th", "ing", " in", "in"))
    return member_of(tiny_model(tokenizer, 5), tokenizer, name="words")


def members(count: int) -> list[Member]:
    return [third(), member("unigram with bytes", 1), member("bytes", 2)][:count]


def slow(count: int, prompt: str, tokens: int, mean: str, weights: list[float], tables: Path) -> str:
    """The text by the equations, byte by byte, with every model read again."""
    own = members(count)
    sides = load_or_build([each.vocabulary for each in own], tables).members
    text = b""
    while True:
        models = [ByteModel(each, SortedVocabulary(each, side)) for each, side in zip(own, sides, strict=True)]
        with torch.inference_mode():
            for model in models:
                model.admit([model.member.encode_prompt(prompt)])
                for byte in text:
                    model.append([byte])
        rows = [model.texts[0].next_symbols().tolist() for model in models]
        if mean == "arithmetic":
            values = [sum(w * row[b] for w, row in zip(weights, rows, strict=True)) for b in range(257)]
        else:
            shares = weights if mean == "geometric" else [1, 1, -1]
            values = [
                sum(w * math.log(max(row[b], 2.3e-308)) for w, row in zip(shares, rows, strict=True))
                for b in range(257)
            ]
        best = values.index(max(values))
        ids = own[0].vocabulary.continue_ids(text)
        if best == END:
            return text.decode(errors="replace")
        text += bytes([best])
        ids = own[0].vocabulary.continue_ids(text)
        if len(ids) > tokens:
            return b"".join(own[0].vocabulary.token_bytes(token) or b"" for token in ids[:tokens]).decode(
                errors="replace"
            )


PROMPTS = ["What is it?", "The cat", "0123 the"]


@pytest.mark.parametrize(("count", "mean"), [(1, "arithmetic"), (2, "arithmetic"), (2, "geometric"), (3, "proxy")])
def test_the_text_is_that_of_the_equations_alone_and_in_a_batch(count: int, mean: str, tmp_path: Path) -> None:
    weights = [0.7, 0.3] if mean != "proxy" and count == 2 else None
    ensemble = Ensemble(members(count), method="byte-level", mean=mean, weights=weights, cache_dir=tmp_path)
    wanted = [slow(count, prompt, 10, mean, weights or [1.0] * count, tmp_path) for prompt in PROMPTS]
    alone = [ensemble.generate([prompt], max_new_tokens=10)[0].text for prompt in PROMPTS]
    together = [each.text for each in ensemble.generate(PROMPTS, max_new_tokens=10)]
    assert (alone, together) == (wanted, wanted)
    assert len(set(wanted)) > 1
    assert ["".join(ensemble.stream(prompt, max_new_tokens=10)) for prompt in PROMPTS] == wanted


OPTIONS = [" the", "t", "the in", "é", " the"]


@pytest.mark.parametrize(
    ("count", "mean", "weights"),
    [(1, "arithmetic", None), (2, "arithmetic", [0.7, 0.3]), (2, "geometric", [0.2, 0.8]), (3, "proxy", None)],
)
def test_an_option_has_the_product_of_the_sums_over_tokenizations(
    count: int, mean: str, weights: list[float] | None, tmp_path: Path
) -> None:
    own = members(count)
    ensemble = Ensemble(own, method="byte-level", mean=mean, weights=weights, cache_dir=tmp_path)
    sides = load_or_build([each.vocabulary for each in own], tmp_path).members
    shares = [1, 1, -1] if mean == "proxy" else weights or [1]

    @cache
    def mixed(prompt: str, text: bytes) -> list[float]:
        rows = [
            brute_force(each, side, each.encode_prompt(prompt), text) for each, side in zip(own, sides, strict=True)
        ]
        columns = list(zip(*rows, strict=True))
        if mean == "arithmetic":
            return [sum(w * p for w, p in zip(shares, column, strict=True)) for column in columns]
        # As in combine(): a byte that the untuned model cannot write tells nothing.
        products = [
            math.exp(
                sum(
                    w * math.log(max(p, 2.3e-308)) * (mean != "proxy" or n == 0 or column[2] > 0)
                    for n, (w, p) in enumerate(zip(shares, column, strict=True))
                )
            )
            for column in columns
        ]
        return [product / sum(products) for product in products]

    wanted, greedy = [], []
    for prompt in PROMPTS[:2]:
        texts = [option.encode() for option in OPTIONS]
        steps = [[mixed(prompt, text[:n]) for n in range(len(text))] for text in texts]
        wanted.append(
            [
                sum(math.log(p[b]) for p, b in zip(each, text, strict=True))
                for each, text in zip(steps, texts, strict=True)
            ]
        )
        greedy.append(
            [
                all(p[b] == max(p) for p, b in zip(each, text, strict=True))
                for each, text in zip(steps, texts, strict=True)
            ]
        )
    questions = [ensemble.encode_options(prompt, OPTIONS) for prompt in PROMPTS[:2]]
    for size in (1, 32):
        found = dict(ensemble.score_each(questions, size, greedy=True))
        for n in range(2):
            assert [score.value for score in found[n]] == pytest.approx(wanted[n], abs=1e-9)
            assert [score.greedy for score in found[n]] == greedy[n]
    assert ensemble.score(PROMPTS[0], OPTIONS) == pytest.approx(wanted[0], abs=1e-9)


def test_greedy_decoding_writes_the_option_that_it_would_write(tmp_path: Path) -> None:
    ensemble = Ensemble(members(2), method="byte-level", cache_dir=tmp_path)
    (whole,) = ensemble.generate(PROMPTS[:1], max_new_tokens=4)
    question = ensemble.encode_options(PROMPTS[0], [whole.text, whole.text + "\x07", "\x07" + whole.text])
    ((_, scores),) = ensemble.score_each([question])
    assert [score.greedy for score in scores] == [True, False, False]


def test_an_option_that_no_member_can_write_has_no_probability(tmp_path: Path) -> None:
    ensemble = Ensemble([member("unigram")], method="byte-level", cache_dir=tmp_path)
    scores = ensemble.score(PROMPT, ["\U0001f600", "the"])
    assert scores[0] == -math.inf
    assert scores[1] > -math.inf


def test_a_question_that_a_member_fails_on_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = Ensemble(members(2), method="byte-level", cache_dir=tmp_path)
    wanted = ensemble.score(PROMPTS[0], OPTIONS)
    questions = [ensemble.encode_options(prompt, OPTIONS) for prompt in PROMPTS[:2]]

    def failing(models: list[ByteModel], row: int) -> object:
        broken = len(models[0].texts) == 2 * len(OPTIONS) and row == len(OPTIONS) + 1
        return MemberError("broken", of="bytes") if broken else next_symbols(models, row)

    monkeypatch.setattr("ensemble.score.byte_scorer.next_symbols", failing)
    found = {}
    with pytest.raises(MemberError, match="bytes: broken for number 1; 1 of 2"):
        for number, scores in ensemble.score_each(questions):
            found[number] = [score.value for score in scores]
    assert found == {0: pytest.approx(wanted)}


def test_a_prompt_loses_its_beginning_where_an_option_does_not_fit(tmp_path: Path) -> None:
    own = replace(third(), context=12)
    ensemble = Ensemble([own], method="byte-level", cache_dir=tmp_path)
    prompt = own.vocabulary.continue_ids(b"0123456789")
    with pytest.raises(InputError, match="do not fit its context of 12"):
        ensemble.options_behind([prompt], ["abcd"])
    cut = ensemble.options_behind([prompt], ["abcd"], shorten=True)
    assert (cut.prompts, cut.longest()) == ([prompt[-9:]], 3)


def test_a_stop_string_ends_a_text_before_it(tmp_path: Path) -> None:
    ensemble = Ensemble(members(2), method="byte-level", cache_dir=tmp_path)
    (whole,) = ensemble.generate(PROMPTS[:1], max_new_tokens=20)
    stop = whole.text[4:6]
    (cut,) = ensemble.generate(PROMPTS[:1], max_new_tokens=20, stop=[stop])
    assert (cut.text, cut.finish_reason) == (whole.text[: whole.text.find(stop)], "stop")


def test_drawn_bytes_have_the_distribution_of_the_members_mean(tmp_path: Path) -> None:
    own = members(2)
    sides = load_or_build([each.vocabulary for each in own], tmp_path).members
    rows = []
    for each, side in zip(own, sides, strict=True):
        model = ByteModel(each, SortedVocabulary(each, side))
        with torch.inference_mode():
            model.admit([each.encode_prompt(PROMPTS[0])])
        rows.append(model.texts[0].next_symbols())
    expected = 400 * np.mean(rows, axis=0)
    ensemble = Ensemble(own, method="byte-level", cache_dir=tmp_path)
    drawn = ensemble.generate([PROMPTS[0]] * 400, temperature=1.0, max_new_tokens=1, seed=3)
    # A text without a whole character is none of the likely symbols below.
    texts = [(each.text.encode() or b"\x00")[0] for each in drawn]
    likely = [symbol for symbol in range(1, 128) if expected[symbol] >= 8]
    counts = np.array([texts.count(symbol) for symbol in likely])
    assert len(likely) > 3
    statistic = float(((counts - expected[likely]) ** 2 / expected[likely]).sum())
    assert statistic < chi2.ppf(0.9999, len(likely))


def test_a_member_that_cannot_write_the_text_is_left_out(tmp_path: Path) -> None:
    own = member("unigram")
    assert own.vocabulary.continue_ids("é".encode()) != []
    tables = load_or_build([own.vocabulary], tmp_path).members[0]
    model = ByteModel(own, SortedVocabulary(own, tables))
    with torch.inference_mode():
        model.admit([own.encode_prompt(PROMPT)])
        for byte in b"\xff\xfe":
            model.append([byte])
    assert not model.texts[0].next_symbols().any()
    others = np.full((1, 257), 1 / 257)
    mixed = combine(np.concatenate([others, np.zeros((1, 257))]), np.array([0.5, 0.5]), "arithmetic")
    assert mixed == pytest.approx(others[0])


def test_what_the_untuned_model_cannot_write_counts_as_the_base_has_it() -> None:
    members = np.full((3, 257), 1 / 256)
    members[:, END] = [0.0, 0.0, 0.0]
    members[2, 7] = 0
    found = combine(members, np.ones(3), "proxy")
    assert found[END] < 1e-200
    assert found[7] == pytest.approx(found[8])
