"""Engines: where members are loaded and run, in this process or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ensemble.errors import InputError
from ensemble.methods import check_distributed
from ensemble.models.load import Loading
from ensemble.models.member import Member

Engine = Literal["local", "ray"]
"""``local`` is this process; with ``ray`` each member is on a node of the cluster that is joined."""


def check_engine(engine: Engine, method: str) -> None:
    """Make sure that an engine is there and can run a method, before anything is loaded.

    Raises:
        InputError: There is none of that name, or the method needs members in this process.
    """
    if engine not in get_args(Engine):
        raise InputError(f"engine {engine!r}: not one of {', '.join(get_args(Engine))}")
    if engine == "ray":
        check_distributed(method)


def load_members(loadings: Sequence[Loading], engine: Engine) -> list[Member]:
    """Load members; on a cluster all at the same time.

    Raises:
        InputError: What was given cannot be used, or no cluster is joined.
        MemberError: A member failed while it was loaded.
    """
    if engine == "local":
        return [loading.load() for loading in loadings]
    from ensemble.distributed.ray_member import start_members

    return start_members(loadings)
