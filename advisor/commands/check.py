"""``advisor check``: asks the recommended strategy and the best single model of a run some fresh questions.

Fresh are the questions whose text is not in the run. :mod:`advisor.advice.drift` says when a recommendation holds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import typer

from advisor.advice.compared_models import PairedScores
from advisor.advice.doubts import run_doubts
from advisor.advice.drift import Judgement, change_interval, judge_accuracy, judge_gain
from advisor.advice.gain import Gain, cross_fitted_gain
from advisor.advice.recommendation import describe_gain
from advisor.advice.rules import rank
from advisor.commands.command_line import GATE_FAILED, command_line, print_found
from advisor.jobs.played import play_with_models
from advisor.jobs.session import open_session
from advisor.judge.judge import open_profiler
from advisor.logs.join import read_logs
from advisor.models.job import conversation_end
from advisor.models.run_config import EQUAL, RunConfig, load_split
from advisor.options.finished_run import CheckOptions
from advisor.progress import Progress
from advisor.records import ALPHA, CONFIDENCE, Profile, signed
from advisor.run.folder import Run
from advisor.run.plan import (
    candidates_of_run,
    check_servers,
    entries_as,
    figures_to_strategy,
    find_strategy,
    judges_beside,
    limits_of_run,
    with_task_of,
)
from advisor.run.result import EnsembleResult, StrategyFigures
from advisor.statistics import Interval, scores
from advisor.strategies.replay import replay
from advisor.strategies.strategy import Decoded, Single, Strategy
from advisor.strategies.vote import can_vote
from advisor.tasks.task import Example, clusters_of, sha256
from ensemble.common.files import default_cache_dir
from ensemble.common.text import counted
from ensemble.errors import InputError, MemberError
from ensemble.methods import DEFAULT
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import why_not_decodable

LIMIT = 100
"""Fresh questions by default. Answers of logs cost nothing, so all of these count."""


class _Promise(NamedTuple):
    """What a run says about a strategy; figures in points."""

    strategy: Strategy
    gain: float
    gain_ci: Interval
    accuracy: float
    accuracy_ci: Interval
    best_single_model: str
    min_gain: float

    @property
    def is_baseline(self) -> bool:
        """Whether it is the best single model, which gains nothing over itself."""
        return isinstance(self.strategy, Single) and self.strategy.members[0] == self.best_single_model

    @property
    def models(self) -> tuple[str, ...]:
        """The members, and the best single model."""
        return tuple(dict.fromkeys((*self.strategy.members, self.best_single_model)))


class _Fresh(NamedTuple):
    """Answers to fresh questions: those of the strategy, and of the best single model."""

    split: str
    task: str
    left_out: int
    strategy: Profile
    single: Profile
    clusters: Sequence[str] | None


def check(options: CheckOptions) -> None:
    """Print whether the recommendation of a run still holds on fresh questions; status 3 if it does not."""
    progress = Progress(quiet=options.quiet)
    run = Run.open(options.run)
    if (file := options.questions) is not None and run.result.provenance.logs and options.task is None:
        options = replace(options, questions=None, logs=(str(file),))
    promise = _read_promise(run, options.strategy)
    # Before the models run, which can take long.
    known, scored = set[object](), list[tuple[float | None, str]]()
    for n, sample in enumerate(run.samples_for("the run's questions are in this file")):
        known.add(_key(sample.id, sample.prompt))
        if (answer := sample.responses.get(promise.best_single_model)) is not None:
            scored.append((answer.score, sample.cluster or f"\0{n}"))
    promise = _by_all_questions(promise, scored)
    fresh = (_from_logs if options.logs else _from_models)(run, promise, known, options, progress)
    min_gain = promise.min_gain if options.min_gain is None else options.min_gain
    found = _result(promise, fresh, min_gain)
    print_found(options, found)
    if found["verdict"] == "worse":
        raise typer.Exit(GATE_FAILED)


def _read_promise(run: Run, wanted: str | None) -> _Promise:
    """What a run says about its recommended strategy, or about the one that ``--strategy`` names."""
    result, place = run.result, run.place
    strategies = [figures_to_strategy(each, place) for each in result.strategies]
    recommendation = result.advice.recommendation
    if recommendation is None:
        raise InputError(
            f"{place}: it recommends nothing, for example because of --no-verify, so nothing can be checked; run "
            "`advisor select` again with held-out questions"
        )
    own: StrategyFigures = recommendation
    if wanted is not None:
        own = result.strategies[strategies.index(find_strategy(wanted, strategies, place))]
    figures = (own.expected_gain, own.expected_gain_ci, own.accuracy, own.accuracy_ci, own.best_single_model)
    match figures:
        case (float(gain), (_, _) as gain_ci, float(accuracy), (_, _) as accuracy_ci, str(best_single)):
            strategy = figures_to_strategy(own, place)
            return _Promise(strategy, gain, gain_ci, accuracy, accuracy_ci, best_single, recommendation.min_gain)
    raise InputError(
        f"{place}: the strategy {own.strategy} should have expected_gain, accuracy, their intervals and "
        "best_single_model; run `advisor select` again"
    )


def _by_all_questions(promise: _Promise, scored: Sequence[tuple[float | None, str]]) -> _Promise:
    """What a run says about the best single model, by its scores on all questions, and not on the held-out ones alone.

    With each score comes the cluster of its question.
    """
    values = np.array([score for score, _ in scored], dtype=np.float64)
    if not promise.is_baseline or not scored or np.isnan(values).any():
        return promise
    clusters = [cluster for _, cluster in scored]
    is_clustered = len(set(clusters)) < len(clusters)
    interval = PairedScores(values[:, None], clusters if is_clustered else None).accuracy_interval(0, ALPHA)
    return promise._replace(accuracy=100 * float(values.mean()), accuracy_ci=interval)


def _key(number: str, prompt: str) -> object:
    """What makes a question the same as another one: its text, or its id where a log has no text."""
    return prompt if prompt.strip() else ("id", number)


def _draw_fresh(
    examples: Sequence[Example], known: Collection[object], limit: int | None, seed: int, place: str, others: str
) -> tuple[list[int], int]:
    """The numbers of fresh questions in a seeded order, at most ``limit``, and how many the run has.

    A conversation counts as one question, and comes with all its turns. `others` says what may have fresh ones.
    """
    # A conversation is as fresh as its first turn.
    firsts = [n for n, example in enumerate(examples) if example.earlier is None]
    fresh = [n for n in firsts if _key(examples[n].id, examples[n].prompt) not in known]
    if not fresh:
        raise InputError(
            f"{place}: the run has all of its {counted(len(firsts), 'question')}, so none is fresh; give new "
            f"questions, for example {others}"
        )
    # A key of each text alone: 20 questions are the start of 50.
    fresh.sort(key=lambda n: sha256(seed, examples[n].id, examples[n].prompt))
    drawn = [turn for n in fresh[:limit] for turn in range(n, conversation_end(examples, n + 1))]
    return drawn, len(firsts) - len(fresh)


def _weights(measured: EnsembleResult | None, strategy: Strategy, entries: Sequence[ModelSpec]) -> str:
    """The weights of the set that the run measured, as ``--weights`` has them; equal ones for another set."""
    if measured is None or measured.weights is None:
        return EQUAL
    members, weights = tuple(each.model for each in measured.members), measured.weights
    if (members, measured.method) != (strategy.members, strategy.name):
        return EQUAL
    by_name = dict(zip(members, weights, strict=False))
    # Models outside of the set do not decode with it.
    return ",".join(str(by_name.get(entry.name, 0.0)) for entry in entries)


def _from_models(
    run: Run, promise: _Promise, known: Collection[object], options: CheckOptions, progress: Progress
) -> _Fresh:
    """Let the models answer fresh questions of a task."""
    if options.task is None and run.result.provenance.logs:
        raise InputError(f"{run.place} was made from logs; give --logs FILE with fresh questions, or --task")
    options = with_task_of(run, options)
    strategy, seed = promise.strategy, options.seed
    decodes = isinstance(strategy, Decoded)
    entries = entries_as(candidates_of_run(run, promise.models, options.pool, options.trust_remote_code), options)
    for entry in entries:
        # Before anything is contacted.
        if decodes and entry.name in strategy.members and not entry.can_decode:
            raise InputError(why_not_decodable(entry.name))
    check_servers(entries, options, None if options.pool is not None else run.file)
    task = run.result.task
    # The option's seed draws fresh questions. The run's seed drew its shots, which are in all of its prompts.
    shots = task.shots if options.shots is None else options.shots
    every = replace(options, shots=shots, limit=None)
    whole = load_split(every, options.split, task.seed or 0, entries, questions=options.questions)
    whole.check_allowed()
    if task.prompt is not None and (task.prompt, task.metric) != (whole.prompt_digest, whole.metric):
        progress.say(
            f"{whole.name} has other prompts or another metric than the run (its task was {task.name}), so a "
            "change may come from that"
        )
    if strategy.COUNTS and not can_vote(whole):
        raise InputError(
            f"--task {options.task}: the strategy {strategy.name} counts short, fixed answers, which its metric "
            f"{whole.metric} does not read; give the task of the run"
        )
    if whole.is_relative:
        raise InputError(
            "with `mode: pairwise` scores depend on all candidates of the run, and not all are asked; "
            "run `advisor select` on the fresh questions",
            of=whole.name,
        )
    judges = judges_beside(run, options, whole)
    place = str(options.questions or f"--split {options.split} of {whole.name}")
    limit = options.limit or (LIMIT if options.questions is None else None)
    numbers, left_out = _draw_fresh(whole.examples, known, limit, seed, place, "a file of them")
    # As in the run, whose responses had this limit and were decoded so.
    limit_of_tokens = options.max_new_tokens or limits_of_run(run)[0] or whole.max_new_tokens
    asked = replace(whole, examples=tuple(whole.examples[n] for n in numbers), max_new_tokens=limit_of_tokens)
    measured = run.result.ensemble
    config = RunConfig(
        options=options.of_select(
            method=strategy.name if decodes else DEFAULT,
            k=(measured.k if measured else None) or 10,
            weights=_weights(measured, strategy, entries) if decodes else EQUAL,
            think=run.result.rules.think if decodes else None,
            seed=seed,
        ),
        candidates=entries,
        dev=asked,
        held_out=None,
        cache_dir=options.cache_dir or default_cache_dir(),
        command=command_line(),
        judges=judges,
    )
    with open_session(config, progress, {config.dev.split: 1}) as (cache, _):
        profiler, _ = open_profiler(config, cache, progress)
        # A set that decodes together needs no answers of its members alone.
        needed = (promise.best_single_model,) if decodes or strategy.responses_per_member > 1 else promise.models
        alone = profiler.alone(needed, asked)
        for name, reason in profiler.failures.items():
            raise MemberError(reason, of=name)
        played = play_with_models(profiler, strategy.members, strategy.flow, asked, alone, seed, strategy.name)
        answers = played.replay.profile
        if strategy.author is not None:
            answers = profiler.graded(answers, strategy.members, asked)
    return _Fresh(asked.split, asked.name, left_out, answers, alone[promise.best_single_model], clusters_of(asked))


def _from_logs(
    run: Run, promise: _Promise, known: Collection[object], options: CheckOptions, progress: Progress
) -> _Fresh:
    """Take the answers to fresh questions from logs."""
    strategy = promise.strategy
    if isinstance(strategy, Decoded) or strategy.author is not None:
        raise InputError(
            f"--logs: {', '.join(strategy.members)} write a new text together ({strategy.name}), and logs have the "
            "answers of models alone; leave out --logs, or name another strategy with --strategy"
        )
    scoring = run.result.provenance.scoring
    if options.metric is None and options.task is None and scoring is not None:
        # As the responses of the run were scored.
        words = (scoring.metric, scoring.extract)
        options = replace(options, metric=":".join(each for each in words if each is not None))
    logs = read_logs(options, promise.models, progress.say)
    if strategy.COUNTS and not logs.can_vote:
        raise InputError(
            f"--logs: the strategy {strategy.name} counts short answers, and most responses have none; give --metric "
            "METRIC:PATTERN, or a task file with --task, to read them"
        )
    numbers, left_out = _draw_fresh(logs.examples, known, options.limit, options.seed, "--logs", "another log")
    asked = logs.part("logs", numbers, options.seed)
    for doubt in run_doubts(sorted(asked.profiles.values(), key=rank), asked.task):
        progress.say(doubt.text)
    replayed = replay(strategy, asked)
    if replayed is None:
        fewest = min(len(asked.draws.get(name, ())) for name in strategy.members)
        raise InputError(
            f"--logs: {', '.join(strategy.members)} has {counted(max(fewest, 1), 'response')} to each question, and "
            f"the strategy needs {strategy.responses_per_member}; give a log with more"
        )
    single = asked.profiles[promise.best_single_model]
    clusters = None if logs.clusters is None else [logs.clusters[n] for n in numbers]
    return _Fresh("logs", logs.name, left_out, replayed.profile, single, clusters)


def _result(promise: _Promise, fresh: _Fresh, min_gain: float) -> dict[str, Any]:
    profile, n = fresh.strategy, len(fresh.strategy.answers)
    accuracy = profile.accuracy
    accuracy_ci = PairedScores(scores(profile)[:, None], fresh.clusters).accuracy_interval(0, ALPHA)
    gain: Gain | None = None
    if promise.is_baseline:
        found = judge_accuracy(accuracy, accuracy_ci, promise.accuracy, promise.accuracy_ci, n)
    else:
        gain = cross_fitted_gain(scores(profile) - scores(fresh.single), fresh.clusters)
        found = judge_gain(gain, promise.gain, promise.gain_ci, min_gain=min_gain)
    strategy = promise.strategy
    return {
        "task": fresh.task,
        "split": fresh.split,
        "n": n,
        "left_out": fresh.left_out,
        "strategy": strategy.name,
        "members": list(strategy.members),
        "expected_gain": None if gain is None else promise.gain,
        "expected_gain_ci": None if gain is None else list(promise.gain_ci),
        "measured_gain": None if gain is None else gain.points,
        "measured_gain_ci": None if gain is None else list(gain.interval()),
        "p_no_loss": None if gain is None else gain.p_no_loss,
        "min_gain": min_gain,
        "confidence": CONFIDENCE,
        "verdict": found.verdict,
        "questions_needed": found.questions,
        "accuracy": accuracy,
        "accuracy_ci": list(accuracy_ci),
        "accuracy_in_run": promise.accuracy,
        "change": accuracy - promise.accuracy,
        "change_ci": list(change_interval(accuracy, accuracy_ci, promise.accuracy, promise.accuracy_ci)),
        "errors": profile.errors,
        "best_single_accuracy": fresh.single.accuracy,
        "best_single_model": promise.best_single_model,
        "text": _text(promise, fresh, found, gain, accuracy),
    }


_BEGINNINGS = {
    "better": "The recommendation holds.",
    "equal": "The recommendation holds.",
    "worse": "The recommendation no longer holds.",
    "unclear": "It is unclear whether the recommendation holds.",
}


def _text(promise: _Promise, fresh: _Fresh, found: Judgement, gain: Gain | None, accuracy: float) -> str:
    scored = f"{promise.strategy}: {accuracy:.1f} points on {counted(len(fresh.strategy.answers), 'fresh question')}"
    if gain is None:
        figures = f"{scored}, and {promise.accuracy:.1f} in the run"
    else:
        figures = (
            f"{scored}, {describe_gain(gain.points, gain.interval())} against "
            f"{promise.best_single_model} alone; the run expected {signed(promise.gain)}"
        )
    parts = [_BEGINNINGS[found.verdict], f"{figures}; {found.reason}."]
    if found.verdict == "worse":
        parts.append("Run `advisor select` again.")
    if found.questions is not None:
        parts.append(f"About {found.questions:,} fresh ones would tell.")
    if errors := fresh.strategy.errors:
        counts = "counts" if errors == 1 else "count"
        parts.append(f"{counted(errors, 'question')} without a response {counts} as wrong.")
    if fresh.left_out:
        parts.append(f"Left out, because the run has them: {counted(fresh.left_out, 'question')}.")
    return " ".join(parts)
