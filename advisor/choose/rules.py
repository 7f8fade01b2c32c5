"""The rules of section 4.1: which candidates fit the best one, in which order.

Not covered: whether the set that they give is worth running. The paper itself says "may be compatible"; `evidence` and
`advice` look at that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from advisor.records import Decision, Rules, Selection, Standing
from ensemble.errors import UniteError

TOLERANCE = 1e-9
"""How far above a limit a figure may be and still be inside, in the figure's own unit.

The limits are inclusive, but in floating point 20.1 - 10.1 is 10.000000000000002, and rounding must not reject.
Accuracies on n questions lie 100 / n points apart, so the tolerance lets nothing in that is really outside.
"""


def select(
    standings: Sequence[Standing],
    rules: Rules,
    dropped: Sequence[Decision] = (),
    apart: Collection[str] = (),
) -> Selection:
    """Order the candidates and take, greedily, those that fit the first (section 4.1).

    Args:
        standings: The candidates, in any order; their names differ.
        rules: The limits, all inclusive.
        dropped: What a race has decided of others; they come last, and do not count in what follows.
        apart: Candidates behind a server: they cannot be decoded with others, so the rules choose among the rest.

    Returns:
        A decision for each candidate, best first, and the chosen set, the primary first. Candidates that come after the
        set is full are still held against the rules, so that their reason says whether they would have fitted.

    Raises:
        UniteError: There is no candidate, or all are apart.
    """
    together = sorted((one for one in standings if one.model not in apart), key=_rank)
    if not together:
        raise UniteError("no candidate was profiled, so there is nothing to choose from: see why each of them failed")
    primary = together[0]
    among = _why_primary(primary, len(together) + len(dropped), those=" that can be decoded together" if apart else "")
    decisions = {primary.model: Decision(primary.model, "primary", among + _tie(together, 0))}
    selected = [primary.model]
    for index, candidate in enumerate(together[1:], start=1):
        broken = _broken_rules(candidate, primary, rules)
        if broken:
            decision = Decision(candidate.model, "rejected", "; and ".join(broken))
        elif len(selected) >= rules.max_models:
            decision = Decision(candidate.model, "rejected", f"fits, but the set of {rules.max_models} is full")
        else:
            reason = _why_selected(candidate, primary, rules) + _tie(together, index)
            decision = Decision(candidate.model, "selected", reason)
            selected.append(candidate.model)
        decisions[candidate.model] = decision
    for candidate in standings:
        if candidate.model in apart:
            decisions[candidate.model] = Decision(candidate.model, "rejected", _why_apart(candidate, primary, rules))
    best_first = (decisions[one.model] for one in sorted(standings, key=_rank))
    return Selection((*best_first, *dropped), tuple(selected))


def gap(a: float, b: float) -> float:
    """Distance of two accuracies, in absolute points: the paper calls 73.46 against 59.67 a gap of 15%.

    Args:
        a: Accuracy in points, 0 to 100.
        b: Accuracy in points, 0 to 100.
    """
    return abs(a - b)


def length_ratio(a: float | None, b: float | None) -> float | None:
    """Longer mean length over shorter mean length, at least 1 (section 4.1).

    Args:
        a: Mean length in characters, at least 0, or None where it is not known.
        b: The same of the other model.

    Returns:
        1 where both are 0, infinity where one of them is, None where one is not known.
    """
    if a is None or b is None:
        return None
    shorter, longer = min(a, b), max(a, b)
    if shorter == 0:
        return 1.0 if longer == 0 else math.inf
    return longer / shorter


def within(value: float, limit: float) -> bool:
    """Whether a gap or a length ratio is inside its limit, the limit included, up to `TOLERANCE`."""
    return value <= limit + TOLERANCE


def _rank(standing: Standing) -> tuple[float, float, str]:
    # Rounded, so that the order does not hang on the sixteenth digit either. An unknown length comes after the known.
    length = math.inf if standing.mean_length is None else round(standing.mean_length, 9)
    return -round(standing.accuracy, 9), length, standing.model


def _broken_rules(candidate: Standing, primary: Standing, rules: Rules) -> list[str]:
    """A clause for each rule that rejects the candidate.

    Only the gap rule's clause says "gap", and only the length rule's "length": readers look for these words. That is
    why neither names a model, whose name may contain them.
    """
    broken = []
    distance = gap(candidate.accuracy, primary.accuracy)
    if not within(distance, rules.max_gap):
        figure = _figure(distance, rules.max_gap)
        broken.append(f"its gap to the primary is {figure} points, over the limit of {rules.max_gap:g}")
    ratio = length_ratio(candidate.mean_length, primary.mean_length)
    if ratio is not None and not within(ratio, rules.max_length_ratio):
        broken.append(_why_length(candidate, primary, ratio, rules.max_length_ratio))
    return broken


def _why_length(candidate: Standing, primary: Standing, ratio: float, limit: float) -> str:
    own, other = f"{candidate.mean_length:.1f}", f"{primary.mean_length:.1f}"
    if math.isinf(ratio):
        return f"its mean length is {own} characters against {other} of the primary: one of the two gives no responses"
    times = f"{_figure(ratio, limit)} times"
    if (candidate.mean_length or 0) > (primary.mean_length or 0):
        return f"its mean length of {own} characters is {times} the primary's {other}, over the limit of {limit:g}"
    return f"the primary's mean length of {other} characters is {times} its own {own}, over the limit of {limit:g}"


def _why_selected(candidate: Standing, primary: Standing, rules: Rules) -> str:
    distance = _figure(gap(candidate.accuracy, primary.accuracy), rules.max_gap)
    behind = f"its gap to the primary is {distance} points, within the limit of {rules.max_gap:g}"
    ratio = length_ratio(candidate.mean_length, primary.mean_length)
    if ratio is None:
        whose = "its" if candidate.mean_length is None else "the primary's"
        return f"{behind}; the length rule was not checked, as {whose} mean length is not known"
    limit = rules.max_length_ratio
    return f"{behind}, and the length ratio is {_figure(ratio, limit)}, within the limit of {limit:g}"


def _why_apart(candidate: Standing, primary: Standing, rules: Rules) -> str:
    """Why a candidate behind a server is not in the set, and what the rules alone would have said."""
    server = "it is behind a server and cannot be decoded token by token with others"
    ahead = candidate.accuracy - primary.accuracy
    if ahead > TOLERANCE:
        return f"{server}; it is {ahead:.2f} points ahead of the primary"
    broken = _broken_rules(candidate, primary, rules)
    return "; and ".join([server, *broken]) if broken else f"{server}; by the rules it would fit the primary"


def _why_primary(primary: Standing, candidates: int, those: str = "") -> str:
    length = "" if primary.mean_length is None else f", mean length {primary.mean_length:.1f} characters"
    if candidates == 1:
        return f"the only candidate{those} ({primary.accuracy:.2f} points{length})"
    return f"the most accurate of {candidates} candidates{those} ({primary.accuracy:.2f} points{length})"


def _tie(ordered: Sequence[Standing], index: int) -> str:
    """What put a candidate before the next one where their accuracies are the same, as a clause; else nothing."""
    if index + 1 == len(ordered):
        return ""
    this, following = _rank(ordered[index]), _rank(ordered[index + 1])
    if this[0] != following[0]:
        return ""
    if this[1] == following[1]:
        by = "name"
    else:
        by = "the shorter mean length" if math.isfinite(following[1]) else "a mean length that is known"
    return f"; tied with {following[2]} and put before it by {by}"


def _figure(value: float, limit: float) -> str:
    """The value with two decimals, or as many more as tell it from the limit: "10.004, over 10" and not "10.00"."""
    for decimals in range(2, 10):
        text = f"{value:.{decimals}f}"
        if float(text) != limit:
            return text
    return f"{value:.2f}"
