"""The report as text for other programs: Markdown for a pull request, and the leaderboard as CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from advisor.runs.schema.result import Result
from ensemble.common import text
from ensemble.saved.model_card import escaped
from reports.sections import verdict
from reports.sections.leaderboard import STATUS_WORDS

_MOST_ROWS = 30
_COLUMNS = ("model", "status", "points", "points_low", "points_high", "mean_length", "cut_off", "errors", "reason")


def markdown(result: Result) -> str:
    """Return the decision as Markdown, in which no name or text of a model or a file is markup."""
    recommendation = result.advice.recommendation
    said = result.advice.text if recommendation is None else recommendation.text
    figures = [(escaped(name), escaped(value)) for name, value in _figures(result)]
    parts = [
        f"## {escaped(verdict.headline(result))}",
        escaped(text.sentence(said)),
        "\n".join(f"- {name}: {value}" for name, value in figures),
        "\n".join(f"- **Warning:** {escaped(text.sentence(each))}" for each in result.advice.warnings),
        f"### Leaderboard, {escaped(result.task.name)}, {text.counted(result.task.n, 'dev question')}",
        markdown_table(
            ("model", "", result.measure, "95% interval", "mean length"),
            [
                (
                    each.name,
                    STATUS_WORDS[each.status],
                    text.points(each.accuracy),
                    text.interval(each.accuracy_ci),
                    text.length(each.mean_length),
                )
                for each in result.candidates
            ],
        ),
    ]
    if result.strategies:
        parts += [
            f"### Strategies, {text.counted(result.held_out, 'held-out question')}",
            markdown_table(
                ("strategy", "models", result.measure, "expected gain", "calls", "price of 1,000"),
                [
                    (
                        row.title,
                        ", ".join(row.members),
                        text.points(row.accuracy),
                        text.difference(row.expected_gain),
                        text.decimals(row.calls_per_question),
                        text.price(row.price_per_1000),
                    )
                    for row in result.strategies
                ],
            ),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def leaderboard_csv(result: Result) -> str:
    """Return all candidates as CSV, the best first; an unknown value is an empty cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for each in result.candidates:
        low, high = each.accuracy_ci or (None, None)
        numbers = (each.accuracy, low, high, each.mean_length, each.truncated or 0, each.errors or 0)
        # Only texts are guarded: a number with a sign must stay a number.
        writer.writerow((guarded(each.name), each.status, *numbers, guarded(each.reason or "")))
    return stream.getvalue()


def _figures(result: Result) -> list[tuple[str, str]]:
    """Gain, cost and certainty of the recommended strategy: names and values."""
    recommended = result.recommended
    if recommended is None:
        gain = verdict.measured_gain(result)
        return [("Gain", gain)] if gain else []
    row = recommended
    figures: list[tuple[str, str]] = []
    if not row.is_single and recommended.expected_gain is not None:
        limits = (
            f"{text.interval_name(result.advice.confidence)} {text.difference_interval(recommended.expected_gain_ci)}"
        )
        figures.append(("Expected gain", f"{text.difference(recommended.expected_gain)} points ({limits})"))
        figures += [("That is", clause)] if (clause := verdict.of_thousand(result)) else []
        why = text.why_not_shown(recommended.shown or "not_yet", recommended.expected_gain_ci)
        figures.append(("Shown by the test", f"{text.shown(recommended.shown or 'not_yet')}. {why}".removesuffix(". ")))
    known = (
        ("Calls a question", row.calls_per_question, text.decimals),
        ("Time of a question", row.seconds_per_question, text.duration),
        ("Price of 1,000 questions", row.price_per_1000, text.price),
    )
    return figures + [(name, form(value)) for name, value, form in known if value is not None]


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose cells are escaped, with a note on the rows that a pull request has no room for."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    lines = [line(heads), line("---" for _ in heads), *(line(map(escaped, row)) for row in rows[:_MOST_ROWS])]
    more = len(rows) - _MOST_ROWS
    return "\n".join(lines) + (f"\n\nThe report has {text.counted(more, 'more row')}." if more > 0 else "")


def guarded(cell: str) -> str:
    """Return a cell of a CSV file that no spreadsheet runs."""
    # A spreadsheet runs a cell that begins with one of these as a formula.
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
