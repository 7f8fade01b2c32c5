"""How alike two candidates are: the measures of each pair, and the model runs that some of them need.

The rules use two measures: accuracy and length (section 4.1). BLEU is the paper's other measure of response style. Some
of the others tell how much an ensemble can gain: models that err on different questions. The rest tell how well a union
of next tokens works: models that split text alike and predict each other's text. No rule uses those, because section
3.2 found that vocabularies matter little. The other files of :mod:`advisor.compare` compute the measures.

Tokenizers and next-token predictions are stored in the response cache. A tokenizer is read without its model.
Predictions need each model once more, because the responses exist only after all models have been profiled. So only the
candidates that the rules take or nearly take are compared in this way.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.compare.correctness import kappas, same_wrong_answers
from advisor.compare.prediction import TokenAgreement, WrittenText, agreements, read_texts
from advisor.compare.text_similarity import pairwise_bleu, style_distances
from advisor.compare.tokenizer_overlap import (
    Tokenization,
    common_words,
    tokenization_of,
    vocabulary_overlaps,
    words_alike,
)
from advisor.config import RunConfig
from advisor.profile.generate import free_memory
from advisor.profile.profiler import Profiler
from advisor.profile.turns import continued, responses
from advisor.progress import Progress
from advisor.records import LengthUnit, Limits, Profile, Standing, compared_lengths, gap, length_ratio
from advisor.response_cache import ResponseCache, key_of
from advisor.statistics import Floats, check_same_questions, is_binary, scores
from ensemble.errors import UniteError, first_line
from ensemble.models.check import check
from ensemble.models.spec import Checkpoint

if TYPE_CHECKING:
    from ensemble.vocabulary.token_bytes import Vocabulary

MOST_COMPARED = 100
"""Candidates whose pairs are measured, the most accurate: of 1,000 they would fill hundreds of megabytes."""
READERS = 8
"""The most candidates that read each other's responses."""
QUESTIONS = 20
"""The most questions whose responses they read."""
# Files that do not change the tokenizer. Values of the configuration that do are read from it separately.
_NO_TOKENIZER = re.compile(r".*\.safetensors(\.index\.json)?|(generation_)?config\.json")
_LOG = logging.getLogger(__name__)
_FORM = 1
"""Part of every key. Increase it if a change of the code makes the same models give other values."""

HOW_TO_READ: dict[str, str] = {
    "gap": "Points of accuracy between the two; the paper's rule wants at most 10 to the primary.",
    "length_ratio": "The longer mean response over the shorter, in characters, or in tokens if one of the two "
    "thinks; the paper's rule wants at most 2 to the primary.",
    "bleu": "How much wording the two share, from 0 (nothing) to 100 (the same responses): low means different styles "
    "of answering, which a token-level ensemble mixes badly.",
    "style": "Distance of the two models' habits of writing, from 0 (the same) to 1 (none in common), independent of "
    "content and correctness: a text that distant models write together changes its style back and forth.",
    "both_wrong_same": "Share of the questions on which both give the same wrong answer: an ensemble of the two seldom "
    "corrects those, so lower is better.",
    "kappa": "Agreement in which questions they get right: 1 is always the same ones, 0 as if by chance, below 0 they "
    "complement each other, so lower leaves an ensemble more to gain.",
    "oracle": "Accuracy if the better of the two answers were always taken: what it has above the better model alone "
    "is the most that choosing between them can gain.",
    "next_token": "How often one would write the next token that the other wrote, from 0 to 1: at the other positions "
    "the two want different tokens, for better or for worse.",
    "words_alike": "Share of the questions' words that both tokenizers split into the same tokens: for other words the "
    "members want different tokens, so higher is easier to combine.",
    "vocabulary_overlap": "Share of all their tokens that both have: a token that only one has gets little "
    "probability from the other, so higher is easier to combine, though the paper found that it matters little.",
}
"""One sentence on each measure, for readers who do not know the paper."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two candidates on the same questions. A measure is None if it is not known or not defined.

    Attributes:
        a: The first candidate.
        b: The second candidate.
        gap: Points of accuracy between them, 0 to 100 (section 4.1).
        length_ratio: Longer mean length over shorter, at least 1, infinite if one is 0 (section 4.1).
        length_unit: The unit of these lengths; see :func:`advisor.records.compared_lengths`.
        bleu: Corpus BLEU of their responses, 0 to 100 (section 4.1). BLEU takes one side as the reference and is not
            symmetric, so this is the mean of both directions.
        style: Distance of their habits of writing, 0 to 1; None if all responses of one are empty.
        both_wrong_same: Share of the questions on which both are wrong with the same extracted answer, 0 to 1; None
            for graded scores, which have no clear "wrong".
        kappa: Cohen's kappa of their correctness, -1 to 1; None for graded scores, and if both are right on every
            question or both on none, because then chance alone agrees fully.
        oracle: Mean of the better score of the two, in points, 0 to 100.
        next_token: Share of the positions in the other's responses at which one's greedy next token is the one that the
            other wrote, mean of both directions, 0 to 1; None if they did not read each other's responses.
        words_alike: Share of the words of the questions that both tokenizers split into the same tokens, 0 to 1.
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
    length_unit: LengthUnit = "characters"

    def as_dict(self) -> dict[str, str | float | None]:
        """The pair for JSON, where an infinite length ratio is null, like an unknown one."""
        values: dict[str, str | float | None] = asdict(self)
        if self.length_ratio is not None and math.isinf(self.length_ratio):
            values["length_ratio"] = None
        return values


def all_pairs(
    profiles: Sequence[Profile],
    tokenizations: Mapping[str, Tokenization] = MappingProxyType({}),
    token_agreements: Mapping[tuple[str, str], TokenAgreement] = MappingProxyType({}),
    limits: Limits = Limits(),
) -> tuple[Pair, ...]:
    """Measure every pair of the first 100 candidates.

    Args:
        profiles: The candidates' answers to the same questions, at least one, in the order of the pairs: the most
            accurate first.
        tokenizations: The tokenizations of the same words, by name; candidates may be missing.
        token_agreements: How well one candidate predicts another's responses, by reader and writer.
        limits: Whether lengths are those of the answers.

    Raises:
        UniteError: Two candidates answered different questions; names both.
    """
    check_same_questions(*profiles)
    profiles = profiles[:MOST_COMPARED]
    names = [profile.model for profile in profiles]
    standings = [profile.standing for profile in profiles]
    tables = {
        **_of_responses(profiles),
        **_of_tokenizers(names, tokenizations),
        "next_token": agreements(names, token_agreements),
    }
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
    return Pair(a.model, b.model, gap(a.accuracy, b.accuracy), ratio, length_unit=unit, **measures)


def _of_responses(profiles: Sequence[Profile]) -> dict[str, Floats]:
    """The measures of responses, models by models; NaN if one is not defined."""
    texts = [[answer.text or "" for answer in profile.answers] for profile in profiles]
    graded = np.stack([scores(profile) for profile in profiles])
    # Some logs have no responses: without texts nothing is known about the models' wording.
    empty = np.array([not any(own) for own in texts])
    bleu, style = (
        (pairwise_bleu(texts), style_distances(texts)) if not empty.all() else (np.full((len(texts),) * 2, np.nan),) * 2
    )
    # Graded scores have no clear "wrong".
    is_graded = np.array([not is_binary(values) for values in graded])
    same_wrong, kappa = same_wrong_answers(profiles), kappas(graded)
    for table in (same_wrong, kappa):
        table[is_graded] = table[:, is_graded] = np.nan
    return {
        # BLEU is not symmetric, and no model is the reference here.
        "bleu": (bleu + bleu.T) / 2,
        "style": style,
        "both_wrong_same": same_wrong,
        "kappa": kappa,
        "oracle": np.stack([100 * np.maximum(own, graded).mean(axis=1) for own in graded]),
    }


def _of_tokenizers(names: Sequence[str], tokenizations: Mapping[str, Tokenization]) -> dict[str, Floats]:
    """The measures of tokenizers, models by models; NaN if one is not known."""
    known = [n for n, name in enumerate(names) if name in tokenizations]
    present = [tokenizations[names[n]] for n in known]
    measures = {"words_alike": words_alike, "vocabulary_overlap": vocabulary_overlaps}
    tables = {name: np.full((len(names), len(names)), np.nan) for name in measures}
    if present:
        for name, measure in measures.items():
            tables[name][np.ix_(known, known)] = measure(present)
    return tables


class ModelMeasurer:
    """Runs the models and tokenizers of a run for the measures of its pairs.

    Args:
        config: The run.
        profiler: Loads the models.
        cache: The response cache.
        progress: Shows progress and messages.
    """

    def __init__(self, config: RunConfig, profiler: Profiler, cache: ResponseCache, progress: Progress) -> None:
        self._config, self._profiler, self._cache, self._progress = config, profiler, cache, progress

    def tokenizations(self, names: Sequence[str]) -> dict[str, Tokenization]:
        """Tokenize the most frequent words of the dev questions with each candidate's tokenizer.

        The words come from the task, in its language: they are what the members read.

        Args:
            names: Candidates that were profiled.

        Returns:
            By name, without candidates whose tokenizer is not known here, and without those whose tokenizer fails, with
            a message.
        """
        words = common_words(example.prompt for example in self._config.dev.examples)
        tokenizations: dict[str, Tokenization] = {}
        by_key: dict[str, Tokenization] = {}
        for name in names:
            if not self._profiler.decodes(name):
                continue  # only its server has the tokenizer
            try:
                if self._profiler.is_remote(name):
                    # Loaded already, to encode the prompts of its profile.
                    (member,) = self._profiler.load([name]).members
                    tokenizations[name] = tokenization_of(member.vocabulary, words)
                    continue
                checkpoint = self._profiler.model(name).weights
                config = check(checkpoint)
                rows = config.get_text_config().vocab_size
                # transformers takes some tokenizers' parts from the model's type, whatever their files say.
                what = {**self._tokenizer_key(name), "type": config.model_type, "rows": rows, "words": words}
                key = key_of({**what, "tokenization": _FORM})
                # Fine-tunes of one model have the same key: a pool of 100 has few tokenizers to read.
                if key not in by_key:
                    by_key[key] = self._tokenization(key, checkpoint, rows, words)
            except Exception as error:
                if type(error) is UniteError:  # of the cache
                    raise
                self._leave_out(name, "its tokenizer cannot be compared with the others'", error)
            else:
                tokenizations[name] = by_key[key]
        return tokenizations

    def _tokenization(self, key: str, checkpoint: Checkpoint, rows: int, words: Sequence[str]) -> Tokenization:
        try:
            return Tokenization.from_dict(self._cache.value(key))
        except (AttributeError, KeyError, TypeError, ValueError):
            pass  # it is not stored, or damaged
        tokenization = tokenization_of(_vocabulary(checkpoint, rows), words)
        self._cache.keep(key, tokenization.as_dict())
        return tokenization

    def _tokenizer_key(self, name: str) -> dict[str, Any]:
        """What determines a candidate's tokenizer. Fine-tunes of one model share it, so it is read once."""
        key = self._profiler.identities[name].key()
        files = {file: digest for file, digest in key["files"].items() if not _NO_TOKENIZER.fullmatch(file)}
        return {"hub_id": key["hub_id"], "revision": key["revision"], "files": files}

    def token_agreements(
        self, names: Sequence[str], profiles: Mapping[str, Profile]
    ) -> dict[tuple[str, str], TokenAgreement]:
        """Count how often each candidate would write the others' next tokens, on a seeded sample of the dev questions.

        Each reader makes one pass over a prompt for each question, and one over a response for each question and each
        other candidate (at most 140): a small part of the cost of its profile.

        Args:
            names: The candidates that read each other's responses; fewer than two read nothing.
            profiles: Their answers to the dev questions, by name.

        Returns:
            By reader and writer; without the readers that failed, with a message.
        """
        task = self._config.dev
        # In a choice task the likelihoods decide, and no model writes a response.
        if len(names) < 2 or task.metric == "choice":
            return {}
        count = len(task.examples)
        sample = sorted(random.Random(self._config.seed).sample(range(count), min(QUESTIONS, count)))
        counts: dict[tuple[str, str], TokenAgreement] = {}
        for reader in names:
            if not self._profiler.decodes(reader):
                continue  # others read its responses, but its server does not return next tokens of a text
            answered = [n for n in sample if profiles[reader].answers[n].error is None]
            texts = {writer: self._texts(profiles[writer], answered) for writer in names if writer != reader}
            # Question by question, so that a prompt is computed once for all its responses.
            ordered = dict.fromkeys(text for n in answered for by in texts.values() if (text := by.get(n)))
            try:
                with self._progress.stage(f"{reader} on the others' responses", len(ordered)) as advance:
                    read = self._read(reader, list(ordered), advance)
            except Exception as error:  # of transformers, torch, or of code that came with the model
                if type(error) is UniteError:  # of the cache
                    raise
                self._leave_out(reader, "it cannot predict the others' responses", error)
            else:
                for writer, by in texts.items():
                    counts[reader, writer] = sum((read[text] for text in by.values()), TokenAgreement(0, 0))
            free_memory()  # of what it read, before the next reader
        return counts

    def _texts(self, profile: Profile, numbers: Sequence[int]) -> dict[int, WrittenText]:
        """A candidate's responses to some questions, by number, without the empty ones."""
        answers = {n: profile.answers[n] for n in numbers}
        # A later turn is read after the writer's own responses.
        examples = continued(self._config.dev, responses(profile)).examples
        return {
            n: WrittenText(examples[n].model_input, answer.text, cut=answer.finish_reason != "eos")
            for n, answer in answers.items()
            if answer.text
        }

    def _read(
        self, reader: str, texts: Sequence[WrittenText], advance: Callable[[int], None]
    ) -> dict[WrittenText, TokenAgreement]:
        keys = {text: self._text_key(reader, text) for text in texts}
        read = {text: stored for text, key in keys.items() if (stored := _stored(self._cache.value(key))) is not None}
        advance(len(read))
        missing = [text for text in texts if text not in read]
        if missing:
            [member] = self._profiler.load([reader]).members
            for text, agreement in zip(missing, read_texts(member, missing), strict=True):
                read[text] = agreement
                # One by one, so that an interrupted run continues here.
                self._cache.keep(keys[text], [agreement.agreed, agreement.positions])
                advance(1)
        return read

    def _text_key(self, reader: str, text: WrittenText) -> str:
        prompt = text.prompt if isinstance(text.prompt, str) else astuple(text.prompt)
        members = [self._profiler.identities[reader].key()]
        return key_of({"members": members, "reading": _FORM, "prompt": prompt, "text": text.text, "cut": text.cut})

    def _leave_out(self, name: str, reason: str, error: Exception) -> None:
        _LOG.debug("%s is left out", name, exc_info=error)
        self._progress.say(f"{name}: {reason} ({first_line(error)}); the table of pairs leaves it out")


def _vocabulary(checkpoint: Checkpoint, rows: int) -> Vocabulary:
    """A model's tokens, from its tokenizer and the number of rows of its output."""
    from transformers import AutoTokenizer

    from ensemble.vocabulary.token_bytes import Vocabulary

    tokenizer = AutoTokenizer.from_pretrained(checkpoint.location, **checkpoint.options)
    # The generation configuration may name more end tokens; they are special tokens, which count as no text anyway.
    return Vocabulary(tokenizer, (), rows)


def _stored(value: object) -> TokenAgreement | None:
    """A stored agreement; None if it does not exist or cannot be read."""
    if isinstance(value, list) and len(value) == 2 and all(isinstance(number, int) for number in value):
        return TokenAgreement(*value)
    return None
