"""What decides the responses of a model behind a server, as far as a client can know.

The owner of a server can change the model behind an address at any time, and no field of the API has to show it.
So responses are stored under the address, what the server says of its model, and the day (UTC): on another day the
questions are sent again. A user who knows the version of the model gives it a ``revision=``, which replaces the day and
the server's words.

A model whose line has ``tokenizer=`` is a full member if its server gives log-probabilities by token id: it is asked
with token ids, here and in sets that decode together. Other models behind servers give whole texts.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, cast

from advisor.models.completions import CHAT, COMPLETIONS, generate, is_chat
from ensemble.common.background import in_background
from ensemble.common.text import first_of
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.models.model_files import check_tokenizer
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import FEW_RETRIES, ServerClient, ServerError
from ensemble.servers.token_client import connect

# What servers say of a model besides its name: vLLM and SGLang where its weights are, llama.cpp how large it is.
_MODEL_FIELDS = ("root", "parent", "owned_by", "max_model_len", "meta")
# Seconds. Several servers give the time of the request as the model's time of creation; that is not kept.
_MIN_AGE_S = 3600
_MAX_VALUE = 500
"""Characters of a value that is kept of a server's answer."""
# With fewer tokens, reasoning models give an error.
_TEST = Settings(16)
_FINGERPRINT = "system_fingerprint"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What decides the responses of a model behind a server."""

    # With a tokenizer if it can be decoded token by token, the fields that its server refuses, and whether prompts go
    # through a chat template: the tokenizer's here, or else the server's.
    spec: ModelSpec
    says: Mapping[str, Any]  # what the server says of the model
    day: str  # day of the request, in UTC
    lacks: str | None = None  # why a model with a tokenizer cannot be decoded token by token; None if it can
    tokenizer: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each file of a local tokenizer, by name

    @property
    def address(self) -> ServerAddress:
        """Where its server is, and how it is asked."""
        return cast("ServerAddress", self.spec.checkpoint)

    def key(self) -> dict[str, Any]:
        """As part of a response's key."""
        revision = self.address.revision
        # The fingerprint is left out: it can differ between a provider's machines.
        says = {name: value for name, value in self.says.items() if name != _FINGERPRINT}
        version = {"says": says, "day": self.day} if revision is None else {"revision": revision}
        path = CHAT if is_chat(self.spec) else COMPLETIONS
        key: dict[str, Any] = {"url": self.address.url, "model": self.address.model, "path": path, **version}
        key |= self.spec.options("key")
        if self.spec.can_decode:
            # A folder is known by its files, wherever it is.
            key["tokenizer"] = dict(self.tokenizer) or self.address.tokenizer
            key["chat_template"] = self.spec.chat_template
        return key

    def as_dict(self) -> dict[str, Any]:
        """As ``result.json`` has it. A server has no files: its address and what it says are all that is known."""
        return {
            **self.spec.options("result"),
            "path_or_id": self.address.path_or_id,
            "revision": self.address.revision,
            "files": {},
            "chat_template": "always" if is_chat(self.spec) else self.spec.chat_template,
            "day": self.day,
            "says": dict(self.says),
            "remote": self.address.as_dict(),
        }


def identify_server(spec: ModelSpec, settings: Settings = _TEST) -> ServerIdentity:
    """Request a server's list of models and a few tokens, and see whether it can be decoded token by token."""
    address, lacks = cast("ServerAddress", spec.checkpoint), None
    if spec.can_decode:
        check_tokenizer(spec.tokenizer)
    try:
        with ServerClient(address, FEW_RETRIES) as server:
            # First, because it costs nothing, and because its names help where the model's name is wrong.
            models = _list_models(server)
            if spec.can_decode:
                try:
                    connect(address, spec.name).client.close()
                except InputError as error:
                    lacks, address = error.without(spec.name), replace(address, tokenizer=None)
                    spec = replace(spec, checkpoint=address)
            try:
                short = replace(settings, max_new_tokens=_TEST.max_new_tokens)
                _, answer = generate(server, "Hello", short, chat=is_chat(spec))
            except ServerError as error:
                raise _with_hint(error, address, list(models), chat=is_chat(spec)) from None
            fields = _fields(answer, ("model", _FINGERPRINT))
            # Under another name: "model" is the user's own name for it, which a server may map to a dated version.
            named = {"answers_as": fields.pop("model")} if "model" in fields else {}
            says = {**models.get(address.model, {}), **named, **fields}
    except ServerError as error:
        raise InputError(str(error)) from None
    address = replace(address, left_out=tuple(sorted(server.left_out)))
    return ServerIdentity(replace(spec, checkpoint=address), says, today(), lacks)


def today() -> str:
    """The day, in UTC."""
    # UTC, so that a run on machines in two time zones has one day.
    return datetime.now(timezone.utc).date().isoformat()


def _list_models(server: ServerClient) -> dict[str, dict[str, Any]]:
    """What a server says of each of its models, by name; empty where it has no list."""
    try:
        listed = server.models()
    except ServerError as error:
        # Some servers have one model and no list, and on others the list fails. Without a status, or with a wrong
        # key, the model will not answer either.
        if error.status in (None, 401, 403):
            raise
        return {}
    found = {}
    for model in listed:
        if isinstance(model.get("id"), str):
            found[model["id"]] = _fields(model, _MODEL_FIELDS)
            created = model.get("created")
            # NaN and the infinities fail the comparison, too.
            if isinstance(created, (int, float)) and 0 <= created < time.time() - _MIN_AGE_S:
                found[model["id"]]["created"] = created
    return found


def _fields(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Some fields of a server's answer, those with short values that JSON can represent."""
    return {name: answer[name] for name in names if answer.get(name) is not None and _is_short(answer[name])}


def _is_short(value: object) -> bool:
    try:
        # result.json has no NaN and no infinity; with one of them it could not be written after the whole run.
        return len(json.dumps(value, allow_nan=False)) < _MAX_VALUE
    except ValueError:
        return False


def _with_hint(error: ServerError, address: ServerAddress, models: Sequence[str], *, chat: bool) -> ServerError:
    """The error of a model that does not answer, with what may help."""
    if error.status in (401, 403, 429) or error.status is None:
        return error
    hint = ""
    if models and address.model not in models:
        names = first_of([" ".join(name.split()) for name in models], 20)
        hint = f"; the server does not list {address.model!r}, but lists {names}"
    elif error.status == 400 and (address.thinking_budget, address.reasoning_effort) != (None, None):
        option = "thinking_budget" if address.reasoning_effort is None else "reasoning_effort"
        hint = f"; correct {option}= of its line, or leave it out"
    elif chat:
        hint = f"; if the model has no chat template, add chat_template=never to its line to use {COMPLETIONS}"
        if error.status == 404 and not models:
            hint = "; does the address lack /v1?"
    return ServerError(f"{error}{hint}", error.failure, error.status)


PAUSE_S = 5.0
"""Between two requests to a server."""
_TIMEOUT_S = 2.0
_LOG = logging.getLogger(__name__)


class ServerHealth:
    """Asks servers for their lists of models, which costs nothing, and keeps the names of those that do not answer."""

    def __init__(self, addresses: Mapping[str, ServerAddress]) -> None:
        self.addresses, self.failing = addresses, set[str]()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to ask."""
        # A thread for each: a server that does not answer must not delay the others.
        for name, address in self.addresses.items():
            in_background(partial(self._watch, name, address), f"health of {name}")

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def _watch(self, name: str, address: ServerAddress) -> None:
        quick = replace(address, timeout=min(_TIMEOUT_S, address.timeout), requests_per_minute=None)
        try:
            client = ServerClient(quick, retries=0)
        except InputError:  # its key is gone; the requests themselves say so
            return
        with client:
            while not self._stopped.is_set():
                reason = None
                try:
                    client.get("/models")
                except ServerError as error:
                    # Some servers have one model and no list. What they refuse, they have received.
                    reason = error if error.status is None or error.status >= 500 else None
                if reason is not None and name not in self.failing:
                    _LOG.warning("%s does not answer: %s", name, reason)
                    self.failing.add(name)
                elif reason is None and name in self.failing:
                    _LOG.warning("%s answers again", name)
                    self.failing.discard(name)
                self._stopped.wait(PAUSE_S)
