"""Untrusted text made visible, and numbers in the form that a reader sees, with a dash for an unknown one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache

from ensemble.errors import InputError

UNKNOWN = "–"
MINUS = "\u2212"
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_PLURALS = {"is": "are", "has": "have"}
LARGE_RATIO = 100.0
"""A ratio above it is told as "more than 100"."""
# Every character that may have to be spelt out. Zero-width joiners stay, because Persian, Hindi and family emoji need
# them.
_UNUSUAL = re.compile("[^ -~\u200c\u200d]")
_HYPHEN = re.compile(r"(?<=[\s(])-(?=[0-9])")
_UNUSUAL_IN_LINES = re.compile("[^ -~\n\t\u200c\u200d]")
# Controls, formats (with the bidi marks), surrogates, private code points, line and paragraph separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def visible(text: str, *, keep_lines: bool = False) -> str:
    """The text with controls, bidi marks, lone surrogates and noncharacters spelt out, perhaps not line feeds."""
    # Most texts need no change, and a run has hundreds of thousands.
    if text.isascii() and text.isprintable():
        return text
    if keep_lines:
        return _UNUSUAL_IN_LINES.sub(_spelt_match, text.replace("\r\n", "\n"))
    return _UNUSUAL.sub(_spelt_match, text)


def check_text(what: str, text: str) -> None:
    """Raise an InputError if a text has half of a surrogate pair, as JSON and arguments can have."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what}: it is not Unicode text: character {error.start + 1} is half of a surrogate pair; write the whole "
            "character"
        ) from None


def without_tokens(text: str, tokens: Sequence[str]) -> str:
    """A text with a space in place of each of some tokens, so that text from a model is never control."""
    for token in tokens:
        text = text.replace(token, " ")
    return text


def _spelt_match(match: re.Match[str]) -> str:
    return _spelt(match[0])


@lru_cache(maxsize=4096)
def _spelt(char: str) -> str:
    code = ord(char)
    # The category of a noncharacter (Cn) is also that of characters newer than this Python, so test its number.
    if unicodedata.category(char) not in _UNSEEN and code & 0xFFFE != 0xFFFE and not 0xFDD0 <= code <= 0xFDEF:
        return char
    if code < 0x20:
        return chr(0x2400 + code)  # the picture of the control, such as ␛
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"


def shortened(name: str, longest: int) -> str:
    """Return a name of at most ``longest`` characters. The middle is left out, because the ends tell models apart."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"


def first_of(names: Sequence[str], most: int, more: str = "more") -> str:
    """Return the first of some names in one line, and how many others there are: ``a, b and 3 more``."""
    rest = f" and {len(names) - most:,} {more}" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def did_you_mean(name: str, names: Iterable[str], most: int = 1) -> str:
    """Return the question of a message whether the nearest of some names is meant; empty if none is near."""
    near = get_close_matches(name, list(names), most)
    return f"did you mean {' or '.join(near)}? " if near else ""


def sentence(text: str, *, begins: bool = False) -> str:
    """Return a clause as a sentence, with a capital, a full stop, and minus signs before numbers.

    One that ``begins`` as it should, perhaps with the name of a model, gets no capital.
    """
    text = _HYPHEN.sub(MINUS, text)
    # A name such as "gpt-2" or "k=10" keeps its first letter.
    capital = text[:1].upper() if not begins and (text[1:2].isalpha() or text[1:2] == " ") else text[:1]
    return capital + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".") if text else ""


def points(value: float | None) -> str:
    """Return an accuracy or a gap with one decimal: ``78.0``."""
    if value is None:
        return UNKNOWN
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", MINUS)


def difference(value: float | None) -> str:
    """Return a difference in points with its sign: ``+6.0``."""
    if value is None:
        return UNKNOWN
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def is_loss(value: float | None) -> bool:
    """Return whether a difference is shown with a minus: a loss that rounds to 0.0 is shown as neither."""
    return difference(value).startswith(MINUS)


def interval(ends: tuple[float, float] | None) -> str:
    """Return the interval of an accuracy: ``71.2 to 83.9``."""
    return UNKNOWN if ends is None else f"{points(ends[0])} to {points(ends[1])}"


def difference_interval(ends: tuple[float, float] | None) -> str:
    """Return the interval of a difference: ``+1.0 to +11.0``."""
    return UNKNOWN if ends is None else f"{difference(ends[0])} to {difference(ends[1])}"


def percent(confidence: float) -> str:
    """Return a confidence in percent: ``90%``."""
    # 100 * (1 - 2 * 0.1) is 80 only with fewer digits.
    return f"{round(100 * confidence, 6):g}%"


def interval_name(confidence: float) -> str:
    """Return what an interval with a two-sided confidence is called: ``90% interval``."""
    return f"{percent(confidence)} interval"


def verdict(word: str, of: str, over: str, margin: float | None = None) -> str:
    """What a comparison shows: ``B is better than A``; ``margin`` are the points within which both count as equal."""
    if word == "equal":
        return f"{of} and {over} are equal" + ("" if margin is None else f" within {margin:g} points")
    return f"Cannot tell {of} from {over}" if word == "unclear" else f"{of} is {word} than {over}"


def verdict_in_table(word: str, margin: float, *, is_within: bool) -> str:
    """Return a verdict in a few words; `is_within` says whether the interval of the difference is within the margin."""
    if word in ("equal", "unclear"):
        return f"equal within {margin:g}" if word == "equal" else "cannot tell"
    # A large test set can show a difference that does not matter.
    return f"{word}, by less than {margin:g}" if is_within else word


def ratio(value: float | None) -> str:
    """Return a ratio: ``1.24×``, ``more than 100×``."""
    if value is None:
        return UNKNOWN
    return f"more than {LARGE_RATIO:g}×" if value > LARGE_RATIO else f"{value:.2f}×"


def decimals(value: float | None, digits: int = 2) -> str:
    """Return a number with a fixed count of decimals: ``0.12``."""
    return UNKNOWN if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def length(value: float | None) -> str:
    """Return a mean length in characters, with a decimal below 100: ``18.4``, ``1,204``."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def p_value(value: float | None) -> str:
    """Return a p-value with its sign: ``= 0.012``, ``< 0.001``."""
    if value is None:
        return UNKNOWN
    return "< 0.001" if value < 0.001 else f"= {value:.3f}" if value < 0.1 else f"= {value:.2f}"


def chance(value: float | None) -> str:
    """Return a p-value for a column: ``0.012``, ``< 0.001``."""
    return p_value(value).removeprefix("= ")


def probability(value: float | None) -> str:
    """Return a probability: ``0.93``, never 0 or 1."""
    return UNKNOWN if value is None else f"{min(max(value, 0.01), 0.99):.2f}"


def amount(value: float | None) -> str:
    """Return a large number in short form: ``912``, ``0.9 M``, ``7.2 B``."""
    if value is None:
        return UNKNOWN
    if value >= 1e9:
        return f"{value / 1e9:.1f} B"
    return f"{value / 1e6:.1f} M" if value >= 1e5 else f"{value:,.0f}"


def thousands(value: int | None) -> str:
    """Return a whole number with separators: ``1,204``."""
    return UNKNOWN if value is None else f"{value:,}"


def counted(value: int, noun: str, verb: str = "") -> str:
    """Return a number with its noun, and with a verb in the form of one: ``1 question``, ``1,204 questions are``."""
    if value == 1:
        return f"1 {noun} {verb}".rstrip()
    return f"{value:,} {noun}s {_PLURALS.get(verb, verb.removesuffix('s'))}".rstrip()


def seconds(value: float | None) -> str:
    """Return a duration: ``4.2 s``, ``3 min``, ``1.9 h``."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min" if value < 6000 else f"{value / 3600:.1f} h"


def duration(value: float | None) -> str:
    """Return the time of one response: ``0.84 ms``, ``120 ms``, ``4.2 s``."""
    if value is None:
        return UNKNOWN
    return f"{milliseconds(1000 * value)} ms" if value < 1 else seconds(value)


def price(value: float | None) -> str:
    """Return dollars: ``$0.42``; two digits of less than a cent, which would else be nothing."""
    if value is None:
        return UNKNOWN
    return f"${value:,.2f}" if value >= 0.01 or not value else f"${value:.2g}"


def milliseconds(value: float | None) -> str:
    """Return milliseconds with at least three digits: ``0.84``, ``12.3``, ``1,204``."""
    if value is None:
        return UNKNOWN
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Return a share, 0 to 1, in percent: ``7%``."""
    return UNKNOWN if value is None else f"{100 * value:.0f}%"


def memory(value: float | None) -> str:
    """Return bytes: ``640 MB``, ``7.6 GB``, ``46 GB``."""
    if value is None:
        return UNKNOWN
    if value >= 1e9:
        return f"{value / 1e9:.1f} GB" if value < 1e10 else f"{value / 1e9:.0f} GB"
    return f"{max(value, 0) / 1e6:.0f} MB"


def in_words(count: int) -> str:
    """Return a small number as a word: ``three``; a larger one in digits."""
    return _NUMBERS[count] if 0 <= count < len(_NUMBERS) else f"{count:,}"


def shown(value: str) -> str:
    """Return whether a test shows a gain: ``yes``, ``not yet``, ``no``."""
    return value.replace("_", " ")


# The filters of the templates by name.
FILTERS = {
    function.__name__: function
    for function in (
        *(counted, decimals, difference, difference_interval, interval, is_loss, length),
        *(p_value, points, ratio, seconds, sentence, share, thousands),
    )
}
