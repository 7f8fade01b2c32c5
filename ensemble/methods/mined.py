"""MinED: every other member's token goes to the primary's token with the smallest edit distance, then plain averaging.

The alignment is FuseLLM's (Wan et al., ICLR 2024), used for ensembling as a baseline of the paper on DeePEn (section
4.1 and appendix B: "get" goes to "gets"), which also shows what is wrong with it: "Mass" may go to "ass". Tokens that
both vocabularies have go to themselves, and EOS to EOS.

Where the papers at hand are silent, this was chosen:

- The distance is Levenshtein's over bytes, since tokens are byte strings here; a leading space counts as any byte.
- All of the other's tokens are mapped, each wholly to one token, whatever the context. Among tokens equally near it is
  the one with the lowest id. Where the primary has no EOS, the other's counts for nothing.
- The mean is weighted; weights are equal unless given.

The mapping is exact: distances are computed (in C++, by rapidfuzz) within lengths that a bound allows, and the bound is
doubled for the tokens that found nothing. It is kept in the user's cache folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from ensemble.methods import Method, NoOptions
from ensemble.methods._mapped import Mapping, average, kept, tokens
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import NONE

METHOD = Method(
    level="token",
    summary="the mean on the primary's vocabulary, other tokens counted for those spelled most like them (MinED)",
    when="to compare with it: it cuts and stretches words where vocabularies differ",
)
_CELLS = 2**22
"""Distances that are held at a time."""


def make(setup: Setup, options: NoOptions) -> TokenRule:  # noqa: ARG001  # the protocol's; it has none
    """MinED for some members."""
    first = setup.members[0].vocabulary
    mappings = []
    for n, member in enumerate(setup.members[1:], start=1):
        key = f"mined {first.fingerprint} {member.vocabulary.fingerprint}"
        mappings.append(kept(key, partial(by_spelling, setup, n)))
    return TokenRule(average(setup, mappings))


def by_spelling(setup: Setup, member: int) -> Mapping:
    """The mapping of a member's tokens to those of the primary that are spelled most like them."""
    primary, other = setup.members[0].vocabulary, setup.members[member].vocabulary
    beside = tokens(setup.joint, member)
    foreign = [(index, data) for index in beside.foreign.tolist() if (data := other.token_bytes(index)) is not None]
    found = nearest([data for _, data in foreign], primary.representatives)
    pairs = torch.tensor([(index, to) for (index, _), to in zip(foreign, found, strict=True)], dtype=torch.long)
    source, target = torch.cat([beside.common.cpu(), pairs.view(-1, 2).T], dim=1)
    return Mapping(source, target, torch.ones(len(source)))


def nearest(wanted: Sequence[bytes], among: dict[bytes, int]) -> list[int]:
    """For each byte string the id of the one that is nearest to it by edit distance, the lowest of several.

    Args:
        wanted: Byte strings.
        among: The ids of those to choose from, one at least.
    """
    choices = sorted(among, key=len)
    lengths = np.array([len(data) for data in choices])
    ids = np.array([among[data] for data in choices])
    found = np.full(len(wanted), NONE)
    waiting = sorted(range(len(wanted)), key=lambda n: len(wanted[n]))
    bound = 2
    while waiting:
        # Of one length, so that all have the same choices: none is nearer than the difference in length.
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
    """The id of the nearest choice, the lowest of several; NONE where none is as near as the bound."""
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cdist

    if not len(choices):
        return np.full(len(wanted), NONE)
    distances = cdist(wanted, choices, scorer=Levenshtein.distance, score_cutoff=bound, dtype=np.uint32, workers=-1)
    least = distances.min(axis=1, keepdims=True)
    best = np.where(distances == least, ids, np.iinfo(np.int64).max).min(axis=1)
    return np.where(least[:, 0] <= bound, best, NONE)
