"""The figures that a candidate, a member, a method and a set have alike."""

from __future__ import annotations

from typing import Final

from ensemble.common.schema import Count, Figure, Interval, Line, Points, Schema

SCHEMA_VERSION: Final = 2
"""Of ``result.json`` and ``evaluation.json``; it grows when a key changes its meaning."""


# A file has the keys of a class's last base first, so a base with the name comes last.
class OfModel(Schema):
    """Whose figures they are: a model's."""

    model: Line
    """its name"""

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.model


class OfMethod(Schema):
    """Whose figures they are: those of a set with a method."""

    method: Line
    """its name"""

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.method


class GroupAccuracy(Schema):
    """The accuracy on a group of the questions."""

    n: Count = 0
    """number of its questions"""
    accuracy: Points = None
    """on these questions"""
    accuracy_ci: Interval = None
    """its 95% interval; null with more than 100 groups"""


class Accuracy(Schema):
    """An accuracy with its interval."""

    accuracy: Points = None
    """on these questions; null if it failed"""
    accuracy_ci: Interval = None
    """the ends of its 95% interval"""


class Scored(Accuracy):
    """An accuracy, and the score of all responses together."""

    corpus_score: Points = None
    """BLEU or chrF of all responses together, as papers report it; null for other metrics"""
    corpus_score_ci: Interval = None
    """its 95% interval by a bootstrap over the questions"""


class Measured(Scored):
    """What was measured on the responses of a model or a set."""

    mean_length: Figure = None
    """mean length of its answers, in characters; null for tasks with options"""
    truncated: Count | None = None
    """responses that ended at the token limit"""
    errors: Count | None = None
    """questions without a response"""
    accuracy_bytes: Points = None
    """in choice tasks: accuracy with likelihoods divided by bytes"""
    ece: Figure = None
    """in choice tasks: the expected calibration error, 0 to 1"""
    accuracy_macro: Points = None
    """mean over the groups of the task; null if the questions have only one group"""
    groups: dict[Line, GroupAccuracy] | None = None
    """for each group `n`, `accuracy` and `accuracy_ci`; null if the questions have only one group"""
    seconds_total: Figure = None
    """the time of all its responses when they were computed"""
    tokens_per_second: Figure = None
    """its speed"""
    peak_memory: Figure = None
    """in bytes"""

    @property
    def has_cost(self) -> bool:
        """Whether time, speed or memory is known."""
        return any(value is not None for value in (self.seconds_total, self.tokens_per_second, self.peak_memory))
