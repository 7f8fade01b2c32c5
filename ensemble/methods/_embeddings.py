"""The members' embedding matrices, for methods that compare tokens by their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.models.member import Member
from ensemble.step.token_method import Setup

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
