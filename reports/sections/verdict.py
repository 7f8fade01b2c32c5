"""What to run as a headline, its expected gain and how certain that is; and the verdict on the decoded set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from advisor.advice.recommendation import few_questions
from advisor.runs.schema.result import Result, StrategyFigures
from advisor.runs.sentences import ceiling_in_words, source_of_gain
from ensemble.common import text
from reports.charts.rows import draw_difference
from reports.report_data import ReportData

if TYPE_CHECKING:
    from advisor.statistics import Interval

PRINTED_WARNINGS = 5  # the style sheet for print hides the others
_CORRECTED = " after correction for several strategies"


def values(report: ReportData) -> dict[str, Any]:
    """Return the template's values."""
    result = report.result
    recommended, run = result.recommended, result.ensemble
    gain, ends = (None, None) if run is None else _measured(result)[:2]
    if recommended is not None:
        # A single model has no gain: it is what the others are compared with.
        is_single = recommended.is_single
        gain, ends = (None, None) if is_single else (recommended.expected_gain, recommended.expected_gain_ci)
    return {
        "headline": headline(result),
        "recommended": recommended,
        "gain": gain,
        "gain_ci": ends,
        "of_thousand": of_thousand(result),
        "printed": PRINTED_WARNINGS,
        "unchecked": _unchecked(result),
        "interval": text.interval_name(result.advice.confidence) if recommended else _interval_of_set(result),
        "baseline": result.best_single.name if result.best_single else "the best single model",
        "shown": strategy_shown(result, recommended) if recommended else "",
        "what": _what_to_do(result),
        "source": source_of_gain(recommended.groups or ()) if recommended and not recommended.is_single else "",
        "possible": ceiling_in_words(result),
        "use": _commands(result),
        "p": _measured(result)[2],
        "certainty": certainty(result),
        "figure": draw_difference(gain, ends),
    }


def decoded_set(report: ReportData) -> dict[str, Any]:
    """Return the values of the template of the set: its figures and verdict where something else is the headline."""
    result = report.result
    if result.recommended is None:
        return {"figures": [], "advice": "", "certainty": ""}
    return {"figures": _figures_of_set(result), "advice": result.advice.text, "certainty": certainty(result)}


def _what_to_do(result: Result) -> str:
    """What to do, in one sentence, and a second one where few questions say it."""
    recommended, own = result.recommended, result.advice.recommendation
    if recommended is None or own is None:
        return text.sentence(result.advice.text)
    if recommended.is_single:
        # It says why nothing else is recommended, and has no gain.
        return text.sentence(own.text)
    measured, expected = recommended.measured_gain or 0.0, recommended.expected_gain or 0.0
    is_opposite = round(measured, 1) * round(expected, 1) < 0
    opposite = " The measured gain has the other sign, so the expected one is mostly the prediction."
    few = few_questions(recommended.n) if recommended.n else ""
    return f"{text.sentence(recommended.key.describe())}{opposite if is_opposite else ''}{few}"


def _commands(result: Result) -> list[str]:
    """The commands that use the recommended strategy, in the folder of the report."""
    recommended = result.recommended
    if recommended is None:
        return []
    # Logs have the names of models, and not their places.
    pool = "" if result.can_decode else " --pool models.txt"
    group = " --group NAME" if recommended.key.groups else ""
    return [f'advisor run . "..."{group}{pool}', f"advisor serve .{pool}"]


def headline(result: Result) -> str:
    """Return what to run in a few words; without a recommendation the verdict."""
    recommended = result.recommended
    return verdict_headline(result) if recommended is None else recommended.key.headline()


def verdict_headline(result: Result) -> str:
    """Return the verdict on the set that decodes together in a few words."""
    if result.advice.verdict == "better":
        size = len(result.chosen)
        return f"Ensemble these {text.in_words(size)} models." if size > 1 else "Ensemble the chosen models."
    if result.advice.verdict == "unclear":
        return "Too close to call."
    # The best member on held-out questions may be another one than the primary on dev.
    if result.ensemble and result.ensemble.best_single_model:
        return f"Use {result.ensemble.best_single_model} alone."
    return f"Use {result.primary.name if result.primary else 'the best model'} alone."


def certainty(result: Result, details: str = "the leaderboard") -> str:
    """Return how certain the verdict on the set that decodes together is; `details` is what to look at for more."""
    run = result.ensemble
    recommended = result.recommended is not None
    if run is None:
        # With a recommendation the verdict's text says so, and why.
        was_chosen = len(result.chosen) > 1 and not recommended
        return "The chosen set was not run together, so no gain was measured." if was_chosen else ""
    sentences = (
        _changes("The ensemble", run.gained, run.lost),
        # A recommendation says it beside its own figures.
        "" if recommended else _other_best(result),
        _close_calls(result, details),
    )
    return _joined(sentences)


def strategy_certainty(result: Result, recommended: StrategyFigures) -> str:
    """Return what the figures of the recommended strategy come from, as sentences."""
    row = recommended
    if row.is_single:
        return _other_best(result)
    return _joined((_changes("The recommended strategy", row.gained, row.lost), _other_best(result)))


def measured_gain(result: Result) -> str:
    """Return the gain of the set that decodes together, with its interval and p, as a clause; empty if not known."""
    gain, ends, p = _measured(result)
    if gain is None:
        return ""
    details = [f"{_interval_of_set(result)} {text.difference_interval(ends)}"]
    details += [] if p is None else [f"p {text.p_value(p)}"]
    return f"{text.difference(gain)} points ({', '.join(details)})"


def of_thousand(result: Result) -> str:
    """Return the expected gain as right answers of 1,000, as a clause; empty if a question is not right or wrong."""
    recommended = result.recommended
    if recommended is None or recommended.is_single or recommended.expected_gain is None:
        return ""
    return "" if result.is_graded else text.of_thousand(recommended.expected_gain, recommended.expected_gain_ci)


def _unchecked(result: Result) -> str:
    """Return what the run did not check, as a sentence."""
    recommended = result.recommended
    # A model without the hashes of its files may be another one tomorrow, such as a server's.
    unpinned = sum(not model.files for model in result.provenance.models.values())
    missing = (
        "" if result.held_out else "held-out questions",
        "the time" if recommended and recommended.seconds_per_question is None else "",
        "the price" if recommended and recommended.price_per_1000 is None else "",
        f"the version of {text.counted(unpinned, 'model')}" if unpinned else "",
        "other tasks and other wordings of the prompt",
    )
    return f"Not checked: {', '.join(each for each in missing if each)}."


def _interval_of_set(result: Result) -> str:
    is_estimated = result.ensemble is not None and result.ensemble.measured_gain is not None
    # Older versions have a plain difference, whose interval has a confidence of 95%.
    return text.interval_name(result.advice.confidence if is_estimated else 0.95)


def _measured(result: Result) -> tuple[float | None, Interval | None, float | None]:
    """The gain of the set that decodes together, its interval, and its p."""
    run = result.ensemble
    if run is None:
        return None, None, None
    if run.measured_gain is not None:
        return run.measured_gain, run.measured_gain_ci, run.p_adjusted
    return run.difference, run.difference_ci, run.p_two_sided


def _figures_of_set(result: Result) -> list[tuple[str, str]]:
    """The figures of the set that decodes together: names and values."""
    gain, ends, p = _measured(result)
    if gain is None:
        return []
    figures = [
        ("Measured gain", f"{text.difference(gain)} points"),
        (_interval_of_set(result), text.difference_interval(ends)),
        ("One-sided p", text.chance(p)),
    ]
    if result.advice.questions_needed is not None:
        least, most = result.advice.questions_needed
        figures.append(("Questions needed", f"at least {least:,}" if most is None else f"{least:,} to {most:,}"))
    return figures


def strategy_shown(result: Result, recommended: StrategyFigures) -> str:
    """Return what the test shows about the recommended strategy, as a sentence."""
    row = recommended
    if row.is_single:
        return (
            "This model is what the test compares the other strategies with."
            if len(result.strategies) > 1
            else "Nothing was tested, because this is the only strategy."
        )
    several = sum(not each.is_single for each in result.strategies) > 1
    p = "" if row.p_adjusted is None else f" (p {text.p_value(row.p_adjusted)}{_CORRECTED if several else ''})"
    why = text.why_not_shown(recommended.shown or "not_yet", recommended.expected_gain_ci, row.measured_gain_ci)
    sentences = {
        "yes": f"Chance alone would hardly give this gain{p}.",
        "not_yet": f"Not significant: chance can explain this gain{p}. It is the best estimate so far; more held-out "
        "questions will tell.",
        "no": "The test shows that this strategy is worse than the best single model.",
    }
    # The interval has no correction, so it and the test may seem to contradict each other.
    shown = recommended.shown or "not_yet"
    return _joined((sentences[shown], why))


def _changes(subject: str, gained: int | None, lost: int | None) -> str:
    if gained is None or lost is None:
        return ""
    recovered, broken = f"{gained:,}" if gained else "no", f"{lost:,}" if lost else "none"
    noun = "question" if gained == 1 else "questions"
    return f"{subject} recovered {recovered} {noun} that the best single model gets wrong, and broke {broken}."


def _other_best(result: Result) -> str:
    """Say it if the most accurate model on dev is not the one that gains are measured against."""
    primary, best = result.primary, result.best_single
    if primary is None or best is None or best is primary:
        return ""
    # Older versions took the best model of the held-out questions alone.
    where = "dev and held-out questions together" if result.recommended else "held-out questions"
    return (
        f"{primary.name} is the most accurate model on the dev questions, {best.name} on the {where}; gains are "
        f"measured against {best.name}."
    )


def _close_calls(result: Result, details: str) -> str:
    close_calls = sum(bool(candidate.close_call) for candidate in result.candidates)
    if not close_calls:
        return ""
    noun = "decision of the rules was a close call" if close_calls == 1 else "decisions of the rules were close calls"
    return f"{text.in_words(close_calls).capitalize()} {noun}; see {details}."


def _joined(sentences: tuple[str, ...]) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
