"""`advisor init` reads options, references and chats in the forms in which public data sets have them, or asks."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pools import Place

from advisor.tasks import Task, load_task

pytest_plugins = ["pools"]

COLOURS = ("red", "green", "blue", "grey")
Rows = Sequence[dict[str, Any]]


def rows_of(record: Callable[[int], dict[str, Any]], count: int = 24) -> Rows:
    return [{"question": f"Which colour has item {n} of the shop?", **record(n)} for n in range(count)]


def lines(rows: Rows) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def table(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def drafted(place: Place, text: str, *options: str) -> tuple[Task, str]:
    """The dev questions of the task file that is written for some data, and what is said."""
    name = place.write(f"questions.{'jsonl' if text.startswith('{') else 'csv'}", text)
    ran = place.advisor("init", name, "--yes", *options)
    assert (ran.status, ran.err) == (0, ""), ran.err
    assert "score 1.0, as right answers must" in ran.out or options, ran.out
    return load_task(place.folder / "questions.yaml", split="dev"), ran.out


def number_of(question: str) -> int:
    return int("".join(character for character in question.partition("shop")[0] if character.isdigit()))


# --- Options ---


def lettered(form: str, between: str) -> str:
    return between.join(form.format(letter, colour) for letter, colour in zip("ABCD", COLOURS, strict=True))


def letter(n: int) -> str:
    return "ABCD"[n % 4]


def right(n: int) -> str:
    return COLOURS[n % 4]


def wrong(n: int) -> list[str]:
    return [colour for colour in COLOURS if colour != COLOURS[n % 4]]


OBJECT = dict(zip("ABCD", COLOURS, strict=True))
ONE_HOT = [[int(place == n) for place in range(4)] for n in range(4)]
ARC = {"text": list(COLOURS), "label": list("ABCD")}
TRUTHFUL = [{"choices": [COLOURS[n], *wrong(n)], "labels": [1, 0, 0, 0]} for n in range(4)]
DISTRACTORS = [lambda n, place=place: wrong(n)[place] for place in range(3)]


def of(write: Callable[[Rows], str], **fields: Any) -> str:
    """Data with these fields in each record; functions get its number."""
    return write(rows_of(lambda n: {name: each(n) if callable(each) else each for name, each in fields.items()}))


OPTIONS: dict[str, str] = {
    # An object (P11).
    "letters": of(lines, options=OBJECT, answer=letter),
    "small letters": of(
        lines, options={key.lower(): each for key, each in OBJECT.items()}, answer=lambda n: letter(n).lower()
    ),
    "numbers": of(lines, options=dict(zip("1234", COLOURS, strict=True)), answer=lambda n: str(n % 4 + 1)),
    "keys that end in letters": of(
        lines, choices={f"option_{key}": each for key, each in OBJECT.items()}, label=letter
    ),
    "an object with a null at its end": of(lines, options={**OBJECT, "E": None}, answer=letter),
    "an object in a cell": of(table, options=json.dumps(OBJECT), answer=letter),
    "an object in a cell, in Python": of(table, options=str(OBJECT), answer=right),
    "objects in a list": of(
        lines, choices=[{"label": key, "text": each} for key, each in OBJECT.items()], answerKey=letter
    ),
    "ARC": of(lines, choices=ARC, answerKey=letter),
    "ARC in a cell": of(table, choices=str(ARC), answerKey=letter),
    # One text (P12).
    "lines with letters": of(lines, options=lettered("{}. {}", "\n"), answer=letter),
    "brackets": of(table, options=lettered("({}) {}", " "), answer=lambda n: f"({letter(n)})"),
    "MathQA": of(table, options=lettered("{} ) {}", " , ").lower(), correct=lambda n: letter(n).lower()),
    "semicolons": of(table, choices="; ".join(COLOURS), answer=right),
    "bars": of(table, candidates="|".join(COLOURS), label=lambda n: n % 4),
    "lines without letters": of(table, options="\n".join(COLOURS), answer=lambda n: n % 4 + 1),
    "in the question": of(
        table, question=lambda n: f"Which has {n}, shop?\n{lettered('{}. {}', chr(10))}", answer=letter
    ),
    "in the question, with brackets": of(
        table, question=lambda n: f"Which has {n}, shop? {lettered('({}) {}', ' ')}", answer=letter
    ),
    # A list in a cell (P13).
    "Python": of(table, choices=str(list(COLOURS)), answer=lambda n: n % 4),
    "JSON": of(table, choices=json.dumps(COLOURS), answer=right),
    "NumPy": of(table, choices="['red' 'green' 'blue' 'grey']", answer=lambda n: n % 4),
    "a tuple": of(table, options=str(COLOURS), answer=letter),
    "letters in the list": of(lines, options=[f"{key}){each}" for key, each in OBJECT.items()], correct=letter),
    "the answer with its letter": of(lines, options=list(COLOURS), answer=lambda n: f"{letter(n)}. {right(n)}"),
    "the word option": of(table, **OBJECT, answer=lambda n: f"Option {letter(n)}"),
    "floats of pandas": of(table, choices=str(list(COLOURS)), answer=lambda n: float(n % 4)),
    # Right and wrong answers (P14).
    "distractors": of(table, correct_answer=right, **{f"distractor{i}": each for i, each in enumerate(DISTRACTORS, 1)}),
    "GPQA": of(
        table, **{"Correct Answer": right, **{f"Incorrect Answer {i}": each for i, each in enumerate(DISTRACTORS, 1)}}
    ),
    "Open Trivia": of(lines, correct_answer=right, incorrect_answers=wrong),
    "wrong answers in a cell": of(table, answer=right, distractors=lambda n: str(wrong(n))),
    "wrong answers with semicolons": of(
        table, **{"Best Answer": right, "Incorrect Answers": lambda n: "; ".join(wrong(n))}
    ),
    "the right one first": of(lines, options=lambda n: [right(n), *wrong(n)], answer="A"),
    "answers and a place": of(lines, answers=list(COLOURS), correct_answer_id=lambda n: n % 4),
    # Labels of one 1.
    "one-hot": of(lines, choices=list(COLOURS), labels=lambda n: ONE_HOT[n % 4]),
    "one-hot in a cell": of(table, choices=str(list(COLOURS)), label=lambda n: str(ONE_HOT[n % 4])),
    "TruthfulQA": of(lines, mc1_targets=lambda n: TRUTHFUL[n % 4]),
    "TruthfulQA in cells": of(
        table, mc1_targets=lambda n: str(TRUTHFUL[n % 4]), mc2_targets=lambda n: str(TRUTHFUL[n % 4])
    ),
    "an object with labels": of(lines, targets=lambda n: {"choices": list(COLOURS), "labels": ONE_HOT[n % 4]}),
}


@pytest.mark.parametrize("form", OPTIONS)
def test_options_are_read_in_every_form(place: Place, form: str) -> None:
    task, _ = drafted(place, OPTIONS[form])
    assert task.metric == "choice"
    for example in task.examples:
        wanted = right(number_of(example.question))
        assert sorted(example.choices) == sorted(COLOURS)
        scores = {choice: task.score(example, choice).value for choice in example.choices}
        assert scores == {choice: float(choice == wanted) for choice in COLOURS}
        assert all(example.prompt.count(colour) == 1 for colour in COLOURS), example.prompt


def test_the_right_answer_is_not_always_in_one_place(place: Place) -> None:
    rows = rows_of(
        lambda n: {"correct_answer": f"{n} reds", **{f"distractor{i}": f"{n + i} reds" for i in (1, 2, 3)}}, 60
    )
    tasks = [drafted(place, table(rows), *options)[0] for options in ((), ("--force",))]
    assert tasks[0].examples == tasks[1].examples
    assert len({example.choices.index(str(example.reference)) for example in tasks[0].examples}) == 4


@pytest.mark.parametrize(
    ("record", "labels"),
    [
        (lambda n: {"answer": letter(n)}, "A, B, C, D"),
        (lambda n: {"answer": f"({letter(n).lower()})"}, "A, B, C, D"),
        (lambda n: {"answer": f"Option {letter(n)}"}, "A, B, C, D"),
        (lambda n: {"label": n % 4}, "0, 1, 2, 3"),
        (lambda n: {"answer": n % 4 + 1}, "1, 2, 3, 4"),
        (lambda n: {"text": f"Item {n} is fine.", "label": n % 2}, "0, 1"),
        (lambda n: {"answer": letter(n), "options": f"page {n}"}, "A, B, C, D"),
    ],
)
def test_references_that_no_prompt_explains_are_asked_for(
    place: Place, record: Callable[[int], dict[str, Any]], labels: str
) -> None:
    place.write("questions.csv", table(rows_of(record)))
    message = place.refused("init", "questions.csv", "--yes")
    assert f"has only {labels}, and no column with the options was found" in message
    assert "--choices none if each question says it" in message
    drafted(place, table(rows_of(record)), "--choices", "none")


@pytest.mark.parametrize(
    "record",
    [
        lambda n: {"question": f"What is {n + n % 3} minus {n}?", "answer": n % 3},
        lambda n: {"question": f"Is {n} good? 0: no, 1: yes", "answer": n % 2},
        lambda n: {"question": f"How many legs has number {n}?", "answer": n},
    ],
)
def test_small_numbers_that_are_answers_are_no_labels(place: Place, record: Callable[[int], dict[str, Any]]) -> None:
    assert drafted(place, table(rows_of(record)))[0].metric == "number"


# --- Different references that count as one answer ---


@pytest.mark.parametrize(
    ("answers", "options", "said"),
    [
        (["US", "us", "Paris"], [], "1 pair of different answers count as one, so a wrong response can be right: 'US'"),
        (
            ["art", "art history", "Rome"],
            ["--metric", "contains"],
            "'art' and 'art history'; --metric exact_match tells",
        ),
        (["5 km", "5 kg", "7 m"], ["--metric", "number"], "'5 km' and '5 kg'; --metric exact_match tells them apart"),
        (["US", "us", "ROME", "rome"], [], "2 pairs of different answers"),
        (["The Beatles", "Beatles", "Rome.", "Rome", "Yes", "yes"], [], ""),
        (["1,000", "1000", "7.50"], [], ""),
        (["C", "C++", "C#", "x+1", "x-1", "10:30", "1030", "(1,2)", "1/2", "12"], [], ""),
        ([f"code {n} b" for n in range(400)], [], ""),
    ],
)
def test_different_references_that_count_as_one_answer_are_named(
    place: Place, answers: list[str], options: list[str], said: str
) -> None:
    rows = [{"question": f"Which word is in place {n} of it?", "answer": text} for n, text in enumerate(answers)]
    _, out = drafted(place, table(rows), *options)
    assert said in out if said else "different answers" not in out


@pytest.mark.parametrize(("options", "is_said"), [(["red", "blue", "red"], True), (["RR", "Rr", "rr"], False)])
def test_options_that_are_read_as_one_are_named(place: Place, options: list[str], is_said: bool) -> None:
    rows = rows_of(lambda n: {"options": COLOURS if n else options, "answer": letter(n)})
    assert ("'red' and 'red'; change these" in drafted(place, lines(rows), "--force")[1]) is is_said


# --- Chats, solutions and languages ---


def said(
    *texts: str, role: str = "role", content: str = "content", names: Sequence[str] = ("user", "assistant")
) -> Any:
    return [{role: names[place % 2], content: text} for place, text in enumerate(texts)]


SHARED: dict[str, Any] = {"role": "from", "content": "value", "names": ("human", "gpt")}
CHATS: dict[str, str] = {
    "messages": lines([{"messages": said(f"What is {n}+2?", str(n + 2))} for n in range(24)]),
    "a system message": lines(
        [
            {"messages": [{"role": "system", "content": "Be brief."}, *said(f"What is {n}+2?", str(n + 2))]}
            for n in range(24)
        ]
    ),
    "ShareGPT": lines([{"conversations": said(f"What is {n}+2?", str(n + 2), **SHARED)} for n in range(24)]),
    "messages in a cell": table(
        [{"id": n, "chat": json.dumps(said(f"What is {n}+2?", str(n + 2)))} for n in range(24)]
    ),
    "messages in a cell, in Python": table([{"chat": str(said(f"What is {n}+2?", str(n + 2)))} for n in range(24)]),
    "content parts": lines(
        [
            {"messages": said([{"type": "text", "text": f"What is {n}+2?"}], [{"type": "text", "text": str(n + 2)}])}  # type: ignore[arg-type]
            for n in range(24)
        ]
    ),
    "a prompt of messages": lines([{"prompt": said(f"What is {n}+2?"), "answer": n + 2} for n in range(24)]),
    "several turns": lines([{"messages": said("Hi.", "Hello!", f"What is {n}+2?", str(n + 2))} for n in range(24)]),
}


@pytest.mark.parametrize("form", CHATS)
def test_the_last_response_of_a_chat_is_the_reference(place: Place, form: str) -> None:
    task, _ = drafted(place, CHATS[form])
    assert task.metric == "number"
    for example in task.examples:
        n = int(str(example.reference)) - 2
        assert f"What is {n}+2?" in example.prompt
        assert "role" not in example.prompt and ("Hello!" in example.prompt) is (form == "several turns")


def test_the_column_of_a_chat_can_be_given(place: Place) -> None:
    assert drafted(place, CHATS["messages"], "--question", "messages")[0].metric == "number"


BOXED = {
    "fractions": lambda n: (f"So it is \\boxed{{\\frac{{{n + 1}}}{{7}}}}.", f"\\frac{{{n + 1}}}{{7}}"),
    "numbers": lambda n: (f"First \\boxed{{0}}, then $\\boxed{{{n}}}$.", f"{n}"),
    "terms": lambda n: (f"Thus $x=\\boxed{{x+{n}}}$", f"x+{n}"),
    "pairs": lambda n: (
        f"\\boxed{{\\left( {n}, \\frac{{1}}{{2}} \\right)}}",
        f"\\left( {n}, \\frac{{1}}{{2}} \\right)",
    ),
    "braces in braces": lambda n: (f"\\boxed{{\\sqrt{{\\frac{{{n}}}{{3}}}}}}", f"\\sqrt{{\\frac{{{n}}}{{3}}}}"),
    "texts": lambda n: (f"It is \\boxed{{\\text{{town {n}}}}}", f"\\text{{town {n}}}"),
}


@pytest.mark.parametrize("form", BOXED)
def test_the_boxed_answer_of_a_solution_is_compared(place: Place, form: str) -> None:
    rows = [{"problem": f"Find it, {n}.", "solution": BOXED[form](n)[0]} for n in range(24)]
    task, _ = drafted(place, lines(rows))
    assert task.metric == ("number" if form in ("numbers", "fractions") else "exact_match")
    for example in task.examples:
        n = number_of(example.question)
        assert example.reference == BOXED[form](n)[1]
        assert [task.score(example, BOXED[form](other)[0]).value for other in (n, n + 1)] == [1.0, 0.0]


@pytest.mark.parametrize("write", [lines, table])
def test_true_and_false_are_answers_of_yes_and_no(place: Place, write: Callable[[Rows], str]) -> None:
    task, _ = drafted(place, write(rows_of(lambda n: {"answer": n % 2 == 0})))
    for example in task.examples:
        right = number_of(example.question) % 2 == 0
        assert [task.score(example, said).value for said in ("Yes.", "true", "No")] == [right, right, not right]
