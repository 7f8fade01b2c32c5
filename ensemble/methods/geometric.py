"""UNITE with the geometric mean: ``P(w)`` in proportion to ``prod_i P_i(w)^a_i`` over the union.

A log-linear pool: a token must be likely for all members, where for the arithmetic mean it is enough to be very likely
for one. Steps 1 to 5 are UNITE's; step 6 has the weighted mean of the logarithms, renormalised on the union. An entry
that a member cannot express counts as if it were as unlikely as a number can be.
"""

from __future__ import annotations

from dataclasses import dataclass

from ensemble.methods import Method, unite
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="UNITE with the geometric mean in place of the arithmetic one",
    when="where a token that one member finds nearly impossible should not win",
    apart=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """See :class:`ensemble.methods.unite.Options`."""

    gate: str | None = None
    consistency: bool = False


def make(setup: Setup, options: Options) -> TokenRule:
    """UNITE with this mean."""
    return unite.make(setup, unite.Options(options.gate, "geometric", options.consistency))
