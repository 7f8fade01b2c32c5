"""Plain averaging of next-token probabilities, for members that share one vocabulary.

``P(w) = sum_i a_i P_i(w)`` over all candidates. Special tokens except EOS, and ids without a token, are not candidates.
The result equals UNITE with k as large as the vocabulary, and GaC over one vocabulary. The members may have different
ids and different sizes of embeddings, but they must have the same byte strings.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.models.member import Member
from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import NONE

METHOD = Method(
    level="token",
    summary="the mean over one vocabulary that all members share",
    when="models that have the same tokenizer",
)


def make(setup: Setup, options: None) -> TokenRule:  # noqa: ARG001
    """Make the rule.

    Raises:
        InputError: The members do not share one vocabulary.
    """
    _check_vocabularies(setup.members)
    first = setup.joint.members[0]
    present = first.entry_of != NONE
    ids = torch.arange(len(present), device=present.device).masked_fill(~present, NONE)
    # Ids without an entry get entry 0, only to be a valid index; `present` masks them.
    entries = first.entry_of.clamp(min=0)
    # Each member's ids in the order of the primary's ids, so that their probabilities line up.
    order = [tables.place_of[entries] for tables in setup.joint.members]
    weights = torch.tensor(setup.weights, dtype=torch.float64, device=present.device)

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        aligned = []
        for z, tables, places in zip(whole(logits), setup.joint.members, order, strict=True):
            candidates = candidate_logits(z, tables)
            # Scored entries can be so unlikely that their probability is 0 in float32.
            probabilities = (candidates if also is None else candidates.double()).softmax(dim=1)
            aligned.append(probabilities.index_select(1, places).mul_(present))
        members = torch.stack(aligned)
        mean = (members * weights.to(members)[:, None, None]).sum(dim=0)
        rows = len(mean)
        return Distribution(entries.expand(rows, -1), present.expand(rows, -1), ids.expand(rows, -1), members, mean)

    return TokenRule(combine)


def _check_vocabularies(members: Sequence[Member]) -> None:
    """Raise InputError if two members differ in their tokens, or in whether they have EOS."""
    first = members[0]
    tokens = first.vocabulary.representatives.keys()
    for member in members[1:]:
        others = member.vocabulary.representatives.keys()
        if different := len(tokens ^ others):
            raise InputError(
                f"it needs one vocabulary, and {first.name} and {member.name} differ in {different} "
                "tokens; use unite or gac",
                of="method average",
            )
        if bool(first.vocabulary.eos_ids) != bool(member.vocabulary.eos_ids):
            raise InputError(
                f"it needs one vocabulary, and only one of {first.name} and {member.name} has an EOS "
                "token; use unite or gac",
                of="method average",
            )
