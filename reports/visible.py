r"""Untrusted text, as it may be shown: what would be invisible, or would turn the text around it, is spelt out.

``"a\x1b[2J\u202eb"`` becomes ``"a␛[2J⟨U+202E⟩b"``. Markup is not this module's business: the template escapes it.
Joiners (U+200C, U+200D) stay, because Persian, Hindi and family emoji are written with them.
"""

from __future__ import annotations

import unicodedata

_JOINERS = "\u200c\u200d"
_LINE_BREAKS = "\n\t"
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Controls, formats (bidi marks are among them), surrogates, private code points, and the two odd separators."""


def visible(text: str, *, keep_lines: bool = False) -> str:
    """Return the text with every control, bidi mark, lone surrogate and noncharacter spelt out.

    Args:
        text: Anything that came out of a model or a file.
        keep_lines: Whether line feeds and tabs stay what they are (for responses, which are shown line by line).
    """
    if text.isascii() and text.isprintable():
        return text
    if keep_lines:
        text = text.replace("\r\n", "\n")
    kept = _JOINERS + _LINE_BREAKS if keep_lines else _JOINERS
    return "".join(char if char in kept else _spelt(char) for char in text)


def _spelt(char: str) -> str:
    code = ord(char)
    # Noncharacters are named by their numbers: their category is also that of characters newer than this Python.
    if unicodedata.category(char) not in _UNSEEN and code & 0xFFFE != 0xFFFE and not 0xFDD0 <= code <= 0xFDEF:
        return char
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"
