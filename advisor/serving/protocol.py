"""What clients may send to the two endpoints: checked, and turned into an order.

What cannot be honoured is refused by name, never ignored; only what changes nothing about the text is accepted unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from advisor.serving.order import Limits, Order, RequestError
from ensemble.decode.settings import Settings

if TYPE_CHECKING:
    from ensemble.models.member import Prompt

_UNREAD = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
"""What changes nothing about the text."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
"""What asks for nothing with these values, and for something that is not there with others."""
_MOST_ALTERNATIVES = 20


def _listed(value: object) -> object:
    """One text as a list of it."""
    return [value] if isinstance(value, str) else value


def _texts(value: object) -> object:
    """One prompt as a list of it; token ids are refused, since each member has other ones."""
    if isinstance(value, list) and value and not isinstance(value[0], str):
        raise PydanticCustomError("token_ids", "give text, not token ids: each member has a tokenizer of its own")
    return _listed(value)


def _parts(value: object) -> object:
    """A message's text as a list of parts."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _encodable(value: str) -> str:
    """JSON can spell half a surrogate pair, and no tokenizer reads it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("surrogate", "it is not Unicode text: it has half of a surrogate pair") from None
    return value


Text = Annotated[str, AfterValidator(_encodable)]


class TextPart(BaseModel):
    """A part of a message; other kinds than text are refused."""

    model_config = ConfigDict(strict=True)
    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart] | None, BeforeValidator(_parts)] = None
    name: str | None = None

    @property
    def text(self) -> str:
        """Its parts together."""
        return "".join(part.text for part in self.content or ())


class StreamOptions(BaseModel):
    """How to stream."""

    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class Request(BaseModel):
    """What both endpoints take; a flat JSON object, so inherited for once."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    model: str
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[Text] | None, BeforeValidator(_listed)] = Field(None, max_length=16)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)


class CompletionRequest(Request):
    """The body of ``/v1/completions``."""

    prompt: Annotated[list[Text], BeforeValidator(_texts)] = Field(min_length=1)
    logprobs: int | None = Field(None, ge=0, le=_MOST_ALTERNATIVES)


class ChatRequest(Request):
    """The body of ``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=_MOST_ALTERNATIVES)


def completion_order(request: CompletionRequest, limits: Limits, seed: int) -> Order:
    """What a request to ``/v1/completions`` comes to.

    Args:
        request: As it was sent.
        limits: What it may ask for.
        seed: Of its draws where it names none.

    Raises:
        RequestError: It asks for what cannot be had.
    """
    return _order(request, request.prompt, request.logprobs, request.max_tokens, limits, seed)


def chat_order(request: ChatRequest, limits: Limits, seed: int) -> Order:
    """What a request to ``/v1/chat/completions`` comes to; see :func:`completion_order`.

    A single message of a user is the text that it is: each member reads it as it reads a question of a task, by its
    chat template or without. All else is a conversation, which only chat templates can put into words.
    """
    for place, message in enumerate(request.messages):
        _refuse(message.model_extra, f"messages.{place}.")
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError(400, "top_logprobs: it needs logprobs to be true", param="top_logprobs")
    most = request.max_completion_tokens or request.max_tokens
    alternatives = (request.top_logprobs or 0) if request.logprobs else None
    return _order(request, [_conversation(request.messages)], alternatives, most, limits, seed)


def _conversation(messages: Sequence[Message]) -> Prompt:
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0].text
    roles = {"developer": "system"}
    return [{"role": roles.get(message.role, message.role), "content": message.text} for message in messages]


def _order(
    request: Request,
    prompts: Sequence[Prompt],
    alternatives: int | None,
    most: int | None,
    limits: Limits,
    seed: int,
) -> Order:
    _refuse(request.model_extra)
    copies, heat = request.n or 1, request.temperature or 0.0
    if most is not None and most > limits.new_tokens:
        raise RequestError(400, f"max_tokens is {most}; this server allows {limits.new_tokens}", param="max_tokens")
    if copies * len(prompts) > limits.texts:
        raise RequestError(
            400,
            f"{copies * len(prompts)} texts in one request; this server takes {limits.texts} at a time over all",
            param="n",
        )
    if copies > 1 and heat == 0:
        raise RequestError(
            400, f"n is {copies}, and without a temperature above 0 all texts would be the same", param="n"
        )
    if request.stream_options is not None and not request.stream:
        raise RequestError(400, "stream_options: it needs stream to be true", param="stream_options")
    stop = limits.usual_stop if request.stop is None else tuple(request.stop)
    if not all(stop):
        raise RequestError(400, "stop: a text cannot end with nothing; leave the empty string out", param="stop")
    settings = Settings(
        max_new_tokens=most or min(limits.usual_tokens, limits.new_tokens),
        stop=stop,
        temperature=heat,
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=seed if request.seed is None else request.seed,
        alternatives=alternatives,
    )
    usage = request.stream_options is not None and bool(request.stream_options.include_usage)
    return Order(tuple(prompts), copies, settings, bool(request.stream), usage)


def _refuse(extra: Mapping[str, Any] | None, place: str = "") -> None:
    """Refuse what was asked for and is not there."""
    asked = {name: value for name, value in (extra or {}).items() if value is not None and name not in _UNREAD}
    names = sorted(f"{place}{name}" for name, value in asked.items() if value not in _NEUTRAL.get(name, ()))
    if names:
        raise RequestError(
            400,
            f"{', '.join(names)}: not supported by this server; leave {'it' if len(names) == 1 else 'them'} out",
            param=names[0],
            code="unsupported_parameter",
        )


def wrong_body(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """The error of a body that is no such request.

    Args:
        errors: What pydantic says of it, the first of which is told.
    """
    first = errors[0]
    if first["type"] == "json_invalid":
        return RequestError(400, f"the body is no JSON ({first['ctx']['error']})", code="invalid_json")
    place = ".".join(str(part) for part in first["loc"][1:])
    if not place:
        return RequestError(400, "the body must be a JSON object, sent as Content-Type: application/json")
    message = str(first["msg"])
    return RequestError(400, f"{place}: {message[:1].lower()}{message[1:]}", param=place)
