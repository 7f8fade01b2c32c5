"""ABE against a search through all tuples of the members' tokens."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from tiny import byte_tokenizer, tiny_model, tokenizer_named

from ensemble import Ensemble
from ensemble.decode.settings import Settings
from ensemble.errors import InputError, MemberError
from ensemble.methods.abe import Reader
from ensemble.models.load import member_of
from ensemble.models.member import Member
from ensemble.vocabulary.joint import load_or_build

PROMPTS = ["What is it?", "The cat", "0123 the"]
WORDS = (" the", "the", "th", "ing", " in", "in", "at", " a")


@cache
def member(number: int) -> Member:
    words = (WORDS, WORDS[:3], ("in", " i", "nt"))[number]
    tokenizer = byte_tokenizer(words) if number < 2 else tokenizer_named("unigram with bytes")
    return member_of(tiny_model(tokenizer, 7 + number), tokenizer, name=f"m{number}")


@cache
def candidates(own: Member) -> dict[int, bytes]:
    """The tokens that a member may write, with their bytes; not EOS."""
    with tempfile.TemporaryDirectory() as folder:
        entry_of = load_or_build([own.vocabulary], Path(folder)).members[0].entry_of.tolist()
    found = {n: own.vocabulary.token_bytes(n) for n, entry in enumerate(entry_of) if entry >= 0}
    return {n: data for n, data in found.items() if data and n not in own.vocabulary.eos_ids}


def log_shares(own: Member, ids: list[int]) -> dict[int, float]:
    """The log-probability of each candidate after ids, by a whole pass; EOS is -1."""
    tokens, eos = list(candidates(own)), list(own.vocabulary.eos_ids)
    with torch.no_grad():
        logits = own.local.model(torch.tensor([ids])).logits[0, -1].double()
    values = torch.cat([logits[tokens], *([logits[eos].max()[None]] if eos else [])]).log_softmax(0).tolist()
    return dict(zip([*tokens, -1], values, strict=False))


def agree(texts: list[bytes], ended: list[bool]) -> bool:
    longest = max(texts, key=len)
    return all(longest.startswith(text) for text in texts) and all(
        text == longest for text, has_ended in zip(texts, ended, strict=True) if has_ended
    )


State = tuple[list[int], bytes, float, bool]
"""A member's tokens, its text, the sum of its log-probabilities, and whether it has ended."""


def all_tuples(own: list[Member], prompt: str, states: list[State], weights: list[float]) -> list[tuple[float, list]]:
    """Every tuple that continues a hypothesis, with its score."""
    texts, over = [state[1] for state in states], [state[3] for state in states]
    longest, shortest = max(map(len, texts)), min(map(len, texts))
    tuples: list[tuple[float, list[State]]] = [(0.0, [])]
    for each, weight, (ids, text, total, has_ended) in zip(own, weights, states, strict=True):
        if has_ended or (len(text) == longest > shortest and not any(over)):
            column = [(ids, text, total, has_ended)]
        else:
            after, data = log_shares(each, each.encode_prompt(prompt) + ids), candidates(each)
            column = [
                (ids, text, total + value, True) if n == -1 else ([*ids, n], text + data[n], total + value, False)
                for n, value in after.items()
            ]
        # A pair that disagrees is in no tuple, and neither is a text that disagrees with what was written.
        tuples = [
            (score + weight * state[2] / (len(ids) + 1), [*some, state])
            for (score, some), state in product(tuples, column)
            if agree([s[1] for s in [*some, state]] + texts, [s[3] for s in [*some, state]] + over)
        ]
    return tuples


def slow(own: list[Member], prompt: str, beams: int, tokens: int, weights: list[float]) -> tuple[str, str]:
    """The text by the rules of the module: every tuple of every hypothesis is looked at, and they are sorted."""

    def total(states: list[State]) -> float:
        return sum(w * state[2] for w, state in zip(weights, states, strict=True))

    running: list[list[State]] = [[([], b"", 0.0, False) for _ in own]]
    done: list[tuple[float, bytes, str]] = []
    while running and len(done) < beams and not (done and total(running[0]) < max(done)[0]):
        found = [pair for states in running for pair in all_tuples(own, prompt, states, weights)]
        running = []
        for _, states in sorted(found, key=lambda pair: -pair[0]):
            if done and total(states) < max(done)[0]:
                break
            has_ended = all(state[3] for state in states)
            if has_ended or len(states[0][0]) == tokens:
                done.append((total(states), states[0][1], "eos" if has_ended else "length"))
            else:
                running.append(states)
            if beams in (len(running), len(done)):
                break
    _, text, reason = max(done)
    return text.decode(errors="replace"), reason


@pytest.mark.parametrize(
    ("numbers", "beams", "weights"),
    [
        ((0, 1), 1, None),
        ((1, 2), 2, None),
        ((2,), 2, None),
        # The search through all tuples takes as long as all other tests of this file.
        pytest.param((0, 1), 3, [0.8, 0.2], marks=pytest.mark.second_lane),
        pytest.param((0, 2, 1), 1, None, marks=pytest.mark.second_lane),
    ],
)
def test_the_text_is_that_of_a_search_through_all_tuples(
    numbers: tuple[int, ...], beams: int, weights: list[float] | None, tmp_path: Path
) -> None:
    own = [member(number) for number in numbers]
    ensemble = Ensemble(own, method="abe", beams=beams, weights=weights, cache_dir=tmp_path)
    shares = weights or [1 / len(own)] * len(own)
    wanted = [slow(own, prompt, beams, 5, shares) for prompt in PROMPTS]
    alone = [ensemble.generate([prompt], max_new_tokens=5)[0] for prompt in PROMPTS]
    together = ensemble.generate(PROMPTS, max_new_tokens=5)
    assert [(each.text, each.finish_reason) for each in alone] == wanted
    assert [(each.text, each.finish_reason) for each in together] == wanted
    assert ["".join(ensemble.stream(prompt, max_new_tokens=5)) for prompt in PROMPTS] == [text for text, _ in wanted]
    assert len(set(wanted)) > 1


def test_a_stop_string_ends_a_text_before_it(tmp_path: Path) -> None:
    ensemble = Ensemble([member(0), member(1)], method="abe", beams=1, cache_dir=tmp_path)
    (whole,) = ensemble.generate(PROMPTS[:1], max_new_tokens=8)
    stop = whole.text[2:4]
    (cut,) = ensemble.generate(PROMPTS[:1], max_new_tokens=8, stop=[stop])
    assert (cut.text, cut.finish_reason) == (whole.text[: whole.text.find(stop)], "stop")
    assert "".join(ensemble.stream(PROMPTS[0], max_new_tokens=8, stop=[stop])) == cut.text


def test_a_full_context_ends_a_text(tmp_path: Path) -> None:
    own = [member(0), replace(member(1), context=len(member(1).encode_prompt(PROMPTS[0])) + 3)]
    ensemble = Ensemble(own, method="abe", beams=1, cache_dir=tmp_path)
    (found,) = ensemble.generate(PROMPTS[:1], max_new_tokens=50)
    assert found.finish_reason == "length"
    assert len(found.tokens) < 20


def test_a_text_for_which_a_member_has_no_numbers_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = Ensemble([member(0), member(1)], method="abe", beams=1, cache_dir=tmp_path)
    wanted = ensemble.generate(PROMPTS[:1], max_new_tokens=4)[0].text
    admit = Reader.admit

    def broken(self: Reader, prompts: list[list[int]]) -> object:
        shares = admit(self, prompts)
        for row, prompt in enumerate(prompts):
            if self.member is member(1) and prompt != member(1).encode_prompt(PROMPTS[0]):
                shares[row] = math.nan
        return shares

    monkeypatch.setattr(Reader, "admit", broken)
    found = {}
    settings = Settings(max_new_tokens=4)
    with pytest.raises(MemberError, match="m1: its logits are not numbers"):
        for number, generation in ensemble.generate_each([ensemble.encode(p) for p in PROMPTS[:2]], settings):
            found[number] = generation.text
    assert found == {0: wanted}


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"beams": 0}, {}, "beams is 0; the search needs at least 1"),
        ({}, {"temperature": 1.0}, "leave the temperature at 0"),
    ],
)
def test_what_it_cannot_do_is_refused(
    options: dict[str, int], settings: dict[str, float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        Ensemble([member(0)], method="abe", cache_dir=tmp_path, **options).generate(PROMPTS, **settings)


def test_options_are_not_scored(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it scores no tokens"):
        Ensemble([member(0)], method="abe", cache_dir=tmp_path).score("a", ["b"])
