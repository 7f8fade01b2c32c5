"""How long a draft may be, and where it ends; that drafts change nothing is in `test_decoder`."""

from __future__ import annotations

import torch

from ensemble.runtime.draft import MAX_DRAFT_TOKENS, Drafter
from ensemble.vocabulary.joint import EOS, NONE, MemberTables


def drafter(longest: int = MAX_DRAFT_TOKENS) -> Drafter:
    """Id 0 is EOS, ids 1 and 2 are candidates, and id 3 is none."""
    tables = MemberTables(
        torch.tensor([EOS, 1, 2, NONE]), torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([0])
    )
    return Drafter(tables, longest)


def wants(token: int, probability: float) -> torch.Tensor:
    """Logits [1, 4] with one token's probability, and the rest shared by the others."""
    chances = torch.full((1, 4), (1 - probability) / 3)
    chances[0, token] = probability
    return chances.log()


def test_a_draft_goes_on_while_the_primary_is_sure() -> None:
    assert drafter()(wants(2, 0.9)) == 2
    assert drafter()(wants(2, 0.4)) is None


def test_a_draft_ends_before_eos_and_before_what_is_no_candidate() -> None:
    assert drafter()(wants(0, 0.99)) is None
    assert drafter()(wants(3, 0.99)) is None


def test_a_refused_draft_makes_the_next_one_about_as_long_as_what_stood() -> None:
    drafting = drafter()
    drafting.adapt(8, drafted=8, accepted=2, ended=False)
    assert drafting.max_tokens == 3
    drafting.adapt(8, drafted=3, accepted=0, ended=False)
    assert drafting.max_tokens == 1


def test_drafts_grow_while_all_of_them_stand_up_to_the_longest() -> None:
    drafting = drafter()
    seen = [drafting.max_tokens]
    while drafting.max_tokens < MAX_DRAFT_TOKENS:
        drafting.adapt(8, drafted=drafting.max_tokens, accepted=drafting.max_tokens, ended=False)
        seen.append(drafting.max_tokens)
    assert seen == sorted(set(seen))
    drafting.adapt(8, drafted=MAX_DRAFT_TOKENS, accepted=MAX_DRAFT_TOKENS, ended=False)
    assert drafting.max_tokens == MAX_DRAFT_TOKENS


def test_a_short_draft_that_stood_does_not_shorten_the_next() -> None:
    drafting = drafter()
    first = drafting.max_tokens
    drafting.adapt(8, drafted=1, accepted=1, ended=False)
    assert drafting.max_tokens == first


def test_no_draft_is_longer_than_asked_for() -> None:
    assert drafter(longest=2).max_tokens == 2
