"""Where members run: in this process, or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ensemble.errors import InputError
from ensemble.methods import check_distributed
from ensemble.models.check import check
from ensemble.models.hub import check_on_hub
from ensemble.models.load import load_member, parse_device
from ensemble.models.member import Member
from ensemble.models.spec import ModelSpec

Engine = Literal["local", "ray"]
"""``local``: in this process. ``ray``: each member on a node of the Ray cluster that this process has joined."""


def check_engine(engine: Engine, method: str) -> None:
    """Make sure that an engine exists and can run a method, before anything is loaded.

    Raises:
        InputError: The engine is unknown, or the method needs its members in this process.
    """
    if engine not in get_args(Engine):
        raise InputError(f"engine {engine!r}: not one of {', '.join(get_args(Engine))}")
    if engine == "ray":
        check_distributed(method)


def check_models(specs: Sequence[ModelSpec], engine: Engine) -> None:
    """Check everything about some models that needs no weights.

    Raises:
        InputError: A device, a folder or an id cannot be used.
    """
    for spec in specs:
        # Asked first: without network, transformers would retry for half a minute for each file.
        if not spec.checkpoint.is_local:
            check_on_hub(spec.checkpoint)
        check(spec.checkpoint)
        # The devices of a cluster are on other machines.
        if engine == "local":
            parse_device(spec.device)


def load_members(specs: Sequence[ModelSpec], engine: Engine) -> Sequence[Member]:
    """Load members; on a cluster all at the same time.

    Raises:
        InputError: A spec cannot be used, or this process has not joined a cluster.
        MemberError: A member failed while it was loaded.
    """
    if engine == "local":
        return [load_member(spec) for spec in specs]
    from ensemble.distributed.ray_member import start_members

    return start_members(specs)
