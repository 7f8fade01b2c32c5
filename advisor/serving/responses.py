"""The responses of the OpenAI API, of an engine's events: whole JSON objects, and server-sent events for streams."""

from __future__ import annotations

import codecs
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from starlette.responses import Response

from advisor.serving.request import GenerationRequest, Piece, RequestError

if TYPE_CHECKING:
    from advisor.run.task_prompt import TaskPrompt
    from advisor.strategies.vote import VoteReader
    from ensemble.decode.sequences import Generation, Pieces
    from ensemble.step.trace import StepLogprobs, TokenLogprob

MIN_LOGPROB = -9999.0
"""OpenAI's log-probability of an impossible token: JSON has no infinity."""
_DONE = "data: [DONE]\n\n"


@dataclass(slots=True)
class RunningText:
    """A text that waits or is decoded."""

    request: GenerationRequest
    index: int  # index of the text within its request
    prompt: list[list[int]]  # token ids for each member
    draw: int  # number of its random draws
    pieces: Pieces  # the bytes that may be sent
    steps_sent: int = 0  # steps whose log-probabilities were sent
    bytes_sent: int = 0  # bytes of these steps
    begun: bool = False  # whether it has its first token

    def next_steps(self, steps: Sequence[StepLogprobs], end: int) -> list[StepLogprobs]:
        """The next steps whose tokens begin before byte ``end`` of the text."""
        new: list[StepLogprobs] = []
        for step in steps[self.steps_sent :]:
            # EOS has no bytes and is not a token of the text.
            if step.emitted.data is None or self.bytes_sent >= end:
                break
            new.append(step)
            self.bytes_sent += len(step.emitted.data)
        self.steps_sent += len(new)
        return new

    def last_piece(self, generation: Generation) -> Piece:
        """The last piece; the whole text where no piece was sent before."""
        data = b"".join(step.emitted.data or b"" for step in generation.likelihoods)
        # Stop strings are searched in bytes: the text has other lengths where invalid UTF-8 was replaced.
        ends = [data.find(stop.encode()) for stop in self.request.settings.stop]
        steps = self.next_steps(generation.likelihoods, min((end for end in ends if end >= 0), default=len(data)))
        text = self.pieces.finish(generation.text)
        return Piece(self.index, text, steps, generation.finish_reason, generation.new_tokens)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that the server offers."""

    name: str  # its name in requests
    members: tuple[str, ...]  # names of its members, the primary first
    method: str
    served_id: str  # OpenAI's ``system_fingerprint``: a digest of all that decides the texts
    created: int  # when the server started, in seconds since 1970
    max_model_len: int | None = None  # for a single model, the tokens that its context holds
    prompt: TaskPrompt | None = None  # makes a prompt of the user's last message; None: messages are sent as they are
    reader: VoteReader | None = None  # reads the answer in a text; None where that is not known

    def as_dict(self) -> dict[str, Any]:
        """As ``/v1/models`` lists it."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "unite-advisor",
            "members": list(self.members),
            "method": self.method,
            # vLLM's field.
            "max_model_len": self.max_model_len,
            "prompt": None if self.prompt is None else self.prompt.as_dict(),
        }


class ResponseFormat(ABC):
    """The JSON objects of one response; every response needs a new one, since it counts what was written."""

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, model: ServedModel, request: GenerationRequest) -> None:
        # Random, so that ids do not tell how many requests a server had.
        self._id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._model = model
        self.request = request
        self.texts: dict[int, str] = defaultdict(str)  # what was written of each text
        self._with_logprobs = request.settings.alternatives is not None

    async def whole(self) -> dict[str, Any]:
        """The response to a request without ``stream``."""
        prompt_tokens = await self.request.prompt_tokens()
        choices: dict[int, dict[str, Any]] = {}
        new_tokens = 0
        async for piece in self.request.pieces():
            # Without `stream` the engine sends one piece for each text: the whole text.
            if piece.finish_reason is not None:
                new_tokens += piece.new_tokens
                choices[piece.index] = self._choice(piece, whole=True)
        ordered = [choices[index] for index in sorted(choices)]
        return self._envelope(self.kind, ordered, usage=self._usage(prompt_tokens, new_tokens))

    async def events(self, prompt_tokens: int) -> AsyncIterator[str]:
        """The server-sent events of a request with ``stream``."""
        try:
            async for chunk in self._chunks(prompt_tokens):
                yield event(chunk)
        except RequestError as error:
            # The status has been sent already, so the error can only be an event.
            yield event(error.body)
            return
        yield _DONE

    async def _chunks(self, prompt_tokens: int) -> AsyncIterator[dict[str, Any]]:
        with_usage = self.request.usage
        no_usage: dict[str, Any] = {"usage": None} if with_usage else {}
        new_tokens = 0
        async for piece in self.request.pieces():
            new_tokens += piece.new_tokens
            choice = self._choice(piece, whole=False)
            if piece.calls:
                # OpenAI's client takes a call for complete when something follows, so the end is another chunk.
                yield self._envelope(self.chunk_kind, [{**choice, "finish_reason": None}], **no_usage)
                choice["delta"] = {}
            yield self._envelope(self.chunk_kind, [choice], **no_usage)
        if with_usage:
            yield self._envelope(self.chunk_kind, [], usage=self._usage(prompt_tokens, new_tokens))

    def _usage(self, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
        reader, extras = self._model.reader, self.request.extras
        if reader is not None:
            extras = {**extras, "answers": [reader.read(self.texts[index]) for index in sorted(self.texts)]}
        return usage_fields(prompt_tokens, new_tokens, extras)

    def _envelope(self, kind: str, choices: Sequence[Mapping[str, Any]], **fields: object) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model.name,
            "system_fingerprint": self._model.served_id,
            "choices": list(choices),
            **fields,
        }

    def _choice(self, piece: Piece, *, whole: bool) -> dict[str, Any]:
        self.texts[piece.index] += piece.text
        # OpenAI has no word for EOS: it is "stop" as well.
        reason = piece.finish_reason if piece.finish_reason in (None, "length") else "stop"
        return {
            "index": piece.index,
            **self._content(piece, whole=whole),
            "logprobs": self._logprobs(piece) if self._with_logprobs else None,
            "finish_reason": "tool_calls" if piece.calls else reason,
        }

    @abstractmethod
    def _content(self, piece: Piece, *, whole: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _logprobs(self, piece: Piece) -> dict[str, Any]: ...


class CompletionFormat(ResponseFormat):
    """The objects of ``/v1/completions``."""

    id_prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def __init__(self, model: ServedModel, request: GenerationRequest) -> None:
        super().__init__(model, request)
        self._offsets: dict[int, int] = defaultdict(int)
        # A token can end inside of a character, so offsets in characters need one decoder for each text.
        self._decoders: dict[int, codecs.IncrementalDecoder] = defaultdict(
            lambda: codecs.getincrementaldecoder("utf-8")("replace")
        )

    def _content(self, piece: Piece, *, whole: bool) -> dict[str, Any]:  # noqa: ARG002  # both are written alike
        return {"text": piece.text}

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        offsets = []
        for step in piece.steps:
            offsets.append(self._offsets[piece.index])
            self._offsets[piece.index] += len(self._decoders[piece.index].decode(step.emitted.data or b""))
        return {
            "tokens": [_token_text(step.emitted) for step in piece.steps],
            "token_logprobs": [_logprob(step.emitted) for step in piece.steps],
            "top_logprobs": [
                {_token_text(token): _logprob(token) for token in (*step.alternatives, step.emitted)}
                for step in piece.steps
            ],
            "text_offset": offsets,
        }


class ChatFormat(ResponseFormat):
    """The objects of ``/v1/chat/completions``."""

    id_prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, model: ServedModel, request: GenerationRequest) -> None:
        super().__init__(model, request)
        self._begun: set[int] = set()

    def _content(self, piece: Piece, *, whole: bool) -> dict[str, Any]:
        text = piece.text
        # A model continues its prompt with a space, which is no part of a message.
        if text and text == self.texts[piece.index]:
            text = text.removeprefix(" ")
        calls = [
            {
                "index": place,
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for place, (name, arguments) in enumerate(piece.calls)
        ]
        own = {"tool_calls": calls} if calls else {}
        if whole:
            # As OpenAI has it: a message of calls alone has no text.
            content = text or (None if calls else "")
            return {"message": {"role": "assistant", "content": content, "refusal": None, **own}}
        # Only the first delta of a text has the role.
        role = {} if piece.index in self._begun else {"role": "assistant"}
        self._begun.add(piece.index)
        return {"delta": {**role, "content": text, **own}}

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        content = [
            {**_chat_token(step.emitted), "top_logprobs": [_chat_token(token) for token in step.alternatives]}
            for step in piece.steps
        ]
        return {"content": content, "refusal": None}


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    text = "<eos>" if token.data is None else token.data.decode(errors="replace")
    return {"token": text, "logprob": _logprob(token), "bytes": None if token.data is None else list(token.data)}


def _token_text(token: TokenLogprob) -> str:
    """A token's text; its bytes with OpenAI's prefix ``bytes:`` where they are not valid UTF-8."""
    if token.data is None:
        return "<eos>"
    try:
        return token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)


def _logprob(token: TokenLogprob) -> float:
    return max(token.logprob, MIN_LOGPROB)


def usage_fields(prompt_tokens: int, completion_tokens: int, extras: Mapping[str, Any]) -> dict[str, Any]:
    """The number of tokens, as the primary counts them, and the fields of a strategy."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        **extras,
    }


def event(value: Mapping[str, Any], name: str | None = None) -> str:
    """A server-sent event, with the name of its kind where the API has names."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {_to_json(value)}\n\n"


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with a JSON body."""
    return Response(_to_json(value), status, headers, "application/json")


def error_response(error: RequestError, request_id: str = "") -> Response:
    """The response that tells a client what is wrong; of what is no mistake of the client, with the request's id."""
    body = error.body
    if error.status >= 500 and request_id:
        body["error"]["message"] += f" (request {request_id})"
    return json_response(body, error.status, error.headers)


def _to_json(value: Mapping[str, Any]) -> str:
    # ASCII, since some clients split events at Unicode line separators, and since an error may quote half of a
    # surrogate pair, which UTF-8 cannot encode.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
