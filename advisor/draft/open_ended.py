"""Keys of a task whose answers are neither right nor wrong, so that a judge grades them."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.draft.columns import Columns

_IDS = ("question_id", "prompt_id", "id", "qid", "uid", "nr", "no", "nummer", "numéro", "frage_nr", "frage_id")
_MOST_TOKENS = 512
_BEGIN = (
    "You grade the answers of an assistant. Read the conversation below and grade the assistant's last answer from 1 "
    "(of no use) to 10 (hardly to be improved).\n\nA good answer does what the user wants, is correct, and is as deep "
    "as the question needs. More words are not better. Be strict and fair.\n"
)
_REFERENCE = (
    "{% if turn.reference %}\n=== Reference, which the assistant did not see ===\n{{turn.reference}}\n{% endif %}\n"
)
_END = "First write a few sentences on the strengths and faults of the last answer. Then write your grade in double "
_GRADE = "brackets, such as [[4]]."


def judge_of(*, has_reference: bool) -> dict[str, object]:
    """The value of ``judge``: a grade from 1 to 10 for the last answer of a conversation.

    Args:
        has_reference: Whether some questions have a reference, which the judge is shown.
    """
    turn = f"=== User ===\n{{{{turn.question}}}}\n{_REFERENCE if has_reference else ''}"
    turns = f"{{% for turn in turns %}}\n{turn}=== Assistant ===\n{{{{turn.response}}}}\n{{% endfor %}}\n"
    prompt = f"{_BEGIN}{turns}=== End ===\n\n{_END}{_GRADE}"
    return {"mode": "single", "scale": [1, 10], "max_new_tokens": _MOST_TOKENS, "prompt": prompt}


def id_of(columns: Columns, taken: Iterable[str]) -> str | None:
    """The column with the number of a question, by which a conversation's turns are named; None without one."""
    name = columns.usual(_IDS, taken)
    if name is None or not all(type(value) in (str, int) for value in columns.values[name]):
        return None
    # Two questions with one id would be one.
    return name if columns.distinct(name) == columns.count else None


def reference_of(columns: Columns, question: str, reference: str) -> str:
    """The template of a reference that some questions lack; one for each turn if both are lists."""
    if columns.is_list(question) and columns.is_list(reference):
        return f"{{{{({reference} | default([], true))[_turn - 1] | default('') | trim}}}}"
    return f"{{{{{reference} | default('', true)}}}}"
