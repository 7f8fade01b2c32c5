"""The candidates' answers to the dev questions: all of them, or no more than a race needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from advisor.choose.race import Drop, Race
from advisor.choose.rules import select
from advisor.config import RunConfig
from advisor.profile.profiler import Profiled, Profiler
from advisor.profile.sheet import Cost
from advisor.progress import Progress
from advisor.records import Decision, Profile, Rules, Selection, Standing
from advisor.tasks.task import Task
from ensemble.errors import UniteError


@dataclass(frozen=True, slots=True)
class Pool:
    """The candidates that could be run.

    Attributes:
        complete: The answers of those that were asked all dev questions, by name.
        dropped: The answers of those that left a race, to the questions they were asked; not to be compared.
        reasons: Why each of those left, by name; the last to leave first.
        remote: The names of those behind a server, which cannot be decoded with others.
    """

    complete: Mapping[str, Profiled]
    dropped: Mapping[str, Profiled]
    reasons: Mapping[str, str]
    remote: frozenset[str] = frozenset()

    @property
    def profiles(self) -> dict[str, Profile]:
        """All answers, by name."""
        return {name: one.profile for name, one in {**self.complete, **self.dropped}.items()}

    @property
    def costs(self) -> dict[str, Cost]:
        """What they took, by name."""
        return {name: one.cost for name, one in {**self.complete, **self.dropped}.items()}

    @property
    def best(self) -> str:
        """The most accurate candidate, wherever it is."""
        return select(self._standings, Rules()).selected[0]

    def select(self, rules: Rules) -> Selection:
        """Apply the rules to those that were asked everything.

        Those behind a server cannot be decoded with others, so the set is chosen among the rest, where they give one;
        where they do not, it is chosen among all.
        """
        dropped = [Decision(name, "rejected", reason) for name, reason in self.reasons.items()]
        if 0 < len(self.remote) < len(self.complete):
            selection = select(self._standings, rules, dropped, self.remote)
            if len(selection.selected) > 1:
                return selection
        return select(self._standings, rules, dropped)

    def voters(self, rules: Rules) -> tuple[str, ...]:
        """The set that the rules choose among all candidates, where one behind a server is in it; else nobody."""
        selected = select(self._standings, rules).selected
        return selected if len(selected) > 1 and self.remote.intersection(selected) else ()

    @property
    def _standings(self) -> list[Standing]:
        profiles = (one.profile for one in self.complete.values())
        return [Standing(p.model, p.accuracy, p.mean_length) for p in profiles]


def gather(plan: RunConfig, profiler: Profiler, watcher: Progress) -> Pool:
    """Profile the candidates that have not failed yet, in a race where the plan has one.

    Raises:
        UniteError: None of them could be run.
    """
    while True:
        names = [candidate.name for candidate in plan.candidates if candidate.name not in profiler.failures]
        if not names:
            name, reason = next(iter(profiler.failures.items()))
            raise UniteError(f"none of the {len(profiler.failures)} candidates could be run; {name}: {reason}")
        racing = [name for name in names if not profiler.is_remote(name)]
        if plan.race is None or len(racing) < 2:
            pool: Pool | None = _pool(profiler.alone(names, plan.dev), profiler)
        else:
            pool = _run_race(plan, plan.race, racing, profiler, watcher)
            # Whoever is behind a server may be far ahead, and is no measure for a set that it cannot be in.
            away = [name for name in names if profiler.is_remote(name)]
            pool = _with(pool, profiler.alone(away, plan.dev), profiler) if pool else None
        # Without those that failed on the way the race is run again: whoever was dropped may have been behind them
        # alone. Its responses are kept, so that this takes no time.
        if pool is not None and pool.complete:
            return pool


def without_failed(pool: Pool, plan: RunConfig, profiler: Profiler, watcher: Progress) -> Pool:
    """The pool that is left when a member has failed since.

    Raises:
        UniteError: There is none.
    """
    left = {name: one for name, one in pool.complete.items() if name not in profiler.failures}
    return _pool(left, profiler) if left and not pool.dropped else gather(plan, profiler, watcher)


def _pool(complete: Mapping[str, Profiled], profiler: Profiler) -> Pool:
    return Pool(complete, {}, {}, frozenset(name for name in complete if profiler.is_remote(name)))


def _with(pool: Pool, found: Mapping[str, Profiled], profiler: Profiler) -> Pool:
    """A pool and others that were asked everything."""
    return replace(_pool({**pool.complete, **found}, profiler), dropped=pool.dropped, reasons=pool.reasons)


def race_order(task: Task) -> list[int]:
    """The questions' places in the order of a race: by the seed and their texts, whatever the candidates are."""

    def draw(place: int) -> bytes:
        return hashlib.sha256(f"{task.seed}\n{task.examples[place].prompt}".encode()).digest()

    return sorted(range(len(task.examples)), key=draw)


def _run_race(
    plan: RunConfig, level: float, names: Sequence[str], profiler: Profiler, watcher: Progress
) -> Pool | None:
    """Profile candidates in rounds; None where one of them fails."""
    order, total = race_order(plan.dev), len(plan.dev.examples)
    race = Race(len(names), total, plan.rules.max_gap, level)
    found: dict[str, Profiled] = {}
    reasons: dict[str, str] = {}
    while places := race.next_round:
        examples = tuple(plan.dev.examples[place] for place in order[: places.stop])
        running = [names[model] for model in race.running]
        found |= (answered := profiler.alone(running, replace(plan.dev, examples=examples)))
        if len(answered) < len(running):
            return None
        new = {
            model: [answer.score for answer in answered[names[model]].profile.answers[places.start :]]
            for model in race.running
        }
        for drop in race.record(new):
            reasons = {names[drop.model]: _reason(drop, total, plan.rules, level), **reasons}
            watcher.say(f"{names[drop.model]}: {reasons[names[drop.model]]}")
    if not reasons:
        watcher.say(
            f"the race has dropped nobody: before all {total:,} questions were asked, no candidate was surely more "
            f"than {plan.rules.max_gap:g} points behind"
        )
    places_of = {example.id: place for place, example in enumerate(plan.dev.examples)}
    found = {name: _as_asked(found[name], places_of) for name in names}
    return Pool(
        {name: one for name, one in found.items() if name not in reasons},
        {name: found[name] for name in reasons},
        reasons,
    )


def _as_asked(one: Profiled, places: Mapping[str, int]) -> Profiled:
    """The same with its answers in the order of the task."""
    answers = sorted(one.profile.answers, key=lambda answer: places[answer.id])
    return replace(one, profile=replace(one.profile, answers=tuple(answers)))


def _reason(drop: Drop, total: int, rules: Rules, level: float) -> str:
    """Like the rules' own reasons: it says "gap", and names no model."""
    # Cut, not rounded: the bound itself is the most that can be said.
    bound = int(10 * drop.bound) / 10
    more = f"at least {bound:.1f} points" if bound > rules.max_gap else "more than that"
    return (
        f"dropped from the race after {drop.asked} of {total} questions: its gap to the best of them was "
        f"{drop.gap:.1f} points, over the limit of {rules.max_gap:g}, and on all questions it is {more}, with "
        f"{100 * (1 - level):g}% confidence"
    )
