"""How alike two candidates' responses are: BLEU for their wording, and a distance of their styles.

BLEU compares response with response, so it is low both for another wording and for another content. The distance of
styles compares only habits: the text that a model repeats in its responses to different questions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics.pairwise import cosine_distances

from advisor.statistics import Floats

_MOST_MODELS = 30
_MOST_WORDS = 2_000_000
"""Words of hypotheses that are compared with references, in all; a few seconds."""
# An n-gram in at least this share of a model's responses is a habit; a rarer one belongs to the content of a question.
_HABIT = 0.1
_NUMBER = re.compile(r"[0-9]+")


def pairwise_bleu(responses: Sequence[Sequence[str]]) -> Floats:
    """Corpus BLEU of every model's responses against every other's as the only reference, by sacrebleu.

    sacrebleu extracts the n-grams of the hypotheses again for each reference, so the time grows with the square of the
    number of models. Many long responses are compared on a part of the questions, evenly spaced.

    Args:
        responses: Models by questions, the same questions for each, the best model first.

    Returns:
        Hypotheses by references, 0 to 100; not symmetric, because precision and brevity belong to the hypothesis. NaN
        for models after the first 30.
    """
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
