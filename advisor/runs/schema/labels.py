"""A row of the table of ``advisor label``: a question without a reference, the answers to it, and its label."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from ensemble.common.schema import Exact, Schema


class LabelRow(Schema):
    """A question to label. In a CSV file each answer is a column."""

    model_config = ConfigDict(extra="ignore")

    key: Exact
    """tells the question and its answers from all others"""
    round: Literal["choose", "verify", "accuracy"]
    """what the label is for"""
    question: Exact | None = None
    """its text"""
    answers: dict[Exact, Exact | None] = Field(default_factory=dict)
    """the different answers by letter, in an order that says nothing of the models; null for no answer"""
    right: Exact | None = None
    """the label: the letter of the right answer, several letters, or `none`"""
    reference: Exact | None = None
    """or the right answer itself"""
