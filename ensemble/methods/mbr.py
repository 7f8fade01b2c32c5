"""Minimum Bayes risk: the response that is most like all the others, by chrF.

The members' responses stand for what could be said, each as likely as the next one, and chrF for how well one serves
where another was wanted. The response with the highest expected chrF is the one with the least risk.

    argmax over i of mean over j != i of chrF(response i, reference: response j)

chrF (Popović, 2015) is sacrebleu's, at sentence level with its defaults (character 6-grams, beta 2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sacrebleu.metrics.chrf import CHRF

from ensemble.methods import Method, NoOptions
from ensemble.methods._response import Answered, ResponseMethod, ResponseSetup

METHOD = Method(
    level="response",
    summary="the response that is most like the others, by chrF (minimum Bayes risk)",
    when="three or more members, and free text without one right wording: translations, summaries",
)


@dataclass(frozen=True, slots=True)
class MinimumBayesRisk:
    """The choice of the response with the highest expected chrF."""

    metric: CHRF = field(default_factory=CHRF)

    def choose(self, question: Answered) -> int:
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        texts = [response.text for response in question.responses]
        gains = [
            # Rounded, so that the sixteenth digit does not decide between texts that are the same.
            round(sum(self._chrf(text, other) for m, other in enumerate(texts) if m != n), 9)
            for n, text in enumerate(texts)
        ]
        return gains.index(max(gains))

    def _chrf(self, hypothesis: str, reference: str) -> float:
        return float(self.metric.sentence_score(hypothesis, [reference]).score)


def make(setup: ResponseSetup, options: NoOptions) -> ResponseMethod:  # noqa: ARG001  # the protocol's; it has none
    """Minimum Bayes risk for some members."""
    return MinimumBayesRisk()
