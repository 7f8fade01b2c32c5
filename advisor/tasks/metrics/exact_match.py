r"""Exact match: the response is one of the accepted texts, both in normal form.

    >>> METRIC.score(" Sunset Boulevard.", ("Sunset Blvd", "Sunset Boulevard"), ())
    (1.0, 'sunset boulevard')

The whole response is compared, so the task needs stop strings or `extract` that leave only the answer. Not covered: an
answer inside a sentence (see `contains`), spellings that are not among the accepted texts.

In the normal form, signs that carry meaning stay; docs/tasks.md has the rules, with an example of each:

    >>> [normal(text) for text in ("\u201cThe  Eiffel Tower.\u201d", "C++", "U.S.", "$1,000.50.", "(A)", "(1,2)")]
    ['eiffel tower', 'c++', 'us', '$1000.50', 'a', '(1,2)']

Not covered: accents, numerals, other spellings of a number (see `number`).

Its variant `exact_match_squad` has the normal form of SQuAD's evaluation script, as papers on TriviaQA and Natural
Questions report it; a task file takes it by `normalise: squad`. There "C" and "C++" are equal.

    >>> VARIANT.score("the spider-man!", ("Spiderman",), ())
    (1.0, 'spiderman')
"""

from __future__ import annotations

import re
import string
import unicodedata

from advisor.tasks.metrics import Metric

_FULL_WIDTH = dict(zip(range(0xFF01, 0xFF5F), range(0x21, 0x7F), strict=True))
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d\u2796"), "-")
_SPACES = dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f\u3000"), " ")
_MARKS = str.maketrans(
    "\u3002\u3001\u066b\u066c\u060c\u2019\u2018\u00b4\u201c\u201d\u2044\u3010\u3011", "\n,.,,'''\"\"/[]"
)
FOLDED: dict[int, int | str] = {**_FULL_WIDTH, **_DASHES, **_SPACES, **_MARKS}
"""Signs of other scripts and fonts, each with the one ASCII character that it stands for, so that places stay."""
_MOST_PASSES = 20
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))
_QUOTES = dict.fromkeys(map(ord, "\u00ab\u00bb\u2039\u203a\u201e\u300a\u300b\u300c\u300d\u300e\u300f"), '"')
_OTHERS: dict[int, int | str | None] = {**FOLDED, **_INVISIBLE, **_QUOTES, 0x2014: " "}
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_ABBREVIATION = re.compile(r"(?<!\w)(?:[^\W\d_]\.){2,}(?:[^\W\d_](?!\w))?")
_EMPHASIS = re.compile(r"(?<!\w)(?:\*{1,3}|_{1,3})(?=[^\s*_])([^*_]*)[*_]{1,3}(?!\w)")
_OPERATOR = re.compile(r"(?<=\w) ([+*/=<>^]|-(?= \d)) (?=\w)")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"(?<!\S)(?:the(?= \S)|an?(?= (?:\d|[^\W\d_]{2})))")


class ExactMatch(Metric):
    """1 if the response equals an accepted text in the normal form, else 0."""

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the whole text; the answer is its normal form."""
        answer = self._form(text)
        return float(bool(answer) and answer in map(self._form, accepted)), answer or None

    def _form(self, text: str) -> str:
        return normal(text)


class _Squad(ExactMatch):
    def _form(self, text: str) -> str:
        lower = text.lower()
        words = re.sub(r"\b(?:a|an|the)\b(?=\s+\S)", " ", lower.translate(_NO_PUNCTUATION)).split()
        return " ".join(words or lower.split())  # brackets and operators can be an answer


def normal(text: str) -> str:
    """The normal form of a text; empty only if the text is white space."""
    # What one pass removes can leave marks at the edges of words for the next one.
    for _ in range(_MOST_PASSES):
        before, text = text, _simpler(text)
        if text == before:
            break
    return text


def _simpler(text: str) -> str:
    text = unicodedata.normalize("NFC", text.translate(_OTHERS).casefold())
    if not any(map(str.isalnum, text)):
        return " ".join(text.split())  # brackets and operators can be an answer
    text = _GROUPED.sub(lambda found: found[0].replace(",", ""), text)
    text = _ABBREVIATION.sub(lambda found: found[0].replace(".", ""), text)
    text = _EMPHASIS.sub(r" \1 ", text)
    # The brackets of lists, pairs and intervals stay, and so do their commas.
    is_list = "," in text and re.search(r"[(\[{]", text) is not None
    text = re.sub(r"\s*[,;]\s*", ",", text) if is_list else re.sub(r"[,;]", " ", text)
    brackets = "" if is_list else "()[]{}"
    # The marks of feet and of derivatives are no quotation marks.
    quotes = "\"'`" if re.search(r"(?<!\w)[\"'`]", text) else ""
    words = [_without_marks(word, brackets, quotes) for word in text.split()]
    text = _ARTICLE.sub(" ", " ".join(word for word in words if word))
    return _OPERATOR.sub(r"\1", " ".join(text.split()))


def _without_marks(word: str, brackets: str, quotes: str) -> str:
    word = word.lstrip(quotes + "\u00bf\u00a1" + brackets)
    is_call = any(bracket in word for bracket in "([{")  # f(x)
    word = word.rstrip(quotes + ".:?\u2026" + ("" if is_call else brackets))
    # 5! is another number than 5.
    return word if word[-2:-1].isdigit() else word.rstrip("!")


METRIC = ExactMatch()
VARIANT = _Squad()
