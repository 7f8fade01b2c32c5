"""The address of a model behind a server: ``openai:http://127.0.0.1:8000/v1#org/name``. Nothing is sent here.

No message repeats a part of the line that may hold a key by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field

from ensemble.common.pool_option import AboveZero, Budget, PoolOption, options_of, with_options
from ensemble.common.schema import Exact, SparseSchema, must
from ensemble.errors import InputError

PREFIX = "openai:"
ALL = "*"
"""In place of a model's name in a pool file: all models that the server lists."""
_OPENAI = "api.openai.com"
# A host name, IPv4 or IPv6 address. Names in other scripts need their ASCII form (xn--...), as in DNS.
_HOST = re.compile(r"([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A pool file or a run folder of other people must not send just any variable, such as AWS_SECRET_ACCESS_KEY.
_KEY_NAME = "_API_KEY"
_BUDGETS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "vllm": lambda tokens: {"thinking_token_budget": tokens},
    "sglang": lambda tokens: {"custom_params": {"thinking_budget": tokens}},
    "llamacpp": lambda tokens: {"thinking_budget_tokens": tokens},
    "openrouter.ai": lambda tokens: {"reasoning": {"max_tokens": tokens}},
    "api.anthropic.com": lambda tokens: {"thinking": {"type": "enabled", "budget_tokens": tokens}},
}
"""By what a server says of its owner, or by its host."""
_EFFORTS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    # Older versions read only the template's argument.
    "llamacpp": lambda word: {"reasoning_effort": word, "chat_template_kwargs": {"reasoning_effort": word}},
    "openrouter.ai": lambda word: {"reasoning": {"effort": word}},
}
_MARKS: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    "sglang": {"skip_special_tokens": False},
}
"""By what a server says of its owner. Others refuse fields that they do not know, or ignore them."""


Printable = Annotated[Exact, must(lambda text: bool(text.strip()) and text.isprintable(), "a printable text")]
# The value is not shown in a message: a user may have written the key itself.
Variable = Annotated[
    Exact,
    must(
        lambda text: _VARIABLE.fullmatch(text) is not None,
        "the name of the environment variable that holds the key, not the key",
    ),
]
Effort = Annotated[
    Exact, must(lambda text: re.fullmatch(r"[a-z]{1,20}", text) is not None, "a word such as low, medium or high")
]
Fields = Annotated[
    tuple[Exact, ...], BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)
]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a model behind a server, and how to send requests to it."""

    url: str  # without the endpoint: ``http://host:port/v1``
    model: str  # its name on the server
    tokenizer: Annotated[Printable | None, PoolOption()] = None
    """its tokenizer, a folder or a hub id, with which it can be decoded with others"""
    key_env: Annotated[Variable | None, PoolOption()] = None
    """the environment variable that holds the key"""
    revision: Annotated[Printable | None, PoolOption()] = None
    """your own label for its version"""
    timeout: Annotated[AboveZero, PoolOption()] = 300.0
    """seconds of a request and its response; 300 by default"""
    # vLLM, SGLang and llama.cpp reach most of their throughput with 64 requests at a time, and let more wait. A
    # provider that allows fewer answers 429, which is sent again after a pause.
    concurrency: Annotated[int, Field(ge=1, le=1000), PoolOption()] = 64
    """requests at a time, 1 to 1000; 64 by default"""
    requests_per_minute: Annotated[AboveZero | None, PoolOption()] = None
    """requests that start in a minute; no limit by default"""
    thinking_budget: Annotated[Budget | None, PoolOption(key=True)] = None
    """the most tokens that the model thinks"""
    reasoning_effort: Annotated[Effort | None, PoolOption(key=True)] = None
    """how much it thinks, in the server's words; instead of `thinking_budget`"""
    left_out: Annotated[Fields, PoolOption(key=True)] = ()
    """fields that are not sent; those that a server refuses are found without it"""
    is_remote: ClassVar[Literal[True]] = True

    @property
    def can_decode(self) -> bool:
        """Whether the model can be decoded token by token with others."""
        return self.tokenizer is not None

    @property
    def path_or_id(self) -> str:
        """The address as a pool file has it."""
        return f"{PREFIX}{self.url}#{self.model}"

    @property
    def name(self) -> str:
        """The last part of the model's name."""
        return self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def is_openai(self) -> bool:
        """Whether ``OPENAI_API_KEY`` may be sent: only to OpenAI's own hosts, and only encrypted."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        return parts.scheme == "https" and (host == _OPENAI or host.endswith(f".{_OPENAI}"))

    def check_consent(self, allowed: Collection[str] | None, place: str) -> None:
        """Raise an InputError unless the user allows a server that others name; None if the user wrote where it is."""
        if allowed is not None and not is_allowed(self.url, allowed):
            raise without_consent({place: self})
        if self.key_env is not None and not self.key_env.endswith(_KEY_NAME):
            # The name is not shown: a user may have written the key itself after key_env=.
            raise InputError(
                f"{place}: key_env names a variable that does not end in {_KEY_NAME}, so it is not read; put the "
                "key into a variable with such a name"
            )

    @property
    def origin(self) -> str:
        """The scheme, host and port, without the path, which may have characters that a shell obeys."""
        scheme, host, port = _origin(self.url)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def problem(self) -> str | None:
        """What is wrong with its options together, and the way out; None if they can be used."""
        if self.is_openai and self.thinking_budget is not None:
            return "OpenAI's servers take no thinking_budget=; give reasoning_effort="
        if self.reasoning_effort is None:
            return None
        if self.thinking_budget is not None:
            return "give thinking_budget= or reasoning_effort=, not both"
        # The server would write it into the prompt by its chat template, which is applied here.
        if self.tokenizer is not None:
            return "give a line without tokenizer= or with thinking_budget=: a server takes no effort for token ids"
        return None

    def as_dict(self) -> dict[str, Any]:
        """As files have it; the key itself is not part of it."""
        values = {name: getattr(self, name) for name in options_of(ServerAddress)}
        return {"address": self.path_or_id, **{name: value for name, value in values.items() if value != ()}}


@with_options(options_of(ServerAddress))
class SavedServer(SparseSchema, extra="forbid"):
    """The server of a model in ``ensemble.json`` and ``result.json``, as :meth:`ServerAddress.as_dict` gives it."""

    address: Exact
    """``openai:``, the URL, ``#`` and the model's name on the server"""


def is_allowed(url: str, allowed: Collection[str]) -> bool:
    """Whether a URL has the scheme, host and port of an allowed one, and its path or a path below it."""
    path = unquote(urlsplit(url).path)
    for each in allowed:
        try:
            read_address(f"{each}#m", "")
        except InputError:
            # Not quoted: it may have a password.
            raise InputError("--allow-server: give the URL of a server, such as http://127.0.0.1:8000/v1") from None
        prefix = unquote(urlsplit(each).path).rstrip("/")
        # A server may read /v1/../v2 as /v2.
        below = not prefix or (f"{path}/".startswith(f"{prefix}/") and ".." not in path)
        if below and _origin(each) == _origin(url):
            return True
    return False


def without_consent(servers: Mapping[str, ServerAddress]) -> InputError:
    """The error that the user has not allowed servers, each under the first model there and where that is named."""
    told = "; ".join(
        f"{place} is behind the server {each.origin}, to which the questions would be sent"
        + ("" if each.key_env is None else f", with the key in {each.key_env}")
        for place, each in servers.items()
    )
    options = " ".join(f"--allow-server {each.origin}" for each in servers.values())
    return InputError(f"{told}; add {options} if you trust {'it' if len(servers) == 1 else 'them'}")


def _origin(url: str) -> tuple[str, str, int]:
    """The scheme, host and port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def why_not_decodable(name: str) -> str:
    """The message for a model behind a server that gives whole texts, and should decode token by token with others."""
    return (
        f"{name} is behind a server and has no tokenizer=, so it gives whole texts and cannot be decoded token by "
        "token; add tokenizer=FOLDER_OR_ID to its line if vLLM, SGLang, llama.cpp or advisor serve runs it, or use "
        "voting, mbr or rerank"
    )


def read_address(word: str, place: str) -> ServerAddress:
    """The server and the model, from the first word of a line. No message repeats it, because it may hold a key."""
    if "api-version=" in word:
        raise InputError(
            f"{place}: Azure needs no api-version= in the address; write "
            f"{PREFIX}https://NAME.openai.azure.com/openai/v1#DEPLOYMENT key_env=AZURE_API_KEY"
        )
    # At the first #: the names of models may contain one, addresses cannot.
    url, _, model = word.removeprefix(PREFIX).partition("#")
    if not model:
        raise InputError(f"{place}: the model's name is missing; write {PREFIX}http://HOST:PORT/v1#MODEL")
    if not model.isprintable():
        raise InputError(f"{place}: the model's name has characters that cannot be printed; correct it")
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise InputError(f"{place}: the address is not valid; write {PREFIX}http://HOST:PORT/v1#MODEL") from None
    # Some providers take the key as ?key=... or user:password@; the address is stored in result.json and shown.
    if "@" in parts.netloc or parts.query:
        raise InputError(
            f"{place}: the address has more than host, port and path; do not write a key into a pool file: add "
            "key_env=NAME with the name of the environment variable that holds it"
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
    return ServerAddress(url.rstrip("/"), model)


def thinking_fields(address: ServerAddress, owner: Callable[[], str]) -> dict[str, Any]:
    """The fields of a request that limit the thinking; `owner` asks the server if its host does not tell them."""
    budget, effort = address.thinking_budget, address.reasoning_effort
    if budget is None and effort is None:
        return {}
    host = urlsplit(address.url).hostname or ""
    server = host if host in _BUDGETS else owner()
    if budget is not None:
        return _BUDGETS[server](budget) if server in _BUDGETS else {"thinking_budget": budget}
    # Others as OpenAI's servers have it.
    return _EFFORTS[server](effort or "") if server in _EFFORTS else {"reasoning_effort": effort}


def mark_fields(owner: str) -> Mapping[str, Any]:
    """The fields of a request with which a text keeps the special tokens that mark its thinking."""
    return _MARKS.get(owner, {})
