"""A profiler whose scores come from a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.config import RunConfig
from advisor.judge.judge import Judge
from advisor.judge.prompts import name_of_set
from advisor.profile.job_runner import JobRunner, LocalJobRunner
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Profile
from advisor.response_cache import ResponseCache
from advisor.tasks.task import Task


class JudgedProfiler(Profiler):
    """Profiles candidates and sets, and lets a judge score their responses.

    Texts that other models read, of :meth:`drawn` and :meth:`reading`, are not scored, because most of them are no
    answers yet. :meth:`graded` scores those that are.

    Args:
        config: The run; its task has a rubric.
        cache: The response cache.
        progress: Shows progress and messages.
        judge: The judge.
        engine: As for :class:`Profiler`.

    Raises:
        InputError: A candidate cannot be used. No candidate has been run then.
    """

    def __init__(
        self,
        config: RunConfig,
        cache: ResponseCache,
        progress: Progress,
        judge: Judge,
        *,
        engine: JobRunner | None = None,
    ) -> None:
        super().__init__(config, cache, progress, engine=engine)
        self._judge = judge
        self._names = [candidate.name for candidate in config.candidates]
        self._opponents: dict[tuple[str, ...], dict[str, Profile]] = {}

    def alone(self, names: Sequence[str], task: Task) -> dict[str, Profile]:
        """See :meth:`Profiler.alone`. A judge that compares needs the responses of all candidates.

        Raises:
            JudgeError: A judge failed.
        """
        if not task.is_relative:
            return self._judge.grade(super().alone(names, task), task)
        # Also of candidates that were not named: a score is a share of wins over all of them.
        opponents = self._all_alone(task)
        return self._judge.compare({name: opponents[name] for name in names if name in opponents}, opponents, task)

    def together(
        self, names: Sequence[str], task: Task, method: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Profile:
        """See :meth:`Profiler.together`.

        Raises:
            JudgeError: A judge failed.
        """
        profile = super().together(names, task, method, options)
        return self._scored(name_of_set(profile.model, names), profile, task)

    def graded(self, profile: Profile, names: Sequence[str], task: Task) -> Profile:
        """See :meth:`Profiler.graded`.

        Raises:
            JudgeError: A judge failed.
        """
        # A candidate may be called like a method, and its verdicts are not those of the method.
        return self._scored(name_of_set(profile.model, names), profile, task)

    def _scored(self, name: str, profile: Profile, task: Task) -> Profile:
        if not task.is_relative:
            return self._judge.grade({name: profile}, task)[name]
        return self._judge.compare({name: profile}, self._all_alone(task), task)[name]

    def _all_alone(self, task: Task) -> dict[str, Profile]:
        """The responses of all candidates that have not failed."""
        # By the questions, because --until-sure judges longer and longer parts of a split.
        key = (task.split, *(example.id for example in task.examples))
        known = self._opponents.get(key, {})
        names = [name for name in self._names if name not in self.failures]
        # A candidate that fails on one split is no opponent on any.
        if any(name not in known for name in names):
            known = self._opponents[key] = super().alone(names, task)
        return {name: profile for name, profile in known.items() if name not in self.failures}


def open_profiler(
    config: RunConfig,
    cache: ResponseCache,
    progress: Progress,
    *,
    engine: JobRunner | None = None,
) -> tuple[Profiler, Judge | None]:
    """The profiler of a run, and the judge if it has one: of a task with a rubric the judge gives the scores.

    Raises:
        InputError: A candidate or a judge cannot be used. No model has been run then.
    """
    # Judges and candidates share it, and so the memory.
    engine = engine or LocalJobRunner(config.cache_dir)
    if not config.judges:
        return Profiler(config, cache, progress, engine=engine), None
    judge = Judge(config, cache, progress, engine)
    return JudgedProfiler(config, cache, progress, judge, engine=engine), judge
