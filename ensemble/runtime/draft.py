"""Drafting: the primary writes ahead, and the others read its draft in one pass.

The members agree on most steps. So most of what the primary would write alone is what the ensemble writes, and a member
that reads eight tokens at once takes hardly longer than for one. No emitted token changes: each is decided by the rule,
from every member's logits at its place. A draft ends where the primary is unsure, since there the others may want
something else and what follows would be thrown away. After a draft that the others refused somewhere the next ones are
shorter, so that members that want different things lose little by drafting.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ensemble.vocabulary.joint import EOS, NONE, MemberTables

LONGEST = 24
"""Tokens of a draft."""
_FIRST = 8
"""Tokens of the first draft, when it is not known yet how often the others agree."""
SURE = 0.5
"""Probability that the primary gives to the next token of a draft at the least."""


@dataclass(slots=True)
class Proposer:
    """The primary's own greedy choice, for as long as it is sure.

    Attributes:
        tables: The primary's side of the joint vocabulary. No draft goes beyond EOS or an id that is no candidate.
        longest: Tokens that the longest draft has.
        sure: Probability below which a draft ends.
        most: Tokens that the next draft may have.
    """

    tables: MemberTables
    longest: int = LONGEST
    sure: float = SURE
    most: int = field(init=False)

    def __post_init__(self) -> None:
        self.most = min(_FIRST, self.longest)

    def __call__(self, logits: Tensor) -> int | None:
        """The next token after logits [1, V]; None to end the draft."""
        best, token = logits.max(dim=1)
        sure = (best - logits.logsumexp(dim=1)).exp() >= self.sure
        # One copy to the host for all that decides. A wrong guess costs time and changes nothing, so logits may be raw.
        chosen = int(torch.where(sure & (self.tables.entry_of[token] > EOS), token, NONE))
        return None if chosen == NONE else chosen

    def learn(self, drafted: int, accepted: int) -> None:
        """Shorten the next draft to about what stood of this one, and lengthen it again where all stood."""
        self.most = accepted + 1 if accepted < drafted else min(self.longest, max(self.most, 2 * drafted))
