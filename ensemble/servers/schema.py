"""The shapes of OpenAI's answers, as far as this program reads them. A server is not trusted: every type is checked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from ensemble.common.schema import Schema, wrong

LARGEST_COUNT = 2**31 - 1


def _count(value: Any) -> int:
    # Counts are used for speeds and prices only, so a wrong one costs no response.
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else 0


def _counts(value: Any) -> Any:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong("a text")
    return value


Text = Annotated[str, PlainValidator(_text), WithJsonSchema({"type": "string"})]
TokenCount = Annotated[int, BeforeValidator(_count)]
Offset = Annotated[int, Field(strict=True)]


class Usage(Schema):
    """How many tokens a request took; 0 where a server does not say it, or says something else."""

    prompt_tokens: TokenCount = 0
    """tokens of the prompt"""
    completion_tokens: TokenCount = 0
    """generated tokens"""


class Message(Schema):
    """What a model says in a conversation."""

    content: Text | None = None
    """the text; a reasoning model that reaches the limit before its answer has none"""


class EchoedLogprobs(Schema):
    """The log-probabilities of a text that a server echoes."""

    token_logprobs: tuple[Any, ...]
    """of each token, null for the first one"""
    text_offset: tuple[Offset, ...]
    """where each token begins"""

    @model_validator(mode="after")
    def _belong_together(self) -> EchoedLogprobs:
        if len(self.token_logprobs) != len(self.text_offset) or list(self.text_offset) != sorted(self.text_offset):
            raise wrong("log-probabilities with the text_offset of each token")
        return self


class TextChoice(Schema):
    """A text of ``/completions``."""

    text: Text
    """the text"""
    finish_reason: Any = None
    """why it ended"""
    logprobs: EchoedLogprobs | None = None
    """where ``echo`` and ``logprobs`` were asked for"""


class ChatChoice(Schema):
    """A message of ``/chat/completions``."""

    message: Message
    """the message"""
    finish_reason: Any = None
    """why it ended"""

    @property
    def text(self) -> str:
        """The message's text, which may be empty."""
        return self.message.content or ""


class Completion(Schema):
    """An answer of ``/completions``."""

    choices: Annotated[tuple[TextChoice, ...], Field(min_length=1)]
    """the texts; one is asked for"""
    usage: Annotated[Usage, BeforeValidator(_counts)] = Usage()
    """the tokens that it took"""


class ChatCompletion(Schema):
    """An answer of ``/chat/completions``."""

    choices: Annotated[tuple[ChatChoice, ...], Field(min_length=1)]
    """the messages; one is asked for"""
    usage: Annotated[Usage, BeforeValidator(_counts)] = Usage()
    """the tokens that it took"""
