"""The contents of ``result.json`` and ``samples.jsonl``. Accuracies are in points, lengths in characters.

Programs read a finished run from these two files. The objects here exist only during the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from advisor.advice.comparison import StrategyResult
from advisor.advice.doubts import answer_shares, doubts_of, enough_tokens, finished_accuracy
from advisor.advice.gain import Ceiling
from advisor.advice.groups import GroupGain
from advisor.advice.recommendation import Recommendation
from advisor.advice.sequential import Look
from advisor.advice.verdict import Advice, Margin
from advisor.compare.pairs import Pair
from advisor.jobs.held_out import Verified
from advisor.profile.calibration import accuracy_by_bytes
from advisor.records import CONFIDENCE, Answer, Decision, Limits, Profile, Selection, Standing
from advisor.runs.schema.figures import SCHEMA_VERSION, GroupAccuracy, JudgeSection
from advisor.runs.schema.result import (
    AdviceSection,
    CandidateFigures,
    CeilingFigures,
    CutOffFigures,
    EnsembleResult,
    GroupCeiling,
    GroupFigures,
    LookRecord,
    MemberFigures,
    PairFigures,
    Predictions,
    Provenance,
    RecommendedStrategy,
    Result,
    RuleLimits,
    RunDoubtFigures,
    SingleModel,
    StrategyFigures,
    TaskInfo,
    UncomparedStrategy,
)
from advisor.runs.schema.samples import EnsembleResponse, RecommendedAnswer, ResponseTrace, Sample, SampleResponse
from advisor.statistics import Interval, accuracy_interval
from advisor.strategies.decoded import Decoded
from advisor.strategies.fusion import Fusion
from advisor.strategies.replay import Spent
from advisor.strategies.schema import strategy_json
from advisor.strategies.single import Single
from advisor.tasks.task import Task
from ensemble.models.spec import Price

_MOST_INTERVALS = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results of a run.

    Attributes:
        task_info: ``task`` of ``result.json``.
        rules: The limits of the run.
        standings: Accuracy and length of each candidate that was profiled.
        selection: What the rules decided.
        failures: Model and reason of each candidate that could not be profiled.
        pairs: Every pair of profiled candidates.
        advice: The verdict.
        task: The dev questions; None for a run on numbers instead of models.
        profiles: The candidates' answers to them.
        dropped: The answers of copies of other candidates.
        intervals: The interval of each candidate's accuracy, in points, by name.
        margins: How close each decision was, by name.
        prediction: ``prediction`` of ``result.json``; None where no two candidates can decode together.
        verified: The set on held-out questions; None if it was not run there.
        held_out: The held-out questions; None if no model was asked them.
        alone: Single models' answers to them: the set's members, and the models that it is compared with.
        strategies: All strategies on the held-out questions, the best first.
        prices: What the tokens of models cost, by name; models without a known price are left out.
        traces: The steps of some of its responses, by the question's number; see :mod:`advisor.jobs.traces`.
        looks: The looks at held-out questions, of this run and of earlier ones in the same folder.
        judge: ``judge`` of ``result.json``; None for a task without a judge.
        lost: For each model of logs how many scores are ``unread``, and how many responses ``missing`` or ``failed``.
        provenance: What is needed to repeat the run.
    """

    task_info: TaskInfo
    rules: Limits
    standings: tuple[Standing, ...]
    selection: Selection
    failures: Mapping[str, str]
    pairs: tuple[Pair, ...]
    advice: Advice
    task: Task | None = None
    profiles: tuple[Profile, ...] = ()
    dropped: tuple[Profile, ...] = ()
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    margins: Mapping[str, Margin] = field(default_factory=dict)
    prediction: Mapping[str, Any] | None = None
    verified: Verified | None = None
    held_out: Task | None = None
    alone: tuple[Profile, ...] = ()
    strategies: tuple[StrategyResult, ...] = ()
    prices: Mapping[str, Price] = field(default_factory=dict)
    traces: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    looks: tuple[Look, ...] = ()
    judge: Mapping[str, Any] | None = None
    lost: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


def task_info(task: Task, max_new_tokens: int | None) -> TaskInfo:
    """``task`` of ``result.json``; without a limit of tokens for responses of logs."""
    return TaskInfo(
        name=task.name,
        metric=task.metric,
        split=task.split,
        n=len(task.examples),
        fingerprint=task.fingerprint,
        signature=str(task.signature),
        shots=task.signature.shots,
        seed=task.signature.seed,
        prompt=task.signature.prompt,
        stop=task.stop,
        max_new_tokens=max_new_tokens,
        extract=task.extract,
        template=task.template,
        notes=task.notes,
    )


def result_of(outcome: Outcome, settings: Mapping[str, Any] | None = None) -> Result:
    """The contents of ``result.json``.

    Args:
        outcome: All results of the run.
        settings: The options that decide the result, by which a later run finds out whether the folder is for it.
    """
    standings = {standing.model: standing for standing in outcome.standings}
    profiles = {profile.model: profile for profile in (*outcome.profiles, *outcome.dropped)}
    standings |= {profile.model: profile.standing for profile in outcome.dropped}
    shares = {} if outcome.task is None else answer_shares(list(profiles.values()), outcome.task)
    candidates = [
        _candidate(decision, standings[decision.model], profiles.get(decision.model), outcome, shares)
        for decision in outcome.selection.decisions
    ]
    failed = [
        CandidateFigures(model=model, status="failed", reason_code="failed", reason=reason)
        for model, reason in outcome.failures.items()
    ]
    advice = outcome.advice
    return Result(
        schema_version=SCHEMA_VERSION,
        task=outcome.task_info,
        rules=RuleLimits(**asdict(outcome.rules)),
        candidates=(*candidates, *failed),
        selected=outcome.selection.selected,
        prediction=None if outcome.prediction is None else Predictions.model_validate(outcome.prediction),
        pairs=tuple(PairFigures(**asdict(pair)) for pair in outcome.pairs),
        ensemble=None if outcome.verified is None else _ensemble(outcome.verified, outcome),
        strategies=tuple(_strategy_figures(result, outcome) for result in outcome.strategies),
        single_models=tuple(
            _single(profile, profiles.get(profile.model), outcome.prices.get(profile.model))
            for profile in outcome.alone
        ),
        advice=AdviceSection(
            verdict=advice.verdict,
            text=advice.text,
            questions_needed=advice.questions_needed,
            recommendation=_recommendation(advice.recommendation),
            warnings=advice.warnings,
            ceiling=_ceiling(advice.ceiling),
            group_ceilings=tuple(
                GroupCeiling(group=name, **_ceiling_figures(own)) for name, own in advice.group_ceilings.items()
            ),
            cut_off=None if advice.cut_off is None else CutOffFigures(**asdict(advice.cut_off)),
            doubts=tuple(RunDoubtFigures(**asdict(each)) for each in advice.doubts),
            not_compared=tuple(
                UncomparedStrategy(strategy=each.name, same_as=each.same_as or "") for each in advice.not_compared
            ),
            confidence=CONFIDENCE,
        ),
        looks=tuple(LookRecord(**asdict(look)) for look in outcome.looks),
        judge=None if outcome.judge is None else JudgeSection.model_validate(outcome.judge),
        provenance=Provenance(**{**outcome.provenance, **({} if settings is None else {"settings": dict(settings)})}),
    )


def samples_of(outcome: Outcome) -> Iterator[Sample]:
    """The lines of ``samples.jsonl``: the dev questions, then the held-out ones."""
    if outcome.task is not None:
        yield from _samples(outcome.task, "dev", (*outcome.profiles, *outcome.dropped))
    if outcome.held_out is not None:
        together = outcome.verified.ensemble if outcome.verified is not None else None
        yield from _samples(
            outcome.held_out, "held_out", outcome.alone, together, outcome.traces, _recommended(outcome)
        )


def _candidate(
    decision: Decision, standing: Standing, profile: Profile | None, outcome: Outcome, shares: Mapping[str, float]
) -> CandidateFigures:
    model = decision.model
    margin = outcome.margins.get(model)
    doubtful = margin is not None and (margin.order_flips or margin.gap_flips or margin.length_flips)
    return CandidateFigures(
        model=model,
        accuracy=standing.accuracy,
        accuracy_ci=outcome.intervals.get(model),
        n=len(profile.answers) if profile else None,
        thinks=standing.thinks,
        mean_tokens=standing.mean_tokens if any(each.thinks for each in outcome.standings) else None,
        finished_accuracy=finished_accuracy(profile) if profile and profile.truncated else None,
        enough_tokens=enough_tokens(profile) if profile and profile.truncated else None,
        mean_length=standing.mean_length,
        answered=shares.get(model),
        **_measured(profile),
        **outcome.lost.get(model, {}),
        **_details(profile, outcome.task),
        status=decision.status,
        reason_code=decision.reason_code,
        reason=decision.reason,
        doubts=doubts_of(profile) if profile else (),
        close_call=margin.text if margin is not None and doubtful else None,
        gap_ci=margin.gap_ci if margin else None,
        length_ratio_ci=margin.length_ratio_ci if margin else None,
    )


def corpus_figures(profile: Profile | None, task: Task) -> dict[str, Any]:
    """The score of all responses together and its interval, in points; nulls for tasks without one."""
    texts = {answer.id: answer.text for answer in profile.answers} if profile else {}
    score, interval = (task.corpus_score(texts) if texts else None) or (None, None)
    return {"corpus_score": score, "corpus_score_ci": interval}


def _details(profile: Profile | None, task: Task | None) -> dict[str, Any]:
    """Figures that only some tasks have: of groups of questions (subjects of MMLU), and of options' likelihoods."""
    if profile is None or task is None:
        return {}
    groups = _groups(profile) or {}
    return {
        "accuracy_bytes": accuracy_by_bytes(profile, task),
        # ``accuracy`` is the mean over the questions (micro average); this is the mean over the groups (macro average).
        "accuracy_macro": sum(part.accuracy or 0.0 for part in groups.values()) / len(groups) if groups else None,
        **corpus_figures(profile, task),
        "groups": groups or None,
    }


def _groups(profile: Profile) -> dict[str, GroupAccuracy] | None:
    """The accuracy in each group of the questions; None for one group, which is the whole task."""
    parts = profile.groups
    if len(parts) < 2:
        return None
    # With thousands of groups, intervals would take longer than the rest of the file, and each has a few questions.
    known = len(parts) <= _MOST_INTERVALS
    return {
        name: GroupAccuracy(
            n=len(part.answers), accuracy=part.accuracy, accuracy_ci=accuracy_interval(part) if known else None
        )
        for name, part in parts.items()
    }


def _measured(profile: Profile | None) -> dict[str, Any]:
    """How many responses are no answers, and the cost of all."""
    if profile is None:
        return {}
    counts: dict[str, Any] = {"truncated": profile.truncated, "errors": profile.errors, **profile.no_answer}
    cost, (typical, slow) = profile.cost, profile.request_seconds or (None, None)
    # Without a response, because all questions failed, no speed follows.
    if cost.seconds == 0:
        return counts
    return {
        **counts,
        "seconds_median": typical,
        "seconds_p95": slow,
        "seconds_total": cost.seconds,
        "tokens_per_second": cost.tokens / cost.seconds,
        "peak_memory": cost.peak_memory,
    }


def _ensemble(verified: Verified, outcome: Outcome) -> EnsembleResult:
    difference = verified.difference
    together = next((each for each in outcome.strategies if each.strategy == verified.strategy), None)
    return EnsembleResult(
        method=verified.method,
        k=verified.k,
        weights=verified.weights,
        think=outcome.rules.think,
        n=difference.n,
        split=verified.task.split,
        signature=str(verified.task.signature),
        accuracy=verified.ensemble.accuracy,
        accuracy_ci=verified.accuracy_ci,
        best_single_accuracy=verified.single.accuracy,
        best_single_model=difference.over,
        difference=difference.estimate,
        difference_ci=difference.interval,
        difference_method=difference.interval_method,
        p_two_sided=difference.p_two_sided,
        test=difference.test,
        gained=difference.gained,
        lost=difference.lost,
        **_gain(together),
        mean_length=verified.ensemble.mean_length,
        **_measured(verified.ensemble),
        **_details(verified.ensemble, verified.task),
        members=tuple(
            MemberFigures(
                model=member.model,
                accuracy=member.accuracy,
                accuracy_ci=interval,
                mean_length=member.mean_length,
                **_measured(member),
                **_details(member, verified.task),
            )
            for member, interval in zip(verified.members, verified.intervals, strict=True)
        ),
    )


def _strategy_figures(result: StrategyResult, outcome: Outcome) -> StrategyFigures:
    return StrategyFigures(
        **strategy_json(result.strategy),
        n=len(result.profile.answers),
        split=outcome.held_out.split if outcome.held_out is not None else None,
        accuracy=result.profile.accuracy,
        accuracy_ci=result.accuracy_ci,
        best_single_accuracy=result.best_single_accuracy,
        best_single_model=result.best_single_model,
        **_gain(result),
        p_no_gain=result.gain.p_no_gain,
        shown=result.shown,
        groups=tuple(_group(each) for each in result.groups) or None,
        gained=result.gained,
        lost=result.lost,
        calls_per_question=result.calls,
        tokens_per_question=result.tokens,
        seconds_per_question=result.seconds,
        price_per_1000=result.price,
    )


def _single(profile: Profile, dev: Profile | None, price: Price | None) -> SingleModel:
    """A single model on the held-out questions; seconds and price are null if they are not known."""
    every = profile if dev is None else replace(profile, answers=(*dev.answers, *profile.answers))
    n = len(profile.answers)
    spent = Spent.of([(profile, None)])
    dollars = spent.price(price)
    return SingleModel(
        model=profile.model,
        n=n,
        accuracy=profile.accuracy,
        groups=_groups(every),
        seconds_per_question=None if spent.seconds is None else spent.seconds / n,
        price_per_1000=None if dollars is None else 1000 * dollars / n,
    )


def _group(gain: GroupGain) -> GroupFigures:
    return GroupFigures(
        group=gain.group,
        n=gain.n,
        observed=gain.observed,
        gain=gain.points,
        gain_ci=gain.interval,
        shown=gain.shown,
    )


def _gain(result: StrategyResult | None) -> dict[str, Any]:
    """The estimate of a gain, and the questions that it comes from."""
    if result is None:
        return {}
    gain = result.gain
    return {
        "measured_gain": gain.points,
        "measured_gain_ci": gain.interval(),
        "expected_gain": result.expected_gain,
        "expected_gain_ci": result.expected_interval(),
        "predicted_gain": None if result.predicted is None else result.predicted.points,
        "predicted_gain_ci": None if result.predicted is None else result.predicted.interval(),
        "cross_fitted": result.cross_fitted,
        "questions": gain.questions,
        "answered": gain.answered,
        "p_adjusted": result.p_adjusted,
    }


def _recommendation(recommendation: Recommendation | None) -> RecommendedStrategy | None:
    if recommendation is None:
        return None
    result = recommendation.result
    return RecommendedStrategy(
        **strategy_json(result.strategy),
        method=result.strategy.name if isinstance(result.strategy, Decoded) else None,
        expected_gain=result.expected_gain,
        expected_gain_ci=result.expected_interval(),
        calls_per_question=result.calls,
        seconds_per_question=result.seconds,
        price_per_1000=result.price,
        min_gain=recommendation.min_gain,
        shown=result.shown,
        ceiling=_ceiling(result.ceiling),
        text=recommendation.text,
    )


def _ceiling(ceiling: Ceiling | None) -> CeilingFigures | None:
    return None if ceiling is None else CeilingFigures(**_ceiling_figures(ceiling))


def _ceiling_figures(ceiling: Ceiling) -> dict[str, Any]:
    return {
        "points": ceiling.points,
        "points_ci": ceiling.interval,
        "all_wrong": ceiling.all_wrong,
        "n": ceiling.n,
    }


def _samples(
    task: Task,
    split: Literal["dev", "held_out"],
    profiles: Sequence[Profile],
    ensemble: Profile | None = None,
    traces: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    recommended: StrategyResult | None = None,
) -> Iterator[Sample]:
    answers = {profile.model: {answer.id: answer for answer in profile.answers} for profile in profiles}
    # Only where one thinks: then the length rule compares the tokens of all.
    counted = any(answer.thought for profile in profiles for answer in profile.answers)
    for n, example in enumerate(task.examples):
        yield Sample(
            id=example.id,
            prompt=example.prompt,
            reference=(example.reference,) if isinstance(example.reference, str) else example.reference,
            split=split,
            # Only where it is so: most questions share nothing.
            **({} if example.cluster is None else {"cluster": example.cluster}),
            responses={
                model: SampleResponse(**_answer(those[example.id], counted=counted))
                for model, those in answers.items()
                if example.id in those
            },
            ensemble=None
            if ensemble is None
            else EnsembleResponse(**_answer(ensemble.answers[n], counted=counted), trace=_trace(traces.get(n))),
            recommended=None if recommended is None else _taken(recommended, n),
        )


def _trace(trace: Mapping[str, Any] | None) -> ResponseTrace | None:
    return None if trace is None else ResponseTrace.model_validate(trace)


def _recommended(outcome: Outcome) -> StrategyResult | None:
    """The recommended strategy if it takes one of several responses, or writes one from them."""
    recommendation = outcome.advice.recommendation
    if recommendation is None or isinstance(recommendation.result.strategy, (Single, Decoded)):
        return None
    return recommendation.result


def _taken(result: StrategyResult, n: int) -> RecommendedAnswer:
    """Whose response a strategy takes to a question; for one model with several responses, which of them."""
    answer = result.profile.answers[n]
    own = {}
    if isinstance(result.strategy, Fusion):
        model, draw, own = result.strategy.writer, None, {"text": answer.text}
    else:
        model, draw = result.takes[n]
    return RecommendedAnswer(model=model, draw=draw or 0, extracted=answer.extracted, score=_score(answer), **own)


def _answer(answer: Answer, *, counted: bool) -> dict[str, Any]:
    return {
        "text": answer.text,
        "extracted": answer.extracted,
        "score": _score(answer),
        "length": answer.length,
        "finish_reason": answer.finish_reason,
        "error": answer.error,
        # Only where it is so, as most models do not think.
        **({"thought": True, "thinking": answer.thinking} if answer.thought else {}),
        **({"tokens": answer.tokens or None} if counted else {}),
        **({} if answer.problem is None else {"problem": answer.problem}),
    }


def _score(answer: Answer) -> float | None:
    return None if math.isnan(answer.score) else answer.score
