"""Tables as people export them: `advisor init` guesses the right task from each, or asks one question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from advisor.tasks import load_task
from tests.excel import replace_in, write_book

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

SENTENCES = [
    "You can return it within thirty days.",
    "Write to our support by mail.",
    "It takes about five working days.",
    "Only if it is still sealed.",
]
CITIES = ["Paris", "Rome", "Lima", "Oslo"]


@dataclass(frozen=True)
class Table:
    """A table, and what `init` makes of it.

    Attributes:
        label: What is particular about it.
        name: The file's name.
        content: A text, written as UTF-8; bytes; or the sheets of an Excel file by name.
        keys: Keys of the task file; None for a key that it lacks.
        says: Parts of the output.
        asks: A part of the refusal, instead of a task file.
        options: More arguments.
    """

    label: str
    name: str
    content: str | bytes | dict[str, list[list[Any]]]
    keys: dict[str, Any] = field(default_factory=dict)
    says: Sequence[str] = ()
    asks: str = ""
    options: Sequence[str] = ()


def lines(header: str, *rows: str) -> str:
    return "".join(f"{line}\n" for line in (header, *rows))


def answers(header: str, values: Sequence[str], mark: str = ";", question: str = "Was ist Nummer {}?") -> str:
    """A question and an answer in each row."""
    return lines(header, *(f"{question.format(n)}{mark}{value}" for n, value in enumerate(values)))


COMMA = {"metric": "number", "decimal": ","}
POINT = {"metric": "number", "decimal": None}
TABLES = [
    # --- Numbers ---
    Table(
        "German numbers in cp1252",
        "fragen.csv",
        answers("Frage;Lösung", ["42,0", "1.362,02", "7", "-0,5"]).encode("cp1252"),
        {**COMMA, "reference": "{{Lösung}}"},
        ["fragen.csv: not UTF-8 text; it is read as cp1252", "decimal: the references have decimal commas"],
    ),
    Table(
        "points that may group or divide",
        "fragen.csv",
        answers("Frage;Antwort", ["1.362", "2.500", "7"]),
        asks="Antwort has 1.362, which is 1362 or 1.362; give --decimal , or --decimal .",
    ),
    Table(
        "points that group, as the questions show",
        "fragen.csv",
        answers("Frage;Antwort", ["1.362", "2.500", "7"], question="Was ist {} mal 2,5?"),
        COMMA,
    ),
    Table(
        "metric number is given",
        "fragen.csv",
        answers("Frage;Antwort", ["1.362,5", "2.500", "7"]),
        COMMA,
        options=["--metric", "number"],
    ),
    Table(
        "two decimal marks",
        "fragen.csv",
        answers("Frage;Antwort", ["42,5", "3.75", "7"]),
        asks="Antwort has 42,5 and 3.75; write all with one decimal mark, or give --metric exact_match",
    ),
    Table("English thousands", "q.csv", answers("question;answer", ["1,362", "12", "7"], question="q {}?"), POINT),
    Table(
        "French numbers with spaces",
        "q.csv",
        answers(
            "question;réponse", ["1 362,5", "2\u202f000", "1\u00a0000\u00a0000", "7"], question="Combien font {} ?"
        ),
        {**COMMA, "reference": "{{réponse}}"},
    ),
    Table("Swiss numbers", "q.csv", answers("Frage;Antwort", ["1'362.50", "2’000", "7"]), POINT),
    Table("percent", "q.csv", answers("Frage;Antwort", ["12,5 %", "7%", "100 %"]), COMMA),
    Table("currencies", "q.csv", answers("Frage;Antwort", ["€ 1.200,50", "99,95 €", "-5,00 €"]), COMMA),
    Table("one unit", "q.csv", answers("Frage;Antwort", ["42 km", "3,5 km", "7 km"]), COMMA),
    Table("several units", "q.csv", answers("Frage;Antwort", ["42 km", "3 kg", "7 m"]), {"metric": "exact_match"}),
    Table(
        "numbers of an Excel sheet with German questions",
        "q.xlsx",
        {"Tabelle1": [["Frage", "Antwort"], *([f"Was ist {n},5 mal 2,5?", n + 0.5] for n in range(4))]},
        {**COMMA, "reference": "{{Antwort | string | replace('.', ',')}}"},
    ),
    # --- Texts ---
    Table(
        "sentences",
        "faq.csv",
        answers("Question;Answer", SENTENCES, question="How do I do {}?"),
        {"metric": "chrf", "stop": ["\nQuestion:"]},
        ["metric: the references are sentences", "--metric judge"],
    ),
    Table(
        "yes and no",
        "q.csv",
        answers("Frage;Antwort", ["ja", "nein"] * 10),
        {"metric": "exact_match"},
        ["the references are 2 labels"],
    ),
    Table(
        "letters with the options in the question",
        "q.csv",
        answers("question;answer", list("ABCD") * 3, question="Which {}? A) one B) two C) three D) four"),
        {"metric": "choice", "prompt": "{{question}}\nAnswer:", "choices": "{{question | options}}"},
        ["question has the options and their letters"],
    ),
    Table(
        "quotation marks",
        "q.csv",
        answers("Frage;Antwort", [f"„{city}“" for city in CITIES]),
        {"metric": "exact_match", "reference": "{{Antwort.strip('„“”«»‚‘’\"')}}"},
    ),
    Table(
        "dates",
        "q.csv",
        answers("Frage;Antwort", ["12.05.2024", "1.6.1999", "03.10.1990"], question="Wann war {}?"),
        {"metric": "exact_match"},
        ["the references are dates, such as 12.05.2024"],
    ),
    Table(
        "objects as texts",
        "q.csv",
        answers("question,answer", [f'"{{""name"": ""{city}""}}"' for city in CITIES], ",", "Who is in {}?"),
        {"metric": "exact_match"},
        ["the references are JSON"],
    ),
    # --- Lists ---
    Table(
        "lists of accepted answers in JSON",
        "q.csv",
        answers("question;answers", [f'"[""{city}"", ""{city}, x""]"' for city in CITIES], question="Where is {}?"),
        {"metric": "exact_match", "reference": "{{answers}}"},
    ),
    Table(
        "lists of accepted answers in Python",
        "q.csv",
        answers("question;answers", [f"['{city}', 'the {city}']" for city in CITIES], question="Where is {}?"),
        {"metric": "exact_match", "reference": "{{answers}}"},
    ),
    Table(
        "several answers in a cell",
        "q.csv",
        answers("question,answer", [f"{city}; the {city}" for city in CITIES], ",", "Where is {}?"),
        {"metric": "exact_match"},
        ["if the parts between '; ' are each accepted, write {{answer.split('; ')}}"],
    ),
    Table(
        "options in columns, in German",
        "q.csv",
        lines("Nr;Frage;Antwort A;Antwort B;Antwort C;Lösung", *(f"{n};Was ist {n}?;x;y;z;b" for n in range(4))),
        {"metric": "choice", "choices": ["{{Antwort_A}}", "{{Antwort_B}}", "{{Antwort_C}}"], "id": "Nr"},
    ),
    Table(
        "options in one cell",
        "q.csv",
        lines("question;options;answer", *(f"What is {n}?;one, two, three;two" for n in range(4))),
        {"metric": "choice", "choices": "{{options.split(', ')}}"},
    ),
    # --- The form of the table ---
    Table("tabs", "q.tsv", answers("question\tanswer", CITIES, "\t"), {"metric": "exact_match"}),
    Table(
        "Unicode text of Excel",
        "q.csv",
        answers("Größe\tquestion\tanswer", [f"Wo ist {city}?\tä {city}" for city in CITIES], "\t").encode("utf-16"),
        {"reference": "{{answer}}"},
    ),
    Table(
        "a byte order mark, the line sep=, quotes and line breaks",
        "q.csv",
        "\ufeffsep=;\r\n" + answers('"Frage";"Antwort"', ['"A\nB"', '"C ""D"""', "E, F"]).replace("r?", "r, bitte?"),
        {"prompt": "Frage: {{Frage}}\nAntwort:", "reference": "{{Antwort}}"},
    ),
    Table("bars", "q.csv", answers("question|answer", CITIES, "|"), {"reference": "{{answer}}"}),
    Table(
        "empty columns, and columns without a name",
        "q.csv",
        lines(";question;;empty;answer;;", *(f"{n};What is {n}?;;;{city};;" for n, city in enumerate(CITIES))),
        {"prompt": "Question: {{question}}\nAnswer:", "reference": "{{answer}}"},
    ),
    Table(
        "no header",
        "q.csv",
        answers("What is in France?,Paris", CITIES[1:], ",", "What is in country {}?"),
        asks="q.csv: its first row has the names of the columns, and 'What is in France?' looks like a value; add",
    ),
    Table(
        "a title above the header",
        "q.csv",
        "Testfragen 2024;;\n" + answers("Frage;Antwort;Note", [f"{city};1" for city in CITIES]),
        asks="q.csv: its first row has only 'Testfragen 2024', which looks like a title; remove what is above",
    ),
    Table(
        "several sheets",
        "q.xlsx",
        {"Data": [["question", "answer"], *([f"Where is {city}?", city] for city in CITIES)], "Notes": [["x"]]},
        {"reference": "{{answer}}"},
        ["of its 2 sheets only Data was read"],
    ),
    Table(
        "a cover sheet",
        "q.xlsx",
        {
            "Cover": [["Made by us"]],
            "Data": [["question", "answer"], *([f"Where is {city}?", city] for city in CITIES)],
        },
        asks="q.xlsx: of its 2 sheets only Cover was read, and not Data); give data with questions",
    ),
    # --- Records ---
    Table(
        "rows without a question or without an answer",
        "q.csv",
        answers("question,answer", [*CITIES, ""], ",") + ",Bern\n" + "Where?,Ulm\n",
        {"reference": "{{answer}}"},
        ["1 of 7 records have no question; 1 of 7 records have no answer, and are left out: q.csv:6, q.csv:7"],
    ),
    Table(
        "duplicated questions",
        "q.csv",
        answers("question,answer", CITIES, ",") + answers("", CITIES[:2], ",")[1:],
        {"cluster": "{{question}}"},
        ["2 of 6 questions repeat an earlier one: tests count equal questions as one"],
    ),
    Table(
        "a question with two references",
        "q.csv",
        answers("question,answer", CITIES, ",") + "Was ist Nummer 0?,Lyon\n",
        {"cluster": "{{question}}"},
        ["1 of 5 questions repeat an earlier one", "1 have different references, so correct these"],
    ),
    Table(
        "equal questions on different passages",
        "q.csv",
        lines("passage,question,answer", *(f"About {city}.,Which city is it?,{city}" for city in CITIES)),
        {"prompt": "{{passage}}\n\nQuestion: {{question}}\nAnswer:", "cluster": None},
    ),
    Table(
        "equal questions with different options",
        "q.csv",
        lines("question,A,B,answer", *(f"Which is right?,{n},{n + 1},B" for n in (1, 3, 5, 5))),
        {"metric": "choice", "cluster": "{{question}} {{_options | join(' ')}}"},
    ),
    Table(
        "merged cells",
        "merged.xlsx",
        {
            "Sheet1": [
                ["category", "question", "answer"],
                *([None if n % 2 else f"c{n // 2}", f"Where is {n}?", city] for n, city in enumerate(CITIES)),
            ]
        },
        {"group": "{{category}}"},
    ),
    Table(
        "one instruction for all texts",
        "q.csv",
        lines("instruction,input,output", *(f"Name the country of the city.,{city},x {city}" for city in CITIES)),
        {"prompt": "{{input}}\n\nQuestion: {{instruction}}\nAnswer:", "cluster": None},
    ),
    Table(
        "one text in the column that is named like the question",
        "q.csv",
        lines("question,word,answer", *(f"Translate it.,{city} is big,x {city}" for city in CITIES)),
        asks="question has the same text in all records; give --question with another column",
    ),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.label)
def test_a_table_becomes_the_right_task_or_a_question(place: Place, table: Table) -> None:
    if isinstance(table.content, dict):
        path = write_book(place.folder / table.name, table.content)
        if table.name == "merged.xlsx":
            merged = b'</sheetData><mergeCells><mergeCell ref="A2:A3"/><mergeCell ref="A4:A5"/></mergeCells>'
            replace_in(path, "xl/worksheets/sheet1.xml", b"</sheetData>", merged)
    else:
        content = table.content if isinstance(table.content, bytes) else table.content.encode()
        (place.folder / table.name).write_bytes(content)
    arguments = ("init", table.name, "--yes", "--name", "task", *table.options)
    if table.asks:
        assert table.asks in place.refused(*arguments)
        return
    ran = place.advisor(*arguments)
    assert ran.status == 0, ran.err
    keys = yaml.safe_load((place.folder / "task.yaml").read_text(encoding="utf-8"))
    assert {key: keys.get(key) for key in table.keys} == table.keys
    said = " ".join(ran.out.replace("\n# ", " ").split())
    assert [words for words in table.says if words not in said] == [], ran.out
    assert "Warning" not in ran.out
    tasks = [load_task(place.folder / "task.yaml", split=split) for split in ("dev", "held_out")]
    assert all(task.score(example, example.accepted[0]).value > 0.999 for task in tasks for example in task.examples)
