"""A whole text in windows that fit every member's context, for its log-probability from its first token on.

In the first window a text begins behind BOS, or EOS where there is none; each later one has a token of the text before
it, the last one as many as there is room for. Every token is scored once. That is how lm-eval has it for one model, and
its own function cuts the primary's tokens; the others read the same text in theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ensemble.errors import InputError
from ensemble.models.member import Member
from ensemble.score.long_text import Passage

_UNLIMITED = 2048
"""Tokens of a window for models whose context has no limit, as lm-eval has it."""
_START = -1
"""Stands for what a text begins behind; no id."""


def windows(members: Sequence[Member], text: str) -> list[Passage]:
    """A text as passages, each to be scored behind its prompts.

    Args:
        members: The primary first.
        text: Any text.

    Raises:
        InputError: A member's tokenizer has nothing that a text can begin behind, or a context is too small for any
            window.
    """
    primary = members[0].vocabulary
    tokens = primary.continue_ids(primary.opening(text).encode())
    length = min(member.context or _UNLIMITED for member in members)
    while True:
        found = [_passage(members, before, after) for before, after in _cut(tokens, length)]
        if all(found):
            return [passage for passage in found if passage is not None]
        if length == 1:
            raise InputError("lm-eval: the members' contexts have no room for a single token of the primary")
        # Another member writes the text with more tokens than the primary.
        length = max(1, length * 3 // 4)


def _cut(tokens: Sequence[int], length: int) -> Iterator[tuple[list[int], list[int]]]:
    """For each window the tokens before it and its own."""
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    return map(make_disjoint_window, get_rolling_token_windows(list(tokens), _START, length, context_len=1))


def _passage(members: Sequence[Member], before: Sequence[int], after: Sequence[int]) -> Passage | None:
    """A window; None where a member's context cannot hold it."""
    primary = members[0].vocabulary
    behind, own = (b"".join(primary.token_bytes(token) or b"" for token in part) for part in (before, after))
    prompts = []
    for number, member in enumerate(members):
        read = [] if before == [_START] else list(before) if number == 0 else member.vocabulary.continue_ids(behind)
        if not read or member.seq2seq is not None:
            read = [*member.beginning(), *read]
        if number:
            room = len(member.vocabulary.continue_ids(own))
            if member.context is not None and room >= member.context:
                return None
            read = member.shorten(read, room)
        prompts.append(read)
    return Passage(prompts, after)
