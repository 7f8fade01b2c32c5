"""The evidence of a run as a part of a model card: Markdown, in which no name or text of a model is markup."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ensemble.saved.model_card import escaped
from reports import verdict, words
from reports.model import Result

_TEMPLATES = Path(__file__).parent / "templates"


def evidence(result: Result) -> str:
    """Return what a run found out about its set: verdict, figures with intervals, rules, limits, versions."""
    # Markdown, which HTML's escapes would only spoil: every text from a model or a file goes through ``md``.
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, autoescape=False)
    environment.filters |= {
        "md": escaped,
        "points": words.points,
        "interval": words.interval,
        "characters": words.length,
        "difference": words.difference,
        "difference_interval": words.difference_interval,
        "p_value": words.p_value,
    }
    return environment.get_template("evidence.md.j2").render(
        result=result,
        run=result.ensemble,
        chosen=[result.candidates[index] for index in result.selected],
        headline=escaped(verdict.headline(result)),
        # The card has the chosen set alone; the report has the leaderboard.
        certainty=verdict.certainty(result).replace("the leaderboard", "the run's report") if result.ensemble else "",
    )
