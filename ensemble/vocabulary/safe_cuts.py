"""Where a growing text may be cut, so that what stands in front is tokenized once and never again.

Tokens only ever join characters that stand in one token of the vocabulary. So where no token holds a letter and the
separator after it, none can run over a cut between the two, and what stands left has no say in what stands right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_SEPARATORS = " \n，。、！？"
_LETTERS = {"[A-Za-z]": "[A-Za-z]", r"[^\W\d_A-Za-z]": r"(?:[^\W\d_A-Za-z]|[\udc80-\udcff])"}
"""ASCII letters and all others; and what in a token may be one, or the end of one (a byte NN alone is U+DCNN)."""
# Something, and then a separator or its first byte, in any of the ways in which tokens are written.
_MAY_CROSS = re.compile(rf"(?s).[{_SEPARATORS}\u2581\u0120\u010aïã]")


def may_cross(token: str) -> bool:
    """Whether a token, as its vocabulary writes it, may hold a separator after something else; a quick first look."""
    return _MAY_CROSS.search(token) is not None


def safe_cuts(tokens: Iterable[bytes], is_known: Callable[[str], bool]) -> re.Pattern[str] | None:
    """A pattern of the places where text may be cut without changing its ids: before a separator between two letters.

    Args:
        tokens: The bytes of all tokens that :func:`may_cross`.
        is_known: Whether a character is never unknown; unknown ones side by side may become one token.
    """
    texts = [token.decode(errors="surrogateescape") for token in tokens]
    places = [
        rf"(?<={letter}){separator}(?=[^\W\d_])"
        for separator in filter(is_known, _SEPARATORS)
        for letter, end in _LETTERS.items()
        if not any(map(_crossing(end, separator).search, texts))
    ]
    return re.compile("|".join(places)) if places else None


def _crossing(end: str, separator: str) -> re.Pattern[str]:
    """Finds a letter's end before a separator, or before the first bytes of one at the end of a token."""
    raw = separator.encode()
    beginnings = [raw[:n].decode(errors="surrogateescape") + "$" for n in range(1, len(raw))]
    return re.compile(f"{end}(?:{'|'.join([separator, *beginnings])})")
