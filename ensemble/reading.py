"""Reading: what each member would write at the places of given texts, and what sets of members make of it.

One pass over a prompt and a text tells what a member would write after each token, so a text is read once
by each member, and then any set of them can be judged without decoding. Left out are places where ``C_i`` of the text
so far does not begin ``C_i`` of the whole text, as in the check of a draft, and in a set those that are not places
of all its members: there, a member would have to read the text again.

A reading has the logits of a member's likeliest tokens and of all with which the text could go on, so the probability
of what the text has next is exact. The union of a set may have other entries, which another member wants: there, the
smallest of the likeliest ones' logits stands for the member's own, which is at most as large.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ensemble.errors import MemberError
from ensemble.methods.unite import union
from ensemble.models.member import Member
from ensemble.runtime.logits import Logits, top_k
from ensemble.score import MAX_LOGITS, ChoiceQuestion, batches, continuations, paths
from ensemble.step.distribution import candidate_logits
from ensemble.vocabulary.joint import NONE, JointVocabulary, MemberTables, build
from ensemble.vocabulary.retokenize import Continuation
from ensemble.vocabulary.token_bytes import Vocabulary

LIKELIEST = 64
"""Tokens of each place whose logits are kept, besides those with which the text could go on."""
_LONGEST = 32
"""Bytes of the longest token with which a text could go on; longer ones are hardly ever written."""
_PLACES = 1024
"""Places to combine at a time."""


@dataclass(frozen=True, slots=True)
class GivenText:
    """A text after a prompt: its bytes, and whether it ends there, so that EOS follows."""

    data: bytes
    ends: bool


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What a member would write at its places of a text.

    Attributes:
        offsets: [places] bytes of the text before each place, ascending.
        following: [places] the candidate with which the text goes on there, in the member's ids, or NONE.
        ids: [places, tokens] the likeliest candidates, then those with which the text could go on; NONE to fill up.
        logits: [places, tokens] their logits, above the largest one: 0 or less.
    """

    offsets: Tensor
    following: Tensor
    ids: Tensor
    logits: Tensor

    @classmethod
    def empty(cls) -> Reading:
        """That of a text without places."""
        none = torch.empty(0).long()
        return cls(none, none, torch.empty(0, LIKELIEST).long(), torch.empty(0, LIKELIEST))

    def packed(self) -> dict[str, str]:
        """The same as texts, for JSON."""
        types = {"offsets": np.int32, "following": np.int32, "ids": np.int32, "logits": np.float32}
        return {
            name: base64.b64encode(getattr(self, name).numpy().astype(kind).tobytes()).decode()
            for name, kind in types.items()
        }

    @classmethod
    def unpacked(cls, packed: Mapping[str, str]) -> Reading:
        """What :meth:`packed` made; a ValueError if it cannot be."""

        def values(name: str, kind: type[np.generic]) -> Tensor:
            return torch.from_numpy(np.frombuffer(base64.b64decode(packed[name]), dtype=kind).copy())

        offsets = values("offsets", np.int32).long()
        shape = (len(offsets), -1) if len(offsets) else (0, LIKELIEST)
        ids, logits = values("ids", np.int32).long(), values("logits", np.float32)
        return cls(offsets, values("following", np.int32).long(), ids.view(shape), logits.view(shape))


_Place = tuple[tuple[int, ...], int, int, list[int]]
"""A member's ids up to a place, the bytes before it, the candidate that follows, and all that could follow."""


def _places(vocabulary: Vocabulary, text: GivenText) -> list[_Place]:
    """The places of a text for a member."""
    known, ids, end = vocabulary.representatives, tuple(vocabulary.continue_ids(text.data)), vocabulary.eos_ids[:1]
    reader, offset = Continuation(vocabulary), 0
    places: list[_Place] = []
    for n, token in enumerate(ids):
        data = vocabulary.token_bytes(token) or b""
        if reader.ids == list(ids[:n]):
            rest = text.data[offset : offset + _LONGEST]
            beginnings = [known[rest[:size]] for size in range(1, len(rest) + 1) if rest[:size] in known]
            following = known.get(data, NONE)
            places.append((ids[:n], offset, following, [*beginnings, following]))
        reader.extend(data)
        offset += len(data)
    # Where a vocabulary cannot write some bytes, its ids are those of another text.
    if offset != len(text.data):
        return []
    return [*places, (ids, offset, end[0], list(end))] if text.ends and end else places


def _within(places: Sequence[_Place], most: int | None, before: int) -> list[_Place]:
    """The places that a context holds after so many tokens of a prompt."""
    return [place for place in places if most is None or before + len(place[0]) <= most]


def read(
    member: Member, prompts: Sequence[list[int]], texts: Sequence[Sequence[GivenText]], batch_size: int
) -> Iterator[tuple[int, list[Reading]]]:
    """Read the texts after each prompt, so many rows at a time; yield a prompt's number and its texts' readings.

    InputError for a member that is behind a server; MemberError for logits that are not numbers.
    """
    runner, vocabulary = member.local.runner(), member.vocabulary
    tables = build([vocabulary]).members[0].to(member.device)
    outlines = [
        [_within(_places(vocabulary, text), member.most_tokens(prompt), len(prompt)) for text in each]
        for prompt, each in zip(prompts, texts, strict=True)
    ]
    questions = [_question(prompt, each) for prompt, each in zip(prompts, outlines, strict=True)]
    for batch in batches(questions, batch_size, max(1, MAX_LOGITS // vocabulary.size)):
        # A text without places needs no pass.
        with_places = [questions[n] for n in batch if questions[n].owners]
        ids, values = torch.empty(0, LIKELIEST).long(), torch.empty(0, LIKELIEST)
        if with_places:
            with torch.inference_mode():
                prompts_read = [each.prompts[0] for each in with_places]
                logits = runner.score(prompts_read, *continuations(0, with_places))
                possible = [own for n in batch for each in outlines[n] for *_, own in each]
                ids, values = _kept(logits, possible, tables)
        if bool(values.isnan().any()):
            raise MemberError("its logits are not numbers (NaN)", of=member.name)
        first = 0
        for n in batch:
            readings = []
            for each in outlines[n]:
                part = slice(first, first + len(each))
                offsets = torch.tensor([offset for _, offset, _, _ in each]).long()
                following = torch.tensor([token for _, _, token, _ in each]).long()
                readings.append(Reading(offsets, following, ids[part], values[part].float()))
                first = part.stop
            yield n, readings


def _question(prompt: list[int], outlines: Sequence[Sequence[_Place]]) -> ChoiceQuestion:
    """A prompt and the places of its texts, as one member reads them."""
    states = [state for each in outlines for state, *_ in each]
    owners = [n for n, each in enumerate(outlines) for _ in each]
    return ChoiceQuestion([prompt], [], owners, [], [], [states], [paths(states)])


def _kept(logits: Tensor, possible: Sequence[Sequence[int]], tables: MemberTables) -> tuple[Tensor, Tensor]:
    """The ids [places, tokens] to keep of some logits [places, V], and their logits, on the host."""
    z = candidate_logits(logits, tables)
    values, ids = top_k(z, LIKELIEST)
    width = max(map(len, possible))
    more = torch.tensor([[*own, *[NONE] * (width - len(own))] for own in possible], device=z.device)
    more_values = z.gather(1, more.clamp(min=0)).masked_fill(more == NONE, -torch.inf)
    all_values = torch.cat([values, more_values], dim=1) - values[:, :1]
    return torch.cat([ids, more], dim=1).cpu(), all_values.cpu()


class _ReadLogits:
    """Readings of one member as logits of a step, for :func:`ensemble.methods.unite.union`."""

    def __init__(self, ids: Tensor, logits: Tensor) -> None:
        self._ids, self._logits = ids, logits.double()
        self._least = self._logits[:, :LIKELIEST].amin(dim=1, keepdim=True)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest logits, and their ids."""
        return self._logits[:, :k], self._ids[:, :k]

    def known(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The logits [places, n] of ids; all of them count as exact."""
        same = ids[:, :, None] == self._ids[:, None, :]
        values = self._logits.gather(1, same.int().argmax(dim=2)).where(same.any(dim=2), self._least)
        return values, torch.ones_like(ids, dtype=torch.bool)


@dataclass(frozen=True, slots=True, eq=False)
class ReadSteps:
    """The steps of a set at its places of texts.

    Attributes:
        texts: [N] the number of each place's text.
        share: Of the primary's places, those that all members have.
        members: [members, N, U] each member's probabilities on the union; 0 for what the primary cannot write.
        goes_on: [N, U] the entries with which the primary writes what the text has next.
    """

    texts: Tensor
    share: float
    members: Tensor
    goes_on: Tensor

    def part(self, wanted: NDArray[np.bool_]) -> ReadSteps:
        """Some of the steps [N]."""
        rows = torch.from_numpy(wanted)
        return replace(self, texts=self.texts[rows], members=self.members[:, rows], goes_on=self.goes_on[rows])

    def right(self, weights: Sequence[float]) -> Tensor:
        """[N] whether a greedy step with these weights writes what the text has next."""
        mean = (self.members * torch.tensor(weights, dtype=torch.float64).view(-1, 1, 1)).sum(dim=0)
        return self.goes_on.gather(1, mean.argmax(dim=1, keepdim=True))[:, 0]


def steps_of(readings: Sequence[Sequence[Reading]], joint: JointVocabulary, k: int) -> ReadSteps:
    """The steps of a set, its primary first, by each member's readings of the same texts."""
    texts, following = [torch.empty(0).long()], [torch.empty(0).long()]
    ids: list[list[Tensor]] = [[torch.empty(0, 1).long()] for _ in readings]
    logits: list[list[Tensor]] = [[torch.empty(0, 1)] for _ in readings]
    for n, each in enumerate(zip(*readings, strict=True)):
        # A token that is no candidate is never written.
        places = each[0].offsets[each[0].following != NONE]
        for reading in each:
            places = places[torch.isin(places, reading.offsets)]
        for member, reading in enumerate(each):
            rows = torch.searchsorted(reading.offsets, places)
            ids[member].append(reading.ids[rows])
            logits[member].append(reading.logits[rows])
            if member == 0:
                following.append(reading.following[rows])
        texts.append(torch.full_like(places, n))
    all_ids, all_logits = [_joined(each, NONE) for each in ids], [_joined(each, -torch.inf) for each in logits]
    numbers, wanted = torch.cat(texts), torch.cat(following)
    shares = torch.full((len(readings),), 1 / len(readings), dtype=torch.float64)
    members = [torch.empty(0, len(readings), 1).double()]
    goes_on = [torch.empty(0, 1, dtype=torch.bool)]
    for first in range(0, len(numbers), _PLACES):
        some = slice(first, first + _PLACES)
        # The union reads no more of logits than what these tell.
        known = [_ReadLogits(own[some], values[some]) for own, values in zip(all_ids, all_logits, strict=True)]
        entries = joint.entries[0][wanted[some]][:, None]
        step = union(cast("Sequence[Logits]", known), joint, k, shares, entries)
        members.append(step.members.masked_fill(step.ids == NONE, 0).transpose(0, 1))
        # Other entries may begin with the same id, and the primary writes this one for them, too.
        goes_on.append(step.present & (step.ids == wanted[some][:, None]))
    share = len(numbers) / max(sum(len(reading.offsets) for reading in readings[0]), 1)
    return ReadSteps(numbers, share, _joined(members, 0).transpose(0, 1), _joined(goes_on, 0))


def _joined(parts: Sequence[Tensor], empty: float) -> Tensor:
    """Tensors that differ in the last dimension below each other, filled up on its right side."""
    width = max(part.shape[-1] for part in parts)
    return torch.cat([pad(part, (0, width - part.shape[-1]), value=empty) for part in parts])


def set_vocabulary(joint: JointVocabulary, numbers: Sequence[int]) -> JointVocabulary:
    """The joint vocabulary of some of its members."""
    return JointVocabulary(joint.size, tuple(joint.members[n] for n in numbers))
