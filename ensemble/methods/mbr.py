"""Minimum Bayes risk: the response that is most similar to all others, by chrF.

The members' responses are equally likely samples of the possible responses, and chrF measures how well one response
serves if another one was wanted. The response with the highest expected chrF has the least risk:

    argmax over i of mean over j != i of chrF(response i, reference: response j)

chrF (Popović, 2015) is computed by sacrebleu at sentence level with its defaults (character 6-grams, beta 2).
"""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics.chrf import CHRF

from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod, most_alike

METHOD = Method(
    level="response",
    summary="the response most similar to the others, by chrF (minimum Bayes risk)",
    when="three or more members, and free text with many correct wordings: translations, summaries",
)


class MinimumBayesRisk:
    """The choice of the response with the highest expected chrF."""

    def __init__(self) -> None:
        self._metric = CHRF()

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        return most_alike(texts, lambda text, other: self._metric.sentence_score(text, [other]).score)


def make(options: None) -> ResponseMethod:  # noqa: ARG001
    """Make the method; it learns nothing and has no options."""
    return MinimumBayesRisk()
