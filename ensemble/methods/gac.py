"""GaC, generation as classification: "Breaking the Ceiling of the LLM Community" (Yu et al., EMNLP 2024), Eq. 1 to 4.

The vocabularies are joined (Eq. 1). Each member's probabilities go to the entries of that member's tokens (the matrices
of Eq. 3, stored as tables), and the weighted mean decides. Weights are equal unless given (section 4.3).

Choices where the paper is silent, and differences from it:

- Two tokens are the same if their bytes are the same. Special tokens except EOS, and ids without a token, are not
  candidates; probabilities are renormalised on the candidates.
- The winner may be a token that the primary lacks. Then its bytes are appended to the text, and the primary reads
  ``C_1`` of them, as in Eq. 4. A token that the primary cannot spell is never emitted. The other members read ``C_i``
  of the whole text, while Eq. 4 reads each token alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ensemble.methods import Method
from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Combine, Setup, TokenRule
from ensemble.vocabulary.joint import NONE, JointVocabulary

METHOD = Method(
    level="token",
    summary="the mean over the union of the whole vocabularies (GaC, Yu et al., EMNLP 2024)",
    when="to allow tokens that the primary lacks; every step handles all tokens of all members",
)


def make(setup: Setup, options: None) -> TokenRule:  # noqa: ARG001
    """Make the rule."""
    return TokenRule(over_all(setup.joint, setup.weights))


def over_all(joint: JointVocabulary, weights: Sequence[float]) -> Combine:
    """Eq. 3 over all entries of a joint vocabulary.

    Args:
        joint: The tables, on the device of the logits. It may have the tables of only some of the members that it was
            built for; then only these members count.
        weights: One for each member, with sum 1.
    """
    entries = torch.arange(joint.size, device=joint.members[0].entry_of.device)
    # A table may name the first id of a longer spelling; a member owns an entry only if the id leads back to it.
    owned = [(tables.id_of != NONE) & (tables.entry_of[tables.place_of] == entries) for tables in joint.members]
    first = joint.members[0]
    # Numbers from the size of the primary's vocabulary on mean: spell this entry with several of the primary's ids.
    spelled = (entries + len(first.entry_of)).masked_fill(first.id_of == NONE, NONE)
    present = torch.stack(owned).any(dim=0)
    ids = torch.where(owned[0], first.id_of, spelled).masked_fill(~present, NONE)
    shares = torch.tensor(weights, dtype=torch.float64, device=entries.device)

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        aligned = []
        for z, tables, mask in zip(whole(logits), joint.members, owned, strict=True):
            candidates = candidate_logits(z, tables)
            # Scored entries can be so unlikely that their probability is 0 in float32.
            probabilities = (candidates if also is None else candidates.double()).softmax(dim=1)
            # The mask removes entries that the member spells with several ids: place_of has only the first of them.
            aligned.append(probabilities.index_select(1, tables.place_of).mul_(mask))
        members = torch.stack(aligned)
        mean = (members * shares.to(members)[:, None, None]).sum(dim=0)
        rows = len(mean)
        return Distribution(entries.expand(rows, -1), present.expand(rows, -1), ids.expand(rows, -1), members, mean)

    return combine
