"""Averaging on the primary's vocabulary, with the other members' tokens mapped to the primary's."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ensemble.files import default_cache_dir
from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Combine, Setup
from ensemble.vocabulary.joint import NONE, JointVocabulary

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Mapping:
    """Where a member's probabilities go: the cells of a sparse matrix that are not 0.

    Attributes:
        source: [cells] ids of the member.
        target: [cells] ids of the primary.
        share: [cells] how much of the source's probability goes there.
    """

    source: Tensor
    target: Tensor
    share: Tensor

    def to(self, device: torch.device) -> Mapping:
        """The same on a device."""
        return Mapping(*(getattr(self, field.name).to(device) for field in fields(self)))

    def __call__(self, probabilities: Tensor, size: int) -> Tensor:
        """Probabilities [B, V] as the primary's [B, size], renormalised: what goes nowhere counts for nothing."""
        parts = probabilities.index_select(1, self.source) * self.share.to(probabilities.dtype)
        mapped = probabilities.new_zeros(len(probabilities), size).index_add_(1, self.target, parts)
        return mapped / mapped.sum(dim=1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A member's candidates beside the primary's.

    Attributes:
        common: [2, n] ids of what both have (EOS too), the member's and the primary's.
        foreign: Ids of what only the member has.
    """

    common: Tensor
    foreign: Tensor


def tokens(joint: JointVocabulary, member: int) -> Tokens:
    """Which of a member's candidates the primary has too."""
    own, first = joint.members[member], joint.members[0]
    ids = torch.nonzero(own.entry_of != NONE).squeeze(1)
    entries = own.entry_of[ids]
    # An id that only begins the entry's spelling has an entry of its own.
    counterpart = first.place_of[entries]
    there = (first.id_of[entries] != NONE) & (first.entry_of[counterpart] == entries)
    return Tokens(torch.stack([ids[there], counterpart[there]]), ids[~there])


def kept(key: str, make: Callable[[], Mapping], folder: Path | None = None) -> Mapping:
    """A mapping from the cache, or made and kept there.

    A cache that cannot be read or written is no error: the mapping is made.

    Args:
        key: All that decides it.
        make: Makes it, where it is not there.
        folder: The user's cache folder where None.
    """
    name = hashlib.sha256(f"{_FORMAT} {key}".encode()).hexdigest()
    path = (folder or default_cache_dir() / "mappings") / f"{name}.safetensors"
    try:
        return Mapping(**load_file(path))
    except Exception:  # noqa: BLE001  # absent, damaged, of another format: in every case it is made anew
        made = make().to(torch.device("cpu"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as fresh:
                held = {field.name: getattr(made, field.name).contiguous() for field in fields(made)}
                save_file(held, Path(fresh) / path.name)
                (Path(fresh) / path.name).replace(path)
        except OSError:
            pass
        return made


def average(
    setup: Setup, mappings: Sequence[Mapping], reweigh: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Combine:
    """The weighted mean of the primary's distribution and the others' mapped ones.

    Args:
        setup: The members, their joint vocabulary and weights.
        mappings: One for each member but the primary.
        reweigh: From the members' distributions on the primary's ids [members, B, ids] and their weights [members, 1]
            to weights [members, B] that sum to 1 over the members; None to keep them.
    """
    device = setup.members[0].device
    first = setup.joint.members[0]
    placed = [mapping.to(device) for mapping in mappings]
    candidates = torch.nonzero(first.entry_of != NONE).squeeze(1)
    entries = first.entry_of[candidates]
    weights = torch.tensor(setup.weights, dtype=torch.float64, device=device)[:, None]

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        scores = [candidate_logits(z, tables) for z, tables in zip(whole(logits), setup.joint.members, strict=True)]
        own = [(z if also is None else z.double()).softmax(dim=1) for z in scores]
        mapped = [mapping(p, own[0].shape[1]) for mapping, p in zip(placed, own[1:], strict=True)]
        members = torch.stack([own[0], *(p.to(own[0].dtype) for p in mapped)]).index_select(2, candidates)
        shares = weights if reweigh is None else reweigh(members, weights)
        mean = (members * shares.to(members.dtype)[:, :, None]).sum(dim=0)
        rows = entries.expand(len(mean), -1)
        present = torch.ones_like(rows, dtype=torch.bool)
        return Distribution(rows, present, candidates.expand(len(mean), -1), members, mean)

    return combine
