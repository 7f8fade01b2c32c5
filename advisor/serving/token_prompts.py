"""Requests of other ensembles, for which a served model is a member: prompts as token ids, in the format of vLLM."""

from __future__ import annotations

import codecs
import math
import secrets
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from advisor.serving.engine import SharedDecoder
from advisor.serving.metrics import Metrics
from advisor.serving.protocol import (
    CompletionRequest,
    RequestLimits,
    TokenizeRequest,
    read_max_tokens,
    refuse_unsupported,
)
from advisor.serving.request import RequestError, token_ids_refused
from advisor.serving.responses import MIN_LOGPROB, ServedModel, usage_fields
from ensemble.errors import MemberError
from ensemble.models.member import LocalMember
from ensemble.runtime.local_server import LocalTokenServer, distinct_tokens

if TYPE_CHECKING:
    from ensemble.models.member import Member
    from ensemble.servers.token_server import NextToken

_ALTERNATIVES_OF_A_STEP = 20
"""Log-probabilities of each token of a continuation, which may be long."""


class TokenPrompts:
    """Answers ``/v1/completions`` where the prompts are token ids, and ``/tokenize``."""

    def __init__(self, engine: SharedDecoder, model: ServedModel, limits: RequestLimits, metrics: Metrics) -> None:
        self._engine = engine
        self._model = model
        self._limits = limits
        self._metrics = metrics
        self._primary = engine.members[0]
        self._server: LocalTokenServer | None = None
        self._reason = _why_text_only(engine.members)
        if isinstance(self._primary, LocalMember) and not self._reason:
            vocabulary = self._primary.vocabulary
            self._server = LocalTokenServer(
                self._primary.runner, vocabulary.eos_ids, self._primary.context, vocabulary.size, engine.batch_size
            )

    async def complete(self, body: CompletionRequest) -> dict[str, Any]:
        """The response to a body of ``/v1/completions`` with contexts."""
        server = self._server_or_refuse()
        max_tokens = _read_parameters(body, self._limits)
        self._check_contexts(body.contexts, body.logprob_token_ids or ())
        # Many contexts with a token each are one step's work; long continuations are texts like others.
        texts = max(1, math.ceil(len(body.contexts) * max_tokens / self._limits.new_tokens))
        if texts > self._limits.texts:
            raise RequestError(
                400,
                f"max_tokens: {len(body.contexts)} prompts with {max_tokens} new tokens each count as {texts} texts; "
                f"this server runs {self._limits.texts} at a time in total",
                param="max_tokens",
            )
        # As the model reads them: the places of a draft share all but their last tokens.
        tokens = distinct_tokens(body.contexts)
        return await self._engine.work(self._steps(server, body, max_tokens), texts, tokens)

    async def tokenize(self, body: TokenizeRequest) -> dict[str, Any]:
        """The response to a body of ``/tokenize``, with the primary's tokenizer."""
        refuse_unsupported(body.model_extra)
        special = body.add_special_tokens
        ids = await self._engine.tokenize(
            body.prompt, lambda text: list(self._primary.tokenizer(text, add_special_tokens=special)["input_ids"])
        )
        return {"count": len(ids), "max_model_len": self._model.max_model_len, "tokens": ids}

    def check(self, contexts: Sequence[Sequence[int]]) -> None:
        """Check contexts that become texts of the decoder."""
        self._server_or_refuse()
        self._check_contexts(contexts, ())

    def _server_or_refuse(self) -> LocalTokenServer:
        if self._server is None:
            raise token_ids_refused(self._reason)
        return self._server

    def _check_contexts(self, contexts: Sequence[Sequence[int]], chosen: Sequence[int]) -> None:
        size, context, longest = self._primary.vocabulary.size, self._primary.context, max(map(len, contexts))
        if context is not None and longest >= context:
            raise RequestError(
                400,
                f"a prompt has {longest} tokens; the model's context holds {context}, and one must be left",
                param="prompt",
                code="context_length_exceeded",
            )
        for name, largest in (("prompt", max(map(max, contexts))), ("logprob_token_ids", max(chosen, default=0))):
            if largest >= size:
                shown = largest if largest < 10**12 else "a large number"
                raise RequestError(400, f"{name}: {shown} is not an id; the model has {size} ids", param=name)

    def _steps(
        self, server: LocalTokenServer, body: CompletionRequest, max_tokens: int
    ) -> Generator[None, None, dict[str, Any]]:
        wanted = body.logprob_token_ids or body.logprobs or 0
        self._metrics.contexts.inc(len(body.contexts))
        self._metrics.prompt_tokens.inc(sum(map(len, body.contexts)))
        try:
            written = yield from server.steps(body.contexts, max_tokens, wanted)
        except MemberError as error:
            # The token server does not know its name.
            raise MemberError(str(error), of=self._primary.name) from None
        self._metrics.new_tokens.inc(sum(map(len, written)))
        return self._response(body, written)

    def _response(self, body: CompletionRequest, written: Sequence[Sequence[NextToken]]) -> dict[str, Any]:
        with_logprobs = body.logprobs is not None
        # In the thread: with thousands of log-probabilities this takes longer than the event loop may be blocked.
        choices = [self._choice(index, tokens, with_logprobs) for index, tokens in enumerate(written)]
        return {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._model.name,
            "system_fingerprint": self._model.served_id,
            "choices": choices,
            "usage": usage_fields(sum(map(len, body.contexts)), sum(map(len, written)), {}),
        }

    def _choice(self, index: int, tokens: Sequence[NextToken], with_logprobs: bool) -> dict[str, Any]:
        vocabulary = self._primary.vocabulary
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, offsets = "", []
        for token in tokens:
            offsets.append(len(text))
            # Special tokens, EOS among them, have an id and a log-probability, and no text.
            text += decoder.decode(vocabulary.token_bytes(token.token) or b"")
        logprobs = {
            "text_offset": offsets,
            "token_logprobs": [max(token.top[token.token], MIN_LOGPROB) for token in tokens],
            "tokens": [_name(token.token) for token in tokens],
            "top_logprobs": [
                {_name(key): max(value, MIN_LOGPROB) for key, value in token.top.items()} for token in tokens
            ],
        }
        return {
            "index": index,
            "text": text + decoder.decode(b"", final=True),
            "logprobs": logprobs if with_logprobs else None,
            "finish_reason": "stop" if tokens[-1].token in vocabulary.eos_ids else "length",
        }


def _why_text_only(members: Sequence[Member]) -> str:
    """Why models take no token ids; empty if they do."""
    if len(members) > 1:
        return f"they belong to one tokenizer, and this server combines {len(members)} models"
    if members[0].seq2seq is not None:
        return "this model reads its prompt with an encoder"
    return "" if isinstance(members[0], LocalMember) else "this model is not in the process of the server"


def _read_parameters(body: CompletionRequest, limits: RequestLimits) -> int:
    """Check all but the contexts; return the largest number of new tokens."""
    refuse_unsupported(body.model_extra)
    max_tokens = read_max_tokens(body.max_tokens, limits)
    # A continuation of thousands of tokens with a hundred values each would fill the memory.
    is_short = max_tokens == 1 or len(body.logprob_token_ids or ()) <= _ALTERNATIVES_OF_A_STEP
    refused = {
        "temperature": (bool(body.temperature), "leave it out or set it to 0; token ids are continued greedily"),
        "n": ((body.n or 1) > 1, "leave it out; token ids are continued greedily, so all texts are the same"),
        "stop": (bool(body.stop), "leave it out; with token ids the client ends the text"),
        "stream": (bool(body.stream), "leave it out; with token ids there are no streams"),
        "stream_options": (body.stream_options is not None, "needs stream to be true"),
        "return_tokens_as_token_ids": (
            body.logprobs is not None and not body.return_tokens_as_token_ids,
            "set it to true; with token ids, logprobs are by id",
        ),
        "logprob_token_ids": (
            bool(body.logprob_token_ids) and (body.logprobs is None or not is_short),
            f"needs logprobs; and with more than {_ALTERNATIVES_OF_A_STEP} ids, max_tokens 1",
        ),
    }
    # The first one is enough to correct a request, as for other wrong bodies.
    for name, (is_wrong, message) in refused.items():
        if is_wrong:
            raise RequestError(400, f"{name}: {message}", param=name)
    return max_tokens


def _name(token: int) -> str:
    return f"token_id:{token}"
