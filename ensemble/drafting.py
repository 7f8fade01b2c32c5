"""Drafting: the primary writes ahead, and the others read its draft in one pass.

The members agree on most steps. So most of what the primary would write alone is what the ensemble writes, and a member
that reads eight tokens at once takes hardly longer than for one. No emitted token changes: each is decided by the rule,
from every member's logits at its place. A draft ends where the primary is unsure, since there the others may want
something else and what follows would be thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.joint import EOS, NONE, MemberTables

LONGEST = 12
"""Tokens of a draft."""
SURE = 0.7
"""Probability that the primary gives to the next token of a draft at the least."""


@dataclass(frozen=True, slots=True)
class Proposer:
    """The primary's own greedy choice, for as long as it is sure.

    Attributes:
        tables: The primary's side of the joint vocabulary. No draft goes beyond EOS or an id that is no candidate.
        sure: Probability below which a draft ends.
    """

    tables: MemberTables
    sure: float = SURE

    def __call__(self, logits: Tensor) -> int | None:
        """The next token after logits [1, V]; None to end the draft."""
        best, token = logits.max(dim=1)
        sure = (best - logits.logsumexp(dim=1)).exp() >= self.sure
        # One copy to the host for all that decides. A wrong guess costs time and changes nothing, so logits may be raw.
        chosen = int(torch.where(sure & (self.tables.entry_of[token] > EOS), token, NONE))
        return None if chosen == NONE else chosen
