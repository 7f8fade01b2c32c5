"""UNITE with weights from the members' agreement: the idea of CoRE ("Harnessing Consistency ... LLM Ensemble", 2025).

A token counts the less in a member, the farther the member's probability of it is from the members' mean; and a member
counts the more, the surer it is at this step. The formula is our own: see :func:`ensemble.step.means.consistent`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ensemble.methods import Method, unite
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="UNITE with weights from how sure each member is and how near the others (the idea of CoRE, 2025)",
    when="where members are sure at different steps; it takes no weights of its own",
    apart=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """See :class:`ensemble.methods.unite.Options`."""

    gate: str | None = None
    mean: str = "arithmetic"


def make(setup: Setup, options: Options) -> TokenRule:
    """UNITE with these weights."""
    return unite.make(setup, unite.Options(options.gate, options.mean, consistency=True))
