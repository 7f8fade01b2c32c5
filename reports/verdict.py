"""The verdict in a short headline, and how sure it is, in words for somebody who reads nothing else."""

from __future__ import annotations

from reports import words
from reports.model import EnsembleRun, Result

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def headline(result: Result) -> str:
    """Return the verdict in a few words."""
    if result.verdict == "ensemble":
        return f"Ensemble {_these(len(result.selected))}."
    if result.verdict == "cannot_tell":
        return "Too close to call."
    return f"Use {_single(result)} alone."


def certainty(result: Result) -> str:
    """Return how sure the verdict is, as sentences."""
    run = result.ensemble
    if run is None:
        return "The chosen set was not run together, so no gain was measured." if len(result.selected) > 1 else ""
    sentences = (_changes(run), _interval(run), _chance(run), _close_calls(result))
    return " ".join(sentence for sentence in sentences if sentence)


def _changes(run: EnsembleRun) -> str:
    if run.gained is None or run.lost is None:
        return ""
    mended, broke = f"{run.gained:,}" if run.gained else "no", f"{run.lost:,}" if run.lost else "none"
    noun = "answer" if run.gained == 1 else "answers"
    return f"The ensemble mended {mended} {noun} of the best single model, and broke {broke}."


def _interval(run: EnsembleRun) -> str:
    if run.delta_ci is None:
        return ""
    low, high = run.delta_ci
    about = "includes zero, no difference at all" if low <= 0 <= high else "leaves out zero"
    return f"The 95% interval of the difference, {words.difference_interval(run.delta_ci)} points, {about}."


def _chance(run: EnsembleRun) -> str:
    if run.p_value is None:
        return ""
    if run.p_value < 0.001:
        often = "in fewer than 1 of 1,000 tries"
    elif run.p_value < 0.1:
        often = f"in about 1 of {round(1 / run.p_value):,} tries"
    else:
        often = f"in about {round(100 * run.p_value)} of 100 tries"
    return f"Were the two equally good, a difference this large would come up by chance {often}."


def _close_calls(result: Result) -> str:
    fragile = sum(bool(candidate.fragile) for candidate in result.candidates)
    if not fragile:
        return ""
    noun = "decision of the rules was a close call" if fragile == 1 else "decisions of the rules were close calls"
    return f"{_number(fragile).capitalize()} {noun}; the leaderboard says which."


def _these(size: int) -> str:
    return f"these {_number(size)} models" if size > 1 else "the chosen models"


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else f"{count:,}"


def _single(result: Result) -> str:
    if result.ensemble and result.ensemble.best_single_model:
        return result.ensemble.best_single_model
    return result.primary.model if result.primary else "the best model"
