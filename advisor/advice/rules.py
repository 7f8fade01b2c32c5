"""The rules of section 4.1: which candidates fit the best one, in which order.

The rules do not say whether the set is worth running: the paper says "may be compatible". :mod:`advisor.statistics` and
:mod:`advisor.advice.recommendation` decide that on held-out questions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from advisor.records import (
    TOLERANCE,
    Decision,
    Limits,
    Profile,
    ReasonCode,
    Selection,
    Standing,
    compared_lengths,
    gap,
    length_ratio,
    within,
)
from ensemble.common.schema import Name, Number, Schema, must, read_json, validated
from ensemble.common.text import LARGE_RATIO
from ensemble.errors import InputError, UniteError

_PROMISING = "the set with the largest expected gain"


def select(
    standings: Sequence[Standing], rules: Limits, copies: Sequence[Decision] = (), apart: Collection[str] = ()
) -> Selection:
    """Order the candidates and take, greedily, those that fit the first one (section 4.1).

    There is a decision for each candidate, best first; those about copies come last, and have no other effect.
    Candidates that are `apart` give whole texts only, so the rules choose among the rest. If the set is full, the rules
    are still applied to the later candidates, so that their reason says whether they fit.
    """
    together = sorted((standing for standing in standings if standing.model not in apart), key=rank)
    if not together:
        raise UniteError("no candidate was profiled, so there is nothing to choose from: see why each of them failed")
    primary = together[0]
    # The primary is the best of those that can be decoded, because the others are measured by it.
    among = _why_primary(primary, len(together) + len(copies), those=" that can be decoded together" if apart else "")
    decisions = {primary.model: Decision(primary.model, "primary", "primary", among + _tie(together, 0))}
    selected = [primary.model]
    for index, candidate in enumerate(together[1:], start=1):
        broken = _broken_rules(candidate, primary, rules)
        if broken:
            decision = Decision(candidate.model, "rejected", next(iter(broken)), "; and ".join(broken.values()))
        elif len(selected) >= rules.max_models:
            full = f"fits, but the set of {rules.max_models} is full"
            decision = Decision(candidate.model, "rejected", "full", full)
        else:
            reason = _why_selected(candidate, primary, rules) + _tie(together, index)
            decision = Decision(candidate.model, "selected", "fits", reason)
            selected.append(candidate.model)
        decisions[candidate.model] = decision
    for candidate in standings:
        if candidate.model in apart:
            why = _why_apart(candidate, primary, rules)
            decisions[candidate.model] = Decision(candidate.model, "rejected", "server", why)
    best_first = (decisions[standing.model] for standing in sorted(standings, key=rank))
    return Selection((*best_first, *copies), tuple(selected))


def close_voters(ranked: Sequence[Profile], rules: Limits) -> tuple[str, ...]:
    """The same of models that are ranked, without near copies."""
    close = [each for each in ranked if gap(each.accuracy, ranked[0].accuracy) <= rules.vote_gap + TOLERANCE]
    return tuple(profile.model for profile in close[: rules.max_voters])


def rank(standing: Standing | Profile) -> tuple[float, float, str]:
    """The sort key of the rules' order: the most accurate first, then the shorter responses, then by name."""
    # Rounded, so that rounding errors do not decide the order. An unknown length comes after all known ones.
    length = math.inf if standing.mean_length is None else round(standing.mean_length, 9)
    return -round(standing.accuracy, 9), length, standing.model


def with_chosen_set(
    chosen: Selection, models: Sequence[str], standings: Sequence[Standing], rules: Limits
) -> Selection:
    """The selection with the set of the largest expected gain instead of the one that the rules choose."""
    if tuple(models) == chosen.selected:
        return chosen
    # Applied to the members alone, so that each reason names the set's own primary.
    members = select([standing for standing in standings if standing.model in models], rules).decisions
    inside = {decision.model: decision for decision in members}
    decisions = tuple(_in_set(decision, inside.get(decision.model)) for decision in chosen.decisions)
    return Selection(decisions, tuple(models))


def _in_set(decision: Decision, inside: Decision | None) -> Decision:
    """The decision about a candidate if the set is another one; `inside` is the rules' decision within this set."""
    if inside is None:
        if decision.status == "rejected":
            return decision
        return Decision(decision.model, "rejected", "other_set", f"fits, but {_PROMISING} is one without it")
    if inside.status == "primary":
        return (
            decision if decision.status == "primary" else replace(inside, reason=f"the most accurate of {_PROMISING}")
        )
    if inside.status == "selected":
        return inside
    return Decision(decision.model, "selected", "other_set", f"in {_PROMISING}, although {inside.reason}")


def _broken_rules(candidate: Standing, primary: Standing, rules: Limits) -> dict[ReasonCode, str]:
    """A clause for each rule that rejects the candidate, by the rule's code."""
    broken: dict[ReasonCode, str] = {}
    distance = gap(candidate.accuracy, primary.accuracy)
    if not within(distance, rules.max_gap):
        figure = _figure(distance, rules.max_gap)
        broken["gap"] = f"its gap to the primary is {figure} points, over the limit of {rules.max_gap:g}"
    ratio = length_ratio(*compared_lengths(candidate, primary, rules)[:2])
    if ratio is not None and not within(ratio, rules.max_length_ratio):
        broken["length"] = _why_length(candidate, primary, ratio, rules)
    return broken


def _why_length(candidate: Standing, primary: Standing, ratio: float, rules: Limits) -> str:
    length, of_primary, unit = compared_lengths(candidate, primary, rules)
    limit = rules.max_length_ratio
    own, other = f"{length:.1f}", f"{of_primary:.1f}"
    if math.isinf(ratio):
        return f"its mean length is {own} {unit} against {other} of the primary: one of the two gives no responses"
    # Of a model that hardly says anything the exact figure tells nothing.
    times = f"more than {LARGE_RATIO:g} times" if ratio > LARGE_RATIO > limit else f"{_figure(ratio, limit)} times"
    if (length or 0) > (of_primary or 0):
        return f"its mean length of {own} {unit} is {times} the primary's {other}, over the limit of {limit:g}"
    return f"the primary's mean length of {other} {unit} is {times} its own {own}, over the limit of {limit:g}"


def _why_selected(candidate: Standing, primary: Standing, rules: Limits) -> str:
    distance = _figure(gap(candidate.accuracy, primary.accuracy), rules.max_gap)
    behind = f"its gap to the primary is {distance} points, within the limit of {rules.max_gap:g}"
    length, of_primary, unit = compared_lengths(candidate, primary, rules)
    ratio = length_ratio(length, of_primary)
    if ratio is None:
        whose = "its" if candidate.mean_length is None else "the primary's"
        is_choice = candidate.chooses or primary.chooses
        why = "the task has options to choose from" if is_choice else f"{whose} mean length is not known"
        return f"{behind}; the length rule was not checked, as {why}"
    limit = rules.max_length_ratio
    by = " by tokens" if unit == "tokens" else ""
    return f"{behind}, and the length ratio{by} is {_figure(ratio, limit)}, within the limit of {limit:g}"


def _why_apart(candidate: Standing, primary: Standing, rules: Limits) -> str:
    """Why a candidate that gives whole texts only is not in the set, and whether it fits by the rules."""
    server = "it is behind a server and cannot be decoded token by token with others"
    ahead = candidate.accuracy - primary.accuracy
    if ahead > TOLERANCE:
        return f"{server}; it is {ahead:.2f} points ahead of the primary"
    broken = _broken_rules(candidate, primary, rules)
    return "; and ".join([server, *broken.values()]) if broken else f"{server}; by the rules it would fit the primary"


def _why_primary(primary: Standing, candidates: int, those: str = "") -> str:
    length = "" if primary.mean_length is None else f", mean length {primary.mean_length:.1f} characters"
    if primary.thinks and primary.mean_tokens is not None:
        length += f", {primary.mean_tokens:.1f} tokens with its thinking"
    if candidates == 1:
        return f"the only candidate{those} ({primary.accuracy:.2f} points{length})"
    return f"the most accurate of {candidates} candidates{those} ({primary.accuracy:.2f} points{length})"


def _tie(ordered: Sequence[Standing], index: int) -> str:
    """If the next candidate has the same accuracy: a clause that says what decided their order; else nothing."""
    if index + 1 == len(ordered):
        return ""
    this, following = rank(ordered[index]), rank(ordered[index + 1])
    if this[0] != following[0]:
        return ""
    # The name comes last, so that the order never depends on the order of the pool file.
    if this[1] == following[1]:
        by = "name"
    else:
        by = "the shorter mean length" if math.isfinite(following[1]) else "a mean length that is known"
    return f"; tied with {following[2]} and put before it by {by}"


def _figure(value: float, limit: float) -> str:
    """The value with two decimals, or with more if it would look equal to the limit: 10.004 over a limit of 10."""
    for decimals in range(2, 10):
        text = f"{value:.{decimals}f}"
        if float(text) != limit:
            return text
    return f"{value:.2f}"


_FORM = '{"task": NAME, "profiles": [{"model": NAME, "accuracy": POINTS, "mean_length": CHARACTERS}, ...]}'


class _Published(Schema):
    """What is known of a model that is not asked."""

    model: Name
    accuracy: Annotated[Number, Field(ge=0, le=100)]
    mean_length: Annotated[Number, Field(ge=0)] | None = None


def _are_different(profiles: Sequence[_Published]) -> bool:
    return 0 < len({each.model for each in profiles}) == len(profiles)


class _Numbers(Schema):
    """The file of ``--scores``."""

    task: Name = "unnamed"
    profiles: Annotated[tuple[_Published, ...], must(_are_different, "a list of different models")]


def read_standings(path: Path) -> tuple[str, tuple[Standing, ...]]:
    """The task and the numbers of a file: ``{"task": NAME, "profiles": [{model, accuracy, mean_length}, ...]}``."""
    if not path.exists():
        raise InputError(f"--scores {path}: the file does not exist; give a JSON file with profiles")
    way_out = f"write it in the form {_FORM}"
    given = validated(_Numbers, read_json(path, way_out), f"--scores {path}", way_out)
    return given.task, tuple(Standing(each.model, each.accuracy, each.mean_length) for each in given.profiles)
