"""What a program needs to get a strategy, and what all of these programs share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from advisor.running.plan import StrategyPlan
from advisor.strategies.group_router import GroupRouter
from ensemble.common.text import visible
from ensemble.models.spec import EnsembleSpec, ModelSpec
from ensemble.servers.address import ServerAddress

_SERVED_URL, _SERVED_KEY = "http://127.0.0.1:8000/v1", "ADVISOR_API_KEY"
"""Where ``advisor serve`` answers if no option says it, and the variable of its key."""


class Target(Protocol):
    """A module that writes the configuration of a program.

    Attributes:
        FILE: The name of the file.
    """

    FILE: str

    def configuration(
        self, name: str, members: Sequence[ModelSpec], router: GroupRouter | None
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """The configuration, as YAML holds it, and what of the members it cannot say.

        Args:
            name: What clients call the strategy; no member has this name, or the first one alone.
            members: Models behind servers. Without a router the first one answers all questions.
            router: Sends each group of questions to a member, and all others to the first one; None for others.
        """


def handed_over(target: Target, run: Path, chosen: EnsembleSpec | StrategyPlan, serve: str) -> tuple[str, list[str]]:
    """The file of a program for a strategy, and what the program does not run as the run did.

    What the program cannot run is behind ``advisor serve``, as one model.

    Args:
        target: The program.
        run: The run folder; clients call the strategy by its name.
        chosen: The strategy.
        serve: The command that serves it.
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
    for member, address in with_addresses(members):
        if address.thinking_budget is not None:
            notes.append(f"{member.name}: the limit of its thinking is not written; clients send it")
    content, more = target.configuration(name, members, router)
    notes = [visible(note) for note in (*notes, *more)]
    head = "".join(f"# {line}\n" for line in ("Written by `advisor export`.", *notes))
    return f"{head}{yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=120)}", notes


def with_addresses(members: Sequence[ModelSpec]) -> Iterator[tuple[ModelSpec, ServerAddress]]:
    """Members behind servers, each with its address."""
    for member in members:
        if member.checkpoint.is_remote:
            yield member, member.checkpoint


def groups_of(router: GroupRouter, member: str) -> list[str]:
    """The groups that a router sends to a member."""
    return [group for group, name in router.routes if name == member]
