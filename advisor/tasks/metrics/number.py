r"""Number: the last number in the response equals the reference.

    >>> METRIC.score("She pays $3 for 5, so $1,234.50 in total.", ("1234.5",), ())
    (1.0, '1234.5')

Numbers are compared exactly, as decimals: "1.0" is "1", and "3." is "3". Commas, apostrophes and no-break spaces group
three digits. A minus (also the Unicode one) counts if it is not a subtraction: "-3", "-$3" and "$-3" are negative,
"10-12" ends in 12. Digits of any script are read. Not covered: fractions, exponents, decimal commas (see
`number_comma`), other spaces that group, numbers in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

# No character can match two parts of the pattern, so its time is linear in the text.
_NUMBER = re.compile(
    r"""(?P<minus>(?<![\w)\]%])[-\u2212][$€£¥]?)?
        (?: (?P<whole>\d{1,3}(?:[,'\u2019\u00a0\u202f]\d{3})+(?!\d)|\d+) (?P<part>\.\d+)?
          | (?<!\d)(?P<only>\.\d+) )""",
    re.VERBOSE,
)
_MARKS = re.compile(r"\D")


class Number:
    """1 if the last number of the response equals an accepted number, else 0.

    Args:
        read: Gives the numbers of a text in one spelling.
    """

    packages: tuple[str, ...] = ()

    def __init__(self, read: Callable[[str], list[str]]) -> None:
        self._read = read

    def problem(self, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """Each accepted text must hold exactly one number."""
        for text in accepted:
            if len(self._read(text)) != 1:
                return f"the reference {text!r} is not a number"
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the last number; the answer is that number without grouping and trailing zeros."""
        numbers = self._read(text)
        if not numbers:
            return 0.0, None
        return float(numbers[-1] in {number for reference in accepted for number in self._read(reference)}), numbers[-1]


def numbers_in(text: str) -> list[str]:
    """The numbers of a text, in one spelling: without grouping and trailing zeros."""
    return [_canonical(match) for match in _NUMBER.finditer(text)]


def _canonical(match: re.Match[str]) -> str:
    digits = _MARKS.sub("", match["whole"] or "") + (match["part"] or match["only"] or "")
    # Decimal turns digits of any script into ASCII; "f" never rounds and writes no exponents.
    plain = format(Decimal(digits), "f")
    # Only after a point: 100 must not become 1.
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return f"-{plain}" if match["minus"] and plain != "0" else plain


METRIC = Number(numbers_in)
