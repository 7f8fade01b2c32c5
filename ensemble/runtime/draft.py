"""Drafting: the primary writes some tokens ahead, and the other members check them in one pass.

The members agree on most steps, so most of what the primary would write alone is what the ensemble writes. Reading
eight tokens at once takes a member hardly longer than reading one. Drafting changes no emitted token: the method
decides each one, from every member's logits at its position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ensemble.vocabulary.joint import EOS, NONE, MemberTables

MAX_DRAFT_TOKENS = 24
"""Tokens of the longest draft."""
MIN_PROBABILITY = 0.5
"""The smallest probability that the primary may give to a drafted token."""
_FIRST_DRAFT_TOKENS = 8
"""Tokens of the first draft, when it is not yet known how often the others agree."""


class Drafter:
    """Chooses the tokens of a draft: the primary's greedy choice, while its probability is high.

    Args:
        tables: The primary's side of the joint vocabulary. A draft ends before EOS and before an id that is no
            candidate.
        longest: Tokens of the longest draft.
        min_probability: A draft ends before a token with a smaller probability. The others may want another token
            there, and what follows it would be lost.

    Attributes:
        max_tokens: Tokens of the next draft, at most.
    """

    def __init__(
        self, tables: MemberTables, longest: int = MAX_DRAFT_TOKENS, min_probability: float = MIN_PROBABILITY
    ) -> None:
        self._tables = tables
        self._longest = longest
        self.min_probability = min_probability
        self.max_tokens = min(_FIRST_DRAFT_TOKENS, longest)

    def __call__(self, logits: Tensor) -> int | None:
        """The next token after logits [1, V]; None ends the draft."""
        # The maximum and one sum: a softmax would write a row as long as the vocabulary.
        best, token = logits.max(dim=1)
        is_sure = (best - logits.logsumexp(dim=1)).exp() >= self.min_probability
        # The logits may be raw: a wrong guess costs time and changes no emitted token.
        chosen = torch.where(is_sure & (self._tables.entry_of[token] > EOS), token, NONE)
        # One copy from the device, since each copy waits for it.
        index = int(chosen)
        return None if index == NONE else index

    def adapt(self, drafted: int, accepted: int) -> None:
        """Set the length of the next draft: shorter after a rejected token, longer after a draft accepted as a whole.

        So members that want different things lose little by drafting.
        """
        self.max_tokens = accepted + 1 if accepted < drafted else min(self._longest, max(self.max_tokens, 2 * drafted))
