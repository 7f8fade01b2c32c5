"""``result.json``: what a run found, and what repeats it. Accuracies are in points, lengths in characters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from advisor.records import CONFIDENCE, Doubt, LengthUnit, ReasonCode, RunDoubtCode, Shown, Status, Think, Verdict
from advisor.run.figures import Accuracy, GroupAccuracy, JudgeSection, Measured, OfMethod, OfModel, StrategyKey
from ensemble.common.pool_option import with_options
from ensemble.common.schema import (
    Count,
    Exact,
    Figure,
    Flag,
    Interval,
    Json,
    Line,
    Number,
    Points,
    Positive,
    Raw,
    Schema,
    Share,
    SparseSchema,
    must,
    wrong,
)
from ensemble.models.prompts import PromptTemplate
from ensemble.models.spec import options_of_models
from ensemble.servers.address import SavedServer

MEASURES = {"pairwise": "win rate", "single": "grade", "": "accuracy"}
"""What points are called, by the mode of the judge; without a judge they are accuracies."""
Weights = tuple[Annotated[float, Field(strict=True, ge=0, lt=2**31)], ...]
StopTexts = tuple[Annotated[Exact, must(bool, "a text that is not empty")], ...]


class TaskInfo(Schema):
    """The task and its dev questions."""

    name: Line = "unnamed task"
    """its name"""
    metric: Line = ""
    """how a response becomes a score"""
    split: Line = ""
    """the split that the rules were applied to"""
    n: Count = 0
    """the number of its questions"""
    fingerprint: Line = ""
    """a hash of the questions, their references and the prompts"""
    signature: Line = ""
    """all that decides the scores, in one line"""
    shots: Count | None = None
    """worked examples in a prompt"""
    seed: Count | None = None
    """the seed that drew these and the questions"""
    prompt: Line | None = None
    """a hash of the templates, the stop strings and the worked examples"""
    stop: StopTexts | None = None
    """where a response ends"""
    max_new_tokens: Positive | None = None
    """the token limit of a response; null for responses of logs"""
    extract: Exact | None = None
    """what finds the answer in a response: `json`, `tool_call`, or a regular expression"""
    template: PromptTemplate | None = None
    """how a question becomes a prompt; null for logs and for tasks of lm-eval"""
    templates: dict[Exact, PromptTemplate] = Field(default_factory=dict)
    """the same for the models that have their own prompts, by name"""
    notes: tuple[Line, ...] = ()
    """what to know about the scores"""


class RuleLimits(Schema):
    """The limits that decided which models were tried."""

    max_gap: Number = 10.0
    """for the set that decodes together: the largest gap to the primary, in points"""
    max_length_ratio: Annotated[Number, Field(ge=1)] = 2.0
    """for the set that decodes together: the longer over the shorter mean response"""
    max_models: Count | None = None
    """the most members of the set that decodes together"""
    vote_gap: Number = 15.0
    """for votes: the largest gap to the most accurate model, in points"""
    max_voters: Count = 5
    """the most models in a vote"""
    min_gain: Number | None = None
    """points that a strategy with more than one model or call must gain to be recommended; null: 0.2 for each call, or
    where prices are known for each multiple of the price of the single model"""
    within: Number | None = None
    """the cheapest strategy at most so many points below the best one is recommended; null: the best one"""
    budget: Number | None = None
    """dollars of 1,000 questions that the recommended strategy may cost; null: any price"""
    latency: Number | None = None
    """seconds that 95% of its answers may take; null: any time"""
    think: Think | None = None
    """`apart` if members of a set think alone, so that lengths are those of the answers"""


class CandidateFigures(Measured, OfModel):
    """A model of the pool, with the decision of the rules."""

    n: Count | None = None
    """number of its questions"""
    unread: Count | None = None
    """of a log: scores that could not be read, and whose questions are left out"""
    missing: Count | None = None
    """of a log: questions without a response, which count as wrong"""
    failed: Count | None = None
    """of a log: questions at which the model failed, which count as wrong"""
    thinks: Flag = False
    """whether it thinks before at least half of its answers"""
    mean_tokens: Figure = None
    """mean tokens of thinking and answer, by its own tokenizer; null if no candidate thinks, or they are not known"""
    finished_accuracy: Points = None
    """points on the responses that did not end at the token limit; null if none did, or all"""
    enough_tokens: Count | None = None
    """tokens that would be enough for 95% of its responses; null if none ended at the limit, or it is not known"""
    answered: Points = None
    """percent of its responses from which an answer was read; null if the metric searches for the reference"""
    status: Status = "rejected"
    """the decision of the rules; `failed` for a model without answers"""
    reason_code: ReasonCode | None = None
    """why: `primary`, `fits`, over a limit (`gap`, `length`), `full` where the set has no room, `copy` of another
    candidate, a `server` without token probabilities, not in the set of the rules (`other_set`),
    or `failed`"""
    reason: Line | None = None
    """the decision as a sentence, with the figures"""
    doubts: tuple[Doubt, ...] = ()
    """why its figures mean little: `never_right`, over a fifth of the questions `unread`, or nearly all responses the
    `same_text`"""
    close_call: Line | None = None
    """why other questions could change the decision; null if they hardly could"""
    gap_ci: Interval = None
    """the 95% interval of the gap to the primary"""


class PredictedFigures(Schema):
    """A set that can decode together, and what was predicted for it."""

    models: tuple[Line, ...]
    """the members, the primary first"""
    predicted_gain: Points = None
    """points over the best candidate, from the dev questions"""
    predicted_gain_ci: Interval = None
    """the interval: a 90% interval by default"""
    vote: Points = None
    """the accuracy of a vote on the dev questions"""
    oracle: Points = None
    """the accuracy of the best of the members' answers to the dev questions"""
    rules: Flag = False
    """whether the rules choose this set"""
    decoded: Flag = False
    """whether it was decoded on held-out questions"""
    measured_gain: Points = None
    """the measured gain, as in `strategies`; null if the set was not decoded on the held-out questions"""


class Predictions(Schema):
    """The predicted gains of sets."""

    set_by: Literal["rules", "predicted"] = "rules"
    """what the set is chosen by"""
    sets: tuple[PredictedFigures, ...] = ()
    """the ten most promising sets, that of the rules, and all that were decoded; the most promising first"""
    provenance: Json = None
    """the `command` and `commit` that fitted the coefficients, and what they were fitted on: `decode`, `vote`"""
    real_sets: Line = ""
    """what sets of real models came to elsewhere, as a sentence"""


class Pair(Schema):
    """Two candidates on the same questions. The report explains the measures; null for one that is not known."""

    a: Line
    """the first candidate"""
    b: Line
    """the second candidate"""
    gap: Points = None
    """points of accuracy between them"""
    length_ratio: Figure = None
    """the longer mean length over the shorter; null if it is not finite"""
    length_unit: LengthUnit = "characters"
    """the unit of these lengths: `tokens` if one of the two thinks and the tokens of both are known"""
    bleu: Figure = None
    """corpus BLEU of their responses, 0 to 100"""
    both_wrong_same: Figure = None
    """share of the questions on which both give the same wrong answer, 0 to 1"""
    kappa: Figure = None
    """Cohen's kappa of being right"""
    oracle: Points = None
    """points if the better answer were always taken"""

    def known(self) -> dict[str, float]:
        """The measures that are known, by name."""
        return {name: value for name, value in self if isinstance(value, float)}


class GainFigures(Schema):
    """The gain over the best single model, and the questions that it comes from."""

    measured_gain: Points = None
    """estimated from all dev and held-out questions, in points; `cross_fitted` says how"""
    measured_gain_ci: Interval = None
    """its interval: each end is a one-sided limit, so it is a 90% interval by default"""
    predicted_gain: Points = None
    """what the answers of single models to all questions predict; null where nothing was predicted"""
    predicted_gain_ci: Interval = None
    """its interval"""
    expected_gain: Points = None
    """the gain to expect in use: the measured one and the predicted one together, so it lies between them"""
    expected_gain_ci: Interval = None
    """its interval"""
    error_of_folds: Figure = None
    """the part of the measured gain's standard error that other folds would change, in points; null without folds"""
    cross_fitted: Flag | None = None
    """whether all these questions chose and judged it, each fold by what the others chose; else the dev questions chose
    it, and null where nothing was measured"""
    questions: Count | None = None
    """the dev and held-out questions of the estimate"""
    gained: Count | None = None
    """number of questions on which it scores more than the best single model"""
    lost: Count | None = None
    """number of questions on which it scores less"""
    best_single_model: Line | None = None
    """the most accurate model on the dev and held-out questions together"""
    best_single_accuracy: Points = None
    """its accuracy on the held-out questions"""
    p_adjusted: Figure = None
    """one-sided p of no gain after the correction for several strategies; null for a single model"""


class MemberFigures(Measured, OfModel):
    """A member of the set alone, on the same questions as the set."""


class EnsembleResult(GainFigures, Measured, OfMethod):
    """The set that decodes together on held-out questions."""

    k: Positive | None = None
    """candidates that each member brings to the union"""
    weights: Weights | None = None
    """the members' weights, or null for equal ones"""
    think: Think | None = None
    """`apart` if each member thought alone before they answered together"""
    n: Count = 0
    """number of held-out questions"""
    split: Line = ""
    """their split"""
    signature: Line = ""
    """all that decides the scores, in one line"""
    difference: Points = None
    """accuracy minus that of the best single model, on these questions alone"""
    difference_ci: Interval = None
    """its 95% interval"""
    difference_method: Line | None = None
    """the method of the interval"""
    p_two_sided: Figure = None
    """two-sided p of this difference"""
    test: Line | None = None
    """the test"""
    members: tuple[MemberFigures, ...] = ()
    """each member alone on the same questions"""


class GroupFigures(Schema):
    """The gain of a strategy in a group of the questions."""

    group: Line
    """its name"""
    n: Count = 0
    """its questions"""
    observed: Points = None
    """the gain on these questions alone"""
    gain: Points = None
    """the estimated gain, shrunk towards the overall gain"""
    gain_ci: Interval = None
    """its interval"""
    shown: Shown = "not_yet"
    """whether the test shows a gain in this group"""


class StrategyFigures(GainFigures, Accuracy, StrategyKey, extra="allow"):
    """A strategy on the held-out questions."""

    n: Count = 0
    """the questions, the same for all strategies"""
    split: Line | None = None
    """their split"""
    p_no_gain: Figure = None
    """one-sided p of no gain; null for a single model"""
    probability: Share | None = None
    """the probability that it is better than the best single model, by the expected gain; null for a single model"""
    over_one_model: dict[Line, tuple[Number, Number, Number]] | None = None
    """points over each strategy that asks one model several times, by its title, and both ends of their interval, on
    the same questions; null without such a strategy"""
    groups: tuple[GroupFigures, ...] | None = None
    """the gain in each group of the questions, if there are several"""
    calls_per_question: Figure = None
    """responses that a question takes, on average"""
    tokens_per_question: Figure = None
    """tokens that it takes, on average"""
    seconds_per_question: Figure = None
    """the time of the models one after the other"""
    seconds_median: Figure = None
    """the median of a question's time; calls that are made at the same time count once"""
    seconds_p95: Figure = None
    """its 95th percentile"""
    price_per_1000: Figure = None
    """dollars of 1,000 questions; null if it is not known"""


class SingleModel(OfModel):
    """A model that answered the held-out questions alone."""

    n: Count = 0
    """number of the questions"""
    accuracy: Points = None
    """on these questions"""
    accuracy_all: Points = None
    """on the dev and held-out questions together"""
    best_probability: Share | None = None
    """the probability that it is the best of these models, by all these questions"""
    groups: dict[Line, GroupAccuracy] | None = None
    """for each group, its figures on the dev and held-out questions together; null if there is only one group"""
    seconds_per_question: Figure = None
    """the time of a response"""
    price_per_1000: Figure = None
    """dollars of 1,000 questions"""


class RecommendedStrategy(StrategyFigures):
    """What to run: its row of ``strategies``, and why."""

    method: Line | None = None
    """how the set decodes; null for a strategy that asks models one by one"""
    min_gain: Number = 0.0
    """points that it had to be expected to gain; for a single model those of the option, or 0"""
    text: Line = ""
    """what to run and what it gains, in sentences"""


class OracleGain(Schema):
    """What strategies that take one of the models' answers can gain at most over the best single model."""

    points: Number
    """the mean over the questions of how much the best answer is better than that of the best single model; for right
    and wrong answers, the share of questions on which that one is wrong and another one is right"""
    points_ci: tuple[Number, Number]
    """its 95% interval, whichever model is the best: nothing gains more than its upper end"""
    all_wrong: Number
    """the share of questions on which no model is right, in points"""
    n: Count
    """the questions, dev and held-out together"""


class DataWarning(Schema):
    """Why the figures of the candidates may mislead."""

    code: RunDoubtCode
    """why: `few_questions` (fewer than 30), `doubled_questions` (many are there more than once), `no_order` (grades do
    not differ by more than chance), `guessing` (no candidate is shown to be better), `never_right`, `same_text` and
    `unread` of candidates, `fewer_answers` (read from responses as long as those of others), `follows_length` (longer
    responses score higher), `near_copies`, `broken_references` (the strong candidates give one wrong answer where weak
    ones are right), `reference_never_given` (where a text is the reference, no one is right)"""
    text: Line
    """this in a sentence, which `warnings` has, too"""
    models: tuple[Line, ...] = ()
    """the candidates concerned"""
    questions: tuple[Line, ...] = ()
    """the ids of dev questions concerned, at most 20"""
    value: Figure = None
    """the figure behind it: for `no_order` the p-value, for `guessing` its points, for `same_text` the least share of
    one text, for `fewer_answers` the least percentage, for `follows_length` the rank correlation, for `near_copies` the
    share of equal answers, for the others the number of questions"""


class UncomparedStrategy(Schema):
    """A strategy that learned to do what a simpler one does, so that it was not compared."""

    strategy: Line
    """its name"""
    same_as: Line
    """the name of the simpler one: `vote` for a learned vote that is not better than the plain one on the labels"""


class AdviceSection(Schema):
    """What is proven about the set that decodes together, and what to run."""

    verdict: Verdict = "unclear"
    """whether the set that decodes together is shown to be better than the best single model; `worse` also if no set
    can decode together"""
    text: Line = ""
    """the set, its figures and their uncertainty, in sentences"""
    recommendation: RecommendedStrategy | None = None
    """what to run; null if nothing was compared on held-out questions"""
    no_advice: DataWarning | None = None
    """why the answers do not allow an advice yet, so that the recommendation is only what they say so far"""
    warnings: tuple[Line, ...] = ()
    """what the reader must know besides, each a sentence"""
    ceiling: OracleGain | None = None
    """what strategies of all models that answered every question can gain at most; null if nothing was compared"""
    doubts: tuple[DataWarning, ...] = ()
    """why the figures of the candidates may mislead"""
    not_compared: tuple[UncomparedStrategy, ...] = ()
    """strategies that were not compared, because they learned to do what a simpler one does"""
    confidence: Annotated[Number, Field(gt=0, lt=1)] = CONFIDENCE
    """of the intervals of gains: 0.9 by default"""


class InterimAnalysis(Schema):
    """A look at the result on held-out questions."""

    questions: Line
    """what identifies the held-out questions: a hash of the task's name, the split and the seed"""
    members: Annotated[tuple[Line, ...], Field(min_length=1, max_length=100)]
    """what was tested"""
    method: Line
    """how it decodes, or the strategy"""
    k: Positive
    """candidates that each member brings to the union"""
    plan: Annotated[
        tuple[Positive, ...],
        Field(max_length=100),
        must(lambda plan: [*plan] == sorted(set(plan)), "a list of ascending whole numbers"),
    ]
    """the numbers of questions at which looks were planned"""
    n: Positive
    """the number of questions of this look"""
    p_no_gain: Share
    """one-sided p of no gain, without any correction"""
    p_no_loss: Share
    """one-sided p of no loss, likewise"""
    limit: Share
    """the test ends if one of them is at most this"""
    test: Positive
    """the number of the test among all on these questions, from 1"""

    @model_validator(mode="after")
    def _is_of_its_plan(self) -> InterimAnalysis:
        if self.n not in self.plan:
            raise wrong("a look whose n is a number of its plan")
        return self

    @property
    def is_sure(self) -> bool:
        """Whether the test ends with this look, because it shows that the set is better, or worse."""
        return min(self.p_no_gain, self.p_no_loss) <= self.limit

    @property
    def corrects(self) -> bool:
        """Whether it changes p-values and intervals: the only look of the first test changes none."""
        return len(self.plan) > 1 or self.test > 1

    @property
    def inputs(self) -> tuple[object, ...]:
        """What a run with the same inputs has, too: without the limit, which depends on alpha."""
        return self.questions, self.members, self.method, self.k, self.plan, self.n, self.p_no_gain, self.p_no_loss


@with_options({name: each for name, each in options_of_models(remote=False).items() if each.goes.result})
class ModelSource(SparseSchema):
    """Where a model comes from, and how it ran."""

    path_or_id: Raw | None = None
    """a folder, a hub id, or a server's address"""
    revision: Raw | None = None
    """the commit on the hub"""
    files: dict[Raw, Raw] = Field(default_factory=dict)
    """the SHA-256 of each file"""
    day: Json = None
    """of a server: the day on which it answered"""
    says: Json = None
    """of a server: what it says of the model"""
    remote: SavedServer | None = None
    """of a server: its address, and the options of its line"""


class LogOrigin(Schema):
    """A log that responses come from."""

    path: Line = ""
    """the file or folder"""
    format: Line = ""
    """its format"""


class ScoringSource(Schema):
    """What scored the responses of logs again."""

    metric: Line | None = None
    """the metric"""
    extract: Exact | None = None
    """what finds the answer in a response: `json`, `tool_call`, or a regular expression"""


class Loads(Schema):
    """How often a model was loaded."""

    count: Count = 0
    """the loads; more than 1 where the memory does not hold all models"""
    seconds_total: Figure = None
    """of all loads together"""
    threads: Positive | None = None
    """torch's threads, by a measurement at the first load; null if nothing was measured"""


class Provenance(SparseSchema):
    """What is needed to repeat the run."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Json] = Field(init=False)

    command: Line | None = None
    """the command line"""
    seed: Count | None = None
    """of everything that is drawn"""
    versions: dict[Line, Line] = Field(default_factory=dict)
    """of the packages that can change a number, and of those that plug-ins came from"""
    engine: Line | None = None
    """where the models ran: `local` or `ray`"""
    machine: Line | None = None
    """the operating system and the processor"""
    device: Line | None = None
    """what the models had"""
    dtype: Line | None = None
    """the numeric types of their weights"""
    chat_template: Line | None = None
    """the option of the run"""
    data: Line | None = None
    """the data set of the hub and its commit; null for other data"""
    models: dict[Line, ModelSource] = Field(default_factory=dict)
    """of each model, where it comes from, with the hashes of its files"""
    judges: dict[Line, ModelSource] | None = None
    """of each judge, likewise"""
    loads: dict[Line, Loads] = Field(default_factory=dict)
    """of each model and judge whose weights this process has loaded: how often, and the time; as long as the result is
    the same, that of the run that wrote it first"""
    logs: tuple[LogOrigin, ...] = ()
    """of a run on logs: each log"""
    scoring: ScoringSource | None = None
    """of a run on logs: what scored the responses again; null if nothing did"""
    profiles: Line | None = None
    """of a run on published numbers: their file"""
    settings: dict[str, Any] | None = None
    """the options that decide the result, the `models` with what their lines set, and the fingerprints of the
    `questions`, by which a later run finds out whether this folder is for the same run"""
    date: Line | None = None
    """when this result was first written, in UTC; a rerun that comes to the same result keeps it"""


class Result(Schema):
    """All of ``result.json``."""

    schema_version: Literal[2]
    """2; it grows when a key changes its meaning"""
    task: TaskInfo = TaskInfo()
    """the task and its dev questions"""
    rules: RuleLimits = RuleLimits()
    """the limits of the run"""
    candidates: tuple[CandidateFigures, ...] = ()
    """the leaderboard, best first"""
    selected: tuple[Line, ...]
    """the chosen set, the primary first; only the primary if no candidate fits it"""
    prediction: Predictions | None = None
    """null where no two candidates can decode together"""
    pairs: tuple[Pair, ...] = ()
    """each pair of the 100 most accurate profiled candidates"""
    ensemble: EnsembleResult | None = None
    """null, or the result of the set on held-out questions"""
    strategies: tuple[StrategyFigures, ...] = ()
    """everything that could run in production, on the same held-out questions, the best first; empty without them"""
    single_models: tuple[SingleModel, ...] = ()
    """each model that answered the held-out questions alone"""
    advice: AdviceSection = AdviceSection()
    """what is proven, and what to run"""
    looks: tuple[InterimAnalysis, ...] = ()
    """the looks at the held-out questions, of this run and of earlier ones in the same folder"""
    judge: JudgeSection | None = None
    """for a task with `metric: judge` how the judge decided; else null"""
    provenance: Provenance = Provenance()
    """what is needed to repeat the run"""

    @property
    def primary(self) -> CandidateFigures | None:
        """The best candidate, to which the rules compare the others; None if all failed."""
        return next((candidate for candidate in self.candidates if candidate.status == "primary"), None)

    @property
    def chosen(self) -> tuple[CandidateFigures, ...]:
        """The candidates of the chosen set, the primary first."""
        by_name = {candidate.model: candidate for candidate in self.candidates}
        # A set may name a model that is no longer among the candidates.
        return tuple(by_name[name] for name in self.selected if name in by_name)

    @property
    def best_single(self) -> CandidateFigures | None:
        """The candidate that gains are measured against: the best one on all questions, else the primary."""
        runs = (*self.strategies, self.ensemble)
        name = next((run.best_single_model for run in runs if run and run.best_single_model), "")
        return next((candidate for candidate in self.candidates if candidate.model == name), self.primary)

    @property
    def alone(self) -> StrategyFigures | None:
        """The row of the best single model among the strategies; None if it has none."""
        return next((row for row in self.strategies if row.is_single and row.members == (row.best_single_model,)), None)

    @property
    def single_level(self) -> float | None:
        """The points of the best single model on the questions that gains are estimated from."""
        runs = [run for run in (*self.strategies, self.ensemble) if run]
        names = {run.best_single_model for run in runs}
        own = [each.accuracy_all for each in self.single_models if each.model in names]
        return next((each for each in (*own, *(run.best_single_accuracy for run in runs)) if each is not None), None)

    def level(self, row: StrategyFigures) -> float | None:
        """The points to expect of a strategy: the best single model's and the expected gain, as they are shown."""
        before = self.single_level
        if before is None or row.expected_gain is None:
            return row.accuracy
        return round(before, 1) + round(row.expected_gain, 1)

    @property
    def roles(self) -> dict[str, str]:
        """What each model does in the recommended strategy, by name; models that are not in it are left out."""
        own = self.advice.recommendation
        return {} if own is None else {name: own.key.ROLE.format(n=n) for n, name in enumerate(own.members, 1)}

    @property
    def can_decode(self) -> bool:
        """Whether models can decode together: those of logs are not here."""
        return not self.provenance.logs

    @property
    def measure(self) -> str:
        """What the points of a model are: its accuracy, by a judge its win rate or its grade, else a mean score."""
        return "score" if self.judge is None and self.is_graded else MEASURES[self.judge.mode if self.judge else ""]

    @property
    def is_graded(self) -> bool:
        """Whether points are means of grades (a judge, BLEU, chrF), so that no answer is simply right or wrong."""
        return self.judge is not None or any(each.corpus_score is not None for each in self.candidates)

    @property
    def held_out(self) -> int:
        """The number of held-out questions; 0 if none was asked."""
        return next((run.n for run in (self.ensemble, *self.strategies) if run), 0)

    @property
    def length_unit(self) -> LengthUnit:
        """The unit in which drawings have all lengths: tokens if a candidate thinks, and those of all are known."""
        known = [each.mean_tokens is not None for each in self.candidates if each.status != "failed"]
        return "tokens" if any(each.thinks for each in self.candidates) and all(known) else "characters"

    def length_of(self, candidate: CandidateFigures) -> float | None:
        """A candidate's mean length in this unit."""
        return candidate.mean_tokens if self.length_unit == "tokens" else candidate.mean_length

    @property
    def short_names(self) -> dict[str, str]:
        """The candidates' names in drawings: hub ids and paths without their owners, if these are unique."""
        names = [candidate.model for candidate in self.candidates]
        tails = [name.rstrip("/").rsplit("/", 1)[-1] for name in names]
        # Two owners may have models of the same name.
        return dict(zip(names, tails if len(set(tails)) == len(set(names)) else names, strict=True))
