"""The verdict on the set that decodes together: better, worse or "cannot tell", in words for readers without the paper.

The verdict says what is proven, and not what to run: that is in :mod:`advisor.verify.recommendation`. Also the margins:
which decisions of the rules other questions could have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from advisor.choose.rules import select
from advisor.records import LEVEL, Profile, Rules, Selection, Standing, Verdict, gap, join, length_ratio, signed, within
from advisor.statistics import Comparison, Interval, paired_intervals, questions_needed
from advisor.verify.recommendation import Recommendation, few_questions
from reports.text import counted


@dataclass(frozen=True, slots=True)
class Advice:
    """What is proven about the set that decodes together, in plain sentences, and what to run.

    Attributes:
        verdict: ``ensemble`` for a set that is better than one model, ``single`` for a worse one or none.
        text: The set, its figures and their uncertainty.
        recommendation: What to run; None if nothing was compared on held-out questions.
        questions_needed: If the verdict is ``cannot_tell`` although the ensemble was run: the number of questions, in
            all, that would tell; None without a difference.
    """

    verdict: Verdict
    text: str
    questions_needed: int | None = None
    recommendation: Recommendation | None = None


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a candidate is from the limits, and which decisions of the rules other questions could change.

    Attributes:
        model: The candidate.
        gap_ci: Interval of the primary's accuracy minus the candidate's, in points; below 0 the candidate is better.
        length_ratio_ci: Interval of the length ratio: the mean length that is longer in the sample over the other, so
            that it may reach below 1. Infinite if all responses of one may be empty; None if a length is not known.
        order_flips: The candidate may be more accurate than the primary.
        gap_flips: The limit of the gap lies within its interval, and the other rule does not certainly reject.
        length_flips: The same for the limit of the length ratio.
        text: A clause with these figures.
    """

    model: str
    gap_ci: Interval
    length_ratio_ci: Interval | None
    order_flips: bool
    gap_flips: bool
    length_flips: bool
    text: str


def advise(
    selection: Selection,
    comparison: Comparison | None = None,
    *,
    level: float = LEVEL,
    tries: int = 1,
    on_logs: bool = False,
) -> Advice:
    """Say whether the chosen set is worth running, and how certain that is.

    Args:
        selection: The result of the rules.
        comparison: The set's ensemble against its members on held-out questions; None if it was not run.
        level: The accepted probability of advising an ensemble that gains nothing, between 0 and 1.
        tries: The number of sets that were compared on these questions before this one was chosen, at least 1. The
            p-value is multiplied by it (Bonferroni; for the best one, Holm's method gives the same).
        on_logs: Whether the answers come from logs, so that no set could be run.

    Returns:
        ``ensemble`` for a significant gain; ``single`` for a significant loss, or if no candidate fits the primary;
        else ``cannot_tell``, with the number of questions that would tell.
    """
    if len(selection.selected) < 2:
        return Advice("single", _nothing_fits(selection))
    if comparison is None:
        return Advice("cannot_tell", _not_verified(selection.selected, on_logs=on_logs))
    # The best member on these questions, which may be another one than the primary.
    names, best = join(selection.selected), comparison.best_single
    p_value = min(1.0, comparison.p_value * tries)
    figures, notes = _figures(comparison, p_value, tries, level), _notes(comparison)
    if p_value <= level and comparison.delta > 0:
        return Advice("ensemble", f"Decoded together, {names} are better than one model alone: {figures}.{notes}")
    if p_value <= level and comparison.delta < 0:
        return Advice("single", f"Decoded together, {names} are worse than {best} alone: {figures}.{notes}")
    needed = questions_needed(comparison.delta, comparison.discordance, level / tries)
    text = f"Cannot tell whether {names}, decoded together, are better than {best} alone: {figures}."
    return Advice("cannot_tell", f"{text} {_more(needed)}{notes}", needed)


def misfit(profiles: Sequence[Profile], lowest: float, chance: float | None) -> str | None:
    """A warning if the models guess, are never right, or cannot read the questions; None if all is well.

    Args:
        profiles: The candidates' answers, the best first.
        lowest: The lower end of the best one's interval, in points.
        chance: The expected accuracy of guessing, in points; None if guessing is impossible.
    """
    unread = [profile.model for profile in profiles if 5 * profile.errors > len(profile.answers)]
    parts = []
    if chance is not None and lowest <= chance:
        parts.append(
            f"Beware: no candidate is shown to be better than guessing, which scores {chance:.1f} points, so the order "
            "of the candidates means little."
        )
    if never := [profile.model for profile in profiles if profile.accuracy == 0 and profile.model not in unread]:
        parts.append(
            f"Beware: not one response of {join(never)} is right; read some of them to see whether the prompt and the "
            "metric fit."
        )
    if unread:
        models = f"{len(unread)} candidates" if len(unread) > 2 else join(unread)
        parts.append(f"Beware: over a fifth of the questions could not be answered by {models}; the notes say why.")
    return " ".join(parts) or None


def fragile(
    profiles: Sequence[Profile], primary: str, rules: Rules, level: float = LEVEL, seed: int = 0
) -> tuple[Margin, ...]:
    """Find the decisions of the rules that other questions of the same kind could change.

    Args:
        profiles: The candidates' answers to the same questions, at least one, the primary's among them.
        primary: Name of the primary.
        rules: The limits that were applied.
        level: 1 minus the confidence of the intervals, between 0 and 1.
        seed: Of the bootstrap.

    Returns:
        A margin for each candidate but the primary, in the order of `profiles`.

    Raises:
        UniteError: A candidate answered other questions than the primary.
    """
    first = next(profile for profile in profiles if profile.model == primary)
    others = [profile for profile in profiles if profile.model != primary]
    intervals = paired_intervals(first, others, level, seed)
    return tuple(_margin(first, other, pair, rules, level) for other, pair in zip(others, intervals, strict=True))


def close_candidates(standings: Sequence[Standing], margins: Mapping[str, Margin], rules: Rules) -> list[str]:
    """The candidates that fit by the rules, best first, then those that nearly fit.

    Args:
        standings: The candidates, best first.
        margins: The margin of each decision, by name.
        rules: The limits; the limit of the set's size does not count here.
    """
    fitting = select(standings, replace(rules, max_models=len(standings))).selected
    flips = [name for name, margin in margins.items() if margin.gap_flips or margin.length_flips]
    near = [standing.model for standing in standings if standing.model in flips and standing.model not in fitting]
    return [*fitting, *near]


def _margin(
    primary: Profile, candidate: Profile, intervals: tuple[Interval, Interval], rules: Rules, level: float
) -> Margin:
    (low, high), (shortest, longest) = intervals
    limit = rules.max_length_ratio
    close = within(gap(primary.accuracy, candidate.accuracy), rules.max_gap)
    ratio = length_ratio(primary.mean_length, candidate.mean_length)
    # An unknown length rejects nothing.
    alike = ratio is None or within(ratio, limit)
    order_flips = low < 0
    gap_flips = within(high, rules.max_gap) != close or within(low, rules.max_gap) != close
    # A ratio far below 1 breaks the limit too: then the shorter one may be by far the longer one.
    length_flips = ratio is not None and (
        (within(longest, limit) and shortest * limit >= 1) != alike or within(shortest, limit) != alike
    )
    # If one rule certainly rejects, the other one's uncertainty changes no decision.
    out_by_gap, out_by_length = not close and not gap_flips, not alike and not length_flips
    gap_flips, length_flips = gap_flips and not out_by_length, length_flips and not out_by_gap
    doubts = [
        *(["it may be the more accurate of the two"] if order_flips else []),
        *(["the gap may be on the other side of its limit"] if gap_flips else []),
        *(["the length ratio may be on the other side of its limit"] if length_flips else []),
    ]
    lengths = "" if ratio is None else f" and the length ratio {shortest:.2f} to {longest:.2f} (limit {limit:g})"
    text = (
        f"with {100 * (1 - level):g}% confidence the gap is {low:.1f} to {high:.1f} points (limit {rules.max_gap:g})"
        f"{lengths}: {join(doubts) if doubts else 'the decisions hold'}"
    )
    ratios = None if ratio is None else (shortest, longest)
    return Margin(candidate.model, (low, high), ratios, order_flips, gap_flips, length_flips, text)


def _figures(comparison: Comparison, p_value: float, tries: int, level: float) -> str:
    points = abs(comparison.delta)
    difference = "as many as" if points < 1e-9 else f"{points:.1f} {'more' if comparison.delta > 0 else 'fewer'} than"
    interval = " to ".join(map(signed, comparison.delta_ci))
    p_text = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    tried = f" after correction for {tries} sets tried" if tries > 1 else ""
    tried += f", tested at the level {level:g}" if level != LEVEL else ""
    return (
        f"on {counted(comparison.n, 'held-out question')} {comparison.method} scores {comparison.accuracy:.1f} points, "
        f"{difference} the best single model, {comparison.best_single} with {comparison.best_single_accuracy:.1f} "
        f"({100 * (1 - comparison.level):g}% interval of the difference {interval}, {p_text}{tried})"
    )


def _more(needed: int | None) -> str:
    if needed is None:
        return "No difference was seen, so no number of questions can be estimated that would show one."
    return (
        f"That may be chance: if the difference is really this large, about {counted(needed, 'held-out question')} in "
        "all would show it with a probability of 80%."
    )


def _notes(comparison: Comparison) -> str:
    notes = few_questions(comparison.n)
    # Zero of n is hardly ever the models' skill: mostly the prompt or the metric does not fit the task.
    if comparison.accuracy == comparison.best_single_accuracy == 0:
        notes += " No answer at all was right: look at the prompt and at the extracted answers first."
    if comparison.best_single_accuracy == 100:
        notes += " The best single model was always right, so an ensemble had nothing to gain on these questions."
    return notes


def _nothing_fits(selection: Selection) -> str:
    primary = selection.selected[0]
    # Candidates that failed are not named: they may have been the better choice.
    rejected = [decision for decision in selection.decisions if decision.status == "rejected"]
    if not rejected:
        ran = " that could be run" if len(selection.decisions) > 1 else ""
        return f"Use {primary} alone: it is the only candidate{ran}."
    others = "the other candidate does not fit" if len(rejected) == 1 else f"none of the other {len(rejected)} fits"
    return (
        f"By the rules no set can decode together: {others} {primary}. The next best, {rejected[0].model}: "
        f"{rejected[0].reason}."
    )


def _not_verified(selected: Sequence[str], *, on_logs: bool) -> str:
    why = (
        "the set was not run, because no model runs with --logs. To test it, give `advisor select` a pool of these "
        "models: --pool and --task"
        if on_logs
        else "the set was not run on held-out questions. To run it, use `advisor select` with a pool of these models, "
        "without --no-verify and --profiles"
    )
    return (
        f"Cannot tell whether {join(selected)}, decoded together, are better than {selected[0]} alone: by the rules "
        f"they fit, but {why}."
    )
