"""How two candidates word their responses: BLEU for the wording itself, and a distance of styles.

BLEU compares response with response, so it falls both where two models write otherwise and where they say something
else. The distance of styles looks only at habits, what a model writes again and again whatever it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics.pairwise import cosine_distances

from advisor.statistics import Floats

Integers = NDArray[np.int64]
_HABIT = 0.1
"""Share of a model's responses that have an n-gram, from which on it is a habit and not the matter of a question."""
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The n-grams of one order in all responses to one question.

    Attributes:
        rows: The model of each.
        columns: Which n-gram it is, and which of its occurrences in the response, as one number from 0 on.
        width: Above all columns.
    """

    rows: Integers
    columns: Integers
    width: int


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
    lengths = np.zeros(models, dtype=np.int64)
    numbers: dict[str, int] = {}
    found: list[list[Occurrences]] = [[] for _ in range(orders)]
    for question in zip(*responses, strict=True):
        words = [metric.tokenizer(text.rstrip()).split() for text in question]
        sizes = [len(each) for each in words]
        lengths += sizes
        ids = np.array([numbers.setdefault(word, len(numbers)) for each in words for word in each], dtype=np.int64)
        for order, occurrences in enumerate(_occurrences(ids, np.repeat(np.arange(models), sizes), orders)):
            found[order].append(occurrences)
    has = [_matrix(occurrences, models) for occurrences in found]
    matches = np.stack([(each @ each.T).toarray() for each in has])
    totals = np.stack([each.sum(axis=1) for each in has], axis=1)
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


def _occurrences(ids: Integers, owner: Integers, orders: int) -> Iterator[Occurrences]:
    """The n-grams of all responses to one question, order by order.

    Args:
        ids: The responses' words as numbers, one response after the other.
        owner: The model that each is of.
        orders: The longest n.
    """
    models, base, grams = int(owner.max(initial=0)) + 1, int(ids.max(initial=0)) + 1, ids
    for order in range(orders):
        if order:
            grams = np.unique(grams[:-1] * base + ids[order:], return_inverse=True)[1]
        # What crosses the end of a response is no n-gram.
        inside = owner[: len(grams)] == owner[order:]
        cells, counts = np.unique(grams[inside] * models + owner[order:][inside], return_counts=True)
        gram, model = np.divmod(cells, models)
        most = np.zeros(int(gram.max(initial=-1)) + 1, dtype=np.int64)
        np.maximum.at(most, gram, counts)
        nth = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        columns = np.repeat((most.cumsum() - most)[gram], counts) + nth
        yield Occurrences(np.repeat(model, counts), columns, int(most.sum()))


def _matrix(questions: Sequence[Occurrences], models: int) -> sparse.csr_array:
    """Models by (question, n-gram, occurrence): 1 where the response has the n-gram that often."""
    ends = np.cumsum([each.width for each in questions])
    rows = np.concatenate([each.rows for each in questions])
    starts = ends - [each.width for each in questions]
    columns = np.concatenate([each.columns + start for each, start in zip(questions, starts, strict=True)])
    return sparse.csr_array(
        (np.ones(len(rows), dtype=np.int64), (rows, columns)), shape=(models, max(1, int(ends[-1])))
    )


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
