"""The lines of ``samples.jsonl``, from the answers of models and sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from advisor.advice.comparison import Compared, StrategyResult
from advisor.records import Answer, Profile
from advisor.run.result import AdviceSection
from advisor.run.samples import EnsembleResponse, RecommendedAnswer, ResponseTrace, Sample, SampleResponse
from advisor.strategies.fusion import Fusion
from advisor.tasks.task import Task


def samples_of(
    task: Task,
    split: Literal["dev", "held_out"],
    profiles: Sequence[Profile],
    ensemble: Profile | None = None,
    traces: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    recommended: StrategyResult | None = None,
) -> Iterator[Sample]:
    """The lines of a split's questions, with the answers of models and of the set that decodes together.

    `traces` has the steps of some of its responses, by the question's number; see :mod:`advisor.jobs.traces`.
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
            else EnsembleResponse(**_answer(ensemble.answers[n], counted=counted), trace=_trace(traces.get(n))),
            recommended=None if recommended is None else _taken(recommended, n),
        )


def recommended_of(advice: AdviceSection, compared: Compared) -> StrategyResult | None:
    """The recommended strategy if it takes one of several responses, or writes one from them."""
    own = advice.recommendation
    return None if own is None or own.is_single or own.is_decoded else compared.result_of(own)


def _trace(trace: Mapping[str, Any] | None) -> ResponseTrace | None:
    return None if trace is None else ResponseTrace.model_validate(trace)


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
