"""The errors that clients get, with OpenAI's error body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.errors import InputError, PromptTooLongError, UniteError, first_line


class RequestError(UniteError):
    """A request that the server refuses or cannot answer, with OpenAI's error body.

    Args:
        status: HTTP status.
        message: What is wrong, and what to do.
        kind: OpenAI's ``type``.
        param: The parameter that is wrong.
        code: OpenAI's ``code``, for programs.
        headers: HTTP headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self._rest = {"type": kind, "param": param, "code": code}

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error body."""
        return {"error": {"message": str(self), **self._rest}}


def unavailable(reason: str) -> RequestError:
    """The error where the server accepts no requests."""
    return RequestError(503, reason, kind="server_error", code="unavailable", headers={"Retry-After": "5"})


def busy(reason: str) -> RequestError:
    """The error where a limit is reached that other requests use up."""
    return RequestError(
        429,
        f"{reason}; try again later",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": "1"},
    )


def model_error(error: Exception) -> RequestError:
    """The error where the models failed."""
    return RequestError(500, f"the models failed: {first_line(error)}", kind="server_error", code="model_error")


def prompt_error(error: Exception) -> RequestError:
    """The error where a prompt cannot be read."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, PromptTooLongError):
        return RequestError(400, str(error), code="context_length_exceeded")
    if isinstance(error, InputError):
        return RequestError(400, str(error))
    return RequestError(400, f"the prompt cannot be read ({type(error).__name__}: {first_line(error)})")


def wrong_body(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """The error where a body does not have the fields of its endpoint.

    Args:
        errors: Pydantic's errors; the client sees the first one.
    """
    # One error is enough to correct a request, and a message is one line.
    first = errors[0]
    if first["type"] == "json_invalid":
        return RequestError(400, f"the body is not JSON ({first['ctx']['error']})", code="invalid_json")
    place = ".".join(str(part) for part in first["loc"][1:])
    if not place:
        return RequestError(400, "the body must be a JSON object, sent as Content-Type: application/json")
    message = str(first["msg"])
    return RequestError(400, f"{place}: {message[:1].lower()}{message[1:]}", param=place)
