"""UNITE with weights from the members' certainty and agreement; the formula is this project's.

A token counts less in a member if the member's probability of it is far from the members' mean. A member counts more if
it is more certain at this step. The formula is :func:`ensemble.step.means.consistent`. CoRE weighs by the same two
signals, with another formula: see :mod:`ensemble.methods.core`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ensemble.methods import Method, unite
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="UNITE with weights from each member's certainty and agreement with the others",
    when="members that are sure at different steps; it does not take weights",
    distributed=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """See :class:`ensemble.methods.unite.Options`."""

    gate: str | None = None
    mean: str = "arithmetic"


def make(setup: Setup, options: Options) -> TokenRule:
    """See :func:`ensemble.methods.unite.make`."""
    return unite.make(setup, unite.Options(options.gate, options.mean, consistency=True))
