"""The store: what is kept stays, whatever else writes to it or happens to its file."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

from advisor.models.response_cache import Response, ResponseCache, key_of
from ensemble.errors import InputError, UniteError

RESPONSE = Response(" 4\x00\u2028\U0001f642 \ufffd", 3, "length", 0.25)
ERROR = Response("", 0, "error", 0.0, "a prompt of 9 tokens does not fit")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResponseCache]:
    with ResponseCache(tmp_path) as opened:
        yield opened


# --- Kept and found ---


def test_what_was_put_is_got_back_by_the_next_run(tmp_path: Path) -> None:
    with ResponseCache(tmp_path) as store:
        store.put("a", RESPONSE)
        store.put("b", ERROR)
    with ResponseCache(tmp_path) as store:
        assert store.get(["b", "c", "a"]) == {"a": RESPONSE, "b": ERROR}


def test_more_keys_than_a_query_holds_are_found(store: ResponseCache) -> None:
    keys = [f"key-{n}" for n in range(1201)]
    for key in keys[::400]:
        store.put(key, Response(key, 1, "eos", 0.0))
    assert {key: response.text for key, response in store.get(keys).items()} == {key: key for key in keys[::400]}


def test_a_key_depends_on_every_part_and_not_on_their_order() -> None:
    question = {"files": {"a": "1", "b": "2"}, "prompt": "Wie geht’s?", "stop": ["\n"], "k": 1}
    assert key_of(question) == key_of(dict(reversed(question.items())))
    others = [{**question, part: "other"} for part in question] + [{**question, "more": None}]
    assert len({key_of(question), *map(key_of, others)}) == 1 + len(others)


# --- Others that write ---


def another_run(folder: Path, work: str) -> subprocess.Popen[str]:
    """Another process with the same store; `work` is what it does with it."""
    imports = "from pathlib import Path\nfrom advisor.models.response_cache import *"
    code = f"{imports}\nwith ResponseCache(Path({str(folder)!r})) as store:\n"
    return subprocess.Popen(
        [sys.executable, "-c", code + textwrap.indent(work, "    ")], stdout=subprocess.PIPE, text=True
    )


def test_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    work = (
        "for n in range(40):\n"
        "    store.put(f'{name}-{n}', Response(name, n, 'eos', 0.0))\n"
        "    store.put(f'common-{n}', Response('common', n, 'eos', 0.0))"
    )
    runs = [another_run(tmp_path, f"name = {name!r}\n{work}") for name in "abcd"]
    for run in runs:
        run.communicate()
    assert [run.returncode for run in runs] == [0] * 4
    with ResponseCache(tmp_path) as store:
        assert len(store.get([f"{name}-{n}" for name in ("a", "b", "c", "d", "common") for n in range(40)])) == 5 * 40


def test_a_run_that_is_killed_has_kept_all_that_it_put(tmp_path: Path) -> None:
    work = "for n in range(100_000):\n    store.put(str(n), Response('', n, 'eos', 0.0))\n    print(n, flush=True)"
    with another_run(tmp_path, work) as run:
        assert run.stdout is not None
        lines = [run.stdout.readline() for _ in range(30)]
        run.kill()
        lines += run.stdout.readlines()
    done = [int(line) for line in lines if line.endswith("\n")]
    with ResponseCache(tmp_path) as store:
        found = store.get([str(n) for n in done])
    assert [found[str(n)].tokens for n in done] == done


# --- Damage ---


def test_a_file_that_is_no_store_is_set_aside_and_said(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"
    path.write_bytes(b"no database at all" * 100)
    said: list[str] = []
    with ResponseCache(tmp_path, said.append) as store:
        store.put("a", RESPONSE)
        assert store.get(["a"]) == {"a": RESPONSE}
    (aside,) = tmp_path.glob("responses.damaged-*.sqlite")
    assert aside.read_bytes() == b"no database at all" * 100
    assert len(said) == 1
    assert str(path) in said[0]
    assert aside.name in said[0]


def damage_pages(path: Path) -> None:
    """Overwrite all pages but the first, so that the file still opens."""
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xaa" * (len(content) - 4096)
    path.write_bytes(content)


def test_damage_that_shows_only_later_is_set_aside_then(tmp_path: Path) -> None:
    with ResponseCache(tmp_path) as store:
        for n in range(200):
            store.put(str(n), RESPONSE)
    damage_pages(tmp_path / "responses.sqlite")
    said: list[str] = []
    with ResponseCache(tmp_path, said.append) as store:
        store.put("a", RESPONSE)
        assert store.get(["0", "a"]) == {"a": RESPONSE}
    assert len(said) == 1
    assert len(list(tmp_path.glob("responses.damaged-*.sqlite"))) == 1


# --- Folders that cannot be written ---


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"--cache-dir .*file/cache: the folder cannot be written"):
        ResponseCache(tmp_path / "file" / "cache")
    # A folder in the file's place stands for a missing right, which the superuser never lacks.
    (tmp_path / "responses.sqlite").mkdir()
    with pytest.raises(InputError, match="the folder cannot be written"):
        ResponseCache(tmp_path)


def test_a_full_disk_is_said_and_loses_nothing_that_was_kept(store: ResponseCache, tmp_path: Path) -> None:
    store.put("a", RESPONSE)
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UniteError, match="full") as caught:
        store.put("b", Response("x" * 100_000, 1, "eos", 0.0))
    assert not isinstance(caught.value, InputError)
    assert store.get(["a", "b"]) == {"a": RESPONSE}


# --- Rows and files that another program wrote ---


def change(folder: Path, sql: str, *values: object) -> None:
    connection = sqlite3.connect(folder / "responses.sqlite")
    with connection:
        connection.execute(sql, values)
    connection.close()


def row(**changes: object) -> str:
    return json.dumps({**asdict(RESPONSE), **changes})


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with ResponseCache(tmp_path) as store:
        store.put("a", RESPONSE)
    change(tmp_path, "PRAGMA user_version = 99")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"responses.sqlite: a newer version .* --cache-dir"):
        ResponseCache(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "value",
    [
        row(text=3), row(text="\ud800"), row(tokens="3"), row(tokens=-1), row(tokens=True), row(tokens=10**30),
        row(finish_reason="because"), row(finish_reason=[]), row(seconds=None), row(seconds=float("nan")),
        row(seconds=-1), row(error=["x"]), row(settled="yes"), row(options="ab"), row(options={"a": 1}),
        row(options=["x"]), row(options=[float("nan")]), row(steps=1.5), row(combined=None), row(handled="x"),
        "[" * 100_000, '{"text": ' * 100_000, b"\xff\xfe", "{", "[]", "3", '{"text": "a"}', '{"colour": "red"}',
    ],
)  # fmt: skip
def test_a_row_of_another_form_is_computed_again_with_one_note(tmp_path: Path, value: str | bytes) -> None:
    with ResponseCache(tmp_path) as store:
        store.put("a", RESPONSE)
        store.put("b", RESPONSE)
    change(tmp_path, "UPDATE responses SET value = CAST(? AS TEXT) WHERE key = 'a'", value)
    said: list[str] = []
    with ResponseCache(tmp_path, said.append) as store:
        assert store.get(["a", "b"]) == store.get(["a", "b"]) == {"b": RESPONSE}
        store.put("a", RESPONSE)
        assert store.get(["a"]) == {"a": RESPONSE}
    assert len(said) == 1
    assert "computed again" in said[0]


@pytest.mark.parametrize("value", ["{", "[" * 100_000, '"a text"', "-1", b"\xff"])
def test_a_measurement_of_another_form_is_measured_again(tmp_path: Path, value: str | bytes) -> None:
    with ResponseCache(tmp_path) as store:
        store.keep("a", 3)
    change(tmp_path, "UPDATE measured SET value = CAST(? AS TEXT)", value)
    with ResponseCache(tmp_path) as store:
        assert store.value("a", lambda value: isinstance(value, int) and value > 0) is None


def test_runs_that_make_the_same_file_at_once_wait_for_each_other(tmp_path: Path) -> None:
    # SQLite's change to a write-ahead log does not wait for a lock, so most of these rounds failed without a loop.
    def make(folder: Path) -> None:
        start.wait()
        ResponseCache(folder).__exit__(None, None, None)

    for number in range(12):
        start = threading.Barrier(2)
        with ThreadPoolExecutor(2) as runs:
            list(runs.map(make, [tmp_path / str(number)] * 2))
