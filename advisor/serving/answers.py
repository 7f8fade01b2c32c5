"""What clients get: OpenAI's objects, made of texts, pieces and likelihoods."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from starlette.responses import Response

if TYPE_CHECKING:
    from ensemble.decode.sequences import FinishReason
    from ensemble.step.logprobs import StepLogprobs, TokenLogprob

_LEAST = -9999.0
"""OpenAI's logarithm of a probability of nothing: JSON has no infinity."""
_UTF_8 = codecs.getincrementaldecoder("utf-8")
DONE = "data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What all objects of an answer begin with."""

    id: str
    created: int
    model: str
    fingerprint: str

    def object(self, kind: str, choices: Sequence[Mapping[str, Any]], **more: object) -> dict[str, Any]:
        """An object of an answer."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
            **more,
        }


class Style(Protocol):
    """How an endpoint writes its choices. One is made for each text: it may count along."""

    whole: str
    part: str

    def choice(
        self, index: int, text: str, steps: Sequence[StepLogprobs] | None, reason: FinishReason
    ) -> dict[str, Any]:
        """A whole text; ``steps`` is None where no log-probabilities are asked for."""
        ...

    def delta(
        self, index: int, text: str, steps: Sequence[StepLogprobs] | None, reason: FinishReason | None
    ) -> dict[str, Any]:
        """A piece of one; ``reason`` comes with the last."""
        ...


@dataclass(slots=True)
class Completion:
    """``/v1/completions``."""

    whole: str = "text_completion"
    part: str = "text_completion"
    _written: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    _offset: int = 0

    def choice(
        self, index: int, text: str, steps: Sequence[StepLogprobs] | None, reason: FinishReason
    ) -> dict[str, Any]:
        """See :class:`Style`."""
        return self.delta(index, text, steps, reason)

    def delta(
        self, index: int, text: str, steps: Sequence[StepLogprobs] | None, reason: FinishReason | None
    ) -> dict[str, Any]:
        """See :class:`Style`."""
        return {
            "index": index,
            "text": text,
            "logprobs": None if steps is None else self._logprobs(steps),
            "finish_reason": finish(reason),
        }

    def _logprobs(self, steps: Sequence[StepLogprobs]) -> dict[str, Any]:
        offsets = []
        for step in steps:
            offsets.append(self._offset)
            self._offset += len(self._written.decode(step.emitted.data or b""))
        return {
            "tokens": [_spelled(step.emitted) for step in steps],
            "token_logprobs": [_finite(step.emitted) for step in steps],
            "top_logprobs": [
                {_spelled(entry): _finite(entry) for entry in (*step.alternatives, step.emitted)} for step in steps
            ],
            "text_offset": offsets,
        }


@dataclass(slots=True)
class Chat:
    """``/v1/chat/completions``."""

    whole: str = "chat.completion"
    part: str = "chat.completion.chunk"
    _begun: bool = False

    def choice(
        self, index: int, text: str, steps: Sequence[StepLogprobs] | None, reason: FinishReason
    ) -> dict[str, Any]:
        """See :class:`Style`."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": _contents(steps), "finish_reason": finish(reason)}

    def delta(
        self, index: int, text: str, steps: Sequence[StepLogprobs] | None, reason: FinishReason | None
    ) -> dict[str, Any]:
        """See :class:`Style`."""
        delta = {"content": text} if self._begun else {"role": "assistant", "content": text}
        self._begun = True
        return {"index": index, "delta": delta, "logprobs": _contents(steps), "finish_reason": finish(reason)}


def _contents(steps: Sequence[StepLogprobs] | None) -> dict[str, Any] | None:
    if steps is None:
        return None
    content = [
        {**_token(step.emitted), "top_logprobs": [_token(entry) for entry in step.alternatives]} for step in steps
    ]
    return {"content": content, "refusal": None}


def _token(entry: TokenLogprob) -> dict[str, Any]:
    data = entry.data
    text = "<eos>" if data is None else data.decode(errors="replace")
    return {"token": text, "logprob": _finite(entry), "bytes": None if data is None else list(data)}


def _spelled(entry: TokenLogprob) -> str:
    """A token's text; OpenAI's way to write what is no text by itself where that is not valid UTF-8."""
    if entry.data is None:
        return "<eos>"
    try:
        return entry.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.data)


def _finite(entry: TokenLogprob) -> float:
    return max(entry.logprob, _LEAST)


def finish(reason: FinishReason | None) -> Literal["stop", "length"] | None:
    """OpenAI's word for how a text ended: ``stop`` at EOS too."""
    return None if reason is None else "length" if reason == "length" else "stop"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The count of tokens, all of them the primary's."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def rendered(value: Mapping[str, Any]) -> str:
    """A value as JSON in ASCII, which no reader of lines takes for several, and no error echoes half a character in."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def event(value: Mapping[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {rendered(value)}\n\n"


def replied(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of JSON."""
    return Response(rendered(value), status, headers, "application/json")
