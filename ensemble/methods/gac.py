"""GaC, generation as classification: "Breaking the Ceiling of the LLM Community" (Yu et al., EMNLP 2024), Eq. 1 to 4.

The vocabularies are joined (Eq. 1), each member's probabilities go to the entries of its own tokens (the matrices of
Eq. 3, held as tables), and their weighted mean decides; weights are equal unless given (section 4.3).

Where the paper is silent, or this differs from it:

- Two tokens are the same where their bytes are. Special tokens but EOS, and ids that stand for nothing, are no
  candidates; probabilities are renormalised on the others.
- The winner may be a token that the primary lacks. Its bytes join the text, and the primary reads ``C_1`` of them, as
  in Eq. 4; what it cannot spell is never emitted. The others read ``C_i`` of the whole text, where Eq. 4 reads each
  token by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ensemble.methods import Method, NoOptions
from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Combine, Setup, TokenRule
from ensemble.vocabulary.joint import NONE, JointVocabulary, MemberTables

METHOD = Method(
    level="token",
    summary="the mean over the union of the whole vocabularies (GaC, Yu et al., EMNLP 2024)",
    when="to let the others write tokens that the primary lacks; every step handles all tokens of all members",
)


def make(setup: Setup, options: NoOptions) -> TokenRule:  # noqa: ARG001  # the protocol's; it has none
    """GaC for some members."""
    return TokenRule(over_all(setup.joint, setup.weights))


def over_all(joint: JointVocabulary, weights: Sequence[float]) -> Combine:
    """Eq. 3 over all entries of a joint vocabulary.

    Args:
        joint: The tables, on the logits' device; of fewer members than it was built for, where only they have a say.
        weights: One for each member, summing to 1.
    """
    entries = torch.arange(joint.size, device=joint.members[0].entry_of.device)
    owned = [_owned(tables, entries) for tables in joint.members]
    first = joint.members[0]
    spelled = (entries + len(first.entry_of)).masked_fill(first.id_of == NONE, NONE)
    there = torch.stack(owned).any(dim=0)
    ids = torch.where(owned[0], first.id_of, spelled).masked_fill(~there, NONE)
    shares = torch.tensor(weights, dtype=torch.float64, device=entries.device)

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        own = []
        for z, tables, mask in zip(whole(logits), joint.members, owned, strict=True):
            candidates = candidate_logits(z, tables)
            probabilities = (candidates if also is None else candidates.double()).softmax(dim=1)
            own.append(probabilities.index_select(1, tables.place_of).mul_(mask))
        members = torch.stack(own)
        mean = (members * shares.to(members)[:, None, None]).sum(dim=0)
        rows = len(mean)
        return Distribution(entries.expand(rows, -1), there.expand(rows, -1), ids.expand(rows, -1), members, mean)

    return combine


def _owned(tables: MemberTables, entries: Tensor) -> Tensor:
    """[entries] which of them a member has a token for."""
    return (tables.id_of != NONE) & (tables.entry_of[tables.place_of] == entries)
