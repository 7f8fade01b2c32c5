"""Changed files for the fuzzing: JSON with other values in any place, and any file with other bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

Path = tuple[str | int, ...]

DEEP = "\x00deep\x00"
"""A place for a list in lists, 100,000 deep, which no JSON writer can write."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, 2**31, 2**32 - 1, 2**63, -(2**63), 10**400, 1e308, -1e308, 1e-300, 5e-324),
    *(float("nan"), float("inf"), float("-inf"), [], {}, [[]], [None], [{}], {"": None}, [1e308, -1e308], [-1, 0]),
    *("", " ", "x", "abc", "\n", "\x00", "\ud800", "\x1b[2J", "\u202e", "\ufffe", "1e308", "NaN", "a" * 5000, "é" * 99),
    *("../x", "../../../../etc/passwd", "/dev/zero", "/", "**/*", "a**b", "~", "C:\\x", "http://127.0.0.1:9/v1#m"),
    *("{{ 1 / 0 }}", "{{ 'a' * 3000000000 }}", "{% for a in range(10**9) %}{% endfor %}", "{{ x.__class__ }}", "{{"),
    *("(a+)+$", "((((a{100}){100}){100}){100})", "(?P<", "cuda:99", "meta", "float8", "<script>", "lambda: 0", DEEP),
)
_BYTES = (
    b"",
    b"\x00",
    b"\xff",
    b"\xff\xfe",
    b"\n",
    b'"',
    b"[" * 5000,
    b"{",
    b"}",
    b"\xed\xa0\x80",
    b"1e999",
    b"\\ud800",
)


def mutated_json(seed: bytes, chance: random.Random) -> bytes:
    """JSON with one to three changes; sometimes other bytes in place of that."""
    if chance.random() < 0.1:
        return mutated_bytes(seed, chance)
    value = json.loads(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        value = _changed(value, chance.choice(list(places(value))), chance)
    return as_json(value)


def mutated_lines(seed: bytes, chance: random.Random) -> bytes:
    """Lines of JSON, one of which is changed, repeated or left out."""
    lines = seed.splitlines()
    place = chance.randrange(len(lines))
    new = chance.choice(([], [lines[place]] * 2, *[[mutated_json(lines[place], chance)]] * 8))
    return b"\n".join([*lines[:place], *new, *lines[place + 1 :]]) + b"\n"


def mutated_words(seed: bytes, chance: random.Random) -> bytes:
    """A text in which some words are another's, or a strange value."""
    if chance.random() < 0.3:
        return mutated_bytes(seed, chance)
    lines = [line.split(" ") for line in seed.decode().split("\n")]
    for _ in range(chance.choice((1, 1, 2, 3))):
        line = chance.choice(lines)
        place = chance.randrange(len(line))
        value = as_json(chance.choice(VALUES)).decode() if chance.random() < 0.5 else str(chance.choice(VALUES))
        other = chance.choice((value, chance.choice(chance.choice(lines)), "", f"{line[place]}{value}"))
        line[place : place + chance.choice((0, 1, 1, 1))] = [other]
    return "\n".join(" ".join(line) for line in lines).encode(errors="surrogatepass")


def mutated_bytes(seed: bytes, chance: random.Random) -> bytes:
    """Bytes that are changed, cut, repeated or put in."""
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((0, 1, 1, 4, 8, 100)))
        kind = chance.randrange(6)
        if kind == 0:
            del data[start:end]
        elif kind == 1:
            data[start:end] = chance.choice(_BYTES)
        elif kind == 2:
            data[start:start] = data[start:end]
        elif kind == 3:
            data[start:end] = bytes(chance.randrange(256) for _ in range(end - start))
        elif kind == 4 and start < len(data):
            data[start] ^= 1 << chance.randrange(8)
        elif chance.random() < 0.3:
            del data[start:]
    return bytes(data)


def places(value: Any, at: Path = ()) -> Iterator[Path]:
    """The paths of all values in a JSON value, its own first."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in items:
            yield from places(child, (*at, key))


def as_json(value: Any) -> bytes:
    """The value as JSON, which may be deeper than a writer can write it."""
    deep = b"[" * 100_000 + b"]" * 100_000
    return json.dumps(value).encode().replace(json.dumps(DEEP).encode(), deep)


def _changed(value: Any, at: Sequence[Any], chance: random.Random) -> Any:
    """The value with another one at a path, or without it."""
    if not at:
        return chance.choice(VALUES)
    key, rest = at[0], at[1:]
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copied[key] = _changed(value[key], rest, chance)
    elif chance.random() < 0.15:
        del copied[key]
    elif chance.random() < 0.1:
        # Another value of the same file: of a form that the reader knows, in a place where it does not belong.
        copied[key] = chance.choice(list(copied.values()) if isinstance(copied, dict) else copied)
    elif isinstance(copied, dict) and chance.random() < 0.1:
        copied[chance.choice([name for name in VALUES if isinstance(name, str)])] = copied.pop(key)
    else:
        copied[key] = chance.choice(VALUES)
    return copied
