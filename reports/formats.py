"""The report as text for other programs: Markdown for a pull request, the evidence of a model card, LaTeX, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from advisor.run.result import Result
from advisor.run.sentences import summary
from ensemble.common import text
from ensemble.saved.model_card import escaped
from reports.sections.ensemble import certainty
from reports.sections.strategies import headline, measured_gain, verdict_headline
from reports.tables import Table, as_latex, as_markdown, held_out, leaderboard, strategies

_TEMPLATES = Path(__file__).with_name("templates")
_DIGITS = 6
"""Significant digits of numbers in CSV files."""


def markdown(result: Result) -> str:
    """Return the decision as Markdown, in which no name or text of a model or a file is markup."""
    told = summary(result)
    if result.advice.recommendation is None:
        told = {"Recommended": result.advice.text}
    said = told.pop(next(iter(told)))
    told = {"Date": (result.provenance.date or "")[:10], **told}
    parts = [
        f"## {escaped(headline(result))}",
        escaped(text.sentence(said)),
        "\n".join(f"- {escaped(name)}: {escaped(value)}" for name, value in told.items() if value),
        "\n".join(f"- **Warning:** {escaped(text.sentence(each, begins=True))}" for each in result.advice.warnings),
    ]
    parts += [f"### {escaped(table.title)}\n\n{as_markdown(table)}" for table in _tables(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(result: Result) -> str:
    """Return the leaderboard and the strategies as tables of LaTeX, for the package booktabs."""
    return "\n".join(map(as_latex, _tables(result)))


def _tables(result: Result) -> list[Table]:
    return [leaderboard(result), *([strategies(result)] if result.strategies else [])]


def evidence(result: Result) -> str:
    """Return the evidence for a run's set: verdict, accuracies with intervals, rules, limits and versions."""
    # HTML escapes would spoil Markdown, so the template passes every text of a model or a file through ``md``.
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, autoescape=False)
    environment.filters |= {**text.FILTERS, "md": escaped}
    recommended = result.advice.recommendation
    names = [candidate.name for candidate in result.chosen]
    method = result.ensemble.name if result.ensemble else "single"
    is_set = recommended is not None and (recommended.strategy, list(recommended.members)) == (method, names)
    return environment.get_template("evidence.md.j2").render(
        result=result,
        other="" if recommended is None or is_set else text.sentence(recommended.text),
        run=result.ensemble,
        together=as_markdown(held_out(result.ensemble, result.measure)) if result.ensemble else "",
        gain=measured_gain(result),
        baseline=result.best_single.name if result.best_single else "",
        headline=escaped(verdict_headline(result)),
        # A card has no leaderboard.
        certainty=certainty(result, "the run's report"),
    )


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with the keys of all of them; an unknown value is an empty cell."""
    stream = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    if names:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([names, *([_cell(row.get(name)) for name in names] for row in rows)])
    return stream.getvalue()


def _cell(value: Any) -> Any:
    """A cell of a CSV file that no spreadsheet runs."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if not isinstance(value, str):
        return value
    # A spreadsheet runs a text that begins with one of these as a formula, also in full width or after white space.
    return f"'{value}" if value[:1].isspace() or value.startswith(tuple("=+-@＝＋－＠")) else value
