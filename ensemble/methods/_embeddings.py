"""The members' embeddings as matrices, for methods that compare tokens by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.models.member import Member
from ensemble.step.token_method import Setup
from ensemble.vocabulary.joint import NONE, MemberTables

Side = Literal["input", "output"]
FEWEST = 16
"""Tokens that all members must have in common, where tokens are known by their likeness to these."""


def unit_embeddings(method: str, member: Member, side: Side, ids: Tensor) -> Tensor:
    """The embeddings [len(ids), width] of some of a member's ids, each of length 1.

    In float32, or float64 where the model is.

    Args:
        method: Who asks, for the message.
        member: Whose.
        side: The embeddings that the model reads tokens by, or those that its logits are products with.
        ids: Which rows, on the device where the result is to be.

    Raises:
        InputError: The model has none that can be read.
    """
    weight = _weight(member, side)
    problem = None
    if weight is None or weight.ndim != 2:
        problem = "has none that can be read"
    elif weight.is_meta:
        problem = "has them not in memory"
    elif not weight.is_floating_point():
        problem = f"has them quantised ({str(weight.dtype).removeprefix('torch.')})"
    elif weight.shape[0] <= int(ids.max()):
        problem = f"has {weight.shape[0]} rows of them for {member.vocabulary.size} ids"
    if problem or weight is None:
        raise InputError(f"method {method}: it needs {side} embeddings, and {member.name} {problem}; use unite or gac")
    # Of real models these are gigabytes, so there is one copy.
    rows = weight.detach()[ids.to(weight.device)].to(ids.device)
    rows = rows if rows.dtype == torch.float64 else rows.float()
    return unit_(rows)


def unit_(rows: Tensor) -> Tensor:
    """Give every row the length 1, in place; a row of zeros stays one, and is like nothing."""
    return rows.div_(rows.norm(dim=1, keepdim=True).clamp_(min=torch.finfo(rows.dtype).tiny))


def owned_entries(tables: MemberTables) -> Tensor:
    """[entries] which of the joint vocabulary's entries a member has a candidate of its own for."""
    owned = torch.zeros_like(tables.id_of, dtype=torch.bool)
    owned[tables.entry_of[tables.entry_of != NONE]] = True
    return owned


def common_entries(method: str, setup: Setup, of: Sequence[int]) -> Tensor:
    """The entries, EOS among them, that each of some members has a candidate of its own for, in ascending order.

    Args:
        method: Who asks, for the message.
        setup: The members and their joint vocabulary.
        of: The numbers of the members.

    Raises:
        InputError: There are too few.
    """
    everyones = torch.stack([owned_entries(setup.joint.members[n]) for n in of]).all(dim=0)
    common = torch.nonzero(everyones).squeeze(1)
    if len(common) < FEWEST:
        names = " and ".join(setup.members[n].name for n in of)
        raise InputError(
            f"method {method}: it needs {FEWEST} tokens in common, and {names} have {len(common)}; use unite or gac"
        )
    return common


def _weight(member: Member, side: Side) -> Tensor | None:
    model = member.local.model
    try:
        layer = model.get_input_embeddings() if side == "input" else model.get_output_embeddings()
    except NotImplementedError:
        return None
    weight = getattr(layer, "weight", None)
    return weight if isinstance(weight, Tensor) else None
