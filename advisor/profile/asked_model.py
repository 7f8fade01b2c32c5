"""A model that is asked for a response to one prompt: loaded in this process, or behind a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Protocol

from advisor.profile.loaded_models import ALONE, LoadedModels
from advisor.response_cache import Response, apart
from advisor.servers.completions import AskedPrompt, ToolChat, generate
from advisor.servers.identity import identify_server
from ensemble.common.background import call_when_done, in_background
from ensemble.errors import InputError, MemberError
from ensemble.models.choices import ChatTemplate
from ensemble.models.spec import Dialogue, EnsembleSpec, ModelSpec, Sourced
from ensemble.models.thinking import ThinkingTags
from ensemble.servers.client import ServerClient, ServerError

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings
    from ensemble.models.member import Member, Prompt

_RETRIES = 2
"""After the first try. A client waits meanwhile, so there are fewer than for a profile."""
NO_TOOLS = "calls of functions (tools) are for models behind servers, and this one is in this process"
_CLOSING_SECONDS = 5.0
"""How long closing waits for a request that still runs."""


class AskedModel(Protocol):
    """A model of a strategy.

    Attributes:
        name: Its name.
    """

    name: str

    async def ask(self, prompt: AskedPrompt, settings: Settings) -> Response:
        """Continue a prompt; the response has its thinking apart.

        Raises:
            InputError: The model cannot read this prompt.
            MemberError: The model failed.
        """
        ...


class LocalModel:
    """A model of this process, for a single prompt; see :class:`AskedModel`. It blocks the event loop.

    Args:
        spec: The model.
        models: Loads it.
    """

    def __init__(self, spec: ModelSpec, models: LoadedModels) -> None:
        self.name = spec.name
        self._spec, self._models = spec, models

    async def ask(self, prompt: AskedPrompt, settings: Settings) -> Response:
        """See :class:`AskedModel`."""
        if isinstance(prompt, ToolChat):
            raise InputError(NO_TOOLS, of=self.name)
        # Servers that are asked at the same time get their requests first, and answer meanwhile.
        await asyncio.sleep(0)
        ensemble = self._models.ensemble(EnsembleSpec((self._spec,), ALONE))
        encoded = ensemble.encode(prompt)
        ((_, made),) = ensemble.generate_each([encoded], settings)
        response = Response(
            made.text,
            made.new_tokens,
            made.finish_reason,
            made.counts.seconds,
            prompt_tokens=len(encoded[0]),
            thinking=made.thought,
            thinking_tokens=made.thinking_tokens,
        )
        return apart([response], self._spec.thinking)[0]


class ServerModel:
    """A model behind a server; see :class:`AskedModel`. Several threads may ask it.

    Args:
        name: Its name.
        client: Sends the requests, and is closed with this.
        chat_template: Whether prompts go through a chat template: the tokenizer's here, or else the server's.
        load: Loads the tokenizer, as a member, when it is needed: prompts are encoded here, as they are for a set that
            decodes together. None for a model that gets texts.
        thinking: How the model marks its thinking, if a user says so.

    Attributes:
        client: Sends the requests.
        chat_template: Whether prompts go through a chat template.
        chat: Whether that is the server's.
        encoding: Held while the tokenizer is used, which is not for two threads at a time: it keeps settings between
            calls.
    """

    def __init__(
        self,
        name: str,
        client: ServerClient,
        chat_template: ChatTemplate,
        load: Callable[[], Member] | None,
        thinking: ThinkingTags | None = None,
    ) -> None:
        self.name, self.client, self.chat_template = name, client, chat_template
        self.chat = load is None and chat_template != "never"
        self.encoding = threading.Lock()
        self._load, self._thinking = load, thinking
        self._loaded: Member | None = None
        self._places = asyncio.Semaphore(client.address.concurrency)
        self._requests: set[Future[Response]] = set()

    def close(self) -> None:
        """Close the connections. Requests that still run end with an error."""
        self.client.close()
        # A request that is sent again after this would leave its new connection open.
        wait(self._requests, _CLOSING_SECONDS)

    async def ask(self, prompt: AskedPrompt, settings: Settings) -> Response:
        """See :class:`AskedModel`. If it is cancelled, the request ends in its thread, and its answer is dropped."""
        await self._places.acquire()
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def finish(done: Future[Response]) -> None:
            # The place of a cancelled request is free only now: the server still works for it until here.
            self._places.release()
            if future.done():
                return
            if (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(apart([done.result()], self._thinking)[0])

        request = in_background(lambda: self.generate(prompt, settings), f"request to {self.name}")
        self._requests = {each for each in self._requests if not each.done()} | {request}
        call_when_done(request, finish)
        try:
            return await future
        except ServerError as error:
            # For example a prompt that is too long for it.
            if error.failure == "refused":
                raise InputError(str(error), of=self.name) from None
            raise

    def generate(self, prompt: AskedPrompt | Dialogue, settings: Settings) -> Response:
        """Continue a prompt; wait for the response, as the model wrote it.

        Raises:
            InputError: The prompt cannot be written as the model takes it.
            ServerError: The server gave no valid answer.
            MemberError: The tokenizer cannot be used.
        """
        if isinstance(prompt, ToolChat):
            # Functions are written by the server's chat template, whether or not the tokenizer is here.
            return generate(self.client, prompt, settings, chat=True)[0]
        member = self.member()
        marked = member is not None and bool(member.vocabulary.marks)
        return generate(self.client, self._sent(prompt), settings, chat=self.chat, marked=marked)[0]

    def member(self) -> Member | None:
        """The member with its tokenizer, as it writes alone, loaded at the first call; None if prompts are texts.

        Raises:
            MemberError: It cannot be used.
        """
        if self._load is None:
            return None
        with self.encoding:
            if self._loaded is None:
                try:
                    self._loaded = self._load().as_writing(alone=True)
                except InputError as error:
                    # A client can do nothing about it, and the other models of the strategy go on.
                    raise MemberError(error.reason, of=error.of) from error
            return self._loaded

    def _sent(self, prompt: Prompt | Dialogue) -> str | Sequence[Mapping[str, str]] | Sequence[int]:
        """A prompt as the server gets it: ids if its tokenizer is here, else texts."""
        if (member := self.member()) is not None:
            with self.encoding:
                return member.encode_prompt(prompt)
        return as_text(prompt, self.name, chat=self.chat)


def as_text(prompt: Prompt | Dialogue, name: str, *, chat: bool) -> str | Sequence[Mapping[str, str]]:
    """A prompt as a server without its tokenizer here gets it: a text, or the messages of a conversation.

    Args:
        prompt: The prompt.
        name: The model, for messages.
        chat: Whether the server applies a chat template.

    Raises:
        InputError: A conversation needs a chat template.
    """
    if isinstance(prompt, Sourced):
        return prompt.prompt
    if isinstance(prompt, Dialogue):
        return prompt.messages if chat else prompt.text
    if not chat and not isinstance(prompt, str):
        raise InputError("a conversation needs a chat template, and this model is used without one", of=name)
    return prompt


def server_model(entry: ModelSpec) -> ServerModel:
    """A model behind a server from its entry.

    Raises:
        InputError: The HTTP client is not installed, the key is missing, or the entry is not of a server.
    """
    if not entry.checkpoint.is_remote:
        raise InputError(f"{entry.place}: {entry.name} is not behind a server")

    def load() -> Member:
        from ensemble.models.server_member import load_server_member

        return load_server_member(entry)

    client = ServerClient(entry.checkpoint, _RETRIES)
    loader = None if entry.checkpoint.tokenizer is None else load
    return ServerModel(entry.name, client, entry.chat_template or "auto", loader, entry.thinking)


def check_answers(models: Iterable[ServerModel]) -> list[str]:
    """Ask each of these models for a few tokens; what is wrong with those that do not answer."""
    problems = []
    for model in models:
        try:
            identify_server(model.client.address, model.name, model.chat_template)
        except InputError as error:
            problems.append(f"{model.name}: {error}")
    return problems
