"""The verdict on the set that decodes together: better, worse or "cannot tell", in words for readers without the paper.

The verdict says what is proven, and not what to run: that is in :mod:`advisor.advice.recommendation`. Also which
decisions of the rules other questions could have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from advisor.advice.comparison import StrategyResult
from advisor.advice.predict import real_sets
from advisor.advice.recommendation import describe_gain, few_questions
from advisor.advice.sequential import MOST_NEEDED, questions_range
from advisor.records import (
    FIGURE_ALPHA,
    FIGURE_CONFIDENCE,
    Limits,
    Profile,
    Selection,
    compared_lengths,
    gap,
    join,
    length_ratio,
    within,
)
from advisor.run.result import AdviceSection
from advisor.statistics import Interval, paired_intervals
from ensemble.common.text import LARGE_RATIO, counted, p_value, percent


class CloseCall(NamedTuple):
    """How far a candidate is from the limits, and which decisions of the rules other questions could change.

    Attributes:
        gap_ci: Interval of the primary's accuracy minus the candidate's, in points; below 0 the candidate is better.
        length_ratio_ci: Interval of the length ratio: the mean length that is longer in the sample over the other, so
            that it may reach below 1. Infinite if all responses of one may be empty; None if a length is not known.
        text: Why other questions could change the decision, a clause; None if they hardly could.
    """

    gap_ci: Interval
    length_ratio_ci: Interval | None
    text: str | None


def advise(selection: Selection, together: StrategyResult | None = None, *, on_logs: bool = False) -> AdviceSection:
    """Say whether the set that decodes together, if it was run, is shown to be better than the best single model."""
    if together is None:
        if len(selection.selected) < 2:
            return AdviceSection(verdict="worse", text=_nothing_fits(selection))
        return AdviceSection(verdict="unclear", text=_not_verified(selection.selected, on_logs=on_logs))
    names, figures, single = join(together.strategy.members), _figures(together), together.figures.best_single_model
    if together.figures.shown == "yes":
        text = f"Decoded together, {names} are better than one model alone: {figures}"
        return AdviceSection(verdict="better", text=text)
    if together.figures.shown == "no":
        text = f"Decoded together, {names} are worse than {single} alone: {figures}"
        return AdviceSection(verdict="worse", text=text)
    # Dev questions that the set answered, too, are not held out.
    others = together.gain.answered - together.figures.n
    needed = questions_range(together.gain, others)
    text = f"Cannot tell whether {names}, decoded together, are better than {single} alone: {figures}"
    return AdviceSection(verdict="unclear", text=f"{text} {_more(needed)} {real_sets()}", questions_needed=needed)


def undecodable(selection: Selection, remote: Collection[str]) -> AdviceSection:
    """The verdict if fewer than two candidates can be decoded together; the rules then choose among all candidates."""
    best, *others = selection.selected
    on_server = [name for name in selection.selected if name in remote]
    them = "them" if len(on_server) > 1 else "it"
    if others:
        text = (
            f"No set can decode together: by the rules {join(selection.selected)} fit, but {join(on_server)} "
            f"{_are(on_server)} behind a server, which gives whole texts only, so no ensemble with {them} can be "
            "decoded token by token. With tokenizer= on its line, a model behind vLLM, SGLang or llama.cpp can."
        )
    elif len(selection.decisions) > 1:
        text = f"By the rules no set can decode together: no other candidate fits {best}."
    else:
        text = f"Use {best} alone: it is the only candidate that could be run."
    return AdviceSection(verdict="worse", text=text)


def behind_server(selection: Selection, remote: Collection[str], voters: Sequence[str]) -> str | None:
    """Sentences on candidates behind a server that vote without being in the set; None if no candidate does."""
    apart = [name for name in voters if name in remote]
    if not apart or remote_in(selection, remote):
        return None
    return (
        f"As {join(apart)} {_are(apart)} behind a server and cannot be decoded token by token, the set was chosen "
        f"among the others. It is also compared with {join(apart)} alone. Votes and routers use {join(voters)}."
    )


def remote_in(selection: Selection, remote: Collection[str]) -> bool:
    """Whether a candidate that gives whole texts only is in the set."""
    return any(name in remote for name in selection.selected)


def moved_warning(moved: float | None) -> str | None:
    """A warning if the models do better or worse on the held-out questions than on dev, by more than chance."""
    if moved is None:
        return None
    return (
        f"The models are {abs(moved):.1f} points {'better' if moved > 0 else 'worse'} on the held-out "
        "questions than on dev, by more than chance. So the gains come from the held-out questions alone."
    )


def close_calls(profiles: Sequence[Profile], primary: str, rules: Limits, seed: int = 0) -> dict[str, CloseCall]:
    """How close each candidate but the primary is to the limits, so that other questions could decide otherwise."""
    first = next(profile for profile in profiles if profile.model == primary)
    others = [profile for profile in profiles if profile.model != primary]
    intervals = paired_intervals(first, others, FIGURE_ALPHA, seed, rules)
    return {other.model: _close_call(first, other, pair, rules) for other, pair in zip(others, intervals, strict=True)}


def _close_call(primary: Profile, candidate: Profile, intervals: tuple[Interval, Interval], rules: Limits) -> CloseCall:
    (low, high), (shortest, longest) = intervals
    limit = rules.max_length_ratio
    close = within(gap(primary.accuracy, candidate.accuracy), rules.max_gap)
    ratio = length_ratio(*compared_lengths(primary, candidate, rules)[:2])
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
    ratios = None if ratio is None else (shortest, longest)
    if not doubts:
        return CloseCall((low, high), ratios, None)
    ends = [f"more than {LARGE_RATIO:g}" if end > LARGE_RATIO else f"{end:.2f}" for end in (shortest, longest)]
    lengths = "" if ratio is None else f" and the length ratio {' to '.join(ends)} (limit {limit:g})"
    text = (
        f"with {percent(FIGURE_CONFIDENCE)} confidence the gap is {low:.1f} to {high:.1f} points "
        f"(limit {rules.max_gap:g}){lengths}: {join(doubts)}"
    )
    return CloseCall((low, high), ratios, text)


def _figures(together: StrategyResult) -> str:
    row, gain, accuracy = together.figures, together.gain, together.profile.accuracy
    p_text = "" if row.p_adjusted is None else f"; one-sided p {p_value(row.p_adjusted)}"
    corrected = "" if row.p_adjusted in (None, gain.p_no_gain) else " after correction for all tests"
    n, alone = row.n, row.best_single_accuracy or 0.0
    ends = gain.interval()
    # The test has a correction, and this interval has none.
    seems_shown = row.shown == "not_yet" and not ends[0] <= 0 <= ends[1]
    notes = (" The interval has no correction, so it leaves out 0." if seems_shown else "") + few_questions(n)
    # Zero of n is hardly ever the models' skill: mostly the prompt or the metric does not fit the task.
    if accuracy == alone == 0:
        notes += " No answer at all was right: look at the prompt and at the extracted answers first."
    if alone == 100:
        notes += " The best single model was always right, so an ensemble had nothing to gain on these questions."
    return (
        f"the gain is {describe_gain(gain.points, ends)}{p_text}{corrected}. On "
        f"{counted(n, 'held-out question')} alone, {together.strategy.name} scores {accuracy:.1f} points, and "
        f"{row.best_single_model}, the best single model, {alone:.1f}.{notes}"
    )


def _more(needed: tuple[int, int | None] | None) -> str:
    if needed is None:
        return f"No gain is expected that {MOST_NEEDED:,} questions would show."
    least, most = needed
    # A number alone would sound as if it were enough.
    questions = f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
    open_end = "" if most is not None else "; the number has no upper end, because there may be no gain"
    return f"To show a gain with 80% probability, you need {questions} held-out questions in total{open_end}."


def _nothing_fits(selection: Selection) -> str:
    primary = selection.selected[0]
    # Candidates that failed are not named: they may have been the better choice.
    rejected = [decision for decision in selection.decisions if decision.status == "rejected"]
    if not rejected:
        ran = " that could be run" if len(selection.decisions) > 1 else ""
        return f"Use {primary} alone: it is the only candidate{ran}."
    if rejected[0].reason_code in ("full", "other_set"):
        return f"{rejected[0].model} fits {primary} by the rules, but --max-models 1 leaves no set that could decode."
    others = "the other candidate does not fit" if len(rejected) == 1 else f"none of the other {len(rejected)} fits"
    return (
        f"By the rules no set can decode together: {others} {primary}. The next best, {rejected[0].model}: "
        f"{rejected[0].reason}. No set was run, so this is not tested."
    )


def _not_verified(selected: Sequence[str], *, on_logs: bool) -> str:
    why = (
        "the set was not run, because no model runs with --logs. To test it, give `advisor select` a pool of these "
        "models: --pool and --task"
        if on_logs
        else "the set was not run on held-out questions. To run it, use `advisor select` with a pool of these models, "
        "without --no-verify and --scores"
    )
    return (
        f"Cannot tell whether {join(selected)}, decoded together, are better than {selected[0]} alone: by the rules "
        f"they fit, but {why}. {real_sets()}"
    )


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
