"""The protocol of token-level methods: at every step the members' logits become one distribution. And the gates.

A method's module has ``make(setup, options) -> TokenRule``, called once for an ensemble. It raises InputError if the
members do not fit the method; the message names the method, what it needs and what the members lack. Nothing has been
run by then. Greedy decoding, sampling, contexts, batches, drafts, traces and counts are the same for all methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ensemble.runtime.logits import Logits
from ensemble.runtime.remote_runner import RemoteRows
from ensemble.step.distribution import Distribution, candidate_logits, greedy
from ensemble.vocabulary.joint import JointVocabulary, MemberTables

if TYPE_CHECKING:
    from ensemble.models.member import Member

ENOUGH = 0.5
"""The mean probability above which the primary's token is taken, whatever single members want."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a rule is made from.

    Attributes:
        members: The primary first.
        joint: Their joint vocabulary, on the primary's device.
        k: Candidates of each member, for methods that take only some.
        weights: One for each member, summing to 1.
    """

    members: Sequence[Member]
    joint: JointVocabulary
    k: int
    weights: tuple[float, ...]


class Combine(Protocol):
    """A function that turns the members' logits into a distribution over entries of the joint vocabulary."""

    def __call__(self, logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        """Combine a step for a batch. Rows do not depend on each other.

        Args:
            logits: For each member its next-token logits [B, V_i], which may be changed in place; see
                :mod:`ensemble.runtime.logits`.
            also: [B, n] entries to score. The distribution includes them, and is in float64, so that no probability
                that matters is too small for its type.
        """
        ...


AppendsOnly = Callable[[int, int], bool]
"""For a row and an id of the primary: whether that token would leave every other member's last ids unchanged
(``C_i`` of the text is a prefix of ``C_i`` of the text with the token)."""


@dataclass(frozen=True, slots=True)
class TokenRule:
    """A token-level method, made for some members.

    Attributes:
        combine: The distribution of a step.
        primary_alone: The primary's distribution, from its logits alone, for the rows that a gate leaves to it. A
            gate needs it.
        gate: From a step, the rows in which the members' combination counts. None: it counts in all.
        needs_others: A gate before that: from the primary's logits [B, V], which rows [B] need the other members. They
            run for these rows only, and then catch up. None: they run at every step.
        revise: Changes a combined distribution before a token is chosen from it. Scoring does not use it. None: nothing
            changes.
        only_greedy_remote: Whether members in other processes allow greedy decoding only: anything else would need the
            probabilities of all entries.
        combine_greedy: Like ``combine``, for steps without a gate that need only the likeliest entry: the
            probabilities may be rough. None: ``combine`` is used.
    """

    combine: Combine
    primary_alone: Combine | None = None
    gate: Callable[[Distribution, AppendsOnly], list[bool]] | None = None
    needs_others: Callable[[Logits], Tensor] | None = None
    combine_greedy: Combine | None = None
    revise: Callable[[Distribution], Distribution] | None = None
    only_greedy_remote: bool = False


def needed_and_safe(step: Distribution, appends_only: AppendsOnly) -> list[bool]:
    """The gate of :mod:`ensemble.methods.safe`: for each row, whether the members' combination counts."""
    # By the rule of the ensemble's own choice, so that ties count as agreement.
    own = greedy(replace(step, mean=step.members[0]))[:, None]
    agreed = step.members.gather(2, own.expand(len(step.members), -1, -1)) == step.members.amax(dim=2, keepdim=True)
    # "not >" instead of "<=": where a probability is NaN the gate opens, and the step reports it.
    needed = ~(agreed.all(dim=0) | (step.mean.gather(1, own) > ENOUGH))
    # One copy from the device for both.
    rows = torch.cat([step.ids.gather(1, own), needed], dim=1).tolist()
    return [bool(needs) and appends_only(row, token) for row, (token, needs) in enumerate(rows)]


def unsure(tables: MemberTables, threshold: float) -> Callable[[Logits], Tensor]:
    """A gate on the primary's logits (GaC's Eq. 5): it opens where the largest probability is at most a threshold."""

    def needs_others(logits: Logits) -> Tensor:
        if not isinstance(logits, Tensor):
            return _unsure_remote(logits, threshold)
        z = candidate_logits(logits, tables)
        largest = (z.amax(dim=1) - z.logsumexp(dim=1)).exp()
        # "not >" instead of "<=": where a logit is NaN the others run, and the step reports it.
        return ~(largest > threshold)

    return needs_others


def _unsure_remote(logits: RemoteRows, threshold: float) -> Tensor:
    """The rows of a primary in another process whose largest probability is at most a threshold."""
    values, _ = logits.top(1)
    likeliest = values[:, 0].exp()
    # The server's probabilities are of all ids, and the threshold is one of the candidates.
    smallest, largest = logits.shares(exact=False)
    is_open = likeliest / largest <= threshold
    unknown = is_open & (likeliest / smallest > threshold)
    if rows := unknown.nonzero()[:, 0].tolist():
        share, _ = logits[rows].shares(exact=True)
        is_open[unknown] = ~(likeliest[unknown] / share > threshold)
    return is_open
