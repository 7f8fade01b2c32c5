"""`advisor init`: what it guesses from data, the task file that it writes, and what it refuses."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pools import Place

from advisor.commands import init
from advisor.options.new_run import InitOptions
from advisor.tasks import load_task

pytest_plugins = ["pools"]

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the benchmark files in ../shared/data")


def table(*rows: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def written(place: Place, *arguments: str, name: str = "questions") -> dict[str, Any]:
    """The keys of the task file that the command writes, which loads."""
    ran = place.advisor("init", *arguments, "--name", name, "--yes")
    assert (ran.status, ran.err) == (0, ""), ran.err
    assert any(words in ran.out for words in ("score 1.0", "not scored", "nothing to score"))
    return yaml.safe_load((place.folder / f"{name}.yaml").read_text(encoding="utf-8"))


SUMS = table(["Question", "Expected Answer"], *([f"What is {n} + {n}?", 2 * n] for n in range(1, 13)))


# --- From data to a run ---


def test_a_task_file_from_a_table_is_run_as_it_is(place: Place, models: Path) -> None:
    place.write("questions.csv", SUMS)
    ran = place.advisor("init", "questions.csv", "--yes")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.count("--- Prompt") == 3
    assert "All 12 references that were tried score 1.0" in ran.out
    assert "advisor select --pool demo --task questions.yaml" in ran.out
    text = (place.folder / "questions.yaml").read_text(encoding="utf-8")
    assert "# metric: all references are numbers" in text
    place.write("questions.yaml", text.replace("max_new_tokens: 256", "max_new_tokens: 4"))
    pool = place.pool(*(str(models / name) for name in ("alpha", "beta")))
    ran = place.advisor("select", "--pool", pool, "--task", "questions.yaml", "--quiet")
    assert ran.status == 0, ran.err
    assert (place.folder / "runs" / "questions" / "report.html").is_file()


@needs_data
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (["gsm8k/train.jsonl", "gsm8k/test.jsonl"], {"metric": "number", "shot_response": "{{answer}}"}),
        (["arc_challenge"], {"choices": ["{{A}}", "{{B}}", "{{C}}", "{{D}}"], "scoring": "letters"}),
        (["mmlu/test/virology.jsonl"], {"metric": "choice", "reference": "{{answer}}"}),
        (["piqa/dev_our.jsonl"], {"choices": ["{{A}}", "{{B}}"], "dev_size": 300}),
        (["triviaqa"], {"metric": "exact_match", "reference": "{{answer}}", "stop": ["\n"]}),
        (["bbh"], {"metric": "exact_match", "group": "{{_part}}", "reference": "{{target}}"}),
        (["mbpp/mbpp.jsonl"], {"metric": "pass_at_1", "reference": ["{{test_setup_code}}", "{{test_list}}"]}),
        (["humaneval/test.jsonl"], {"reference": "{{test}}\ncheck({{entry_point}})"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_benchmarks_are_read_as_the_field_reads_them(
    place: Place, data: list[str], expected: dict[str, Any]
) -> None:
    keys = written(place, *(str(DATA / name) for name in data))
    assert {key: keys[key] for key in expected} == expected
    # The data is elsewhere, so the next command names its folder.
    assert set(keys["data"]) == {"local", "dev", "held_out"}


@needs_data
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("piqa/valid.jsonl", "no column looks like the reference"),
        ("flores101/metadata_devtest.tsv", "no column looks like a question"),
        ("gsm8k", "several may be the same split: test, test_cleaned; give the two files, dev first"),
    ],
)
def test_data_that_is_no_task_is_refused(place: Place, data: str, message: str) -> None:
    assert message in place.refused("init", DATA / data, "--yes", "--name", "questions")


# --- Guesses ---


@needs_data
@pytest.mark.parametrize("name", ["question", "vicuna_bench_question"])
def test_conversations_get_a_judge_and_all_their_turns(place: Place, name: str) -> None:
    place.write("questions.jsonl", (DATA / "mt_bench" / f"{name}.jsonl").read_text(encoding="utf-8"))
    keys = written(place, "questions.jsonl")
    assert (keys["metric"], keys["id"], keys["follow_ups"]) == ("judge", "question_id", "{{turns[1:]}}")
    task = load_task(place.folder / "questions.yaml", split="dev")
    assert {example.earlier is None for example in task.examples} == ({True, False} if name == "question" else {True})
    referenced = [example for example in task.examples if any(example.accepted)]
    assert bool(referenced) is (name == "question")


def test_questions_alone_get_a_judge(place: Place) -> None:
    place.write("questions.csv", table(["id", "Question", "Topic"], *([n, f"How do I do {n}?", "a"] for n in range(8))))
    ran = place.advisor("init", "questions.csv", "--yes")
    assert ran.status == 0, ran.err
    assert "no column has right answers: a judge grades the answers" in ran.out
    assert ran.out.endswith("advisor select --pool models.txt --task questions.yaml --judge MODEL\n")
    assert "reference" not in yaml.safe_load((place.folder / "questions.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["Right result", "Expected output", "ideal-answer", "Gold Answer", "Lösung"])
def test_usual_names_of_the_reference_are_known_however_they_are_written(place: Place, name: str) -> None:
    place.write("questions.csv", table(["question", name, "two"], *([f"{n}?", n, "x"] for n in range(8))))
    assert written(place, "questions.csv")["metric"] == "number"


def test_enter_and_yes_keep_guesses_and_their_reasons(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("questions.csv", SUMS)
    written(place, "questions.csv")
    unasked = (place.folder / "questions.yaml").read_text(encoding="utf-8")
    for answers in ([""] * 4, ["y", "Yes", "y", "yes"]):
        answer(monkeypatch, *answers)
        assert place.advisor("init", "questions.csv", "--force").status == 0
        assert (place.folder / "questions.yaml").read_text(encoding="utf-8") == unasked


def test_two_files_are_dev_and_held_out_by_their_names(place: Place) -> None:
    place.write("test.csv", SUMS)
    place.write("train.csv", SUMS.replace("+", "plus"))
    assert written(place, "test.csv", "train.csv")["data"] == {"dev": "train.csv", "held_out": "test.csv"}


def test_a_saved_data_set_is_found_with_its_splits(place: Place) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"question": f"{n}?", "answer": str(n)} for n in range(4)])
    datasets.DatasetDict(
        {"train": rows, "test": rows.map(lambda row: {"question": f"and {row['question']}"})}
    ).save_to_disk(place.folder / "exported")
    assert written(place, "exported")["data"] == {"dev": "exported/train", "held_out": "exported/test"}


def test_what_the_user_gives_is_not_guessed(place: Place) -> None:
    place.write(
        "questions.csv", table(["id", "a", "b c", "question"], *([n, f"Ask {n}?", f"right {n}", "x"] for n in range(6)))
    )
    keys = written(place, "questions.csv", "--question", "a", "--reference", "b c", "--metric", "contains")
    assert (keys["prompt"], keys["reference"], keys["metric"]) == ("Question: {{a}}\nAnswer:", "{{b_c}}", "contains")


# --- The dialogue ---


def answer(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Let a person at a terminal give these answers."""
    left = iter(answers)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _text="": next(left))


def test_wrong_answers_are_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("questions.csv", SUMS)
    answer(monkeypatch, "", "no such column", "Expected Answer", "", "contains")
    ran = place.advisor("init", "questions.csv")
    assert ran.status == 0, ran.err
    assert "there is no column 'no such column'" in ran.out + ran.err
    assert "metric: contains\n" in (place.folder / "questions.yaml").read_text(encoding="utf-8")


def test_enter_takes_options_that_are_an_expression(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("questions.csv", table(["question", "options", "answer"], *([f"{n}?", "x, y", "x"] for n in range(6))))
    answer(monkeypatch, "", "", "")
    assert place.advisor("init", "questions.csv").status == 0
    assert "options.split(', ')" in (place.folder / "questions.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        (KeyboardInterrupt, 130, "advisor: stopped"),
        (EOFError, 2, "advisor: Question: there is no more input; give --yes to take all guesses"),
    ],
)
def test_the_end_at_a_question_leaves_no_file(
    place: Place, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException], status: int, line: str
) -> None:
    place.write("questions.csv", SUMS)
    answer(monkeypatch)

    def end(_text: str = "") -> str:
        raise raised

    monkeypatch.setattr("typer._click.termui.visible_prompt_func", end)
    ran = place.advisor("init", "questions.csv")
    assert (ran.status, ran.err.splitlines()[-1]) == (status, line)
    assert place.files() == {"questions.csv"}


def test_a_reader_that_stops_reading_leaves_the_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("questions.csv", SUMS)

    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("advisor.commands.init._show", closed)
    with contextlib.suppress(BrokenPipeError):
        init.init(InitOptions(data=(str(place.folder / "questions.csv"),), out=place.folder / "q.yaml", yes=True))
    assert (place.folder / "q.yaml").is_file()


# --- Refusals ---


def test_a_task_file_is_replaced_only_by_force(place: Place) -> None:
    place.write("questions.csv", SUMS)
    place.write("questions.yaml", "mine")
    assert "questions.yaml exists; give --force" in place.refused("init", "questions.csv", "--yes")
    assert (place.folder / "questions.yaml").read_text(encoding="utf-8") == "mine"
    assert place.advisor("init", "questions.csv", "--yes", "--force").status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.csv"], "nothing.csv: no such file or folder"),
        (["questions.csv", "--question", "x"], "there is no column 'x'; choose among Question, Expected_Answer"),
        (["questions.csv", "--metric", "x"], "--metric x: choose among"),
        (["questions.csv", "--metric", "choice"], "--metric choice needs options; give --choices"),
        (["three.csv", "--choices", "x,y"], "are no option's text, letter or number"),
        (["questions.csv", "--out", "task.txt"], "--out task.txt: give a file that ends in .yaml"),
        (["questions.csv", "--out", "no/task.yaml"], "in a folder that exists"),
        (["three.csv", "--reference", "blank"], "blank is empty in all records; give --reference with another column"),
        (["three.csv", "--question", "blank"], "blank is empty in all records; give --question with another column"),
        (["questions.csv", "--decimal", ";"], "--decimal ;: give . or ,"),
        (["three.csv", "--choices", "none", "--decimal", ","], "goes with numbers, and not all of answer are"),
        (["questions.csv", "--name", "a b"], "--name a b: give letters"),
        (["questions.csv", "--config", "main"], "--config main goes with a data set of the hub"),
        (["empty.csv"], "empty.csv has no records"),
        (["one.csv"], "one.csv has one record; give at least two"),
        (["questions.csv", "test.csv"], "questions.csv and test.csv have no column in common (Question"),
        (["wide.csv"], "give --reference with one of question, one, two, or --metric judge if no answer is right"),
    ],
)
def test_bad_input_gets_one_line_and_no_file(place: Place, arguments: list[str], message: str) -> None:
    place.write("questions.csv", SUMS)
    place.write(
        "three.csv",
        table(["question", "x", "y", "answer", "blank"], *([f"{n}?", "1", "2", "no", ""] for n in range(2))),
    )
    place.write("empty.csv", "question,answer\n")
    place.write("one.csv", "question,answer\na?,1\n")
    place.write("test.csv", SUMS.replace("Question", "Frage").replace("Expected Answer", "Antwort"))
    place.write("wide.csv", table(["question", "one", "two"], *([f"{n}?", n, n + 1] for n in range(8))))
    assert message in place.refused("init", *arguments, "--yes")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("models.txt", ["# mine", "", "openai:http://127.0.0.1:8000/v1#org/name  key_env=MY_KEY", "org/large"]),
        ("pool.txt", ["./models/alpha", "./models/beta  name=b  # a note"]),
        ("pool.txt", ["org/small@c170c708  dtype=bfloat16"]),
        ("pool.txt", ["models/llama.gguf dtype=auto", "llama.gguf"]),
        ("demo", []),
    ],
)
def test_a_pool_in_place_of_data_is_told_the_way(place: Place, name: str, lines: list[str]) -> None:
    if lines:
        place.pool(*lines, name=name)
    line = place.refused("init", name, "--yes")
    assert f"{name} is a pool, with a model on each line; `advisor {name}` says what it is for" in line


def test_a_text_file_of_questions_is_no_pool(place: Place) -> None:
    place.write("questions.txt", "What is a/b?\nWhat is c?\n")
    assert written(place, "questions.txt")["metric"] == "judge"


def test_data_in_place_of_a_task_file_is_told_the_way(place: Place) -> None:
    place.write("questions.csv", SUMS)
    line = place.refused("select", "--pool", "demo", "--task", "questions.csv")
    assert "is data and not a task file; write one with `advisor init questions.csv`" in line


def test_hostile_names_and_texts_reach_neither_the_terminal_nor_the_file_as_they_are(place: Place) -> None:
    header = ["question", "answer", "group\nmetric: bleu # \x1b[31m"]
    place.write("questions.csv", table(header, *([f"\x1b[2J {n}?", n, n % 2] for n in range(6))))
    ran = place.advisor("init", "questions.csv", "--yes")
    assert ran.status == 0, ran.err
    assert "\x1b" not in ran.out
    text = (place.folder / "questions.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["metric"] == "number"
    assert "\x1b" not in text
