r"""Where a response says which answer it gives: the pieces of text that `number` and `choice` read first.

    >>> text = "So it is 18, in 2 steps.\n#### 18\nI am sure."
    >>> [(piece.rule, text[piece.start : piece.end]) for piece in pieces(text)]
    [('####', ' 18')]

Not covered: announcements in languages that docs/tasks.md does not list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d\u2796"), "-")
_SPACES = dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f\u3000"), " ")
_MARKS = str.maketrans(
    "\u3002\u3001\u066b\u066c\u060c\u2019\u2018\u00b4\u201c\u201d\u2044\u3010\u3011", "\n,.,,'''\"\"/[]"
)
FOLDED: dict[int, int | str] = {**_FULL_WIDTH, **_DASHES, **_SPACES, **_MARKS}
"""Signs of other scripts and fonts, each with the one ASCII character that it stands for, so that places stay."""

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
_OR = re.compile(r"\}?[\s$)\\]*(?:or|oder|ou|o|oppure|[或]者?|または|还是)[\s$(\\]*f?box(?:ed)?\s*\{?")
_LINE = re.compile(r"\s*[^\n]*")

LETTER_END = r"""(?![A-Za-z\d_']) (?: \s*(?:$|[^\w\s'(-]|-(?!\w)|\([^)]{2}|[\u3040-\u9fff]) | [ ]*\n
    | [ ](?i:because|since|as|weil|denn|da|car|parce|puisque|porque|pues|ya|perch[ée]|poich[ée]|pois)\b
    | [ ](?:is|ist|est|es|è|é)[ ](?:(?:the|my|clearly|die|la|a)[ ])?(?:best|correct|right|answer|richtig|bonne) )"""
"""What follows the letter of an option: a mark or a reason. A word follows the article and the pronoun."""
Place = tuple[int, int]
"""The first character of an answer in a response, and the end of it."""


class AnswerMark(NamedTuple):
    """A piece of a response that gives the answer.

    Attributes:
        rule: What marks it: ``boxed``, ``####``, ``is`` or ``:`` (an announcement with or without a verb), ``chosen``
            ("I choose"; only before letters), ``bold``.
        start: Its first character.
        end: The end of it.
    """

    rule: str
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
    if len(boxes) == 2 and _OR.fullmatch(text, boxes[0].end, boxes[1].start):
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
