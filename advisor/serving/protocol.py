"""The requests of the OpenAI API, as one type for all endpoints; what cannot be honoured is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from advisor.models.completions import AskedPrompt, ToolChat
from advisor.serving.request import GenerationRequest, RequestError
from ensemble.common.grammar import Grammar
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.models.prompts import Dialogue, Sourced

if TYPE_CHECKING:
    from advisor.run.task_prompt import TaskPrompt
    from ensemble.models.member import Prompt

_UNREAD = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
"""Parameters without an effect on the text."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    # OpenAI's tool runner always sends it; here no response has reasoning items.
    "include": ([], ["reasoning.encrypted_content"]),
    "logit_bias": ({},),
    "logprob_token_ids": ([],),
    "min_p": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "reasoning": ({},),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "store": (False,),
    "suffix": ("",),
    "parallel_tool_calls": (True, False),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (0, -1),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}
"""Unsupported parameters, and the values with which they have no effect."""
_MAX_ALTERNATIVES = 20
_MAX_CHOSEN = 128
"""Ids of ``logprob_token_ids``, as in vLLM."""
_FIRST_FILLED = (
    "the first message of the user is put into the prompt of the run's task; the other messages are sent as they are, "
    "as in the run"
)
_LAST_FILLED = (
    "only the last message of the user is put into the prompt of the run's task, which was verified with single "
    "questions; the other messages are sent as they are"
)
_MAX_STOP = 256
"""Characters of a stop string. Every step of a stream compares the end of the text with every stop string."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a request, and the defaults for what it leaves out."""

    texts: int = 64  # texts that run or wait at a time, over all requests
    new_tokens: int = 4096  # tokens of the longest text
    body: int = 2**20  # bytes of the largest body
    default_tokens: int = 256  # tokens of the longest text where a request names no limit
    default_stop: tuple[str, ...] = ()
    tokens: int | None = None  # tokens in the prompts of all texts that run or wait; None for 4,096 for each text
    seconds: float = 600.0  # how long the models of a strategy may take for a request, above 0


def _text_list(value: object) -> object:
    """A list of texts; the API also allows one text without a list."""
    return [value] if isinstance(value, str) else value


def _part_list(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _encodable(value: str) -> str:
    # JSON can spell half of a surrogate pair, which no tokenizer can encode.
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("surrogate", "it is not Unicode text: it has half of a surrogate pair") from None
    return value


Text = Annotated[str, AfterValidator(_encodable)]
TokenId = Annotated[int, Field(ge=0)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
_STRICT = ConfigDict(strict=True)
_TEXTS = TypeAdapter(Annotated[list[Text], BeforeValidator(_text_list), Field(min_length=1)], config=_STRICT)
_CONTEXT = TypeAdapter(Annotated[list[TokenId], Field(min_length=1)], config=_STRICT)
_CONTEXTS = TypeAdapter(
    Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(max_length=1024)], config=_STRICT
)


def _prompt_list(value: object) -> list[str] | list[list[int]]:
    """A list of texts, or a list of contexts; the API also allows one without a list."""
    # By the first element, so that an error names the place in the list and not each type that it might have been.
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int):
        return [_CONTEXT.validate_python(value)]
    if isinstance(first, list):
        return _CONTEXTS.validate_python(value)
    if not isinstance(value, str | list):
        raise PydanticCustomError("prompt", "should be a text, a list of texts, or token ids")
    return _TEXTS.validate_python(value)


class Strict(BaseModel):
    """A part of a body: no value is converted, and numbers are finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class TextPart(Strict):
    """A part of a message; only text is supported."""

    type: Literal["text"]
    text: Text


class Message(Strict, extra="allow"):
    """A message of a conversation. Calls of functions and their results are for models behind servers."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[TextPart] | None, BeforeValidator(_part_list)] = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text of all parts."""
        return "".join(part.text for part in self.content or ())


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool | None = None


# Extra fields are kept, so that `refuse_unsupported` can name them.
class RequestBody(Strict, extra="allow"):
    """The fields that the endpoints for completions and chats have."""

    model: str
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[Text] | None, BeforeValidator(_text_list)] = Field(None, max_length=16)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None


class CompletionRequest(RequestBody):
    """The body of ``/v1/completions``."""

    prompt: Annotated[list[str] | list[list[int]], PlainValidator(_prompt_list)]
    logprobs: int | None = Field(None, ge=0, le=_MAX_ALTERNATIVES)
    logprob_token_ids: list[TokenId] | None = Field(None, max_length=_MAX_CHOSEN)
    return_tokens_as_token_ids: bool | None = None

    @property
    def texts(self) -> list[str]:
        """The prompts, if they are texts; else an empty list."""
        return [prompt for prompt in self.prompt if isinstance(prompt, str)]

    @property
    def contexts(self) -> list[list[int]]:
        """The prompts, if they are token ids; else an empty list."""
        return [prompt for prompt in self.prompt if isinstance(prompt, list)]


class TokenizeRequest(Strict, extra="allow"):
    """The body of ``/tokenize``."""

    model: str | None = None
    prompt: Text
    add_special_tokens: bool = True


class Function(Strict, extra="allow"):
    """A function that a model may call."""

    name: str


class Tool(Strict):
    """A function, as the API gives it; for a choice of one its name is enough."""

    type: Literal["function"]
    function: Function


class JsonSchema(Strict):
    """A JSON schema of ``response_format``; texts always follow it, whether ``strict`` asks for it or not."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class AnyFormat(Strict):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class JsonSchemaFormat(Strict):
    """A JSON text that is valid by a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class ChatRequest(RequestBody):
    """The body of ``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    parallel_tool_calls: bool | None = None
    response_format: AnyFormat | JsonSchemaFormat | None = Field(None, discriminator="type")
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=_MAX_ALTERNATIVES)


def read_completion(body: CompletionRequest, limits: RequestLimits, seed: int) -> GenerationRequest:
    """The generation request of a body of ``/v1/completions``."""
    chosen = {name: getattr(body, name) for name in ("logprob_token_ids", "return_tokens_as_token_ids")}
    refuse_unsupported(chosen)
    prompts: list[AskedPrompt | tuple[int, ...]] = [*body.texts, *map(tuple, body.contexts)]
    if body.contexts:
        # A client that sends ids takes this model as a member, and not as the run that it is served from.
        limits = replace(limits, default_stop=())
    return _generation_request(body, prompts, body.logprobs, body.max_tokens, limits, seed)


def read_chat(
    body: ChatRequest,
    limits: RequestLimits,
    seed: int,
    prompt: TaskPrompt | None = None,
    grammar: Grammar | None = None,
) -> GenerationRequest:
    """The generation request of a body of ``/v1/chat/completions``; a note is in its extras."""
    for place, message in enumerate(body.messages):
        refuse_unsupported(message.model_extra, f"messages.{place}.")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs")
    alternatives = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = body.max_completion_tokens or body.max_tokens
    # Before the prompt is made: a request that is refused must not take that time.
    if body.tool_choice not in (None, "none", "auto") and not body.tools:
        raise RequestError(400, "tool_choice: needs tools", param="tool_choice")
    # The task's own stop strings are for its free texts, and may be a part of a JSON text.
    limits = replace(limits, default_stop=()) if grammar or body.tools else limits
    request = _generation_request(body, [""], alternatives, max_tokens, limits, seed)
    request = replace(request, settings=replace(request.settings, grammar=grammar))
    filled, note = _chat_prompt(body.messages, prompt)
    with_tools = body.tools or any(message.role == "tool" or message.tool_calls for message in body.messages)
    extras = {} if note is None else {"note": note}
    return replace(request, prompts=(_tool_chat(body, filled) if with_tools else filled,), extras=extras)


def _tool_chat(body: ChatRequest, filled: Prompt | Dialogue) -> ToolChat:
    """A chat with functions, which goes to servers with all that belongs to calls."""
    if isinstance(filled, str | Sourced):
        texts = [filled if isinstance(filled, str) else filled.prompt]
    else:
        texts = [each["content"] for each in (filled.messages if isinstance(filled, Dialogue) else filled)]
    given = [
        {**message.model_dump(exclude_none=True, exclude={"content"}), "content": text or None}
        for message, text in zip(body.messages, texts, strict=True)
    ]
    names = {"tools", "tool_choice", "parallel_tool_calls"}
    return ToolChat(given, body.model_dump(include=names, exclude_none=True))


def grammar_of(wanted: AnyFormat | JsonSchemaFormat | None) -> Grammar | None:
    """What a text must be, not checked yet."""
    if wanted is None or wanted.type == "text":
        return None
    schema = wanted.json_schema.schema_ if isinstance(wanted, JsonSchemaFormat) else {"type": "object"}
    try:
        return Grammar.unchecked(schema)
    except InputError as error:
        raise RequestError(400, f"response_format: {error}", param="response_format") from None


def _chat_prompt(messages: Sequence[Message], prompt: TaskPrompt | None) -> tuple[Prompt | Dialogue, str | None]:
    """What members read of a chat, and a note if the run's task says less of it than of a single question."""
    texts: list[str | Sourced] = [message.text for message in messages]
    asked = [place for place, message in enumerate(messages) if message.role == "user"]
    note = None
    if prompt is not None and asked:
        is_first = prompt.template.follow_ups
        place = asked[0 if is_first else -1]
        try:
            texts[place], note = prompt.fill(messages[place].text)
        except InputError as error:
            raise RequestError(400, f"messages.{place}.content: {error}", param="messages") from None
        if note is None and len(messages) > 1:
            note = _FIRST_FILLED if is_first else _LAST_FILLED
    # One message of a user is plain text: each member reads it like a task's question, with its chat template or
    # without.
    if len(messages) == 1 and asked:
        return texts[0], note
    roles = ["system" if message.role == "developer" else message.role for message in messages]
    contents = [text.prompt if isinstance(text, Sourced) else text for text in texts]
    # A text with a source is for models with an encoder, which read no conversation.
    has_source = any(isinstance(text, Sourced) and text.source is not None for text in texts)
    if not has_source and (dialogue := _dialogue(roles, contents)):
        return dialogue, note
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)], note


def _dialogue(roles: Sequence[str], contents: Sequence[str]) -> Dialogue | None:
    """A conversation that members without a chat template can read, too; None if user and assistant take no turns."""
    start = 1 if roles[0] == "system" else 0
    said = contents[start:]
    if (
        list(roles[start:]) != ["assistant" if number % 2 else "user" for number in range(len(said))]
        or not len(said) % 2
    ):
        return None
    return Dialogue(tuple(zip(said[:-1:2], said[1::2], strict=True)), said[-1], contents[0] if start else None)


def _generation_request(
    body: RequestBody,
    prompts: Sequence[AskedPrompt | tuple[int, ...]],
    alternatives: int | None,
    max_tokens: int | None,
    limits: RequestLimits,
    seed: int,
) -> GenerationRequest:
    refuse_unsupported(body.model_extra)
    copies, temperature = body.n or 1, body.temperature
    if temperature is None:
        # A single text is greedy, because a set is verified with greedy decoding; several are drawn, as OpenAI does.
        temperature = 0.0 if copies == 1 else 1.0
    texts = copies * len(prompts)
    new_tokens = read_max_tokens(max_tokens, limits)
    if texts > limits.texts:
        raise RequestError(
            400, f"this request needs {texts} texts; this server runs {limits.texts} at a time in total", param="n"
        )
    if copies > 1 and temperature == 0:
        raise RequestError(
            400, f"n is {copies}, but at temperature 0 all texts are the same; set temperature above 0", param="n"
        )
    if body.stream_options is not None and not body.stream:
        raise RequestError(400, "stream_options: needs stream to be true", param="stream_options")
    stop = limits.default_stop if body.stop is None else tuple(body.stop)
    if not all(stop):
        raise RequestError(400, "stop: a stop string must not be empty; leave it out", param="stop")
    if any(len(each) > _MAX_STOP for each in body.stop or ()):
        raise RequestError(400, f"stop: a stop string may have {_MAX_STOP} characters; shorten it", param="stop")
    settings = Settings(
        max_new_tokens=new_tokens,
        stop=stop,
        temperature=temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=seed if body.seed is None else body.seed,
        alternatives=alternatives,
    )
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    metadata = (body.model_extra or {}).get("metadata")
    group = metadata.get("group") if isinstance(metadata, dict) else None
    return GenerationRequest(
        tuple(prompts), copies, settings, bool(body.stream), usage, group if isinstance(group, str) else None
    )


def read_max_tokens(max_tokens: int | None, limits: RequestLimits) -> int:
    """The longest text of a request, in tokens."""
    if max_tokens is not None and max_tokens > limits.new_tokens:
        raise RequestError(
            400, f"max_tokens is {max_tokens}; this server allows {limits.new_tokens}", param="max_tokens"
        )
    # The run's usual limit may be above what this server allows.
    return max_tokens or min(limits.default_tokens, limits.new_tokens)


def refuse_unsupported(extra: Mapping[str, Any] | None, place: str = "") -> None:
    """Refuse parameters by name, except for values that have no effect."""
    parameters = {name: value for name, value in (extra or {}).items() if value is not None and name not in _UNREAD}
    names = sorted(f"{place}{name}" for name, value in parameters.items() if value not in _NEUTRAL.get(name, ()))
    if names:
        raise RequestError(
            400,
            f"{', '.join(names)}: not supported by this server; leave {'it' if len(names) == 1 else 'them'} out",
            param=names[0],
            code="unsupported_parameter",
        )
