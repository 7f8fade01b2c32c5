"""The words that a prompt puts before a question and its answer, in the language of the questions."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ENGLISH = ("Question: ", "Answer:")
_WORDS = {
    "the of is are what which who how many does this that to for write find with name": _ENGLISH,
    "der das ist ein eine und nicht wie wer wo wann welche welcher welches frage aufgabe antwort lösung": (
        "Frage: ",
        "Antwort:",
    ),
    "le les des est une du dans quel quelle qui combien où réponse énoncé font": ("Question : ", "Réponse :"),
    "el los las es del por qué cuál cuántos cuántas dónde quién pregunta respuesta": ("Pregunta: ", "Respuesta:"),
    "il gli è della che quale quanto quanti dove chi domanda risposta": ("Domanda: ", "Risposta:"),
    "os é uma da não qual quantos quantas onde quem pergunta resposta": ("Pergunta: ", "Resposta:"),
}
"""The commonest words of a language, and what its prompts begin and end with."""
_LANGUAGES = {word: words for common, words in _WORDS.items() for word in common.split()}
_MOST_READ = 2_000
"""Texts and characters of a text that are read."""


def prompt_words(texts: Iterable[str]) -> tuple[str, str]:
    """What is before a question, and before its answer.

    Args:
        texts: The questions, and the names of their columns.
    """
    counts = {_ENGLISH: 0}
    for _, text in zip(range(_MOST_READ), texts, strict=False):
        for word in re.findall(r"[^\W\d_]+", text[:_MOST_READ].lower()):
            words = _LANGUAGES.get(word)
            # Chinese and Japanese have no blanks between words, and only Japanese has kana.
            if "\u3040" <= word[-1] <= "\u30ff":
                words = ("問題：", "答え：")
            elif "\u4e00" <= word[-1] <= "\u9fff":
                words = ("问题：", "答案：")
            if words is not None:
                counts[words] = counts.get(words, 0) + 1
    return max(counts, key=counts.__getitem__)
