"""A chat in which a model may call functions. Models behind servers write the calls, in the form of their templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from advisor.tasks.metrics import get_metric

if TYPE_CHECKING:
    from ensemble.models.member import Prompt

FunctionCall: TypeAlias = tuple[str, str]
"""The name of a function, and its arguments as the model wrote them: JSON, as a rule."""


@dataclass(frozen=True, slots=True)
class ToolChat:
    """A chat with functions.

    Attributes:
        messages: As servers take them; they may have calls and their results.
        fields: The other fields of the request: ``tools``, ``tool_choice`` and ``parallel_tool_calls``.
    """

    messages: Sequence[Mapping[str, Any]]
    fields: Mapping[str, Any]


AskedPrompt: TypeAlias = "Prompt | ToolChat"
"""What a model of a strategy is asked."""


def in_one_form(calls: Sequence[FunctionCall]) -> str | None:
    """Calls in one spelling, for a vote: in any order; ``[]`` without a call. None if arguments are no JSON object."""
    text = json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
    return get_metric("tool_call").score(text, (), ())[1]
