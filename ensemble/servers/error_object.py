"""An error object of a server: whether an answer is one, its status, its message, and the field that it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

LIMITS = ("max_tokens", "max_completion_tokens")
"""The names of the limit of tokens."""
_FIELD = re.compile(
    rf"(?<![a-z0-9_])({'|'.join(LIMITS)}|temperature|top_p|seed|stop|[a-z]+_penalty|echo|logprobs)(?![a-z0-9_])"
)
"""What a request can do without."""
_SAYS = ("error", "Error", "errors", "fault", "base_resp", "status_msg", "message", "msg", "faultstring", "detail")
"""Keys of an error and of its message, the outermost first."""
_CODE = re.compile(r'"(?:__|error)?(?:code|status|status_?code|type)": "?([^",}]*)', re.IGNORECASE)
_STATUSES = {
    429: "rate.?limit|quota|throttl|exhausted|too.?many",
    401: "auth|api.?key",
    403: "permission|forbidden",
    404: "not.?found",
    400: "invalid|bad.?request|unsupported",
    503: "overload|unavailable|capacity|timeout",
}
"""HTTP statuses, and what the names of errors contain."""
_MAX_TEXT = 10_000
"""Characters of an error that are searched."""
_REFUSAL = re.compile(
    "support|unrecogni|unknown|unexpected|deprecated|instead|extra|permitted|allowed|invalid|only|must|cannot|accept|"
    "should|has to|remove|omit|without"
)
_OF_A_VALUE = re.compile("too (large|long|many|high)|context|at most|exceed|maximum|less than|between|up to")
"""What a refusal of a value says, which is no refusal of the field."""


def error_in(answer: Any) -> Any:
    """The error in an answer with status 200; None if it has none."""
    if isinstance(answer, list) and len(answer) == 1:  # Gemini
        answer = answer[0]
    if not isinstance(answer, dict) or answer.get("data"):
        return None
    if isinstance(choices := answer.get("choices"), list) and choices:
        first = choices[0] if isinstance(choices[0], dict) else {}
        # OpenRouter, where the model failed after it began.
        return first.get("error") or ("the model failed" if first.get("finish_reason") == "error" else None)
    return answer if any(answer.get(name) for name in _SAYS) else None


def status_of(error: Any) -> int:
    """The HTTP status that an error object stands for; 500 if it does not say it."""
    values = _CODE.findall(json.dumps(error))
    numbers = [int(value) for value in values if re.fullmatch("[45][0-9]{2}", value, re.ASCII)]
    words = " ".join(values).lower()[:_MAX_TEXT]
    return next(iter((*numbers, *(status for status, pattern in _STATUSES.items() if re.search(pattern, words)), 500)))


def message_of(error: Any) -> str:
    """The message in an error body; servers write it in several forms."""
    message = error
    for name in _SAYS:
        message = message.get(name) or message if isinstance(message, dict) else message
        message = message[0] if isinstance(message, list) and message else message
    return message if isinstance(message, str) else json.dumps(message)


def refused_field(error: Any, sent: Collection[str]) -> str | None:
    """The field that a server does not take, of those that were sent; None if its error names none."""
    text = error if isinstance(error, str) else json.dumps(error)
    # xAI writes presencePenalty.
    text = re.sub("(?<=[a-z])(?=[A-Z])", "_", text[:_MAX_TEXT]).lower()
    if not _REFUSAL.search(text) or _OF_A_VALUE.search(text):
        return None
    named = [name for name in _FIELD.findall(text) if name in sent]
    # Of two that exclude each other ("cannot both be specified") the first one stays.
    return named[-1 if re.search(r"\bboth\b|only one", text) else 0] if named else None
