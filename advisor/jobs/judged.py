"""The section ``judge`` of ``result.json`` and ``evaluation.json``, and what the advice says about the verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

from advisor.advice.comparison import StrategyResult
from advisor.judge.judge import Judge
from advisor.judge.prompts import Grade, Match, name_of_set
from advisor.judge.summary import head_to_head, judge_warnings, summarize_grades, summarize_matches
from advisor.records import FIGURE_CONFIDENCE, Profile
from advisor.run.figures import HeadToHead, JudgedSplit, JudgeSection
from advisor.run.result import RecommendedStrategy
from advisor.strategies.schema import strategy_json
from advisor.strategies.strategy import Replay, Strategy
from advisor.tasks.task import Task, clusters_of
from ensemble.common.text import counted, interval_name


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
            matches, sure = cast("list[list[Match]]", judged), cast("list[Match]", settled)
            figures = summarize_matches(matches, sure, lengths, candidates, seed=seed, clusters=clusters)
            # Strategies are compared on the held-out questions only; the dev questions choose their members.
            if task is responses[-1][0]:
                taking_part = [each for each in strategies if not each.figures.is_single]
                met = [_met(each, [*matches[0], *sure], clusters) for each in taking_part]
        else:
            low, high = task.rubric.scale if task.rubric else (0, 1)
            grades = cast("list[list[Grade]]", judged)
            figures = summarize_grades(grades, lengths, 1 / (high - low), seed=seed, clusters=clusters)
        splits.append(JudgedSplit(split=task.split, calls=judge.calls(task.split), **figures))
    return JudgeSection(
        mode=judge.mode,
        judges=judge.names,
        splits=tuple(splits),
        head_to_head=tuple(each for each in met if each is not None),
    )


def written_by_name(written: Mapping[Strategy, Replay]) -> dict[str, Profile]:
    """The responses of strategies that write new texts, by the names that the verdicts have."""
    return {name_of_set(each.profile.model, strategy.members): each.profile for strategy, each in written.items()}


def warnings_on_judge(section: JudgeSection | None) -> list[str]:
    """Sentences on a judge whose verdicts tell little, from the last split; the splits have the same judge."""
    return judge_warnings(section.judges, section.splits[-1]) if section else []


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


def _without(failed: Collection[str], verdicts: Sequence[Match | Grade]) -> list[Match | Grade]:
    """The verdicts in which no failed model takes part."""
    names = [{each.model} if isinstance(each, Grade) else {each.first, each.second} for each in verdicts]
    return [each for each, own in zip(verdicts, names, strict=True) if own.isdisjoint(failed)]


def _met(result: StrategyResult, matches: Sequence[Match], clusters: Mapping[str, str]) -> HeadToHead | None:
    """A strategy against the best single model; None if the judge compared none of its responses with that model's."""
    strategy = result.strategy
    if any(draw is not None for _, draw in result.takes):
        return None  # responses of one model, which verdicts do not tell apart
    # New texts are of no member's making, so the judge compared them under the strategy's name.
    together = name_of_set(result.profile.model, strategy.members)
    names = [model for model, _ in result.takes] or [together] * len(result.profile.answers)
    taken = {answer.id: name for answer, name in zip(result.profile.answers, names, strict=True)}
    rival = result.figures.best_single_model or ""
    found = head_to_head(matches, taken, rival, clusters=clusters)
    if found is None:
        return None
    return HeadToHead(**strategy_json(strategy), rival=rival, **found)
