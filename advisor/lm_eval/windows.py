"""Windows of a whole text that fit every member's context, for the text's log-probability from its first token on.

In the first window the text follows BOS, or EOS where a tokenizer has no BOS. Each later window has one token of the
text before it as its prompt, and the last window as many as fit. Every token is scored once. lm-eval does the same for
one model, and its own function cuts the primary's tokens; the other members read the same text in their tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ensemble.errors import InputError
from ensemble.models.member import Member
from ensemble.score.long_text import Passage

_UNLIMITED = 2048
"""Tokens of a window for models without a context limit, as in lm-eval."""
_START = -1
"""Placeholder for the token before a text, which differs between members; not a token id."""


def windows(members: Sequence[Member], text: str) -> list[Passage]:
    """A text as passages, each with the prompts before it.

    Args:
        members: The primary first.
        text: Any text.

    Raises:
        InputError: A member's tokenizer has neither BOS nor EOS, or a context has no room for any window.
    """
    primary = members[0].vocabulary
    # The primary's tokens decide the cuts, so that a run with one model cuts as lm-eval does.
    tokens = primary.continue_ids(primary.opening(text).encode())
    length = min(member.context or _UNLIMITED for member in members)
    while True:
        passages = [_passage(members, before, after) for before, after in _cut(tokens, length)]
        if all(passages):
            return [passage for passage in passages if passage is not None]
        if length == 1:
            raise InputError("lm-eval: the members' contexts have no room for one token of the primary")
        # Another member needs more tokens than the primary for the same text, so all windows become shorter.
        length = max(1, length * 3 // 4)


def _cut(tokens: Sequence[int], length: int) -> Iterator[tuple[list[int], list[int]]]:
    """For each window, the tokens before it and its own tokens."""
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    return map(make_disjoint_window, get_rolling_token_windows(list(tokens), _START, length, context_len=1))


def _passage(members: Sequence[Member], before: Sequence[int], after: Sequence[int]) -> Passage | None:
    """A window; None where a member's context has no room for it."""
    primary = members[0].vocabulary
    before_bytes, own_bytes = (
        b"".join(primary.token_bytes(token) or b"" for token in part) for part in (before, after)
    )
    prompts = []
    for number, member in enumerate(members):
        prompt = (
            [] if before == [_START] else list(before) if number == 0 else member.vocabulary.continue_ids(before_bytes)
        )
        # For an encoder-decoder, `beginning` also has the encoder's row, which every prompt needs.
        if not prompt or member.seq2seq is not None:
            prompt = [*member.beginning(), *prompt]
        if number:
            room = len(member.vocabulary.continue_ids(own_bytes))
            if member.context is not None and room >= member.context:
                return None
            prompt = member.shorten(prompt, room)
        prompts.append(prompt)
    return Passage(prompts, after)
