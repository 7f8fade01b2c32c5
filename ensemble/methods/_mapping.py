"""Tokens of one member as those of another: by their embeddings, or by mappings to the primary's vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ensemble.common.files import default_cache_dir, write_whole
from ensemble.errors import InputError
from ensemble.models.member import Member
from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Combine, Setup
from ensemble.vocabulary.joint import NONE, JointVocabulary

Side = Literal["input", "output"]
MIN_COMMON = 16
"""The fewest common tokens from which the similarity of all other tokens can be computed."""


def unit_embeddings(method: str, member: Member, side: Side, ids: Tensor) -> Tensor:
    """A member's embeddings [len(ids), width] of length 1; InputError if the model has none that can be read.

    They are float32, or float64 if the model is. ``side`` is the input embeddings, or the output embeddings (the matrix
    that gives the logits); ``ids`` are on the device of the result.
    """
    weight = _weight(member, side)
    problem = None
    if weight is None or weight.ndim != 2:
        problem = "has none that can be read"
    elif weight.is_meta:  # weights that are offloaded to a disk
        problem = "does not hold them in memory"
    elif not weight.is_floating_point():
        problem = f"has quantised ones ({str(weight.dtype).removeprefix('torch.')})"
    elif weight.shape[0] <= int(ids.max()):
        problem = f"has {weight.shape[0]} rows of them for {member.vocabulary.size} ids"
    if problem or weight is None:
        raise InputError(
            f"it needs {side} embeddings, and {member.name} {problem}; use unite or gac", of=f"method {method}"
        )
    # Embeddings of large models take gigabytes, so only one copy is made; the indexing makes it.
    rows = weight.detach()[ids.to(weight.device)].to(ids.device)
    rows = rows if rows.dtype == torch.float64 else rows.float()
    return unit_(rows)


def unit_(rows: Tensor) -> Tensor:
    """Scale every row to length 1, in place; a row of zeros stays zero."""
    return rows.div_(rows.norm(dim=1, keepdim=True).clamp_(min=torch.finfo(rows.dtype).tiny))


def common_entries(method: str, setup: Setup, indices: Sequence[int]) -> Tensor:
    """The entries that are candidates of several members, EOS included, ascending; InputError for fewer than 16."""
    owned = torch.stack([setup.joint.members[n].owned() for n in indices]).all(dim=0)
    common = torch.nonzero(owned).squeeze(1)
    if len(common) < MIN_COMMON:
        names = " and ".join(setup.members[n].name for n in indices)
        raise InputError(
            f"it needs {MIN_COMMON} tokens in common, and {names} have {len(common)}; use unite or gac",
            of=f"method {method}",
        )
    return common


def _weight(member: Member, side: Side) -> Tensor | None:
    model = member.local.model
    # transformers raises for an architecture whose embeddings it does not know.
    try:
        layer = model.get_input_embeddings() if side == "input" else model.get_output_embeddings()
    except NotImplementedError:
        return None
    # Layers of adapters and quantisers may keep their weights under another name.
    weight = getattr(layer, "weight", None)
    return weight if isinstance(weight, Tensor) else None


_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TokenMapping:
    """A sparse matrix from a member's ids to the primary's: the cells that are not 0."""

    source: Tensor  # [cells] ids of the member
    target: Tensor  # [cells] ids of the primary
    share: Tensor  # [cells] the part of the source's probability that goes to the target

    def to(self, device: torch.device) -> TokenMapping:
        """The same mapping on a device."""
        return TokenMapping(self.source.to(device), self.target.to(device), self.share.to(device))

    def apply(self, probabilities: Tensor, size: int) -> Tensor:
        """Map probabilities [B, V] to the primary's [B, size]; tokens without a target lose theirs."""
        parts = probabilities.index_select(1, self.source) * self.share.to(probabilities.dtype)
        return probabilities.new_zeros(len(probabilities), size).index_add_(1, self.target, parts)


def common_and_foreign(joint: JointVocabulary, member: int) -> tuple[Tensor, Tensor]:
    """The ids of common tokens, EOS included, as [2, n] (the primary's second), and a member's other ids."""
    other, first = joint.members[member], joint.members[0]
    ids = torch.nonzero(other.entry_of != NONE).squeeze(1)
    entries = other.entry_of[ids]
    common = first.owned()[entries]
    return torch.stack([ids[common], first.id_of[entries[common]]]), ids[~common]


def load_or_make(key: str, make: Callable[[], TokenMapping]) -> TokenMapping:
    """Load a mapping from the user's cache folder by all that decides it (``key``), or make it and save it there."""
    name = hashlib.sha256(f"{_FORMAT} {key}".encode()).hexdigest()
    path = default_cache_dir() / "mappings" / f"{name}.safetensors"
    try:
        return TokenMapping(**load_file(path))
    except Exception:  # noqa: BLE001  # the file is missing, damaged or of another format: make it again
        # On the processor, where a mapping from the cache is, too.
        mapping = make().to(torch.device("cpu"))
        tensors = {field.name: getattr(mapping, field.name).contiguous() for field in fields(mapping)}
        with suppress(OSError):  # without a cache the mapping is made again next time
            write_whole(path, lambda fresh: save_file(tensors, fresh))
        return mapping


def average_mapped(
    setup: Setup,
    mappings: Sequence[TokenMapping],
    reweigh: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    top: int = 0,
    by_mass: bool = False,
) -> Combine:
    """The weighted mean of the primary's distribution and the others' mapped distributions.

    ``reweigh`` computes weights [members, B] from the distributions on the primary's ids [members, B, ids] and the
    weights. ``top`` likeliest tokens of a member are kept (0 for all), except while given tokens are scored.
    ``by_mass`` multiplies a weight by the mapped probability: not 1 where tokens have no target, or shares that do not
    sum to 1.
    """
    device = setup.members[0].device
    first = setup.joint.members[0]
    placed = [mapping.to(device) for mapping in mappings]
    candidates = torch.nonzero(first.entry_of != NONE).squeeze(1)
    entries = first.entry_of[candidates]
    weights = torch.tensor(setup.weights, dtype=torch.float64, device=device)[:, None]

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        scores = [candidate_logits(z, tables) for z, tables in zip(whole(logits), setup.joint.members, strict=True)]
        if top and also is None:
            scores = [_keep_top(z, top) for z in scores]
        # Scored entries can be so unlikely that their probability is 0 in float32.
        own = [(z if also is None else z.double()).softmax(dim=1) for z in scores]
        mapped = [mapping.apply(p, own[0].shape[1]) for mapping, p in zip(placed, own[1:], strict=True)]
        members = torch.stack([own[0], *(p.to(own[0].dtype) for p in mapped)]).index_select(2, candidates)
        mass = members.sum(dim=2)
        # If none of its tokens has a target, a member has no distribution and no weight. NaN differs from 0 and stays.
        members = members / mass.where(mass != 0, 1)[:, :, None]
        shares = weights * (mass if by_mass else mass != 0)
        shares = shares if reweigh is None else reweigh(members, shares)
        shares = shares / shares.sum(dim=0)
        mean = (members * shares.to(members.dtype)[:, :, None]).sum(dim=0)
        # expand() makes no copy: every row has the same entries.
        rows = entries.expand(len(mean), -1)
        present = torch.ones_like(rows, dtype=torch.bool)
        return Distribution(rows, present, candidates.expand(len(mean), -1), members, mean)

    return combine


def _keep_top(scores: Tensor, top: int) -> Tensor:
    """The logits [B, V] with minus infinity for those below the ``top`` largest; equals of the last one stay."""
    if top >= scores.shape[1]:
        return scores
    return scores.masked_fill(scores < scores.topk(top, dim=1).values[:, -1:], -torch.inf)
