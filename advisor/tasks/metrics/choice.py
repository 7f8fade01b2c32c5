"""Choice: the response names the right option, by its letter or by its full text.

    >>> METRIC.score("The answer is (B).", ("B",), ("wet palms", "dry palms"))
    (1.0, 'B')
    >>> METRIC.score(" dry palms", ("B",), ("wet palms", "dry palms"))
    (1.0, 'B')

docs/tasks.md has the rules, in order, with an example of each. Not covered: likelihood (the profiler gives the text of
the likeliest option as the response), several options at once, options beyond Z.
"""

from __future__ import annotations

import re
import string

from advisor.tasks.metrics import Metric
from advisor.tasks.metrics.exact_match import FOLDED, normal
from advisor.tasks.metrics.number import Place, pieces

_AROUND = string.whitespace + "().:,-'[]*$_`{}\""
_MARKUP = re.compile(
    r"\\(?:text(?:bf|it)?|math(?:bf|rm)|mbox|f?boxed|fbox|left|right)(?![a-z])|\\[()]|</?[a-z]{1,9}>|[$*_`{}<>\"]"
)
LETTER_END = r"""(?![A-Za-z\d_']) (?: \s*(?:$|[^\w\s'(-]|-(?!\w)|\([^)]{2}|[\u3040-\u9fff]) | [ ]*\n
    | [ ](?i:because|since|as|weil|denn|da|car|parce|puisque|porque|pues|ya|perch[ée]|poich[ée]|pois)\b
    | [ ](?:is|ist|est|es|è|é)[ ](?:(?:the|my|clearly|die|la|a)[ ])?(?:best|correct|right|answer|richtig|bonne) )"""
"""What follows the letter of an option: a mark or a reason. A word follows the article and the pronoun, and an argument
in brackets the name of a function."""
_FILLER = """(?i:(?:(?:therefore|thus|hence|so),?|clearly|definitely|likely|most|probably|simply|option|choice|letter
    |answer|daher|also|die|der|la|le|el|il|a|o|donc|lettre|letra|lettera|opción|opzione|opção|alternativa|réponse
    |respuesta|risposta|resposta|antwort|buchstabe)[ ]+){0,3}"""
_LETTER = rf"[\s:]*{_FILLER}(?:\([ ]?([A-Za-z])[ ]?\)|\[([A-Za-z])\]|([A-Za-z])(?={LETTER_END})"
_LED = re.compile(rf"{_LETTER})", re.VERBOSE)
_ANNOUNCED = re.compile(rf"{_LETTER}|([B-HJ-Z])(?![A-Za-z\d_'-]|\(\w\)))", re.VERBOSE)
_SEVERAL = re.compile(
    r"[\s)\]*]*(?:[,/&]|(?:or|and|oder|und|ou|et|[oye])\b|[或和])\s*\(?[A-HJ-Z](?![\w'])", re.IGNORECASE
)
_LISTED = re.compile(r"\s*\(?A\s*[).:][^\n]*\n\s*\(?B\s*[).:]")
_WITH_TEXT = re.compile(r"(?:option |choice )?[(\[]?([A-Za-z])(?:[).:\]]\s?|$)(.*)", re.IGNORECASE | re.DOTALL)
_ANYWHERE = re.compile(r"(?<!not )\(([A-Z])\)(?![ ]is[ ](?:not|wrong|in))|\b(?i:option|choice)[ ]([A-Z])\b")


class ChoiceMetric(Metric):
    """1 if the response names the option that the reference names, else 0."""

    def problem(self, accepted: tuple[str, ...], choices: tuple[str, ...], /) -> str | None:
        """An accepted text must be a letter of an option or the full text of one; of "true" and "yes" one is."""
        if not 2 <= len(choices) <= len(string.ascii_uppercase):
            return f"a choice task has 2 to 26 choices, not {len(choices)}"
        if accepted and not any(_right(text, choices) for text in accepted):
            last = _letters(choices)[-1]
            return f"the reference {accepted[0]!r} is neither a letter up to {last} nor one of the choices"
        return None

    def score(self, text: str, accepted: tuple[str, ...], choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare letters; the answer is the letter."""
        letter, _ = self.read(text, choices)
        right = {_right(reference, choices) for reference in accepted}
        return float(letter is not None and letter in right), letter

    def read(self, text: str, choices: tuple[str, ...], /) -> tuple[str | None, Place | None]:
        """The letter that a text names, and the place where it does so."""
        # The exact text of an option goes first, since the profiler gives it: an option that is not the third may be
        # "C", and others differ only in case ("Rr" and "RR").
        whole = _letters(choices)[choices.index(text)] if text in choices else _named(text, choices)
        folded = text.translate(FOLDED)
        plain = _MARKUP.sub(lambda found: " " * len(found[0]), folded)
        if whole is not None:
            return whole, _inner(plain, 0, len(text))
        for piece in pieces(folded):
            if (named := _named(plain[piece.start : piece.end], choices)) is not None:
                return named, _inner(plain, piece.start, piece.end)
            stated = (_LED if piece.rule == "bold" else _ANNOUNCED).match(plain, piece.start, piece.end + 1)
            if stated and _SEVERAL.match(plain, stated.end()):
                return None, None
            if stated and _letter(stated) in _letters(choices):
                return _letter(stated), stated.span(stated.lastindex or 0)
        return _unmarked(plain, choices)


def _unmarked(plain: str, choices: tuple[str, ...]) -> tuple[str | None, Place | None]:
    """The letter of a text without a mark of its answer: first, alone on the last line, or the only one."""
    last = plain.rstrip().rfind("\n") + 1
    led = None if _LISTED.match(plain) else _LED.match(plain)
    anywhere = list(_ANYWHERE.finditer(plain))
    if led and _SEVERAL.match(plain, led.end()):
        return None, None
    if led and _letter(led) in _letters(choices):
        return _letter(led), led.span(led.lastindex or 0)
    if last and (named := _named(plain[last:], choices)) is not None:
        return named, _inner(plain, last, len(plain))
    if len({_letter(found) for found in anywhere}) == 1 and _letter(anywhere[0]) in _letters(choices):
        return _letter(anywhere[0]), anywhere[0].span()
    return _mentioned(plain, choices)


def _inner(text: str, start: int, end: int) -> Place:
    """The place of a part of a text without what stands around its words."""
    inner = text[start:end].strip(_AROUND)
    start = text.find(inner, start)
    return start, start + len(inner)


def _letter(found: re.Match[str]) -> str:
    return str(found[found.lastindex or 0]).upper()


def _letters(choices: tuple[str, ...]) -> str:
    return string.ascii_uppercase[: len(choices)]


def _named(text: str, choices: tuple[str, ...]) -> str | None:
    """The option that the whole text names: a letter such as "B", "(b)." or "**B**", or an option's text."""
    bare = _MARKUP.sub(" ", text.translate(FOLDED)).strip(_AROUND).upper()
    if len(bare) == 1 and bare in _letters(choices):
        return bare
    if text in choices:
        return _letters(choices)[choices.index(text)]
    wanted = normal(text)
    same = [letter for letter, choice in zip(_letters(choices), choices, strict=True) if normal(choice) == wanted]
    return same[0] if wanted and len(same) == 1 else None


def _right(reference: str, choices: tuple[str, ...]) -> str | None:
    """The option that a reference names, also as "Option B", or as "B. green" where green is B."""
    named, found = _named(reference, choices), _WITH_TEXT.fullmatch(reference.strip())
    if named is not None or found is None or found[1].upper() not in _letters(choices):
        return named
    letter = found[1].upper()
    return letter if normal(found[2]) in ("", normal(choices[_letters(choices).index(letter)])) else None


def _mentioned(text: str, choices: tuple[str, ...]) -> tuple[str | None, Place | None]:
    """The only option whose text occurs in the response; an option inside a longer one that occurs does not count."""
    response = f" {normal(text)} "
    letters = {
        choice: letter
        for letter, choice in zip(_letters(choices), choices, strict=True)
        if f" {normal(choice)} " in response
    }
    longest = [
        choice
        for choice in letters
        if not any(choice != other and normal(choice) in normal(other) for other in letters)
    ]
    if len(longest) != 1:
        return None, None
    start = text.lower().find(longest[0].lower())
    return letters[longest[0]], (start, start + len(longest[0])) if start >= 0 else None


METRIC = ChoiceMetric()
