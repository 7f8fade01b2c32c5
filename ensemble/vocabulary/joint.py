"""The joint vocabulary: an entry for each byte string of any member, and two tables between it and each member's ids.

With them a step of UNITE is table look-ups: a member's top ids become entries by ``entry_of``, and the union's entries
become every other member's ids by ``id_of``.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ensemble.vocabulary.token_bytes import Vocabulary

EOS = 0
"""The entry of the end of the sentence, the same for every member."""
NONE = -1
"""No entry: the id is no candidate. No id: the vocabulary cannot express the entry."""
_FORMAT = 1
_KEPT = ("entry_of", "id_of", "outside", "eos_ids")
"""What is written to the cache; the rest follows from it."""


@dataclass(frozen=True, slots=True)
class MemberTables:
    """One member's side of the joint vocabulary.

    Attributes:
        entry_of: [rows of the model's output] the entry of each candidate id, NONE for the others.
        id_of: [entries] the id that stands for each entry: its representative, else the first id of its
            continuation; NONE where the vocabulary cannot express it.
        outside: ids whose logits are never looked at (all that are no candidates, but for the first EOS id).
        eos_ids: the ids whose largest logit is EOS's; the first one stands for it.
        place_of: ``id_of`` with 0 for NONE, so that it can be gathered by.
        penalty_of: [entries] what is added to the logit found there: minus infinity for NONE, else 0.
    """

    entry_of: Tensor
    id_of: Tensor
    outside: Tensor
    eos_ids: Tensor
    place_of: Tensor = field(init=False)
    penalty_of: Tensor = field(init=False)

    def __post_init__(self) -> None:
        penalty = torch.zeros(self.id_of.shape, device=self.id_of.device)
        object.__setattr__(self, "place_of", self.id_of.clamp(min=0))
        object.__setattr__(self, "penalty_of", penalty.masked_fill_(self.id_of == NONE, -torch.inf))

    def to(self, device: torch.device) -> MemberTables:
        """The same tables on a device."""
        return MemberTables(*(getattr(self, name).to(device) for name in _KEPT))


@dataclass(frozen=True, slots=True)
class JointVocabulary:
    """The tables of all members, the primary's first.

    Attributes:
        size: Entries, EOS included.
        members: One side for each member, in their order.
    """

    size: int
    members: tuple[MemberTables, ...]

    def to(self, device: torch.device) -> JointVocabulary:
        """The same tables on a device."""
        return JointVocabulary(self.size, tuple(member.to(device) for member in self.members))

    def representative(self, entry: int) -> tuple[int, int] | None:
        """A member that has an entry among its candidates, by number, and its id there; None for EOS."""
        if entry == EOS:
            return None
        ids = ((n, int(tables.place_of[entry])) for n, tables in enumerate(self.members))
        return next((n, index) for n, index in ids if int(self.members[n].entry_of[index]) == entry)


def build(vocabularies: Sequence[Vocabulary]) -> JointVocabulary:
    """Make the tables of some vocabularies, from nothing but their contents."""
    numbers = entries(vocabularies)
    return JointVocabulary(len(numbers) + 1, tuple(_member_tables(v, numbers) for v in vocabularies))


def entries(vocabularies: Sequence[Vocabulary]) -> dict[bytes, int]:
    """The number of each byte string's entry, from 1 on, in the order in which the vocabularies bring them."""
    numbers: dict[bytes, int] = {}
    for vocabulary in vocabularies:
        for data in vocabulary.representatives:
            numbers.setdefault(data, len(numbers) + 1)
    return numbers


def _member_tables(vocabulary: Vocabulary, numbers: dict[bytes, int]) -> MemberTables:
    own = vocabulary.representatives
    entry_of = torch.full((vocabulary.size,), NONE)
    entry_of[torch.tensor(list(own.values()))] = torch.tensor([numbers[data] for data in own])
    eos_ids = torch.tensor(vocabulary.eos_ids, dtype=torch.long)
    entry_of[eos_ids[:1]] = EOS
    id_of = torch.full((len(numbers) + 1,), NONE)
    id_of[entry_of[entry_of != NONE]] = torch.nonzero(entry_of != NONE).squeeze(1)
    foreign = [data for data in numbers if data not in own]
    firsts = [ids[0] if ids else NONE for ids in vocabulary.continue_batch(foreign)]
    # A first id that is no candidate (<unk>, say) expresses nothing: its logit is minus infinity.
    known = [index if index != NONE and entry_of[index] != NONE else NONE for index in firsts]
    id_of[torch.tensor([numbers[data] for data in foreign], dtype=torch.long)] = torch.tensor(known, dtype=torch.long)
    return MemberTables(entry_of, id_of, torch.nonzero(entry_of == NONE).squeeze(1), eos_ids)


def load_or_build(vocabularies: Sequence[Vocabulary], cache_dir: Path) -> JointVocabulary:
    """The tables from ``cache_dir``, or built and kept there; keyed by the tokenizers' whole contents.

    A cache that cannot be read or written is no error: the tables are built.
    """
    key = hashlib.sha256("".join([str(_FORMAT), *(v.fingerprint for v in vocabularies)]).encode()).hexdigest()
    path = cache_dir / f"{key}.safetensors"
    try:
        return _unpack(load_file(path))
    except Exception:  # noqa: BLE001  # absent, damaged, of another format: in every case it is made anew
        joint = build(vocabularies)
        _keep(joint, path)
        return joint


def _keep(joint: JointVocabulary, path: Path) -> None:
    tensors = {
        f"{n}.{name}": getattr(member, name).to(torch.int32) for n, member in enumerate(joint.members) for name in _KEPT
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            save_file(tensors, Path(folder) / path.name)
            (Path(folder) / path.name).replace(path)
    except OSError:
        return


def _unpack(tensors: dict[str, Tensor]) -> JointVocabulary:
    count = len(tensors) // len(_KEPT)
    members = tuple(MemberTables(*(tensors[f"{n}.{name}"].long() for name in _KEPT)) for n in range(count))
    return JointVocabulary(len(members[0].id_of), members)
