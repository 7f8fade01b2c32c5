"""What a request says of the thinking: how long it may be, and that its marks are shown, in each server's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ensemble.servers.address import ServerAddress

_VALUE = object()
"""Stands for the budget or the effort."""
_BUDGETS: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"thinking_token_budget": _VALUE},
    "sglang": {"custom_params": {"thinking_budget": _VALUE}},
    "llamacpp": {"thinking_budget_tokens": _VALUE},
    "openrouter.ai": {"reasoning": {"max_tokens": _VALUE}},
    "api.anthropic.com": {"thinking": {"type": "enabled", "budget_tokens": _VALUE}},
}
"""By what a server says of its owner, or by its host."""
_EFFORTS: Mapping[str, Mapping[str, Any]] = {
    # Older versions read only the template's argument.
    "llamacpp": {"reasoning_effort": _VALUE, "chat_template_kwargs": {"reasoning_effort": _VALUE}},
    "openrouter.ai": {"reasoning": {"effort": _VALUE}},
}
_OTHER_BUDGET = {"thinking_budget": _VALUE}
_OTHER_EFFORT = {"reasoning_effort": _VALUE}
"""As OpenAI's servers have it."""
_MARKS: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    "sglang": {"skip_special_tokens": False},
}
"""By what a server says of its owner. Others refuse fields that they do not know, or ignore them."""


def thinking_fields(address: ServerAddress, owner: Callable[[], str]) -> dict[str, Any]:
    """The fields of a request that limit the thinking; empty if the line of the model does not say it.

    Args:
        address: The server and the model.
        owner: Asks the server who runs it; called only if its host does not tell the fields.
    """
    budget, effort = address.thinking_budget, address.reasoning_effort
    if budget is None and effort is None:
        return {}
    host = urlsplit(address.url).hostname or ""
    server = host if host in _BUDGETS else owner()
    if budget is not None:
        return _filled(_BUDGETS.get(server, _OTHER_BUDGET), budget)
    return _filled(_EFFORTS.get(server, _OTHER_EFFORT), effort)


def mark_fields(owner: str) -> Mapping[str, Any]:
    """The fields of a request with which a text keeps the special tokens that mark its thinking."""
    return _MARKS.get(owner, {})


def _filled(form: Mapping[str, Any], value: object) -> dict[str, Any]:
    return {
        name: value if part is _VALUE else _filled(part, value) if isinstance(part, Mapping) else part
        for name, part in form.items()
    }
