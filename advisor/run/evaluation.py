"""``evaluation.json``: ensembles side by side with their members, as ``advisor evaluate`` measures them."""

from __future__ import annotations

from typing import Literal

from advisor.records import Think
from advisor.run.figures import JudgeSection, OfMethod, OfModel, Scored
from advisor.run.result import Provenance, Weights
from ensemble.common.schema import Count, Figure, Interval, Line, Points, Positive, Schema


class EvaluatedModel(Scored, OfModel):
    """A member of the set alone."""

    mean_length: Figure = None
    """mean length of its responses, in characters"""
    ms_per_token: Figure = None
    """milliseconds of a token"""
    seconds_per_question: Figure = None
    """the time of a question"""
    peak_memory: Figure = None
    """in bytes"""


class EvaluatedMethod(Scored, OfMethod):
    """A method that joins the members, or the control."""

    level: Literal["token", "span", "response", "control"]
    """what it joins; `control` draws responses of the best single model: as many as there are members, or, if these
    think apart, as many as take the tokens of the set"""
    left_out: Line | None = None
    """why it was not run"""
    note: Line | None = None
    """what to know about its figures"""
    difference: Points = None
    """accuracy minus that of the best single model"""
    difference_ci: Interval = None
    """its 95% interval"""
    p_two_sided: Figure = None
    """two-sided p of this difference"""
    p_adjusted: Figure = None
    """after the correction for several methods (Holm); null for the control"""
    gained: Count | None = None
    """number of questions on which it scores more than the best single model"""
    lost: Count | None = None
    """number of questions on which it scores less"""
    tokens_per_question: Figure = None
    """tokens of a question, of all models"""
    ms_per_token: Figure = None
    """milliseconds of a token"""
    seconds_per_question: Figure = None
    """the time of a question"""
    share_ensembled: Figure = None
    """share of the steps in which several members decided, 0 to 1"""
    handled_per_step: Figure = None
    """entries per step whose probabilities were used"""
    peak_memory: Figure = None
    """in bytes"""

    @property
    def p(self) -> float | None:
        """After the correction; the control has none."""
        return self.p_two_sided if self.p_adjusted is None else self.p_adjusted


class Evaluation(Schema):
    """All of ``evaluation.json``."""

    schema_version: Literal[2]
    """2; it grows when a key changes its meaning"""
    task: Line = ""
    """the task"""
    metric: Line = ""
    """how a response becomes a score"""
    split: Line = ""
    """the questions"""
    n: Count = 0
    """their number"""
    signature: Line = ""
    """all that decides the scores, in one line"""
    k: Positive | None = None
    """candidates that each member brings to the union"""
    weights: Weights | Line | None = None
    """the option `--weights`"""
    think: Think | None = None
    """the option `--think`"""
    best_single_model: Line = ""
    """the most accurate member"""
    members: tuple[EvaluatedModel, ...] = ()
    """each member alone, the primary first"""
    methods: tuple[EvaluatedMethod, ...] = ()
    """the methods in the order of the command, then the control"""
    judge: JudgeSection | None = None
    """how the judge decided, as in `result.json`"""
    provenance: Provenance = Provenance()
    """what is needed to repeat it, as in `result.json`"""
