"""Safe cuts: places where a growing text can be cut, so that the part before the cut is tokenized only once.

A tokenizer joins characters only if a token of the vocabulary holds them together. If no token holds a letter followed
by a separator, then no token crosses a cut between the two, and the text on one side does not change the ids of the
other side.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable

_SEPARATORS = " \n，。、！？"
_LETTERS = {"[A-Za-z]": "[A-Za-z]", r"[^\W\d_A-Za-z]": r"(?:[^\W\d_A-Za-z]|[\udc80-\udcff])"}
"""ASCII letters and all other letters; for each a pattern of its end in a token. A single byte NN of a longer character
is decoded to U+DCNN (surrogateescape), so it may be the end of a letter that is not ASCII."""
# Any character, then a separator or its first byte, in all ways in which vocabularies write them.
_MAY_CROSS = re.compile(rf"(?s).[{_SEPARATORS}\u2581\u0120\u010aïã]")


def may_cross(token: str) -> bool:
    """Whether a token, as its vocabulary writes it, may hold a separator after another character; a quick filter."""
    return _MAY_CROSS.search(token) is not None


def safe_cuts(tokens: Iterable[bytes], is_known: Callable[[str], bool]) -> re.Pattern[str] | None:
    """A pattern of the places where text can be cut without changing its ids: before a separator between two letters.

    Args:
        tokens: The bytes of all tokens that :func:`may_cross`.
        is_known: Whether a character never becomes the unknown token; a run of unknown characters may be one token.

    Returns:
        None if no place is safe.
    """
    texts = [token.decode(errors="surrogateescape") for token in tokens]
    places = [
        rf"(?<={letter}){separator}(?=[^\W\d_])"
        for separator in filter(is_known, _SEPARATORS)
        for letter, end in _LETTERS.items()
        if not any(map(_crossing(end, separator).search, texts))
    ]
    return re.compile("|".join(places)) if places else None


def last_cut(data: bytes, cuts: re.Pattern[str] | None) -> int:
    """The last place in a text where it can be cut, in bytes; 0 if it cannot be cut."""
    if cuts is None:
        return 0
    text = data.decode(errors="surrogateescape")
    # The last match only; a list of all would grow with the text.
    last = deque(cuts.finditer(text), maxlen=1)
    return len(text[: last[0].start()].encode(errors="surrogateescape")) if last else 0


def _crossing(end: str, separator: str) -> re.Pattern[str]:
    """A pattern of a letter's end before a separator, or before the first bytes of a separator at a token's end."""
    raw = separator.encode()
    # A byte-level token may end within a separator's bytes.
    beginnings = [raw[:n].decode(errors="surrogateescape") + "$" for n in range(1, len(raw))]
    return re.compile(f"{end}(?:{'|'.join([separator, *beginnings])})")
