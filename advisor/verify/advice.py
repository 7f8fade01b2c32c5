"""The verdict: ensemble these, use one alone, or "cannot tell", in words for somebody who never saw the paper.

Also the margins: which of the rules' decisions other questions could have turned round. Not covered: what to do instead
of ensembling, beyond using the best single model; `alternatives` looks at that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.choose.rules import gap, length_ratio, within
from advisor.records import LEVEL, Profile, Rules, Selection, Verdict
from advisor.statistics import Comparison, Interval, paired_intervals, questions_needed

FEW_QUESTIONS = 30
"""Fewer than this and the advice says how little they tell: one question is over 3 points then."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and why, in plain sentences.

    Attributes:
        verdict: What to do.
        text: The set, the figures and how sure they are.
        questions_needed: Where the verdict is ``cannot_tell`` although the ensemble was run: how many questions would
            tell, in all; None where no difference was seen.
    """

    verdict: Verdict
    text: str
    questions_needed: int | None = None


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a candidate is from the limits, and which of the rules' decisions could as well have gone the other way.

    Attributes:
        model: The candidate.
        gap_ci: Interval of the primary's accuracy minus the candidate's, in points; below 0 the candidate is better.
        length_ratio_ci: Interval of the length ratio: the mean length that is longer here over the shorter, so that it
            may reach below 1. Infinite where all responses of one may be empty.
        order_flips: The candidate may be more accurate than the primary.
        gap_flips: The limit of the gap lies within its interval, and the other rule does not reject for certain.
        length_flips: The limit of the length ratio lies within its interval, likewise.
        text: All that as a clause.
    """

    model: str
    gap_ci: Interval
    length_ratio_ci: Interval
    order_flips: bool
    gap_flips: bool
    length_flips: bool
    text: str


def advise(
    selection: Selection, comparison: Comparison | None = None, *, level: float = LEVEL, tries: int = 1
) -> Advice:
    """Say whether the chosen set is worth running, and how sure that is.

    Args:
        selection: The rules' outcome.
        comparison: The set's ensemble against its members on held-out questions; None where it was not run.
        level: Accepted chance of advising an ensemble that gains nothing, between 0 and 1.
        tries: How many sets were compared on these questions before this one was put forward, at least 1. The p-value
            is multiplied by it (Bonferroni; Holm's method is the same for the best of them, the one put forward).

    Returns:
        ``ensemble`` where the gain is positive and significant; ``single`` where a loss is, or where nothing fits the
        primary; else ``cannot_tell``, with the number of questions that would tell.
    """
    if len(selection.selected) < 2:
        return Advice("single", _nothing_fits(selection))
    if comparison is None:
        return Advice("cannot_tell", _not_verified(selection.selected))
    names, best = _join(selection.selected), comparison.best_single
    p_value = min(1.0, comparison.p_value * tries)
    figures, notes = _figures(comparison, p_value, tries, level), _notes(comparison)
    if p_value <= level and comparison.delta > 0:
        return Advice("ensemble", f"Ensemble {names}, in this order: {figures}.{notes}")
    if p_value <= level and comparison.delta < 0:
        return Advice("single", f"Use {best} alone and do not ensemble {names}: {figures}.{notes}")
    needed = questions_needed(comparison.delta, comparison.discordance, level / tries)
    choice = f"to ensemble {names}, in this order, or to use {best} alone"
    return Advice("cannot_tell", f"Cannot tell whether {choice}: {figures}. {_more(needed)}{notes}", needed)


def misfit(profiles: Sequence[Profile], lowest: float, chance: float | None) -> str | None:
    """What to doubt before all else: models that guess, or that cannot read the questions; None where all is well.

    Args:
        profiles: The candidates' answers, the best first.
        lowest: The lower end of the best one's interval, in points.
        chance: What guessing would score, in points; None where nothing can be guessed.
    """
    unread = [
        one.model for one in profiles if 5 * sum(answer.error is not None for answer in one.answers) > len(one.answers)
    ]
    parts = []
    if chance is not None and lowest <= chance:
        parts.append(
            f"Beware: no candidate is shown to be better than guessing, which scores {chance:.1f} points, so the order "
            "of the candidates means little."
        )
    if never := [one.model for one in profiles if one.accuracy == 0 and one.model not in unread]:
        parts.append(
            f"Beware: not one response of {_join(never)} is right; look at some of them, whether the prompt and the "
            "metric fit."
        )
    if unread:
        who = f"{len(unread)} candidates" if len(unread) > 2 else _join(unread)
        parts.append(f"Beware: over a fifth of the questions could not be answered by {who}; the notes say why.")
    return " ".join(parts) or None


def fragile(
    profiles: Sequence[Profile], primary: str, rules: Rules, level: float = LEVEL, seed: int = 0
) -> tuple[Margin, ...]:
    """Mark the decisions of the rules that other questions of the same kind could turn round.

    Args:
        profiles: The candidates' answers to the same questions, at least one, the primary's among them.
        primary: Name of the primary.
        rules: The limits that were applied.
        level: 1 minus the confidence of the intervals, between 0 and 1.
        seed: Of the bootstrap.

    Returns:
        A margin for each candidate but the primary, in the order of `profiles`.

    Raises:
        UniteError: A candidate was asked other questions than the primary.
    """
    first = next(profile for profile in profiles if profile.model == primary)
    others = [profile for profile in profiles if profile.model != primary]
    intervals = paired_intervals(first, others, level, seed)
    return tuple(_margin(first, other, pair, rules, level) for other, pair in zip(others, intervals, strict=True))


def _margin(
    primary: Profile, candidate: Profile, intervals: tuple[Interval, Interval], rules: Rules, level: float
) -> Margin:
    (low, high), (shortest, longest) = intervals
    limit = rules.max_length_ratio
    close = within(gap(primary.accuracy, candidate.accuracy), rules.max_gap)
    ratio = length_ratio(primary.mean_length, candidate.mean_length)
    alike = ratio is not None and within(ratio, limit)
    order_flips = low < 0
    gap_flips = within(high, rules.max_gap) != close or within(low, rules.max_gap) != close
    # A ratio far below 1 breaks the limit too: then the shorter one may be by far the longer one.
    length_flips = (within(longest, limit) and shortest * limit >= 1) != alike or within(shortest, limit) != alike
    # Where one rule rejects for certain, the other one's doubts turn nothing round.
    out_by_gap, out_by_length = not close and not gap_flips, not alike and not length_flips
    gap_flips, length_flips = gap_flips and not out_by_length, length_flips and not out_by_gap
    doubts = [
        *(["it may be the more accurate of the two"] if order_flips else []),
        *(["the gap may be on the other side of its limit"] if gap_flips else []),
        *(["the length ratio may be on the other side of its limit"] if length_flips else []),
    ]
    text = (
        f"with {100 * (1 - level):g}% confidence the gap is {low:.1f} to {high:.1f} points (limit {rules.max_gap:g}) "
        f"and the length ratio {shortest:.2f} to {longest:.2f} (limit {limit:g}): "
        f"{_join(doubts) if doubts else 'the decisions hold'}"
    )
    return Margin(candidate.model, (low, high), (shortest, longest), order_flips, gap_flips, length_flips, text)


def _figures(comparison: Comparison, p_value: float, tries: int, level: float) -> str:
    points = abs(comparison.delta)
    difference = "as many as" if points < 1e-9 else f"{points:.1f} {'more' if comparison.delta > 0 else 'fewer'} than"
    low, high = comparison.delta_ci
    p_text = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    tried = f" after correction for {tries} sets tried" if tries > 1 else ""
    tried += f", tested at the level {level:g}" if level != LEVEL else ""
    return (
        f"on {comparison.n:,} held-out questions {comparison.method} scores {comparison.accuracy:.1f} points, "
        f"{difference} the best single model, {comparison.best_single} with {comparison.best_single_accuracy:.1f} "
        f"({100 * (1 - comparison.level):g}% interval of the difference {low:+.1f} to {high:+.1f}, {p_text}{tried})"
    )


def _more(needed: int | None) -> str:
    if needed is None:
        return "No difference was seen, so no number of questions can be named that would show one."
    return (
        f"That may be chance: if the difference is really this large, about {needed:,} held-out questions in all would "
        "give a chance of 80% of telling."
    )


def _notes(comparison: Comparison) -> str:
    notes = ""
    if comparison.n < FEW_QUESTIONS:
        notes += f" {comparison.n} questions tell little: a single one of them is {100 / comparison.n:.1f} points."
    if comparison.accuracy == comparison.best_single_accuracy == 0:
        notes += " Nothing was answered rightly at all: look at the prompt and at the extracted answers first."
    if comparison.best_single_accuracy == 100:
        notes += " The best single model was always right, so there was nothing to gain on these questions."
    return notes


def _nothing_fits(selection: Selection) -> str:
    primary = selection.selected[0]
    rejected = [decision for decision in selection.decisions if decision.status == "rejected"]
    if not rejected:
        ran = " that could be run" if len(selection.decisions) > 1 else ""
        return f"Use {primary} alone: it is the only candidate{ran}."
    others = "the other candidate does not join" if len(rejected) == 1 else f"none of the other {len(rejected)} joins"
    return f"Use {primary} alone: by the rules {others} it. The next best, {rejected[0].model}: {rejected[0].reason}."


def _not_verified(selected: Sequence[str]) -> str:
    return (
        f"Cannot tell whether to ensemble {_join(selected)}, in this order, or to use {selected[0]} alone: by the "
        "rules they fit, but their ensemble was not run on held-out questions. To do that, run `advisor select` with a "
        "pool of these models, without --no-verify and --profiles."
    )


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
