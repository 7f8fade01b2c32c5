r"""Number: the number that the response gives as its answer equals the reference.

    >>> METRIC.score("#### 18\nI checked it in 2 ways.", ("18",), ())
    (1.0, '18')
    >>> METRIC.score(r"It is \frac{3}{6}.", ("0.5",), ())
    (1.0, '0.5')

docs/tasks.md has the rules, in order, with an example of each. Numbers are compared exactly: "1.0" is "1", and "1/3" is
not "0.333". Its variant `number_comma` exchanges points and commas; a task file takes it by `decimal: ","`.

    >>> VARIANT.score("Das macht 3 mal 454 \u20ac und 2 ct, also 1.362,02 \u20ac.", ("1362,02",), ())
    (1.0, '1362,02')

Not covered: numbers in words, roots, multiples of pi, texts in which both marks are decimal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import Literal, NamedTuple

from advisor.tasks.metrics import Metric
from advisor.tasks.metrics.exact_match import FOLDED

Place = tuple[int, int]
"""The first character of an answer in a response, and the end of it."""
_MOST_DIGITS = 300
"""Digits of the parts of a fraction or a power, and its largest exponent: larger values are not computed."""
_EXACT = Context(prec=10_000, traps=[Inexact])
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
# Every repeated part is followed by a character that it cannot match, or has a bounded length: linear in the text.
_NUMBER = re.compile(
    r"""(?<!\d\.) (?: (?<![A-Za-zµ\d_^]) | (?<=\b[A-Z]{3})(?<!\d) )           # not in H2O, m2 or x_1; USD18 is a price
        (?<![A-Za-z]-) (?<![\^_][-{(]) (?<![\^_][{(]-) (?<![A-Za-z]\*\*) (?<![A-Za-z]\*\*-)   # m^-2, m**2, COVID-19
        (?<!\\sqrt\{) (?<!sqrt\() (?<!√) (?<!\}\{)
        (?P<minus>(?<![\w)\]}%])-)? (?:(?:\\\$|[$€£¥₹₩])[ ]?(?P<after>-)?)?
        (?: (?P<mixed>\d{1,9}) (?: [ ](?=\d{1,9}[ ]?/[ ]?\d) | [ ]?(?=\\[dt]?frac) ) )?
        (?: \\[dt]?frac[ ]?(?: \{[ ]?(?P<top>-?\d+(?:\.\d+)?)[ ]?\} | (?P<top_digit>\d) )
            [ ]?(?: \{[ ]?(?P<bottom>-?\d+(?:\.\d+)?)[ ]?\} | (?P<bottom_digit>\d) )
          | (?: (?P<whole>\d{1,3}(?:\.\d{3}){2,}(?!\.?\d)
              | \d{1,3}(?:(?:[,' ]|\{,\}|\\[,;:!\ ]|,\\!)\d{3})+(?!\d)|\d+)(?P<part>\.\d+)?
              | (?<!\d)(?P<only>\.\d+) )
            (?: [ ]?/[ ]?(?P<over>\d+(?:\.\d+)?)(?!\d|/\d)
              | (?P<half>[¼-¾⅐-⅞])
              | [eE](?P<e>[-+]?\d{1,9})(?!\w)
              | (?: [ ]?(?:\\times|\\cdot|[*×·x])[ ]?(?P<ten>10)(?=[ ]?\^|\*\*|[⁻⁺⁰¹²³⁴-⁹]) )?
                (?: (?:[ ]?\^[ ]?|\*\*(?=[-\d]))[{(]?(?P<to>[-+]?\d{1,9})[)}]? | (?P<high>[⁻⁺]?[⁰¹²³⁴-⁹]{1,9}) )
              | (?P<symbol>(?:[.,]\d+)+ | [eE][-+]?\d{10} | \^[{(]?-?[A-Za-z](?![A-Za-z]) | [ ]?(?:\\pi|π|\\sqrt|√)) )?
          | (?P<half_alone>[¼-¾⅐-⅞]) )""",
    re.VERBOSE,
)
_EXCHANGED = str.maketrans(",.", ".,")
_NO_DIGITS = re.compile(r"\D")
_SPACED_MINUS = re.compile(
    r"(?:^|[=:(\[{≈]|\b(?:is|be|equals|ist|lautet|est|es|è|é)(?= )|[是为は])[\s$*]*(?:-[ ]|(?:minus|negative)[ ])$"
)
# "73 (rounded to 2 decimals)", "73 [1]": what stands in brackets behind a number is not the answer.
_ASIDE = re.compile(r"(?<=[\d%°²³])(?:[^\d()\[\]=.!?\n\\]{0,30}[ ])?[(\[](?![ ]*=)[^()\[\]\n]{0,200}[)\]]")
_LABEL = re.compile(
    r"\b(?:steps?|line|page|equation|eq\.|question|part|schritt|[ée]tape|paso|pass[io]|第) ?$", re.IGNORECASE
)
_PRECISION = re.compile(
    r"[ -]?(?:decimal|significant|d\.?p\b|s\.?f\b|nachkomma|dezimal|d[ée]cimal|位小数|位有效)", re.IGNORECASE
)
_UNIT = r"(?:[ ]*[^\W\d_]+\.?){0,2}[ ,)}$%°*]*"
_OPERATION = re.compile(
    rf"{_UNIT}(?:[-+±×÷/~·]|(?<!\*)\*(?!\*)|\\times|\\cdot|\\div|\bx\b)[ ($€£{{\\]*|:", re.IGNORECASE
)
_OR = re.compile(rf"{_UNIT}(?:\b(?:or|oder|ou|to|bis|à)\b|或者?|または|还是|至|到)[ ($€£{{*\\]*| [oa] ", re.IGNORECASE)
_BETWEEN = re.compile(r"(?:\b(?:between|zwischen|entre|tra|fra)|介于|在)[ ]*[$€£]?$", re.IGNORECASE)
_AND = re.compile(r"[^\d.\n]{0,30}(?:\b(?:and|und|et|[ye])\b|[和与])[^\d.\n]{0,5}", re.IGNORECASE)
_OPENING = r"[\s*_`\"'(\[{$\\:=≈~]*(?:[A-Za-z][ ]?=[ ]?[$(\\]*)?$"
_BEFORE = {
    "####": re.compile(_OPENING),
    ":": re.compile(_OPENING),
    "is": re.compile(rf"\s*(?:[^\W\d_]+[ ,]+){{0,2}}{_OPENING}"),
    "bold": re.compile(rf"(?:.*[:=≈])?{_OPENING}"),
}
"""What may stand between the mark of an answer and its number."""
_LIST = re.compile(r"[ ]?(?:[,;][ ]?)?(?:(?:and|und|et|[ey])[ ])?")
_LONGEST_GAP = 60
_LONGEST_SIGN = 24
_HEADING = re.compile(r"[.):]+[ ]*(?:\w|$)")


# Where a response says which answer it gives

_NOUN = r"""(?: (?<![\w/])(?:answer|ans|correct|letter|option|choice|antwort|l(?:ö|o\u0308)sung|richtig
    |r(?:é|e\u0301?)ponse|respuesta|risposta|resposta|opci(?:ó|o\u0301?)n|opzione|op[çc]\u0327?[ãa]\u0303?o|alternativa)(?![^\W\d_])
    | 答案|答え|正解|回答|解答 )"""
_VERB = r"""(?: (?<![^\W_])(?:is|are|be|ist|lautet|est|es|(?:è|é|e[\u0300\u0301]))(?![\w'\u0301]) | [是为為は选] )"""
_ANNOUNCED = re.compile(
    rf"""{_NOUN} [^\n.:=>→]{{0,40}}? (?:(?P<verb>{_VERB}) | [:=>→] | [ ]-[ ])
       | ^[#*\s]{{0,8}}(?:(?:the|final|correct)[ ]){{0,2}}answer[*_ ]{{0,4}}$
       | \b(?:final|correct)[ ]answer[ ](?=\(?[A-Z]\)|-?\d)""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_CHOSEN = re.compile(
    r"""\b(?:I|we)(?:'d|[ ]would|[ ]will)?[ ](?:choose|pick|select|go[ ]with)\b
      | \bit(?:'s|[ ]is)\b | \bc'est\b | [选選](?:[择擇択]肢?|项|項)?[是为為:]*""",
    re.VERBOSE | re.IGNORECASE,
)
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")
_MOST_BOLD = 20
_BOX = re.compile(r"\\f?boxed(?![A-Za-z])|\\fbox(?![A-Za-z])")
_BRACE = re.compile(r"[{}]")
_OR_BOX = re.compile(r"\}?[\s$)\\]*(?:or|oder|ou|o|oppure|[或]者?|または|还是)[\s$(\\]*f?box(?:ed)?\s*\{?")
_LINE = re.compile(r"\s*[^\n]*")


class AnswerMark(NamedTuple):
    """A piece of a response that gives the answer: what marks it, and where it is.

    ``is`` and ``:`` are announcements with and without a verb; ``chosen`` ("I choose") is only before letters.
    """

    rule: Literal["boxed", "####", "is", ":", "chosen", "bold"]
    start: int
    end: int


def pieces(text: str) -> Iterator[AnswerMark]:
    """The pieces of a text, folded by FOLDED, that give the answer, from the strictest rule to the loosest."""
    if box := last_box(text):
        yield box
    if (place := text.rfind("####")) >= 0:
        yield AnswerMark("####", place + 4, _line(text, place + 4))
    announced = [found for found in _ANNOUNCED.finditer(text) if text[found.end() : found.end() + 200].strip()]
    if announced:
        start = announced[-1].end()
        yield AnswerMark("is" if announced[-1]["verb"] else ":", start, _line(text, start))
    if chosen := list(_CHOSEN.finditer(text)):
        yield AnswerMark("chosen", chosen[-1].end(), _line(text, chosen[-1].end()))
    for bold in reversed(list(_BOLD.finditer(text))[-_MOST_BOLD:]):
        yield AnswerMark("bold", *bold.span(1))


def last_box(text: str) -> AnswerMark | None:
    """The last LaTeX box of a text, from the one before it where "or" is between them; None if it has no box."""
    boxes = [_boxed(text, found.end()) for found in list(_BOX.finditer(text))[-2:]]
    if len(boxes) == 2 and _OR_BOX.fullmatch(text, boxes[0].end, boxes[1].start):
        return AnswerMark("boxed", boxes[0].start, boxes[1].end)
    return boxes[-1] if boxes else None


def _boxed(text: str, start: int) -> AnswerMark:
    opening = re.compile(r"\s*\{").match(text, start)
    if opening is None:
        return AnswerMark("boxed", start, _line(text, start))
    depth = 1
    for brace in _BRACE.finditer(text, opening.end()):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return AnswerMark("boxed", opening.end(), brace.start())
    return AnswerMark("boxed", opening.end(), _line(text, opening.end()))


def _line(text: str, start: int) -> int:
    found = _LINE.match(text, start)
    return found.end() if found else start


class Token(NamedTuple):
    """A number in a text, and what stands before it."""

    start: int
    end: int
    found: re.Match[str]
    before: str

    @property
    def value(self) -> str | None:
        """The number in one spelling; None if it cannot be computed."""
        found = self.found
        digits = _NO_DIGITS.sub("", found["whole"] or "") + (found["part"] or found["only"] or "")
        if found["symbol"]:
            return None
        if any(found[part] for part in ("mixed", "over", "half", "half_alone", "e", "to", "high")) or not digits:
            value = _computed(found, digits)
        else:
            # Decimal turns digits of any script into ASCII; "f" never rounds and writes no exponents.
            value = _plain(Decimal(digits))
        is_negative = found["minus"] or found["after"] or _SPACED_MINUS.search(self.before)
        return f"-{value}".replace("--", "") if is_negative and value not in (None, "0") else value


class Number(Metric):
    """1 if the number that the response gives equals an accepted number, else 0.

    `fold` replaces each character that stands for another, so that a point is decimal; `mark` is that of the answer.
    """

    def __init__(self, fold: Callable[[str], str], mark: str) -> None:
        self._fold, self._mark = fold, mark

    def problem(self, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """Each accepted text must hold exactly one number, or mark one as its answer."""
        for text in accepted:
            folded = self._fold(text)
            is_marked = any(piece.rule in ("boxed", "####") for piece in pieces(folded))
            if self.read(text)[0] is None or (len(_tokens(folded)) != 1 and not is_marked):
                return f"the reference {text!r} is not a number"
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the number; the answer is that number without grouping and trailing zeros."""
        answer, _ = self.read(text)
        return float(answer is not None and answer in {self.read(each)[0] for each in accepted}), answer

    def read(self, text: str, _choices: tuple[str, ...] = ()) -> tuple[str | None, Place | None]:
        """The number that a text gives as its answer, in one spelling, and its place."""
        folded = self._fold(text)
        token = _answer(folded, _tokens(folded))
        value = None if token is None else token.value
        if token is None or value is None:
            return None, None
        return value.replace(".", self._mark), (token.start, token.end)


def _answer(text: str, tokens: Sequence[Token]) -> Token | None:
    """The number that a folded text gives as its answer."""
    for piece in pieces(text):
        own = [token for token in tokens if piece.start <= token.start < piece.end]
        if piece.rule == "boxed" and text[piece.start : piece.end].strip():
            own = _behind_equals(text, own, piece.end) or own
            return own[0] if len({token.value for token in own[:9]}) == 1 else None
        # "The answer is unknown": a number from the way to it is not the answer.
        if not own and piece.rule in ("is", ":") and not any(token.start >= piece.start for token in tokens):
            return None
        if own and piece.rule != "chosen" and _is_given(text, piece, own):
            earlier = [token for token in tokens if token.start < own[0].start][-1:]
            if piece.rule == "bold" and _is_joined(text, [*earlier, own[0]]):
                return None
            if _is_joined(text, own[:2]):
                own = _behind_equals(text, own, piece.end)
            is_list = len(own) > 1 and _LIST.fullmatch(text, own[0].end, own[1].start)
            return None if not own or is_list or _is_joined(text, own[:2]) else own[0]
    return None if not tokens or _is_joined(text, tokens[-2:]) else tokens[-1]


def _is_given(text: str, piece: AnswerMark, own: Sequence[Token]) -> bool:
    """Whether the first number of a piece is its answer, and not a part of a sentence or of a heading."""
    first = own[0]
    if not _BEFORE[piece.rule].match(text[max(piece.start, first.start - 200) : first.start]):
        return False
    if piece.rule in ("is", ":"):
        return True
    is_heading = _HEADING.match(text, first.end, piece.end if piece.rule == "bold" else len(text))
    return not is_heading and (piece.rule == "####" or len(own) == 1)


def _behind_equals(text: str, own: Sequence[Token], end: int) -> list[Token]:
    """The numbers behind the last equals sign of a piece."""
    equals = text.rfind("=", own[0].start, end) if own else -1
    return [token for token in own if 0 <= equals < token.start]


def _is_joined(text: str, two: Sequence[Token]) -> bool:
    """Whether two numbers are parts of "3 + 5", or of "3 or 5", which gives no answer; False for one number."""
    gap = text[two[0].end : two[-1].start]
    if len(two) < 2 or len(gap) > _LONGEST_GAP or "\n" in gap or "=" in gap:
        return False
    is_range = _BETWEEN.search(text[max(0, two[0].start - 12) : two[0].start]) and _AND.fullmatch(gap)
    is_either = two[0].value != two[1].value and (is_range or _OR.fullmatch(gap))
    return bool(is_either or _OPERATION.fullmatch(gap))


def _tokens(text: str) -> list[Token]:
    """The numbers of a folded text, without those in brackets behind one, of steps and of precisions."""
    text = _ASIDE.sub(lambda found: " " * len(found[0]), text)
    return [
        Token(*found.span(), found, text[max(0, found.start() - _LONGEST_SIGN) : found.start()])
        for found in _NUMBER.finditer(text)
        if not _PRECISION.match(text, found.end())
        and not _LABEL.search(text[max(0, found.start() - 12) : found.start()])
    ]


def _computed(found: re.Match[str], digits: str) -> str | None:
    """The value of a fraction or a power in one spelling; None if it is too large, or divided by 0."""
    top = found["top"] or found["top_digit"] or digits or "0"
    bottom = found["bottom"] or found["bottom_digit"] or found["over"] or "1"
    power = int(found["e"] or found["to"] or (found["high"] or "").translate(_SUPERSCRIPTS) or "1")
    is_of_ten = found["e"] or found["ten"]
    size = len(top) + len(bottom) + (abs(power) if is_of_ten else len(top) * abs(power))
    if size > _MOST_DIGITS or not Decimal(bottom):
        return None
    half = unicodedata.normalize("NFKC", found["half"] or found["half_alone"] or "0").replace("\u2044", "/")
    value = Fraction(Decimal(top)) / Fraction(Decimal(bottom)) + Fraction(half) + int(found["mixed"] or 0)
    if is_of_ten:
        value *= Fraction(10) ** power
    elif power != 1:
        if not value:
            return None
        value **= power
    if pow(10, value.denominator.bit_length(), value.denominator):
        return f"{value.numerator}/{value.denominator}"
    return _plain(_EXACT.divide(Decimal(value.numerator), Decimal(value.denominator)))


def _plain(value: Decimal) -> str:
    text = format(value, "f")
    # Only after a point: 100 must not become 1.
    return text.rstrip("0").rstrip(".") if "." in text else text


METRIC = Number(lambda text: text.translate(FOLDED), ".")
VARIANT = Number(lambda text: text.translate(FOLDED).translate(_EXCHANGED), ",")
