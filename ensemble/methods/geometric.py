"""UNITE with the geometric mean: ``P(w)`` is proportional to ``prod_i P_i(w)^a_i`` over the union.

This is a log-linear pool: a token must be likely for all members, while for the arithmetic mean it is enough to be very
likely for one. Steps 1 to 5 are UNITE's; step 6 takes the weighted mean of the logarithms, renormalised on the union.
An entry that a member cannot express has the smallest probability that a number can hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from ensemble.methods import Method, unite
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="UNITE with the geometric instead of the arithmetic mean",
    when="where a token that one member finds nearly impossible must not win",
    distributed=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """See :class:`ensemble.methods.unite.Options`."""

    gate: str | None = None


def make(setup: Setup, options: Options) -> TokenRule:
    """See :func:`ensemble.methods.unite.make`."""
    return unite.make(setup, unite.Options(options.gate, "geometric"))
