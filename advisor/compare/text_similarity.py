"""How alike two candidates' responses are: BLEU, which compares response with response."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from advisor.statistics import Floats

_MOST_MODELS = 30
_MOST_WORDS = 2_000_000
"""How alike two candidates' responses are: BLEU, which compares response with response."""


def pairwise_bleu(responses: Sequence[Sequence[str]]) -> Floats:
    """How alike two candidates' responses are: BLEU, which compares response with response."""
    compared = responses[:_MOST_MODELS]
    words = sum(len(text.split()) for texts in compared for text in texts)
    step = math.ceil(len(compared) * words / _MOST_WORDS) or 1
    texts = [own[::step] for own in compared]
    bleu = np.full((len(responses), len(responses)), np.nan)
    for reference, own in enumerate(texts):
        # Responses may be shorter than four words. `force` only drops a warning of texts that are already tokenized.
        metric = BLEU(effective_order=True, force=True, references=[own])
        for hypothesis, other in enumerate(texts):
            bleu[hypothesis, reference] = metric.corpus_score(other, None).score
    return bleu
