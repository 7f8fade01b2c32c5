"""``arms`` of ``result.json``: what a fusion gains over what the same money buys otherwise."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from advisor.records import ArmCode, ArmReason, CostUnit, Shown
from advisor.runs.schema.measured import Accuracy
from ensemble.common.schema import Count, Figure, Interval, Line, Number, Points, Positive, Schema
from ensemble.common.text import counted, length, price


class ArmFigures(Accuracy):
    """An arm on the held-out questions."""

    arm: ArmCode
    """`single`: the best single model; `self_consistency`, `best_of_n`: the vote of several of its responses, or the
    one that a judge prefers (of a judged task the second judge); `vote`: the panel's vote; `fusion`: the panel with a
    writer; `self_fusion`: the writer with its own drafts; `cheapest`: the cheapest candidate"""
    models: Annotated[tuple[Line, ...], Field(min_length=1)]
    """those that answer; of a fusion the panel, and then the writer"""
    draws: Positive = 1
    """responses of each of them; of a fusion the drafts of each model of the panel"""
    gain: Points = None
    """points over `single` on these questions alone"""
    gain_ci: Interval = None
    """its interval"""
    lead: Points = None
    """points of the fusion over this arm; null for the fusion"""
    lead_ci: Interval = None
    """its interval; those of all arms together have the confidence"""
    p_two_sided: Figure = None
    """two-sided p of this difference"""
    p_adjusted: Figure = None
    """the same after Holm's correction for all arms"""
    calls_per_question: Figure = None
    """responses that a question takes"""
    cost_per_1000: Figure = None
    """of 1,000 questions, in `unit`"""

    @property
    def title(self) -> str:
        """The arm in few words."""
        first, last = self.models[0], self.models[-1]
        return {
            "single": f"{first} alone",
            "cheapest": f"{first} alone, the cheapest",
            "self_consistency": f"{counted(self.draws, 'response')} of {first} with a vote",
            "best_of_n": f"the best of {counted(self.draws, 'response')} of {first}",
            "vote": f"the vote of {counted(len(self.models), 'model')}",
            "fusion": f"fusion by {last}, {counted(len(self.models) - 1, 'model')}",
            "self_fusion": f"fusion by {last} from its own {counted(self.draws, 'draft')}",
        }[self.arm]


class LeftOutArm(Schema):
    """An arm that could not be compared."""

    arm: ArmCode
    """as above"""
    reason_code: ArmReason
    """`same` as another arm, `no_vote` (answers that cannot be counted), `no_judge` (no second judge), `few_voters`
    (under three), `costs_more` (two responses cost more than the fusion), `unknown_cost`, or `failed`"""
    reason: Line
    """the same as a sentence"""


class ArmsSection(Schema):
    """Whether the fusion pays at equal cost."""

    pays: Shown = "not_yet"
    """`yes`: the fusion is shown to be better than each other arm; `no`: it is shown to gain less than `margin` over
    the arm `decided_by`; `not_yet`: the questions are too few to tell"""
    decided_by: ArmCode
    """the arm over which the fusion leads least"""
    questions_needed: Count | None = None
    """for `not_yet`: questions in all that would tell with a probability of 80%, if the differences are as observed"""
    n: Count
    """held-out questions, the same for all arms"""
    unit: CostUnit
    """of costs: `dollars` where the prices and tokens of all models are known; else `tokens`, those that are read and
    those that are written; else `calls`"""
    margin: Number
    """points that the fusion must gain (`--min-gain`)"""
    confidence: Number
    """of the intervals"""
    text: Line = ""
    """all of this as a sentence"""
    arms: Annotated[tuple[ArmFigures, ...], Field(min_length=2)]
    """the arms, `single` first"""
    left_out: tuple[LeftOutArm, ...] = ()
    """those that could not be compared"""

    def cost_of(self, arm: ArmFigures) -> str:
        """The cost of 1,000 questions in words; with ``$`` where the unit is dollars."""
        return price(arm.cost_per_1000) if self.unit == "dollars" else length(arm.cost_per_1000)

    def share_of(self, arm: ArmFigures) -> float | None:
        """The cost of an arm as a share of the fusion's; None if one of them is not known."""
        whole = next((each.cost_per_1000 for each in self.arms if each.arm == "fusion"), None)
        return None if arm.cost_per_1000 is None or not whole else arm.cost_per_1000 / whole
