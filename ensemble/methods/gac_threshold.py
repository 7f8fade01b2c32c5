"""GaC with a threshold: "Breaking the Ceiling of the LLM Community" (Yu et al., EMNLP 2024), Eq. 5.

The primary is the gate. Where the largest of its probabilities is above the threshold it decides alone, and the others
do nothing; otherwise the step is GaC's. The paper's threshold in most runs is 0.5. Threshold 1 is GaC; with 0 the
primary writes alone, and the others are never run.

The paper gives up the waiting members' caches. Here they are kept: a member that is asked reads in one pass all that it
missed. In a batch all rows are brought up to date when one asks.
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
    when="to pay for large members only at the steps where a small primary is unsure",
)


@dataclass(frozen=True, slots=True)
class Options:
    """When the others are asked.

    Attributes:
        threshold: From 0 to 1: the primary decides alone where its largest probability is above it.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise InputError(f"threshold {self.threshold}: give a probability, from 0 to 1")


def make(setup: Setup, options: Options) -> TokenRule:
    """GaC behind this gate."""
    primary = JointVocabulary(setup.joint.size, setup.joint.members[:1])
    return TokenRule(
        over_all(setup.joint, setup.weights),
        over_all(primary, (1.0,)),
        needs_others=unsure(setup.joint.members[0], options.threshold),
    )
