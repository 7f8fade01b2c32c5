"""Judge: another model grades the response, or compares it with the responses of the other candidates.

    >>> METRIC.problem((), ())   # a reference is not needed

`advisor.judge` asks the judge, which sees all responses; a response alone has no score here. Not covered: several
judges whose grades are averaged.
"""

from __future__ import annotations

from advisor.tasks.metrics import Metric
from ensemble.errors import InputError


class JudgeMetric(Metric):
    """Stands in the list of metrics; the scores come from a judge."""

    def score(self, _text: str, _accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Refuse: only a model can score."""
        raise InputError(
            "metric judge: a model scores these responses, which needs models to run; use advisor select, profile or "
            "evaluate with --judge"
        )


METRIC = JudgeMetric()
