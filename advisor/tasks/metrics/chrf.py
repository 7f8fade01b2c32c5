"""chrF of one response against the reference translations, by sacrebleu.

    >>> METRIC.score(" Pisica stătea pe covor.", ("Pisica stătea pe covor.",), ())
    (1.0, 'Pisica stătea pe covor.')

Sentence level, character 6-grams, beta 2. Corpus chrF is in `_corpus.py`. Not covered: chrF++ (with word n-grams).
"""

from __future__ import annotations

from sacrebleu.metrics.chrf import CHRF

from advisor.tasks.metrics._metric import Metric


class Chrf(Metric):
    """Sentence chrF over 100."""

    packages: tuple[str, ...] = ("sacrebleu",)

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the whole response, without the white space around it."""
        # Models write a space before the first word, which the reference does not have.
        response = text.strip()
        return min(1.0, CHRF().sentence_score(response, list(accepted)).score / 100), response or None


METRIC = Chrf()
