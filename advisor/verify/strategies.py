"""Strategies that choose among the members' own answers: a vote, or a router that asks one member for each question.

They need only the answers that the members gave alone, so they are judged on the held-out questions without decoding.
The router learns from the dev questions only. Methods that generate, and candidates outside of the set, are not part of
this; `advisor evaluate` compares methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.records import LEVEL, Profile
from advisor.statistics import Comparison, check_same_questions, compare, holm
from advisor.tasks.task import Task
from ensemble.errors import InputError
from ensemble.methods import get_module, make_options
from ensemble.methods._response import ResponseMethod

_FEWEST_VOTERS = 3  # with fewer members, a vote is always the primary's answer
# Metrics that read a short, fixed answer without looking at the reference. `contains` searches for the reference, so
# its answers would tell the vote which one is right.
_VOTE_METRICS = ("exact_match", "number", "choice")
_DESCRIPTIONS = {
    "voting": "What does better is a vote (every model answers alone, and the answer that most of them give is taken)",
    "router": "What does better is a router (each question goes only to the model that was right on the dev questions "
    "most like it)",
}


@dataclass(frozen=True, slots=True)
class MethodResult:
    """A method on a set, compared with the best single model on the same questions.

    Attributes:
        method: The method's name; ``self-consistency`` for the control.
        level: ``token``, ``span``, ``response`` or ``control``.
        members: The members of the set.
        left_out: Why the method was not run; None if it was.
        comparison: The method against the best single model.
        p_adjusted: The comparison's p-value after Holm's correction for all methods that are compared together.
        ms_per_token: Milliseconds of a token; if all members answer, of all of them together.
        seconds: Seconds of a question, likewise.
        ensembled: Share of the steps in which several members took part, 0 to 1; None if nothing was decoded.
        handled: Vocabulary entries read in a step (Table 5 of the paper); None for spans and responses.
        peak_memory: Bytes.
    """

    method: str
    level: str
    members: tuple[str, ...] = ()
    left_out: str | None = None
    comparison: Comparison | None = None
    p_adjusted: float | None = None
    ms_per_token: float | None = None
    seconds: float | None = None
    ensembled: float | None = None
    handled: float | None = None
    peak_memory: int | None = None


def compare_strategies(
    dev: Task,
    learned: Sequence[Profile],
    held_out: Task,
    members: Sequence[Profile],
    seed: int = 0,
    rivals: Sequence[Profile] = (),
) -> tuple[MethodResult, ...]:
    """Compare the strategies that fit the task and the set with the best single model on the held-out questions.

    Args:
        dev: The questions to learn from.
        learned: The members' answers to them, the primary's first.
        held_out: The questions of the comparison.
        members: The members' answers to these, in the same order, at least one.
        seed: The seed of draws and of the resampling of graded scores.
        rivals: Answers to the same questions by models outside of the set, which count as single models, too.

    Returns:
        A vote, if answers are short and fixed and at least three members vote; a router, if the set has at least two
        members and there are enough dev questions. The best first.

    Raises:
        UniteError: The members answered different questions.
    """
    names = tuple(profile.model for profile in members)
    if len(names) < 2:
        return ()
    prompts, scores = dev_scores(dev, learned)
    comparisons = {
        name: compare(chosen(name, method, held_out, members)[0], (*members, *rivals), seed)
        for name, method in _fitting_methods(held_out, len(names), prompts, scores)
    }
    p_values = holm([comparison.p_value for comparison in comparisons.values()])
    results = zip(comparisons.items(), p_values, strict=True)
    best_first = sorted(results, key=lambda result: -round(result[0][1].accuracy, 9))
    return tuple(
        MethodResult(name, "response", names, comparison=comparison, p_adjusted=p_value)
        for (name, comparison), p_value in best_first
    )


def recommend(strategies: Sequence[MethodResult], level: float = LEVEL) -> str | None:
    """A sentence on the best strategy that is significantly better than the best single model; None without one.

    Args:
        strategies: All that were compared.
        level: The accepted probability of recommending a strategy that gains nothing, between 0 and 1.
    """
    # After Holm's correction each of these holds, so the best of them may be named.
    better = [
        (result.method, result.comparison, result.p_adjusted)
        for result in strategies
        if result.comparison is not None
        and result.p_adjusted is not None
        and result.p_adjusted <= level
        and result.comparison.delta > 0
    ]
    if not better:
        return None
    method, comparison, p_value = max(better, key=lambda result: result[1].accuracy)
    p_text = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    corrected = f" after correction for {len(strategies)} alternatives looked at" if len(strategies) > 1 else ""
    return (
        f"{_DESCRIPTIONS[method]}: {comparison.accuracy:.1f} points on the same questions, {comparison.delta:.1f} more "
        f"than {comparison.best_single} alone ({p_text}{corrected})."
    )


def can_vote(task: Task) -> bool:
    """Whether the answers that the task's metric reads can be counted as votes."""
    return task.metric in _VOTE_METRICS and task.scorer is None


def dev_scores(task: Task, profiles: Sequence[Profile]) -> tuple[list[str], list[list[float]]]:
    """What a response-level method learns from: the prompts, and for each prompt the score of every member.

    Args:
        task: The dev questions.
        profiles: The members' answers to them, the primary's first.

    Raises:
        UniteError: Two members answered different questions.
    """
    _check_questions(profiles)
    # The router compares prompts, and never sees the references of the held-out questions.
    prompts = [example.prompt for example in task.examples]
    return prompts, [[profile.answers[n].score for profile in profiles] for n in range(len(prompts))]


def chosen(name: str, method: ResponseMethod, task: Task, profiles: Sequence[Profile]) -> tuple[Profile, list[int]]:
    """The answers that a method chooses, as a profile, and the number of the member that gave each of them.

    Raises:
        UniteError: Two members answered different questions.
    """
    _check_questions(profiles)
    picks = []
    for n, example in enumerate(task.examples):
        answers = [profile.answers[n] for profile in profiles]
        texts, extracted = [answer.text or "" for answer in answers], [answer.extracted for answer in answers]
        picks.append(method.choose(example.prompt, texts, extracted))
    return Profile(name, tuple(profiles[pick].answers[n] for n, pick in enumerate(picks))), picks


def _check_questions(profiles: Sequence[Profile]) -> None:
    for profile in profiles[1:]:
        check_same_questions(profiles[0], profile)


def _fitting_methods(
    task: Task, members: int, prompts: Sequence[str], scores: Sequence[Sequence[float]]
) -> Iterator[tuple[str, ResponseMethod]]:
    if members >= _FEWEST_VOTERS and can_vote(task):
        yield "voting", get_module("voting").make(prompts, scores, make_options("voting", {}))
    try:
        yield "router", get_module("router").make(prompts, scores, make_options("router", {}))
    except InputError:
        return  # too few dev questions to learn from
