"""BLEU of one response against the reference translations, by sacrebleu.

    >>> METRIC.score(" The cat sat on the mat.", ("The cat sat on the mat.",), ())
    (1.0, 'The cat sat on the mat.')

Sentence level: exponential smoothing, effective order. Corpus BLEU, which is not a mean of sentences, is in
`_corpus.py`. :func:`tokenizer_of` says which of sacrebleu's tokenizers is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sacrebleu.metrics.bleu import BLEU

from advisor.tasks.metrics._metric import Metric

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
        response = text.strip()
        score = (
            BLEU(effective_order=True, tokenize=tokenizer_of(accepted)).sentence_score(response, list(accepted)).score
        )
        return min(1.0, score / 100), response or None  # sacrebleu gives 100.00000000000004 for equal texts


METRIC = Bleu()
