"""``advisor FILE``: which command a file stands for, and what is said of a pool, a task file and a run."""

from __future__ import annotations

import pytest
from pools import Place
from servers import Raw, models

pytest_plugins = ["pools"]
POOL_LINE = "openai:http://127.0.0.1:1/v1#m"
SCORED = ("question", "model", "response", "score")


def table(place: Place, name: str, *columns: str) -> None:
    """A table with answers of three models, which are right in different questions, or with questions alone."""
    rows = []
    for n in range(12):
        for m, model in enumerate("abc" if "model" in columns else "a"):
            is_right = int(n % (m + 2) > 0)
            cells = {"question": f"What is {n} + {n}?", "answer": 2 * n, "model": model, "score": is_right}
            cells["response"] = f"It is {2 * n if is_right else 7}."
            rows.append(",".join(str(cells[column]) for column in columns))
    place.write(name, "\n".join([",".join(columns), *rows, ""]))


@pytest.mark.parametrize(
    ("columns", "more"),
    # Without scores, as `advisor init` would score such references.
    [(SCORED, ""), (("question", "answer", "model", "response"), " --metric number")],
)
def test_a_table_with_answers_gets_advice_in_a_run_folder_which_keeps_the_command(
    place: Place, columns: tuple[str, ...], more: str
) -> None:
    table(place, "t.csv", *columns)
    ran = place.advisor("t.csv", "--seed", "1")
    command = f"advisor select --logs t.csv{more} --seed 1"
    assert (ran.status, ran.err.splitlines()[0]) == (0, f"The same as: {command}")
    assert "Report: runs/t/report.html" in ran.out
    assert place.json("runs/t/result.json")["provenance"]["command"] == command


def test_files_folders_and_globs_with_logs_are_read_together_and_quiet_is_quiet(place: Place) -> None:
    (place.folder / "logs" / "deep").mkdir(parents=True)
    table(place, "logs/deep/t.csv", *SCORED)
    table(place, "t.csv", *SCORED)
    place.write("logs/notes.txt", "Nothing to see.")
    for words in (["logs", "t.csv"], ["logs/*", "t.csv"]):
        ran = place.advisor(*words, "--quiet", "--out", "run", "--force")
        assert (ran.status, ran.err) == (0, "")
        assert place.json()["provenance"]["command"].startswith("advisor select --logs ")


def test_questions_become_a_task_file_which_goes_with_a_pool(place: Place) -> None:
    table(place, "q.csv", "question", "answer")
    ran = place.advisor("q.csv", "--yes")
    assert ran.err.startswith("The same as: advisor init q.csv --yes; if it has a column for each model: advisor sel")
    assert "q.yaml is written" in ran.out
    assert "  advisor select --pool POOL --task q.yaml\n" in place.advisor("q.yaml").out
    place.pool(POOL_LINE)
    for words in (("models.txt", "q.yaml"), ("q.yaml", "models.txt"), ("models.txt", "--task", "q.yaml")):
        both = place.advisor(*words)
        assert both.err.startswith("The same as: advisor select --pool models.txt --task q.yaml\n")
        assert "models.txt:1: no server answers at http://127.0.0.1:1/v1" in both.err


def test_a_pool_and_a_server_say_the_next_command_and_a_look_at_a_file_asks_no_server(place: Place, raw: Raw) -> None:
    raw.answer = lambda _path, _body: models("m", "other")
    place.pool(f"openai:{raw.url}#*", "org/model")
    ran = place.advisor("models.txt")
    assert (ran.status, ran.err, raw.asked) == (0, "", [])
    assert ran.out.startswith("models.txt is a pool. Next, with the questions:\n  advisor select --pool models.txt --t")
    shown = f"{raw.url}#* has m, other. Next, with the questions:\n  advisor select --pool '{raw.url}#*' --task TASK\n"
    assert place.advisor(raw.url).out.startswith(shown)


def test_a_bundled_pool_is_run_on_the_bundled_questions_whatever_files_there_are(place: Place) -> None:
    place.write("demo", POOL_LINE)
    ran = place.advisor("demo", "--dry-run", "--limit", "4")
    command = "advisor select --pool demo --task word_problems --out runs/demo --dry-run --limit 4"
    assert (ran.status, ran.err.splitlines()[0]) == (0, f"The same as: {command}")
    assert "terse-llama, prompt 1 of" in ran.out


def test_a_run_says_what_it_recommends_and_how_to_use_it_and_a_folder_of_runs_is_listed(place: Place) -> None:
    table(place, "t.csv", *SCORED)
    written = place.advisor("t.csv", "--out", "runs/a")
    (place.folder / "runs/a/report.html").unlink()
    shown = place.advisor("runs/a")
    assert (shown.status, shown.out, shown.err) == (0, written.out, "")
    assert shown.out.splitlines()[-1] == (
        "Use it: advisor run runs/a QUESTION --pool FILE, or advisor serve runs/a --pool FILE. "
        "Does it still hold? advisor check runs/a FILE"
    )
    assert (place.folder / "runs/a/report.html").is_file()
    assert place.advisor("runs/a", "--format", "csv").out == place.advisor("report", "runs/a", "--format", "csv").out
    assert place.advisor("runs").out == "runs/index.html\n"


NOTHING = "no log, table, pool, task file or run is found in it; give one of these, or a command of advisor --help"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gone.csv"], "gone.csv: no such file or folder; correct the path, or give a command of advisor --help"),
        (["t.csv", "gone"], "gone: no such file or folder"),
        (["./select"], "./select: no such file or folder"),
        (["org/data"], "org/data: no such file or folder"),
        (["note.txt"], f"note.txt: {NOTHING}"),
        (["empty"], f"empty: {NOTHING}"),
        (["image.png"], f"image.png: {NOTHING}"),
        (["other.yaml"], "other.yaml: prompt is missing"),
        (["models.txt", "t.csv"], "models.txt t.csv: a pool goes with one task file; give one of each, or other files"),
        (["\x1b[2J.csv"], "␛[2J.csv: no such file or folder"),
        (["selct"], "No such command 'selct'. Did you mean 'select'? See advisor --help"),
        (["select"], "--pool is missing"),
    ],
    ids=str,
)
def test_what_is_nothing_known_is_one_line_and_a_command_comes_before_a_file(
    place: Place, words: list[str], says: str
) -> None:
    for name in ("t.csv", "select" if words == ["select"] else "u.csv"):
        table(place, name, *SCORED)
    place.pool(POOL_LINE)
    place.write("note.txt", "Remember the milk.\n")
    place.write("other.yaml", "a: 1\n")
    (place.folder / "empty").mkdir()
    (place.folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    assert place.refused(*words).startswith(f"advisor: {says}")


def test_nothing_prints_a_short_screen_of_what_can_be_given(place: Place) -> None:
    ran = place.advisor()
    assert (ran.status, ran.err, len(ran.out.splitlines()) <= 12) == (0, "", True)
    named = [line.split()[1] for line in ran.out.splitlines() if line.startswith("  advisor ")]
    assert named[0] == "demo" and all("/" in word or "." in word for word in named[1:])


@pytest.mark.parametrize(
    ("header", "row", "is_log"),
    [
        ("question,answer,llama,qwen", "What is {n} + {n}?,{two},{llama},It is {qwen}.", True),
        # Of two options one is right, and a solution always has the answer.
        ("question,answer,first,second", "What is {n} + {n}?,{two},{llama},{other}", False),
        ("question,answer,solution,hint", "What is {n} + {n}?,{two},That is {two},Think of {two}", False),
    ],
)
def test_columns_that_often_give_the_reference_together_are_models(
    place: Place, header: str, row: str, is_log: bool
) -> None:
    rows = []
    for n in range(40):
        two, is_first = 2 * n, n % 3 > 0
        cells = {"llama": two if is_first else 91, "qwen": two if n % 4 > 0 else 91, "other": 91 if is_first else two}
        rows.append(row.format(n=n, two=two, **cells))
    place.write("t.csv", "\n".join([header, *rows, ""]))
    ran = place.advisor("t.csv", *(() if is_log else ("--yes",)))
    command = "select --logs t.csv --column models=llama,qwen --metric number" if is_log else "init t.csv"
    assert (ran.status, ran.err.partition(command)[0]) == (0, "The same as: advisor ")
