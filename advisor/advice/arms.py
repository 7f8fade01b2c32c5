"""Whether a fusion pays: its texts against what the same money buys otherwise, on the same questions.

A published gain of a fusion is mostly one over a single call of a single model, at a fraction of the cost. Here the
fusion meets each other *arm*: the best single model, as many of its responses as cost the same, the panel's vote, the
writer with its own drafts, the cheapest model. It **pays** if it is shown to be better than each of them. That is an
intersection of tests, each of which must reject, so a false "pays" is rarer than one false test; Holm's correction for
the number of arms comes on top, so that each single figure can be read, too. It **does not pay** if it is shown to gain
less than a margin over one of them: simultaneous intervals, by Bonferroni.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advisor.compare.paired import MARGIN, PairedScores, questions_for
from advisor.records import Cost, CostUnit, Shown
from advisor.statistics import Difference, holm
from ensemble.models.spec import Price

Leads = Mapping[int, tuple[Difference, float]]
"""The fusion's lead over each other arm, by its column, and the adjusted two-sided p-value."""
TOKEN = Price(1e6, 1e6)
"""The price of a token, read or written, where tokens are the unit."""


def cost_in(unit: CostUnit, costs: Mapping[str, Cost], calls: float, prices: Mapping[str, Price]) -> float | None:
    """What responses cost.

    Args:
        unit: ``dollars``, ``tokens`` (those of prompts and those that are written) or ``calls``.
        costs: What the responses of each model took.
        calls: The number of responses.
        prices: Of the models.

    Returns:
        The sum over all questions; None if a price or a count is not known.
    """
    if unit == "calls":
        return calls
    total = 0.0
    for name, cost in costs.items():
        price = prices.get(name) if unit == "dollars" else TOKEN
        own = None if price is None else price.of(cost.prompt_tokens, cost.tokens)
        if own is None:
            return None
        total += own
    return total


def unit_of(costs: Mapping[str, Cost], prices: Mapping[str, Price]) -> CostUnit:
    """The unit in which the costs of all models are known: dollars, else tokens, else calls.

    Prices of 0 tell nothing of two ways to spend money, so tokens count there.
    """
    units: tuple[CostUnit, ...] = ("dollars", "tokens")
    return next((unit for unit in units if cost_in(unit, costs, 0, prices)), "calls")


def leads_of(paired: PairedScores, names: Sequence[str], fusion: int, alpha: float) -> Leads:
    """The lead of a fusion over each other arm, by its column, with the p-value after Holm's correction for all.

    Args:
        paired: The scores of all arms.
        names: Of the columns.
        fusion: Its column.
        alpha: The probability beyond one end, of all intervals together; between 0 and 0.5.
    """
    rivals = [n for n in range(len(names)) if n != fusion]
    leads = [paired.difference(names, (n, fusion), alpha / len(rivals)) for n in rivals]
    adjusted = holm([1.0 if each.p_two_sided is None else each.p_two_sided for each in leads])
    return dict(zip(rivals, zip(leads, adjusted, strict=True), strict=True))


def decide(
    paired: PairedScores, fusion: int, leads: Leads, alpha: float, margin: float = MARGIN
) -> tuple[Shown, int, int | None]:
    """Whether a fusion pays.

    Args:
        paired: As for :func:`leads_of`.
        fusion: Likewise.
        leads: Its result.
        alpha: The accepted probability of a false "pays", and of a false "does not pay" where the fusion gains the
            margin over all arms; between 0 and 0.5.
        margin: Points that the fusion must gain, at least 0.

    Returns:
        ``yes`` if it is shown to be better than all other arms, ``no`` if it is shown to gain less than the margin over
        one of them; the column of the arm with the smallest lead, or for ``no`` with the smallest upper end of the
        interval; and for ``not_yet`` the questions, in all, that would tell with a probability of 80% if the
        differences are as observed, None if no number would.
    """
    lowest = min(leads, key=lambda n: leads[n][0].interval[1])
    if leads[lowest][0].interval[1] < margin:
        return "no", lowest, None
    closest = min(leads, key=lambda n: leads[n][0].estimate)
    if all(lead.estimate > 0 and p_adjusted <= 2 * alpha for lead, p_adjusted in leads.values()):
        return "yes", closest, None
    strict = alpha / len(leads)
    own = [((n, fusion), lead) for n, (lead, _) in leads.items()]
    pays = [questions_for(paired, pair, lead, lead.estimate, strict) for pair, lead in own]
    fails = [questions_for(paired, pair, lead, margin - lead.estimate, strict) for pair, lead in own]
    known, every = ([each for each in numbers if each is not None] for numbers in (fails, pays))
    # All leads have to be shown, or one lead below the margin.
    return "not_yet", closest, min([*known, *([max(every)] if len(every) == len(pays) else [])], default=None)
