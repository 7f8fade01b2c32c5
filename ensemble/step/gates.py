"""Gates: in which rows of a step the members' combination counts. Elsewhere the primary decides alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits, greedy
from ensemble.step.token_method import EndsTogether
from ensemble.vocabulary.joint import MemberTables

ENOUGH = 0.5
"""Mean probability of the primary's token from which it stands, whatever single members want."""


def needed_and_safe(step: Distribution, ends_together: EndsTogether) -> list[bool]:
    """Whether each row is to be ensembled; see :mod:`ensemble.methods.safe`."""
    own = greedy(replace(step, mean=step.members[0]))[:, None]
    agreed = step.members.gather(2, own.expand(len(step.members), -1, -1)) == step.members.amax(dim=2, keepdim=True)
    # Not the other way round: where a logit is no number the gate is open, and the step says so.
    needed = ~(agreed.all(dim=0) | (step.mean.gather(1, own) >= ENOUGH))
    found = torch.cat([step.ids.gather(1, own), needed], dim=1).tolist()
    return [bool(needs) and ends_together(row, token) for row, (token, needs) in enumerate(found)]


def unsure(tables: MemberTables, threshold: float) -> Callable[[Logits], list[bool]]:
    """Whether the largest probability in each row of logits [B, V] is at most a threshold (GaC's Eq. 5)."""

    def asks(logits: Logits) -> list[bool]:
        z = candidate_logits(whole([logits])[0], tables)
        largest = (z.amax(dim=1) - z.logsumexp(dim=1)).exp()
        # Where a logit is no number the others are asked, and the step says so.
        open_: list[bool] = (~(largest > threshold)).tolist()
        return open_

    return asks
