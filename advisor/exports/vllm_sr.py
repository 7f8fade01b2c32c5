"""vLLM Semantic Router: a configuration of version v0.3 (``vllm-sr serve --config vllm-sr.yaml``).

A router by groups is a signal on the metadata of a request for each member, and a decision for each signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.exports.target import groups_of, with_addresses
from advisor.strategies.group_router import GroupRouter
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import key_variable

FILE = "vllm-sr.yaml"
_PORT = 8899
_KEY = "group"
"""The key of a request's metadata."""


def configuration(
    name: str,  # noqa: ARG001  # clients ask for its model "auto", whatever the strategy is
    members: Sequence[ModelSpec],
    router: GroupRouter | None,
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """See :class:`advisor.exports.target.Target`."""
    first = members[0].name
    timeout = max(address.timeout for _, address in with_addresses(members))
    routing: dict[str, Any] = {"modelCards": [{"name": member.name, "modality": "ar"} for member in members]}
    notes = ['clients ask for the model "auto"; temperature: the run had 0, and this router adds none']
    if router is not None:
        routed = [(member.name, groups_of(router, member.name)) for member in members if member.name != first]
        routed = [(member, groups) for member, groups in routed if groups]
        # The first member is the default, and needs no signal.
        routing["signals"] = {
            "metadata": [{"name": member, "key": _KEY, "predicate": {"in": groups}} for member, groups in routed]
        }
        routing["decisions"] = [
            {
                "name": member,
                "priority": 100,
                "rules": {"operator": "OR", "conditions": [{"type": "metadata", "name": member}]},
                "modelRefs": [{"model": member, "use_reasoning": False}],
            }
            for member, _ in routed
        ]
        notes += [
            f"a client's request has the group as metadata.{_KEY}",
            "no other member is asked where the one of a group fails",
        ]
    notes += [
        f"{member.name}: its prompts have no chat template, and this router sends messages of a chat"
        for member in members
        if member.chat_template == "never"
    ]
    content = {
        "version": "v0.3",
        "listeners": [{"name": f"http-{_PORT}", "address": "127.0.0.1", "port": _PORT, "timeout": f"{timeout:.0f}s"}],
        "providers": {
            "defaults": {"model": first},
            "models": [_model(member, address) for member, address in with_addresses(members)],
        },
        "routing": routing,
    }
    return content, notes


def _model(member: ModelSpec, address: ServerAddress) -> dict[str, Any]:
    backend = {"name": member.name, "base_url": address.url, "provider": "openai", "weight": 100}
    if (variable := key_variable(address)) is not None:
        backend["api_key_env"] = variable
    model: dict[str, Any] = {"name": member.name, "provider_model_id": address.model, "api_format": "openai"}
    if (price := member.price) is not None:
        model["pricing"] = {"currency": "USD", "prompt_per_1m": price.price_in, "completion_per_1m": price.price_out}
    return {**model, "backend_refs": [backend]}
