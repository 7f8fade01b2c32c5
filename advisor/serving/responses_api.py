"""OpenAI's Responses API in terms of chats: its requests become those of chats, and what a chat returns its objects."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from advisor.serving.protocol import (
    AnyFormat,
    ChatRequest,
    JsonSchema,
    Strict,
    Temperature,
    Text,
    TopP,
    refuse_unsupported,
)
from advisor.serving.request import GenerationRequest, RequestError
from advisor.serving.responses import ChatFormat, ServedModel, event

_UNREAD_OF_ITEMS = ("id", "phase", "status")
"""Fields of items that this API returned, which a client sends back; they change no text."""
_KEEPING = ("conversation", "previous_response_id", "store")
_NAMES: Mapping[str | None, str] = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
}
"""Parameters of chats, and their names here."""


def _part_list(value: object) -> object:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


def _item_list(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _item_type(value: object) -> object:
    # Only messages may leave it out.
    return value.get("type", "message") if isinstance(value, dict) else None


class InputPart(Strict):
    """A part of a message or of what a function returned; only text is supported."""

    type: Literal["input_text", "output_text"]
    text: Text


Parts = Annotated[list[InputPart], BeforeValidator(_part_list)]


class InputMessage(Strict, extra="allow"):
    """A message of a conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class InputCall(Strict, extra="allow"):
    """A call of a function, which an earlier response made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Text


class InputResult(Strict, extra="allow"):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputResult, Tag("function_call_output")],
    Discriminator(
        _item_type,
        custom_error_type="item",
        custom_error_message="should be a message, a function_call or a function_call_output",
    ),
]


class FunctionTool(Strict, extra="allow"):
    """A function that a model may call; for a choice of one its name is enough."""

    type: Literal["function"]
    name: str


class SchemaFormat(JsonSchema):
    """See :class:`JsonSchema`."""

    type: Literal["json_schema"]


class TextConfig(Strict, extra="allow"):
    """Options of the text."""

    format: AnyFormat | SchemaFormat | None = Field(default=None, discriminator="type")


class ResponsesRequest(Strict, extra="allow"):
    """The body of ``/v1/responses``."""

    model: str
    input: Annotated[list[Item], BeforeValidator(_item_list), Field(min_length=1)]
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: Temperature | None = None
    top_p: TopP | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    stream: bool | None = None
    # Its one option adds noise to the events, of which this server has none.
    stream_options: dict[str, Any] | None = None


def chat_of(body: ResponsesRequest) -> ChatRequest:
    """The same request as a chat."""
    extra = body.model_extra or {}
    for name in _KEEPING:
        if extra.get(name):
            raise RequestError(
                400,
                f"{name}: this server keeps no responses; leave it out, and send the whole conversation as input",
                param=name,
                code="unsupported_parameter",
            )
    refuse_unsupported(extra)
    if body.text is not None:
        refuse_unsupported(body.text.model_extra, "text.")
    form = None if body.text is None else body.text.format
    if isinstance(form, SchemaFormat):
        schema = form.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        response_format: object = {"type": "json_schema", "json_schema": schema}
    else:
        response_format = form
    choice = body.tool_choice
    return ChatRequest.model_validate(
        {
            "model": body.model,
            "messages": _messages(body),
            "tools": None if body.tools is None else [_tool(tool) for tool in body.tools],
            "tool_choice": _tool(choice) if isinstance(choice, FunctionTool) else choice,
            "parallel_tool_calls": body.parallel_tool_calls,
            "response_format": response_format,
            "max_completion_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "stream": body.stream,
            # The last event has the whole response, and so its usage.
            "stream_options": {"include_usage": True} if body.stream else None,
            "metadata": extra.get("metadata"),
        }
    )


def in_its_names(error: RequestError) -> RequestError:
    """An error about the chat of a request, with the parameter's name in this API."""
    rest = error.body["error"]
    if (name := _NAMES.get(rest["param"])) is None:
        return error
    message = re.sub(r"^[\w.]+", name, str(error))
    return RequestError(error.status, message, kind=rest["type"], param=name, code=rest["code"])


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    for place, item in enumerate(body.input):
        extra = {name: value for name, value in (item.model_extra or {}).items() if name not in _UNREAD_OF_ITEMS}
        refuse_unsupported(extra, f"input.{place}.")
        if isinstance(item, InputMessage):
            messages.append({"role": item.role, "content": _text(item.content)})
        elif isinstance(item, InputResult):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
        else:
            # In a chat, a message has its text and all of its calls.
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant"})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages


def _text(parts: Sequence[InputPart]) -> str:
    return "".join(part.text for part in parts)


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}


class ResponsesFormat(ChatFormat):
    """The objects of ``/v1/responses``."""

    id_prefix = "resp"

    def __init__(self, model: ServedModel, request: GenerationRequest, body: ResponsesRequest) -> None:
        super().__init__(model, request)
        self._body = body
        self._events = 0

    async def whole(self) -> dict[str, Any]:
        """See :meth:`ResponseFormat.whole`."""
        made = await super().whole()
        (choice,) = made["choices"]
        message, status = choice["message"], _status(choice["finish_reason"])
        calls = [_call(call) for call in message.get("tool_calls", ())]
        texts = [] if message["content"] is None else [_message(_new_id("msg"), message["content"], status)]
        return self._response(status, [*texts, *calls], made["usage"])

    async def events(self, prompt_tokens: int) -> AsyncIterator[str]:
        """See :meth:`ResponseFormat.events`."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress", (), None))
        text, reason, usage = "", None, None
        calls: list[dict[str, Any]] = []
        index = _new_id("msg")
        part = {"item_id": index, "output_index": 0, "content_index": 0}
        try:
            async for chunk in self._chunks(prompt_tokens):
                usage = chunk["usage"]
                for choice in chunk["choices"]:
                    delta, reason = choice["delta"], choice["finish_reason"]
                    calls += map(_call, delta.get("tool_calls", ()))
                    new = delta.get("content", "")
                    # Calls need no message, but a response without any item would be no answer.
                    if not text and (new or (reason and not calls)):
                        item = {**_message(index, "", "in_progress"), "content": []}
                        yield self._event("response.output_item.added", output_index=0, item=item)
                        yield self._event("response.content_part.added", **part, part=_output_text(""))
                    if new:
                        text += new
                        yield self._event("response.output_text.delta", **part, delta=new, logprobs=[])
        except RequestError as error:
            # OpenAI's client raises what is in `error`; the other fields are those of the API's own event.
            own = error.body["error"]
            yield self._event("error", message=own["message"], code=own["code"], param=own["param"], error=own)
            return
        status = _status(reason)
        items: list[dict[str, Any]] = []
        if text or not calls:
            items.append(_message(index, text, status))
            yield self._event("response.output_text.done", **part, text=text, logprobs=[])
            yield self._event("response.content_part.done", **part, part=items[0]["content"][0])
            yield self._event("response.output_item.done", output_index=0, item=items[0])
        for number, call in enumerate(calls, start=len(items)):
            place = {"output_index": number, "item_id": call["id"]}
            named = {"name": call["name"], "arguments": call["arguments"]}
            item = {**call, "arguments": "", "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=number, item=item)
            yield self._event("response.function_call_arguments.delta", **place, delta=call["arguments"])
            yield self._event("response.function_call_arguments.done", **place, **named)
            yield self._event("response.output_item.done", output_index=number, item=call)
        items += calls
        yield self._event(f"response.{status}", response=self._response(status, items, usage))

    def _event(self, kind: str, **fields: object) -> str:
        self._events += 1
        return event({"type": kind, "sequence_number": self._events - 1, **fields}, kind)

    def _usage(self, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
        usage = super()._usage(prompt_tokens, new_tokens)
        return {
            "input_tokens": usage.pop("prompt_tokens"),
            "output_tokens": usage.pop("completion_tokens"),
            # OpenAI's type has them always; this server does not count them.
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
            **usage,
        }

    def _response(self, status: str, output: Sequence[Mapping[str, Any]], usage: object) -> dict[str, Any]:
        body, settings = self._body, self.request.settings
        echoed = {"tools", "tool_choice", "parallel_tool_calls", "text", "metadata"}
        sent = body.model_dump(include=echoed, by_alias=True, exclude_none=True)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model.name,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": list(output),
            "usage": usage,
            "instructions": body.instructions,
            "max_output_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "tools": sent.get("tools", []),
            "tool_choice": sent.get("tool_choice", "auto"),
            "parallel_tool_calls": sent.get("parallel_tool_calls", True),
            "text": sent.get("text", {"format": {"type": "text"}}),
            "metadata": sent.get("metadata", {}),
            "truncation": "disabled",
            "store": False,
            "previous_response_id": None,
        }


def _status(reason: str | None) -> str:
    return "incomplete" if reason == "length" else "completed"


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _message(index: str, text: str, status: str) -> dict[str, Any]:
    return {"type": "message", "id": index, "role": "assistant", "status": status, "content": [_output_text(text)]}


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    own = {"id": _new_id("fc"), "call_id": call["id"], "status": "completed"}
    return {"type": "function_call", **own, **call["function"]}
