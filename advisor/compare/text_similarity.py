"""How alike two candidates' responses are: BLEU for their wording, and a distance of their styles.

BLEU compares response with response, so it is low both for another wording and for another content. The distance of
styles compares only habits: the text that a model repeats in its responses to different questions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics.pairwise import cosine_distances

from advisor.statistics import Floats

Integers = NDArray[np.int64]
_Occurrences: TypeAlias = tuple[Integers, Integers, int]
"""The n-grams of one order in all responses to one question: rows, columns and the number of columns."""
# An n-gram in at least this share of a model's responses is a habit; a rarer one belongs to the content of a question.
_HABIT = 0.1
_NUMBER = re.compile(r"[0-9]+")


def pairwise_bleu(responses: Sequence[Sequence[str]]) -> Floats:
    """Corpus BLEU of every model's responses against every other's as the only reference, as sacrebleu computes it.

    sacrebleu extracts the n-grams of the hypotheses again for each reference, which takes minutes for a hundred models.
    But BLEU needs only the number of matching n-grams of a pair, the sum of min(count, count) over the n-grams. That is
    a product of matrices with a column for each (n-gram, occurrence) and a 1 if a model's response has that occurrence.
    So each response is tokenized once, and sacrebleu computes the score from these sums.

    Args:
        responses: Models by questions, the same questions for each.

    Returns:
        Hypotheses by references, 0 to 100; not symmetric, because precision and brevity belong to the hypothesis.
    """
    metric = BLEU(effective_order=True)  # responses may be shorter than four words
    orders, models = metric.max_ngram_order, len(responses)
    lengths = np.zeros(models, dtype=np.int64)
    numbers: dict[str, int] = {}
    by_order: list[list[_Occurrences]] = [[] for _ in range(orders)]
    for question in zip(*responses, strict=True):
        words = [metric.tokenizer(text.rstrip()).split() for text in question]
        sizes = [len(response) for response in words]
        lengths += sizes
        ids = np.array(
            [numbers.setdefault(word, len(numbers)) for response in words for word in response], dtype=np.int64
        )
        for order, occurrences in enumerate(_occurrences(ids, np.repeat(np.arange(models), sizes), orders)):
            by_order[order].append(occurrences)
    has = [_matrix(occurrences, models) for occurrences in by_order]
    matches = np.stack([(matrix @ matrix.T).toarray() for matrix in has])
    totals = np.stack([matrix.sum(axis=1) for matrix in has], axis=1)
    # sacrebleu's own smoothing and brevity penalty: a second formula of BLEU would give other decimals.
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


def _occurrences(ids: Integers, owner: Integers, orders: int) -> Iterator[_Occurrences]:
    """The n-grams of all responses to one question, order by order.

    Args:
        ids: The responses' words as numbers, one response after the other.
        owner: The model of each word.
        orders: The longest n.

    Yields:
        For each n-gram, occurrence and model: the model's row and the column of (n-gram, occurrence), from 0 on; and
        the number of columns.
    """
    models, base, grams = int(owner.max(initial=0)) + 1, int(ids.max(initial=0)) + 1, ids
    for order in range(orders):
        if order:
            grams = np.unique(grams[:-1] * base + ids[order:], return_inverse=True)[1]
        # An n-gram does not continue from one response into the next.
        inside = owner[: len(grams)] == owner[order:]
        cells, counts = np.unique(grams[inside] * models + owner[order:][inside], return_counts=True)
        gram, model = np.divmod(cells, models)
        most = np.zeros(int(gram.max(initial=-1)) + 1, dtype=np.int64)
        np.maximum.at(most, gram, counts)
        nth = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        columns = np.repeat((most.cumsum() - most)[gram], counts) + nth
        yield np.repeat(model, counts), columns, int(most.sum())


def _matrix(questions: Sequence[_Occurrences], models: int) -> sparse.csr_array:
    """Models by (question, n-gram, occurrence): 1 if the response has the n-gram that often."""
    widths = [width for _, _, width in questions]
    ends = np.cumsum(widths)
    rows = np.concatenate([rows for rows, _, _ in questions])
    starts = ends - widths
    columns = np.concatenate([columns + start for (_, columns, _), start in zip(questions, starts, strict=True)])
    return sparse.csr_array(
        (np.ones(len(rows), dtype=np.int64), (rows, columns)), shape=(models, max(1, int(ends[-1])))
    )


def style_distances(responses: Sequence[Sequence[str]]) -> Floats:
    """How far apart the models' habits of writing are: cosine distance of how often they use which character trigrams.

    A model's vector has, for each trigram, the share of its responses that contain it. The content differs from
    question to question, so it is spread over many rare trigrams; text that is in every response gets large shares.
    Trigrams that no model has in a tenth of its responses are left out, every number counts as the same one, and the
    beginning and end of a response count as characters. Rare trigrams get no extra weight (idf), which would bring the
    content back. Responses are not compared one by one: two models that give different answers in the same words would
    then be as far apart as two styles can be. So neither the order of the questions nor the correct answers change the
    distance.

    Args:
        responses: Models by questions, the same questions for each.

    Returns:
        Models by models, 0 (the same habits) to 1 (none in common); NaN if all responses of one of the two are empty.
    """
    models, questions = len(responses), len(responses[0])
    marked = [f"\x02{_NUMBER.sub('0', text)}\x03" if text else "" for texts in responses for text in texts]
    if not any(marked):
        return np.full((models, models), np.nan)
    vectorizer = CountVectorizer(analyzer="char", ngram_range=(3, 3), lowercase=False, binary=True)
    contains = vectorizer.fit_transform(marked)
    owner = np.repeat(np.arange(models), questions)
    mean = sparse.csr_array((np.full(len(owner), 1 / questions), (owner, np.arange(len(owner)))))
    shares = (mean @ contains).toarray()
    # Before the distance: content has far more trigrams than habits, and would decide it together.
    shares = shares[:, shares.max(axis=0) >= _HABIT]
    distances: Floats = cosine_distances(shares)
    silent = ~shares.any(axis=1)
    distances[silent] = distances[:, silent] = np.nan
    return distances
