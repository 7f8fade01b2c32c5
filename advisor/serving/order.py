"""What a request comes to, whatever endpoint it came to; and what is wrong with one, as the client is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ensemble.errors import UniteError

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings
    from ensemble.models.member import Prompt


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for, and what it gets where it asks for nothing.

    Attributes:
        texts: That may be decoded or wait at a time, over all requests.
        new_tokens: Of a text at most.
        prompt_tokens: Of a prompt at most, as the primary reads it; None where only the members' contexts limit it.
        body: Bytes of a request at most.
        usual_tokens: Of a text where its request names no limit.
        usual_stop: Stop strings where a request names none.
    """

    texts: int = 64
    new_tokens: int = 4096
    prompt_tokens: int | None = None
    body: int = 2**20
    usual_tokens: int = 256
    usual_stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be decoded for a request.

    Attributes:
        prompts: As the members' :meth:`ensemble.models.member.Member.encode_prompt` takes them.
        copies: Texts for each prompt; each has draws of its own.
        settings: Of all texts.
        stream: Whether the text is wanted piece by piece.
        usage: Whether a stream ends with the count of tokens.
    """

    prompts: tuple[Prompt, ...]
    copies: int
    settings: Settings
    stream: bool
    usage: bool


class RequestError(UniteError):
    """A request that is not answered; OpenAI's error body is made of it.

    Args:
        status: Of HTTP.
        message: What is wrong, and what to do.
        kind: OpenAI's ``type``.
        param: The parameter that it is about.
        code: A word for programs.
        headers: That go with it.
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


def overloaded(most: int) -> RequestError:
    """Too many texts are decoded or wait."""
    return RequestError(
        429,
        f"{most} texts are being decoded or wait, which is the limit; try again later",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": "1"},
    )


def unavailable(why: str) -> RequestError:
    """The server takes no requests."""
    return RequestError(503, why, kind="server_error", code="unavailable", headers={"Retry-After": "5"})


def failed(why: str) -> RequestError:
    """Decoding failed."""
    return RequestError(500, f"the models failed: {why}", kind="server_error", code="model_error")
