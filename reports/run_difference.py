"""Two runs against each other, as a page in the look of the report and as Markdown: ``advisor report A B --diff``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble.common import text
from ensemble.saved.model_card import escaped
from reports.formats import markdown_table
from reports.page import write_small_page
from reports.sections.leaderboard import STATUS_WORDS

_WORDS = {**STATUS_WORDS, "absent": "not in this run"}


def write_difference(path: Path, difference: Mapping[str, Any]) -> Path:
    """Write the page of two runs to a file, and return its path.

    Args:
        path: The file.
        difference: The figures, see :func:`advisor.compare.run_difference.run_difference`.

    Raises:
        InputError: The file cannot be written.
    """
    return write_small_page(
        path,
        "difference.html.j2",
        difference=difference,
        headline=headline(difference),
        decision=_decision(difference),
        decisions=_decisions(difference),
        words=_WORDS,
        confidence=text.percent(difference["confidence"]),
    )


def difference_markdown(difference: Mapping[str, Any]) -> str:
    """Return the difference of two runs as Markdown, in which no name or text is markup."""
    pair = difference["pair"]
    known = [(name, *values) for name, values in _decisions(difference)]
    candidates = [
        (each["model"], *map(text.points, each["points"]), text.difference(each["difference"]), _status(each["status"]))
        for each in difference["candidates"]
    ]
    settings = [(each["name"], *(value or text.UNKNOWN for value in each["values"])) for each in difference["settings"]]
    parts = [
        f"## {escaped(headline(difference))}",
        escaped(_decision(difference)),
        f"- B minus A: {text.difference(pair['difference'])} points "
        f"({text.difference_interval(pair['difference_ci'])}, p {text.p_value(pair['p_two_sided'])})\n"
        f"- {text.counted(pair['gained'], 'question')} fixed, {pair['lost']:,} broken, of {difference['n']:,}",
        markdown_table(("", "A", "B"), known),
        "### Models",
        markdown_table(("model", "A", "B", "B minus A", "status"), candidates),
    ]
    if settings:
        parts += ["### Settings that differ", markdown_table(("setting", "A", "B"), settings)]
    notes = "\n".join(f"- {escaped(text.sentence(note))}" for note in difference["notes"])
    return "\n\n".join(part for part in (*parts, notes) if part) + "\n"


def headline(difference: Mapping[str, Any]) -> str:
    """Return which run is better, in a few words."""
    pair = difference["pair"]
    # A verdict of "equal" would say less than that.
    if not pair["gained"] and not pair["lost"]:
        return "A and B score the same on every question"
    return text.verdict(pair["verdict"], "B", "A")


def _decision(difference: Mapping[str, Any]) -> str:
    a, b = difference["runs"]
    if difference["same_decision"]:
        return f"Both runs recommend the same: {b['strategy']} ({', '.join(b['members'])})."
    return (
        f"The recommendation has changed from {a['strategy']} ({', '.join(a['members'])}) to {b['strategy']} "
        f"({', '.join(b['members'])})."
    )


def _decisions(difference: Mapping[str, Any]) -> list[tuple[str, tuple[str, str]]]:
    """What each run recommends, and its figures: names, and a text for each run."""

    def gain(run: Mapping[str, Any]) -> str:
        ends = f" ({text.difference_interval(run['expected_gain_ci'])})" if run["expected_gain_ci"] else ""
        return text.difference(run["expected_gain"]) + ends

    rows = (
        ("Folder", lambda run: run["path"]),
        ("Recommended", lambda run: run["strategy"]),
        ("Models", lambda run: ", ".join(run["members"])),
        ("Points on the common questions", lambda run: text.points(run["points"])),
        ("Best single model", lambda run: run["best_single_model"] or text.UNKNOWN),
        ("Expected gain over it", gain),
        ("Shown by the test", lambda run: text.shown(run["shown"]) if run["shown"] else text.UNKNOWN),
        ("Calls a question", lambda run: text.decimals(run["calls_per_question"])),
        ("Time of a question", lambda run: text.duration(run["seconds_per_question"])),
        ("Price of 1,000 questions", lambda run: text.price(run["price_per_1000"])),
    )
    a, b = difference["runs"]
    # A row that both runs know nothing of says nothing.
    told = [(name, (form(a), form(b))) for name, form in rows]
    return [(name, values) for name, values in told if values != (text.UNKNOWN, text.UNKNOWN)]


def _status(both: tuple[str, str]) -> str:
    before, after = (_WORDS[each] for each in both)
    return after if before == after else f"{before}, now {after}"
