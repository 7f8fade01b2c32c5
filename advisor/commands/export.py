"""The recommended strategy of a run as a folder without weights, with a model card that states the evidence."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from advisor.commands.compose import check_unchanged_files, compose
from advisor.options.finished_run import ExportOptions
from advisor.progress import Progress
from advisor.run.folder import Run
from advisor.run.permissions import keep_servers, kept_servers
from advisor.run.plan import StrategyPlan, check_servers, plan_json, plan_of_run
from advisor.run.result import ModelSource, Result
from advisor.strategies.group_router import GroupRouter
from advisor.strategies.strategy import Single, Strategy
from ensemble.common.extras import wheel, wheel_to_install
from ensemble.common.files import write_text
from ensemble.common.text import visible
from ensemble.errors import InputError, UniteError
from ensemble.models.hub import push_files
from ensemble.models.model_files import check_unchanged
from ensemble.models.spec import OWN_SETTINGS, EnsembleSpec, ModelSpec
from ensemble.saved import folder as savedfolder
from ensemble.saved.ensemble_json import to_json
from ensemble.saved.model_card import MARKER, escaped, model_card, prompt_section
from ensemble.servers.address import ServerAddress, is_allowed
from ensemble.servers.client import key_variable
from reports.formats import evidence
from reports.tables import as_markdown, strategies

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


def export(options: ExportOptions) -> None:
    """Write the export, and print its folder, its address on the hub, or the file of the other program."""
    print(export_run(options))
    if options.compose:
        Progress().say(
            f"before `docker compose up --build`, put {wheel()} into {options.folder}: the image is built with it"
        )


def export_run(options: ExportOptions) -> str:
    """Write what a run recommends: a saved ensemble, or a ``strategy.json`` for what does not decode together."""
    run, folder, push = Run.open(options.run), options.folder, options.push
    chosen = plan_of_run(run, options, Progress().say)
    if isinstance(chosen, EnsembleSpec) and len(chosen.members) == 1:
        # A saved ensemble is of several models that decode together.
        name = chosen.members[0].name
        chosen = StrategyPlan(Single((name,)), chosen.members, chosen.max_new_tokens, chosen.stop, chosen.task)
    if options.target is not None:
        return _hand_over(options, chosen)
    # With a pool file the models are where it says, and the run's hashes may be those of other files.
    result = run.result
    sources = result.provenance.models if options.pool is None else {}
    pinned = tuple(_pinned(member, sources.get(member.name)) for member in chosen.members)
    # Checked before the card is made: everything that can be refused is refused before a file is written.
    savedfolder.check_target(folder)
    if push is not None:
        savedfolder.check_pushable(pinned)
    file = savedfolder.FILE if isinstance(chosen, EnsembleSpec) else savedfolder.STRATEGY_FILE
    services: Mapping[str, str] = {}
    if options.compose:
        pinned, services = compose(pinned, folder / file, options)
    chosen = replace(chosen, members=pinned)
    if isinstance(chosen, EnsembleSpec):
        card = model_card(chosen, f"An ensemble for {result.task.name}", evidence(result), _measured(result))
        content = {savedfolder.CARD: card, file: to_json(chosen, folder)}
    else:
        content = {savedfolder.CARD: _card(chosen, result), file: plan_json(chosen, folder)}
    savedfolder.write_files(folder, {**content, **services})
    # What the user allows the run, or names in a pool file, holds for the export as well.
    allowed = (*options.allow_server, *kept_servers(run.file))
    urls = [member.checkpoint.url for member in chosen.members if member.checkpoint.is_remote]
    keep_servers(folder / file, [url for url in urls if options.pool is not None or is_allowed(url, allowed)])
    return str(folder) if push is None else push_files(folder, tuple(content), push, private=not options.public)


def _hand_over(options: ExportOptions, chosen: EnsembleSpec | StrategyPlan) -> str:
    """Write the configuration of LiteLLM's proxy for a strategy, and say what it does not run; the file."""
    remote = [member for member in chosen.members if member.is_remote]
    # Consent here is consent in the file: with it, the program sends prompts and keys to these servers.
    check_servers(remote, options, None if options.pool is not None else Run(options.run).file)
    given = [("--strategy", options.strategy), ("--pool", options.pool)]
    given += [("--trust-remote-code", name) for name in options.trust_remote_code]
    words = [word for option, value in given if value is not None for word in (option, value)]
    serve = shlex.join(["advisor", "serve", str(options.run), *words])
    content, notes = _litellm_yaml(options.run, chosen, serve)
    path = options.folder / FILE
    check_unchanged_files(options.folder, {FILE: content})
    try:
        write_text(path, content)
    except OSError as error:
        raise UniteError(f"{path}: cannot be written ({error}); correct that, or give another folder") from error
    for note in notes:
        Progress().say(note)
    return str(path)


def _pinned(member: ModelSpec, source: ModelSource | None) -> ModelSpec:
    """A member as :func:`ensemble.saved.folder.pinned` has it, from what the run knows of it."""
    checkpoint = member.checkpoint
    if source is None or checkpoint.is_remote or not checkpoint.is_local:
        return savedfolder.pinned(member)
    # The run's hashes, not new ones: the evidence is about the files that the run loaded.
    files = dict(source.files)
    check_unchanged(checkpoint, files, since="the run")
    return replace(member, checkpoint=checkpoint.absolute, files=files)


def _measured(result: Result) -> Sequence[EvalResult]:
    """The ensemble's accuracy for the card's metadata; nothing where it was not run on held-out questions."""
    from huggingface_hub import EvalResult

    run = result.ensemble
    if run is None or run.accuracy is None:
        return ()
    return (
        EvalResult(
            task_type="text-generation",
            dataset_type=result.task.name,
            dataset_name=result.task.name,
            dataset_split=run.split,
            metric_type=result.task.metric,
            metric_name=f"{result.task.metric}, points of 100, on {run.n} held-out questions",
            # The hub compares numbers as they are shown; more digits would claim more than n questions tell.
            metric_value=round(run.accuracy, 2),
        ),
    )


def _card(plan: StrategyPlan, result: Result) -> str:
    """The card of a strategy: what it does, its models, how to run it, and the evidence for it."""
    package = wheel_to_install(local=any(member.can_decode for member in plan.members))
    parts = (
        f"---\nlibrary_name: unite-advisor\ntags: [unite-advisor, {plan.strategy.name}]\n---",
        MARKER,
        f"# {escaped(f'A strategy for {result.task.name}')}",
        f"{escaped(plan.strategy.describe())}.",
        "This folder holds no weights: `strategy.json` lists the models, which do not decode together, and says how "
        "they are asked.",
        "\n".join(
            ("| model | where it is |", "|---|---|", *(f"| {escaped(m.name)} | {_place(m)} |" for m in plan.members))
        ),
        "## Use",
        f'```sh\npip install "{package}"\nadvisor run FOLDER "A question"\nadvisor serve FOLDER\n```',
        "A model behind a server also needs `--allow-server URL`. The SHA-256 of its files identifies a model with a "
        "path.",
        *([prompts] if (prompts := prompt_section(plan.task)) else []),
        "## Evidence",
        *_evidence(plan.strategy, result),
        "## Licence",
        "No licence is set here. Each model keeps its own licence, whose conditions also apply to the text that it "
        "writes.",
    )
    return "\n\n".join(parts) + "\n"


def _place(member: ModelSpec) -> str:
    checkpoint = member.checkpoint
    if checkpoint.is_remote:
        return f"a server: {escaped(checkpoint.path_or_id)}"
    revision = f", revision `{checkpoint.revision}`" if checkpoint.revision else ""
    return f"a path, dtype {member.dtype or 'auto'}" if not revision else f"{escaped(checkpoint.path_or_id)}{revision}"


def _evidence(strategy: Strategy, result: Result) -> tuple[str, ...]:
    """The figures of all strategies that the run compared, as Markdown."""
    if not result.strategies:
        return ("The run compared no strategies on held-out questions.",)
    return (
        f"On {result.held_out:,} held-out questions of the task {escaped(result.task.name)}, in points, with the gain "
        f"over the best single model. This folder has: {escaped(str(strategy))}.",
        as_markdown(strategies(result)),
        "The result does not hold for other tasks, other wordings of the prompt, or other versions of the models.",
    )


FILE = "litellm.yaml"
_VARIABLE = "os.environ/"
"""Before the name of a variable, whose value takes the place of the text."""
_DEFAULT = "default"
"""The tag of the deployment that gets requests without a known tag."""
_TAG = "group:"
"""Before the name of a group in its tag, because some tags and first characters have a meaning."""
_SERVED_URL, _SERVED_KEY = "http://127.0.0.1:8000/v1", "ADVISOR_API_KEY"
"""Where ``advisor serve`` answers if no option says it, and the variable of its key."""


def _litellm_yaml(run: Path, chosen: EnsembleSpec | StrategyPlan, serve: str) -> tuple[str, list[str]]:
    """The proxy's configuration for a strategy, and what the proxy does not run as the run did.

    What it cannot run is behind ``advisor serve``, as one model, which the command ``serve`` starts.
    """
    strategy = chosen.strategy if isinstance(chosen, StrategyPlan) else None
    router = strategy if isinstance(strategy, GroupRouter) else None
    members, name = chosen.members, run.resolve().name
    local = [member.name for member in members if not member.is_remote]
    while name in {member.name for member in members}:
        name += "-strategy"
    notes = []
    own = [member.name for member in members if not member.options("key").keys().isdisjoint(OWN_SETTINGS)]
    if local or own or strategy is None or not (isinstance(strategy, Single) or router):
        runs = f"`{serve}` runs it, and the model {name} of the file is at its address, {_SERVED_URL}"
        what = "a set that decodes together" if strategy is None else str(strategy)
        reason = "such a program sends each question to one model"
        if local or own:
            names = ", ".join(local or own)
            reason = f"no server runs {names}" if local else f"such a program does not ask {names} as its line says"
        notes.append(f"{what} cannot run there, because {reason}: {runs}")
        served = ModelSpec(ServerAddress(_SERVED_URL, run.resolve().name, key_env=_SERVED_KEY), name)
        members, router = (served, *(member for member in members if member.is_remote)), None
    else:
        notes.append("clients send prompts as the task has them; `advisor serve` makes them of questions")
    if router is not None:
        notes.append(f"clients say the group of a question; {members[0].name} answers questions without one")
    if all(member.price is None for member in members):
        notes.append("a run does not keep the prices of tokens; with --pool FILE the prices of the file are written")
    servers = [(member, member.checkpoint) for member in members if member.checkpoint.is_remote]
    for member, address in servers:
        if address.thinking_budget is not None:
            notes.append(f"{member.name}: the limit of its thinking is not written; clients send it")
    content = _configuration(name, servers, router)
    if router is not None:
        notes.append(f"a client's request has the tag {_TAG}GROUP in metadata.tags")
    notes = [visible(note) for note in notes]
    head = "".join(f"# {line}\n" for line in ("Written by `advisor export`.", *notes))
    return f"{head}{yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)}", notes


def _configuration(
    name: str, servers: Sequence[tuple[ModelSpec, ServerAddress]], router: GroupRouter | None
) -> dict[str, Any]:
    """The configuration, as YAML holds it, of members behind servers.

    Clients call the strategy by the name, which no member has, or the first one alone. Without a router the first
    member answers all questions.
    """
    names = [member.name for member, _ in servers]
    if variable := next((each for each in (name, *names) if each.startswith(_VARIABLE)), None):
        raise InputError(f"{variable}: LiteLLM reads this name as a variable of the environment; give another name=")
    models = [_deployment(member.name, member, address) for member, address in servers]
    settings = {}
    if router is not None:
        for member, address in servers:
            tags = [f"{_TAG}{group}" for group, to in router.routes if to == member.name]
            own = [_DEFAULT, *tags] if member.name == names[0] else tags
            models.append(_deployment(name, member, address, tags=own))
        # A router asks the others, in their order, if the member of the group fails.
        settings = {"enable_tag_filtering": True, "fallbacks": [{name: names}]}
    elif name != names[0]:
        settings = {"model_group_alias": {name: names[0]}}
    return {"model_list": models, **({"router_settings": settings} if settings else {})}


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
