"""What a text must be: a JSON schema or a regular expression. A child process tries it first: strangers write it."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ensemble.common.limits import SECONDS, LimitedProcess, limited_process
from ensemble.errors import InputError

if TYPE_CHECKING:
    from llguidance import LLMatcher

_ALL_TOKENS = '%llguidance {"no_forcing": true}\n'
"""Without this, where only one text can follow, llguidance allows a single way to split it into tokens. Each member has
another one."""
_JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as json.dumps writes it. Any amount of it would let a small model write blanks until its last token."""
_TRIED_BYTES = 32
"""Bytes of a text by which a grammar is tried."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text must be. Use :meth:`json_schema` or :meth:`regex`, which check it.

    Attributes:
        kind: What ``text`` is.
        text: A JSON schema, as JSON, or a regular expression.
        size: The bytes that it takes in memory, as the check measured them; where the C library does not tell, an
            estimate by the length of the text.
    """

    kind: Literal["json_schema", "regex"]
    text: str
    size: int = field(default=0, compare=False)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any]) -> Grammar:
        """A JSON text that is valid by a schema; ``{"type": "object"}`` takes any object.

        White space is as ``json.dumps`` writes it.

        Raises:
            InputError: The schema takes too much time or memory, or has something that cannot be followed token by
                token.
        """
        return cls.unchecked(schema).checked()

    @classmethod
    def unchecked(cls, schema: Mapping[str, Any]) -> Grammar:
        """A JSON schema that is not checked yet; InputError if it is nested too deeply."""
        try:
            return cls("json_schema", json.dumps(schema))
        except RecursionError:
            raise InputError("the JSON schema: it is nested too deeply") from None

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """A text that a regular expression matches as a whole; look-around and back-references are not known.

        Raises:
            InputError: The expression takes too much time or memory, or is not valid.
        """
        return cls("regex", pattern).checked()

    @property
    def source(self) -> str:
        """The grammar in llguidance's form of Lark grammars."""
        from llguidance import LLMatcher

        if self.kind == "json_schema":
            schema = json.dumps({**json.loads(self.text), "x-guidance": _JSON_FORM})
            return f"{_ALL_TOKENS}start: %json {schema}\n"
        (rule,) = json.loads(LLMatcher.grammar_from_regex(self.text))["grammars"]
        return f"{_ALL_TOKENS}{rule['lark_grammar']}"

    def checked(self, process: LimitedProcess | None = None, seconds: float = SECONDS) -> Grammar:
        """This grammar with its size, after a child process has tried it; InputError if it takes too much."""
        what = "the JSON schema" if self.kind == "json_schema" else "the regular expression"
        try:
            called = (process or limited_process()).call
            problem, size = called("ensemble.common.grammar:problem_and_size", self.source, seconds=seconds)
        except InputError as error:
            raise type(error)(f"{what}: {error.reason}") from None
        if problem:
            raise InputError(f"{what}: {problem}")
        return replace(self, size=size)


class GrammarTokens:
    """Tokens as llguidance asks for them, by their bytes; the first one ends a text."""

    eos_token_id = 0
    bos_token_id = None
    special_token_ids = (0,)

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self._bytes = {token: number for number, token in enumerate(tokens) if len(token) == 1}

    def __call__(self, text: bytes) -> list[int]:
        """Some tokens that have these bytes."""
        return [self._bytes[text[n : n + 1]] for n in range(len(text)) if text[n : n + 1] in self._bytes]


def problem_and_size(source: str) -> tuple[str, int]:
    """Why a grammar cannot be followed, or else "", and its bytes in memory. It may end the child process."""
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    tokens = GrammarTokens([b"", *(bytes([byte]) for byte in range(255))])
    tokenizer = LLTokenizer(TokenizerWrapper(tokens))
    before = bytes_in_use()
    matcher = LLMatcher(tokenizer, source, log_level=0)
    problem = _problem_of(matcher)
    return problem, 32 * len(source) if before is None else max(0, (bytes_in_use() or 0) - before)


def _problem_of(matcher: LLMatcher) -> str:
    # Some texts become too hard only after their first bytes.
    for _ in range(_TRIED_BYTES):
        allowed = matcher.compute_logit_bias()
        if matcher.get_error().startswith("NoExtension"):
            return "no text is valid by it"
        if matcher.is_error() or matcher.is_stopped():
            break
        matcher.consume_token(max(token for token, is_allowed in enumerate(allowed) if is_allowed))
    return matcher.get_error().splitlines()[0] if matcher.is_error() else ""


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def bytes_in_use() -> int | None:
    """The bytes that this process has allocated; None where the C library does not tell."""
    try:
        read = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    read.restype = _MallocInfo
    found = read()
    return int(found.uordblks + found.hblkhd)
