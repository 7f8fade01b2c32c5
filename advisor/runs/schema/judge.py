"""``judge`` of ``result.json`` and ``evaluation.json``: how the judge decided, and how far it can be trusted."""

from __future__ import annotations

from typing import Literal

from advisor.runs.schema.strategy import StrategyKey
from ensemble.common.schema import Count, Figure, Interval, Line, Points, Schema, SparseSchema


class JudgeShare(Schema):
    """A share of the verdicts."""

    n: Count = 0
    """verdicts that it is from"""
    clusters: Count = 0
    """questions that share nothing; the turns of a conversation are one"""
    share: Points = None
    """in points"""
    share_ci: Interval = None
    """its 95% interval over clusters; Wilson's if each has one value"""


class JudgeAgreement(SparseSchema):
    """Agreement with a second judge."""

    n: Count = 0
    """verdicts of both"""
    clusters: Count = 0
    """on so many questions that share nothing"""
    equal: Points = None
    """of comparisons: share with the same winner"""
    kappa: Figure = None
    """of comparisons: Cohen's kappa"""
    within_one: Points = None
    """of grades: share of the responses whose two grades differ by at most one"""
    within_one_ci: Interval = None
    """its 95% interval"""
    spearman: Figure = None
    """of grades: the rank correlation"""
    kendall: Figure = None
    """of grades: the rank correlation"""


class LengthCorrelation(Schema):
    """Length against grade."""

    n: Count = 0
    """responses"""
    spearman: Figure = None
    """the rank correlation of length and grade"""


class JudgedModel(SparseSchema):
    """A model or set and what the judge says of its responses."""

    model: Line
    """its name, or that of the set"""
    matches: Count | None = None
    """comparisons of its responses"""
    log_odds: Figure = None
    """its strength in comparisons"""
    win_rate: Points = None
    """its expected score against all candidates without the effect of the order"""
    win_rate_ci: Interval = None
    """its 95% interval"""
    grades: Count | None = None
    """of grades: their number"""
    score: Points = None
    """its mean score in its comparisons, or its mean grade: 0 is the worst grade, 100 the best"""
    score_ci: Interval = None
    """the interval of a mean grade"""


class JudgedSplit(SparseSchema):
    """The figures of a split; all shares and win rates are in points."""

    split: Line = ""
    """the questions"""
    calls: Count = 0
    """the different prompts that the judge got for them, with those of its second try"""
    verdicts: Count = 0
    """verdicts of the judge"""
    unread: Count = 0
    """those that cannot be read"""
    settled: Count = 0
    """of comparisons: those that needed no judge (equal texts, failed responses)"""
    models: tuple[JudgedModel, ...] = ()
    """each model and set, the best first"""
    groups: tuple[tuple[Line, ...], ...] = ()
    """of comparisons: the models in groups that were compared, directly or over others; groups have no common order"""
    ties: JudgeShare | None = None
    """of comparisons: share of the verdicts that are a tie"""
    first_wins: JudgeShare | None = None
    """of comparisons: share of the decided verdicts that the first response wins; 50 without a preference"""
    equal_first_wins: Points = None
    """of comparisons: the same between two equal models, from the model of the strengths"""
    equal_first_wins_ci: Interval = None
    """its 95% interval"""
    changed: JudgeShare | None = None
    """of comparisons: share of the pairs whose verdict changes with the order"""
    longer_wins: JudgeShare | None = None
    """of comparisons: share of the decided verdicts that the longer response wins"""
    length: LengthCorrelation | None = None
    """of grades: length against grade"""
    agreement: JudgeAgreement | None = None
    """null without a second judge"""


class HeadToHead(StrategyKey):
    """A strategy against the best single model, as the judge compared their responses."""

    rival: Line = ""
    """the best single model"""
    questions: Count = 0
    """questions on which they were compared"""
    win_rate: Points = None
    """a tie is half a win"""
    win_rate_ci: Interval = None
    """its 95% interval"""


class JudgeSection(Schema):
    """How the judge of a task with `metric: judge` decided."""

    mode: Literal["pairwise", "single"]
    """comparisons of two responses, or grades of single ones"""
    judges: tuple[Line, ...] = ()
    """the judge, and the second one if there is one"""
    splits: tuple[JudgedSplit, ...] = ()
    """the figures of the dev questions, and of the held-out ones"""
    head_to_head: tuple[HeadToHead, ...] = ()
    """each strategy whose responses the judge compared with those of the best single model"""
