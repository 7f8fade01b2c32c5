"""Choice: the response names the right option, by its letter or by its full text.

    >>> METRIC.score("The answer is (B).", ("B",), ("wet palms", "dry palms"))
    (1.0, 'B')
    >>> METRIC.score(" dry palms", ("B",), ("wet palms", "dry palms"))
    (1.0, 'B')

Not covered: likelihood (the profiler gives the text of the likeliest option as the response), several options at once,
options beyond Z.
"""

from __future__ import annotations

import re
import string

from advisor.tasks.metrics.exact_match import normal

_LABEL = re.compile(r"\s*\(?([A-Za-z])\s*[).:](?=\s|\*|$)")
_STATED = re.compile(r"(?i:answer\s*(?:is)?\s*[:=]?\s*(?:option\s+)?)[*\s]*(?:\(([A-Za-z])\)|([A-Z])\b)")
_BRACKETED = re.compile(r"\(([A-Z])\)")


class ChoiceMetric:
    """1 if the response names the option that the reference names, else 0."""

    packages: tuple[str, ...] = ()

    def problem(self, accepted: tuple[str, ...], choices: tuple[str, ...], /) -> str | None:
        """Each accepted text must be a letter of an option or the full text of one."""
        if not 2 <= len(choices) <= len(string.ascii_uppercase):
            return f"a choice task has 2 to 26 choices, not {len(choices)}"
        for text in accepted:
            if _named(text, choices) is None:
                return (
                    f"the reference {text!r} is neither a letter up to {_letters(choices)[-1]} nor one of the choices"
                )
        return None

    def score(self, text: str, accepted: tuple[str, ...], choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare letters; the answer is the letter."""
        letter = _read(text, choices)
        right = {_named(reference, choices) for reference in accepted}
        return float(letter is not None and letter in right), letter


def _letters(choices: tuple[str, ...]) -> str:
    return string.ascii_uppercase[: len(choices)]


def _named(text: str, choices: tuple[str, ...]) -> str | None:
    """The option that the whole text names: a letter such as "B", "(b)." or "**B**", or an option's text."""
    bare = text.strip(string.whitespace + "().:*`'\"").upper()
    if len(bare) == 1 and bare in _letters(choices):
        return bare
    if text in choices:
        return _letters(choices)[choices.index(text)]
    wanted = normal(text)
    same = [letter for letter, choice in zip(_letters(choices), choices, strict=True) if normal(choice) == wanted]
    return same[0] if wanted and len(same) == 1 else None


def _read(text: str, choices: tuple[str, ...]) -> str | None:
    # The exact text of an option goes first, since the profiler gives it: an option that is not the third may be "C",
    # and others differ only in punctuation or case ("+1" and "-1", "Rr" and "RR").
    named = _letters(choices)[choices.index(text)] if text in choices else _named(text, choices)
    if named is not None:
        return named
    stated = [parenthesised or bare for parenthesised, bare in _STATED.findall(text)]
    label = _LABEL.match(text)
    bracketed = set(_BRACKETED.findall(text))
    # From the strictest reading to the loosest; the first that names an option counts.
    candidates = (
        stated[-1] if stated else None,
        label[1] if label else None,
        bracketed.pop() if len(bracketed) == 1 else None,
    )
    for letter in candidates:
        if letter is not None and letter.upper() in _letters(choices):
            return letter.upper()
    return _mentioned(text, choices)


def _mentioned(text: str, choices: tuple[str, ...]) -> str | None:
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
    return letters[longest[0]] if len(longest) == 1 else None


METRIC = ChoiceMetric()
