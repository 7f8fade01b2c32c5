"""What goes into ``result.json``, ``evaluation.json`` and ``samples.jsonl``: figures, verdicts, lines, provenance."""

from __future__ import annotations

import math
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from advisor.advice.comparison import Compared, StrategyResult
from advisor.advice.doubts import answer_shares, doubts_of, enough_tokens, finished_accuracy
from advisor.advice.recommendation import CloseCall
from advisor.judge.judge import Judge
from advisor.judge.prompts import Verdict, name_of_set
from advisor.judge.summary import head_to_head, summarize_grades, summarize_matches
from advisor.logs import sources
from advisor.logs.join import JoinedLogs
from advisor.models.profiler import Profiler
from advisor.models.run_config import RunConfig
from advisor.records import FIGURE_CONFIDENCE, Answer, Profile, Selection
from advisor.run.figures import (
    EnsembleResponse,
    GroupAccuracy,
    HeadToHead,
    JudgedSplit,
    JudgeSection,
    RecommendedAnswer,
    Sample,
    SampleResponse,
)
from advisor.run.result import (
    AdviceSection,
    CandidateFigures,
    LogOrigin,
    Provenance,
    RecommendedStrategy,
    ScoringSource,
    SingleModel,
    TaskInfo,
)
from advisor.statistics import Interval, Labels, accuracy_interval, best_probabilities, scores
from advisor.strategies.replay import Spent
from advisor.strategies.schema import strategy_json
from advisor.tasks import metrics
from advisor.tasks.task import Task, clusters_of
from ensemble import methods as registry
from ensemble.common.text import counted, interval_name
from ensemble.models.spec import Price
from ensemble.plugins import version_of

_MOST_INTERVALS = 100
_PACKAGES = ("unite-advisor", "torch", "transformers", "tokenizers", "sacrebleu", "scipy", "scikit-learn")
"""The packages that can change a number."""


def accuracy_by_bytes(profile: Profile, task: Task) -> float | None:
    """Accuracy in points by log-probabilities divided by bytes, ``acc_bytes`` of lm-eval; None without likelihoods."""
    # Letters all have one byte.
    if task.scoring == "letters" or not any(answer.options for answer in profile.answers):
        return None
    examples = {example.id: example for example in task.examples}
    values = []
    for answer in profile.answers:
        if answer.options:
            example = examples[answer.id]
            lengths = [len(choice.encode()) for choice in example.choices]
            # The lowest index wins a tie, as in lm-eval.
            # JSON has no infinity, so the cache stores an impossible option as null.
            likelihoods = [-math.inf if value is None else value for value in answer.options]
            best = int(np.argmax(np.array(likelihoods) / lengths))
            values.append(task.score(example, example.choices[best]).value)
    # By all answers: a question without likelihoods counts as wrong, as it does in the accuracy beside this figure.
    return 100 * sum(values) / len(profile.answers)


def task_info(task: Task, max_new_tokens: int | None = None) -> TaskInfo:
    """``task`` of ``result.json``; for responses of logs no limit of tokens is known."""
    return TaskInfo(
        name=task.name,
        metric=task.metric,
        split=task.split,
        n=len(task.examples),
        fingerprint=task.fingerprint,
        signature=task.signature,
        shots=task.shots,
        seed=task.seed,
        prompt=task.prompt_digest,
        stop=task.stop,
        max_new_tokens=max_new_tokens,
        extract=task.extract,
        template=task.template,
        templates=dict(task.templates),
        notes=task.notes,
    )


def candidate_figures(
    selection: Selection,
    task: Task,
    profiles: Sequence[Profile],
    failures: Mapping[str, str],
    *,
    intervals: Mapping[str, Interval] = MappingProxyType({}),
    calls: Mapping[str, CloseCall] = MappingProxyType({}),
    lost: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[CandidateFigures, ...]:
    """``candidates`` of ``result.json``, those that failed last.

    The profiles include those of copies. All mappings are by name; `lost` counts for models of logs the scores that are
    ``unread``, and the responses that are ``missing`` or ``failed``.
    """
    answers = {profile.model: profile for profile in profiles}
    shares = answer_shares(profiles, task)
    any_thinks = any(profile.thinks for profile in profiles)
    candidates = []
    for decision in selection.decisions:
        profile, call = answers[decision.model], calls.get(decision.model)
        figures = measured(profile, task)
        if profile.truncated:
            figures |= {"finished_accuracy": finished_accuracy(profile), "enough_tokens": enough_tokens(profile)}
        if call is not None:
            figures |= {"close_call": call.text, "gap_ci": call.gap_ci}
        candidates.append(
            CandidateFigures(
                **asdict(decision),
                accuracy_ci=intervals.get(decision.model),
                n=len(profile.answers),
                thinks=profile.thinks,
                mean_tokens=profile.mean_tokens if any_thinks else None,
                answered=shares.get(decision.model),
                doubts=doubts_of(profile),
                **figures,
                **lost.get(decision.model, {}),
            )
        )
    for model, reason in failures.items():
        candidates.append(CandidateFigures(model=model, status="failed", reason_code="failed", reason=reason))
    return tuple(candidates)


def measured(profile: Profile, task: Task) -> dict[str, Any]:
    """The figures of the responses of a model or a set, as :class:`advisor.run.figures.Measured` has them."""
    groups = group_accuracies(profile) or {}
    figures: dict[str, Any] = {
        "accuracy": profile.accuracy,
        "mean_length": profile.mean_length,
        "truncated": profile.truncated,
        "errors": profile.errors,
        **profile.no_answer,
        "accuracy_bytes": accuracy_by_bytes(profile, task),
        # ``accuracy`` is the mean over the questions (micro average); this is the mean over the groups (macro average).
        "accuracy_macro": sum(part.accuracy or 0.0 for part in groups.values()) / len(groups) if groups else None,
        **corpus_figures(profile, task),
        "groups": groups or None,
    }
    cost, (typical, slow) = profile.cost, profile.request_seconds or (None, None)
    # Without a response, because all questions failed, no speed follows.
    if cost.seconds:
        figures |= {"seconds_median": typical, "seconds_p95": slow, "seconds_total": cost.seconds}
        figures |= {"tokens_per_second": cost.tokens / cost.seconds, "peak_memory": cost.peak_memory}
    return figures


def corpus_figures(profile: Profile, task: Task) -> dict[str, Any]:
    """The score of all responses together and its interval, in points; nulls for tasks without one."""
    score, interval = task.corpus_score({answer.id: answer.text for answer in profile.answers}) or (None, None)
    return {"corpus_score": score, "corpus_score_ci": interval}


def group_accuracies(profile: Profile) -> dict[str, GroupAccuracy] | None:
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


def single_models(
    alone: Sequence[Profile], dev: Mapping[str, Profile], prices: Mapping[str, Price], clusters: Labels | None = None
) -> tuple[SingleModel, ...]:
    """The single models on the held-out questions; seconds and price are null if they are not known.

    Which is the best one is said by the dev and the held-out questions together, if all models answered them;
    `clusters` are theirs.
    """
    every = [
        replace(own, answers=(*dev[own.model].answers, *own.answers)) if own.model in dev else own for own in alone
    ]
    chances: list[float | None] = [None] * len(alone)
    if len({len(each.answers) for each in every}) == 1:
        graded = np.stack([scores(each) for each in every])
        if not np.isnan(graded).any():
            chances = [*map(float, best_probabilities(graded, clusters))]
    found = []
    for profile, whole, chance in zip(alone, every, chances, strict=True):
        n, spent = len(profile.answers), Spent.of([(profile, None)])
        dollars = spent.price(prices.get(profile.model))
        found.append(
            SingleModel(
                model=profile.model,
                n=n,
                accuracy=profile.accuracy,
                accuracy_all=whole.accuracy,
                best_probability=chance,
                groups=group_accuracies(whole),
                seconds_per_question=None if spent.seconds is None else spent.seconds / n,
                price_per_1000=None if dollars is None else 1000 * dollars / n,
            )
        )
    return tuple(found)


def judge_section(
    judge: Judge,
    responses: Sequence[tuple[Task, Mapping[str, Profile]]],
    candidates: Sequence[str],
    strategies: Sequence[StrategyResult] = (),
    failed: Collection[str] = (),
    seed: int = 0,
) -> JudgeSection:
    """The figures of the verdicts, after the judge has scored the responses of all models and sets to each split.

    Win rates are against the candidates, and strategies on the last split are compared with the best single model.
    Verdicts on models that failed later are left out.
    """
    splits: list[JudgedSplit] = []
    met: list[HeadToHead | None] = []
    for task, profiles in responses:
        judged = [_without(failed, verdicts) for verdicts in judge.verdicts(task.split)]
        settled = _without(failed, judge.settled(task.split))
        labels = clusters_of(task) or ()
        # Tasks whose questions share nothing have no labels.
        clusters = dict(zip((example.id for example in task.examples), labels, strict=False))
        lengths = {
            (answer.id, name): len(answer.text)
            for name, profile in profiles.items()
            for answer in profile.answers
            if answer.text is not None
        }
        if task.is_relative:
            figures = summarize_matches(judged, settled, lengths, candidates, seed=seed, clusters=clusters)
            # Strategies are compared on the held-out questions only; the dev questions choose their members.
            if task is responses[-1][0]:
                taking_part = [each for each in strategies if not each.figures.is_single]
                met = [_met(each, [*judged[0], *settled], clusters) for each in taking_part]
        else:
            low, high = task.rubric.scale if task.rubric else (0, 1)
            figures = summarize_grades(judged, lengths, 1 / (high - low), clusters=clusters)
        splits.append(JudgedSplit(split=task.split, calls=judge.calls(task.split), **figures))
    return JudgeSection(
        mode=judge.mode,
        judges=judge.names,
        splits=tuple(splits),
        head_to_head=tuple(each for each in met if each is not None),
    )


def direct_comparison(section: JudgeSection | None, recommendation: RecommendedStrategy) -> str:
    """A sentence with the win rate of the recommended strategy against the best single model; empty if not known."""
    for each in section.head_to_head if section else ():
        if (each.strategy, each.members) == (recommendation.strategy, recommendation.members) and each.win_rate_ci:
            low, high = each.win_rate_ci
            return (
                f" Compared directly by the judge, its responses win {each.win_rate:.1f}% against those of "
                f"{each.rival} ({interval_name(FIGURE_CONFIDENCE)} {low:.1f} to {high:.1f}, "
                f"{counted(each.questions, 'question')}; a tie is half a win)."
            )
    return ""


def _without(failed: Collection[str], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts in which no failed model takes part."""
    return [each for each in verdicts if each.first not in failed and each.second not in failed]


def _met(result: StrategyResult, matches: Sequence[Verdict], clusters: Mapping[str, str]) -> HeadToHead | None:
    """A strategy against the best single model; None if the judge compared none of its responses with that model's."""
    strategy = result.strategy
    if any(draw is not None for _, draw in result.replay.takes):
        return None  # responses of one model, which verdicts do not tell apart
    # New texts are of no member's making, so the judge compared them under the strategy's name.
    together = name_of_set(result.replay.profile.model, strategy.members)
    names = [model for model, _ in result.replay.takes] or [together] * len(result.replay.profile.answers)
    taken = {answer.id: name for answer, name in zip(result.replay.profile.answers, names, strict=True)}
    rival = result.figures.best_single_model or ""
    found = head_to_head(matches, taken, rival, clusters=clusters)
    if found is None:
        return None
    return HeadToHead(**strategy_json(strategy), rival=rival, **found)


def samples_of(
    task: Task,
    split: Literal["dev", "held_out"],
    profiles: Sequence[Profile],
    ensemble: Profile | None = None,
    traces: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    recommended: StrategyResult | None = None,
) -> Iterator[Sample]:
    """The lines of a split's questions, with the answers of models and of the set that decodes together.

    `traces` has the steps of some of its responses, by the question's number.
    """
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
            else EnsembleResponse(**_answer(ensemble.answers[n], counted=counted) | {"trace": traces.get(n)}),
            recommended=None if recommended is None else _taken(recommended, n),
        )


def recommended_of(advice: AdviceSection, compared: Compared) -> StrategyResult | None:
    """The recommended strategy if it takes one of several responses, or writes one from them."""
    own = advice.recommendation
    return None if own is None or own.is_single or own.is_decoded else compared.result_of(own)


def _taken(result: StrategyResult, n: int) -> RecommendedAnswer:
    """Whose response a strategy takes to a question; for one model with several responses, which of them."""
    answer = result.replay.profile.answers[n]
    own = {}
    if result.strategy.author is not None:
        model, draw, own = result.strategy.author, None, {"text": answer.text}
    else:
        model, draw = result.replay.takes[n]
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


def provenance_of_run(
    config: RunConfig, profiler: Profiler, methods: Sequence[str] = (), judge: Judge | None = None
) -> Provenance:
    """``provenance`` of a run with models, after these have answered; `methods` are those besides the run's own."""
    models = {entry.name: profiler.identities[entry.name].as_dict() for entry in config.candidates}
    here = [model for model in models.values() if model.get("remote") is None]
    versions = [registry.plugins().version(name) for name in (config.options.method, *methods)]
    if config.dev.scorer is None:  # otherwise the metric is another tool's
        versions.append(metrics.plugins().version(config.dev.metric))
    values = {
        "command": config.command,
        "seed": config.options.seed,
        "versions": _versions(*versions),
        "engine": config.cluster.engine,
        "machine": f"{platform.system()} {platform.machine()}",
        # What the models had, because "auto" means something else on each machine.
        "device": ", ".join(dict.fromkeys(model["device"] for model in here)) or None,
        "dtype": ", ".join(dict.fromkeys(model["dtype"] for model in here)) or None,
        "chat_template": config.options.chat_template,
        "models": models,
        **({"data": config.dev.origin} if config.dev.origin else {}),
        **({"judges": {name: each.as_dict() for name, each in judge.identities.items()}} if judge else {}),
        "loads": {
            name: {"count": len(seconds), "seconds_total": sum(seconds)}
            | ({"threads": profiler.models.threads[name]} if name in profiler.models.threads else {})
            for name, seconds in profiler.models.seconds.items()
        },
    }
    return Provenance.model_validate(values)


def provenance_of_numbers(command: str, path: Path) -> Provenance:
    """``provenance`` of a run on published or earlier numbers."""
    return Provenance(command=command, profiles=str(path), versions=_versions(), models={})


def provenance_of_logs(command: str, seed: int, logs: JoinedLogs) -> Provenance:
    """``provenance`` of a run on logs."""
    versions = [sources.plugins().version(source.format) for source in logs.sources]
    if logs.scoring is not None:
        versions.append(metrics.plugins().version(logs.scoring.metric))
    return Provenance(
        command=command,
        seed=seed,
        versions=_versions(*versions),
        logs=tuple(LogOrigin(path=str(source.path), format=source.format) for source in logs.sources),
        # Without it only the log's tool knows how the answers were read from the responses.
        scoring=None if logs.scoring is None else ScoringSource(**asdict(logs.scoring)),
        models={},
    )


def _versions(*plugins: Mapping[str, str]) -> dict[str, str]:
    """Versions of this project's packages, and of those that plug-ins came from."""
    versions = {"python": platform.python_version()}
    versions |= {package: version_of(package) or "unknown" for package in _PACKAGES}
    for found in plugins:
        versions.update(found)
    return versions
