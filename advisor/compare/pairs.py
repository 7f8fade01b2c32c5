"""How alike two candidates are: a row of measures for each pair, of which the rules use two.

Accuracy and length are what section 4.1 decides by; BLEU is what it names beside length for a difference in response
style. Of the others some look at what an ensemble lives on, models that err on different questions; some at what a
union of next tokens lives on, models that cut text alike and foresee each other's. No rule uses those: section 3.2
found that vocabularies matter little. The measures themselves are in :mod:`advisor.compare`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

import numpy as np

from advisor.choose.rules import gap, length_ratio
from advisor.compare.correctness import kappas, same_wrong_answers
from advisor.compare.prediction import Reading, agreements
from advisor.compare.text_similarity import pairwise_bleu, style_distances
from advisor.compare.tokenizer_overlap import Tokenization, vocabulary_overlaps, words_alike
from advisor.records import Profile, Standing
from advisor.statistics import Floats, check_same_questions, is_binary, scores

HOW_TO_READ: dict[str, str] = {
    "gap": "Points of accuracy between the two; the paper's rule wants at most 10 to the primary.",
    "length_ratio": "The longer mean response over the shorter; the paper's rule wants at most 2 to the primary.",
    "bleu": "How much wording the two share, from 0 (nothing) to 100 (the same responses): low means different styles "
    "of answering, which an ensemble that works token by token mixes badly.",
    "style": "Distance of the two's habits of writing, from 0 (the same) to 1 (none in common), whatever they say and "
    "whether it is right: models far apart pull a common text to and fro.",
    "both_wrong_same": "Share of the questions on which both give the same wrong answer: an ensemble of the two seldom "
    "mends those, so lower is better.",
    "kappa": "Agreement in which questions they get right: 1 is always the same ones, 0 as if by chance, below 0 they "
    "complement each other, so lower leaves an ensemble more to gain.",
    "oracle": "Accuracy if the better of the two answers were always taken: what it has above the better model alone "
    "is all that choosing between them could gain.",
    "next_token": "How often one would have written, token by token, what the other wrote, from 0 to 1: the rest is "
    "where they pull in different directions, for better or for worse.",
    "words_alike": "Share of the questions' words that both tokenizers cut into the same pieces: where they cut "
    "otherwise, the members want parts of different tokens, so higher is easier to combine.",
    "vocabulary_overlap": "Share of all their tokens that both have: an entry that only one has gets little of the "
    "other's vote, so higher is easier to combine, though the paper found that it matters little.",
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
        style: Distance of their habits of writing, 0 to 1; None where one of them wrote nothing.
        both_wrong_same: Share of the questions on which both are wrong with the same extracted answer, 0 to 1; None
            where scores are other than 0 and 1, since "wrong" is a matter of degree there.
        kappa: Cohen's kappa of their correctness, -1 to 1; None for such scores, and where both are right on every
            question or both on none, since chance alone agrees fully there.
        oracle: Mean of the better score of the two, in points, 0 to 100.
        next_token: Share of the positions in the other's responses at which one's greedy next token is what the other
            wrote, mean of both directions, 0 to 1; None where they did not read each other.
        words_alike: Share of the words of the questions that both tokenizers cut into the same pieces, 0 to 1.
        vocabulary_overlap: Share of all tokens of the two, as byte strings, that both have, 0 to 1.
    """

    a: str
    b: str
    gap: float
    length_ratio: float | None
    bleu: float | None = None
    style: float | None = None
    both_wrong_same: float | None = None
    kappa: float | None = None
    oracle: float | None = None
    next_token: float | None = None
    words_alike: float | None = None
    vocabulary_overlap: float | None = None

    def as_dict(self) -> dict[str, str | float | None]:
        """The pair as JSON has it: an infinite length ratio is null there, like one that is not known."""
        values: dict[str, str | float | None] = asdict(self)
        if self.length_ratio is not None and math.isinf(self.length_ratio):
            values["length_ratio"] = None
        return values


def all_pairs(
    profiles: Sequence[Profile],
    tokenizations: Mapping[str, Tokenization] = MappingProxyType({}),
    readings: Mapping[tuple[str, str], Reading] = MappingProxyType({}),
) -> tuple[Pair, ...]:
    """Measure every pair of candidates.

    Args:
        profiles: The candidates' answers to the same questions, at least one, in the order that the pairs shall have.
        tokenizations: Of the candidates whose tokenizers could be looked at, all of the same words, by name.
        readings: How well one candidate foresaw another's responses, by reader and writer.

    Raises:
        UniteError: Two candidates were asked different questions; names both.
    """
    for profile in profiles[1:]:
        check_same_questions(profiles[0], profile)
    names = [profile.model for profile in profiles]
    standings = [Standing(profile.model, profile.accuracy, profile.mean_length) for profile in profiles]
    tables = {
        **_of_responses(profiles),
        **_of_tokenizers(names, tokenizations),
        "next_token": agreements(names, readings),
    }
    return tuple(
        Pair(
            a=a.model,
            b=b.model,
            gap=gap(a.accuracy, b.accuracy),
            length_ratio=length_ratio(a.mean_length, b.mean_length),
            **{name: None if math.isnan(table[i, j]) else float(table[i, j]) for name, table in tables.items()},
        )
        for (i, a), (j, b) in itertools.combinations(enumerate(standings), 2)
    )


def pairs_of_standings(standings: Sequence[Standing]) -> tuple[Pair, ...]:
    """What published numbers tell of every pair: gap and length ratio, and nothing that needs the responses."""
    return tuple(
        Pair(a.model, b.model, gap(a.accuracy, b.accuracy), length_ratio(a.mean_length, b.mean_length))
        for a, b in itertools.combinations(standings, 2)
    )


def _of_responses(profiles: Sequence[Profile]) -> dict[str, Floats]:
    """The measures of what was answered, models by models; NaN where one is not known or not defined."""
    texts = [[answer.text for answer in profile.answers] for profile in profiles]
    graded = np.stack([scores(profile) for profile in profiles])
    bleu = pairwise_bleu(texts)
    # "Wrong" is a matter of degree where scores are other than 0 and 1.
    degrees = np.array([not is_binary(values) for values in graded])
    same_wrong, kappa = same_wrong_answers(profiles), kappas(graded)
    for table in (same_wrong, kappa):
        table[degrees] = table[:, degrees] = np.nan
    return {
        "bleu": (bleu + bleu.T) / 2,
        "style": style_distances(texts),
        "both_wrong_same": same_wrong,
        "kappa": kappa,
        "oracle": np.stack([100 * np.maximum(own, graded).mean(axis=1) for own in graded]),
    }


def _of_tokenizers(names: Sequence[str], tokenizations: Mapping[str, Tokenization]) -> dict[str, Floats]:
    """The measures of tokenizers, models by models; NaN where one is not known."""
    known = [n for n, name in enumerate(names) if name in tokenizations]
    found = [tokenizations[names[n]] for n in known]
    measures = {"words_alike": words_alike, "vocabulary_overlap": vocabulary_overlaps}
    tables = {name: np.full((len(names), len(names)), np.nan) for name in measures}
    if found:
        for name, measure in measures.items():
            tables[name][np.ix_(known, known)] = measure(found)
    return tables
