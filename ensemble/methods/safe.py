"""UNITE where it is safe and needed: the idea of SAFE ("When to Ensemble", 2025).

The primary drafts, and the other members check. A step is ensembled only if both conditions hold:

- The tokenizations end together: for every other member, ``C_i`` of the text is a prefix of ``C_i`` of the text and the
  primary's token. So no member changes its reading of the end of the text when the text continues.
- The members disagree: the primary's token is not the likeliest token of all members, and its mean probability is below
  one half.

At all other steps the primary's own likeliest token is emitted (or, with sampling, a token from its own distribution).
Probabilities are UNITE's, on the union. Drafts and batches do not change the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from ensemble.methods import Method, unite
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="UNITE only where tokenizations end together and the members disagree (idea of SAFE, 2025)",
    when="long answers, where a token in the middle of a word does most harm",
    distributed=True,
    gated=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """See :class:`ensemble.methods.unite.Options`."""

    mean: str = "arithmetic"
    consistency: bool = False


def make(setup: Setup, options: Options) -> TokenRule:
    """See :func:`ensemble.methods.unite.make`."""
    return unite.make(setup, unite.Options("safe", options.mean, options.consistency))
