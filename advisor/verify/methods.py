"""Methods side by side: each of them, every member alone and a control, on the same questions with the same scoring.

Token- and span-level methods decode; response-level ones choose among the members' stored responses. Held against them
is the best single member on these very questions, and that member's own majority over as many drawn responses as there
are members: what the same money buys without any ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advisor.config import RunConfig
from advisor.profile.loader import Decoding, FreshLoader, KeepingLoader
from advisor.profile.profiler import Profiled, Profiler
from advisor.profile.sheet import Cost
from advisor.progress import Progress
from advisor.records import Profile
from advisor.response_cache import Store
from advisor.statistics import Comparison, Interval, accuracy_interval, compare, holm
from advisor.verify.responses import can_vote, chosen, dev_scores
from ensemble.errors import InputError, MemberError, UniteError
from ensemble.methods import get_method, get_module, make_options
from ensemble.methods._response import ResponseMethod
from ensemble.models.spec import first_line

CONTROL = "self-consistency"
"""The control's name: the majority of several responses of one model (Wang et al., 2023)."""
TEMPERATURE = 0.7
"""Of the control's draws, as in that paper."""
_NO_VOTE = "votes are counted where answers are short and fixed, and the task's metric reads none such"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table.

    Attributes:
        method: Its name, or CONTROL.
        level: ``token``, ``span``, ``response`` or ``control``.
        left_out: Why it was not run; None where it was.
        comparison: It, held against the best single member.
        p_adjusted: Its p-value after Holm's correction for all methods of the table, controls left out.
        ms_per_token: Milliseconds that a token took; where all members answer, theirs together.
        seconds: That a question took, likewise.
        ensembled: Share of the steps in which several members decided, 0 to 1; None where nothing was decoded.
        handled: Entries whose probabilities were looked at, a step (Table 5 of the paper on UNITE); None where spans or
            responses are looked at.
        peak_memory: Bytes.
    """

    method: str
    level: str
    left_out: str | None = None
    comparison: Comparison | None = None
    p_adjusted: float | None = None
    ms_per_token: float | None = None
    seconds: float | None = None
    ensembled: float | None = None
    handled: float | None = None
    peak_memory: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The table.

    Attributes:
        members: Every member alone, in the set's order.
        intervals: Of each one's accuracy, in points.
        entries: The methods in the order that they were asked for, then the control.
    """

    members: tuple[Profiled, ...]
    intervals: tuple[Interval, ...]
    entries: tuple[Entry, ...]


class Evaluator:
    """Runs methods on a set.

    Args:
        plan: The set (its candidates, the primary first), and the questions: the held-out ones; dev is learnt from.
        methods: Their names, at least one.
        options: Settings of methods, by the methods' names.
        store: Where responses are looked up and kept.
        watcher: Who is told how far it is.

    Attributes:
        task: The questions.
        identities: What decides each member's responses, by name.

    Raises:
        InputError: There are no questions, or a member cannot be used.
    """

    def __init__(
        self,
        plan: RunConfig,
        methods: Sequence[str],
        options: Mapping[str, Mapping[str, Any]],
        store: Store,
        watcher: Progress,
    ) -> None:
        if plan.held_out is None:
            raise InputError("there are no questions to evaluate on; give a split")
        self.task = plan.held_out
        self._plan, self._methods, self._options = plan, methods, options
        self._names = [candidate.name for candidate in plan.candidates]
        self._watcher = watcher
        # As soon as one method decodes, all members are in memory together; so each is loaded once.
        decodes = any(get_method(name).level != "response" for name in methods)
        loader = KeepingLoader(plan.cache_dir) if decodes else FreshLoader(plan.cache_dir)
        self._profiler = Profiler(plan, store, watcher, loader)
        self.identities = self._profiler.identities

    def run(self) -> Evaluation:
        """Evaluate the methods, and the control.

        Raises:
            InputError: None of the methods fits the set; before anything is run.
            MemberError: A member cannot be run.
        """
        left_out = self._check()
        if len(left_out) == len(self._methods):
            raise InputError("; ".join(left_out.values()))
        alone = self._alone()
        entries = []
        for name in self._methods:
            level = get_method(name).level
            if name in left_out:
                entries.append(Entry(name, level, left_out[name]))
            elif level == "response":
                entries.append(self._choose(name, alone))
            else:
                entries.append(self._decode(name, level, alone))
        entries.append(self._control(alone))
        profiles = [one.profile for one in alone]
        intervals = tuple(accuracy_interval(profile, seed=self._plan.seed) for profile in profiles)
        return Evaluation(tuple(alone), intervals, _adjusted(entries))

    def _check(self) -> dict[str, str]:
        """Why methods cannot be run on this set, by name. What the store has all responses of can be."""
        found = {}
        for name in self._methods:
            if name == "voting" and not can_vote(self.task):
                found[name] = f"method voting: {_NO_VOTE}"
                continue
            try:
                if get_method(name).level == "response":
                    # Whether there is enough to learn from shows when it is learnt.
                    if name != "router":
                        self._responder(name)
                elif not self._profiler.is_stored(self._names, self.task, self._decoding(name)):
                    self._profiler.load(self._names, self._decoding(name))
            except InputError as error:
                found[name] = str(error)
        return found

    def _decoding(self, name: str) -> Decoding:
        return Decoding(name, self._plan.decoding.k, self._options.get(name, {}))

    def _alone(self) -> list[Profiled]:
        found = self._profiler.alone(self._names, self.task)
        for name, reason in self._profiler.failures.items():
            raise MemberError(f"{name}: {reason}")
        return [found[name] for name in self._names]

    def _decode(self, name: str, level: str, alone: Sequence[Profiled]) -> Entry:
        try:
            together = self._profiler.together(self._names, self.task, self._decoding(name))
        except MemberError as error:
            self._watcher.say(str(error))
            return Entry(name, level, str(error))
        return self._entry(name, level, together.profile, alone, _speed(together.cost), together.cost)

    def _choose(self, name: str, alone: Sequence[Profiled]) -> Entry:
        profiles = [one.profile for one in alone]
        try:
            prompts, scores = self._learnt() if name == "router" else ([], [])
            profile, picks = chosen(name, self._responder(name, prompts, scores), self.task, profiles)
        except UniteError as error:
            self._watcher.say(str(error))
            return Entry(name, "response", str(error))
        # A router asks one member a question, all others ask every member.
        speeds = [_speed(one.cost) for one in alone]
        asked = [[pick] for pick in picks] if name == "router" else [range(len(alone))] * len(picks)
        speed = tuple(sum(speeds[n][part] for each in asked for n in each) / len(asked) for part in range(2))
        memory = [one.cost.peak_memory for one in alone if one.cost.peak_memory is not None]
        entry = self._entry(name, "response", profile, alone, (speed[0], speed[1]), None)
        return replace(entry, peak_memory=max(memory, default=None))

    def _responder(
        self, name: str, prompts: Sequence[str] = (), scores: Sequence[Sequence[float]] = ()
    ) -> ResponseMethod:
        try:
            options = make_options(name, self._options.get(name, {}))
            made: ResponseMethod = get_module(name).make(prompts, scores, options)
        except UniteError:
            raise
        except Exception as error:  # of transformers, or of code that came with a model
            raise InputError(f"method {name}: {type(error).__name__}: {first_line(error)}") from error
        return made

    def _learnt(self) -> tuple[list[str], list[list[float]]]:
        found = self._profiler.alone(self._names, self._plan.dev)
        return dev_scores(self._plan.dev, [found[name].profile for name in self._names])

    def _control(self, alone: Sequence[Profiled]) -> Entry:
        best = max((one.profile for one in alone), key=lambda profile: round(profile.accuracy, 9))
        if self.task.metric == "choice":
            return Entry(CONTROL, "control", "options are chosen by their likelihood, and nothing is drawn")
        if not can_vote(self.task):
            return Entry(CONTROL, "control", _NO_VOTE)
        drawn = [
            self._profiler.drawn(best.model, self.task, TEMPERATURE, self._plan.seed + n) for n in range(len(alone))
        ]
        voting = self._responder("voting")
        profile, _ = chosen(CONTROL, voting, self.task, [one.profile for one in drawn])
        speeds = [_speed(one.cost) for one in drawn]
        speed = (sum(each[0] for each in speeds), sum(each[1] for each in speeds))
        return self._entry(CONTROL, "control", profile, alone, speed, drawn[0].cost)

    def _entry(
        self,
        name: str,
        level: str,
        profile: Profile,
        alone: Sequence[Profiled],
        speed: tuple[float, float],
        cost: Cost | None,
    ) -> Entry:
        decoded = cost is not None and cost.steps > 0 and level != "control"
        return Entry(
            method=name,
            level=level,
            comparison=compare(profile, [one.profile for one in alone], self._plan.seed),
            ms_per_token=speed[0] or None,
            seconds=speed[1] / len(self.task.examples),
            ensembled=cost.combined / cost.steps if cost and decoded else None,
            handled=cost.handled / cost.steps if cost and decoded and cost.handled else None,
            peak_memory=cost.peak_memory if cost else None,
        )


def _speed(cost: Cost) -> tuple[float, float]:
    """Milliseconds a token (0 where none was emitted), and seconds in all."""
    return (1000 * cost.seconds / cost.tokens if cost.tokens else 0.0), cost.seconds


def _adjusted(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    tested = [n for n, entry in enumerate(entries) if entry.comparison is not None and entry.level != "control"]
    values = holm([entry.comparison.p_value for n in tested if (entry := entries[n]).comparison is not None])
    adjusted = dict(zip(tested, values, strict=True))
    return tuple(replace(entry, p_adjusted=adjusted.get(n)) for n, entry in enumerate(entries))
