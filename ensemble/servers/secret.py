"""A key in the texts of a server that repeats it: as it is, escaped, encoded, or with other characters in between."""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from urllib.parse import unquote

_SHORTEST = 8
"""Letters and digits of a part of a key; texts have shorter ones by chance."""
_NO_LETTER = re.compile(r"[^a-z0-9]+")
_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(rf"\\+(?:u\{{({_HEX}{{1,6}})\}}|u({_HEX}{{4}})|U({_HEX}{{8}})|x({_HEX}{{2}}))")


class Secret:
    """A key, and what half of it looks like."""

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
