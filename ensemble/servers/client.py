"""The client of a server, with retries; each fault of the server becomes one line.

A server's answers are untrusted, so every type in them is checked; numbers may be infinite or NaN. The API key is read
from the environment when it is needed, is never stored or shown, and is removed from all that the server sends.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import math
import os
import random
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import unquote

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, stop_before_delay

from ensemble.common.background import Threads
from ensemble.errors import InputError, MemberError, first_line
from ensemble.servers.address import ServerAddress

if TYPE_CHECKING:
    import httpx2

    from ensemble.common.schema import Schema

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
RETRIES, FEW_RETRIES = 4, 2
"""After the first try: of a question, and where someone waits for what the server can do, or for an answer. The client
waits 0.5, 1, 2 and 4 s between them, or as long as the server says."""
_LONGEST_WAIT_S = 120.0
"""A longer pause that a server asks for is for the user to decide."""
_BUSY = (408, 409, 429)
"""HTTP statuses after which the same request may succeed."""
NO_LIST = (404, 405, 501)
"""HTTP statuses of servers that list no models."""
# An answer of the API has less than 10 levels. Deeper JSON would only be a danger to what stores and shows it.
_MAX_DEPTH = 32
# Digits of a whole number; longer ones become floats, as in other languages.
_MAX_DIGITS = 20
# Shorter keys are placeholders ("EMPTY") and no secret; removing them would change ordinary texts.
_MIN_SECRET = 8
_MAX_QUOTE = 200
"""Characters of a server's own words in a message."""
LIMITS = ("max_tokens", "max_completion_tokens")
"""The names of the limit of tokens."""
_REFUSED_FIELD = re.compile(
    rf"(?<![a-z0-9_])({'|'.join(LIMITS)}|temperature|top_p|seed|stop|[a-z]+_penalty|echo|logprobs)(?![a-z0-9_])"
)
"""What a request can do without."""
_KEYS = ("error", "Error", "errors", "fault", "base_resp", "status_msg", "message", "msg", "faultstring", "detail")
"""Keys of an error and of its message, the outermost first."""
_ERROR_CODE = re.compile(r'"(?:__|error)?(?:code|status|status_?code|type)": "?([^",}]*)', re.IGNORECASE)
_STATUS_WORDS = {
    429: "rate.?limit|quota|throttl|exhausted|too.?many",
    401: "auth|api.?key",
    403: "permission|forbidden",
    404: "not.?found",
    400: "invalid|bad.?request|unsupported",
    503: "overload|unavailable|capacity|timeout",
}
"""HTTP statuses, and what the names of errors contain."""
_MAX_ERROR = 10_000
"""Characters of an error that are searched."""
_REFUSAL = re.compile(
    "support|unrecogni|unknown|unexpected|deprecated|instead|extra|permitted|allowed|invalid|only|must|cannot|accept|"
    "should|has to|remove|omit|without"
)
_OF_A_VALUE = re.compile("too (large|long|many|high)|context|at most|exceed|maximum|less than|between|up to")
"""What a refusal of a value says, which is no refusal of the field."""
_SHORTEST = 8
"""Letters and digits of a part of a key; texts have shorter ones by chance."""
_NO_LETTER = re.compile(r"[^a-z0-9]+")
_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(rf"\\+(?:u\{{({_HEX}{{1,6}})\}}|u({_HEX}{{4}})|U({_HEX}{{8}})|x({_HEX}{{2}}))")
Shape = TypeVar("Shape", bound="Schema")
Failure = Literal["fatal", "temporary", "refused", "invalid"]
"""All other questions would fail too; only this request failed; the server does not accept this question; or the API
does not allow its answer."""


def retried(
    call: Callable[[], T],
    may_pass: Callable[[BaseException], bool],
    *,
    retries: int | None = None,
    patience: float = 0.0,
    pause_of: Callable[[BaseException], float | None] = lambda _: None,
) -> T:
    """Call a function again while its error ``may_pass``, ``retries`` times or, if None, for ``patience`` seconds."""

    def pause(state: RetryCallState) -> float:
        error = None if state.outcome is None else state.outcome.exception()
        if error is not None and (asked := pause_of(error)) is not None:
            return asked
        # At random, so that requests that failed together do not come back together.
        return min(FIRST_PAUSE_S * 2.0 ** (state.attempt_number - 1), LONGEST_PAUSE_S) * (1 - 0.25 * random.random())

    stop = stop_before_delay(patience) if retries is None else stop_after_attempt(1 + retries)
    return Retrying(retry=retry_if_exception(may_pass), stop=stop, wait=pause, reraise=True)(call)


def sent_again(request: Callable[[], T], *, retries: int | None = None, patience: float = 0.0) -> T:
    """Send a request to a server, and again as :func:`retried` does where it is busy or did not answer."""
    return retried(
        request,
        _may_pass,
        retries=retries,
        patience=patience,
        pause_of=lambda error: error.wait if isinstance(error, ServerError) else None,
    )


class ServerError(MemberError):
    """A request that a server did not answer; the reason, without a key, tells what it means for other questions."""

    refuses: str | None = None  # a field of the request that the server does not take; None if it names none

    def __init__(self, message: str, failure: Failure, status: int | None = None, wait: float | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.status = status  # HTTP status; None where the server sent no error status
        self.wait = wait  # seconds that the server asks to wait; None if it does not say


class ServerClient:
    """Connections to a server; several threads can use it, and :meth:`start` has as many as the address allows."""

    def __init__(self, address: ServerAddress, retries: int = RETRIES) -> None:
        from ensemble.servers.transport import RestrictedClient

        # Their debug messages quote the headers of requests and answers, and so the key.
        for library in ("httpx2", "httpcore2"):
            logging.getLogger(library).setLevel(logging.WARNING)
        self.address = address
        self.left_out = set(address.left_out)  # fields that the server does not take, by the address or by what it said
        self.root = address.url.removesuffix("/v1")  # where servers have what OpenAI's API lacks
        key = read_key(address)
        self._secret = Secret(key) if key is not None and len(key) >= _MIN_SECRET else None
        self._retries = retries
        self._owner: str | None = None
        self._http = RestrictedClient(address, key)
        self._threads = Threads(address.concurrency, f"requests to {address.name}")

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """Connections that were opened so far."""
        return self._http.connections

    @property
    def seconds(self) -> float:
        """How long the last request of this thread took."""
        return float(self._http.last.seconds)

    def start(self, call: Callable[[], T]) -> Future[T]:
        """Let one of the threads call a function, which sends requests."""
        return self._threads.start(call)

    def stop_retrying(self) -> None:
        """Report each fault at once, from now on: the caller sends requests again itself."""
        self._retries = 0

    def close(self) -> None:
        """Close the connections. Requests that still run end with an error."""
        self._threads.close()
        self._http.close()

    def owner(self) -> str:
        """Who runs the model, as the server's list of models says it: ``vllm``, ``sglang``, ``llamacpp``, ..."""
        if self._owner is None:
            try:
                models = self.models()
            except ServerError as error:
                if error.status not in NO_LIST:
                    raise
                models = []
            # A server with one model may give it another name.
            models.sort(key=lambda model: model.get("id") != self.address.model)
            self._owner = next((str(model["owned_by"]).lower() for model in models if "owned_by" in model), "")
        return self._owner

    def models(self) -> list[dict[str, Any]]:
        """What the server's list says of each model."""
        data = self.get("/models").get("data")
        if not isinstance(data, list):
            raise self.invalid_answer("/models", "has no list of models")
        return [model for model in data if isinstance(model, dict)]

    def get(self, path: str) -> Mapping[str, Any]:
        """Send a GET request to a path below the address, or to a whole URL."""
        return self._object(path, self._send(path, None))

    def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a POST request for the address's model; see :meth:`get`."""
        return self._object(path, self._send(path, {"model": self.address.model, **body}))

    def post_each(self, path: str, body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Send a POST request with several prompts to a server that answers with a list; see :meth:`get`."""
        # llama.cpp sends the only answer of a list without the list around it.
        answer = self._send(path, {"model": self.address.model, **body})
        return [self._object(path, each) for each in (answer if isinstance(answer, list) else [answer])]

    def checked(self, shape: type[Shape], path: str, answer: Mapping[str, Any]) -> Shape:
        """An answer as a model of :mod:`ensemble.servers.schema`."""
        from pydantic import ValidationError

        from ensemble.common.schema import first_fault

        try:
            return shape.model_validate(answer)
        except ValidationError as error:
            raise self.invalid_answer(path, f"has another shape ({first_fault(error, answer)})") from None

    def _redact(self, text: str) -> str:
        """A text of the server without the key and without halves of surrogate pairs, which UTF-8 cannot encode."""
        if self._secret is not None:
            # Of a text that has a large part of the key in another form nothing else is left.
            text = "[key]" if self._secret.is_in(text := text.replace(self._secret.key, "[key]")) else text
        return text.encode(errors="replace").decode()

    def _parse(self, content: bytes) -> Any:
        """The JSON of a server, without the key; a ValueError or a RecursionError if it cannot be read."""
        value = json.loads(content.decode("utf-8-sig"), parse_int=_whole_number)
        _check_depth(value)
        # In UTF-8, half a surrogate pair can only be an escape. Log-probabilities are thousands of strings without one.
        return value if self._secret is None and b"\\u" not in content else self._without_key(value)

    def _without_key(self, value: Any) -> Any:
        # Not on the bytes: JSON can write the same text in many ways.
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, dict):
            return {self._redact(name): self._without_key(each) for name, each in value.items()}
        return [self._without_key(each) for each in value] if isinstance(value, list) else value

    def _place(self, path: str) -> str:
        return path if path.startswith(self.root) else f"{self.address.url}{path}"

    def invalid_answer(self, path: str, reason: str) -> ServerError:
        """The error for an answer that an OpenAI-compatible server would not give."""
        return ServerError(
            f"{self._place(path)}: the answer {reason}; is this the address of an OpenAI-compatible server?",
            "invalid",
        )

    def _send(self, path: str, body: Mapping[str, Any] | None) -> Any:
        return sent_again(lambda: self._try(path, body), retries=self._retries)

    def _try(self, path: str, body: Mapping[str, Any] | None) -> Any:
        import httpx2

        url = self.address.url
        try:
            response = self._http.request("GET" if body is None else "POST", self._place(path), body)
        except httpx2.TimeoutException:
            raise ServerError(
                f"{url} did not answer within {self.address.timeout:g} s; set a longer timeout=SECONDS or a lower "
                "concurrency= on its line",
                "temporary",
            ) from None
        except (UnicodeError, httpx2.InvalidURL):
            raise ServerError(f"{url} is not a valid address; correct it", "fatal") from None
        except MemberError as error:  # raised by RestrictedClient
            # Too long, or compressed: another try would end the same.
            raise ServerError(f"{url}: {error}", "invalid") from None
        except (httpx2.HTTPError, OSError) as error:
            reason = self._redact(first_line(error))
            raise ServerError(
                f"no server answers at {url} ({reason}); start it, or correct the address", "temporary"
            ) from None
        try:
            answer = self._parse(response.content)
        except (ValueError, RecursionError):
            if response.is_success:
                start = self._quote(response.text)[:60]
                reason = f"is not JSON; it begins with {start!r}" if start else "is empty"
                raise self.invalid_answer(path, reason) from None
            answer = response.text
        fault = _error_in(answer) if response.is_success else answer
        if not response.is_success or fault is not None:
            status = _status_of(fault) if response.is_success else response.status_code
            raise self._status_error(status, response, fault, body)
        return answer

    def _object(self, path: str, answer: object) -> Mapping[str, Any]:
        if not isinstance(answer, dict):
            raise self.invalid_answer(path, "is not a JSON object")
        return answer

    def _quote(self, text: str) -> str:
        """The server's words as part of one line."""
        # Cut last: the beginning of a key that is cut in two would not be found.
        return " ".join(self._redact(text).split())[:_MAX_QUOTE]

    def _status_error(self, status: int, response: httpx2.Response, fault: object, body: object) -> ServerError:
        """The error of a status; ``fault`` is the answer's JSON or text, ``body`` what was sent."""
        key_env = key_variable(self.address)
        message = self._quote(_message_of(fault))
        says = f" and says: {message}" if message else ""
        failure: Failure = "temporary"
        # Redirects are not followed, see RestrictedClient, so each question would get the same answer.
        if status < 400:
            place = self._quote(response.headers.get("location", "another place"))
            failure, text = "fatal", f"redirects to {place} ({status}); use that address if you trust it"
        elif status in (401, 403) and key_env is None:
            failure = "fatal"
            text = f"needs a key ({status}); add key_env=NAME to its line, the environment variable that holds the key"
        elif status in (401, 403):
            failure = "fatal"
            text = f"refuses the key in the environment variable {key_env} ({status}); correct the key or its rights"
        # A path or model that does not exist now will not exist for the next question.
        elif status == 404:
            failure, text = "fatal", f"does not have this path or model (404){says}"
        elif status == 429:
            seconds = self._quote(response.headers.get("retry-after", ""))
            pause = f", asks for a pause of {seconds} s" if seconds else ""
            text = (
                f"accepts no more requests now (429){pause}{says}; set a lower requests_per_minute= or concurrency= "
                "on its line, or try again later"
            )
        elif status >= 500:
            text = f"failed ({status}){says}"
        else:
            failure, text = "refused", f"refuses the request ({status}){says}"
        found = ServerError(f"{self.address.url} {text}", failure, status, _retry_after(response))
        if failure == "refused" and isinstance(body, dict):
            found.refuses = _refused_field(fault, body)
        return found


def _check_depth(value: Any) -> None:
    level: list[Any] = [[value]]
    for _ in range(_MAX_DEPTH + 1):
        inner = [part.values() if type(part) is dict else part for part in level]
        level = [each for part in inner for each in part if type(each) is dict or type(each) is list]
        if not level:
            return
    raise ValueError(f"it has more than {_MAX_DEPTH} levels")


def _may_pass(error: BaseException) -> bool:
    if not isinstance(error, ServerError) or (error.wait is not None and error.wait > _LONGEST_WAIT_S):
        return False
    return error.failure == "temporary" or error.status in _BUSY


def _retry_after(response: httpx2.Response) -> float | None:
    """The seconds that a busy server asks to wait; None if it does not say."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _whole_number(text: str) -> float:
    return int(text) if len(text) <= _MAX_DIGITS else float(text)


def key_variable(address: ServerAddress) -> str | None:
    """The environment variable that holds a server's key; None where no key is sent."""
    # OPENAI_API_KEY goes only to OpenAI's own hosts; any other server gets a key only if its line says so.
    return address.key_env or ("OPENAI_API_KEY" if address.is_openai else None)


def read_key(address: ServerAddress) -> str | None:
    """The key of a server, from the environment; None where no key is sent."""
    variable = key_variable(address)
    if variable is None:
        return None
    # Keys from files, $(cat key), often end in a line break.
    key = os.environ.get(variable, "").strip()
    if not key and address.key_env is not None:
        # The variable is not named: a user may have written the key itself after key_env=.
        raise InputError("the environment variable that key_env names is not set, or is empty; set it to the key")
    if not key:
        raise InputError(f"the environment variable {variable} is not set, or is empty; set it to the key")
    # A line break in a header would begin another header.
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            f"the value of the environment variable {variable} cannot be a key: it has spaces or special characters"
        )
    return key


def _error_in(answer: Any) -> Any:
    """The error in an answer with status 200; None if it has none."""
    if isinstance(answer, list) and len(answer) == 1:  # Gemini
        answer = answer[0]
    if not isinstance(answer, dict) or answer.get("data"):
        return None
    if isinstance(choices := answer.get("choices"), list) and choices:
        first = choices[0] if isinstance(choices[0], dict) else {}
        # OpenRouter, where the model failed after it began.
        return first.get("error") or ("the model failed" if first.get("finish_reason") == "error" else None)
    return answer if any(answer.get(name) for name in _KEYS) else None


def _status_of(error: Any) -> int:
    """The HTTP status that an error object stands for; 500 if it does not say it."""
    values = _ERROR_CODE.findall(json.dumps(error))
    numbers = [int(value) for value in values if re.fullmatch("[45][0-9]{2}", value, re.ASCII)]
    words = " ".join(values).lower()[:_MAX_ERROR]
    return next(
        iter((*numbers, *(status for status, pattern in _STATUS_WORDS.items() if re.search(pattern, words)), 500))
    )


def _message_of(error: Any) -> str:
    """The message in an error body; servers write it in several forms."""
    message = error
    for name in _KEYS:
        message = message.get(name) or message if isinstance(message, dict) else message
        message = message[0] if isinstance(message, list) and message else message
    return message if isinstance(message, str) else json.dumps(message)


def _refused_field(error: Any, sent: Collection[str]) -> str | None:
    """The field that a server does not take, of those that were sent; None if its error names none."""
    text = error if isinstance(error, str) else json.dumps(error)
    # xAI writes presencePenalty.
    text = re.sub("(?<=[a-z])(?=[A-Z])", "_", text[:_MAX_ERROR]).lower()
    if not _REFUSAL.search(text) or _OF_A_VALUE.search(text):
        return None
    named = [name for name in _REFUSED_FIELD.findall(text) if name in sent]
    # Of two that exclude each other ("cannot both be specified") the first one stays.
    return named[-1 if re.search(r"\bboth\b|only one", text) else 0] if named else None


class Secret:
    """A key, and what half of it looks like in a text: as it is, escaped, encoded, or with characters in between."""

    def __init__(self, key: str) -> None:
        self.key = key
        data = key.encode()
        # Base 64 depends on how many bytes stand before, as in "Bearer KEY".
        shifted = (base64.b64encode(b" " * places + data).decode() for places in range(3))
        forms = [_letters(form) for form in (key, key[::-1], data.hex(), *shifted)]
        self._length = max(_SHORTEST, min(map(len, forms)) // 2)
        self._parts = {
            form[start : start + self._length] for form in forms for start in range(len(form) - self._length + 1)
        }

    def is_in(self, text: str) -> bool:
        """Whether a text has a part of the key with half of its letters and digits."""
        if len(text) < self._length:
            return False
        forms = {_letters(text), _letters(_plain(text))}
        return any(form[start : start + self._length] in self._parts for form in forms for start in range(len(form)))


def _letters(text: str) -> str:
    return _NO_LETTER.sub("", unicodedata.normalize("NFKC", text).lower())


def _plain(text: str) -> str:
    """A text without escapes of JSON, Python, addresses and HTML."""
    for _ in range(3):  # an escape may be escaped again
        if not {"\\", "%", "&"} & set(text):
            break
        text = html.unescape(unquote(_ESCAPE.sub(_character, text)))
    return text


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[escape.lastindex or 0], 16) % 0x110000)
