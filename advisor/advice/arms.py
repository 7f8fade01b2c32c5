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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from advisor.compare.paired import MARGIN, PairedScores, questions_for
from advisor.records import ALPHA, ArmCode, Cost, CostUnit, Profile, Shown
from advisor.statistics import Difference, Interval, holm, scores
from ensemble.models.spec import Price

FUSION: ArmCode = "fusion"
Leads = Mapping[int, tuple[Difference, float]]
"""The fusion's lead over each other arm, by its column, and the adjusted two-sided p-value."""
TOKEN = Price(1e6, 1e6)
"""The price of a token, read or written, where tokens are the unit."""


class Arm(NamedTuple):
    """A way to answer the questions.

    Attributes:
        code: What it is.
        models: Those that answer; of a fusion the panel, and then the writer.
        draws: Responses of each of them, or of a fusion the drafts of each model of the panel.
        profile: Its answers.
        costs: What the responses took, by model.
        calls: Responses that a question takes.
    """

    code: ArmCode
    models: tuple[str, ...]
    draws: int
    profile: Profile
    costs: Mapping[str, Cost]
    calls: int


class ArmResult(NamedTuple):
    """An arm, compared.

    Attributes:
        arm: The arm.
        cost: In the unit, of all questions together.
        accuracy_ci: The interval of its accuracy, in points.
        gain: The arm over the best single model; None for this model itself.
        lead: The fusion over the arm; None for the fusion. All intervals together have the confidence.
        p_adjusted: The two-sided p-value of this difference after Holm's correction for all arms; None likewise.
    """

    arm: Arm
    cost: float
    accuracy_ci: Interval
    gain: Difference | None
    lead: Difference | None
    p_adjusted: float | None


@dataclass(frozen=True, slots=True)
class ArmsComparison:
    """What the arms came to.

    Attributes:
        unit: What cost is counted in.
        results: The arms, in their order.
        pays: Whether the fusion is shown to be better than all other arms (``yes``), or to gain less than the margin
            over one of them (``no``).
        decided_by: The arm with the smallest lead of the fusion, or if it does not pay, that with the smallest upper
            end of the interval.
        questions_needed: Questions, in all, that would tell with a probability of 80%, if the differences are as
            observed; None if it is told, or if no number would.
        margin: Points that the fusion must gain.
    """

    unit: CostUnit
    results: tuple[ArmResult, ...]
    pays: Shown
    decided_by: ArmResult
    questions_needed: int | None
    margin: float

    @property
    def fusion(self) -> ArmResult:
        """The fusion, whose cost the arms of one model may spend."""
        return next(each for each in self.results if each.lead is None)


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


def compare_arms(
    arms: Sequence[Arm],
    *,
    unit: CostUnit,
    prices: Mapping[str, Price],
    clusters: Sequence[str] | None = None,
    alpha: float = ALPHA,
    margin: float = MARGIN,
    seed: int = 0,
) -> ArmsComparison:
    """Compare a fusion with other arms.

    Args:
        arms: The best single model first; one of them is the fusion.
        unit: What cost is counted in; it is known of all arms.
        prices: Of the models.
        clusters: What each question shares with others; None if they are independent.
        alpha: The accepted probability of a false "pays", and of a false "does not pay" where the fusion gains the
            margin over all arms; between 0 and 0.5.
        margin: Points that the fusion must gain, above 0.
        seed: Of the resampling, which only graded scores need.
    """
    names = [arm.code for arm in arms]
    own = names.index(FUSION)
    paired = PairedScores(np.stack([scores(arm.profile) for arm in arms], axis=1), clusters, seed)
    leads = leads_of(paired, names, own, alpha)
    results = tuple(
        ArmResult(
            arm,
            cost_in(unit, arm.costs, arm.calls * len(paired.scores), prices) or 0.0,
            paired.accuracy_interval(n),
            paired.difference(names, (0, n), alpha, is_tested=False) if n else None,
            *leads.get(n, (None, None)),
        )
        for n, arm in enumerate(arms)
    )
    pays, decisive = decide(leads, alpha, margin)
    needed = _needed(paired, own, leads, alpha, margin) if pays == "not_yet" else None
    return ArmsComparison(unit, results, pays, results[decisive], needed, margin)


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


def decide(leads: Leads, alpha: float, margin: float) -> tuple[Shown, int]:
    """Whether a fusion pays, and the column of the arm that decides.

    Args:
        leads: See :func:`leads_of`.
        alpha: As for :func:`compare_arms`.
        margin: As for :func:`compare_arms`.
    """
    lowest = min(leads, key=lambda n: leads[n][0].interval[1])
    if leads[lowest][0].interval[1] < margin:
        return "no", lowest
    is_shown = all(lead.estimate > 0 and p_adjusted <= 2 * alpha for lead, p_adjusted in leads.values())
    return "yes" if is_shown else "not_yet", min(leads, key=lambda n: leads[n][0].estimate)


def _needed(paired: PairedScores, fusion: int, leads: Leads, alpha: float, margin: float) -> int | None:
    """Questions that show all leads, or one lead below the margin: the smaller number."""
    strict = alpha / len(leads)
    own = [((n, fusion), lead) for n, (lead, _) in leads.items()]
    pays = [questions_for(paired, pair, lead, lead.estimate, strict) for pair, lead in own]
    fails = [questions_for(paired, pair, lead, margin - lead.estimate, strict) for pair, lead in own]
    known, every = ([each for each in numbers if each is not None] for numbers in (fails, pays))
    if len(every) == len(pays):
        known.append(max(every))
    return min(known, default=None)
