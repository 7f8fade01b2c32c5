"""The rules of section 4.1: which candidates fit the best one, in which order.

The rules do not say whether the set is worth running: the paper says "may be compatible". :mod:`advisor.statistics` and
:mod:`advisor.advice.recommendation` decide that on held-out questions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advisor.models.fingerprint import Fingerprint
from advisor.models.profiler import Profiler
from advisor.models.run_config import RunConfig
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


def fitting_voters(profiles: Sequence[Profile], rules: Limits) -> tuple[str, ...]:
    """The models of votes: the most accurate one and those close to it. Lengths do not matter."""
    ranked = sorted(profiles, key=rank)
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


def read_standings(path: Path) -> tuple[str, tuple[Standing, ...]]:
    """The task and the numbers of a file: ``{"task": NAME, "profiles": [{model, accuracy, mean_length}, ...]}``."""
    try:
        # Tools on Windows write a byte order mark, which JSON does not allow.
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"--scores {path}: the file does not exist; give a JSON file with profiles") from None
    except OSError as error:
        raise InputError(
            f"--scores {path}: cannot be read ({error.strerror}); give a JSON file with profiles"
        ) from None
    except (ValueError, RecursionError):
        raise InputError(f"--scores {path}: it is not JSON; write it in the form {_FORM}") from None
    entries = data.get("profiles") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InputError(f"--scores {path}: needs the form {_FORM}")
    standings = tuple(_standing(entry, f"--scores {path}: profile {n}") for n, entry in enumerate(entries, start=1))
    names = [standing.model for standing in standings]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--scores {path}: the model {twice!r} is listed twice; give each model another name")
    # The task's name becomes the name of the run folder.
    task = data.get("task", "unnamed")
    if not isinstance(task, str):
        raise InputError(f'--scores {path}: "task" must be a name')
    return task, standings


def _standing(entry: object, place: str) -> Standing:
    values: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    model = values.get("model")
    if not isinstance(model, str) or not model:
        raise InputError(f'{place}: needs "model", a name')
    # Names are shown on the terminal and in lines of the report.
    if not model.strip() or not model.isprintable():
        raise InputError(f"{place}: the name {model!r} must be printable and not blank")
    accuracy, length = _number(values.get("accuracy")), _number(values.get("mean_length"))
    if accuracy is None or not 0 <= accuracy <= 100:
        raise InputError(f'{place} ({model}): needs "accuracy", points from 0 to 100')
    if values.get("mean_length") is not None and (length is None or length < 0):
        raise InputError(f'{place} ({model}): "mean_length" must be characters, 0 or more, or left out')
    return Standing(model, accuracy, length)


def _number(value: object) -> float | None:
    """A finite JSON number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON integers have no upper limit
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class ProfiledPool:
    """The candidates that could be run: the profiles of all but copies, by name, and of copies with their decisions.

    Those that are ``remote`` are behind servers that give whole texts only, so they cannot be decoded with others.
    """

    complete: Mapping[str, Profile]
    copies: Mapping[str, Profile] = field(default_factory=dict)
    rejected: tuple[Decision, ...] = ()
    remote: frozenset[str] = frozenset()

    @property
    def profiles(self) -> dict[str, Profile]:
        """All profiles, by name."""
        return {**self.complete, **self.copies}

    @property
    def best(self) -> str:
        """The most accurate candidate, wherever it runs."""
        return self._select(Limits()).selected[0]

    def select(self, rules: Limits) -> Selection:
        """Apply the rules to the candidates that are no copies.

        The set is chosen among the candidates that can be decoded together. If no two of them fit, it is chosen among
        all, with those that give whole texts only.
        """
        if 0 < len(self.remote) < len(self.complete):
            # Where fewer than two can be decoded together, a vote among all is still possible.
            selection = self._select(rules, self.rejected, self.remote)
            if len(selection.selected) > 1:
                return selection
        return self._select(rules, self.rejected)

    def voters(self, rules: Limits) -> tuple[str, ...]:
        """The set that the rules choose among all candidates, if one of its members gives whole texts; else empty."""
        selected = self._select(rules).selected
        return selected if len(selected) > 1 and self.remote.intersection(selected) else ()

    def _select(self, rules: Limits, copies: Sequence[Decision] = (), apart: frozenset[str] = frozenset()) -> Selection:
        return select([profile.standing for profile in self.complete.values()], rules, copies, apart)


def profile_candidates(config: RunConfig, profiler: Profiler) -> ProfiledPool:
    """Profile the candidates that have not failed yet."""
    names = [candidate.name for candidate in config.candidates if candidate.name not in profiler.failures]
    profiles = profiler.alone(names, config.dev)
    if not profiles:
        name, reason = next(iter(profiler.failures.items()))
        raise UniteError(f"none of the {len(profiler.failures)} candidates could be run; {name}: {reason}")
    identities = profiler.identities.items()
    weights = {name: identity.weights for name, identity in identities if isinstance(identity, Fingerprint)}
    found = find_copies(list(profiles.values()), weights, _remote(profiles, profiler))
    left = {name: profile for name, profile in profiles.items() if name not in found}
    copies = {name: profiles[name] for name in found}
    return ProfiledPool(left, copies, copy_decisions(found), _remote(left, profiler))


def without_failed(pool: ProfiledPool, config: RunConfig, profiler: Profiler) -> ProfiledPool:
    """The pool without the candidates that failed since it was profiled."""
    # A copy of the failed one may stay alone now; and if a judge compared the candidates, their scores are of
    # comparisons with the failed one. So they are profiled again.
    left = {name: profile for name, profile in pool.complete.items() if name not in profiler.failures}
    is_valid = left and not pool.copies and not config.dev.is_relative
    return ProfiledPool(left, remote=_remote(left, profiler)) if is_valid else profile_candidates(config, profiler)


def _remote(names: Iterable[str], profiler: Profiler) -> frozenset[str]:
    return frozenset(name for name in names if not profiler.decodes(name))


FEWEST_QUESTIONS = 30
"""On fewer questions two models may give equal answers by chance."""


def find_copies(
    profiles: Sequence[Profile], weights: Mapping[str, Hashable] | None = None, apart: Collection[str] = ()
) -> dict[str, str]:
    """The candidates that are the same model as another one, with the reason, by name. The first by rank stays.

    Weights are compared where they are known. A copy that can be decoded with others stays in place of one that is
    `apart`.
    """
    known = weights or {}
    # The first candidate with these weights, and with these answers: its rank and its name.
    by_weights: dict[Hashable, tuple[int, str]] = {}
    by_answers: dict[Hashable, tuple[int, str]] = {}
    reasons = {}
    for place, profile in enumerate(sorted(profiles, key=lambda each: (each.model in apart, rank(each)))):
        keys = (
            (by_weights, known.get(profile.model), "their weights are equal"),
            (by_answers, _telling_answers(profile), f"all {len(profile.answers):,} answers are equal"),
        )
        found = [(*first[key], why) for first, key, why in keys if key is not None and key in first]
        if found:
            _, original, why = min(found, key=lambda each: each[0])
            reasons[profile.model] = f"the same model as {original}: {why}"
            continue
        for first, key, _ in keys:
            if key is not None:
                first[key] = place, profile.model
    return reasons


def copy_decisions(copies: Mapping[str, str]) -> tuple[Decision, ...]:
    """The decisions about copies, from the reason of each by name."""
    return tuple(Decision(name, "rejected", "copy", reason) for name, reason in copies.items())


def _telling_answers(profile: Profile) -> Hashable:
    """All responses of a candidate; None if another model may give the same ones by chance."""
    answers = profile.answers
    # Two models may both be right everywhere. A log without texts, or a failed model, says nothing about the model.
    if len(answers) < FEWEST_QUESTIONS or all(answer.score == 1 for answer in answers):
        return None
    if all(answer.error is not None or (answer.text or answer.extracted) is None for answer in answers):
        return None
    # Cost and group are no answers; the likelihoods of options are.
    return tuple((each.id, each.text, each.extracted, each.score, each.options) for each in answers)
