"""Scores of a whole corpus: the figures that papers on translation report, which are no means over sentences.

BLEU counts the n-grams of all sentences together, and chrF does the same with characters, so a long sentence weighs
more than a short one, and one sentence without a match costs little. The interval is that of a bootstrap over
sentences (Koehn, 2004).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from advisor.tasks.metrics.bleu import tokenizer_of

_RESAMPLES, _SEED = 1000, 0


def corpus_score(
    metric: str, texts: Sequence[str], accepted: Sequence[tuple[str, ...]]
) -> tuple[float, tuple[float, float]]:
    """The score of at least one response together in points, and its 95% interval."""
    # sacrebleu wants the first references of all sentences, then the second ones; None where a sentence has fewer.
    references = [list(some) for some in zip_longest(*accepted)]
    scorer = CHRF() if metric == "chrf" else BLEU(tokenize=tokenizer_of(text for some in accepted for text in some))
    # Its own bootstrap fails where a resample has no match at all: it then mixes two types of numbers. These are the
    # methods that it calls.
    counts = np.array(scorer._extract_corpus_statistics([text.strip() for text in texts], references), dtype=np.float64)
    score = float(scorer._compute_score_from_stats(counts.sum(axis=0)).score)
    random = np.random.default_rng(_SEED)
    resampled = [
        float(
            scorer._compute_score_from_stats(counts[random.integers(len(counts), size=len(counts))].sum(axis=0)).score
        )
        for _ in range(_RESAMPLES)
    ]
    low, high = np.percentile(resampled, [2.5, 97.5])
    return score, (float(low), float(high))
