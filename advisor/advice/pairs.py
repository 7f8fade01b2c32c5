"""How alike two candidates are: the measures of each pair.

The rules use two measures: accuracy and length (section 4.1). BLEU is the paper's other measure of response style. Some
of the others tell how much an ensemble can gain: models that err on different questions. Section 3.2 found that
vocabularies matter little, so their common tokens are not counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from advisor.records import Limits, Profile, Standing, compared_lengths, gap, length_ratio
from advisor.run.result import Pair
from advisor.statistics import Floats, check_same_questions, is_binary, scores

MOST_COMPARED = 100
"""Candidates whose pairs are measured, the most accurate: of 1,000 they would fill hundreds of megabytes."""


def all_pairs(profiles: Sequence[Profile], limits: Limits = Limits()) -> tuple[Pair, ...]:
    """Measure every pair of the first 100 candidates, the most accurate first."""
    check_same_questions(*profiles)
    profiles = profiles[:MOST_COMPARED]
    standings = [profile.standing for profile in profiles]
    tables = _of_responses(profiles)
    return tuple(
        _pair(
            a,
            b,
            limits,
            **{name: None if math.isnan(table[i, j]) else float(table[i, j]) for name, table in tables.items()},
        )
        for (i, a), (j, b) in itertools.combinations(enumerate(standings), 2)
    )


def pairs_of_standings(standings: Sequence[Standing]) -> tuple[Pair, ...]:
    """The gap and the length ratio of every pair of the first 100, the measures that need no responses."""
    return tuple(_pair(a, b, Limits()) for a, b in itertools.combinations(standings[:MOST_COMPARED], 2))


def _pair(a: Standing, b: Standing, limits: Limits, **measures: Any) -> Pair:
    own, other, unit = compared_lengths(a, b, limits)
    ratio = length_ratio(own, other)
    return Pair(
        a=a.model,
        b=b.model,
        gap=gap(a.accuracy, b.accuracy),
        length_ratio=ratio,
        length_unit=unit,
        **measures,
    )


def _of_responses(profiles: Sequence[Profile]) -> dict[str, Floats]:
    """The measures of responses, models by models; NaN if one is not defined."""
    texts = [[answer.text or "" for answer in profile.answers] for profile in profiles]
    graded = np.stack([scores(profile) for profile in profiles])
    # Some logs have no responses: without texts nothing is known about the models' wording.
    empty = np.array([not any(own) for own in texts])
    bleu = np.full((len(texts),) * 2, np.nan) if empty.all() else pairwise_bleu(texts)
    # Graded scores have no clear "wrong".
    is_graded = np.array([not is_binary(values) for values in graded])
    same_wrong, kappa = same_wrong_answers(profiles), kappas(graded)
    for table in (same_wrong, kappa):
        table[is_graded] = table[:, is_graded] = np.nan
    return {
        # BLEU is not symmetric, and no model is the reference here.
        "bleu": (bleu + bleu.T) / 2,
        "both_wrong_same": same_wrong,
        "kappa": kappa,
        "oracle": np.stack([100 * np.maximum(own, graded).mean(axis=1) for own in graded]),
    }


_MOST_MODELS = 30
_MOST_WORDS = 2_000_000
"""Words of hypotheses that are compared with references, in all; a few seconds."""


def kappas(graded: Floats) -> Floats:
    """Cohen's kappa of the correctness, 0 or 1, of all pairs; NaN if both are right on every question or on none."""
    questions = graded.shape[1]
    # Counts instead of shares: whole numbers are exact, so that comparing finds a chance agreement of 1.
    right = graded.sum(axis=1)
    wrong = questions - right
    agreed = questions * (graded @ graded.T + (1 - graded) @ (1 - graded).T)
    by_chance = np.outer(right, right) + np.outer(wrong, wrong)
    room = questions**2 - by_chance
    kappa: Floats = np.divide(agreed - by_chance, room, out=np.full(agreed.shape, np.nan), where=room > 0)
    return kappa


def same_wrong_answers(profiles: Sequence[Profile]) -> Floats:
    """The share of questions on which two give the same wrong answer. Missing answers are not equal."""
    # Numbers instead of texts: numpy compares whole arrays of them, and a pool has thousands of pairs.
    numbers: dict[str, int] = {}
    wrong = np.array(
        [
            [
                -1
                if answer.score == 1 or answer.extracted is None
                else numbers.setdefault(answer.extracted, len(numbers))
                for answer in profile.answers
            ]
            for profile in profiles
        ]
    )
    return np.stack([((wrong == own) & (own >= 0)).mean(axis=1) for own in wrong])


def pairwise_bleu(responses: Sequence[Sequence[str]]) -> Floats:
    """Corpus BLEU of every model's responses against every other's as the only reference, by sacrebleu.

    sacrebleu extracts the n-grams of the hypotheses again for each reference, so the time grows with the square of the
    number of models. Many long responses are compared on a part of the questions, evenly spaced. The table has
    hypotheses by references, and NaN for models after the first 30; it is not symmetric, because precision and brevity
    belong to the hypothesis.
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
