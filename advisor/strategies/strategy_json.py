"""Strategies as JSON: those that ``result.json`` compares, and the one in ``strategy.json``. Both are untrusted."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.advice.strategies import ASKING, Strategy
from advisor.runs.schema.result import StrategyKey
from ensemble.errors import InputError
from ensemble.methods import list_methods

_MOST_MEMBERS = 100
_MOST_DRAWS = 100
_MOST_ROUTES = 100_000
_LARGEST_WEIGHT = 1e6


def strategy_of(figures: StrategyKey, place: str) -> Strategy:
    """A strategy that a file describes, after it is checked that it can run.

    Args:
        figures: The strategy.
        place: The file, and what in it, for messages.

    Raises:
        InputError: The strategy is not known, or a key has a value that does not fit it.
    """
    name, members = figures.strategy, figures.members
    known = [*ASKING, *(method for method, each in list_methods().items() if each.level != "response")]
    fewest, most = (1, 1) if name in ("single", "self_consistency") else (2, _MOST_MEMBERS)
    is_weighted, is_routed = name == "weighted_vote", name == "group_router"
    weights, routes = figures.weights or (), figures.routes or {}
    problems = (
        (name not in known, f"strategy should be one of {', '.join(known)}"),
        (
            not fewest <= len(set(members)) == len(members) <= most or not all(map(str.isprintable, members)),
            f"members should be a list of {fewest} to {most} different, printable names"
            if most > 1
            else "members should be a list of one printable name",
        ),
        (
            is_weighted and not (len(weights) == len(members) and max(weights) <= _LARGEST_WEIGHT),
            f"weights should be {len(members)} numbers from 0 to {_LARGEST_WEIGHT:g}",
        ),
        (
            is_routed and not (0 < len(routes) <= _MOST_ROUTES and set(routes.values()) <= set(members)),
            "routes should be an object with the name of a member for each group",
        ),
        (figures.draws > _MOST_DRAWS, f"draws should be a whole number from 1 to {_MOST_DRAWS}"),
    )
    if problem := next((text for is_wrong, text in problems if is_wrong), None):
        raise InputError(f"{place}: {problem}; run `advisor select` again")
    return Strategy(
        name, members, weights if is_weighted else (), tuple(routes.items()) if is_routed else (), figures.draws
    )


def label(strategy: Strategy, others: Sequence[Strategy]) -> str:
    """The name by which ``--strategy`` chooses a strategy: ``vote``, or more where others have the same name."""
    same = [each for each in others if each.name == strategy.name and each.members != strategy.members]
    if not same:
        return strategy.name
    if all(len(each.members) != len(strategy.members) for each in same):
        return f"{strategy.name}/{len(strategy.members)}"
    return f"{strategy.name}/{strategy.members[0]}"


def find_strategy(wanted: str, strategies: Sequence[Strategy], place: str) -> Strategy:
    """The strategy that ``--strategy`` names.

    Args:
        wanted: ``NAME``, ``NAME/COUNT`` with the number of members, or ``NAME/MODEL`` with the first member.
        strategies: Those of the run.
        place: The file, for messages.

    Raises:
        InputError: The run has no such strategy, or several.
    """
    labels = list(dict.fromkeys(label(each, strategies) for each in strategies))
    if not labels:
        raise InputError(
            f"--strategy {wanted}: {place} compares no strategies, for example because of --no-verify; run `advisor "
            "select` again, or leave out --strategy"
        )
    name, _, detail = wanted.partition("/")
    found = [
        each
        for each in strategies
        if each.name == name and (not detail or detail in (str(len(each.members)), each.members[0]))
    ]
    if len(found) != 1:
        problem = "has several of this name" if found else "has no such strategy"
        raise InputError(f"--strategy {wanted}: {place} {problem}; give one of {', '.join(labels)}")
    return found[0]
