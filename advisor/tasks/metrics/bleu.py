"""BLEU of one response against the reference translations, by sacrebleu.

    >>> METRIC.score(" The cat sat on the mat.", ("The cat sat on the mat.",), ())
    (1.0, 'The cat sat on the mat.')

Sentence level: exponential smoothing, effective order, tokenizer 13a. Corpus BLEU, which is not a mean of sentences, is
in `_corpus.py`. Not covered: languages that 13a does not tokenize (Chinese, Japanese, Korean); chrF is better there.
"""

from __future__ import annotations

from sacrebleu.metrics.bleu import BLEU


class Bleu:
    """Sentence BLEU over 100."""

    packages: tuple[str, ...] = ("sacrebleu",)

    def problem(self, _accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """None: every text that is not blank can be used."""
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the whole response, without the white space around it."""
        response = text.strip()
        score = BLEU(effective_order=True).sentence_score(response, list(accepted)).score
        return min(1.0, score / 100), response or None  # sacrebleu gives 100.00000000000004 for equal texts


METRIC = Bleu()
