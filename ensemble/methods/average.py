"""Plain averaging of next-token probabilities, for members that share one vocabulary.

``P(w) = sum_i a_i P_i(w)``, with each member's probabilities over all candidates (special tokens but EOS, and ids that
stand for nothing, are none). It is UNITE with k as large as the vocabulary, and GaC over one vocabulary. The ids may
differ between the members, and the size of their embeddings; the byte strings may not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method, NoOptions
from ensemble.models.member import Member
from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import NONE

METHOD = Method(
    level="token",
    summary="the mean over the whole of one vocabulary that all members share",
    when="to ensemble siblings, models that were made with one tokenizer",
)


def make(setup: Setup, options: NoOptions) -> TokenRule:  # noqa: ARG001  # the protocol's; it has none
    """Averaging for some members.

    Raises:
        InputError: They do not share a vocabulary.
    """
    _check_vocabularies(setup.members)
    first = setup.joint.members[0]
    present = first.entry_of != NONE
    ids = torch.arange(len(present), device=present.device).masked_fill(~present, NONE)
    entries = first.entry_of.clamp(min=0)
    # The primary's ids, in the order of which each member's probabilities are put.
    order = [tables.place_of[entries] for tables in setup.joint.members]
    shares = torch.tensor(setup.weights, dtype=torch.float64, device=present.device)

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        own = []
        for z, tables, places in zip(whole(logits), setup.joint.members, order, strict=True):
            candidates = candidate_logits(z, tables)
            probabilities = (candidates if also is None else candidates.double()).softmax(dim=1)
            own.append(probabilities.index_select(1, places).mul_(present))
        members = torch.stack(own)
        mean = (members * shares.to(members)[:, None, None]).sum(dim=0)
        rows = len(mean)
        return Distribution(entries.expand(rows, -1), present.expand(rows, -1), ids.expand(rows, -1), members, mean)

    return TokenRule(combine)


def _check_vocabularies(members: Sequence[Member]) -> None:
    """Raise InputError where two members do not have the same tokens, and EOS."""
    first = members[0]
    own = first.vocabulary.representatives.keys()
    for member in members[1:]:
        other = member.vocabulary.representatives.keys()
        if lacking := len(own - other) + len(other - own):
            raise InputError(
                f"method average: it needs one vocabulary, and {first.name} and {member.name} differ in {lacking} "
                "tokens; use unite or gac"
            )
        if bool(first.vocabulary.eos_ids) != bool(member.vocabulary.eos_ids):
            raise InputError(
                f"method average: it needs one vocabulary, and only one of {first.name} and {member.name} has an EOS "
                "token; use unite or gac"
            )
