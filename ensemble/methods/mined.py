"""MinED: every other member's token is mapped to the primary's token with the smallest edit distance, then averaged.

The alignment is FuseLLM's (Wan et al., ICLR 2024). The paper on DeePEn uses it as a baseline for ensembling (section
4.1 and appendix B: "get" is mapped to "gets") and shows its weakness: "Mass" may be mapped to "ass". Tokens that both
vocabularies have are mapped to themselves, and EOS to EOS.

Choices where these papers are silent:

- The distance is Levenshtein's over bytes, because tokens are byte strings here; a leading space counts as a byte.
- Each of the other member's tokens is mapped to one token, independent of the context. Among tokens at the same
  distance the lowest id is taken. If the primary has no EOS, the other member's EOS does not count.
- The mean is weighted; weights are equal unless given.

The mapping is saved in the user's cache folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from ensemble.methods import Method
from ensemble.methods._mapping import TokenMapping, average_mapped, common_and_foreign, load_or_make
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import NONE

METHOD = Method(
    level="token",
    summary="the mean on the primary's vocabulary; other tokens are mapped by edit distance (MinED)",
    when="comparisons only: it damages words where vocabularies differ",
)
_CELLS = 2**22
"""Distances that are in memory at a time."""


def make(setup: Setup, options: None) -> TokenRule:  # noqa: ARG001
    """Make the rule."""
    first = setup.members[0].vocabulary
    mappings = []
    for n, member in enumerate(setup.members[1:], start=1):
        # Fingerprints and not names, because a tokenizer can change under its name.
        key = f"mined {first.fingerprint} {member.vocabulary.fingerprint}"
        mappings.append(load_or_make(key, partial(_by_spelling, setup, n)))
    return TokenRule(average_mapped(setup, mappings))


def _by_spelling(setup: Setup, member: int) -> TokenMapping:
    """The mapping of a member's tokens to the primary's tokens with the smallest edit distance."""
    primary, other = setup.members[0].vocabulary, setup.members[member].vocabulary
    common, ids = common_and_foreign(setup.joint, member)
    foreign = [(index, data) for index in ids.tolist() if (data := other.token_bytes(index)) is not None]
    targets = nearest([data for _, data in foreign], primary.representatives)
    pairs = torch.tensor([(index, to) for (index, _), to in zip(foreign, targets, strict=True)], dtype=torch.long)
    source, target = torch.cat([common.cpu(), pairs.view(-1, 2).T], dim=1)
    return TokenMapping(source, target, torch.ones(len(source)))


def nearest(wanted: Sequence[bytes], among: dict[bytes, int]) -> list[int]:
    """For each byte string the id of the nearest choice by edit distance, the lowest id of several."""
    choices = sorted(among, key=len)
    lengths = np.array([len(data) for data in choices])
    ids = np.array([among[data] for data in choices])
    found = np.full(len(wanted), NONE)
    waiting = sorted(range(len(wanted)), key=lambda n: len(wanted[n]))
    # The distance is at least the difference in length. So choices within `bound` of the length are enough if one of
    # them is at most `bound` away; the bound is doubled for the byte strings that are left. The result is exact.
    bound = 2
    while waiting:
        # Byte strings of one length have the same choices, so that one call compares them all.
        for length in sorted({len(wanted[n]) for n in waiting}):
            group = [n for n in waiting if len(wanted[n]) == length]
            low, high = np.searchsorted(lengths, [length - bound, length + bound + 1])
            rows = max(1, _CELLS // max(1, high - low))
            for start in range(0, len(group), rows):
                some = group[start : start + rows]
                found[some] = _within([wanted[n] for n in some], choices[low:high], ids[low:high], bound)
        waiting = [n for n in waiting if found[n] == NONE]
        bound *= 2
    return [int(index) for index in found]


def _within(
    wanted: Sequence[bytes], choices: Sequence[bytes], ids: npt.NDArray[np.int64], bound: int
) -> npt.NDArray[np.int64]:
    """The id of the nearest choice, the lowest of several; NONE if all are farther than the bound."""
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cdist

    if not len(choices):
        return np.full(len(wanted), NONE)
    distances = cdist(wanted, choices, scorer=Levenshtein.distance, score_cutoff=bound, dtype=np.uint32, workers=-1)
    least = distances.min(axis=1, keepdims=True)
    best = np.where(distances == least, ids, np.iinfo(np.int64).max).min(axis=1)
    return np.where(least[:, 0] <= bound, best, NONE)
