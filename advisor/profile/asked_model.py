"""A model that is asked for a response to one prompt: loaded in this process, or behind a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Protocol

from advisor.profile.generate import free_memory
from advisor.profile.loader import ALONE, load_ensemble
from advisor.response_cache import Response
from advisor.servers.completions import generate
from advisor.servers.identity import identify_server
from ensemble.common.background import call_when_done, in_background
from ensemble.common.files import default_cache_dir
from ensemble.errors import InputError, MemberError
from ensemble.models.spec import ChatTemplate, EnsembleSpec, ModelSpec, Sourced
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import ServerClient, ServerError

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.decode.settings import Settings
    from ensemble.models.member import Member, Prompt

Reply = tuple[Response, int]
"""A response, and the tokens of its prompt; 0 if a server does not say it."""
_RETRIES = 2
"""After the first try. A client waits meanwhile, so there are fewer than for a profile."""
_CLOSING_SECONDS = 5.0
"""How long closing waits for a request that still runs."""


class AskedModel(Protocol):
    """A model of a strategy.

    Attributes:
        name: Its name.
    """

    name: str

    async def ask(self, prompt: Prompt, settings: Settings) -> Reply:
        """Continue a prompt.

        Raises:
            InputError: The model cannot read this prompt.
            MemberError: The model failed.
        """
        ...


class LocalModels:
    """Models that are loaded when they are asked. One of them is in memory at a time, as in a profile."""

    def __init__(self) -> None:
        self._name = ""
        self._loaded: Ensemble | None = None

    def load(self, spec: ModelSpec) -> Ensemble:
        """Load a model, after the last one is freed.

        Raises:
            InputError: It cannot be used.
            MemberError: It failed while it was loaded.
        """
        if self._loaded is None or self._name != spec.name:
            self._loaded = None
            # Before the next one is loaded: two models may not fit in memory.
            free_memory()
            self._loaded, self._name = load_ensemble(EnsembleSpec((spec,), ALONE), default_cache_dir()), spec.name
        return self._loaded


class LocalModel:
    """A model of this process, for a single prompt; see :class:`AskedModel`. It blocks the event loop.

    Args:
        spec: The model.
        models: Loads it.
    """

    def __init__(self, spec: ModelSpec, models: LocalModels) -> None:
        self.name = spec.name
        self._spec, self._models = spec, models

    async def ask(self, prompt: Prompt, settings: Settings) -> Reply:
        """See :class:`AskedModel`."""
        # Servers that are asked at the same time get their requests first, and answer meanwhile.
        await asyncio.sleep(0)
        ensemble = self._models.load(self._spec)
        encoded = ensemble.encode(prompt)
        ((_, made),) = ensemble.generate_each([encoded], settings)
        response = Response(made.text, len(made.tokens), made.finish_reason, made.counts.seconds)
        return response, len(encoded[0])


class ServerModel:
    """A model behind a server; see :class:`AskedModel`.

    Args:
        name: Its name.
        address: The server and the model. With a tokenizer, prompts are encoded here, as in the profile.
        chat_template: Whether prompts go through a chat template: the tokenizer's here, or else the server's.

    Attributes:
        address: The server and the model.
        chat_template: Whether prompts go through a chat template.

    Raises:
        InputError: The HTTP client is not installed, or the key is missing.
    """

    def __init__(self, name: str, address: ServerAddress, chat_template: ChatTemplate = "auto") -> None:
        self.name = name
        self.address, self.chat_template = address, chat_template
        self._chat = address.tokenizer is None and chat_template != "never"
        self._member: Member | None = None
        # Tokenizers keep settings between calls, so they are not for two threads at a time.
        self._encoding = threading.Lock()
        self._client = ServerClient(address, _RETRIES)
        self._places = asyncio.Semaphore(address.concurrency)
        self._requests: set[Future[Reply]] = set()

    def close(self) -> None:
        """Close the connections. Requests that still run end with an error."""
        self._client.__exit__()
        # A request that is sent again after this would leave its new connection open.
        wait(self._requests, _CLOSING_SECONDS)

    async def ask(self, prompt: Prompt, settings: Settings) -> Reply:
        """See :class:`AskedModel`. If it is cancelled, the request ends in its thread, and its answer is dropped."""
        is_encoded_here = self.address.tokenizer is not None
        if not self._chat and not is_encoded_here and not isinstance(prompt, (str, Sourced)):
            raise InputError("a conversation needs a chat template, and this model is used without one", of=self.name)
        await self._places.acquire()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def finish(done: Future[Reply]) -> None:
            # The place of a cancelled request is free only now: the server still works for it until here.
            self._places.release()
            if future.done():
                return
            if (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        request = in_background(lambda: self._generate(prompt, settings), f"request to {self.name}")
        self._requests = {each for each in self._requests if not each.done()} | {request}
        call_when_done(request, finish)
        return await future

    def _generate(self, prompt: Prompt, settings: Settings) -> Reply:
        try:
            response, answer = generate(
                self._client,
                self._encoded(prompt),
                settings.stop,
                settings.max_new_tokens,
                chat=self._chat,
                temperature=settings.temperature,
                top_p=settings.top_p,
                seed=settings.seed,
            )
        except ServerError as error:
            # For example a prompt that is too long for it.
            if error.failure == "refused":
                raise InputError(str(error), of=self.name) from None
            raise
        usage = answer.get("usage")
        # What a server counts is untrusted, and goes to the client as a number.
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return response, count if type(count) is int and 0 <= count < 2**31 else 0

    def _encoded(self, prompt: Prompt) -> str | Sequence[Mapping[str, str]] | Sequence[int]:
        """A prompt as the server gets it: ids if its tokenizer is here, else texts."""
        if self.address.tokenizer is None:
            return prompt.prompt if isinstance(prompt, Sourced) else prompt
        with self._encoding:
            if self._member is None:
                self._member = self._load()
            return self._member.encode_prompt(prompt)

    def _load(self) -> Member:
        from ensemble.distributed.engine import load_members

        try:
            (member,) = load_members([ModelSpec(self.address, self.name, chat_template=self.chat_template)], "local")
        except InputError as error:
            # A client can do nothing about it, and the other models of the strategy go on.
            raise MemberError(error.reason, of=error.of) from error
        return member


def server_model(entry: ModelSpec) -> ServerModel:
    """A model behind a server from its entry.

    Raises:
        InputError: The HTTP client is not installed, the key is missing, or the entry is not of a server.
    """
    if not entry.checkpoint.is_remote:
        raise InputError(f"{entry.place}: {entry.name} is not behind a server")
    return ServerModel(entry.name, entry.checkpoint, entry.chat_template or "auto")


def check_answers(models: Iterable[ServerModel]) -> list[str]:
    """Ask each of these models for a few tokens; what is wrong with those that do not answer."""
    problems = []
    for model in models:
        try:
            identify_server(model.address, model.name, model.chat_template)
        except InputError as error:
            problems.append(f"{model.name}: {error}")
    return problems
