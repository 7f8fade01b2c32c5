"""How alike two candidates are: the measures of each pair.

The rules use two measures: accuracy and length (section 4.1). BLEU is the paper's other measure of response style. Some
of the others tell how much an ensemble can gain: models that err on different questions. No rule uses the share of
common tokens, because section 3.2 found that vocabularies matter little.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import logging
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from scipy import sparse

from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache, key_of
from advisor.progress import Progress
from advisor.records import Limits, Profile, Standing, compared_lengths, gap, length_ratio
from advisor.run.result import Pair
from advisor.statistics import Floats, check_same_questions, is_binary, scores
from ensemble.errors import UniteError, first_line
from ensemble.models.model_files import check
from ensemble.models.spec import Checkpoint

if TYPE_CHECKING:
    from ensemble.vocabulary.token_bytes import Vocabulary


MOST_COMPARED = 100
"""Candidates whose pairs are measured, the most accurate: of 1,000 they would fill hundreds of megabytes."""
# Files that do not change the tokenizer. Values of the configuration that do are read from it separately.
_NO_TOKENIZER = re.compile(r".*\.safetensors(\.index\.json)?|(generation_)?config\.json")
_LOG = logging.getLogger(__name__)
_FORM = 1
"""Part of every key. Increase it if a change of the code makes the same models give other values."""


def all_pairs(
    profiles: Sequence[Profile],
    vocabularies: Mapping[str, Hashes] = MappingProxyType({}),
    limits: Limits = Limits(),
) -> tuple[Pair, ...]:
    """Measure every pair of the first 100 candidates, the most accurate first; some may have no known vocabulary."""
    check_same_questions(*profiles)
    profiles = profiles[:MOST_COMPARED]
    names = [profile.model for profile in profiles]
    standings = [profile.standing for profile in profiles]
    known = [n for n, name in enumerate(names) if name in vocabularies]
    overlaps = np.full((len(names), len(names)), np.nan)
    if known:
        overlaps[np.ix_(known, known)] = vocabulary_overlaps([vocabularies[names[n]] for n in known])
    tables = {
        **_of_responses(profiles),
        "vocabulary_overlap": overlaps,
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


def vocabularies(
    names: Sequence[str], profiler: Profiler, cache: ResponseCache, progress: Progress
) -> dict[str, Hashes]:
    """The tokens of candidates whose tokenizer is known here and works, by name; no model of this machine is loaded."""
    found: dict[str, Hashes] = {}
    by_key: dict[str, Hashes] = {}
    for name in names:
        spec = profiler.identities[name].spec
        if not spec.can_decode:
            continue  # only its server has the tokenizer
        try:
            if spec.is_remote:
                # Loaded already, to encode the prompts of its profile.
                (member,) = profiler.load([name]).members
                found[name] = hashes_of(member.vocabulary)
                continue
            checkpoint = profiler.model(name).weights
            config = check(checkpoint)
            rows = config.get_text_config().vocab_size
            # transformers takes some tokenizers' parts from the model's type, whatever their files say.
            what = {**_tokenizer_key(name, profiler), "type": config.model_type, "rows": rows}
            key = key_of({**what, "vocabulary": _FORM})
            # Fine-tunes of one model have the same key: a pool of 100 has few tokenizers to read.
            if key not in by_key:
                by_key[key] = _kept(key, checkpoint, rows, cache)
        except Exception as error:
            if type(error) is UniteError:  # of the cache
                raise
            _LOG.debug("%s is left out", name, exc_info=error)
            reason = f"its tokenizer cannot be compared with the others' ({first_line(error)})"
            progress.say(f"{name}: {reason}; the table of pairs leaves it out")
        else:
            found[name] = by_key[key]
    return found


def _kept(key: str, checkpoint: Checkpoint, rows: int, cache: ResponseCache) -> Hashes:
    try:
        return decoded(cache.value(key))
    except (TypeError, ValueError):
        pass  # it is not stored, or damaged
    hashes = hashes_of(_vocabulary(checkpoint, rows))
    cache.keep(key, encoded(hashes))
    return hashes


def _tokenizer_key(name: str, profiler: Profiler) -> dict[str, Any]:
    """What determines a candidate's tokenizer. Fine-tunes of one model share it, so it is read once."""
    key = profiler.identities[name].key()
    files = {file: digest for file, digest in key["files"].items() if not _NO_TOKENIZER.fullmatch(file)}
    return {"hub_id": key["hub_id"], "revision": key["revision"], "files": files}


def _vocabulary(checkpoint: Checkpoint, rows: int) -> Vocabulary:
    """A model's tokens, from its tokenizer and the number of rows of its output."""
    from ensemble.models.model_files import load_tokenizer
    from ensemble.vocabulary.token_bytes import Vocabulary

    # The generation configuration may name more end tokens; they are special tokens, which count as no text anyway.
    return Vocabulary(load_tokenizer(checkpoint), (), rows)


Hashes = NDArray[np.uint64]
"""A tokenizer's tokens as byte strings, by hashes of 64 bits in ascending order: small enough for hundreds of them."""
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


def hashes_of(vocabulary: Vocabulary) -> Hashes:
    """The tokens of a vocabulary."""
    digests = [hashlib.blake2b(data, digest_size=8).digest() for data in vocabulary.representatives]
    return np.unique(np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64))


def vocabulary_overlaps(vocabularies: Sequence[Hashes]) -> Floats:
    """The share of tokens, as byte strings, that two vocabularies have in common: Jaccard's, of all that either has."""
    # Many models share a vocabulary, so each distinct one is compared once.
    distinct = list({tokens.tobytes(): tokens for tokens in vocabularies}.values())
    places = {tokens.tobytes(): place for place, tokens in enumerate(distinct)}
    sizes = np.array([len(tokens) for tokens in distinct])
    columns = np.unique(np.concatenate(distinct), return_inverse=True)[1]
    rows = np.repeat(np.arange(len(sizes)), sizes)
    has = sparse.csr_array((np.ones(len(rows), dtype=np.int64), (rows, columns)))
    shared = (has @ has.T).toarray()
    either = sizes[:, None] + sizes - shared
    overlaps: Floats = np.divide(shared, either, out=np.full(shared.shape, np.nan), where=either > 0)
    own = [places[tokens.tobytes()] for tokens in vocabularies]
    return overlaps[np.ix_(own, own)]


def encoded(hashes: Hashes) -> str:
    """The hashes for JSON, in a fixed order of bytes, since a cache folder may be used by several machines."""
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode()


def decoded(text: str) -> Hashes:
    """The hashes of such a text; a value of another form is a ValueError or a TypeError."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8").astype(np.uint64)
