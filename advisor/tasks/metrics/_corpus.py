"""Scores of a whole corpus: the figures that papers on translation report, which are no means over sentences.

BLEU counts the n-grams of all sentences together, and chrF does the same with characters, so a long sentence weighs
more than a short one, and one sentence without a match costs little. The interval is that of a bootstrap over
sentences (Koehn, 2004), by sacrebleu, with its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

_METRICS = {"bleu": BLEU, "chrf": CHRF}
_RESAMPLES = 1000


def corpus_score(
    metric: str, texts: Sequence[str], accepted: Sequence[tuple[str, ...]]
) -> tuple[float, tuple[float, float]]:
    """The score of all responses together.

    Args:
        metric: ``bleu`` or ``chrf``.
        texts: The responses, at least one; an empty text for a question without a response.
        accepted: For each response its reference translations.

    Returns:
        The score in points, and its 95% interval.
    """
    # sacrebleu wants the first references of all sentences, then the second ones; None where a sentence has fewer.
    references = [list(some) for some in zip_longest(*accepted)]
    found = _METRICS[metric]().corpus_score([text.strip() for text in texts], references, n_bootstrap=_RESAMPLES)
    return found.score, (found._mean - found._ci, found._mean + found._ci)
