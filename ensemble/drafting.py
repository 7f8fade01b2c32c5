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

from ensemble.joint import MemberTables
from ensemble.methods.unite import candidate_logits

LONGEST = 12
"""Tokens of a draft."""
SURE = 0.7
"""Probability that the primary gives to the next token of a draft at the least."""


@dataclass(frozen=True, slots=True)
class Proposer:
    """The primary's own greedy choice, for as long as it is sure.

    Attributes:
        tables: The primary's side of the joint vocabulary.
        eos: Its id of EOS, which no draft goes beyond.
        sure: Probability below which a draft ends.
    """

    tables: MemberTables
    eos: int
    sure: float = SURE

    def __call__(self, logits: Tensor) -> int | None:
        """The next token after logits [1, V]; None to end the draft."""
        z = candidate_logits(logits, self.tables)
        best, token = z.max(dim=1)
        probability = (best - z.logsumexp(dim=1)).exp()
        # One copy to the host for both.
        chosen = int(torch.where(probability >= self.sure, token, self.eos))
        return None if chosen == self.eos else chosen
