"""The line of a pool file that names a model behind a server, read and checked; nothing is sent yet.

    openai:http://127.0.0.1:8000/v1#org/name  name=big  key_env=BIG_KEY  timeout=120  concurrency=4

No message repeats a part of the line in which somebody may have written a key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from ensemble.errors import InputError

PREFIX = "openai:"
OPTIONS = ("name", "chat_template", "key_env", "revision", "timeout", "concurrency", "requests_per_minute")
_OPENAI = "api.openai.com"
_HOST = re.compile(r"([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
"""Names, and addresses of both kinds; names in other scripts as their servers are known: ``xn--...``."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Remote:
    """A model behind a server.

    Attributes:
        url: The server's address, up to where ``/completions`` follows: ``http://host:port/v1``.
        model: What the server calls it.
        key_env: The environment variable that holds the key; None to send none, but for the provider's own host.
        revision: The user's word for which model that is; None where nobody vouches for it.
        timeout: Seconds that a request may take, above 0.
        concurrency: Requests at a time, at least 1.
        requests_per_minute: The most that are begun in a minute, above 0; None for no limit.
    """

    url: str
    model: str
    key_env: str | None = None
    revision: str | None = None
    timeout: float = 300.0
    concurrency: int = 8
    requests_per_minute: float | None = None

    @property
    def path_or_id(self) -> str:
        """The address, as a pool file has it."""
        return f"{PREFIX}{self.url}#{self.model}"

    @property
    def is_openai(self) -> bool:
        """Whether the host is the one that ``OPENAI_API_KEY`` is for, and nobody on the way can read it."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        return parts.scheme == "https" and (host == _OPENAI or host.endswith(f".{_OPENAI}"))


def not_here(name: str) -> str:
    """Why a model behind a server cannot decode token by token with others."""
    return (
        f"{name} is behind a server, which gives its texts and not the probabilities of its whole vocabulary, so it "
        "cannot be decoded token by token; voting, mbr, router and rerank take it"
    )


def read_remote(words: list[str], place: str) -> tuple[Remote, dict[str, str]]:
    """Read a line.

    Args:
        words: The address, and the options ``key=value``.
        place: File and line, for messages.

    Returns:
        The model, and those of the options that are not its own: ``name`` and ``chat_template``.

    Raises:
        InputError: The line cannot be used.
    """
    options: dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"{place}: an option has no =; write key=value, for {', '.join(OPTIONS)}")
        if key not in OPTIONS:
            raise InputError(
                f"{place}: {key!r} is no option of a model behind a server; there are {', '.join(OPTIONS)}"
            )
        if key in options:
            raise InputError(f"{place}: an option is given twice")
        options[key] = value
    url, model = _address(words[0], place)
    per_minute = options.pop("requests_per_minute", None)
    remote = Remote(
        url,
        model,
        key_env=_variable(options, place),
        revision=_revision(options, place),
        timeout=_number("timeout", options.pop("timeout", "300"), place, "seconds"),
        concurrency=_count(options.pop("concurrency", "8"), place),
        requests_per_minute=None
        if per_minute is None
        else _number("requests_per_minute", per_minute, place, "a number"),
    )
    return remote, options


def remote_of(kept: Mapping[str, object], place: str) -> Remote:
    """A model as :func:`as_dict` wrote it.

    Raises:
        InputError: It was changed into something that cannot be used.
    """
    words = [str(kept.get("address"))]
    words += [f"{key}={value}" for key, value in kept.items() if key != "address" and value is not None]
    return read_remote(words, place)[0]


def as_dict(remote: Remote) -> dict[str, object]:
    """A model as ``result.json`` has it; the key itself is in no part of it."""
    return {
        "address": remote.path_or_id,
        "key_env": remote.key_env,
        "revision": remote.revision,
        "timeout": remote.timeout,
        "concurrency": remote.concurrency,
        "requests_per_minute": remote.requests_per_minute,
    }


def _address(word: str, place: str) -> tuple[str, str]:
    """The server's address and the model's name."""
    url, _, model = word.removeprefix(PREFIX).partition("#")
    if not model:
        raise InputError(f"{place}: it names no model; write {PREFIX}http://HOST:PORT/v1#MODEL")
    if not model.isprintable():
        raise InputError(f"{place}: the model's name has characters that cannot be shown; correct it")
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise InputError(f"{place}: the address is none; write {PREFIX}http://HOST:PORT/v1#MODEL") from None
    if "@" in parts.netloc or parts.query:
        raise InputError(
            f"{place}: the address has more than host, port and path; a key does not belong into a pool file: name the "
            "environment variable that holds it with key_env=NAME"
        )
    if (
        parts.scheme not in ("http", "https")
        or not host
        or not _HOST.fullmatch(host)
        or not url.isascii()
        or not url.isprintable()
        or " " in url
    ):
        raise InputError(f"{place}: the address is not http:// or https:// with a host; write {PREFIX}URL#MODEL")
    return url.rstrip("/"), model


def _variable(options: dict[str, str], place: str) -> str | None:
    name = options.pop("key_env", None)
    if name is not None and not _VARIABLE.fullmatch(name):
        raise InputError(f"{place}: key_env takes the name of an environment variable that holds the key, not the key")
    return name


def _revision(options: dict[str, str], place: str) -> str | None:
    revision = options.pop("revision", None)
    if revision is not None and not revision.strip():
        raise InputError(f"{place}: revision= is empty; write a word for which model it is, or leave it out")
    return revision


def _number(key: str, value: str, place: str, what: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{place}: {key}={value}: give {what} above 0")
    return number


def _count(value: str, place: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 1000:
        raise InputError(f"{place}: concurrency={value}: give a number from 1 to 1000")
    return int(value)
