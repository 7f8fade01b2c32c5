"""BLEU of one response against the reference translations, by sacrebleu, and its variant chrF.

    >>> METRIC.score(" The cat sat on the mat.", ("The cat sat on the mat.",), ())
    (1.0, 'The cat sat on the mat.')
    >>> VARIANT.score(" Pisica stătea pe covor.", ("Pisica stătea pe covor.",), ())
    (1.0, 'Pisica stătea pe covor.')

Sentence level: BLEU with exponential smoothing and effective order (:func:`tokenizer_of` says which of sacrebleu's
tokenizers is used), chrF with character 6-grams and beta 2. :func:`corpus_score` has the figures that papers report,
which are no means of sentences. Not covered: chrF++ (with word n-grams).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from advisor.tasks.metrics import Metric

_RESAMPLES, _SEED = 1000, 0
_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff]")
# Kana; Thai and Lao; Tibetan and Burmese; Khmer.
_OTHERS_WITHOUT_SPACES = re.compile("[\u3040-\u30ff\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff]")


def tokenizer_of(references: Iterable[str]) -> str:
    """Sacrebleu's tokenizer for references: ``13a``; for writing without spaces ``zh`` (Chinese) or ``char`` (others).

    13a would take a clause without spaces for one word, so that one other character in it gives BLEU 0. Papers often
    use ``ja-mecab`` for Japanese, which needs a dictionary, so figures for Japanese are not theirs.
    """
    text = "".join(references)
    han, others = len(_HAN.findall(text)), len(_OTHERS_WITHOUT_SPACES.findall(text))
    # A name or a quotation in another script does not make the language.
    if 2 * (han + others) <= sum(character.isalnum() for character in text):
        return "13a"
    return "char" if others else "zh"


class Bleu(Metric):
    """Sentence BLEU over 100."""

    packages: tuple[str, ...] = ("sacrebleu",)

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the whole response, without the white space around it."""
        # Models write a space before the first word, which the reference does not have.
        response = text.strip()
        score = self._scorer(accepted).sentence_score(response, list(accepted)).score
        return min(1.0, score / 100), response or None  # sacrebleu gives 100.00000000000004 for equal texts

    def _scorer(self, accepted: Iterable[str]) -> BLEU | CHRF:
        return BLEU(effective_order=True, tokenize=tokenizer_of(accepted))


class _Chrf(Bleu):
    def _scorer(self, accepted: Iterable[str]) -> BLEU | CHRF:  # noqa: ARG002
        return CHRF()


def corpus_score(
    metric: str, texts: Sequence[str], accepted: Sequence[tuple[str, ...]]
) -> tuple[float, tuple[float, float]]:
    """The score of at least one response together in points, and its 95% interval.

    BLEU counts the n-grams of all sentences together, and chrF does the same with characters, so a long sentence weighs
    more than a short one, and one sentence without a match costs little. The interval is that of a bootstrap over
    sentences (Koehn, 2004).
    """
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


METRIC = Bleu()
VARIANT = _Chrf()
