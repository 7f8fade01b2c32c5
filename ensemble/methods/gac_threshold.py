"""GaC with a threshold: "Breaking the Ceiling of the LLM Community" (Yu et al., EMNLP 2024), Eq. 5.

The primary is the gate. If its largest probability is above the threshold, it decides alone and the other members do
not run; otherwise the step is GaC's. The paper mostly uses a threshold of 0.5. With threshold 1 every step is GaC's;
with 0 the primary writes alone and the other members never run.

The paper discards the caches of members that wait. Here they are kept: when a member runs again, it reads all tokens
that it missed in one pass. In a batch, a member reads a text when that text needs it for the first time, and never if
none of its steps does. The texts that a member has read share a cache, so they catch up together.
"""

from __future__ import annotations

from dataclasses import dataclass

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods.gac import over_all
from ensemble.step.token_method import Setup, TokenRule, unsure
from ensemble.vocabulary.joint import JointVocabulary

METHOD = Method(
    level="token",
    summary="GaC only where the primary's largest probability is at most a threshold (Yu et al., EMNLP 2024)",
    when="to run large members only at the steps where a small primary is unsure",
    distributed=True,
    gated=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of GaC with a threshold.

    Attributes:
        threshold: From 0 to 1. The primary decides alone where its largest probability is above it.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise InputError(f"threshold {self.threshold}: give a probability, from 0 to 1")


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule."""
    # The primary's own distribution over the joint vocabulary, for the steps where it decides alone.
    primary = JointVocabulary(setup.joint.size, setup.joint.members[:1])
    return TokenRule(
        over_all(setup.joint, setup.weights, setup.k),
        over_all(primary, (1.0,), setup.k),
        needs_others=unsure(setup.joint.members[0], options.threshold),
        only_greedy_remote=True,
    )
