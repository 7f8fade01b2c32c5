"""The values that the stages of the pipeline exchange: answers, profiles, the rules' limits and their decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from statistics import median
from typing import Literal, get_args

FinishReason = Literal["eos", "stop", "length", "refused", "filtered", "error", "unknown"]
"""``refused``: the model does not answer. ``filtered``: a filter of the server ended the response. ``error``: there is
no response. ``unknown``: a log does not say it."""
NO_ANSWER = ("empty", "refused", "filtered")
"""Why a response has no answer: its text is empty, the model refused, or a filter of the server ended it."""
Status = Literal["primary", "selected", "rejected", "failed"]
ReasonCode = Literal["primary", "fits", "gap", "length", "full", "copy", "server", "other_set", "failed"]
"""Why a candidate has its status. ``gap`` and ``length``: it is over this limit, ``gap`` where it is over both.
``full``: it fits, and the set has no room. ``copy``: the same model as another candidate. ``server``: it
cannot be decoded token by token. ``other_set``: not the set of the rules."""
Doubt = Literal["never_right", "unread", "same_text"]
"""Why the figures of a candidate mean little: no response is right, over a fifth of the questions have none, or nearly
all responses are the same text."""
RunDoubtCode = Literal[
    "few_questions",
    "doubled_questions",
    "no_order",
    "guessing",
    Doubt,
    "fewer_answers",
    "follows_length",
    "near_copies",
    "broken_references",
    "reference_never_given",
]
"""Why the figures of a run may mislead: that its questions are few, or many are asked more than once; that no model's
grades differ by more than chance; that all candidates are no better than guessing, or some have a doubt;
that fewer answers were read from some; that longer responses score higher; that two candidates are nearly the same
model; that on some questions the strong candidates give one wrong answer where weak ones are right; that no candidate
is right where a text is the reference."""
Amount = Literal["tokens", "prompt_tokens", "seconds", "dollars"]
AMOUNTS: tuple[Amount, ...] = get_args(Amount)
Verdict = Literal["better", "worse", "equal", "unclear"]
Shown = Literal["yes", "not_yet", "no"]
LengthUnit = Literal["characters", "tokens"]
Think = Literal["apart"]
"""How the members of a set think that decode together; see :mod:`ensemble.decode.thinking`."""

_MOST_UNKNOWN = 0.1
"""The share of responses whose tokens or dollars may be unknown, for example those of requests that failed."""
CONFIDENCE = 0.9
"""The two-sided confidence of the intervals of gains by default."""
ALPHA = 0.05
"""The probability of an error on one side that belongs to it: that the truth is beyond one end of an interval, and that
a one-sided test shows what is not there. Formulas take it; options and files have the confidence."""
FIGURE_CONFIDENCE, FIGURE_ALPHA = 0.95, 0.025
"""The same of single figures (accuracies, gaps, a judge's shares) and of pairs of models."""
TRIES = 4
"""Sets that ``--set-by predicted`` decodes at most."""
MOST_QUESTIONS = 850
"""Held-out questions that a run with --until-sure asks at most by default: enough to show a gain of 5 points with a
probability of 0.95 (`python -m benchmarks.studies.advice`, `sequential_power_gain5`)."""
MOST_NEEDED = 20_000
"""Questions that a user can be asked for; a gain that needs more hardly pays."""
TOLERANCE = 1e-9
"""How far a figure may exceed a limit and still count as within it, in the figure's own unit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One model's (or the ensemble's) graded response to one question."""

    id: str
    text: str | None  # untrusted, without the model's thinking; None if a log has only its score
    extracted: str | None  # the part of the response that the metric scores; None if it found nothing
    score: float  # 0 to 1
    finish_reason: FinishReason
    error: str | None = None  # the reason in one line, if ``finish_reason`` is ``error``
    # For a choice task, their log-probabilities; None for one that cannot be tokenized.
    options: tuple[float | None, ...] = ()
    group: str | None = None  # the part of the task that the question belongs to
    logged_length: int | None = None  # characters, if a log has this number and no text
    tokens: int = field(default=0, compare=False)  # with those of the thinking; 0 if they are not known
    prompt_tokens: int = field(default=0, compare=False)  # 0 if they are not known
    seconds: float = field(default=0.0, compare=False)  # of a batch, its share; 0 if it is not known
    thinking: str | None = None  # None if the model did not think, or does not show it
    thought: bool = False  # whether it thought, also where that is not shown
    dollars: float | None = field(default=None, compare=False)  # if a log has this number
    problem: str | None = None  # why nothing was extracted, see :class:`advisor.tasks.task.Score`
    waited: float = field(default=0.0, compare=False)  # seconds that a client waited for a server

    @property
    def length(self) -> int | None:
        """Characters that a reader sees; None if it is an option, or if a log has neither the text nor this number."""
        # The task wrote the option. Its length says nothing about how the model writes.
        if self.options:
            return None
        return self.logged_length if self.text is None else len(self.text)


@dataclass(frozen=True, slots=True)
class Cost:
    """The resources that a profile's responses took when they were computed."""

    seconds: float  # time of all responses together
    tokens: int  # generated tokens
    steps: int = 0  # with those that chose EOS; see :class:`ensemble.decode.sequences.Counts`
    ensembled_steps: int = 0  # steps in which several members took part
    vocabulary_entries: int = 0  # vocabulary entries whose probabilities were read, summed over all steps
    prompt_tokens: int = 0  # 0 if they are not known
    thinking_tokens: int = 0  # those of ``tokens`` that were thinking, where they are counted apart
    peak_memory: int | None = None  # bytes, see :func:`advisor.models.local_model.peak_memory`

    def tokens_of_set(self, members: int) -> int:
        """Tokens of all members that wrote these texts together: the answer once each, and all thinking."""
        return members * (self.tokens - self.thinking_tokens) + self.thinking_tokens

    @classmethod
    def total(cls, costs: Sequence[Cost]) -> Cost:
        """The cost of several profiles together."""
        prompts = [each.prompt_tokens for each in costs]
        return cls(
            seconds=sum(each.seconds for each in costs),
            tokens=sum(each.tokens for each in costs),
            steps=sum(each.steps for each in costs),
            ensembled_steps=sum(each.ensembled_steps for each in costs),
            vocabulary_entries=sum(each.vocabulary_entries for each in costs),
            # The tokens of some prompts alone would be too low a price.
            prompt_tokens=sum(prompts) if all(prompts) else 0,
            thinking_tokens=sum(each.thinking_tokens for each in costs),
            peak_memory=max((each.peak_memory for each in costs if each.peak_memory is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """The input of the rules: a candidate's accuracy in points, and its mean lengths, None if they are not known."""

    model: str
    accuracy: float
    mean_length: float | None
    chooses: bool = False  # among options, so that it has no length
    mean_tokens: float | None = None  # of thinking and answer, by its tokenizer
    thinks: bool = False


@dataclass(frozen=True)
class Profile:
    """The answers of one model or set to the questions of one split, in their order, and what they cost."""

    model: str
    answers: tuple[Answer, ...]
    # Measured times differ from run to run; two profiles with the same answers are equal.
    cost: Cost = field(default=Cost(0.0, 0), compare=False)

    def part(self, numbers: Sequence[int]) -> Profile:
        """The answers to some of the questions, by their numbers, with a proportional share of the cost."""
        share = len(numbers) / len(self.answers) if self.answers else 0.0
        names = ("tokens", "prompt_tokens", "thinking_tokens")
        counts = {name: round(getattr(self.cost, name) * share) for name in names}
        cost = replace(self.cost, seconds=self.cost.seconds * share, **counts)
        return Profile(self.model, tuple(self.answers[number] for number in numbers), cost)

    @cached_property
    def accuracy(self) -> float:
        """Mean score, in points (0 to 100)."""
        return 100 * _mean([answer.score for answer in self.answers])

    @cached_property
    def mean_length(self) -> float | None:
        """Mean characters of responses that did not fail, or 0; None for a choice task, or if one is not known."""
        # An answer that failed has no text; its length of 0 would pass for a terse model.
        lengths = [answer.length for answer in self.answers if answer.error is None]
        known = [length for length in lengths if length is not None]
        return None if len(known) < len(lengths) else _mean(known or [0])

    @property
    def mean_tokens(self) -> float | None:
        """Mean tokens of the responses and their thinking; None for a choice task, or if over a tenth lack them."""
        read = [answer for answer in self.answers if answer.error is None]
        known = [answer.tokens for answer in read if answer.tokens and not answer.options]
        return _mean(known) if known and len(known) >= (1 - _MOST_UNKNOWN) * len(read) else None

    def amounts(self, name: Amount) -> tuple[float, ...] | None:
        """What each response took, or else the mean; None if that is not known of more than a tenth of them."""
        values = [getattr(answer, name) for answer in self.answers]
        if name != "dollars":
            # What gave no response took none of these; of another one, 0 means that it is not known.
            values = [
                value or (None if answer.error is None else 0)
                for value, answer in zip(values, self.answers, strict=True)
            ]
        known = [value for value in values if value is not None]
        if not known or len(known) < (1 - _MOST_UNKNOWN) * len(values):
            return None
        mean = _mean(known)
        return tuple(mean if value is None else value for value in values)

    @property
    def thinks(self) -> bool:
        """Whether the model thinks before it answers: before at least half of the answers."""
        return 0 < len(self.answers) <= 2 * sum(answer.thought for answer in self.answers)

    @property
    def standing(self) -> Standing:
        """The profile's figures that the rules read."""
        chooses = any(answer.options for answer in self.answers)
        return Standing(self.model, self.accuracy, self.mean_length, chooses, self.mean_tokens, self.thinks)

    @property
    def errors(self) -> int:
        """Questions without a response. They count as wrong, and not for the mean length."""
        return sum(answer.error is not None for answer in self.answers)

    @property
    def groups(self) -> dict[str, Profile]:
        """The answers to each part of the task, sorted by the part's name."""
        # Sorted by name below, so that the same answers in another order give the same JSON.
        numbers: dict[str, list[int]] = {}
        for number, answer in enumerate(self.answers):
            if answer.group is not None:
                numbers.setdefault(answer.group, []).append(number)
        return {name: self.part(numbers[name]) for name in sorted(numbers)}

    @property
    def no_answer(self) -> dict[str, int]:
        """Responses without an answer that were not cut off, by the reason."""
        ends = [
            "empty" if answer.finish_reason in ("eos", "stop") and answer.text == "" else answer.finish_reason
            for answer in self.answers
            if not answer.options
        ]
        return {reason: ends.count(reason) for reason in NO_ANSWER}

    @property
    def request_seconds(self) -> tuple[float, float] | None:
        """The median and the 95th percentile of a server's times; None for other models."""
        times = sorted(answer.waited for answer in self.answers if answer.waited)
        return (median(times), times[math.ceil(0.95 * len(times)) - 1]) if times else None

    @property
    def truncated(self) -> int:
        """Responses that were cut off at the token limit."""
        return sum(answer.finish_reason == "length" for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of section 4.1 for sets that decode together, and those of votes and recommendations.

    All are inclusive; :class:`advisor.run.result.RuleLimits` describes each, and
    :class:`advisor.options.shared.LimitsOptions` checks what users give.
    """

    max_gap: float = 10.0
    max_length_ratio: float = 2.0
    max_models: int = 3
    vote_gap: float = 15.0
    max_voters: int = 5
    min_gain: float | None = None
    within: float | None = None
    budget: float | None = None
    latency: float | None = None
    think: Think | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The status of one candidate, and the reason: as a code for programs, and as a sentence with the figures."""

    model: str
    status: Status
    reason_code: ReasonCode
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The result of the rules: a decision for each candidate, best first, and the chosen set, the primary first."""

    decisions: tuple[Decision, ...]
    selected: tuple[str, ...]


def alpha_of(confidence: float) -> float:
    """The probability that the truth is beyond one end of an interval that has a two-sided confidence."""
    # (1 - 0.9) / 2 is 0.05 only with fewer digits, and the limits of tests are compared with it.
    return round((1 - confidence) / 2, 12)


def gap(a: float, b: float) -> float:
    """Distance of two accuracies, in absolute points: the paper calls 73.46 against 59.67 a gap of 15%."""
    return abs(a - b)


def compared_lengths(
    a: Standing | Profile, b: Standing | Profile, limits: Limits = Limits()
) -> tuple[float | None, float | None, LengthUnit]:
    """The mean lengths of two models in the unit in which they are compared.

    Characters, as in the paper: tokens of different tokenizers differ in size. But if one of the two thinks, what a
    reader sees is not what it wrote, and thinking may be hidden; then tokens, if they are known of both. Where the
    members of a set think apart, they write only the answers together.
    """
    if limits.think is None and (a.thinks or b.thinks) and a.mean_tokens is not None and b.mean_tokens is not None:
        return a.mean_tokens, b.mean_tokens, "tokens"
    return a.mean_length, b.mean_length, "characters"


def length_ratio(a: float | None, b: float | None) -> float | None:
    """Longer mean length over shorter (section 4.1), infinite if only one is 0; None if one is not known."""
    if a is None or b is None:
        return None
    shorter, longer = min(a, b), max(a, b)
    if shorter == 0:
        return 1.0 if longer == 0 else math.inf
    return longer / shorter


def within(value: float, limit: float) -> bool:
    """Whether a gap or a length ratio is within its limit, which is inclusive."""
    # In floating point 20.1 - 10.1 is 10.000000000000002, and rounding must not reject. Accuracies on n questions are
    # 100 / n points apart, so the tolerance accepts no figure that is really above the limit.
    return value <= limit + TOLERANCE


def join(names: Sequence[str]) -> str:
    """Names in a sentence: ``a, b and c``; at least one."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def fits(name: str, pattern: str) -> bool:
    """Whether a name is one that a user gave, or fits it as a glob; case-sensitive."""
    # Compared first, because a name with square brackets does not fit itself as a glob.
    return name == pattern or fnmatchcase(name, pattern)


def fits_patterns(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is among those of ``--only``: it fits a glob, if there are any, and none after ``!``."""
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return (not wanted or any(fits(name, pattern) for pattern in wanted)) and not any(
        fits(name, pattern) for pattern in unwanted
    )


def signed(value: float) -> str:
    """A difference in points with its sign, and without one if it rounds to zero."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
