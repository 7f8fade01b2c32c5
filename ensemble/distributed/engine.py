"""Where members run: in this process, on the nodes of a Ray cluster, or behind servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ensemble.errors import InputError
from ensemble.methods import check_distributed
from ensemble.models.check import check, check_tokenizer
from ensemble.models.hub import check_on_hub
from ensemble.models.load import load_member, parse_device
from ensemble.models.member import Member
from ensemble.models.spec import ModelSpec

Backend = Literal["local", "ray"]
"""``local``: in this process. ``ray``: each member on a node of the Ray cluster that this process has joined."""


def check_engine(engine: Backend, method: str, specs: Sequence[ModelSpec] = ()) -> None:
    """Make sure that an engine exists and can run a method, before anything is loaded.

    Args:
        engine: Where the models run that are not behind servers.
        method: The method.
        specs: The models.

    Raises:
        InputError: The engine is unknown, or the method needs its members in this process.
    """
    if engine not in get_args(Backend):
        raise InputError(f"engine {engine!r}: not one of {', '.join(get_args(Backend))}")
    if engine == "ray" or any(spec.is_remote for spec in specs):
        check_distributed(method)


def check_models(specs: Sequence[ModelSpec], engine: Backend) -> None:
    """Check everything about some models that needs no weights.

    Raises:
        InputError: A device, a folder or an id cannot be used.
    """
    for spec in specs:
        checkpoint = spec.checkpoint
        if checkpoint.is_remote:
            check_tokenizer(spec.tokenizer)
            continue
        # Asked first: without network, transformers would retry for half a minute for each file.
        if not checkpoint.is_local:
            check_on_hub(checkpoint)
        check(checkpoint)
        # The devices of a cluster are on other machines.
        if engine == "local":
            parse_device(spec.device or "auto")


def load_members(specs: Sequence[ModelSpec], engine: Backend) -> Sequence[Member]:
    """Load members; on a cluster all at the same time.

    Raises:
        InputError: A spec cannot be used, or this process has not joined a cluster.
        MemberError: A member failed while it was loaded.
    """
    loaded: dict[int, Member] = {}
    servers = {n: spec for n, spec in enumerate(specs) if spec.is_remote}
    # First, because a server that is not there is found at once, and loading takes minutes.
    for n, spec in servers.items():
        from ensemble.distributed.server_member import load_server_member

        loaded[n] = load_server_member(spec)
    others = {n: spec for n, spec in enumerate(specs) if n not in servers}
    if engine == "local":
        loaded |= {n: load_member(spec) for n, spec in others.items()}
    elif others:
        from ensemble.distributed.ray_member import start_members

        loaded |= dict(zip(others, start_members(list(others.values())), strict=True))
    return [loaded[n] for n in range(len(specs))]
