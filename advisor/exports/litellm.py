"""LiteLLM's proxy: a ``model_list`` and the settings of its router (``litellm --config litellm.yaml``).

A router by groups is a model with several deployments, each with the groups as tags (``enable_tag_filtering``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.exports.target import groups_of, with_addresses
from advisor.strategies.group_router import GroupRouter
from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import key_variable

FILE = "litellm.yaml"
_VARIABLE = "os.environ/"
"""Before the name of a variable, whose value takes the place of the text."""
_DEFAULT = "default"
"""The tag of the deployment that gets requests without a known tag."""


def configuration(
    name: str, members: Sequence[ModelSpec], router: GroupRouter | None
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """See :class:`advisor.exports.target.Target`.

    Raises:
        InputError: A name would be read as a variable of the environment.
    """
    for each in (name, *(member.name for member in members)):
        if each.startswith(_VARIABLE):
            raise InputError(f"{each}: LiteLLM reads this name as a variable of the environment; give another name=")
    models = [_deployment(member.name, member, address) for member, address in with_addresses(members)]
    first, settings, notes = members[0].name, {}, []
    if router is not None:
        for member, address in with_addresses(members):
            tags = [tag_of(group) for group in groups_of(router, member.name)]
            own = [_DEFAULT, *tags] if member.name == first else tags
            models.append(_deployment(name, member, address, tags=own))
        # A router asks the others, in their order, if the member of the group fails.
        settings = {"enable_tag_filtering": True, "fallbacks": [{name: [member.name for member in members]}]}
        notes = [f"a client's request has the tag {tag_of('GROUP')} in metadata.tags"]
    elif name != first:
        settings = {"model_group_alias": {name: first}}
    return {"model_list": models, **({"router_settings": settings} if settings else {})}, notes


def tag_of(group: str) -> str:
    """The tag of a group: with a prefix, because some tags and first characters have a meaning."""
    return f"group:{group}"


def _deployment(name: str, member: ModelSpec, address: ServerAddress, **more: Any) -> dict[str, Any]:
    kind = "text-completion-openai" if member.chat_template == "never" else "openai"
    variable = key_variable(address)
    params: dict[str, Any] = {
        "model": f"{kind}/{address.model}",
        "api_base": address.url,
        # Without a key in its place, the key of OpenAI would go to this server.
        "api_key": "none" if variable is None else f"{_VARIABLE}{variable}",
        "temperature": 0,
        "timeout": address.timeout,
        "max_parallel_requests": address.concurrency,
    }
    if address.requests_per_minute is not None:
        params["rpm"] = max(1, int(address.requests_per_minute))
    if address.reasoning_effort is not None:
        params["reasoning_effort"] = address.reasoning_effort
    if (price := member.price) is not None:
        params |= {"input_cost_per_token": price.price_in / 1e6, "output_cost_per_token": price.price_out / 1e6}
    return {"model_name": name, "litellm_params": {**params, **more}}
