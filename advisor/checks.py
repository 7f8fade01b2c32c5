"""What the command line allows: every option is checked before anything is run or written."""

from __future__ import annotations

import math

from advisor.pool import CHAT_TEMPLATES, DTYPES
from advisor.records import Rules
from ensemble.errors import InputError
from ensemble.methods import METHODS


def check_rules(max_gap: float, max_length_ratio: float, max_models: int) -> Rules:
    """The rules, if their limits are in range.

    Raises:
        InputError: One of them is not; names the option and its range.
    """
    if not 0 <= max_gap <= 100:
        raise InputError(f"--max-gap {max_gap:g}: give points from 0 to 100")
    if not (math.isfinite(max_length_ratio) and max_length_ratio >= 1):
        raise InputError(f"--max-length-ratio {max_length_ratio:g}: give a ratio of at least 1")
    if max_models < 1:
        raise InputError(f"--max-models {max_models}: give at least 1")
    return Rules(max_gap, max_length_ratio, max_models)


def check_method(method: str, k: int) -> None:
    """Make sure that a method exists, and that k is in its range."""
    if method not in METHODS:
        raise InputError(f"--method {method}: not one of {', '.join(METHODS)}")
    if k < 1:
        raise InputError(f"--k {k}: each member must bring at least 1 candidate")


def check_loading(device: str, dtype: str, chat_template: str) -> None:
    """Make sure that models can be loaded like this on this machine."""
    from ensemble.member import parse_device

    _among("--dtype", dtype, DTYPES)
    _among("--chat-template", chat_template, CHAT_TEMPLATES)
    parse_device(device)


def check_batch_size(batch_size: str) -> int | None:
    """Prompts at a time; None for ``auto``."""
    if batch_size == "auto":
        return None
    if not batch_size.isascii() or not batch_size.isdigit() or int(batch_size) < 1:
        raise InputError(f"--batch-size {batch_size}: give a number of at least 1, or auto")
    return int(batch_size)


def check_tokens(max_new_tokens: int | None) -> int | None:
    """Tokens after which a response is cut off; None for the task's own."""
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InputError(f"--max-new-tokens {max_new_tokens}: give at least 1")
    return max_new_tokens


def _among(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{option} {value}: not one of {', '.join(allowed)}")
