"""Where drafts end, how long the next ones are, and that they change no text; see also `test_decoder`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ensemble_api import member, writer
from tiny import PROMPTS, byte_tokenizer, tiny_model, writer_of
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from ways import assert_alike

from ensemble import Ensemble, Generation
from ensemble.decode.settings import MAX_DRAFT_TOKENS, Batch, Settings
from ensemble.models.load import member_of
from ensemble.runtime.draft import Chance, Draft, Drafter, DraftMode, PromptLookup, TextDrafts
from ensemble.runtime.local_runner import LocalRunner
from ensemble.step.distribution import Distribution, sample
from ensemble.vocabulary.joint import EOS, NONE, MemberTables

DRAWN = (
    Settings(24, temperature=1.0, seed=3),
    Settings(24, temperature=0.3, top_p=0.9, seed=4),
    Settings(24, temperature=2.0, top_p=0.5, seed=5),
    Settings(24, temperature=1.0, top_k=3, seed=6),
)


# --- Where a draft ends ---


def drafter(*modes: DraftMode, longest: int = MAX_DRAFT_TOKENS) -> Drafter:
    """Id 0 is EOS, ids 1 and 2 are candidates, and id 3 is not."""
    ids = MemberTables(torch.tensor([EOS, 1, 2, NONE]), torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([0]))
    return Drafter(ids, longest, modes)


def wants(token: int, probability: float) -> torch.Tensor:
    """Logits [1, 4] with one token's probability, and the rest shared by the others."""
    chances = torch.full((1, 4), (1 - probability) / 3)
    chances[0, token] = probability
    return chances.log()


def written(logits: Sequence[torch.Tensor], most: int = 9, chances: Sequence[Chance] | None = None) -> list[int]:
    """The draft of a text with these logits at its places."""
    drafts = drafter().drafts([most], chances or [(0.0, 1.0, ())])
    for place, each in enumerate(logits):
        tokens, shares = drafts.choose(each, place)
        if not drafts.take(tokens.tolist(), shares.tolist(), is_fed=False):
            break
    return drafts.tokens[0]


def test_a_server_that_writes_another_token_than_its_likeliest_one_ends_only_the_draft() -> None:
    drafts = Draft(bytes([1] * 10), 0.15, [3], [(0.001, 1.0, [0.5] * 3)])
    drafts.take_written(0, [(3, {3: -1.5, 4: -0.5})])
    assert drafts.tokens == [[]]


@pytest.mark.parametrize(
    ("wanted", "draft"),
    [
        ([(2, 0.9), (1, 0.8), (2, 0.34), (2, 0.9)], [2, 1]),
        ([(2, 0.9), (0, 0.99)], [2]),
        ([(1, 0.9), (3, 0.99)], [1]),
        ([(2, 0.9)] * 5, [2, 2, 2]),
        ([(2, 0.9), (1, math.nan)], [2]),
    ],
    ids=["not sure", "EOS", "no candidate", "its length", "NaN"],
)
def test_a_draft_ends(wanted: list[tuple[int, float]], draft: list[int]) -> None:
    assert written([wants(*each) for each in wanted], most=3) == draft


def test_drafts_end_where_only_few_of_them_go_on() -> None:
    drafts = drafter().drafts([9, 9, 9], [(0.0, 1.0, ())] * 3)
    assert drafts.take([2, 1, 1], [0.9, 0.9, 0.9], is_fed=False)
    assert drafts.take([2, 1, 1], [0.9, 0.1, 0.9], is_fed=False)
    assert not drafts.take([2, 1, 2], [0.9, 0.9, 0.1], is_fed=False)
    assert drafts.tokens == [[2, 2], [1], [1, 1]]


def test_what_the_primary_has_read_anyway_is_drafted_as_long_as_any_draft_goes_on() -> None:
    drafts = drafter().drafts([9, 9, 9], [(0.0, 1.0, ())] * 3)
    assert drafts.take([2, 0, 0], [0.9, 0.9, 0.9], is_fed=True)
    assert drafts.tokens == [[2], [], []]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("top_p", [0.6, 1.0])
def test_a_drawn_draft_is_what_the_primary_alone_would_draw(temperature: float, top_p: float) -> None:
    chance = random.Random(f"{temperature} {top_p}")
    logits = torch.tensor([[chance.gauss(0, 2) for _ in range(12)] for _ in range(40)], dtype=torch.float64)
    uniform = [chance.random() for _ in range(40)]
    tokens, _ = Draft(b"\1" * 12, 0.1, [1] * 40, [(temperature, top_p, [u]) for u in uniform]).choose(logits, 0)
    ids = torch.arange(12).expand(40, -1)
    own = logits.softmax(dim=1)
    alone = Distribution(ids, ids >= 0, ids, own[None], own)
    size = torch.ones(40)
    assert tokens.tolist() == sample(alone, size * temperature, size * top_p, torch.tensor(uniform)).tolist()


def test_a_text_without_draws_beside_drawn_ones_drafts_the_likeliest_tokens() -> None:
    drafts = drafter().drafts([1, 1], [(0.0, 1.0, [0.0]), (1.0, 1.0, [0.999])])
    tokens, _ = drafts.choose(torch.cat([wants(2, 0.6), wants(2, 0.6)]), 0)
    assert tokens[0] == 2
    assert tokens[1] != 2


# --- The next draft ---


def step(drafting: Drafter, texts: Sequence[TextDrafts], accepts: Sequence[float]) -> tuple[DraftMode, list[int]]:
    """Plan a step and count what it gave: each text accepts a share of its draft."""
    mode, lengths = drafting.plan(texts, [MAX_DRAFT_TOKENS] * len(texts))
    for text, length, share in zip(texts, lengths, accepts, strict=True):
        if length:
            drafting.count(mode, text, length, length, int(length * share), ended=False)
    tokens = sum(1 + int(length * share) for length, share in zip(lengths, accepts, strict=True))
    drafting.note(mode, len(texts), 2.0 + max(lengths), 1 + max(lengths), tokens)
    return mode, lengths


def test_each_text_learns_the_length_of_its_drafts() -> None:
    drafting, texts = drafter("check"), [TextDrafts(), TextDrafts()]
    for _ in range(30):
        _, (agrees, differs) = step(drafting, texts, [1.0, 0.0])
    assert agrees > 2 * differs


def test_a_new_text_begins_with_what_the_others_showed() -> None:
    agreeing, differing = drafter("check"), drafter("check")
    for _ in range(30):
        step(agreeing, [TextDrafts()], [1.0])
        step(differing, [TextDrafts()], [0.0])
    assert step(agreeing, [TextDrafts()], [1.0])[1] > step(differing, [TextDrafts()], [0.0])[1]


def test_drafts_pay_for_some_texts_and_not_for_others() -> None:
    drafting, agrees, differs = drafter("check", "plain"), TextDrafts(), TextDrafts()
    for _ in range(60):
        step(drafting, [agrees], [1.0])
        step(drafting, [differs], [0.0])
    modes = [(step(drafting, [agrees], [1.0])[0], step(drafting, [differs], [0.0])[0]) for _ in range(20)]
    assert modes.count(("check", "plain")) >= 18


def test_no_draft_is_longer_than_allowed() -> None:
    drafting, text = drafter("check", longest=2), TextDrafts()
    assert all(step(drafting, [text], [1.0])[1][0] <= 2 for _ in range(30))
    assert drafting.plan([text], [1]) == ("check", [1])
    assert drafting.plan([text], [0]) == ("plain", [0])


def test_times_of_many_texts_are_not_those_of_one() -> None:
    drafting, texts = drafter("check", "plain"), [TextDrafts() for _ in range(8)]
    for _ in range(200):
        for rows, per_place in ((1, 0.1), (8, 9.0)):
            mode, lengths = drafting.plan(texts[:rows], [MAX_DRAFT_TOKENS] * rows)
            for text, length in zip(texts, lengths, strict=False):
                drafting.count(mode, text, length, length, length // 2, ended=False)
            tokens = sum(1 + length // 2 for length in lengths)
            drafting.note(mode, rows, 2.0 + per_place * max(lengths), 1 + max(lengths), tokens)
    seen = [(drafting.plan(texts[:1], [9])[0], drafting.plan(texts, [9] * 8)[0]) for _ in range(20)]
    assert seen.count(("check", "plain")) >= 18


@pytest.mark.parametrize(
    ("prompt", "tokens", "draft"),
    [
        ([1, 2, 3, 4, 5], [9, 1, 2, 3], [4, 5, 9]),
        ([7], [1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1]),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [], [5, 1, 2]),
        ([1, 2, 1, 2, 1, 2], [], [1, 2, 1]),
        ([1, 2, 3, 4], [], []),
        ([], [], []),
    ],
    ids=["in the prompt", "in the text", "the last occurrence", "a period goes on", "new tokens", "nothing"],
)
def test_what_followed_the_last_tokens_is_found(prompt: list[int], tokens: list[int], draft: list[int]) -> None:
    found = PromptLookup()
    for count in range(len(tokens) + 1):
        found.read(prompt, tokens[:count])
    assert found.draft(3) == draft


# --- No draft changes a text ---


def always(ensemble: Ensemble, mode: DraftMode, batch: Batch) -> Ensemble:
    """The same ensemble, with each step made in one mode, however long that takes."""
    ensemble._drafters[batch] = Drafter(ensemble._joint.members[0], batch.draft, (mode,))
    return ensemble


def both(
    ensemble: Ensemble, prompts: Sequence[str], kinds: Sequence[Settings], mode: DraftMode, batch: Batch
) -> tuple[dict[int, Generation], dict[int, Generation]]:
    """What prompts become with drafts, all at a time, and without."""
    found = []
    for decoder in (always(ensemble, mode, batch).decoder(batch), ensemble.decoder(replace(batch, draft=0))):
        for n, prompt in enumerate(prompts):
            decoder.add(n, ensemble.encode(prompt), kinds[n % len(kinds)])
        found.append(dict(decoder))
    return found[0], found[1]


def assert_all_alike(drafted: dict[int, Generation], plain: dict[int, Generation]) -> None:
    assert drafted.keys() == plain.keys()
    for n, wanted in plain.items():
        assert_alike(drafted[n], wanted)


def made(kind: str, tables: Path, **options: Any) -> Ensemble:
    """Members that agree (the primary writes a script), that differ, and one model twice."""
    other = member("unigram with bytes", 1)
    if kind == "agree":
        return Ensemble([writer(), other], weights=[9, 1], cache_dir=tables, **options)
    if kind == "same":
        return Ensemble([member("bytes"), member("bytes")], cache_dir=tables, **options)
    return Ensemble([member("bytes"), other], cache_dir=tables, **options)


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("kind", ["agree", "differ", "same"])
@pytest.mark.parametrize("mode", ["check", "repeat"])
def test_texts_are_those_without_drafts(kind: str, size: int, mode: DraftMode, tables: Path) -> None:
    kinds = [Settings(30), Settings(9), Settings(30, stop=("a", "th"))]
    assert_all_alike(*both(made(kind, tables), PROMPTS, kinds, mode, Batch(size)))


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("kind", ["agree", "differ", "same"])
@pytest.mark.parametrize("mode", ["check", "repeat"])
def test_draws_are_those_without_drafts(kind: str, size: int, mode: DraftMode, tables: Path) -> None:
    assert_all_alike(*both(made(kind, tables), PROMPTS[:6], [*DRAWN, Settings(20)], mode, Batch(size)))


@pytest.mark.parametrize("mode", ["check", "repeat"])
def test_traces_and_log_probabilities_are_those_without_drafts(mode: DraftMode, tables: Path) -> None:
    kinds = [Settings(20, alternatives=3), replace(DRAWN[0], alternatives=0), Settings(20), DRAWN[1]]
    assert_all_alike(*both(made("agree", tables), PROMPTS[:4], kinds, mode, Batch(3, trace=True)))


@pytest.mark.parametrize("kind", ["agree", "differ", "same"])
def test_drafts_that_are_read_at_their_end_change_nothing(
    kind: str, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalRunner, "_reads_each", False)
    assert_all_alike(*both(made(kind, tables), PROMPTS[:5], [Settings(20), DRAWN[0], Settings(7)], "check", Batch(3)))


def test_drafts_of_members_that_draw_alike_are_accepted(tables: Path) -> None:
    drafted, plain = both(made("same", tables), PROMPTS[:2], DRAWN[1:2], "check", Batch(1))
    # A draft that is rejected is read in vain.
    assert sum(each.counts.fed[0] for each in drafted.values()) <= 1.2 * sum(
        each.counts.fed[0] for each in plain.values()
    )


def _shrinking() -> PreTrainedTokenizerFast:
    """A tokenizer that writes ``ab`` with two ids and ``abc`` with one, so that a longer text can have fewer ids."""
    entries = {character: n for n, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    entries |= {"bc": len(entries), "abc": len(entries) + 1}
    backend = Tokenizer(BPE(entries, [("b", "c"), ("a", "bc")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


@pytest.mark.parametrize("positions", [12, 13, 14])
def test_a_draft_ends_where_a_members_context_is_full_for_a_while(positions: int, tmp_path: Path) -> None:
    first, other = writer_of(byte_tokenizer(), "abc" * 30), _shrinking()
    short = member_of(tiny_model(other, 2, "gpt2", positions=positions), other, name="short")
    ensemble = Ensemble([first, short], weights=[9, 1], cache_dir=tmp_path)
    prompt = ensemble.encode("x")
    plain, drafted = (
        next(iter(ensemble.generate_each([prompt], Settings(80), Batch(1, draft=draft))))[1] for draft in (0, 24)
    )
    assert drafted == plain
    assert drafted.finish_reason == "length"
