"""Methods at equal budgets, over several trainings of the same models: tokens, majorities, points, and their order.

The budget of a method is the number of tokens that all models decode for a question. Questions are the same in all
trainings. So a difference is taken question by question, as the mean over the trainings, and its interval and its
p-value are over the questions. How far trainings differ is told beside them: the points of each, and the places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from advisor.config import RunConfig
from advisor.jobs.methods import CONTROL
from advisor.jobs.response_methods import chosen
from advisor.profile.profiler import Profiler
from advisor.statistics import Floats, cluster_sign_flip, holm, mean_interval, scores
from advisor.strategies.self_consistency import TEMPERATURE
from benchmarks._measure import Figure
from ensemble.methods import get_module, make_options

WAITING = ("gac-threshold",)
"""Methods whose other members run only at the steps that are ensembled."""
FIRST = "unite"
"""The method whose time is the unit of the others' times."""


@dataclass(frozen=True, slots=True)
class Trained:
    """All methods on the models of one training.

    Attributes:
        config: The members and the questions.
        table: The contents of ``evaluation.json``.
        scores: Of each method that was run, and of the control, [questions].
        best: Of the best single model, [questions].
        tokens: For each method, the tokens that all models decode for a question.
        draws: For each method, how many responses of the best single model cost as much.
        majorities: The scores of their majority [questions], by their number.
    """

    config: RunConfig
    table: Mapping[str, Any]
    scores: Mapping[str, Floats]
    best: Floats
    tokens: Mapping[str, float]
    draws: Mapping[str, int]
    majorities: Mapping[int, Floats]


def tokens_of(table: Mapping[str, Any]) -> dict[str, float]:
    """The tokens that all models decode for a question, by method; those of one draw for the control."""
    alone = [_written(member) for member in table["members"]]
    tokens = {}
    for entry in table["methods"]:
        if entry["left_out"]:
            continue
        name, level = entry["method"], entry["level"]
        if level == "response":
            # One model answers where a router chooses before; else all do. What an aggregator reads and writes is
            # counted with its responses. A model that fuses the answers writes more, but the demo has none.
            tokens[name] = entry["tokens_per_question"] or sum(alone) / (len(alone) if name == "router" else 1)
        elif level == "control":
            tokens[name] = _written(entry)
        else:
            # Members write a span of about the same length each, of which one is taken.
            share = entry["share_ensembled"] if name in WAITING else 1
            tokens[name] = _written(entry) * (1 + (len(alone) - 1) * share)
    return tokens


def _written(entry: Mapping[str, Any]) -> float:
    """Tokens of a response on average, from its time and that of a token."""
    return float(1000 * entry["seconds_per_question"] / entry["ms_per_token"]) if entry["ms_per_token"] else 0.0


def draws_of(budget: float, tokens: Mapping[str, float], members: int) -> int:
    """How many draws of the best single model have about so many tokens; at least as many as there are members."""
    draw = tokens.get(CONTROL)
    return max(members, round(budget / draw)) if draw else members


def majority(model: str, draws: int, config: RunConfig, profiler: Profiler) -> Floats:
    """The scores [questions] of the majority of a model's responses. Those that are stored are not drawn again."""
    if config.held_out is None:
        raise ValueError("there are no held-out questions")
    drawn = [profiler.drawn(model, config.held_out, TEMPERATURE, config.seed + n) for n in range(draws)]
    voting = get_module("voting").make((), (), make_options("voting", {}))
    return scores(chosen(CONTROL, voting, config.held_out, drawn)[0])


def compared(trained: Sequence[Trained]) -> Iterator[Figure]:
    """Each method's figures over all trainings, and how far its order holds."""
    first = trained[0]
    task = f"{first.table['n']} {first.table['split']} questions of {first.table['task']}, {len(trained)} trainings"
    names = [entry["method"] for entry in first.table["methods"] if entry["method"] != CONTROL]
    ran = [name for name in names if all(name in each.scores for each in trained)]
    yield from _single(trained, task)
    p_values = {name: _chance([each.scores[name] - each.best for each in trained]) for name in ran}
    adjusted = dict(zip(ran, holm(list(p_values.values())), strict=True))
    places = [_places({name: each.scores[name] for name in ran}) for each in trained]
    for entry in first.table["methods"]:
        name, key = entry["method"], _key(entry["method"])
        if name == CONTROL:
            continue
        if name not in ran:
            reasons = [out for each in trained for other in each.table["methods"] if (out := _left_out(other, name))]
            yield Figure(f"{key}_accuracy", None, note=f"left out: {reasons[0]}")
            continue
        yield _points(f"{key}_accuracy", [each.scores[name] for each in trained], task)
        yield _points(f"{key}_delta", [each.scores[name] - each.best for each in trained], "points over the best model")
        note = "exact sign-flip test, all trainings of a question together, after Holm's correction for the table"
        yield Figure(f"{key}_p", adjusted[name], note=note)
        for n, each in enumerate(trained, start=1):
            place = places[n - 1][name]
            yield Figure(f"{key}_seed{n}", 100 * float(each.scores[name].mean()), note=f"place {place} of {len(ran)}")
        tokens = sum(each.tokens[name] for each in trained) / len(trained)
        yield Figure(f"{key}_tokens", tokens, note="decoded for a question, by all models together")
        draws = sorted({each.draws[name] for each in trained})
        yield _points(
            f"{key}_over_majority",
            [each.scores[name] - each.majorities[each.draws[name]] for each in trained],
            f"points over the best model's majority of {' or '.join(map(str, draws))} draws",
        )
        unite = next(other for other in first.table["methods"] if other["method"] == FIRST)
        if name != FIRST and entry["ms_per_token"] and unite["ms_per_token"]:
            cost = entry["ms_per_token"] / unite["ms_per_token"]
            yield Figure(f"{key}_over_{FIRST}", cost, note="milliseconds a token, each measured once")
    yield from order(ran, trained)


def _single(trained: Sequence[Trained], task: str) -> Iterator[Figure]:
    """The members alone, and the majorities of the best of them."""
    for n, each in enumerate(trained, start=1):
        for member in each.table["members"]:
            low, high = member["accuracy_ci"]
            yield Figure(f"{_key(member['model'])}_seed{n}", member["accuracy"], low, high, note="alone")
        yield Figure(f"best_single_seed{n}", 100 * float(each.best.mean()), note=each.table["best_single_model"])
    yield _points("best_single_accuracy", [each.best for each in trained], task)
    for draws in sorted(set.intersection(*({*each.majorities} for each in trained))):
        key, drawn = f"majority{draws}", [each.majorities[draws] for each in trained]
        gains = [own - each.best for own, each in zip(drawn, trained, strict=True)]
        yield _points(f"{key}_accuracy", drawn, f"majority of {draws} draws at temperature {TEMPERATURE}, {task}")
        yield _points(f"{key}_delta", gains, "points over the best model")
        for n, own in enumerate(drawn, start=1):
            yield Figure(f"{key}_seed{n}", 100 * float(own.mean()))
        tokens = sum(draws * each.tokens[CONTROL] for each in trained) / len(trained)
        yield Figure(f"{key}_tokens", tokens, note="decoded for a question")


def order(ran: Sequence[str], trained: Sequence[Trained]) -> Iterator[Figure]:
    """How many pairs of methods keep their order in all trainings."""
    held, certain, told = 0, 0, 0
    for one, other in combinations(ran, 2):
        apart = [each.scores[one] - each.scores[other] for each in trained]
        signs = {np.sign(round(float(difference.sum()), 9)) for difference in apart} - {0.0}
        told += bool(signs)
        held += len(signs) == 1
        low, high = mean_interval(100 * _mean(apart))
        certain += low > 0 or high < 0
    if not told:
        return
    note = f"of {told} pairs of methods that differ have the same order in all trainings, equal points allowed"
    yield Figure("order_held", held / told, note=note)
    yield Figure("order_certain", certain / told, note=f"of {told} pairs differ by an interval that excludes 0")


def _places(by: Mapping[str, Floats]) -> dict[str, int]:
    """The place of each method by its points, from 1; equal ones share a place."""
    points = {name: round(float(own.mean()), 9) for name, own in by.items()}
    return {name: 1 + sum(other > own for other in points.values()) for name, own in points.items()}


def _points(name: str, values: Sequence[Floats], note: str) -> Figure:
    """A mean over questions and trainings, in points, with its interval over the questions."""
    over = 100 * _mean(values)
    return Figure(name, float(over.mean()), *mean_interval(over), note=note)


def _mean(values: Sequence[Floats]) -> Floats:
    """The mean over trainings [questions]."""
    mean: Floats = np.mean(np.stack(values), axis=0)
    return mean


def _chance(differences: Sequence[Floats]) -> float:
    """The p-value of a difference over trainings [questions]: the answers to one question are not independent."""
    questions = np.tile(np.arange(len(differences[0])), len(differences))
    return cluster_sign_flip(np.concatenate(differences), questions)


def _left_out(entry: Mapping[str, Any], name: str) -> str | None:
    return entry["left_out"] if entry["method"] == name else None


def _key(name: str) -> str:
    return name.replace("-", "_")
