"""Tokenizers and chat templates of strangers, tried in a child process with limits (:mod:`ensemble.common.limits`).

The functions here run in the child. They import neither torch nor transformers, which would not fit its memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_LONG = 4000
_PROBES = (
    *(
        "Hello, World! The cat didn't sit on 3 mats.\n",
        "1234567890 + 0.5 = 2,000",
        "  two\n\n\tspaces \r\n",
        "今天天气很好🙂",
    ),
    *(
        "café Ångström \u00e9 e\u0301 \ufdfa \u2581 \u0130",
        "\x00\x07\x1b\x7f",
        "<s></s><|x|>[INST]",
        "def f(x):\n    return {x: 1}",
    ),
    # A pattern that backtracks takes exponential time on a long run of one character.
    *(character * _LONG for character in ("a", "A", " ", "\n", "1", "!", "é", "今", "ab ", "a1", ".-")),
)
_LARGEST_ID = 2**24
_MOST_TOKENS = 64
"""Ids per character: a byte-level tokenizer writes at most 4, and normal forms of Unicode write up to 18 characters."""
_MOST_GROWTH = 64
"""How much longer the replacements of a normalizer or decoder may make a text. Real ones at most double it."""
_MOST_WRITTEN = 2**20
"""Characters that a chat template may add to a conversation; the longest real ones add some thousands."""
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def try_tokenizer(path: str) -> None:
    """Encode short texts of many kinds; ValueError without tokens, or with far too many for a text."""
    from tokenizers import Tokenizer

    growth = 1
    for step in _replacements(json.loads(Path(path).read_text(encoding="utf-8"))):
        pattern = step.get("pattern")
        text = pattern.get("String") if isinstance(pattern, dict) else None
        # A regular expression may match between any two characters, where the text grows by the whole replacement.
        growth *= -(-len(step["content"]) // len(text)) if text else len(step["content"]) + 1
        if growth > _MOST_GROWTH:
            raise ValueError(f"its replacements make a text {growth:,} times as long")
        growth = max(growth, 1)
    tokenizer = Tokenizer.from_file(path)
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=None)
    if largest is None:
        raise ValueError("it has no tokens")
    # The library counts up to the largest id when it writes a tokenizer, and past 2**32 - 1 it begins at 0 again.
    if largest > _LARGEST_ID:
        raise ValueError(f"it has a token with the id {largest:,}")
    # transformers sets truncation and padding itself, call by call.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for probe in _PROBES:
        if len(tokenizer.encode(probe).ids) > _MOST_TOKENS * (len(probe) + _MOST_TOKENS):
            raise ValueError(f"it makes too many tokens of a text of {len(probe):,} characters")


def _replacements(node: object) -> Iterator[dict[str, Any]]:
    """All replacement steps of a tokenizer, wherever they are nested."""
    if isinstance(node, list):
        for part in node:
            yield from _replacements(part)
    elif isinstance(node, dict):
        if node.get("type") == "Replace" and isinstance(node.get("content"), str):
            yield node
        # The vocabulary is large and has no steps.
        for key in node.keys() - {"vocab", "merges", "added_tokens"}:
            yield from _replacements(node[key])


def render(template: str, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]) -> str:
    """The text that a chat template makes of a conversation, as ``apply_chat_template`` of transformers does.

    If the last message is the assistant's, the text ends where the model continues it. ``variables`` are the
    tokenizer's special tokens by name. ValueError if the text is far longer than the conversation, or lacks the message
    to continue; the template's errors are passed on.
    """
    chat = [dict(message) for message in messages]
    final = chat[-1]["content"] if chat and chat[-1]["role"] == "assistant" else None
    if final is not None:
        chat[-1]["content"] = final + _TAG
    text = _compiled(template).render(
        messages=chat, tools=None, documents=None, add_generation_prompt=final is None, **variables
    )
    if len(text) > _MOST_WRITTEN + 4 * sum(len(message["content"]) for message in chat):
        raise ValueError(f"it writes {len(text):,} characters")
    if final is None:
        return text
    if final.strip() not in text or _TAG.strip() not in text:
        raise ValueError("it leaves out the assistant's last message, which the model is to continue")
    end = text.rindex(_TAG.strip())
    # A template that trims messages has trimmed the mark's last space, and so would have trimmed the message.
    return text[:end] if text.startswith(_TAG, end) else text[:end].rstrip()


@lru_cache(maxsize=64)
def _compiled(template: str) -> Template:
    """A template in the environment of transformers: the same extensions, filters and globals."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(template)


class _Generation(Extension):
    """``{% generation %}``, the mark of what the assistant wrote. Only training uses it."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A separate block, as in transformers: variables that are set in it do not exist after it.
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


class _Dict:
    """``dict`` without its other attributes, by which a template could leave the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """A namespace without names that begin with an underscore, by which a template could leave the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # All by position, so that a template can have a variable named self.
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"{name!r}: a name in a namespace cannot begin with an underscore")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    # Jinja's own filter escapes HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as in transformers
