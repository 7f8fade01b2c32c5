"""UNITE where it is safe and needed: the idea of SAFE ("When to Ensemble", 2025).

The primary drafts, and the others check. A step is ensembled only

- where the tokenizations end together: for every other member ``C_i`` of the text is the beginning of ``C_i`` of the
  text and the primary's token, so that none reads the end of the text otherwise once it goes on;
- and where the members do not agree already: the primary's token is not the likeliest of all members, and its mean
  probability is below one half.

Elsewhere the primary's own likeliest token stands (or, where tokens are drawn, one drawn from its own distribution).
Probabilities are UNITE's, on the union. Whether a text is drafted or a batch decoded makes no difference to what is
emitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ensemble.methods import Method, unite
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="UNITE only where tokenizations end together and the members disagree (the idea of SAFE, 2025)",
    when="for long answers, where a token forced into the middle of a word does most harm",
    apart=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """See :class:`ensemble.methods.unite.Options`."""

    mean: str = "arithmetic"
    consistency: bool = False


def make(setup: Setup, options: Options) -> TokenRule:
    """UNITE behind this gate."""
    return unite.make(setup, unite.Options("safe", options.mean, options.consistency))
