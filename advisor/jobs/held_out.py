"""Chooses the set, runs it on the held-out questions, and traces a few of its responses.

``--set-by`` says how. *rules*: the rules choose one set, and only this one is run on held-out questions, so that its
figures there do not depend on the choice. *predicted*: the sets with the largest predicted gains are run on held-out
questions, one after another, until the next one is not expected to improve the best by
:data:`advisor.advice.predict.WORTH` points; the advice corrects for their number.

A trace has the probabilities of every member at each step. Decoding with one generates the same text, except where
rounding depends on the size of the batch; the trace is then that of another response, and is left out, with a note.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from advisor.advice.compared_models import compare
from advisor.advice.comparison import Compared, StrategyResult, expected_gain, fitting_voters
from advisor.advice.doubts import FEW_QUESTIONS
from advisor.advice.predict import WORTH, Prediction, other_set_note, predicted_sets, provenance, real_sets
from advisor.advice.profiled_pool import ProfiledPool, without_failed
from advisor.advice.recommendation import least_gain
from advisor.advice.rules import with_chosen_set
from advisor.jobs.figures import measured
from advisor.jobs.played import are_drawn, are_judged, play_with_models
from advisor.models.job import continued, question_key, responses
from advisor.models.local_model import free_memory
from advisor.models.profiler import Profiler, splits_of
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import LIKELIHOOD, RunConfig
from advisor.options.shared import SetBy
from advisor.progress import Progress
from advisor.records import TRIES, Profile, Selection, join
from advisor.run.result import (
    EnsembleResult,
    GainFigures,
    MemberFigures,
    PredictedFigures,
    Predictions,
    RecommendedStrategy,
)
from advisor.statistics import accuracy_interval
from advisor.strategies import asked_for
from advisor.strategies.best_of import BestOf
from advisor.strategies.fusion import own_drafts
from advisor.strategies.self_consistency import TEMPERATURE
from advisor.strategies.strategy import FEWEST_VOTERS, AnsweredSplit, Decoded, Replay, Strategy
from advisor.strategies.vote import can_vote
from advisor.tasks.task import Task
from ensemble.errors import MemberError, UniteError, first_line
from ensemble.methods import list_methods
from ensemble.models.spec import Price

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.decode.sequences import Generation
    from ensemble.step.trace import Step


LEAST_WEIGHT = 0.1
"""The weight by likelihood below which a member is not worth its calls: in the zoo, triples with a member of up to 0.2
gained at most 0.6 points more than without it."""
_MOST_LISTED = 10  # sets in result.json; with 24 candidates there are thousands


@dataclass(frozen=True, slots=True)
class ChosenSet:
    """The chosen set.

    Attributes:
        pool: The candidates that it was chosen from.
        selection: The set.
        decoded: The sets that were run on the held-out questions, one family of tests. The verdict is about the first
            one: the selected set, or if the rules left fewer than two models, the one that the prediction chose.
        weights: The weights of its members.
        alone: The answers of single models to the held-out questions, by name: the sets' members, and other models that
            the sets are compared with.
        voters: The models of votes and routers; empty if they were not asked the held-out questions.
        written: The answers of strategies that write new texts to the held-out questions, those of the sets first.
        draws: Several responses of the best single model to the dev and to the held-out questions, if they were asked.
        trouble: Why a set could not be run on the held-out questions.
        sets: All sets that could be decoded, the most promising first.
        note: That the prediction would choose another set, for the advice.
    """

    pool: ProfiledPool
    selection: Selection
    decoded: tuple[Decoded, ...] = ()
    weights: tuple[float, ...] | None = None
    alone: Mapping[str, Profile] = field(default_factory=dict)
    voters: tuple[str, ...] = ()
    written: Mapping[Strategy, Replay] = field(default_factory=dict)
    draws: Sequence[Mapping[str, Sequence[Profile]]] = ({}, {})
    trouble: str | None = None
    sets: tuple[PredictedFigures, ...] = ()
    note: str | None = None

    def splits(self, config: RunConfig, held_out: Task) -> tuple[AnsweredSplit, AnsweredSplit]:
        """The dev and the held-out questions, with all answers to them."""
        return (
            AnsweredSplit(config.dev, self.pool.complete, draws=self.draws[0]),
            AnsweredSplit(held_out, self.alone, self.written, prices_of(config), self.draws[1]),
        )

    def predictions(self, set_by: SetBy, results: Sequence[StrategyResult]) -> Predictions | None:
        """``prediction`` of ``result.json``: the most promising sets, and all that were decoded; None without a set."""
        if not self.sets:
            return None
        gains = {each.strategy.members: each.gain.points for each in results if each.figures.is_decoded}
        sets = tuple(
            each.model_copy(update={"decoded": each.models in gains, "measured_gain": gains.get(each.models)})
            for n, each in enumerate(self.sets)
            if n < _MOST_LISTED or each.rules or each.models in gains
        )
        return Predictions(set_by=set_by, sets=sets, provenance=provenance(), real_sets=real_sets())

    def ensemble(self, config: RunConfig, held_out: Task, compared: Compared) -> EnsembleResult | None:
        """``ensemble`` of ``result.json``: the first set; None without one."""
        if not self.decoded:
            return None
        strategy, profile = self.decoded[0], self.written[self.decoded[0]].profile
        difference = compare(profile, list(self.alone.values()), config.options.seed)
        row = next(each.figures for each in compared.results if each.strategy == strategy)
        gain = {name: getattr(row, name) for name in GainFigures.model_fields}
        # Of the held-out questions alone.
        gain |= {"best_single_model": difference.over, "best_single_accuracy": self.alone[difference.over].accuracy}
        gain |= {"gained": difference.gained, "lost": difference.lost}
        return EnsembleResult(
            method=config.options.method,
            k=config.options.k,
            weights=self.weights,
            think=config.options.rules.think,
            n=difference.n,
            split=held_out.split,
            signature=held_out.signature,
            accuracy_ci=accuracy_interval(profile),
            difference=difference.difference,
            difference_ci=difference.difference_ci,
            difference_method=difference.difference_method,
            p_two_sided=difference.p_two_sided,
            test=difference.test,
            **gain,
            **measured(profile, held_out),
            members=tuple(
                MemberFigures(
                    model=member.model,
                    accuracy_ci=accuracy_interval(member),
                    **measured(member, held_out),
                )
                for member in (self.alone[name] for name in strategy.members)
            ),
        )


def choose(config: RunConfig, pool: ProfiledPool, profiler: Profiler, progress: Progress) -> ChosenSet:
    """Choose a set and run it on the held-out questions.

    A member that fails there leaves the pool, and the set is chosen again among the others.
    """
    while True:
        chosen = _choose_on_dev(config, pool)
        models = chosen.selection.selected
        if config.held_out is None:
            return chosen
        queue = _to_verify(chosen, config)
        if can_vote(config.held_out):
            voters = fitting_voters(list(pool.complete.values()), config.options.rules)
        else:
            # Without votes only the router by groups is left. It chooses among the set of the rules, also of servers.
            voters = pool.voters(config.options.rules) or tuple(models)
        members = [model for each in queue for model in each.models]
        # The set has to be better than the best candidate, even if it does not contain it, or a server runs it.
        best = (pool.select(config.options.rules).selected[0], pool.best)
        wanted = asked_for(config.options, tuple(pool.complete), (pool.best,), voters)
        readers = [name for each in wanted for name in each.members]
        compared = tuple(dict.fromkeys([*models, *members, *best, *voters, *readers]))
        alone = profiler.alone(compared, config.held_out)
        # Also one that is not compared: responses may be judged by comparison with its own.
        if profiler.failures.keys().isdisjoint(pool.complete):
            break
        # Another primary may follow from it, and so another set.
        pool = without_failed(pool, config, profiler)
    names = [entry.name for entry in config.candidates]
    for kind in {each.name for each in asked_for(config.options, names, names, names)} - {each.name for each in wanted}:
        progress.say(f"--{kind}: its writer, or all of its panel, failed on the questions, so there is no {kind}")
    written: dict[Strategy, Replay] = {}
    for strategy in wanted:
        written |= _written(strategy, alone, config.held_out, config, profiler, progress)
    chosen = replace(chosen, alone=alone, voters=voters, written=written)
    expected: dict[Decoded, float] = {}
    for predicted in queue:
        # The largest expected gain so far; the best single model gains 0.
        best_gain = max([0.0, *expected.values()])
        if expected and Prediction.of(predicted).improvement(best_gain) < WORTH:
            break
        try:
            # The members' own answers were stored before: if memory ends here, no work is lost.
            together = profiler.together(predicted.models, config.held_out)
        except MemberError as error:
            progress.say(str(error))
            chosen = replace(chosen, trouble=str(error))
            continue
        decoded = Decoded(predicted.models, config.options.method)
        replay = Replay(together, calls=((decoded.members, together, 0),))
        chosen = replace(chosen, written={**chosen.written, decoded: replay})
        expected[decoded] = expected_gain(decoded, *chosen.splits(config, config.held_out))
    if not expected:
        return chosen
    # The sort is stable: of sets with the same expected gain the one with the larger predicted gain comes first.
    sets = tuple(sorted(expected, key=lambda each: -round(expected[each], 9)))
    found = {each: chosen.written[each] for each in (*sets, *written)}
    chosen = replace(chosen, decoded=sets, written=found, weights=profiler.weights(sets[0].members))
    if config.options.set_by != "predicted":
        return chosen
    return replace(chosen, selection=_select(chosen, sets[0].members, config))


def at_equal_cost(
    chosen: ChosenSet, row: RecommendedStrategy, best: str, config: RunConfig, profiler: Profiler, progress: Progress
) -> ChosenSet:
    """Ask for what the calls of the recommended strategy buy otherwise, with one model.

    The writer of a fusion reads its own drafts, and the best single model writes as many responses to each question
    as the strategy takes calls: the most frequent answer counts, or the response that the judge grades best.
    """
    task, calls, why = config.held_out, math.ceil(row.calls_per_question or 1.0), ""
    if task is None or calls < 2:
        progress.say(f"--equal-cost compares with nothing: {row.title} takes one call")
        return chosen
    written = dict(chosen.written)
    for own in own_drafts(chosen.written, calls):
        written |= _written(own, chosen.alone, task, config, profiler, progress)
    chosen = replace(chosen, written=written)
    counts, strategy = are_drawn(task), BestOf((best,), max(calls, FEWEST_VOTERS))
    if not (counts or are_judged(task)):
        why = "the answers of several responses cannot be counted, and no judge grades them"
    else:
        seeds = [config.options.seed + n for n in range(strategy.draws)]
        try:
            asked = [
                {best: [profiler.drawn(best, each, TEMPERATURE, seed) for seed in seeds]}
                for each in (splits_of(config) if counts else [task])
            ]
            if counts:
                return replace(chosen, draws=asked)
            named = (replace(each, model=f"response {n}") for n, each in enumerate(asked[0][best], start=1))
            graded = [profiler.graded(each, (best,), task) for each in named]
            return replace(chosen, written={**written, strategy: strategy.replay_graded(graded)})
        except MemberError as error:
            why = str(error)
    progress.say(f"--equal-cost compares with no further responses of {best}: {why}")
    return chosen


def set_warnings(chosen: ChosenSet, config: RunConfig, profiler: Profiler) -> Iterator[str]:
    """What says that another set may be better than the one that was decoded."""
    names = chosen.decoded[0].members if chosen.decoded else ()
    if len(names) > 1 and len({profiler.family(name) for name in names}) == 1:
        yield (
            f"{join(names)} are of one family: one kind of model with one tokenizer. Such models know much the same: "
            "with equal weights two sizes of Qwen2.5-Coder wrote 1.4 points fewer tokens of reference texts right than "
            "the larger one alone. Where that one was wrong, the smaller one was right at 3.0% of the tokens; of pairs "
            "of different families it was 5.1%. --set-by predicted compares other sets."
        )
    weak = [name for name, weight in zip(names, chosen.weights or (), strict=False) if weight < LEAST_WEIGHT]
    if weak and config.options.weights in (None, LIKELIHOOD):
        yield (
            f"{join(weak)} adds next to nothing: by right texts the weight in the set is below {LEAST_WEIGHT:g}. "
            "Leave it out with --only."
        )


def prices_of(config: RunConfig) -> dict[str, Price]:
    """What the tokens of the candidates cost, by name, where it is known."""
    return {entry.name: entry.price for entry in config.candidates if entry.price is not None}


def _written(
    strategy: Strategy,
    alone: Mapping[str, Profile],
    task: Task,
    config: RunConfig,
    profiler: Profiler,
    progress: Progress,
) -> dict[Strategy, Replay]:
    """The answers of a strategy that writes to the held-out questions; none if a model failed."""
    name = strategy.name if strategy.author is None else f"{strategy.name} by {strategy.author}"
    try:
        made = play_with_models(profiler, strategy.members, strategy.flow, task, alone, config.options.seed, name)
    except MemberError as error:
        progress.say(str(error))
        return {}
    if made.unread:
        progress.say(
            f"{strategy}: {len(made.unread):,} of {made.readings:,} prompts with drafts could not be answered; an "
            f"earlier draft counts there; the first: {made.unread[0]}"
        )
    graded = profiler.graded(made.replay.profile, strategy.members, task)
    return {strategy: made.replay._replace(profile=graded)}


def _to_verify(chosen: ChosenSet, config: RunConfig) -> tuple[PredictedFigures, ...]:
    """The sets to run on held-out questions, in this order."""
    models = chosen.selection.selected
    if config.options.set_by == "predicted" and chosen.sets:
        return chosen.sets[:TRIES]
    # A set that the rules leave empty may still pay: a gap of more than their limit is no proof.
    if len(models) < 2:
        least = config.options.rules.min_gain
        gains = ((each, each.predicted_gain or 0.0) for each in chosen.sets[:1])
        return tuple(each for each, gain in gains if gain > least_gain(len(each.models), least))
    return tuple(each for each in chosen.sets if each.models == models)


def _choose_on_dev(config: RunConfig, pool: ProfiledPool) -> ChosenSet:
    """The set that the rules choose, or the one that ``--set-by`` takes instead."""
    chosen = ChosenSet(pool, pool.select(config.options.rules))
    profiles = [profile for name, profile in pool.complete.items() if name not in pool.remote]
    if len(profiles) < 2:
        return chosen
    chosen = replace(chosen, sets=predicted_sets(profiles, config.options.rules))
    if not chosen.sets:
        return chosen
    if config.options.set_by == "rules":
        # From a few questions the prediction is wild.
        return replace(chosen, note=other_set_note(chosen.sets) if len(config.dev.examples) >= FEW_QUESTIONS else None)
    # Before held-out questions are asked, or without them, the prediction alone chooses.
    return replace(chosen, selection=_select(chosen, chosen.sets[0].models, config))


def _select(chosen: ChosenSet, models: Sequence[str], config: RunConfig) -> Selection:
    """The selection with another set than that of the rules."""
    pool = chosen.pool
    standings = [profile.standing for name, profile in pool.complete.items() if name not in pool.remote]
    return with_chosen_set(pool.select(config.options.rules), models, standings, config.options.rules)


_LOG = logging.getLogger(__name__)

OF_A_KIND = 4
"""The most questions of each kind: corrected, spoiled, and those on which the members disagree most."""
MOST_STEPS = 256  # of a response, from the first one on: a trace is some 100 times as large as its text
MOST_CANDIDATES = 8  # of a step; the chosen one is always among them
FORM = 1  # of what `describe` returns; part of the key, so that a stored trace of another form is not read
MOST_PROMPTS = 8  # in a batch, because the traces of a whole batch are in memory until it is done


def trace_responses(
    chosen: ChosenSet,
    held_out: Task,
    single: str,
    config: RunConfig,
    profiler: Profiler,
    cache: ResponseCache,
    progress: Progress,
) -> dict[int, dict[str, Any]]:
    """The steps of some responses of the first decoded set, by the number of the question; see :func:`describe`."""
    together, names = chosen.written[chosen.decoded[0]].profile, list(chosen.decoded[0].members)
    task = continued(held_out, responses(together))
    # A choice task has no generated text, and only token-level methods have steps.
    if task.metric == "choice" or list_methods()[config.options.method].level != "token":
        return {}
    key = {**profiler.key(names, profiler.decoding(names)), "trace": FORM}
    numbers = questions_to_trace(together, [chosen.alone[name] for name in names], chosen.alone[single])
    keys = {n: question_key(key, task.examples[n], task, task.settings) for n in numbers}

    def is_trace(value: Any) -> bool:
        # The report checks the steps when it reads them; what is checked here is what the run itself reads.
        return isinstance(value, dict) and value.get("members") == names and isinstance(value.get("steps"), list)

    stored = {n: cache.value(keys[n], is_trace) for n in numbers}
    traces = {n: trace for n, trace in stored.items() if trace is not None}
    missing = {n: together.answers[n].text for n in numbers if n not in traces}
    if missing:
        asked = profiler.asked(names, task)
        try:
            with progress.stage("step by step", len(numbers)) as advance:
                advance(len(traces))
                for n, generation in _decode(profiler.load(names), asked, config.options.batch_size, list(missing)):
                    # Batches of another size round differently; steps of another text would mislead.
                    same = generation.text == missing[n]
                    if not same:
                        progress.say(f"{task.examples[n].id}: the response differs when decoded again; it has no trace")
                    # An empty trace is stored as well, so that the question is not decoded at each run.
                    traces[n] = describe(generation.trace if same else (), names)
                    cache.keep(keys[n], traces[n])
                    advance(1)
        except Exception as error:  # of transformers, torch, or of code that came with a model
            if type(error) is UniteError:  # of the cache
                raise
            _LOG.debug("responses cannot be traced", exc_info=error)
            progress.say(f"the steps of some responses could not be traced: {first_line(error)}")
        # After the handler, no traceback refers to the models any more.
        free_memory()
    return {n: trace for n, trace in sorted(traces.items()) if trace.get("steps")}


def _decode(
    ensemble: Ensemble, task: Task, batch_size: int | None, numbers: Sequence[int]
) -> Iterator[tuple[int, Generation]]:
    """Decode the responses to some questions again, with their traces."""
    from ensemble.decode.settings import Batch

    batch = Batch(min(batch_size or MOST_PROMPTS, MOST_PROMPTS), trace=True)
    prompts = [ensemble.encode(task.examples[n].model_input) for n in numbers]
    for place, generation in ensemble.generate_each(prompts, task.settings, batch):
        yield numbers[place], generation


def questions_to_trace(together: Profile, members: Sequence[Profile], single: Profile) -> list[int]:
    """Choose the questions to trace, by number: the first of each kind."""
    changes = [joint.score - alone.score for joint, alone in zip(together.answers, single.answers, strict=True)]
    answered = [n for n, answer in enumerate(together.answers) if answer.error is None and answer.text]
    corrected = [n for n in answered if changes[n] > 0][:OF_A_KIND]
    spoiled = [n for n in answered if changes[n] < 0][:OF_A_KIND]
    left = [n for n in answered if n not in (*corrected, *spoiled)]
    given = {n: [member.answers[n] for member in members] for n in left}
    distinct = {n: len({each.text if each.extracted is None else each.extracted for each in given[n]}) for n in left}
    divided = [n for n in sorted(left, key=lambda n: -distinct[n]) if distinct[n] > 1][:OF_A_KIND]
    return sorted({*corrected, *spoiled, *divided})


def describe(steps: Sequence[Step], members: Sequence[str]) -> dict[str, Any]:
    """A generation's steps for ``samples.jsonl``; the text of EOS is null, and ``⟨E2 82⟩`` are parts of characters."""
    return {
        "members": list(members),
        "steps": [_step(step) for step in steps[:MOST_STEPS]],
        "left_out": max(len(steps) - MOST_STEPS, 0),
    }


def _step(step: Step) -> dict[str, Any]:
    kept = step.likeliest(MOST_CANDIDATES)
    return {
        "text": _text(step.data),
        "won_by": list(step.won_by),
        "disagreement": round(step.disagreement, 4),
        "union": len(step.candidates),
        "chosen": kept.index(step.chosen),
        "candidates": [
            {
                "text": _text(each.data),
                "probabilities": [round(p, 4) for p in each.probabilities],
                "mean": round(each.mean, 4),
                "wanted_by": list(each.wanted_by),
            }
            for each in (step.candidates[n] for n in kept)
        ],
    }


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"⟨{data.hex(' ').upper()}⟩"
