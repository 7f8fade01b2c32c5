"""How two candidates word their responses: BLEU for the wording itself, and a distance of styles.

BLEU compares response with response, so it falls both where two models write otherwise and where they say something
else. The distance of styles looks only at habits, what a model writes again and again whatever it is asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.helpers import extract_all_word_ngrams
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics.pairwise import cosine_distances

from advisor.evidence import Floats

_HABIT = 0.1
"""Share of a model's responses that have an n-gram, from which on it is a habit and not the matter of a question."""
_NUMBER = re.compile(r"[0-9]+")


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


def style_distances(responses: Sequence[Sequence[str]]) -> Floats:
    """How far apart the models' habits of writing are: cosine distance of how often they use which character trigrams.

    A model's vector has, for each trigram, the share of its responses that hold it. What is asked and what is answered
    differs from question to question, so it is spread over many trigrams that are rare; what is written in every
    response stands out. Trigrams that no model has in a tenth of its responses are left out, every number counts as one
    and the beginning and end of a response count as characters. There is no weight for rare trigrams (idf), which would
    bring the matter of the questions back. Nor are responses compared one by one: then two models that answer each
    question differently in the same words would be as far apart as two styles can be. It follows that neither the
    order of the questions nor which of them were answered rightly changes the distance.

    Args:
        responses: Models by questions, the same questions for each.

    Returns:
        Models by models, 0 (the same habits) to 1 (none in common); NaN where one of the two wrote nothing.
    """
    models, questions = len(responses), len(responses[0])
    marked = [f"\x02{_NUMBER.sub('0', text)}\x03" if text else "" for texts in responses for text in texts]
    if not any(marked):
        return np.full((models, models), np.nan)
    vectorizer = CountVectorizer(analyzer="char", ngram_range=(3, 3), lowercase=False, binary=True)
    there = vectorizer.fit_transform(marked)
    owner = np.repeat(np.arange(models), questions)
    mean = sparse.csr_array((np.full(len(owner), 1 / questions), (owner, np.arange(len(owner)))))
    shares = (mean @ there).toarray()
    shares = shares[:, shares.max(axis=0) >= _HABIT]
    distances: Floats = cosine_distances(shares)
    silent = ~shares.any(axis=1)
    distances[silent] = distances[:, silent] = np.nan
    return distances
