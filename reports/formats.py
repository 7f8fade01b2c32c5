"""The report as text for other programs: Markdown for a pull request, tables of LaTeX, and CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from advisor.runs.schema.result import Result
from advisor.runs.sentences import ceiling_in_words, source_of_gain
from ensemble.common import text
from ensemble.saved.model_card import escaped
from reports.sections import verdict
from reports.sections.leaderboard import STATUS_WORDS

_MOST_ROWS = 30
_DIGITS = 6
"""Significant digits of numbers in CSV files."""
_LATEX = str.maketrans(
    {
        **{each: f"\\{each}" for each in "&%$#_{}"},
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        text.MINUS: "$-$",
        text.UNKNOWN: "--",
    }
)


def markdown(result: Result) -> str:
    """Return the decision as Markdown, in which no name or text of a model or a file is markup."""
    recommendation = result.advice.recommendation
    said = result.advice.text if recommendation is None else recommendation.text
    date = [("Date", result.provenance.date[:10])] if result.provenance.date else []
    figures = [(escaped(name), escaped(value)) for name, value in date + _figures(result)]
    parts = [
        f"## {escaped(verdict.headline(result))}",
        escaped(text.sentence(said)),
        "\n".join(f"- {name}: {value}" for name, value in figures),
        "\n".join(f"- **Warning:** {escaped(text.sentence(each))}" for each in result.advice.warnings),
    ]
    for title, heads, rows in _tables(result):
        parts += [f"### {escaped(title)}", markdown_table(heads, rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(result: Result) -> str:
    """Return the leaderboard and the strategies as tables of LaTeX, for the package booktabs."""

    def line(cells: Iterable[str]) -> str:
        return f"{' & '.join(map(_as_latex, cells))} \\\\"

    parts = []
    for title, heads, rows in _tables(result):
        # The first two columns are names.
        begin = f"\\begin{{tabular}}{{ll{'r' * (len(heads) - 2)}}}"
        parts += [f"% {title}", begin, "\\toprule", line(heads), "\\midrule", *map(line, rows), "\\bottomrule"]
        parts += ["\\end{tabular}", ""]
    return "\n".join(parts)


def _tables(result: Result) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """The leaderboard and the strategies: a title, the heads of the columns, and the rows."""
    roles, decodes = result.roles, result.can_decode
    tables = [
        (
            f"Leaderboard, {result.task.name}, {text.counted(result.task.n, 'dev question')}",
            ("model", "role", result.measure, "95% interval", "mean length", *(["decoding rules"] if decodes else [])),
            [
                (
                    each.name,
                    roles.get(each.name, text.UNKNOWN),
                    text.points(each.accuracy),
                    text.interval(each.accuracy_ci),
                    text.length(each.mean_length),
                    *([STATUS_WORDS[each.status]] if decodes else []),
                )
                for each in result.candidates
            ],
        )
    ]
    if result.strategies:
        ends = text.interval_name(result.advice.confidence)
        gains = ("expected gain", ends, "measured gain", ends)
        rows: list[tuple[str, ...]] = [
            (
                row.title,
                ", ".join(row.members),
                text.points(row.accuracy),
                text.interval(row.accuracy_ci),
                text.difference(row.expected_gain),
                text.difference_interval(row.expected_gain_ci),
                text.difference(row.measured_gain),
                text.difference_interval(row.measured_gain_ci),
                text.UNKNOWN if row.is_single or row.shown is None else text.shown(row.shown),
                text.decimals(row.calls_per_question),
                text.price(row.price_per_1000),
            )
            for row in result.strategies
        ]
        heads = ("strategy", "models", result.measure, "95% interval", *gains, "shown", "calls", "price of 1,000")
        tables.append((f"Strategies, {text.counted(result.held_out, 'held-out question')}", heads, rows))
    return tables


def leaderboard_rows(result: Result) -> list[dict[str, Any]]:
    """Return all candidates, the best first, with their figures on the dev questions; None for an unknown value."""
    roles = result.roles
    return [
        {
            "model": each.model,
            "role": roles.get(each.model),
            "status": each.status,
            **_with_ends("accuracy", each.accuracy, each.accuracy_ci),
            "mean_length": each.mean_length,
            "answered": each.answered,
            "truncated": each.truncated,
            "errors": each.errors,
            "reason": each.reason,
        }
        for each in result.candidates
    ]


def strategy_rows(result: Result) -> list[dict[str, Any]]:
    """Return all strategies on the held-out questions, the best first; None for an unknown value."""
    return [
        {
            "strategy": each.strategy,
            "members": ", ".join(each.members),
            **_with_ends("accuracy", each.accuracy, each.accuracy_ci),
            **_with_ends("expected_gain", each.expected_gain, each.expected_gain_ci),
            **_with_ends("measured_gain", each.measured_gain, each.measured_gain_ci),
            "p_adjusted": each.p_adjusted,
            "shown": each.shown,
            "calls_per_question": each.calls_per_question,
            "seconds_per_question": each.seconds_per_question,
            "price_per_1000": each.price_per_1000,
        }
        for each in result.strategies
    ]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as CSV; an unknown value is an empty cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([list(rows[0]), *(map(_cell, row.values()) for row in rows)] if rows else [])
    return stream.getvalue()


def _with_ends(name: str, value: float | None, interval: Sequence[float] | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


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
        figures += [("Where", source)] if (source := source_of_gain(row.groups or ())) else []
        if row.measured_gain is not None:
            ends = f"{text.interval_name(result.advice.confidence)} {text.difference_interval(row.measured_gain_ci)}"
            figures.append(("Measured gain", f"{text.difference(row.measured_gain)} points ({ends})"))
    figures += [("What is possible", possible)] if (possible := ceiling_in_words(result)) else []
    certainty = verdict.strategy_shown(result, row)
    figures.append(
        ("Test", certainty)
        if row.is_single
        else ("Shown by the test", f"{text.shown(row.shown or 'not_yet')}. {certainty}")
    )
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


def _cell(value: Any) -> Any:
    """A cell of a CSV file that no spreadsheet runs."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if not isinstance(value, str):
        return value
    # A spreadsheet runs a text that begins with one of these as a formula, also in full width or after white space.
    return f"'{value}" if value[:1].isspace() or value.startswith(tuple("=+-@＝＋－＠")) else value


def _as_latex(cell: str) -> str:
    return cell.translate(_LATEX)
