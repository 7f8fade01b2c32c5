"""A model behind a server that is asked for whole texts, or for the likeliest of several options."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

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
from ensemble.errors import InputError, MemberError, UniteError
from ensemble.models.prompts import Dialogue, Sourced
from ensemble.models.spec import ModelSpec
from ensemble.servers.client import FEW_RETRIES, ServerClient, ServerError

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.decode.settings import Settings
    from ensemble.models.member import Member, Prompt, ServerMember
    from ensemble.servers.address import ServerAddress

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
            return generate(self.client, prompt, settings, chat=True)[0]
        member = self.member()
        marked = member is not None and bool(member.vocabulary.marks)
        if member is None:
            sent: ServerPrompt = as_text(prompt, self.name, chat=self.chat)
        else:
            with self._encoding:
                sent = member.encode_prompt(prompt)
        return generate(self.client, sent, settings, chat=self.chat, marked=marked)[0]

    def _choose(self, prompt: PromptWithOptions) -> Response:
        if self.chat:
            reason = f"{CHAT} never does; with chat_template=never on its line {COMPLETIONS} is used, which may do so"
            raise ServerError(NO_LOGPROBS.format(reason=reason), "fatal")
        if (member := self.member()) is None:
            return likeliest_text(self.client, str(as_text(prompt.prompt, self.name, chat=False)), prompt.options)
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


def as_text(prompt: Prompt | Dialogue, name: str, *, chat: bool) -> str | Sequence[Mapping[str, str]]:
    """A prompt as a server without its tokenizer here gets it: a text, or the messages of a conversation."""
    if isinstance(prompt, Sourced):
        return prompt.prompt
    if isinstance(prompt, Dialogue):
        return prompt.messages if chat else prompt.text
    if not chat and not isinstance(prompt, str):
        raise InputError("a conversation needs a chat template, and this model is used without one", of=name)
    return prompt


def _load(spec: ModelSpec) -> Member:
    from ensemble.models.load import load_server_member

    return load_server_member(spec)
