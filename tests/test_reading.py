"""Reading texts: the steps of a set at the places of given texts are those of the decoder's judge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import reference
import torch
from reference import ReferenceMember
from tiny import byte_tokenizer, tiny_model, unigram_tokenizer

from ensemble import reading
from ensemble.errors import MemberError
from ensemble.models.load import member_of
from ensemble.models.member import LocalMember
from ensemble.reading import GivenText, Reading, read, set_vocabulary, steps_of
from ensemble.vocabulary.joint import build

PROMPTS = ["What is 3 + 4?\nAnswer:", "The cat"]
TEXTS = [["  What is it? 12 + 30 = 42.", " The theory is naïve"], [" ing ting"]]


@cache
def members() -> tuple[LocalMember, ...]:
    made = [byte_tokenizer(("What", " is", "ing")), unigram_tokenizer(byte_fallback=True), byte_tokenizer((" the",))]
    return tuple(
        member_of(tiny_model(tokenizer, seed, hidden=8), tokenizer, name=f"m{seed}").local
        for seed, tokenizer in enumerate(made)
    )


def readings_of(member: LocalMember, ends: bool = True, rows: int = 2) -> list[Reading]:
    given = [[GivenText(text.encode(), ends) for text in each] for each in TEXTS]
    found = dict(read(member, [member.encode_prompt(prompt) for prompt in PROMPTS], given, rows))
    return [one for n in range(len(PROMPTS)) for one in found[n]]


def shared_places(judges: Sequence[ReferenceMember], text: bytes) -> list[tuple[int, int]]:
    """The places that all members have, as the number of the primary's id there, and bytes before it."""
    offset, places = 0, []
    for number, token in enumerate([*judges[0].continuation(text), None]):
        before = [judge.continuation(text[:offset]) for judge in judges]
        whole = [judge.continuation(text) for judge in judges]
        if all(own == ids[: len(own)] for own, ids in zip(before, whole, strict=True)):
            places.append((number, offset))
        offset += 0 if token is None else len(judges[0].token_bytes(token))
    return places


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (2, 0, 1)])
def test_the_steps_at_all_shared_places_are_those_of_decoding(
    order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With all tokens of each place, nothing is approximate.
    monkeypatch.setattr(reading, "LIKELIEST", 400)
    own = [members()[n] for n in order]
    judges = [ReferenceMember(each.model, each.tokenizer) for each in own]
    joint = build([each.vocabulary for each in members()])
    steps = steps_of([readings_of(each) for each in own], set_vocabulary(joint, order), 3)
    weights = [0.5, 0.3, 0.2][: len(own)]
    right = steps.right(weights).tolist()
    at, left_out = 0, 0
    for n, (prompt, text) in enumerate((prompt, text) for k, prompt in enumerate(PROMPTS) for text in TEXTS[k]):
        data = text.encode()
        ids = judges[0].continuation(data)
        places = shared_places(judges, data)
        left_out += len(ids) + 1 - len(places)
        for number, offset in places:
            wanted = reference.EOS if number == len(ids) else judges[0].token_bytes(ids[number])
            contexts = [judge.prompt(prompt) + judge.continuation(data[:offset]) for judge in judges]
            step = reference.step(judges, contexts, 3, weights, also=[wanted])
            assert int(steps.texts[at]) == n
            written = [entry for entry in step.union if step.ids[0][entry] is not None]
            expected = sorted([own[entry] for own in step.member_p] for entry in written)
            found = sorted(row for row in steps.members[:, at].T.tolist() if sum(row) > 0)
            assert torch.allclose(torch.tensor(found), torch.tensor(expected), atol=1e-6)
            assert right[at] == (step.emitted == step.ids[0][wanted])
            at += 1
    assert at == len(right) and left_out > 0
    assert steps.share == pytest.approx(at / (at + left_out))


def test_a_text_that_goes_on_has_no_step_at_its_end() -> None:
    own = members()[0]
    joint = build([own.vocabulary])
    counts = [len(steps_of([readings_of(own, ends)], joint, 3).texts) for ends in (True, False)]
    assert counts[0] == counts[1] + 3


def test_fewer_logits_change_probabilities_hardly(monkeypatch: pytest.MonkeyPatch) -> None:
    order = (0, 2)
    joint = set_vocabulary(build([each.vocabulary for each in members()]), order)
    few = steps_of([readings_of(members()[n]) for n in order], joint, 3)
    monkeypatch.setattr(reading, "LIKELIEST", 400)
    all_ = steps_of([readings_of(members()[n]) for n in order], joint, 3)
    assert torch.equal(few.goes_on, all_.goes_on)
    # These random models are far flatter than trained ones, whose 64th token has next to no probability.
    assert float((few.members - all_.members).abs().max()) < 0.1


def test_texts_are_read_alike_in_batches_of_any_size_and_from_the_cache() -> None:
    one, many = (readings_of(members()[1], rows=rows) for rows in (1, 50))
    kept = [Reading.unpacked(each.packed()) for each in many]
    for a, b, c in zip(one, many, kept, strict=True):
        assert torch.equal(a.ids[:, :10], b.ids[:, :10]) and torch.allclose(a.logits[:, :64], b.logits[:, :64])
        assert all(
            torch.equal(getattr(b, name), getattr(c, name)) for name in ("offsets", "following", "ids", "logits")
        )


def test_logits_that_are_no_numbers_are_an_error_that_names_the_model() -> None:
    tokenizer = byte_tokenizer()
    model = tiny_model(tokenizer, 5, hidden=8)
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(torch.nan)
    broken = member_of(model, tokenizer, name="broken").local
    with pytest.raises(MemberError, match="broken: its logits are not numbers"):
        readings_of(broken)


def test_places_that_a_context_does_not_hold_are_left_out() -> None:
    tokenizer = byte_tokenizer()
    small = member_of(tiny_model(tokenizer, 3, hidden=8, positions=40), tokenizer, name="small").local
    whole, cut = (
        readings_of(member_of(tiny_model(tokenizer, 3, hidden=8, positions=n), tokenizer, name="m").local)
        for n in (200, 40)
    )
    assert small.context == 40
    assert [len(each.offsets) for each in cut] == [
        min(len(own.offsets), 40 - len(PROMPTS[n // 2]) + 1) for n, own in enumerate(whole)
    ]
    assert Reading.unpacked(Reading.empty().packed()).ids.shape == (0, 64)
