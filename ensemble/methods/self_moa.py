"""Self-MoA: the best member writes several responses, reads them, and writes the answer (Li et al., 2025).

With the best member m, a question q, and as many draws as the set has members,

    y = m(q, {r_1, ..., r_n}),  r_i drawn from m(q) at temperature 0.7

The best member is the one with the most points on the evaluated questions, as for the control of ``advisor evaluate``,
whose draws these are. So the comparison with the control shows what the last step is worth. But the choice looks at the
scores: ``member`` names a model that was chosen before.

Prompt and failures are as in :mod:`ensemble.methods.moa`; where reading fails, the first draw is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from ensemble.methods import Method
from ensemble.methods._response import Aggregation, read_prompt

METHOD = Method(
    level="response",
    summary="a new response that the best member writes after it reads several of its draws (Self-MoA, 2025)",
    when="open questions, and one member that is clearly better than the others",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of Self-MoA.

    Attributes:
        member: The member that draws and writes; None for the best one on the evaluated questions.
        prompt: A file with the prompt of its last step; see the options of ``moa``.
    """

    member: str | None = None
    prompt: str | None = None


def make(options: Options) -> Aggregation:
    """Make the method; InputError if the prompt's file cannot be read."""
    return Aggregation(*read_prompt(options.prompt), options.member, own_draws=True)
