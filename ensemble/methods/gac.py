"""GaC, generation as classification: "Breaking the Ceiling of the LLM Community" (Yu et al., EMNLP 2024), Eq. 1 to 4.

The vocabularies are joined (Eq. 1). Each member's probabilities go to the entries of that member's tokens (the matrices
of Eq. 3, stored as tables), and the weighted mean decides. Weights are equal unless given (section 4.3).

Choices where the paper is silent, and differences from it:

- Two tokens are the same if their bytes are the same. Special tokens except EOS, and ids without a token, are not
  candidates; probabilities are renormalised on the candidates.
- Of members in other processes the likeliest tokens arrive, and others on request. Then the distribution has only these
  entries. It is exact for them, and the likeliest entry is certain to be the likeliest of all, or the step fails.
- The winner may be a token that the primary lacks. Then its bytes are appended to the text, and the primary reads
  ``C_1`` of them, as in Eq. 4. A token that the primary cannot spell is never emitted. The other members read ``C_i``
  of the whole text, while Eq. 4 reads each token alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ensemble.methods import Method
from ensemble.methods.unite import fetch_logits, tops_of
from ensemble.runtime.logits import Logits, are_remote, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Combine, Setup, TokenRule
from ensemble.vocabulary.joint import NONE, JointVocabulary

METHOD = Method(
    level="token",
    summary="the mean over the union of the whole vocabularies (GaC, Yu et al., EMNLP 2024)",
    when="to allow tokens that the primary lacks; every step handles all tokens of all members",
    distributed=True,
)


def make(setup: Setup, options: None) -> TokenRule:  # noqa: ARG001
    """Make the rule."""
    return TokenRule(over_all(setup.joint, setup.weights, setup.k), only_greedy_remote=True)


def over_all(joint: JointVocabulary, weights: Sequence[float], k: int = 10) -> Combine:
    """Eq. 3 over all entries of a joint vocabulary, which may have the tables of only some members: these count.

    ``k`` candidates of each member are looked at where only the likeliest arrive.
    """
    entries = torch.arange(joint.size, device=joint.members[0].entry_of.device)
    owned = [tables.owned() for tables in joint.members]
    present = torch.stack(owned).any(dim=0)
    first = joint.members[0]
    # Numbers from the size of the primary's vocabulary on mean: spell this entry with several of the primary's ids.
    spelled = (entries + len(first.entry_of)).masked_fill(first.id_of == NONE, NONE)
    ids = torch.where(owned[0], first.id_of, spelled).masked_fill(~present, NONE)
    shares = torch.tensor(weights, dtype=torch.float64, device=entries.device)

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        if are_remote(logits):
            return _over_tops(logits, joint, owned, ids, shares, k, also)
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


def _over_tops(
    logits: Sequence[Logits],
    joint: JointVocabulary,
    owned: Sequence[Tensor],
    ids_of: Tensor,
    weights: Tensor,
    k: int,
    also: Tensor | None,
) -> Distribution:
    """Eq. 3 over the likeliest entries of each member, where a member is in another process.

    ``owned`` are the entries that are each member's tokens, ``ids_of`` what the primary emits for each entry, and
    ``also`` [B, n] entries to score. A row is NaN where an entry outside all likeliest ones may be the likeliest.
    """
    held = [
        candidate_logits(z, tables).double().log_softmax(dim=1) if isinstance(z, Tensor) else z
        for z, tables in zip(logits, joint.members, strict=True)
    ]
    # Log-probabilities from elsewhere are of all ids, and those here of the candidates. For one member alone that is a
    # constant, which is worth no request.
    exact = len(held) > 1 or also is not None
    shares = [
        torch.zeros(len(z), dtype=torch.float64)
        if isinstance(z, Tensor) or not exact
        else z.shares(exact=True)[1].clamp(min=1e-9).log()
        for z in held
    ]
    largest = tops_of(held, k)
    found = [
        tables.entry_of.take(ids).masked_fill(values == -torch.inf, NONE)
        for (values, ids), tables in zip(largest, joint.members, strict=True)
    ]
    entries = torch.cat([*found, *([] if also is None else [also])], dim=1).sort(dim=1).values
    present = entries != NONE
    present[:, 1:] &= entries[:, 1:] != entries[:, :-1]
    ids = ids_of.take(entries).masked_fill(~present, NONE)
    counts = torch.stack([mask.take(entries) for mask in owned]) & present
    values = fetch_logits(held, [tables.place_of.take(entries) for tables in joint.members], counts, ids != NONE, None)
    members = (values.double() - torch.stack(shares)[:, :, None]).exp().masked_fill(~counts, 0)
    mean = (members * weights[:, None, None]).sum(dim=0)
    # An entry outside has in each member at most the probability of the last of its likeliest ones.
    last = torch.stack([(top[:, -1] - share).exp() for (top, _), share in zip(largest, shares, strict=True)])
    outside = (last * weights[:, None]).sum(dim=0)
    if also is None:
        lost = mean.masked_fill(ids == NONE, 0).amax(dim=1) < outside
        next(z for z in held if not isinstance(z, Tensor)).give_up(lost)
        mean = mean.masked_fill(lost[:, None], torch.nan)
    return Distribution(entries, present, ids, members, mean)
