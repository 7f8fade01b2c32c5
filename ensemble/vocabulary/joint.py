"""The joint vocabulary: an entry for each byte string of any member, and tables between entries and each member's ids.

With the tables, a step of UNITE is table look-ups: ``entry_of`` turns a member's top ids into entries, and ``id_of``
turns the entries of the union into the ids of every other member.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ensemble.common.files import write_whole
from ensemble.vocabulary.token_bytes import Vocabulary

EOS = 0
"""The entry of EOS, the same for every member."""
NONE = -1
"""As an entry: the id is not a candidate. As an id: the vocabulary cannot express the entry."""
_FORMAT = 1
_SAVED = ("entry_of", "id_of", "outside", "eos_ids")
"""The tables that the cache holds; the others are computed from them."""


@dataclass(frozen=True, slots=True)
class MemberTables:
    """One member's side of the joint vocabulary."""

    entry_of: Tensor  # [rows of the model's output] the entry of each candidate id, NONE for other ids
    # [entries] the id that represents each entry: the id with exactly these bytes, or else the first id of their
    # continuation; NONE if the vocabulary cannot express the entry.
    id_of: Tensor
    outside: Tensor  # the ids whose logits are never read: all that are not candidates, except the first EOS id
    eos_ids: Tensor  # EOS has the largest of their logits; the first id represents them
    place_of: Tensor = field(init=False)  # ``id_of`` with 0 for NONE, to index logits with

    def __post_init__(self) -> None:
        # Computed once here, because every step needs it. The data class is frozen.
        object.__setattr__(self, "place_of", self.id_of.clamp(min=0))

    def owned(self) -> Tensor:
        """[entries] those that are its own tokens: of another one ``id_of`` is the first id of a longer spelling."""
        # So the id leads to another entry.
        entries = torch.arange(len(self.id_of), device=self.id_of.device)
        return (self.id_of != NONE) & (self.entry_of[self.place_of] == entries)

    def to(self, device: torch.device) -> MemberTables:
        """The same tables on a device."""
        return MemberTables(*(getattr(self, name).to(device) for name in _SAVED))


@dataclass(frozen=True, slots=True)
class JointVocabulary:
    """The tables of all members, the primary's first."""

    size: int  # the number of entries, EOS included
    members: tuple[MemberTables, ...]
    # [members + 1, entries + 1] each member's ``place_of``, and last the primary's ``id_of``. So one look-up gives them
    # all. The last column is for what is no entry.
    places: Tensor = field(init=False)
    entries: tuple[Tensor, ...] = field(init=False)  # each member's ``entry_of``, with the entry of EOS for all its ids
    # [members, entries + 1] is added to the logit found there: minus infinity for NONE, else 0.
    penalties: Tensor = field(init=False)

    def __post_init__(self) -> None:
        places = torch.stack([member.id_of for member in (*self.members, self.members[0])])
        places = torch.cat([places, torch.full_like(places[:, :1], NONE)], dim=1)
        missing = places[:-1] == NONE
        places[:-1].masked_fill_(missing, 0)
        penalties = torch.zeros(missing.shape, device=missing.device).masked_fill_(missing, -torch.inf)
        own = tuple(member.entry_of.index_fill(0, member.eos_ids, EOS) for member in self.members)
        object.__setattr__(self, "places", places)
        object.__setattr__(self, "entries", own)
        object.__setattr__(self, "penalties", penalties)

    def to(self, device: torch.device) -> JointVocabulary:
        """The same tables on a device."""
        return JointVocabulary(self.size, tuple(member.to(device) for member in self.members))


class Candidates:
    """The candidates among log-probabilities by id: each byte string has one id, and EOS has one."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_ids = vocabulary.eos_ids
        self.size = vocabulary.size
        self._vocabulary = vocabulary
        self._plain = set(vocabulary.representatives.values())
        # All ids of EOS are one candidate, its first id; other ids that are missing here are no candidates.
        self._own = self._plain.difference(self.eos_ids)

    def of(self, logprobs: Mapping[int, float]) -> dict[int, float]:
        """The log-probabilities of the candidates among some ids; EOS has the largest of its ids'."""
        kept = {index: value for index, value in logprobs.items() if index in self._own}
        if ends := [logprobs[index] for index in self.eos_ids if index in logprobs]:
            kept[min(self.eos_ids)] = max(ends)
        return kept

    def bytes_of(self, index: int) -> bytes:
        """The bytes that an id adds to a text; empty for special tokens."""
        return self._vocabulary.token_bytes(index) or b""

    def others(self, logprobs: Mapping[int, float]) -> dict[int, float]:
        """The log-probabilities of the ids in :attr:`other_ids` among some ids."""
        return {index: value for index, value in logprobs.items() if index not in self._plain}

    @cached_property
    def other_ids(self) -> list[int]:
        """All ids but those with bytes: special tokens, those of EOS included, and ids without a token."""
        return sorted(set(range(self.size)) - self._plain)

    def ids(self, candidate: int) -> tuple[int, ...]:
        """The ids of a candidate."""
        return self.eos_ids if candidate in self.eos_ids else (candidate,)


# Decoders are made often, and a large vocabulary has 150,000 candidates.
candidates_of = lru_cache(maxsize=16)(Candidates)


def build(vocabularies: Sequence[Vocabulary]) -> JointVocabulary:
    """Make the tables of several vocabularies."""
    numbers = entries(vocabularies)
    return JointVocabulary(len(numbers) + 1, tuple(_member_tables(v, numbers) for v in vocabularies))


def entries(vocabularies: Sequence[Vocabulary]) -> dict[bytes, int]:
    """The number of each byte string's entry, from 1 on, in the order of the vocabularies."""
    numbers: dict[bytes, int] = {}
    for vocabulary in vocabularies:
        for data in vocabulary.representatives:
            # From 1 on, because entry 0 is EOS.
            numbers.setdefault(data, len(numbers) + 1)
    return numbers


@lru_cache(maxsize=4)  # every decoder needs them, and a large vocabulary has 150,000
def texts_of(vocabularies: tuple[Vocabulary, ...]) -> list[bytes]:
    """The byte string of each entry, by its number; that of EOS is empty."""
    return [b"", *entries(vocabularies)]


def _member_tables(vocabulary: Vocabulary, numbers: dict[bytes, int]) -> MemberTables:
    own = vocabulary.representatives
    entry_of = torch.full((vocabulary.size,), NONE)
    entry_of[torch.tensor(list(own.values()))] = torch.tensor([numbers[data] for data in own])
    eos_ids = torch.tensor(vocabulary.eos_ids, dtype=torch.long)
    # Only the first EOS id is a candidate; the logit of EOS is moved there before each step.
    entry_of[eos_ids[:1]] = EOS
    id_of = torch.full((len(numbers) + 1,), NONE)
    id_of[entry_of[entry_of != NONE]] = torch.nonzero(entry_of != NONE).squeeze(1)
    foreign = [data for data in numbers if data not in own]
    firsts = [ids[0] if ids else NONE for ids in vocabulary.continue_batch(foreign)]
    # A first id that is not a candidate (<unk>, for example) cannot express the entry: its logit is minus infinity.
    known = [index if index != NONE and entry_of[index] != NONE else NONE for index in firsts]
    id_of[torch.tensor([numbers[data] for data in foreign], dtype=torch.long)] = torch.tensor(known, dtype=torch.long)
    return MemberTables(entry_of, id_of, torch.nonzero(entry_of == NONE).squeeze(1), eos_ids)


def load_or_build(vocabularies: Sequence[Vocabulary], cache_dir: Path) -> JointVocabulary:
    """Load the tables from ``cache_dir``, or build them and save them there.

    The key of the cache is the whole content of the tokenizers. If the cache cannot be read or written, the tables are
    built.
    """
    key = hashlib.sha256("".join([str(_FORMAT), *(v.fingerprint for v in vocabularies)]).encode()).hexdigest()
    path = cache_dir / f"{key}.safetensors"
    try:
        return _unpack(load_file(path))
    except Exception:  # noqa: BLE001  # the file is missing, damaged or of another format: build the tables again
        joint = build(vocabularies)
        # int32 halves the size of the file.
        tensors = {
            f"{n}.{name}": getattr(member, name).to(torch.int32)
            for n, member in enumerate(joint.members)
            for name in _SAVED
        }
        with suppress(OSError):  # without a cache the tables are built again next time
            write_whole(path, lambda fresh: save_file(tensors, fresh))
        return joint


def _unpack(tensors: dict[str, Tensor]) -> JointVocabulary:
    # A file with fewer tables fails here, within the caller's try, and is made again.
    count = len(tensors) // len(_SAVED)
    members = tuple(MemberTables(*(tensors[f"{n}.{name}"].long() for name in _SAVED)) for n in range(count))
    return JointVocabulary(len(members[0].id_of), members)


class Prefixes:
    """The order of all byte strings, in which those with a common beginning are neighbours.

    By ``rank``, prefixes of one text are in the order of their lengths, the shortest first.
    """

    def __init__(self, vocabularies: Sequence[Vocabulary], device: torch.device) -> None:
        numbers = entries(vocabularies)
        # EOS is no text, and the column after the last entry is for what is absent: neither begins with anything.
        rank, end = ([NONE] * (len(numbers) + 2) for _ in range(2))
        beginnings: list[bytes] = []
        ordered = sorted(numbers)
        for place, data in enumerate(ordered):
            while beginnings and not data.startswith(beginnings[-1]):
                end[numbers[beginnings.pop()]] = place
            beginnings.append(data)
            rank[numbers[data]] = place
        for data in beginnings:
            end[numbers[data]] = len(ordered)
        self.rank, self._end = (torch.tensor(table, device=device) for table in (rank, end))

    def are_begun_by(self, longer: Tensor, shorter: Tensor) -> Tensor:
        """Whether each entry is the other one, or begins with it; shapes as in broadcasting. False for EOS."""
        rank = self.rank[longer]
        return (self.rank[shorter] <= rank) & (rank < self._end[shorter])


# Rules are made often, and the order of a large vocabulary takes long.
prefixes_of = lru_cache(maxsize=8)(Prefixes)
