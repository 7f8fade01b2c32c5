"""The evidence of a run for a model card: Markdown, in which no name or text of a model is markup."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from advisor.runs.schema.result import Result
from ensemble.common import text
from ensemble.saved.model_card import escaped
from reports.sections import verdict

_TEMPLATES = Path(__file__).parents[1] / "templates"


def evidence(result: Result) -> str:
    """Return the evidence for a run's set: verdict, accuracies with intervals, rules, limits and versions."""
    # HTML escapes would spoil Markdown, so the template passes every text of a model or a file through ``md``.
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, autoescape=False)
    environment.filters |= {**text.FILTERS, "md": escaped}
    # A card has no leaderboard.
    certainty = verdict.certainty(result, "the run's report") if result.ensemble else ""
    recommended, recommendation = result.recommended, result.advice.recommendation
    names = [candidate.name for candidate in result.chosen]
    method = result.ensemble.name if result.ensemble else "single"
    is_set = recommended is not None and (recommended.strategy, list(recommended.members)) == (method, names)
    return environment.get_template("evidence.md.j2").render(
        result=result,
        other="" if recommendation is None or is_set else text.sentence(recommendation.text),
        run=result.ensemble,
        gain=verdict.measured_gain(result),
        baseline=result.best_single.name if result.best_single else "",
        headline=escaped(verdict.verdict_headline(result)),
        certainty=certainty,
    )
