"""The contents of ``result.json`` and ``samples.jsonl``. Accuracies are in points, lengths in characters.

Programs read a finished run from these two files. The objects here exist only during the run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from advisor.compare.pairs import Pair
from advisor.pool.weights import PERPLEXITY
from advisor.profile.calibration import accuracy_by_bytes, calibration_error
from advisor.records import CONFIDENCE, Answer, Cost, Decision, Profile, Limits, Selection, Standing, alpha_of
from advisor.statistics import Interval, accuracy_interval
from advisor.tasks.task import Task
from advisor.advice.verdict import Advice, Margin
from advisor.advice.groups import GroupGain
from advisor.jobs.held_out import Verified
from advisor.advice.recommendation import Recommendation
from advisor.advice.sequential import Look
from advisor.advice.strategies import Strategy, StrategyResult
from ensemble.errors import InputError
from ensemble.common.files import exists
from ensemble.methods import list_methods
from ensemble.models.spec import CHAT_TEMPLATES, DTYPES, QUANTIZATIONS, READS, Price
from advisor.runs.read.fields import Fields, read_object

SCHEMA_VERSION = 1
_GAIN = (
    *("gain", "gain_ci", "expected_gain", "expected_gain_ci", "predicted_gain", "predicted_gain_ci"),
    *("questions", "answered"),
)
_MOST_INTERVALS = 100
_DETAILS = ("accuracy_bytes", "ece", "accuracy_macro", "groups", "corpus_score", "corpus_score_ci")


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
        dropped: The answers of candidates that left a race, to the questions before they left, and of copies.
        intervals: The interval of each candidate's accuracy, in points, by name.
        margins: How close each decision was, by name.
        race: Accepted probability that the race changes the selection; None without a race.
        prediction: ``prediction`` of ``result.json``; None where no two candidates can decode together.
        verified: The set on held-out questions; None if it was not run there.
        held_out: The held-out questions; None if no model was asked them.
        alone: Single models' answers to them: the set's members, and the models that it is compared with.
        strategies: All strategies on the held-out questions, the best first.
        prices: What the tokens of models cost, by name; models without a known price are left out.
        confidence: Two-sided, of the intervals of gains.
        traces: The steps of some of its responses, by the question's number; see :mod:`advisor.jobs.traces`.
        looks: The looks at held-out questions, of this run and of earlier ones in the same folder.
        judge: ``judge`` of ``result.json``; None for a task without a judge.
        provenance: What is needed to repeat the run.
    """

    task_info: Mapping[str, Any]
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
    race: float | None = None
    prediction: Mapping[str, Any] | None = None
    verified: Verified | None = None
    held_out: Task | None = None
    alone: tuple[Profile, ...] = ()
    strategies: tuple[StrategyResult, ...] = ()
    prices: Mapping[str, Price] = field(default_factory=dict)
    confidence: float = CONFIDENCE
    traces: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    looks: tuple[Look, ...] = ()
    judge: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


def task_info(task: Task, max_new_tokens: int | None) -> dict[str, Any]:
    """``task`` of ``result.json``; without a limit of tokens for responses of logs."""
    return {
        "name": task.name,
        "metric": task.metric,
        "split": task.split,
        "n": len(task.examples),
        "fingerprint": task.fingerprint,
        "signature": str(task.signature),
        "stop": list(task.stop),
        "max_new_tokens": max_new_tokens,
        "extract": task.extract,
        "notes": list(task.notes),
    }


def result_of(outcome: Outcome) -> dict[str, Any]:
    """The contents of ``result.json``."""
    standings = {standing.model: standing for standing in outcome.standings}
    profiles = {profile.model: profile for profile in (*outcome.profiles, *outcome.dropped)}
    # A dropped candidate has figures on fewer questions, as its `n` says.
    standings |= {profile.model: profile.standing for profile in outcome.dropped}
    candidates = [
        _candidate(decision, standings[decision.model], profiles.get(decision.model), outcome)
        for decision in outcome.selection.decisions
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "task": dict(outcome.task_info),
        "rules": asdict(outcome.rules),
        "race": None if outcome.race is None else _race(outcome.race, profiles.values()),
        "candidates": candidates + [_failed(model, reason) for model, reason in outcome.failures.items()],
        "selected": list(outcome.selection.selected),
        "prediction": outcome.prediction,
        "pairs": [pair.as_dict() for pair in outcome.pairs],
        "ensemble": None if outcome.verified is None else _ensemble(outcome.verified, outcome),
        "strategies": [_result(result, outcome) for result in outcome.strategies],
        "alone": [_alone(profile, outcome.prices.get(profile.model)) for profile in outcome.alone],
        "advice": {
            **asdict(outcome.advice),
            "confidence": outcome.confidence,
            "recommendation": _recommendation(outcome.advice.recommendation),
        },
        "looks": [asdict(look) for look in outcome.looks],
        "judge": outcome.judge,
        "provenance": dict(outcome.provenance),
    }


def samples_of(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """The lines of ``samples.jsonl``: the dev questions, then the held-out ones."""
    if outcome.task is not None:
        yield from _samples(outcome.task, "dev", (*outcome.profiles, *outcome.dropped))
    if outcome.held_out is not None:
        together = outcome.verified.ensemble if outcome.verified is not None else None
        yield from _samples(
            outcome.held_out, "held_out", outcome.alone, together, outcome.traces, _recommended(outcome)
        )


def read_result(run: Path) -> dict[str, Any]:
    """Read a run folder's ``result.json``.

    What the commands read of it is checked here, once: a run folder may come from a stranger.

    Raises:
        InputError: The file does not exist, is not a result of this version, or a value has another form.
    """
    path = run / "result.json"
    # A pipe or a device in its place would be read without end.
    if not (exists(path) and path.is_file()):
        is_missing = "this folder has no result.json" if exists(run) else "no such folder"
        problem = "this is a file" if exists(run) and run.is_file() else is_missing
        raise InputError(f"{run}: {problem}; give a run folder that `advisor select` wrote")
    root = read_object(path, "run `advisor select` again")
    if root.values.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path}: it does not have schema version {SCHEMA_VERSION}; run `advisor select` again")
    task, ensemble = root.part("task"), root.part("ensemble")
    task.check("stop", "a list of texts that are not empty", lambda value: _are_texts(value) and all(value))
    was_run = bool(ensemble.values)
    for fields, name, required in ((task, "max_new_tokens", False), (ensemble, "k", was_run)):
        fields.check(name, "a whole number of at least 1", _is_count, required=required)
    ensemble.check("weights", "numbers of 0 or more, perplexity, or null", _are_weights)
    ensemble.check("method", "an installed method that decodes", _decoding_methods().__contains__, required=was_run)
    # A name twice, or one that controls the terminal: `advisor select` writes neither.
    root.check("selected", "a list of different, printable names", are_names, required=True)
    for candidate in root.parts("candidates"):
        candidate.check("model", "the candidate's name", is_text, required=True)
        candidate.number("accuracy")
        if "accuracy" not in candidate.values:
            candidate.refuse("accuracy", "points, or null")
    provenance = root.part("provenance")
    provenance.check("deterministic", "true or false", lambda value: isinstance(value, bool))
    models = provenance.part("models")
    for name in models.values:
        if not name.isprintable():
            models.refuse(repr(name), "a printable name")
        _check_source(models.part(name))
    return root.values


def _check_source(model: Fields) -> None:
    """Check where a candidate comes from."""
    model.part("remote")
    is_local = model.values.get("remote") is None
    model.check("path_or_id", "a path or a hub id", lambda value: is_text(value) and bool(value), required=is_local)
    model.check("device", "a text", is_text, required=is_local)
    for name in ("revision", "gguf_file", "source", "target"):
        model.check(name, "a text", is_text)
    for name, known in (("reads", READS), ("dtype", DTYPES), ("chat_template", CHAT_TEMPLATES)):
        # Compared as a list, because an object or a list has no hash.
        is_required = name == "chat_template" or (name == "dtype" and is_local)
        model.check(name, f"one of {', '.join(known)}", list(known).__contains__, required=is_required)
    model.check("quantization", f"one of {', '.join(QUANTIZATIONS)}", list(QUANTIZATIONS).__contains__)
    files = model.part("files")
    for name in files.values:
        files.check(name, "a hash", is_text)


def _decoding_methods() -> list[str]:
    return [name for name, method in list_methods().items() if method.level != "response"]


def _is_count(value: object) -> bool:
    # In Python True is an int; torch takes no number above 2**63.
    return type(value) is int and 1 <= value < 2**31


def is_text(value: object) -> bool:
    """Whether a value is a text that UTF-8 can encode: JSON may have halves of surrogate pairs. It has no null."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _are_weights(value: object) -> bool:
    if value in (None, PERPLEXITY):
        return True
    return isinstance(value, list) and all(type(each) in (int, float) and 0 <= each < 2**31 for each in value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def are_names(value: list[str]) -> bool:
    """Whether a value is a list of different, printable names, at least one."""
    return _are_texts(value) and all(map(str.isprintable, value)) and 0 < len(set(value)) == len(value)


def _candidate(decision: Decision, standing: Standing, profile: Profile | None, outcome: Outcome) -> dict[str, Any]:
    model = decision.model
    margin = outcome.margins.get(model)
    doubtful = margin is not None and (margin.order_flips or margin.gap_flips or margin.length_flips)
    return {
        "model": model,
        "accuracy": standing.accuracy,
        "accuracy_ci": _list(outcome.intervals.get(model)),
        "n": len(profile.answers) if profile else None,
        "mean_length": standing.mean_length,
        "truncated": profile.truncated if profile else None,
        "errors": profile.errors if profile else None,
        **_details(profile, outcome.task),
        "status": decision.status,
        "reason_code": decision.reason_code,
        "reason": decision.reason,
        "fragile": margin.text if margin is not None and doubtful else None,
        "gap_ci": _list(margin.gap_ci) if margin else None,
        "length_ratio_ci": _list(margin.length_ratio_ci) if margin else None,
        **_cost(profile.cost if profile else None),
    }


def _race(alpha: float, profiles: Collection[Profile]) -> dict[str, Any]:
    """The number of responses in a race, and without one."""
    # The candidates that stayed in the race answered all questions, so the largest count is that of all.
    counts = [len(profile.answers) for profile in profiles]
    return {"confidence": 1 - alpha, "responses": sum(counts), "of": len(counts) * max(counts)}


def corpus_figures(profile: Profile | None, task: Task) -> dict[str, Any]:
    """The score of all responses together and its interval, in points; nulls for tasks without one."""
    texts = {answer.id: answer.text for answer in profile.answers} if profile else {}
    score, interval = (task.corpus_score(texts) if texts else None) or (None, None)
    return {"corpus_score": score, "corpus_score_ci": _list(interval)}


def _details(profile: Profile | None, task: Task | None) -> dict[str, Any]:
    """Figures that only some tasks have: of groups of questions (subjects of MMLU), and of options' likelihoods."""
    if profile is None or task is None:
        return dict.fromkeys(_DETAILS)
    groups = profile.groups
    # One group is the whole task.
    groups = groups if len(groups) > 1 else {}
    return {
        "accuracy_bytes": accuracy_by_bytes(profile, task),
        # Log-probabilities for each character are no probabilities, so they have no confidence.
        "ece": None if task.scoring == "normalised" else calibration_error(profile),
        # ``accuracy`` is the mean over the questions (micro average); this is the mean over the groups (macro average).
        "accuracy_macro": sum(part.accuracy for part in groups.values()) / len(groups) if groups else None,
        **corpus_figures(profile, task),
        "groups": {name: _group_figures(part, len(groups)) for name, part in groups.items()} or None,
    }


def _group_figures(part: Profile, groups: int) -> dict[str, Any]:
    # With thousands of groups, intervals would take longer than the rest of the file, and each has a few questions.
    interval = list(accuracy_interval(part)) if groups <= _MOST_INTERVALS else None
    return {"n": len(part.answers), "accuracy": part.accuracy, "accuracy_ci": interval}


def _cost(cost: Cost | None) -> dict[str, Any]:
    # Without a response, because all questions failed, no speed follows.
    if cost is None or cost.seconds == 0:
        return {"seconds": None, "tokens_per_second": None, "peak_memory": None}
    speed = cost.tokens / cost.seconds
    return {"seconds": cost.seconds, "tokens_per_second": speed, "peak_memory": cost.peak_memory}


def _failed(model: str, reason: str) -> dict[str, Any]:
    return {
        "model": model,
        **dict.fromkeys(("accuracy", "accuracy_ci", "n", "mean_length", "truncated", "errors")),
        **_details(None, None),
        "status": "failed",
        "reason_code": "failed",
        "reason": reason,
        "fragile": None,
        **_cost(None),
    }


def _ensemble(verified: Verified, outcome: Outcome) -> dict[str, Any]:
    difference = verified.difference
    strategy = Strategy(verified.method, verified.models)
    together = next((each for each in outcome.strategies if each.strategy == strategy), None)
    return {
        "method": verified.method,
        "k": verified.k,
        "weights": list(verified.weights) if isinstance(verified.weights, tuple) else verified.weights,
        "n": difference.n,
        "split": verified.task.split,
        "signature": str(verified.task.signature),
        "accuracy": verified.ensemble.accuracy,
        "accuracy_ci": list(verified.accuracy_ci),
        "best_single": verified.single.accuracy,
        "best_single_model": difference.over,
        "delta": difference.estimate,
        "delta_ci": list(difference.interval),
        "delta_method": difference.interval_method,
        "p_value": difference.p_two_sided,
        "test": difference.test,
        "gained": difference.gained,
        "lost": difference.lost,
        **_gain(together, alpha_of(outcome.confidence)),
        "gain_p": together.p_adjusted if together else None,
        "mean_length": verified.ensemble.mean_length,
        "truncated": verified.ensemble.truncated,
        "errors": verified.ensemble.errors,
        **_details(verified.ensemble, verified.task),
        **_cost(verified.ensemble.cost),
        "members": [
            {
                "model": member.model,
                "accuracy": member.accuracy,
                "accuracy_ci": list(interval),
                "mean_length": member.mean_length,
                "truncated": member.truncated,
                "errors": member.errors,
                **_details(member, verified.task),
                **_cost(member.cost),
            }
            for member, interval in zip(verified.members, verified.intervals, strict=True)
        ],
    }


def _result(result: StrategyResult, outcome: Outcome) -> dict[str, Any]:
    return {
        **_strategy(result.strategy),
        "n": len(result.profile.answers),
        "split": outcome.held_out.split if outcome.held_out is not None else None,
        "accuracy": result.profile.accuracy,
        "accuracy_ci": list(result.accuracy_ci),
        "best_single": result.best_single_accuracy,
        "best_single_model": result.best_single_model,
        **_gain(result, alpha_of(outcome.confidence)),
        "p_value": result.gain.p_no_gain,
        "p_adjusted": result.p_adjusted,
        "shown": result.shown,
        "groups": [_group(each) for each in result.groups] or None,
        "gained": result.gained,
        "lost": result.lost,
        "calls_per_question": result.calls,
        "tokens_per_question": result.tokens,
        "seconds_per_question": result.seconds,
        "price_per_1000": result.price,
    }


def _alone(profile: Profile, price: Price | None) -> dict[str, Any]:
    """A single model on the held-out questions; seconds and price are null if they are not known."""
    n, dollars = len(profile.answers), None if price is None else price.of(profile.cost.prompt_tokens, profile.cost.tokens)
    return {
        "model": profile.model,
        "n": n,
        "accuracy": profile.accuracy,
        # A sum of 0 means that a log does not say it.
        "seconds_per_question": profile.cost.seconds / n if profile.cost.seconds else None,
        "price_per_1000": None if dollars is None else 1000 * dollars / n,
    }


def _group(gain: GroupGain) -> dict[str, Any]:
    return {
        "group": gain.group,
        "n": gain.n,
        "observed": gain.observed,
        "gain": gain.points,
        "gain_ci": list(gain.interval),
        "shown": gain.shown,
    }


def _gain(result: StrategyResult | None, alpha: float) -> dict[str, Any]:
    """The estimate of a gain, and the questions that it comes from."""
    if result is None:
        return dict.fromkeys(_GAIN)
    gain = result.gain
    return {
        "gain": gain.points,
        "gain_ci": list(gain.interval(alpha)),
        "expected_gain": result.expected_gain,
        "expected_gain_ci": list(result.expected_interval(alpha)),
        "predicted_gain": None if result.predicted is None else result.predicted.points,
        "predicted_gain_ci": None if result.predicted is None else list(result.predicted.interval(alpha)),
        "questions": gain.questions,
        "answered": gain.answered,
    }


def _strategy(strategy: Strategy) -> dict[str, Any]:
    """A strategy, with all that is needed to run it; a router also needs the dev questions of ``samples.jsonl``."""
    return {
        "strategy": strategy.name,
        "members": list(strategy.members),
        "weights": list(strategy.weights) or None,
        "routes": dict(strategy.routes) or None,
        "draws": strategy.draws,
    }


def _recommendation(recommendation: Recommendation | None) -> dict[str, Any] | None:
    if recommendation is None:
        return None
    name = recommendation.strategy.name
    return {
        **_strategy(recommendation.strategy),
        "method": name if name in list_methods() and name != "router" else None,
        "expected_gain": recommendation.expected_gain,
        "expected_gain_ci": list(recommendation.expected_gain_ci),
        "calls_per_question": recommendation.calls_per_question,
        "seconds_per_question": recommendation.seconds_per_question,
        "price_per_1000": recommendation.price_per_1000,
        "min_gain": recommendation.min_gain,
        "shown": recommendation.shown,
        "text": recommendation.text,
    }


def _samples(
    task: Task,
    split: str,
    profiles: Sequence[Profile],
    ensemble: Profile | None = None,
    traces: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    recommended: StrategyResult | None = None,
) -> Iterator[dict[str, Any]]:
    answers = {profile.model: {answer.id: answer for answer in profile.answers} for profile in profiles}
    for n, example in enumerate(task.examples):
        yield {
            "id": example.id,
            "prompt": example.prompt,
            # Most tasks have one reference, and a plain string is easier to read for programs.
            "reference": example.reference if isinstance(example.reference, str) else list(example.reference),
            "split": split,
            # Only where it is so: most questions share nothing.
            **({} if example.cluster is None else {"cluster": example.cluster}),
            "responses": {model: _answer(those[example.id]) for model, those in answers.items() if example.id in those},
            "ensemble": None if ensemble is None else {**_answer(ensemble.answers[n]), "trace": traces.get(n)},
            "recommended": None if recommended is None else _taken(recommended, n),
        }


def _recommended(outcome: Outcome) -> StrategyResult | None:
    """The recommended strategy if it takes the response of one of several members, or one of several responses."""
    recommendation = outcome.advice.recommendation
    if recommendation is None or recommendation.strategy.name == "single":
        return None
    return next((each for each in outcome.strategies if each.strategy == recommendation.strategy and each.takes), None)


def _taken(result: StrategyResult, n: int) -> dict[str, Any]:
    """Whose response a strategy takes to a question; for one model with several responses, which of them."""
    members, answer, place = result.strategy.members, result.profile.answers[n], result.takes[n]
    model, draw = (members[place], 0) if len(members) > 1 else (members[0], place)
    return {"model": model, "draw": draw, "extracted": answer.extracted, "score": answer.score}


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "extracted": answer.extracted,
        "score": answer.score,
        "length": answer.length,
        "finish_reason": answer.finish_reason,
        "error": answer.error,
    }


def _list(interval: Interval | None) -> list[float | None] | None:
    # JSON has no infinity, which is the length ratio to an empty response.
    return None if interval is None else [value if math.isfinite(value) else None for value in interval]
