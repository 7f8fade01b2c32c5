"""The protocol of token-level methods: at every step the members' logits become one distribution.

A module's ``make(setup, options) -> TokenRule`` is called once for an ensemble. It raises InputError, naming the
method, what it needs and what the members lack, where they do not fit; nothing has been run by then. All else is
shared: greedy decoding and sampling from the distribution, contexts, batches, drafts, traces and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from ensemble.models.member import Member
    from ensemble.runtime.logits import Logits
    from ensemble.step.distribution import Distribution
    from ensemble.vocabulary.joint import JointVocabulary


@dataclass(frozen=True, slots=True)
class Setup:
    """What a rule is made from.

    Attributes:
        members: The primary first.
        joint: Their joint vocabulary, on the primary's device.
        k: Candidates that each member brings, where a method restricts itself to some.
        weights: One for each member, summing to 1.
    """

    members: Sequence[Member]
    joint: JointVocabulary
    k: int
    weights: tuple[float, ...]


class Combine(Protocol):
    """How the members' logits become a distribution over entries of the joint vocabulary."""

    def __call__(self, logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        """Combine a step for a batch; rows do not see each other.

        Args:
            logits: For each member its next-token logits [B, V_i], which may be changed in place, or what stands for
                them; see :mod:`ensemble.runtime.logits`.
            also: [B, n] entries that are to be scored: the distribution holds them besides, where it does not hold all
                anyway, and is in float64, so that no probability that matters is too small for its type.
        """
        ...


EndsTogether = Callable[[int, int], bool]
"""For a row and an id of the primary: whether every member would go on with new ids after the text, its last ones
unchanged, if that were emitted (``C_i`` of the text is the beginning of ``C_i`` of both)."""


@dataclass(frozen=True, slots=True)
class TokenRule:
    """A token-level method, made for some members.

    Attributes:
        combine: The distribution of a step.
        alone: The primary's own, from its logits alone: what counts where a gate is shut. Needed with a gate.
        counts: A gate: from a step, and whether tokenizations end together, the rows in which it counts. None: all.
        asks: A gate before that: from the primary's logits [B, V], the rows for which the others are needed. Where none
            is, they are not run; where one is, they catch up in all rows. None: they are run at every step.
        decide: As ``combine``, where the likeliest entry is all that is wanted and there is no gate: the probabilities
            may be rough. None: ``combine`` does it.
    """

    combine: Combine
    alone: Combine | None = None
    counts: Callable[[Distribution, EndsTogether], list[bool]] | None = None
    asks: Callable[[Logits], list[bool]] | None = None
    decide: Combine | None = None
