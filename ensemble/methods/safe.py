"""SAFE on UNITE: "When to Ensemble: Identifying Token-Level Points for Stable and Fast LLM Ensembling" (Yun et al.).

It is arXiv 2510.15346, version 2 (ICLR 2026). The primary drafts, and the other members check. A step is ensembled only
if both conditions of section 3.2 hold:

- The place is safe: for every other member, ``C_i`` of the text is a prefix of ``C_i`` of the text and the primary's
  token. Otherwise the last token is "OOV-like" for that member, because the text goes on inside of one of its tokens.
- The members do not agree: the primary's token is not the likeliest token of all others, and its mean probability is at
  most one half.

At all other steps the primary's own likeliest token is emitted (or, with sampling, a token from its own distribution).

Section 3.3 sharpens an ensembled distribution that is too smooth, which means that its largest probability is below one
half. Each token of the primary with a probability above ``lambda`` collects those of all entries that begin with it:
``P(t) <- P(t) + sum of P(u) where u begins with t``. The paper's other way to sharpen is the geometric mean; with
``mean="geometric"`` it takes the place of this one.

What the paper leaves open, and our choice:

- Whether a token that begins with two others counts for both. Here it is moved to the shorter one. The token that wins
  is the same, because the shorter one also gets all that the longer one gets.
- Whether a token begins with itself in the sum. Here it does not: the text speaks of moving what variants of a token
  have, and otherwise each token above ``lambda`` would count double.
- A "token of the drafter" is one of the primary's vocabulary. Beginnings are compared in bytes, a space included. EOS
  begins with nothing.

Differences from the paper:

- To find unsafe places it reads up to five drafted tokens ahead, as far as its chunk goes. Here it is always one token,
  so that the length of drafts and the batch do not change the text.
- Probabilities are UNITE's, on the union, also in the second condition, where the paper has those over whole
  vocabularies. They are larger, so that the ensemble is skipped more often, but only where its greedy token is the
  primary's.
- With sampling, appendix H of the paper accepts drafted tokens by speculative sampling.

Options are scored by UNITE: the gate plays no part there, and nothing is moved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ensemble.errors import InputError
from ensemble.methods import Method, unite
from ensemble.step.distribution import Distribution
from ensemble.step.token_method import ENOUGH, Setup, TokenRule, needed_and_safe
from ensemble.vocabulary.joint import NONE, JointVocabulary, prefixes_of

METHOD = Method(
    level="token",
    summary="UNITE only where tokenizations end together and the members disagree (SAFE, Yun et al., ICLR 2026)",
    when="long answers, where a token in the middle of a word does most harm",
    distributed=True,
    gated=True,
    version=2,
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of SAFE.

    Attributes:
        mean: ``arithmetic``, or ``geometric``, which is the paper's other way to sharpen.
        sharpen: The paper's ``lambda``, from 0 to 1: a token above it collects the probabilities of those that begin
            with it, where none has one half. None leaves the distribution as it is.
    """

    mean: unite.Mean = "arithmetic"
    sharpen: float | None = 0.1

    def __post_init__(self) -> None:
        if self.sharpen is not None and not 0 <= self.sharpen <= 1:
            raise InputError(f"sharpen {self.sharpen}: give a probability, from 0 to 1, or None")


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule."""
    # The primary's own distribution, for the steps where the gate is closed.
    primary = replace(setup, joint=JointVocabulary(setup.joint.size, setup.joint.members[:1]), weights=(1.0,))
    rule = TokenRule(unite.combined(setup, options.mean), unite.combined(primary), needed_and_safe)
    threshold = options.sharpen
    if threshold is None or options.mean == "geometric":
        return rule
    prefixes = prefixes_of(tuple(member.vocabulary for member in setup.members), setup.members[0].device)
    first = setup.joint.members[0].entry_of

    def sharpen(step: Distribution) -> Distribution:
        # An entry is one of the primary's tokens if the primary emits exactly this entry for it.
        owned = (step.ids != NONE) & (first[step.ids] == step.entries) & step.present
        takes = owned & (step.mean > threshold)
        # [B, U, U]: whether the entry of the row begins with the entry of the column, which takes its probability.
        begun = prefixes.are_begun_by(step.entries[:, :, None], step.entries[:, None, :]) & takes[:, None, :]
        order = prefixes.rank[step.entries][:, None, :].expand_as(begun)
        shortest = order.masked_fill(~begun, torch.iinfo(order.dtype).max).argmin(dim=2)
        here = torch.arange(begun.shape[1], device=begun.device).expand_as(shortest)
        to = torch.where(begun.any(dim=2), shortest, here)
        moved = torch.zeros_like(step.mean).scatter_add(1, to, step.mean)
        is_smooth = step.mean.amax(dim=1, keepdim=True) < ENOUGH
        return replace(step, mean=torch.where(is_smooth, moved, step.mean))

    return replace(rule, revise=sharpen)
