"""Requests to the Hugging Face hub, sent again while a fault may pass."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable
from typing import Any

from ensemble.errors import InputError, first_line
from ensemble.servers.client import retried

TIMEOUT = 30.0
"""Seconds to wait for the hub's answer."""
TOKEN_REFUSED = "the hub does not accept this token; log in (hf auth login), or correct HF_TOKEN"
_RETRIES = 4
_LONGEST_WAIT_S = 300.0
"""The hub counts requests in windows of five minutes."""
_reasons: list[str] = []
"""Why the hub could not be reached by this process; empty if it could, or was never asked."""


def ask_hub(request: Callable[[], Any], retries: int = _RETRIES) -> Any:
    """The hub's answer to a request.

    Args:
        request: Sends it.
        retries: Tries after the first one, where a fault may pass; 0 if the library itself tries again.

    Raises:
        RevisionNotFoundError: The hub does not have the revision.
        RemoteEntryNotFoundError: The hub does not have the file.
        ValueError: The hub does not have the model or data set.
        InputError: The hub does not accept the token.
        ConnectionError: The hub does not answer. If it cannot be reached at all, this process makes no more requests.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return retried(request, may_pass, retries=retries, pause_of=_pause)
    except (RevisionNotFoundError, RemoteEntryNotFoundError):
        raise
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ValueError(first_line(error)) from error
    except Exception as error:  # many libraries raise: no network, no answer, a malformed answer
        status = getattr(_response(error), "status_code", None)
        if status == 401:
            raise InputError(TOKEN_REFUSED) from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise  # the fault is this machine's
        if status is not None:
            raise ConnectionError(f"it answers with {status}, also when asked again") from error
        if not constants.HF_HUB_OFFLINE:
            _reasons[:] = [first_line(error)]
        # Without this, each library would retry the request for each file.
        constants.HF_HUB_OFFLINE = True
        if data := sys.modules.get("datasets"):
            data.config.HF_HUB_OFFLINE = True
        # Later requests would only say that the hub is switched off.
        raise ConnectionError(_reasons[0] if _reasons else first_line(error)) from error


def _response(error: BaseException | None) -> Any:
    """The hub's answer in an error, or in its reason; None if there was none."""
    while error is not None and getattr(error, "response", None) is None:
        error = error.__cause__
    return getattr(error, "response", None)


def may_pass(error: BaseException) -> bool:
    """Whether the hub may answer a little later."""
    status = getattr(_response(error), "status_code", 0)
    slow = type(error).__name__ == "ReadTimeout"  # the class of two libraries
    return (slow or status in (408, 429) or status >= 500) and (_pause(error) or 0) <= _LONGEST_WAIT_S


def _pause(error: BaseException) -> float | None:
    """The seconds that the hub asks to wait; None if it does not say."""
    headers = getattr(_response(error), "headers", {})
    found = re.fullmatch("[0-9]{1,6}", headers.get("retry-after", "")) or re.search(
        "(?<=;t=)[0-9]{1,6}", headers.get("ratelimit", "")
    )
    return None if found is None else float(found[0])
