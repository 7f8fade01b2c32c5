"""The shapes of OpenAI's answers, as far as this program reads them. A server is not trusted: every type is checked."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from ensemble.common.schema import Raw, Schema, wrong

LARGEST_COUNT = 2**31 - 1


def _count(value: Any) -> int:
    # Counts are used for speeds and prices only, so a wrong one costs no response.
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else 0


def _counts(value: Any) -> Any:
    return value if isinstance(value, dict) else {}


def _own_text(value: Any) -> str | None:
    # JSON can spell half a surrogate pair, which no row of the cache can hold.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


OwnText = Annotated[Any, AfterValidator(_own_text)]
"""A text of a field that servers use as they like; None for anything else."""
TokenCount = Annotated[int, BeforeValidator(_count)]
Offset = Annotated[int, Field(strict=True)]


class UsageDetails(Schema):
    """What the generated tokens were."""

    reasoning_tokens: TokenCount = 0
    """those of the thinking"""


class Usage(Schema):
    """How many tokens a request took; 0 where a server does not say it, or says something else."""

    prompt_tokens: TokenCount = 0
    completion_tokens: TokenCount = 0
    """generated tokens, those of the thinking included"""
    completion_tokens_details: Annotated[UsageDetails, BeforeValidator(_counts)] = UsageDetails()


class CalledFunction(Schema):
    """The function of a call."""

    name: Raw
    arguments: Raw = "{}"


class MessageCall(Schema):
    """A call of a function in a message."""

    function: CalledFunction


class ChatMessage(Schema):
    """What a model says in a conversation."""

    content: Raw | list[Any] | dict[str, Any] | None = None
    """the text, or its parts; a reasoning model that reaches the limit before its answer has none"""
    tool_calls: tuple[MessageCall, ...] | None = None
    reasoning_content: OwnText = None
    """its thinking: DeepSeek, SGLang, llama.cpp, older vLLM"""
    reasoning: OwnText = None
    """its thinking: vLLM, OpenRouter"""
    refusal: OwnText = None
    """why it does not answer"""


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

    text: Raw
    finish_reason: Any = None
    reasoning: OwnText = None
    """its thinking: OpenRouter"""
    logprobs: EchoedLogprobs | None = None
    """where ``echo`` and ``logprobs`` were asked for"""


class ChatChoice(Schema):
    """A message of ``/chat/completions``."""

    message: ChatMessage
    finish_reason: Any = None


class Completion(Schema):
    """An answer of ``/completions``."""

    choices: Annotated[tuple[TextChoice, ...], Field(min_length=1)]
    usage: Annotated[Usage, BeforeValidator(_counts)] = Usage()


class ChatCompletion(Schema):
    """An answer of ``/chat/completions``."""

    choices: Annotated[tuple[ChatChoice, ...], Field(min_length=1)]
    usage: Annotated[Usage, BeforeValidator(_counts)] = Usage()


# Answers with log-probabilities by token id, each server's own

_ROUNDING = 0.01
"""A log-probability in half precision may be this far above 0."""
_IMPOSSIBLE = -1e30
"""Some servers write minus infinity as the smallest number of float32, because JSON has no infinity."""
_IMPOSSIBLE_VLLM = -9999.0
"""How vLLM writes minus infinity."""
_TOKEN_NAME = re.compile(r"token_id:([0-9]{1,9})", re.ASCII)


def _token_id(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_COUNT:
        raise wrong(f"the id of a token, from 0 to {LARGEST_COUNT}")
    return value


def _logprob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _ROUNDING:
        raise wrong("a log-probability, a number up to 0")
    return -math.inf if value < _IMPOSSIBLE else float(value)


def _value_of_vllm(value: Any) -> float:
    # Logits may be above 0: the probe of all servers says which option gives log-probabilities.
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value == math.inf:
        raise wrong("a log-probability, a number")
    return -math.inf if value <= _IMPOSSIBLE_VLLM else float(value)


@lru_cache(maxsize=2**16)  # the same likely tokens come again and again; an error is not kept
def _token_id_in(name: str) -> int:
    if (found := _TOKEN_NAME.fullmatch(name)) is None:
        raise wrong("token_id: and the id of a token, not its text")
    return int(found[1])


def _token_name(value: Any) -> int:
    return _token_id_in(value if isinstance(value, str) else "")


def _tops_of_vllm(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise wrong("an object with the log-probability of each token")
    # In one loop: an answer has thousands of them, and a validator for each takes ten times as long.
    return {
        _token_id_in(name): each if type(each) is float and _IMPOSSIBLE_VLLM < each < math.inf else _value_of_vllm(each)
        for name, each in value.items()
    }


def _triple(value: Any) -> tuple[int, float]:
    if not isinstance(value, list) or len(value) < 2:
        raise wrong("a log-probability and the id of its token")
    return _token_id(value[1]), -math.inf if value[0] is None else _logprob(value[0])


TokenId = Annotated[int, PlainValidator(_token_id)]
Logprob = Annotated[float, PlainValidator(_logprob)]
VllmValue = Annotated[float, PlainValidator(_value_of_vllm)]
TokenName = Annotated[int, PlainValidator(_token_name)]
VllmTops = Annotated[dict[int, float], PlainValidator(_tops_of_vllm)]
Triple = Annotated[tuple[int, float], PlainValidator(_triple)]
"""``[log-probability, id, text]``, read as the id and the log-probability; null is minus infinity."""


class Tokenized(Schema):
    """An answer of ``/tokenize``."""

    tokens: tuple[TokenId, ...]


class VllmLogprobs(Schema):
    """The log-probabilities of the tokens that vLLM writes."""

    tokens: tuple[TokenName, ...]
    token_logprobs: tuple[VllmValue, ...]
    top_logprobs: tuple[VllmTops, ...]


class VllmPromptLogprob(Schema):
    """The log-probability of a token of a prompt."""

    logprob: VllmValue


class VllmChoice(Schema):
    """What vLLM tells of a context."""

    index: TokenId
    logprobs: VllmLogprobs | None = None
    """of the tokens that it writes"""
    prompt_logprobs: tuple[dict[str, VllmPromptLogprob] | None, ...] | None = None
    """of the tokens of the context"""


class VllmAnswer(Schema):
    """An answer of vLLM's ``/completions`` to contexts of token ids."""

    choices: tuple[VllmChoice, ...]
    usage: Annotated[Usage, BeforeValidator(_counts)] = Usage()


class SglangTokens(Schema):
    """What SGLang tells of a context."""

    finish_reason: Any = None
    prompt_tokens: Any = None
    """tokens of the context"""
    output_token_logprobs: tuple[Triple, ...] = ()
    output_top_logprobs: tuple[tuple[Triple, ...], ...] | None = None
    output_token_ids_logprobs: tuple[tuple[Triple, ...] | None, ...] | None = None


class SglangAnswer(Schema):
    """An answer of SGLang's ``/generate`` to one context."""

    meta_info: SglangTokens


class LlamaCppToken(Schema):
    """A token and its log-probability."""

    id: TokenId
    logprob: Logprob
    bytes: Any = None


class LlamaCppPlace(LlamaCppToken):
    """A token that llama.cpp writes."""

    top_logprobs: tuple[LlamaCppToken, ...]

    @property
    def top(self) -> dict[int, float]:
        """The likeliest tokens."""
        return {each.id: each.logprob for each in self.top_logprobs}


class LlamaCppAnswer(Schema):
    """An answer of llama.cpp's ``/completion`` to one context."""

    tokens: tuple[TokenId, ...]
    tokens_evaluated: Any = None
    """tokens of the context"""
    stop_type: Any = None
    # The field is missing if the server leaves out the log-probabilities of all tokens.
    completion_probabilities: tuple[LlamaCppPlace, ...] = ()
