"""What is possible at all, as a sentence for the terminal and the report."""

from __future__ import annotations

from advisor.runs.schema.result import Result
from ensemble.common import text


def ceiling_in_words(result: Result) -> str:
    """What votes, cascades and routers of a run's models can gain at most; empty if that is not known."""
    ceiling = result.advice.ceiling
    if ceiling is None:
        return ""
    most, here = text.points(ceiling.points_ci[1]), text.points(ceiling.points)
    every = f" No model is right on {text.points(ceiling.all_wrong)}% of the questions."
    if ceiling.all_wrong == 0:
        every = " On each question at least one model is right."
    if result.is_graded:
        every = ""
    return (
        f"No vote, cascade or router of these models can gain more than {most} points over the best single model (95%; "
        f"{here} on these {text.counted(ceiling.n, 'question')}).{every}"
    )
