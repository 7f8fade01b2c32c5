"""Whether a step's winner is certain before all logits are known.

A member on a node of its own sends its top candidates. What others bring to the union may lie anywhere below the last
of these; often whatever it is, the same entry wins, and then it need not be asked for.
"""

from __future__ import annotations

from torch import Tensor

_MARGIN = 1e-5
"""Of probability, by which a winner must be ahead: more than what rounding makes of a softmax in float32."""


def is_certain(highest: Tensor, exact: Tensor, weights: Tensor, can_win: Tensor) -> Tensor:
    """The rows [B] in which one entry has the largest mean probability whatever the unknown logits are.

    With ``e_v = exp(z_v)``, an entry's probability ``e_w / (e_w + sum of the others' e_v)`` is smallest where its own
    logit is smallest and all others are largest, and the other way round. The winner's smallest mean must be above the
    others' largest. A logit that is no number makes its row uncertain.

    Args:
        highest: [members, B, U] logits, or what they are at most; minus infinity for what is not present.
        exact: [members, B, U] which of them are known. The others may be anything below.
        weights: [members], summing to 1.
        can_win: [B, U] the entries that the primary can express.
    """
    high = highest.double()
    above = (high - high.amax(dim=2, keepdim=True)).exp_()
    below = above * exact
    shares = weights.double()[:, None, None]
    least = (shares * (below / (below + above.sum(dim=2, keepdim=True) - above))).sum(dim=0)
    most = (shares * (above / (above + below.sum(dim=2, keepdim=True) - below))).sum(dim=0)
    first = least.masked_fill_(~can_win, -1).max(dim=1, keepdim=True)
    rest = most.masked_fill_(~can_win, -1).scatter_(1, first.indices, -1).amax(dim=1)
    return first.values[:, 0] > rest + _MARGIN
