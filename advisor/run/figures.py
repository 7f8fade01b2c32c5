"""Shapes of a run’s files: what ``result.json`` and ``evaluation.json`` share, and lines of samples and labels."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    ValidationInfo,
    field_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from advisor.strategies.schema import shape_of, strategy_of, with_own_keys
from advisor.strategies.strategy import Decoded, Single, Strategy
from ensemble.common.schema import (
    Count,
    Exact,
    Figure,
    Flag,
    Interval,
    Line,
    Points,
    Prose,
    Schema,
    Share,
    SparseSchema,
    Texts,
    must,
    wrong,
)
from ensemble.common.text import visible
from ensemble.errors import InputError


class StrategyKey(Schema, extra="allow"):
    """A way to answer questions. Its other keys are the strategy's own ones, such as `weights`, `routes` or `draws`."""

    strategy: Line
    """its name, or the method of the set that decodes together"""
    members: Annotated[tuple[Line, ...], must(bool, "a list of names")]
    """the models in the order in which they are asked"""

    _value: Strategy = PrivateAttr()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON Schema, with the own keys of all strategies."""
        return with_own_keys(handler(core), handler, shape_of)

    @model_validator(mode="after")
    def _with_own_keys(self, info: ValidationInfo) -> StrategyKey:
        own = self.model_extra or {}
        values = {"strategy": self.strategy, "members": self.members, **(_clean(own) if info.context else own)}
        try:
            self._value = strategy_of(values, "this", "", to_run=False)
        except InputError as error:
            raise wrong(f"a strategy of this kind ({str(error).removeprefix('this: ').removesuffix('; ')})") from None
        return self

    @property
    def key(self) -> Strategy:
        """The strategy, which tells it from others of a run."""
        return self._value

    @property
    def title(self) -> str:
        """The strategy in few words."""
        return str(self._value)

    @property
    def is_single(self) -> bool:
        """Whether it is one model that answers once, with which the others are compared."""
        return isinstance(self._value, Single)

    @property
    def is_decoded(self) -> bool:
        """Whether it is a set that decodes together; its name is then the method."""
        return isinstance(self._value, Decoded)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, dict):
        return {visible(key): _clean(each) for key, each in value.items()}
    return value


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
    empty: Count | None = None
    """responses without text"""
    refused: Count | None = None
    """questions that it refused to answer"""
    filtered: Count | None = None
    """responses that a filter of its server ended"""
    errors: Count | None = None
    """questions without a response"""
    accuracy_bytes: Points = None
    """in choice tasks: accuracy with likelihoods divided by bytes"""
    accuracy_macro: Points = None
    """mean over the groups of the task; null if the questions have only one group"""
    groups: dict[Line, GroupAccuracy] | None = None
    """for each group `n`, `accuracy` and `accuracy_ci`; null if the questions have only one group"""
    seconds_total: Figure = None
    """the time of all its responses when they were computed; requests at the same time count each"""
    seconds_median: Figure = None
    """the median time of a request to its server, as one client sees it; null for other models"""
    seconds_p95: Figure = None
    """the 95th percentile of these times"""
    tokens_per_second: Figure = None
    """its speed"""
    peak_memory: Figure = None
    """in bytes"""

    @property
    def has_cost(self) -> bool:
        """Whether time, speed or memory is known."""
        return any(value is not None for value in (self.seconds_total, self.tokens_per_second, self.peak_memory))


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
