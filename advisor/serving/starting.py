"""Loading a chosen set or the models of a strategy, and making an application of it."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING

from advisor.models.loaded_models import ALONE, ensemble_of, load_models
from advisor.models.server_model import ServerHealth, ServerModel, identify_server
from advisor.progress import Progress
from advisor.run.plan import StrategyPlan, answer_reader, load_chosen
from advisor.strategies.schema import file_json
from ensemble.common.files import default_cache_dir
from ensemble.errors import InputError
from ensemble.models.spec import EnsembleSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI

    from advisor.models.ask import Model
    from advisor.options.finished_run import ServeOptions
    from advisor.run.task_prompt import TaskPrompt
    from advisor.serving.engine import SharedDecoder
    from advisor.serving.handler import RequestHandler
    from advisor.serving.metrics import Metrics
    from advisor.serving.protocol import RequestLimits
    from ensemble.api import Ensemble

# With --batch-size auto: at most so many texts at a time, as many as fit into memory with prompts of this length.
_MAX_ROWS = 64
_PROMPT_TOKENS = 1024


def check_joinable(chosen: EnsembleSpec) -> None:
    """Check that requests to a set can be decoded together."""
    from ensemble.methods import list_methods

    if list_methods()[chosen.method].level != "token":
        raise InputError(
            f"--method {chosen.method}: it does not decode token by token, so requests cannot share a batch or be "
            "streamed; use a token-level method, for example --method unite"
        )


def served_id(chosen: EnsembleSpec | StrategyPlan, prompt: TaskPrompt | None = None) -> str:
    """OpenAI's ``system_fingerprint``: a digest of all that decides the texts of a set or a strategy."""
    models = []
    for model in chosen.members:
        checkpoint = model.checkpoint
        place = checkpoint.path_or_id if checkpoint.is_remote else checkpoint.location
        options = model.options("key").values()
        models.append([place, checkpoint.revision, model.dtype, model.device, model.chat_template, *options])
    # The version counts too: a new release may decode differently.
    made = [] if prompt is None else [prompt.template, *prompt.templates.values()]
    templates = [template.model_dump(mode="json") for template in made]
    decoding: list[object]
    if isinstance(chosen, EnsembleSpec):
        decoding = [chosen.method, chosen.k, *([dict(chosen.options)] if chosen.options else [])]
    else:
        reader = chosen.reader
        decoding = [file_json(chosen.strategy, models=()), [] if reader is None else [reader.metric, reader.extract]]
    parts = [metadata.version("unite-advisor"), *decoding, models, templates]
    return "fp_" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def make_app_of(  # what a server needs
    chosen: EnsembleSpec | StrategyPlan,
    name: str,
    limits: RequestLimits,
    key_digest: bytes | None,
    hosts: frozenset[str] | None,
    options: ServeOptions,
    *,
    prompt: TaskPrompt | None = None,
) -> tuple[FastAPI, RequestHandler]:
    """Load a set or the models of a strategy, and make an application and its engine."""
    from advisor.serving.app import make_app
    from advisor.serving.metrics import Metrics
    from advisor.serving.responses import ServedModel

    metrics = Metrics()
    engine: RequestHandler
    max_model_len = None
    if isinstance(chosen, EnsembleSpec):
        from ensemble.models.member import ServerMember

        method = chosen.method
        ensemble = load_chosen(chosen)
        (engine,) = _decoders([ensemble], limits, metrics, options)
        for member in ensemble.members:
            if isinstance(member, ServerMember):
                metrics.watch(member.name, member.client.counts)
        if len(ensemble.members) == 1:
            max_model_len = ensemble.members[0].context
    else:
        from advisor.serving.strategy_handler import StrategyHandler

        method = chosen.strategy.name
        engine = StrategyHandler(chosen, _models(chosen, limits, options), limits, metrics, options.group)
    members = tuple(model.name for model in chosen.members)
    made_of = served_id(chosen, prompt)
    reader = answer_reader(chosen)
    served = ServedModel(name, members, method, made_of, int(time.time()), max_model_len, prompt, reader)
    servers = {each.name: each.checkpoint for each in chosen.members if each.checkpoint.is_remote}
    health = ServerHealth(servers) if servers else None
    app = make_app(engine, served, limits, metrics, key_digest, hosts, health, options.allow_origin)
    return app, engine


def _decoders(
    ensembles: Sequence[Ensemble], limits: RequestLimits, metrics: Metrics | None, options: ServeOptions
) -> list[SharedDecoder]:
    """An engine for each of these ensembles, which share the memory that is free; without metrics each has its own."""
    if not ensembles:
        return []
    from advisor.serving.engine import SharedDecoder
    from advisor.serving.metrics import Metrics
    from ensemble.decode.settings import Batch

    batch_size = options.batch_size
    if batch_size is None:
        # After loading: what is free then is free for the texts.
        rooms = [ensemble.most_rows(_PROMPT_TOKENS + limits.default_tokens) for ensemble in ensembles]
        # A single model keeps as many rows for requests with token ids.
        shares = len(ensembles) + ([len(each.members) for each in ensembles] == [1])
        room = min((each // shares for each in rooms if each is not None), default=_MAX_ROWS)
        batch_size = max(1, min(limits.texts, room, _MAX_ROWS))
    # Few long prompts at a time: a batch of them would take the memory and the time of all that run beside them.
    batch = Batch(batch_size, tokens=batch_size * _PROMPT_TOKENS, deterministic=options.deterministic)
    return [SharedDecoder(ensemble, batch, limits, metrics or Metrics()) for ensemble in ensembles]


def _models(plan: StrategyPlan, limits: RequestLimits, options: ServeOptions) -> list[Model]:
    """The models of a strategy: all local ones are in memory, and servers are asked whether they answer."""
    from advisor.serving.strategy_handler import DecoderModel

    servers = {member.name: ServerModel(member) for member in plan.members if member.is_remote}
    local = [member for member in plan.members if not member.is_remote]
    problems = []
    for member in plan.members:
        try:
            if member.is_remote:
                identify_server(member)
        except InputError as error:
            problems.append(f"{member.name}: {error}")
    if problems and len(problems) == len(plan.members):
        raise InputError(problems[0])
    for problem in problems:
        Progress().say(f"{problem}; requests go on without it while it fails")
    specs = [EnsembleSpec((member,), ALONE) for member in local]
    # All at once: lines with the same weights share them.
    loaded = zip(load_models(local), specs, strict=True)
    ensembles = [ensemble_of([member], spec, default_cache_dir()) for member, spec in loaded]
    # The texts are counted before, and self-consistency draws several of each.
    draws = plan.strategy.responses_per_member
    tokens = None if limits.tokens is None else limits.tokens * draws
    own = replace(limits, texts=limits.texts * draws, tokens=tokens)
    # The figures of a member's decoder would mix with those of the requests.
    engines = _decoders(ensembles, own, None, options)
    decoders = {model.name: DecoderModel(model.name, engine) for model, engine in zip(local, engines, strict=True)}
    models: dict[str, Model] = {**servers, **decoders}
    return [models[member.name] for member in plan.members]
