"""Decoding under a grammar: at each step only those entries count after which the text can still become valid.

The grammar is a JSON schema or a regular expression, and llguidance follows it. It sees the entries of the joint
vocabulary as its tokens, so one state serves all members of a text. Each member's candidates are those ids whose entry
is allowed; with them a step of any method goes on as always. So each member's probabilities are those that it has given
the grammar, and a member that wants nothing valid still ranks what the others want.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ensemble.common.grammar import Grammar, GrammarTokens
from ensemble.errors import MemberError
from ensemble.runtime.logits import Logits
from ensemble.step.distribution import Distribution
from ensemble.vocabulary.joint import NONE, JointVocabulary, texts_of
from ensemble.vocabulary.token_bytes import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


_KEPT_BYTES = 2**26
"""Memory of the grammars that are kept for the next texts."""


class GrammarState:
    """How far a text has come in its grammar."""

    def __init__(self, grammar: Grammar, vocabularies: Sequence[Vocabulary]) -> None:
        self._matcher = _matcher(grammar, tuple(vocabularies)).deep_copy()
        self._check()

    @property
    def is_complete(self) -> bool:
        """Whether the text is valid, and nothing can follow."""
        return self._matcher.is_stopped()

    def can_continue(self, own: Sequence[int]) -> bool:
        """Whether some of these entries may follow the text, those that the primary's ids have."""
        mask = self._mask()
        return any(mask[entry] for entry in own if entry != NONE)

    def allowed(self, draft: Sequence[int] = ()) -> list[bytes]:
        """For the text, and with each token of a draft, a byte for each entry: 0 where it may not follow.

        The draft is followed as far as the grammar allows it: behind that no text will come.
        """
        places = [self._mask()]
        valid = self._matcher.validate_tokens([*draft]) if draft else 0
        taken = 0
        for entry in draft[:valid]:
            taken += 1
            # The last token may complete the text.
            if not self._matcher.consume_token(entry) or self._matcher.is_stopped():
                break
            places.append(self._mask())
        if taken:
            self._matcher.rollback(taken)
        return places

    def advance(self, entries_of_token: Sequence[int]) -> None:
        """Append the entries of an emitted token; MemberError if the grammar has become too large to follow."""
        self._matcher.consume_tokens([*entries_of_token])
        self._check()

    def _mask(self) -> bytes:
        mask = self._matcher.compute_logit_bias()
        self._check()
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MemberError(f"the grammar cannot be followed: {self._matcher.get_error().splitlines()[0]}")


@lru_cache(maxsize=4)  # to sort the entries of large vocabularies into a tree takes a second
def _tokenizer(vocabularies: tuple[Vocabulary, ...]) -> LLTokenizer:
    """The joint vocabulary as llguidance's tokens: its entries by their numbers."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(GrammarTokens(texts_of(vocabularies))))


_lock = threading.Lock()
_built: OrderedDict[tuple[Grammar, tuple[Vocabulary, ...]], LLMatcher] = OrderedDict()
"""What follows a grammar from the beginning of a text, to be copied for each, of the grammars that came last."""


def _matcher(grammar: Grammar, vocabularies: tuple[Vocabulary, ...]) -> LLMatcher:
    """Build it, or take it from those that are kept. To build one takes milliseconds, and up to a second."""
    from llguidance import LLMatcher

    key = (grammar, vocabularies)
    with _lock:
        if key in _built:
            _built.move_to_end(key)
            return _built[key]
    matcher = LLMatcher(_tokenizer(vocabularies), grammar.source, log_level=0)
    with _lock:
        _built[key] = matcher
        # The check measured a grammar before its texts, which with 100,000 tokens made it 3 times as large.
        while len(_built) > 1 and sum(4 * each.size + 2**20 for each, _ in _built) > _KEPT_BYTES:
            _built.popitem(last=False)
    return matcher


class Allowed:
    """Which entries the rows of a step may choose, for the members' logits and for the outcome.

    ``masks`` are those of :meth:`GrammarState.allowed` for each row; None where all are allowed.
    """

    def __init__(self, masks: Sequence[bytes | None], joint: JointVocabulary) -> None:
        self._joint = joint
        free = b"\1" * joint.size
        # The last column is for ids that are no candidates.
        rows = b"".join((free if mask is None else mask) + b"\0" for mask in masks)
        table = torch.frombuffer(bytearray(rows), dtype=torch.uint8).view(len(masks), joint.size + 1)
        self._entries = table.to(joint.places.device) != 0

    def restrict(self, member: int, logits: Logits, rows: Sequence[int]) -> None:
        """Give minus infinity, in place, to ids that are not allowed in logits [rows, V] of a member."""
        allowed = self._of(rows)[:, self._joint.entries[member]]
        # A member that can write nothing of what is allowed keeps its own candidates, of which none can win.
        allowed |= ~allowed.any(dim=1, keepdim=True)
        if isinstance(logits, Tensor):
            logits.masked_fill_(~allowed, -torch.inf)
        else:
            logits.restrict(allowed)

    def decide(self, step: Distribution, rows: Sequence[int]) -> Distribution:
        """A step in which only allowed entries can win.

        The primary may spell an entry with an id whose bytes another one has.
        """
        tables = self._joint.members[0]
        size = len(tables.entry_of)
        own = tables.entry_of[step.ids.clamp(0, size - 1)]
        entry = torch.where(step.ids < size, own, step.ids - size)
        can_win = self._of(rows).gather(1, torch.where(entry == NONE, self._joint.size, entry))
        return replace(step, ids=step.ids.masked_fill(~can_win, NONE))

    def _of(self, rows: Sequence[int]) -> Tensor:
        return self._entries if len(rows) == len(self._entries) else self._entries[[*rows]]
