"""The models of a server that a line names without one of them: its list of models says what it has.

openai:http://127.0.0.1:11434/v1        # its only model
openai:http://127.0.0.1:11434/v1#*      # all of its models, each with the options of the line
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ensemble.common.text import first_of
from ensemble.errors import InputError, UniteError
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import ALL, PREFIX, ServerAddress
from ensemble.servers.client import FEW_RETRIES, NO_LIST, ServerClient, ServerError

MOST_MODELS = 100
"""That ``#*`` takes."""
_SECONDS = 10.0
"""Of the request, where the line has no ``timeout=``."""
_LONGEST = 200
"""Characters of a name."""
_SHOWN = 20
"""Names in a message."""


def listed_models(address: ServerAddress, retries: int = FEW_RETRIES) -> list[str]:
    """The names of the models that a server lists, each once, without those that a pool file cannot have."""
    with ServerClient(address, retries) as server:
        names = [model.get("id") for model in server.models()]
    texts = [name for name in names if isinstance(name, str) and name.isprintable()]
    return list(dict.fromkeys(name for name in texts if name.strip() and len(name) <= _LONGEST))


def models_at(address: ServerAddress, given: Mapping[str, Any], place: str, *, takes_all: bool) -> list[ModelSpec]:
    """The models of a server, each with the options ``given`` by name: the only one, or all of them.

    Raises:
        InputError: The server gives no list, an empty one, or one with several models of which one is to be chosen.
    """
    spec = ModelSpec.read(address, given, place)
    # First, because the key is sent with the request.
    spec.check_consent((), None, place)
    server = replace(cast("ServerAddress", spec.checkpoint), timeout=given.get("timeout", _SECONDS))
    try:
        names = listed_models(server)
    except UniteError as error:
        has_none = isinstance(error, ServerError) and (error.failure == "invalid" or error.status in NO_LIST)
        way_out = "add #MODEL to the address" if address.url.endswith("/v1") else "does the address lack /v1?"
        raise InputError(f"{error}; {way_out}" if has_none else str(error), of=place) from None
    url, count = address.url, f"{len(names):,} models"
    if not names:
        raise InputError(f"{url} lists no models; start it with one, or add #MODEL to its address", of=place)
    if len(names) > 1 and not takes_all:
        raise InputError(
            f"{url} lists {count}: {first_of(names, _SHOWN)}; give {PREFIX}{url}#MODEL for one of them, or "
            f"{PREFIX}{url}#{ALL} for all",
            of=place,
        )
    if len(names) > MOST_MODELS:
        raise InputError(f"{url} lists {count}, and #{ALL} takes at most {MOST_MODELS}; give a line for each", of=place)
    if len(names) > 1 and "name" in given:
        raise InputError(f"name= is for one model, and {url} lists {count}; leave it out", of=place)
    found = [replace(address, model=name) for name in names]
    short = [each.name for each in found]
    return [
        ModelSpec.read(each, {"name": each.model, **given} if short.count(each.name) > 1 else given, place)
        for each in found
    ]
