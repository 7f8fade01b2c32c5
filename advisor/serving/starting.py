"""Loading a chosen set and making an application of it."""

from __future__ import annotations

import gc
import hashlib
import json
import time
from importlib import metadata, util
from typing import TYPE_CHECKING

from ensemble.errors import InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from advisor.serving.engine import ServingEngine
    from advisor.serving.protocol import RequestLimits
    from ensemble.models.spec import EnsembleSpec

# With --batch-size auto: at most so many texts at a time, as many as fit into memory with prompts of this length.
_MAX_ROWS = 64
_PROMPT_TOKENS = 1024


def check_extra() -> None:
    """Check that the libraries for the server are installed.

    Raises:
        InputError: One is not installed.
    """
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        if util.find_spec(name) is None:
            raise InputError(f"advisor serve needs {name}, which is not installed; pip install 'unite-advisor[serve]'")


def check_level(method: str) -> None:
    """Check that a method decodes token by token.

    Raises:
        InputError: The method writes whole spans.
    """
    from ensemble.methods import list_methods

    if list_methods()[method].level != "token":
        raise InputError(
            f"--method {method}: this method writes whole spans, so requests cannot share a batch or be streamed; "
            "use a token-level method, for example --method unite"
        )


def name_of(chosen: EnsembleSpec) -> str:
    """The name of a set that has no other name: its members."""
    return "+".join(model.name for model in chosen.members)


def fingerprint(chosen: EnsembleSpec) -> str:
    """OpenAI's ``system_fingerprint``: a digest of all that decides the texts of a set."""
    models = [
        [model.checkpoint.location, model.checkpoint.revision, model.dtype, model.device, model.chat_template]
        for model in chosen.members
    ]
    # The version counts too: a new release may decode differently.
    parts = [metadata.version("unite-advisor"), chosen.method, chosen.k, models]
    return "fp_" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def freeze_garbage_collector() -> None:
    """Exclude all present objects from garbage collection."""
    # Libraries and models stay until the end. Without this, many requests cause collections that visit all of them
    # while the decoder waits.
    gc.collect()
    gc.freeze()


def make_app_of(
    chosen: EnsembleSpec,
    name: str,
    limits: RequestLimits,
    key_digest: bytes | None,
    hosts: frozenset[str] | None,
    batch_size: int | None,
) -> tuple[FastAPI, ServingEngine]:
    """Load a set, and make an application and its engine.

    Args:
        chosen: The set.
        name: The model's name for clients.
        limits: Limits of requests.
        key_digest: Digest of the API key; None where requests need no key.
        hosts: The server's names; None where every name is accepted.
        batch_size: Number of texts that are decoded at a time; None for as many as fit into memory, at most 64.

    Raises:
        InputError: The set cannot be loaded with these options.
        MemberError: A model failed while it was loaded.
    """
    from advisor.output.chosen_set import load_chosen
    from advisor.serving.app import make_app
    from advisor.serving.engine import ServingEngine
    from advisor.serving.metrics import Metrics
    from advisor.serving.responses import ServedModel
    from ensemble.decode.settings import Batch

    ensemble, metrics = load_chosen(chosen), Metrics()
    if batch_size is None:
        # After loading: what is free then is free for the texts.
        room = ensemble.most_rows(_PROMPT_TOKENS + limits.default_tokens)
        batch_size = min(limits.texts, _MAX_ROWS if room is None else max(1, min(room, _MAX_ROWS)))
    # Few long prompts at a time: a batch of them would take the memory and the time of all that run beside them.
    engine = ServingEngine(ensemble, Batch(batch_size, tokens=batch_size * _PROMPT_TOKENS), limits, metrics)
    members = tuple(model.name for model in chosen.members)
    served = ServedModel(name, members, chosen.method, fingerprint(chosen), int(time.time()))
    return make_app(engine, served, limits, metrics, key_digest, hosts), engine
