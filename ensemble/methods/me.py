"""ME, a draw from the mean by running one member: "Rethinking LLM Ensembling from the Perspective of Mixture Models".

By Fu et al., 2026 (arXiv:2605.00419), who call it Mixture-model-like Ensemble. At each step a member is drawn by its
weight, and the token from this member alone:

    m ~ (a_1, ..., a_M),  w ~ q_m(. | text)    so that    P(w | text) = sum_i a_i q_i(w | text)

This is a draw from the mean, which is not computed. ``q_i`` is the member's distribution over its own candidates that
the primary can spell, after the temperature, ``top_k`` and ``top_p``. An entry of the joint vocabulary that the member
lacks has ``q_i(w) = 0``. So with temperature 1, ``top_k`` 0 and ``top_p`` 1 the text has exactly the distribution that
:mod:`ensemble.methods.gac` draws from (with one vocabulary: :mod:`ensemble.methods.average`), if the primary can spell
all tokens, as it can with a token for each byte. With other settings it does not: these methods change the mean, and ME
changes the members' distributions before the mean.

As in the paper, a member keeps its cache while others are drawn, and then reads all tokens that it missed in one pass.
A member that was not drawn yet has not read the prompt. What differs from the paper, or what it leaves open:

- Members may have different tokenizers. Then the drawn token is an entry of the joint vocabulary, and the other members
  read ``C_i`` of the whole text, as in GaC.
- One random number decides both draws: its place among the weights gives the member, and its place in the member's part
  the token. Each text has these numbers by its seed and its prompt, so it draws the same alone and in a batch.
- The rows of a batch draw different members, and a pass of a member has all rows that it has read. So a batch of more
  rows than members takes about as many passes as the mean does.
- A trace and log-probabilities tell of the mean. So with them all members run, and the text stays the same.
- Scores of options are those of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods.gac import emitted_ids, over_all
from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Mixture, Setup, TokenRule
from ensemble.vocabulary.joint import NONE, MemberTables

METHOD = Method(
    level="token",
    summary="a draw from the mean by running one member, drawn at each step (ME, Fu et al., 2026)",
    when="to draw texts one at a time at the cost of one model; there is no greedy decoding",
    drawn=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ME.

    Attributes:
        temperature: Of texts whose settings ask for greedy decoding, as those of ``advisor evaluate`` do; 0 refuses
            them.
    """

    temperature: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature {self.temperature}: give 0 or a number above; 1 for the members' own draws")


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule."""
    ids = emitted_ids(setup.joint)
    alone = [_alone(tables, ids) for tables in setup.joint.members]
    mixture = Mixture(setup.weights, alone, options.temperature)
    return TokenRule(over_all(setup.joint, setup.weights), mixture=mixture)


def _alone(tables: MemberTables, emitted: Tensor) -> Callable[[Logits], Distribution]:
    """A member's own distribution over the entries of its ids; `emitted` is what the primary emits for each entry."""
    present = tables.entry_of != NONE
    # Ids without an entry get entry 0, only to be a valid index; `present` masks them.
    entries = tables.entry_of.clamp(min=0)
    ids = emitted[entries].masked_fill(~present, NONE)

    def combine(logits: Logits) -> Distribution:
        (z,) = whole([logits])
        probabilities = candidate_logits(z, tables).softmax(dim=1).mul_(present)
        # One member's probabilities stand for all: the sampler has drawn it by its weight.
        rows = len(z)
        return Distribution(
            entries.expand(rows, -1), present.expand(rows, -1), ids.expand(rows, -1), probabilities[None], probabilities
        )

    return combine
