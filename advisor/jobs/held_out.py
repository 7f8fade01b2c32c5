"""Chooses the set, and runs it on the held-out questions.

``--set-by`` says how. *rules*: the rules choose one set, and only this one is run on held-out questions, so that its
figures there do not depend on the choice. *predicted*: the sets with the largest predicted gains are run on held-out
questions, one after another, until the next one is not expected to improve the best by
:data:`advisor.advice.predict.WORTH` points; the advice corrects for their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from advisor.advice.comparison import StrategyResult, expected_gain
from advisor.advice.predict import WORTH, PredictedSet, other_set_note, predicted_sets, provenance, real_sets
from advisor.advice.recommendation import FEW_QUESTIONS, least_gain
from advisor.choose.profiled_pool import ProfiledPool, without_failed
from advisor.choose.rules import fitting_voters, with_chosen_set
from advisor.config import BEST, RunConfig
from advisor.jobs.played import play_with_models
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import TRIES, Limits, Profile, Selection
from advisor.statistics import Difference, Interval, accuracy_interval, compare
from advisor.strategies.decoded import Decoded
from advisor.strategies.fusion import Fusion
from advisor.strategies.strategy import AnsweredSplit, Replay, Strategy
from advisor.strategies.vote_reader import can_vote
from advisor.tasks.task import Task
from ensemble.errors import MemberError
from ensemble.models.spec import Price

_MOST_LISTED = 10  # sets in result.json; with 24 candidates there are thousands


@dataclass(frozen=True, slots=True)
class Verified:
    """A set that decoded together on held-out questions.

    Attributes:
        task: The held-out questions.
        ensemble: The set's answers.
        members: Each member's answers alone, in the set's order.
        single: The answers of the best single model, which may be outside of the set.
        difference: The set against the best single model.
        accuracy_ci: The interval of the set's accuracy, in points.
        intervals: That of each member's accuracy.
        method: The method of the set.
        k: Candidates that each member brings to the union.
        dev: The set's answers to the dev questions; None if it was not run there.
        expected: The gain that is expected in use, in points; see :func:`advisor.advice.comparison.expected_gain`.
        weights: The members' weights; see :meth:`advisor.profile.profiler.Profiler.weights`.
    """

    task: Task
    ensemble: Profile
    members: tuple[Profile, ...]
    single: Profile
    difference: Difference
    accuracy_ci: Interval
    intervals: tuple[Interval, ...]
    method: str
    k: int
    expected: float
    dev: Profile | None = None
    weights: tuple[float, ...] | Literal["perplexity"] | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the members, the primary first."""
        return tuple(member.model for member in self.members)

    @property
    def strategy(self) -> Decoded:
        """The set as a strategy."""
        return Decoded(self.models, self.method)


@dataclass(frozen=True, slots=True)
class ChosenSet:
    """The chosen set.

    Attributes:
        pool: The candidates that it was chosen from.
        selection: The set.
        verified: The sets that were run on the held-out questions, one family of tests. The verdict is about the first
            one: the selected set, or if the rules left fewer than two models, the one that the prediction chose.
        alone: The answers of single models to the held-out questions, by name: the sets' members, and other models that
            the sets are compared with.
        voters: The models of votes and routers; empty if they were not asked the held-out questions.
        fused: The answers of fusions to the held-out questions.
        trouble: Why a set could not be run on the held-out questions.
        sets: All sets that could be decoded, the most promising first.
        note: That the prediction would choose another set, for the advice.
    """

    pool: ProfiledPool
    selection: Selection
    verified: tuple[Verified, ...] = ()
    alone: Mapping[str, Profile] = field(default_factory=dict)
    voters: tuple[str, ...] = ()
    fused: Mapping[Strategy, Replay] = field(default_factory=dict)
    trouble: str | None = None
    sets: tuple[PredictedSet, ...] = ()
    note: str | None = None

    def splits(self, config: RunConfig, held_out: Task) -> tuple[AnsweredSplit, AnsweredSplit]:
        """The dev and the held-out questions, with all answers to them."""
        sets: dict[Strategy, Verified] = {each.strategy: each for each in self.verified}
        on_dev = {strategy: Replay(each.dev) for strategy, each in sets.items() if each.dev is not None}
        written: dict[Strategy, Replay] = {
            strategy: Replay(each.ensemble, calls=((each.models, each.ensemble),)) for strategy, each in sets.items()
        }
        return (
            AnsweredSplit(config.dev, self.pool.complete, on_dev),
            AnsweredSplit(held_out, self.alone, {**written, **self.fused}, prices_of(config)),
        )

    def as_dict(self, set_by: str, results: Sequence[StrategyResult]) -> dict[str, Any] | None:
        """The prediction for JSON: the most promising sets, and those that were decoded; None without a set.

        Args:
            set_by: The value of ``--set-by``.
            results: The strategies on the held-out questions.
        """
        if not self.sets:
            return None
        gains = {each.strategy.members: each.gain.points for each in results if isinstance(each.strategy, Decoded)}
        sets = [
            each.as_dict(decoded=each.models in gains, gain=gains.get(each.models))
            for n, each in enumerate(self.sets)
            if n < _MOST_LISTED or each.rules or each.models in gains
        ]
        return {"set_by": set_by, "sets": sets, "provenance": provenance(), "real_sets": real_sets()}


def choose(config: RunConfig, pool: ProfiledPool, profiler: Profiler, progress: Progress) -> ChosenSet:
    """Choose a set and run it on the held-out questions.

    A member that fails there leaves the pool, and the set is chosen again among the others.

    Raises:
        UniteError: All candidates failed.
    """
    while True:
        chosen = _choose_on_dev(config, pool)
        models = chosen.selection.selected
        if config.held_out is None:
            return chosen
        queue = _to_verify(chosen, config)
        voters = _voters(pool, config.held_out, config.rules, models)
        members = [model for each in queue for model in each.models]
        # The set has to be better than the best candidate, even if it does not contain it, or a server runs it.
        best = (pool.select(config.rules).selected[0], pool.best)
        fusion = _fusion(pool, voters, config)
        readers = () if fusion is None else fusion.members
        compared = tuple(dict.fromkeys([*models, *members, *best, *voters, *readers]))
        alone = profiler.alone(compared, config.held_out)
        # Also one that is not compared: responses may be judged by comparison with its own.
        if profiler.failures.keys().isdisjoint(pool.complete):
            break
        # Another primary may follow from it, and so another set.
        pool = without_failed(pool, config, profiler)
    if config.fusion is not None and fusion is None:
        progress.say("--fusion: its writer, or all of its panel, failed on the questions, so there is no fusion")
    fused = {} if fusion is None else _fused(fusion, alone, config.held_out, config, profiler, progress)
    chosen = replace(chosen, alone=alone, voters=voters, fused=fused)
    verified: list[Verified] = []
    for predicted in queue:
        # The largest expected gain so far; the best single model gains 0.
        best_gain = max([0.0, *(each.expected for each in verified)])
        if verified and predicted.prediction.improvement(best_gain) < WORTH:
            break
        try:
            # The members' own answers were stored before: if memory ends here, no work is lost.
            together = profiler.together(predicted.models, config.held_out)
            on_dev = profiler.together(predicted.models, config.dev) if config.decode_on == "both" else None
        except MemberError as error:
            progress.say(str(error))
            chosen = replace(chosen, trouble=str(error))
            continue
        made = replace(
            _verify(predicted, together, on_dev, chosen, config.held_out, config),
            weights=profiler.weights(predicted.models),
        )
        splits = replace(chosen, verified=(made,)).splits(config, config.held_out)
        verified.append(replace(made, expected=expected_gain(made.strategy, *splits, config.rules)))
    # The sort is stable: of sets with the same expected gain the one with the larger predicted gain comes first.
    chosen = replace(chosen, verified=tuple(sorted(verified, key=lambda each: -round(each.expected, 9))))
    if config.set_by != "predicted" or not verified:
        return chosen
    return replace(chosen, selection=_select(chosen, chosen.verified[0].models, config))


def prices_of(config: RunConfig) -> dict[str, Price]:
    """What the tokens of the candidates cost, by name, where it is known."""
    return {entry.name: entry.price for entry in config.candidates if entry.price is not None}


def _fusion(pool: ProfiledPool, voters: Sequence[str], config: RunConfig) -> Fusion | None:
    """The fusion that the options name, of the candidates that answered the dev questions; None without one."""
    if config.fusion is None:
        return None
    line = config.fusion
    panel = [name for name in line.panel or voters if name in pool.complete]
    writer = pool.best if line.writer == BEST else line.writer
    if not panel or writer not in pool.complete:
        return None
    return Fusion.of(panel, writer, line.drafts, line.rounds, line.template)


def _fused(
    fusion: Fusion,
    alone: Mapping[str, Profile],
    task: Task,
    config: RunConfig,
    profiler: Profiler,
    progress: Progress,
) -> dict[Strategy, Replay]:
    """The answers of a fusion to the held-out questions; none if a model failed."""
    try:
        made = play_with_models(
            profiler, fusion.members, fusion.flow, task, alone, config.seed, f"fusion by {fusion.writer}"
        )
    except MemberError as error:
        progress.say(str(error))
        return {}
    if made.unread:
        progress.say(
            f"{fusion}: {len(made.unread):,} of {made.readings:,} prompts with drafts could not be answered; an "
            f"earlier draft counts there; the first: {made.unread[0]}"
        )
    graded = profiler.graded(made.replay.profile, fusion.members, task)
    return {fusion: made.replay._replace(profile=graded)}


def _to_verify(chosen: ChosenSet, config: RunConfig) -> tuple[PredictedSet, ...]:
    """The sets to run on held-out questions, in this order."""
    models = chosen.selection.selected
    if config.set_by == "predicted" and chosen.sets:
        return chosen.sets[:TRIES]
    # A set that the rules leave empty may still pay: a gap of more than their limit is no proof.
    if len(models) < 2:
        least = config.rules.min_gain
        return tuple(each for each in chosen.sets[:1] if each.prediction.points > least_gain(len(each.models), least))
    return tuple(each for each in chosen.sets if each.models == models)


def _verify(
    predicted: PredictedSet,
    together: Profile,
    on_dev: Profile | None,
    chosen: ChosenSet,
    held_out: Task,
    config: RunConfig,
) -> Verified:
    models, alone = predicted.models, chosen.alone
    members = tuple(alone[model] for model in models)
    difference = compare(together, list(alone.values()), config.seed)
    return Verified(
        task=held_out,
        ensemble=together,
        members=members,
        single=alone[difference.over],
        difference=difference,
        accuracy_ci=accuracy_interval(together, seed=config.seed),
        intervals=tuple(accuracy_interval(member, seed=config.seed) for member in members),
        method=config.method,
        k=config.k,
        # Replaced by the caller.
        expected=0.0,
        dev=on_dev,
    )


def _voters(pool: ProfiledPool, task: Task, rules: Limits, selected: Sequence[str]) -> tuple[str, ...]:
    """The models of votes and routers, the most accurate on dev first."""
    if can_vote(task):
        return fitting_voters(list(pool.complete.values()), rules)
    # Without votes only the router by groups is left. It chooses among the set of the rules, also behind servers.
    return pool.voters(rules) or tuple(selected)


def _choose_on_dev(config: RunConfig, pool: ProfiledPool) -> ChosenSet:
    """The set that the rules choose, or the one that ``--set-by`` takes instead."""
    chosen = ChosenSet(pool, pool.select(config.rules))
    profiles = [profile for name, profile in pool.complete.items() if name not in pool.remote]
    if len(profiles) < 2:
        return chosen
    chosen = replace(chosen, sets=predicted_sets(profiles, config.rules))
    if not chosen.sets:
        return chosen
    if config.set_by == "rules":
        # From a few questions the prediction is wild.
        return replace(chosen, note=other_set_note(chosen.sets) if len(config.dev.examples) >= FEW_QUESTIONS else None)
    # Before held-out questions are asked, or without them, the prediction alone chooses.
    return replace(chosen, selection=_select(chosen, chosen.sets[0].models, config))


def _select(chosen: ChosenSet, models: Sequence[str], config: RunConfig) -> Selection:
    """The selection with another set than that of the rules."""
    pool = chosen.pool
    standings = [profile.standing for name, profile in pool.complete.items() if name not in pool.remote]
    return with_chosen_set(pool.select(config.rules), models, standings, config.rules)
