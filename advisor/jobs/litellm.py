"""A strategy as configuration of LiteLLM's proxy (``litellm --config litellm.yaml``).

The file has a ``model_list`` and the settings of the router. A router by groups is a model with several deployments,
each with the groups as tags (``enable_tag_filtering``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from advisor.running.plan import StrategyPlan
from advisor.strategies.group_router import GroupRouter
from ensemble.common.text import visible
from ensemble.errors import InputError
from ensemble.models.spec import EnsembleSpec, ModelSpec
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import key_variable

FILE = "litellm.yaml"
_VARIABLE = "os.environ/"
"""Before the name of a variable, whose value takes the place of the text."""
_DEFAULT = "default"
"""The tag of the deployment that gets requests without a known tag."""
_SERVED_URL, _SERVED_KEY = "http://127.0.0.1:8000/v1", "ADVISOR_API_KEY"
"""Where ``advisor serve`` answers if no option says it, and the variable of its key."""


def handed_over(run: Path, chosen: EnsembleSpec | StrategyPlan, serve: str) -> tuple[str, list[str]]:
    """The proxy's configuration for a strategy, and what the proxy does not run as the run did.

    What it cannot run is behind ``advisor serve``, as one model.

    Args:
        run: The run folder; clients call the strategy by its name.
        chosen: The strategy.
        serve: The command that serves it.

    Raises:
        InputError: A name would be read as a variable of the environment.
    """
    strategy = chosen.strategy if isinstance(chosen, StrategyPlan) else None
    router = strategy if isinstance(strategy, GroupRouter) else None
    members, name = chosen.members, run.resolve().name
    local = [member.name for member in members if not member.is_remote]
    while name in {member.name for member in members}:
        name += "-strategy"
    notes = []
    if local or strategy is None or not (strategy.IS_SINGLE or router):
        runs = f"`{serve}` runs it, and the model {name} of the file is at its address, {_SERVED_URL}"
        what = "a set that decodes together" if strategy is None else str(strategy)
        reason = f"no server runs {', '.join(local)}" if local else "such a program sends each question to one model"
        notes.append(f"{what} cannot run there, because {reason}: {runs}")
        served = ModelSpec(ServerAddress(_SERVED_URL, run.resolve().name, key_env=_SERVED_KEY), name)
        members, router = (served, *(member for member in members if member.is_remote)), None
    else:
        notes.append("clients send prompts as the task has them; `advisor serve` makes them of questions")
    if router is not None:
        notes.append(f"clients say the group of a question; {members[0].name} answers questions without one")
    if all(member.price is None for member in members):
        notes.append("a run does not keep the prices of tokens; with --pool FILE the prices of the file are written")
    for member, address in _with_addresses(members):
        if address.thinking_budget is not None:
            notes.append(f"{member.name}: the limit of its thinking is not written; clients send it")
    content, more = _configuration(name, members, router)
    notes = [visible(note) for note in (*notes, *more)]
    head = "".join(f"# {line}\n" for line in ("Written by `advisor export`.", *notes))
    return f"{head}{yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=120)}", notes


def _configuration(
    name: str, members: Sequence[ModelSpec], router: GroupRouter | None
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The configuration, as YAML holds it, and what of the members it cannot say.

    Args:
        name: What clients call the strategy; no member has this name, or the first one alone.
        members: Models behind servers. Without a router the first one answers all questions.
        router: Sends each group of questions to a member, and all others to the first one; None for others.

    Raises:
        InputError: A name would be read as a variable of the environment.
    """
    for each in (name, *(member.name for member in members)):
        if each.startswith(_VARIABLE):
            raise InputError(f"{each}: LiteLLM reads this name as a variable of the environment; give another name=")
    models = [_deployment(member.name, member, address) for member, address in _with_addresses(members)]
    first, settings, notes = members[0].name, {}, []
    if router is not None:
        for member, address in _with_addresses(members):
            tags = [_tag_of(group) for group, to in router.routes if to == member.name]
            own = [_DEFAULT, *tags] if member.name == first else tags
            models.append(_deployment(name, member, address, tags=own))
        # A router asks the others, in their order, if the member of the group fails.
        settings = {"enable_tag_filtering": True, "fallbacks": [{name: [member.name for member in members]}]}
        notes = [f"a client's request has the tag {_tag_of('GROUP')} in metadata.tags"]
    elif name != first:
        settings = {"model_group_alias": {name: first}}
    return {"model_list": models, **({"router_settings": settings} if settings else {})}, notes


def _tag_of(group: str) -> str:
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


def _with_addresses(members: Sequence[ModelSpec]) -> Iterator[tuple[ModelSpec, ServerAddress]]:
    """Members behind servers, each with its address."""
    for member in members:
        if member.checkpoint.is_remote:
            yield member, member.checkpoint
