"""A model behind a server: what decides its responses, as far as a client can know, asking it, and whether it answers.

The owner of a server can change the model behind an address at any time, and no field of the API has to show it.
So responses are stored under the address, what the server says of its model, and the day (UTC): on another day the
questions are sent again. A user who knows the version of the model gives it a ``revision=``, which replaces the day and
the server's words.

A model whose line has ``tokenizer=`` is a full member if its server gives log-probabilities by token id: it is asked
with token ids, here and in sets that decode together. Other models behind servers give whole texts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from advisor.models.ask import Replies
from advisor.models.completions import (
    CHAT,
    COMPLETIONS,
    NO_LOGPROBS,
    ModelInput,
    PromptWithOptions,
    ServerPrompt,
    ToolChat,
    generate,
    is_chat,
    likeliest_option,
    likeliest_text,
)
from advisor.models.response_cache import Response
from ensemble.common.background import in_background
from ensemble.common.text import first_of
from ensemble.decode.settings import Settings
from ensemble.errors import InputError, MemberError, UniteError
from ensemble.models.model_files import check_tokenizer
from ensemble.models.prompts import Dialogue, Sourced, with_system
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import FEW_RETRIES, ServerClient, ServerError
from ensemble.servers.token_client import connect

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.models.member import Member, Prompt, ServerMember

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


_TOO_MANY = 429
"""HTTP status of a server that accepts no more requests now."""


class ServerModel:
    """A model behind a server; see :class:`advisor.models.ask.Model`."""

    def __init__(self, spec: ModelSpec, load: Callable[[], Member] | None = None, retries: int = FEW_RETRIES) -> None:
        self.name, self._spec = spec.name, spec
        self.client = ServerClient(cast("ServerAddress", spec.checkpoint), retries)
        # Whether prompts go through the server's chat template, and not through the tokenizer's here.
        self.chat = is_chat(spec)
        self._encoding = threading.Lock()
        # Loads the tokenizer, as a member: prompts are encoded here, as they are for a set that decodes together.
        self._load = load or partial(_load, spec)
        self._loaded: Member | None = None
        self._scorer: Ensemble | None = None

    def close(self) -> None:
        """Close the connections. Requests that still run end with an error."""
        self.client.close()

    async def ask(self, prompts: Mapping[int, ModelInput], settings: Settings) -> Replies:
        """See :meth:`advisor.models.ask.Model.ask`. If it is cancelled, requests end in their threads."""
        if self._spec.can_decode and self._loaded is None:
            # Now: each request would try it again after a failure.
            await asyncio.wrap_future(self.client.start(self.member))
        waiting, sent = deque(prompts), dict[asyncio.Future[Response], tuple[int, float]]()
        most, changed = min(self.client.address.concurrency, len(prompts)), 0.0
        try:
            while waiting or sent:
                # Twice as many as run, so that no thread waits for this one, until fewer are to run.
                while waiting and len(sent) < (most if changed else 2 * most):
                    n = waiting.popleft()
                    request = asyncio.wrap_future(self.client.start(partial(self.generate, prompts[n], settings)))
                    sent[request] = n, time.monotonic()
                done, _ = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
                # Responses first: the caller may end with the first error, and would lose what has arrived beside it.
                for request in sorted(done, key=lambda each: each.exception() is not None):
                    n, begun = sent.pop(request)
                    error = request.exception()
                    # A server that accepts no more requests now gets fewer at a time.
                    if getattr(error, "status", None) == _TOO_MANY and (most > 1 or begun < changed):
                        # What was sent before the last change says nothing of the present number.
                        if begun >= changed:
                            most, changed = most - most // 2, time.monotonic()
                        waiting.append(n)
                    elif error is None or isinstance(error, UniteError):
                        yield n, error or request.result()
                    else:
                        raise error
        finally:
            for request in sent:
                # An error that comes too late is not logged.
                if not request.cancel():
                    request.exception()

    def generate(self, prompt: ModelInput, settings: Settings) -> Response:
        """Answer a prompt; wait for the response, as the model wrote it."""
        if isinstance(prompt, PromptWithOptions):
            return self._choose(prompt)
        if isinstance(prompt, ToolChat):
            # Functions are written by the server's chat template, whether or not the tokenizer is here.
            if (system := self._spec.system) is not None:
                prompt = ToolChat(with_system(system, prompt.messages), prompt.fields)
            return generate(self.client, prompt, settings, chat=True)[0]
        member = self.member()
        marked = member is not None and bool(member.vocabulary.marks)
        if member is None:
            sent: ServerPrompt = as_text(prompt, self._spec, chat=self.chat)
        else:
            with self._encoding:
                sent = member.encode_prompt(prompt)
        return generate(self.client, sent, settings, chat=self.chat, marked=marked)[0]

    def _choose(self, prompt: PromptWithOptions) -> Response:
        if self.chat:
            reason = f"{CHAT} never does; with chat_template=never on its line {COMPLETIONS} is used, which may do so"
            raise ServerError(NO_LOGPROBS.format(reason=reason), "fatal")
        if (member := self.member()) is None:
            return likeliest_text(self.client, str(as_text(prompt.prompt, self._spec, chat=False)), prompt.options)
        client = cast("ServerMember", member).client
        if not client.limits.chosen:
            raise ServerError(NO_LOGPROBS.format(reason="it does not give those of chosen token ids"), "fatal")
        with self._encoding:
            if self._scorer is None:
                from ensemble.api import Ensemble

                # With k=1 this needs nothing but the tokenizer and the vocabulary.
                self._scorer = Ensemble([member], k=1)
            question = self._scorer.encode_options(prompt.prompt, prompt.options)
        return likeliest_option(client, question)

    def member(self) -> Member | None:
        """The member with its tokenizer, as it writes alone, loaded at the first call; None if prompts are texts."""
        if not self._spec.can_decode:
            return None
        with self._encoding:
            if self._loaded is None:
                try:
                    self._loaded = self._load().as_writing(alone=True)
                except InputError as error:
                    # A client can do nothing about it, and the other models of the strategy go on.
                    raise MemberError(error.reason, of=error.of) from error
            return self._loaded


def as_text(prompt: Prompt | Dialogue, spec: ModelSpec, *, chat: bool) -> str | Sequence[Mapping[str, str]]:
    """A prompt as a server without its tokenizer here gets it: a text, or the messages of a conversation."""
    if isinstance(prompt, Sourced):
        prompt = prompt.of(spec.name)
    if isinstance(prompt, Dialogue):
        prompt = prompt.messages if chat else prompt.text
    if not chat and not isinstance(prompt, str):
        raise InputError("a conversation needs a chat template, and this model is used without one", of=spec.name)
    if spec.system is None:
        return prompt
    if isinstance(prompt, str) and not chat:
        return f"{spec.system}\n\n{prompt}"
    return with_system(spec.system, prompt)


def _load(spec: ModelSpec) -> Member:
    from ensemble.models.load import load_server_member

    return load_server_member(spec)


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
