"""What to run as a headline, its expected gain and how certain that is; and the verdict on the decoded set."""

from __future__ import annotations

from typing import Any

from advisor.run.result import Result, StrategyFigures
from advisor.run.sentences import summary
from ensemble.common import text
from reports.charts.rows import draw_difference
from reports.report_data import ReportData

PRINTED_WARNINGS = 5  # the style sheet for print hides the others


def verdict(report: ReportData) -> dict[str, Any]:
    """Return the template's values."""
    result = report.result
    recommended = result.recommended
    gain = ends = None
    # A single model has no gain: it is what the others are compared with.
    if recommended is not None and not recommended.is_single:
        gain, ends = recommended.expected_gain, recommended.expected_gain_ci
    return {
        "headline": headline(result),
        "recommended": recommended,
        "gain": gain,
        "gain_ci": ends,
        "printed": PRINTED_WARNINGS,
        "unchecked": _unchecked(result),
        "interval": text.interval_name(result.advice.confidence),
        "baseline": result.best_single.name if result.best_single else "the best single model",
        "summary": summary(result),
        "use": _commands(result),
        "figure": draw_difference(gain, ends),
    }


def decoded_set(report: ReportData) -> dict[str, Any]:
    """Return the values of the template of the set: its figures and verdict where something else is the headline."""
    result, run = report.result, report.result.ensemble
    if result.recommended is None:
        return {"figures": [], "advice": "", "certainty": ""}
    figures = []
    if run is not None and run.measured_gain is not None:
        figures = [
            ("Measured gain", f"{text.difference(run.measured_gain)} points"),
            (text.interval_name(result.advice.confidence), text.difference_interval(run.measured_gain_ci)),
            ("One-sided p", text.chance(run.p_adjusted)),
        ]
        if result.advice.questions_needed is not None:
            least, most = result.advice.questions_needed
            figures.append(("Questions needed", f"at least {least:,}" if most is None else f"{least:,} to {most:,}"))
    return {"figures": figures, "advice": result.advice.text, "certainty": certainty(result)}


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
    return (
        "" if run is None else _joined((_changes("The ensemble", run.gained, run.lost), _close_calls(result, details)))
    )


def strategy_certainty(result: Result, recommended: StrategyFigures) -> str:
    """Return what the figures of the recommended strategy come from, as sentences."""
    row = recommended
    if row.is_single:
        return _other_best(result)
    return _joined((_changes("The recommended strategy", row.gained, row.lost), _other_best(result)))


def measured_gain(result: Result) -> str:
    """Return the gain of the set that decodes together, with its interval and p, as a clause; empty if not known."""
    run = result.ensemble
    if run is None or run.measured_gain is None:
        return ""
    details = f"{text.interval_name(result.advice.confidence)} {text.difference_interval(run.measured_gain_ci)}"
    p = "" if run.p_adjusted is None else f", p {text.p_value(run.p_adjusted)}"
    return f"{text.difference(run.measured_gain)} points ({details}{p})"


def _unchecked(result: Result) -> str:
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
    return (
        f"{primary.name} is the most accurate model on the dev questions, {best.name} on the dev and held-out "
        f"questions together; gains are measured against {best.name}."
    )


def _close_calls(result: Result, details: str) -> str:
    close_calls = sum(bool(candidate.close_call) for candidate in result.candidates)
    if not close_calls:
        return ""
    noun = "decision of the rules was a close call" if close_calls == 1 else "decisions of the rules were close calls"
    return f"{text.in_words(close_calls).capitalize()} {noun}; see {details}."


def _joined(sentences: tuple[str, ...]) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
