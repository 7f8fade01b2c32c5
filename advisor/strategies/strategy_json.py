"""Strategies as JSON: those that ``result.json`` compares, and the one in ``strategy.json``. Both are untrusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from advisor.advice.strategies import ASKING, Strategy
from advisor.runs.read.fields import Fields
from advisor.runs.result_json import are_names, is_text
from ensemble.errors import InputError
from ensemble.methods import list_methods

_MOST_MEMBERS = 100
_MOST_DRAWS = 100
_MOST_ROUTES = 100_000
_LARGEST_WEIGHT = 1e6


def read_strategy(fields: Fields) -> Strategy:
    """A strategy from its JSON object.

    Raises:
        InputError: A key is missing, or has a value that does not fit.
    """
    known = [*ASKING, *(name for name, method in list_methods().items() if method.level != "response")]
    fields.check("strategy", f"one of {', '.join(known)}", known.__contains__, required=True)
    name = fields.values["strategy"]
    if name in ("single", "self_consistency"):
        fields.check("members", "a list of one printable name", lambda value: _has_names(value, 1, 1), required=True)
    else:
        fewest, expected = 2, f"a list of 2 to {_MOST_MEMBERS} different, printable names"
        fields.check("members", expected, lambda value: _has_names(value, fewest, _MOST_MEMBERS), required=True)
    members = tuple(fields.values["members"])
    is_weighted, is_routed = name == "weighted_vote", name == "group_router"
    expected = f"{len(members)} numbers from 0 to {_LARGEST_WEIGHT:g}"
    fields.check("weights", expected, lambda value: _are_weights(value, len(members)), required=is_weighted)
    expected = "an object with the name of a member for each group"
    fields.check("routes", expected, lambda value: _are_routes(value, members), required=is_routed)
    fields.check("draws", f"a whole number from 1 to {_MOST_DRAWS}", _is_count_of_draws)
    return Strategy(
        name,
        members,
        tuple(map(float, fields.values.get("weights") or ())) if is_weighted else (),
        tuple((fields.values.get("routes") or {}).items()) if is_routed else (),
        fields.values.get("draws") or 1,
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


def _has_names(value: Any, fewest: int, most: int) -> bool:
    return isinstance(value, list) and fewest <= len(value) <= most and are_names(value)


def _are_weights(value: Any, members: int) -> bool:
    # In Python True is a number. NaN is in no range.
    return (
        isinstance(value, list)
        and len(value) == members
        and all(type(each) in (int, float) and 0 <= each <= _LARGEST_WEIGHT for each in value)
    )


def _are_routes(value: Any, members: Sequence[str]) -> bool:
    return (
        isinstance(value, dict)
        and 0 < len(value) <= _MOST_ROUTES
        and all(is_text(group) and name in members for group, name in value.items())
    )


def _is_count_of_draws(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _MOST_DRAWS
