"""From a chosen set to an application."""

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

    from advisor.serving.engine import Engine
    from advisor.serving.guard import Key
    from advisor.serving.order import Limits
    from ensemble.models.spec import EnsembleSpec

_MOST_ROWS = 64
"""Texts that are decoded at a time at most, where nobody says how many."""
_PROMPT = 1024
"""Tokens of a prompt that memory is left for then."""


def check_extra() -> None:
    """Make sure that the libraries are there that only a server needs.

    Raises:
        InputError: One of them is not.
    """
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        if util.find_spec(name) is None:
            raise InputError(f"advisor serve needs {name}, which is not installed; pip install 'unite-advisor[serve]'")


def check_level(method: str) -> None:
    """Make sure that a method decodes token by token.

    Raises:
        InputError: It does not.
    """
    from ensemble.methods import list_methods

    if list_methods()[method].level != "token":
        raise InputError(
            f"--method {method}: it writes whole spans, so requests cannot share a batch or be streamed; "
            "serve with a token-level one, as --method unite"
        )


def name_of(chosen: EnsembleSpec) -> str:
    """What a set is called where it has no other name: its members."""
    return "+".join(model.name for model in chosen.members)


def fingerprint(chosen: EnsembleSpec) -> str:
    """A digest of all that decides what a set writes: OpenAI's ``system_fingerprint``."""
    models = [
        [model.checkpoint.location, model.checkpoint.revision, model.dtype, model.device, model.chat_template]
        for model in chosen.members
    ]
    parts = [metadata.version("unite-advisor"), chosen.method, chosen.k, models]
    return "fp_" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def spare_what_stays() -> None:
    """Take what is there now, libraries and models, out of the garbage collector's sight: all of it stays to the end.

    Else a crowd of requests sets off collections that look at all of it, while everybody waits.
    """
    gc.collect()
    gc.freeze()


def make_app_of(
    chosen: EnsembleSpec, name: str, limits: Limits, key: Key | None, batch_size: int | None
) -> tuple[FastAPI, Engine]:
    """Load a set, and make an application and its engine of it.

    Args:
        chosen: The set.
        name: What clients call it.
        limits: What a request may ask for.
        key: What clients must show.
        batch_size: Texts that are decoded at a time; None for as many as there is room for.

    Raises:
        InputError: What was given cannot be used.
        MemberError: A model failed while it was loaded.
    """
    from advisor.output.chosen_set import load_chosen
    from advisor.serving.app import Served, make_app
    from advisor.serving.engine import Engine
    from advisor.serving.metrics import Metrics
    from ensemble.decode.settings import Batch

    ensemble, metrics = load_chosen(chosen), Metrics()
    if batch_size is None:
        room = ensemble.most_rows(_PROMPT + limits.usual_tokens)
        batch_size = min(limits.texts, _MOST_ROWS if room is None else max(1, min(room, _MOST_ROWS)))
    engine = Engine(ensemble, Batch(batch_size), limits, metrics)
    members = tuple(model.name for model in chosen.members)
    served = Served(name, members, chosen.method, fingerprint(chosen), int(time.time()))
    return make_app(engine, served, limits, metrics, key), engine
