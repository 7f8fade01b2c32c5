"""A line of ``samples.jsonl``, a question with all responses, and one of the table of ``advisor label``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, field_serializer, model_validator

from ensemble.common.schema import Count, Exact, Figure, Flag, Line, Prose, Schema, Share, SparseSchema, Texts, wrong

RIGHT = 0.5
"""A response counts as right from this score on, because some metrics have scores between 0 and 1."""


class TracedCandidate(Schema):
    """A token that a step could have taken."""

    text: Prose | None = None
    """its text; null for the end"""
    probabilities: tuple[Share, ...] = ()
    """of each member"""
    mean: Figure = None
    """their weighted mean"""
    wanted_by: tuple[Count, ...] = ()
    """the members among whose likeliest tokens it is, by number"""


class TracedStep(Schema):
    """A step of the decoding."""

    text: Prose | None = None
    """what was written; null for the end"""
    won_by: tuple[Count, ...] = ()
    """the members whose first choice it was, by number; the primary is 0"""
    disagreement: Figure = None
    """how much the members differ, 0 to 1"""
    union: Count | None = None
    """the size of the union"""
    chosen: Count | None = None
    """the candidate that won, by number"""
    candidates: tuple[TracedCandidate, ...] = ()
    """the likeliest candidates"""


class ResponseTrace(Schema):
    """The steps of a response."""

    members: tuple[Line, ...] = ()
    """the models, the primary first"""
    steps: tuple[TracedStep, ...] = ()
    """the steps"""
    left_out: Count = 0
    """steps at the end that were not recorded"""

    @model_validator(mode="after")
    def _is_of_its_members(self) -> ResponseTrace:
        members = len(self.members)
        for step in self.steps:
            numbers = (*step.won_by, *(number for each in step.candidates for number in each.wanted_by))
            if any(number >= members for number in numbers):
                raise wrong("a trace whose steps have numbers of its members")
            if any(len(each.probabilities) != members for each in step.candidates):
                raise wrong("a trace whose candidates have a probability for each member")
        return self


class SampleResponse(SparseSchema):
    """A response to a question."""

    text: Prose | None = None
    """the response without its thinking; null if a log has only answers"""
    extracted: Line | None = None
    """the answer in it; null if none was found"""
    problem: Line | None = None
    """why no answer was found, with the place in the text, where JSON was looked for; else absent"""
    score: Share | None = None
    """between 0 and 1"""
    length: Count | None = None
    """characters of the text; null if it is an option of a choice task"""
    finish_reason: Line | None = None
    """`stop`, `length` or `error`"""
    error: Line | None = None
    """why there is no response"""
    thought: Flag = False
    """whether the model thought before it answered, also where that is not shown; absent with the next one if not"""
    thinking: Prose | None = None
    """what it thought; null where that is not shown"""
    tokens: Count | None = None
    """tokens of thinking and answer; null if they are not known, absent if no model of the run thought"""


class EnsembleResponse(SampleResponse):
    """The response of the set that decodes together."""

    trace: ResponseTrace | None = None
    """its steps, for a few questions"""


class RecommendedAnswer(SparseSchema):
    """What the recommended strategy answers, where it takes one of several responses or writes one from them."""

    model: Line
    """whose response it takes, or who writes it"""
    text: Prose | None = None
    """the response of a fusion; absent where it is one of `responses`"""
    draw: Count = 0
    """which of the responses of one model"""
    extracted: Line | None = None
    """the answer"""
    score: Share | None = None
    """between 0 and 1"""


class Sample(SparseSchema):
    """A question."""

    id: Line
    """of the question"""
    prompt: Prose = ""
    """what the models read"""
    reference: Texts = ()
    """the expected answer: a text, or a list of accepted texts"""
    split: Literal["dev", "held_out"]
    """whether it chose the set or measured it"""
    cluster: Line | None = None
    """what it shares with other questions; absent where questions share nothing"""
    responses: dict[Line, SampleResponse] = Field(default_factory=dict)
    """by model"""
    ensemble: EnsembleResponse | None = None
    """null on questions that no set answered together"""
    recommended: RecommendedAnswer | None = None
    """null unless the recommended strategy takes one of several responses, or writes one from them"""

    @field_serializer("reference")
    def _write_reference(self, reference: tuple[str, ...]) -> Any:
        # Most tasks have one reference, and a plain string is easier to read for programs.
        return reference[0] if len(reference) == 1 else list(reference)


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
