"""Members that think apart and answer together, against a slow reference: think alone, append it, decode together.

Models are random, in float64, and write a script round and round, so that they open and end a thinking somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import ReferenceMember
from reference import generate as slow
from tiny import byte_tokenizer, tokenizer_named, writer_of
from transformers import PreTrainedTokenizerFast
from ways import decode, differences

from ensemble import Ensemble, Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import MemberError
from ensemble.methods import list_methods
from ensemble.models.member import Member
from ensemble.models.spec import Checkpoint, ModelSpec
from ensemble.models.thinking import ThinkingTags

PROMPTS = ("Question: 12 + 30 = ?\nAnswer: <think>", "x <think>\n", "The capital of France is <think>", "Café <think>")
TOKENS = 60
METHODS = sorted(name for name, method in list_methods().items() if method.level == "token")


def member(tokenizer: str | PreTrainedTokenizerFast, script: str, seed: int = 0, **spec: Any) -> Member:
    """A member that writes a script round and round."""
    made = writer_of(tokenizer_named(tokenizer) if isinstance(tokenizer, str) else tokenizer, script, seed)
    name = f"member {seed}"
    return replace(made, name=name, spec=ModelSpec(Checkpoint("nowhere"), name, **spec))


@lru_cache
def thinkers() -> tuple[Member, Member, Member]:
    """Two that think, with other vocabularies and lengths, and one whose tags no prompt opens."""
    return (
        member("bytes", "so it is 4</think>\n\nThe cat sat. James and Anna went ", 1),
        member("unigram with bytes", "it is, I think, a cat on the mat</think> The dog sat ", 2),
        member("pieces", "The shop and the dog ", 3, thinking=ThinkingTags("<plan>", "</plan>")),
    )


def thought_of(one: Member, prompt: list[int]) -> list[int]:
    """What a member alone writes before its answer, in its ids."""
    if one.spec is not None and one.spec.thinking is not None:
        return []
    return plain_thought(one.local.model, one.tokenizer, tuple(prompt))


@lru_cache
def plain_thought(model: Any, tokenizer: Any, prompt: tuple[int, ...]) -> list[int]:
    """By the page alone, without a cache: the plainest way there is."""
    plain = ReferenceMember(model, tokenizer)
    made = slow([plain], [prompt], max_new_tokens=TOKENS)
    for count in range(len(made.ids) + 1):
        text = b"".join(map(plain.token_bytes, made.ids[:count]))
        before, marker, after = text.partition(b"</think>")
        if marker and after.strip():
            earlier = made.ids[: count - 1]
            # Of a token that ends the marker and begins the answer, the marker's part is the thinking's.
            rest = (before + marker)[len(b"".join(map(plain.token_bytes, earlier))) :]
            return [*earlier, *plain.continuation(rest)]
    return [*made.ids, *([] if "</think>" in made.text else plain.continuation(b"</think>"))]


def apart(
    members: Sequence[Member], prompts: Sequence[str], tables: Path, method: str = "unite", **options: Any
) -> list[Generation]:
    ensemble = Ensemble(members, cache_dir=tables, think="apart", method=method, **options)
    return ensemble.generate(prompts, max_new_tokens=TOKENS)


def by_hand(
    members: Sequence[Member], prompts: Sequence[str], tables: Path, method: str = "unite", **options: Any
) -> list[str]:
    """The texts of an ordinary ensemble whose prompts end with each member's own thinking; one by one, plain."""
    ensemble, texts = Ensemble(members, cache_dir=tables, method=method, **options), []
    for prompt in prompts:
        alone = [thought_of(*pair) for pair in zip(members, ensemble.encode(prompt), strict=True)]
        given = [[*ids, *own] for ids, own in zip(ensemble.encode(prompt), alone, strict=True)]
        settings = Settings(TOKENS - len(alone[0]))
        ((_, made),) = ensemble.generate_each([given], settings, Batch(1, draft=0))
        texts.append(made.text)
    return texts


def test_the_texts_are_those_of_the_page_with_the_thinking_in_each_prompt(tables: Path) -> None:
    members = thinkers()
    plain = [ReferenceMember(each.local.model, each.tokenizer) for each in members]
    for prompt, made in zip(PROMPTS[:2], apart(members, PROMPTS[:2], tables), strict=True):
        ids = Ensemble(members, cache_dir=tables).encode(prompt)
        alone = [thought_of(*pair) for pair in zip(members, ids, strict=True)]
        given = [[*own, *thought] for own, thought in zip(ids, alone, strict=True)]
        wanted = slow(plain, given, max_new_tokens=TOKENS - len(alone[0]))
        assert (list(made.tokens), made.text, made.finish_reason) == (wanted.ids, wanted.text, wanted.finish_reason)
        assert [() if each is None else each.tokens for each in made.thinking] == [tuple(each) for each in alone]


@pytest.mark.parametrize("method", METHODS)
def test_each_method_writes_what_it_writes_behind_the_thinking(method: str, tables: Path) -> None:
    first, second, _ = thinkers()
    options: dict[str, Any] = {"accuracies": [50.0, 40.0]} if method == "deepen-adapt" else {}
    if method == "average":  # it needs one vocabulary
        second = member("bytes", "it is, I think, a cat</think> The dog sat ", 2)
    made = apart([first, second], PROMPTS[:2], tables, method, **options)
    assert [each.text for each in made] == by_hand([first, second], PROMPTS[:2], tables, method, **options)


def test_members_that_do_not_think_have_their_prompts_alone(tables: Path) -> None:
    members = [thinkers()[2], thinkers()[0]]
    prompts = ["The capital of France is", "2 + 2 is"]
    made = apart(members, prompts, tables)
    assert [each.text for each in made] == [
        each.text for each in Ensemble(members, cache_dir=tables).generate(prompts, max_new_tokens=TOKENS)
    ]
    assert [each.thinking for each in made] == [(None, None)] * 2


@pytest.mark.parametrize("budget", [0, 5])
def test_the_thinking_is_closed_at_the_budget(budget: int, tables: Path) -> None:
    one = member("bytes", "so it goes on and on and on, James ", 1, thinking_budget=budget)
    ids = one.vocabulary.continue_ids(b"</think>")
    (made,) = Ensemble([one], cache_dir=tables).generate(PROMPTS[:1], max_new_tokens=TOKENS)
    (thought,) = made.thinking
    assert thought is not None
    assert thought.finish_reason == "length"
    assert len(thought.tokens) >= budget + len(ids)
    assert list(thought.tokens[budget : budget + len(ids)]) == ids
    assert made.text.strip()
    assert made.finish_reason == "length"
    assert made.new_tokens == TOKENS


@pytest.mark.parametrize("tokenizer", ["bytes", "unigram with bytes"])
def test_a_budget_that_ends_within_the_end_marker_writes_only_the_rest(tokenizer: str, tables: Path) -> None:
    free = member(tokenizer, "it is 4 < 5</think> The cat sat. James went ", 1)
    written = []
    first, last = (len(free.vocabulary.continue_ids(text)) for text in (b"it is 4 ", b"it is 4 < 5</think>"))
    for budget in (None, *range(first, last)):
        one = replace(free, spec=ModelSpec(Checkpoint("nowhere"), free.name, thinking_budget=budget))
        (thought,) = apart([one], PROMPTS[:1], tables)[0].thinking
        assert thought is not None
        written.append(b"".join(one.vocabulary.token_bytes(index) or b"" for index in thought.tokens))
    whole = written[0].partition(b"</think>")[0]
    ends = {each.partition(b"</think>")[0] for each in written}
    assert all(each.count(b"</think>") == 1 and not each.partition(b"</think>")[2].strip() for each in written)
    assert all(whole.startswith(each) for each in ends)
    assert whole in ends


@pytest.mark.parametrize("tokenizer", ["bytes", "unigram with bytes"])
def test_a_budget_shorter_than_the_opening_tag_leaves_the_tag_whole(tokenizer: str, tables: Path) -> None:
    script = " <think>so it is 4</think> The cat sat. James went "
    for budget in (0, 3, 7, 11):
        one = member(tokenizer, script, 1, thinking_budget=budget)
        length = len(one.vocabulary.continue_ids(script.encode()))
        # The script begins where the length of the prompt in the ring says.
        prompt = one.vocabulary.continue_ids(b"x" * 99)[:1] * length
        ensemble = Ensemble([one], cache_dir=tables)
        made = [
            dict(ensemble.generate_each([[prompt]], Settings(TOKENS), batch))[0]
            for batch in (Batch(1), Batch(1, draft=0))
        ]
        assert made[0] == made[1]
        (thought,) = made[0].thinking
        assert thought is not None
        written = b"".join(one.vocabulary.token_bytes(index) or b"" for index in thought.tokens)
        assert written.strip().startswith(b"<think>")
        assert written.strip().endswith(b"</think>")
        assert "so it is 4".startswith(thought.text)


def test_a_member_that_never_ends_its_thinking_is_closed_at_the_limit_of_the_text(tables: Path) -> None:
    endless = member("unigram with bytes", "it goes on and on ", 2)
    (made,) = apart([thinkers()[0], endless], PROMPTS[:1], tables)
    thought = made.thinking[1]
    assert thought is not None
    assert thought.finish_reason == "length"
    assert len(thought.tokens) >= TOKENS
    assert made.text


def test_without_room_for_an_answer_the_text_is_cut_off(tables: Path) -> None:
    endless = member("bytes", "it goes on and on ", 2)
    (made,) = apart([endless, thinkers()[1]], PROMPTS[:1], tables)
    assert (made.text, made.tokens, made.finish_reason) == ("", (), "length")
    assert made.new_tokens > TOKENS


def test_a_stop_string_ends_the_answer_and_not_the_thinking(tables: Path) -> None:
    ensemble = Ensemble(thinkers()[:1], cache_dir=tables, think="apart")
    (made,) = ensemble.generate(PROMPTS[:1], max_new_tokens=TOKENS, stop=["it is", "\n\n", " and"])
    (thought,) = made.thinking
    assert thought is not None
    assert "it is" in thought.text
    assert made.text == "The cat sat. James"


def test_a_token_that_ends_the_marker_and_begins_the_answer_is_parted(tables: Path) -> None:
    one = member(byte_tokenizer(("k>The", "4</")), "so it is 4</think>The cat sat. James and Anna went ")
    (made,) = apart([one], PROMPTS[:1], tables)
    (thought,) = made.thinking
    assert thought is not None
    assert thought.text.endswith("so it is 4")
    assert b"".join(one.vocabulary.token_bytes(index) or b"" for index in thought.tokens).endswith(b"4</think>")
    assert [made.text] == by_hand([one], PROMPTS[:1], tables)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_all_ways_to_decode_write_the_same_texts(temperature: float, tables: Path) -> None:
    ensemble = Ensemble(thinkers(), cache_dir=tables, think="apart")
    settings = Settings(TOKENS, stop=(" and",), temperature=temperature, seed=3)
    plain = decode(ensemble, PROMPTS[:1], settings)
    assert differences(ensemble, PROMPTS[:1], settings, plain) == []
    assert any(each.text for each in plain)


def test_prompts_join_and_leave_while_others_think(tables: Path) -> None:
    """As `advisor serve` does it: what is written is what each prompt gets alone."""
    ensemble = Ensemble(thinkers()[:2], cache_dir=tables, think="apart")
    decoder, made = ensemble.decoder(Batch(2)), dict[int, str]()
    prompts = [ensemble.encode(each) for each in PROMPTS]
    for n in (0, 1, 2):
        decoder.add(n, prompts[n], Settings(TOKENS))
    assert (decoder.waiting, decoder.running) == ([0, 1, 2], {})
    for step in range(4 * TOKENS):
        if step == 5:
            assert (decoder.waiting, decoder.running) == ([2], {0: b"", 1: b""})
            decoder.remove(1)
            decoder.add(3, prompts[3], Settings(TOKENS))
        made |= {n: each.text for n, each in decoder.step() if isinstance(each, Generation)}
        if decoder.done:
            break
    assert [made[n] for n in (0, 2, 3)] == by_hand(thinkers()[:2], [PROMPTS[n] for n in (0, 2, 3)], tables)
    assert 1 not in made


def test_a_member_that_fails_while_it_thinks_ends_only_its_prompt(tables: Path) -> None:
    fine, broken = thinkers()[0], member("bytes", "so it is 4</think> The cat sat ", 7)
    words = broken.vocabulary.continue_ids(b" 30 = ?")

    def fail(_model: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        # Only the first prompt has this number.
        if words[1] in kwargs["input_ids"].flatten().tolist():
            output.logits[:] = torch.nan
        return output

    hook = broken.local.model.register_forward_hook(fail, with_kwargs=True)
    try:
        ensemble = Ensemble([fine, broken], cache_dir=tables, think="apart")
        decoder = ensemble.decoder(Batch(1))
        for n in (0, 2):
            decoder.add(n, ensemble.encode(PROMPTS[n]), Settings(TOKENS))
        made = {}
        while not decoder.done:
            made |= dict(decoder.step())
    finally:
        hook.remove()
    assert isinstance(made[0], MemberError)
    assert made[0].of == broken.name
    assert isinstance(made[2], Generation)
    assert made[2].text
