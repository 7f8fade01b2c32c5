"""What decides the responses of a model behind a server, as far as anybody can tell.

The model behind an address can be changed by whoever runs the server, and nothing has to show it. So responses are
filed under the address, what the server says of its model, and the day (UTC): those of another day are asked for again.
Who knows which model it is gives it a ``revision=``, which then stands for the day and for what the server says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from advisor.config import InferenceConfig
from advisor.profile.server_answers import CHAT, COMPLETIONS, asked_to_write, read
from advisor.servers.address import Remote, as_dict
from advisor.servers.client import Server, ServerError
from ensemble.errors import InputError

_TOLD = ("root", "parent", "owned_by", "max_model_len", "meta")
"""What servers say of a model beside its name: vLLM and SGLang where its weights are, llama.cpp how large it is."""
_AGO = 3600
"""Seconds: several servers give the moment of asking for that at which the model was made."""
_LISTED = 20
"""Names of a server's models that a message has at the most."""
_LONG = 500
"""Characters of what a server says that are not kept any more."""
_RETRIES = 2
"""Of the first look: a busy server may drop a connection, and one that is not there shall be said soon."""
_TRIED = 16
"""Tokens that a model is asked for to see that it answers; with fewer, models that reason give an error."""
_FINGERPRINT = "system_fingerprint"


@dataclass(frozen=True, slots=True)
class RemoteIdentity:
    """What decides a remote model's responses.

    Attributes:
        remote: Where it is.
        chat: Whether prompts go through its chat template, on the server.
        says: What the server says of the model.
        day: When it was asked, in UTC.
    """

    remote: Remote
    chat: bool
    says: Mapping[str, Any]
    day: str

    def key(self) -> dict[str, Any]:
        """As part of a response's key."""
        revision = self.remote.revision
        # A fingerprint may differ from one of a provider's machines to the next.
        says = {name: value for name, value in self.says.items() if name != _FINGERPRINT}
        known = {"says": says, "day": self.day} if revision is None else {"revision": revision}
        return {"url": self.remote.url, "model": self.remote.model, "path": CHAT if self.chat else COMPLETIONS, **known}

    def as_dict(self) -> dict[str, Any]:
        """As ``result.json`` has it."""
        return {
            "path_or_id": self.remote.path_or_id,
            "revision": self.remote.revision,
            "files": {},
            "chat_template": "always" if self.chat else "never",
            "day": self.day,
            "says": dict(self.says),
            "remote": as_dict(self.remote),
        }


def identify_remote(remote: Remote, *, chat: bool) -> RemoteIdentity:
    """Ask a server which models it has, and the model for a few tokens; whoever cannot be asked that is of no use.

    Raises:
        InputError: No server is there, or it is none of this kind; it knows no such model, or refuses the key.
    """
    try:
        with Server(remote, retries=_RETRIES) as server:
            listed = _listed(server)
            try:
                says = {**listed.get(remote.model, {}), **_tried(server, chat=chat)}
            except ServerError as error:
                raise _unusable(remote, error, list(listed), chat=chat) from None
    except ServerError as error:
        raise InputError(str(error)) from None
    return RemoteIdentity(remote, chat, says, today())


def today() -> str:
    """The day, in UTC."""
    return datetime.now(timezone.utc).date().isoformat()


def _listed(server: Server) -> dict[str, dict[str, Any]]:
    """What a server says of each of its models, by name; nothing where it has no list."""
    try:
        data = server.get("/models").get("data")
    except ServerError as error:
        # Some servers have one model and no list, and that of others fails.
        if error.status in (None, 401, 403):
            raise
        return {}
    if not isinstance(data, list):
        raise server.nonsense("/models", "has no list of models")
    named = [one for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]
    return {one["id"]: _told(server, one, _TOLD) | _made(one.get("created")) for one in named}


def _told(server: Server, said: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Some of what a server says; nothing that is long."""
    found = {name: server.hide(json.dumps(said[name])) for name in names if said.get(name) is not None}
    return {name: json.loads(text) for name, text in found.items() if len(text) < _LONG}


def _made(created: object) -> dict[str, Any]:
    return {"created": created} if isinstance(created, (int, float)) and created < time.time() - _AGO else {}


def _tried(server: Server, *, chat: bool) -> dict[str, Any]:
    """What the server says when it is asked for some tokens."""
    answer = asked_to_write(server, "Hello", (), _TRIED, InferenceConfig(), chat=chat)
    read(server, answer, (), _TRIED, chat=chat)
    told = _told(server, answer, ("model", _FINGERPRINT))
    return {"answers_as": told.pop("model"), **told} if "model" in told else told


def _unusable(remote: Remote, error: ServerError, listed: Sequence[str], *, chat: bool) -> ServerError:
    """Why a model cannot be asked, with what may help."""
    if error.status in (401, 403, 429) or error.status is None:
        return error
    helps = ""
    if listed and remote.model not in listed:
        more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
        names = ", ".join(" ".join(name.split()) for name in listed[:_LISTED])
        helps = f"; it lists no {remote.model!r}, but {names}{more}"
    elif chat:
        helps = f"; if the model has no chat template, chat_template=never on its line asks {COMPLETIONS}"
        if error.status == 404 and not listed:
            helps = "; does the address lack /v1?"
    return ServerError(f"{error}{helps}", error.trouble, error.status)
