"""How alike two candidates are: a row of measures for each pair, of which the rules use two.

Accuracy and length are what section 4.1 decides by; BLEU is what it names beside length for a difference in response
style. The others look at what an ensemble lives on: models that err on different questions. Not covered: vocabularies,
which section 3.2 found to matter little.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.helpers import extract_all_word_ngrams
from scipy import sparse
from sklearn.metrics import cohen_kappa_score

from advisor.evidence import Floats, check_same_questions, is_binary, scores
from advisor.records import Profile, Standing
from advisor.selection import gap, length_ratio

HOW_TO_READ: dict[str, str] = {
    "gap": "Points of accuracy between the two; the paper's rule wants at most 10 to the primary.",
    "length_ratio": "The longer mean response over the shorter; the paper's rule wants at most 2 to the primary.",
    "bleu": "How much wording the two share, from 0 (nothing) to 100 (the same responses): low means different styles "
    "of answering, which an ensemble that works token by token mixes badly.",
    "both_wrong_same": "Share of the questions on which both give the same wrong answer: an ensemble of the two seldom "
    "mends those, so lower is better.",
    "kappa": "Agreement in which questions they get right: 1 is always the same ones, 0 as if by chance, below 0 they "
    "complement each other, so lower leaves an ensemble more to gain.",
    "oracle": "Accuracy if the better of the two answers were always taken: what it has above the better model alone "
    "is all that choosing between them could gain.",
}
"""One sentence a measure, for whoever never saw the paper."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two candidates on the same questions. A measure is None where it is not known or not defined.

    Attributes:
        a: The one that came first.
        b: The other.
        gap: Points of accuracy between them, 0 to 100 (section 4.1).
        length_ratio: Longer mean length over shorter, at least 1, infinite where one is 0 (section 4.1).
        bleu: Corpus BLEU of their responses, 0 to 100 (section 4.1). BLEU takes one side for the reference and is not
            symmetric: this is the mean of both directions.
        both_wrong_same: Share of the questions on which both are wrong with the same extracted answer, 0 to 1; None
            where scores are other than 0 and 1, since "wrong" is a matter of degree there.
        kappa: Cohen's kappa of their correctness, -1 to 1; None for such scores, and where both are right on every
            question or both on none, since chance alone agrees fully there.
        oracle: Mean of the better score of the two, in points, 0 to 100.
    """

    a: str
    b: str
    gap: float
    length_ratio: float | None
    bleu: float | None = None
    both_wrong_same: float | None = None
    kappa: float | None = None
    oracle: float | None = None

    def as_dict(self) -> dict[str, str | float | None]:
        """The pair as JSON has it: an infinite length ratio is null there, like one that is not known."""
        values: dict[str, str | float | None] = asdict(self)
        if self.length_ratio is not None and math.isinf(self.length_ratio):
            values["length_ratio"] = None
        return values


def all_pairs(profiles: Sequence[Profile]) -> tuple[Pair, ...]:
    """Measure every pair of candidates.

    Args:
        profiles: The candidates' answers to the same questions, at least one, in the order that the pairs shall have.

    Raises:
        UniteError: Two candidates were asked different questions; names both.
    """
    for profile in profiles[1:]:
        check_same_questions(profiles[0], profile)
    bleu = pairwise_bleu([[answer.text for answer in profile.answers] for profile in profiles])
    graded = [scores(profile) for profile in profiles]
    plain = [is_binary(values) for values in graded]
    wrong = _wrong_answers(profiles)
    pairs = []
    for (i, a), (j, b) in itertools.combinations(enumerate(profiles), 2):
        right_or_wrong = plain[i] and plain[j]
        pair = Pair(
            a=a.model,
            b=b.model,
            gap=gap(a.accuracy, b.accuracy),
            length_ratio=length_ratio(a.mean_length, b.mean_length),
            bleu=float(bleu[i, j] + bleu[j, i]) / 2,
            both_wrong_same=float(((wrong[i] == wrong[j]) & (wrong[i] >= 0)).mean()) if right_or_wrong else None,
            kappa=_kappa(graded[i], graded[j]) if right_or_wrong else None,
            oracle=100 * float(np.maximum(graded[i], graded[j]).mean()),
        )
        pairs.append(pair)
    return tuple(pairs)


def pairs_of_standings(standings: Sequence[Standing]) -> tuple[Pair, ...]:
    """What published numbers tell of every pair: gap and length ratio, and nothing that needs the responses."""
    return tuple(
        Pair(a.model, b.model, gap(a.accuracy, b.accuracy), length_ratio(a.mean_length, b.mean_length))
        for a, b in itertools.combinations(standings, 2)
    )


def pairwise_bleu(responses: Sequence[Sequence[str]]) -> Floats:
    """Corpus BLEU of every model's responses against every other's as the only reference, as sacrebleu computes it.

    sacrebleu takes the n-grams of the hypotheses apart again for each reference: minutes for a hundred models. But BLEU
    needs of a pair only how many n-grams match, min(count, count) summed over the n-grams, and that is a product of
    matrices with a column for each (n-gram, occurrence) and a one where a model's response has that occurrence. So each
    response is tokenized once, and sacrebleu makes the score from these sums.

    Args:
        responses: Models by questions, the same questions for each.

    Returns:
        Hypotheses by references, 0 to 100; not symmetric, as precision and brevity are the hypothesis' alone.
    """
    metric = BLEU(effective_order=True)  # responses may be shorter than four words
    orders, models = metric.max_ngram_order, len(responses)
    matches = np.zeros((orders, models, models), dtype=np.int64)
    totals = np.zeros((models, orders), dtype=np.int64)
    lengths = np.zeros(models, dtype=np.int64)
    for question in zip(*responses, strict=True):
        counted = [extract_all_word_ngrams(metric.tokenizer(text.rstrip()), 1, orders) for text in question]
        lengths += [length for _, length in counted]
        for order, occurrences in enumerate(_occurrences([ngrams for ngrams, _ in counted], orders)):
            matches[order] += (occurrences @ occurrences.T).toarray()
            totals[:, order] += occurrences.sum(axis=1)
    bleu = np.empty((models, models))
    for hypothesis, reference in np.ndindex(models, models):
        bleu[hypothesis, reference] = metric.compute_bleu(
            correct=matches[:, hypothesis, reference].tolist(),
            total=totals[hypothesis].tolist(),
            sys_len=int(lengths[hypothesis]),
            ref_len=int(lengths[reference]),
            smooth_method=metric.smooth_method,
            smooth_value=metric.smooth_value,
            effective_order=metric.effective_order,
        ).score
    return bleu


def _occurrences(counts: Sequence[Counter[tuple[str, ...]]], orders: int) -> list[sparse.csr_array]:
    """For each order of n-grams, models by (n-gram, occurrence): 1 where the response has the n-gram that often."""
    columns: list[dict[tuple[tuple[str, ...], int], int]] = [{} for _ in range(orders)]
    cells: list[tuple[list[int], list[int]]] = [([], []) for _ in range(orders)]
    for model, ngrams in enumerate(counts):
        for ngram, count in ngrams.items():
            known = columns[len(ngram) - 1]
            rows, places = cells[len(ngram) - 1]
            for occurrence in range(count):
                rows.append(model)
                places.append(known.setdefault((ngram, occurrence), len(known)))
    return [
        sparse.csr_array((np.ones(len(rows), dtype=np.int64), (rows, places)), shape=(len(counts), max(1, len(known))))
        for known, (rows, places) in zip(columns, cells, strict=True)
    ]


def _wrong_answers(profiles: Sequence[Profile]) -> list[NDArray[np.int64]]:
    """A number for each wrong answer, the same for the same text; -1 where it is right or nothing was extracted."""
    numbers: dict[str, int] = {}
    return [
        np.array(
            [
                -1
                if answer.score == 1 or answer.extracted is None
                else numbers.setdefault(answer.extracted, len(numbers))
                for answer in profile.answers
            ]
        )
        for profile in profiles
    ]


def _kappa(a: Floats, b: Floats) -> float | None:
    if a.min() == a.max() == b.min() == b.max():
        return None  # 0 / 0: two constants that are the same agree by chance alone
    return float(cohen_kappa_score(a, b, labels=[0, 1]))
