"""UNITE with the geometric mean: ``P(w)`` is proportional to ``prod_i P_i(w)^a_i`` over the union.

This is a log-linear pool: a token must be likely for all members, while for the arithmetic mean it is enough to be very
likely for one. Steps 1 to 5 are UNITE's; step 6 takes the weighted mean of the logarithms, renormalised on the union.
An entry that a member cannot express has the smallest probability that a number can hold.
"""

from __future__ import annotations

from ensemble.methods import Method, unite
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="UNITE with the geometric instead of the arithmetic mean",
    when="where a token that one member finds nearly impossible must not win",
    distributed=True,
)


def make(setup: Setup, options: None) -> TokenRule:  # noqa: ARG001
    """Make the rule."""
    return TokenRule(unite.combined(setup, "geometric"))
