"""The pool file: what a line can say, and the one line that each fault of it is answered with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from advisor.models.pool_file import DEMO, entries_named, read_line, read_pool
from advisor.run.result import ModelSource
from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec, options_of_models
from ensemble.saved.ensemble_json import SavedMember, member_of, member_to_json

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models beside the pool file, and the current directory elsewhere."""
    pools, elsewhere = tmp_path / "pools", tmp_path / "elsewhere"
    for path in (
        pools / "alpha",
        pools / "beta",
        pools / "with space",
        pools / "with#mark",
        elsewhere / "org" / "here",
    ):
        path.mkdir(parents=True)
    (pools / "notes.txt").write_text("not a model", encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    return pools


def read(folder: Path, *lines: str, end: str = "\n", start: str = "") -> tuple[ModelSpec, ...]:
    path = folder / "models.txt"
    path.write_bytes((start + "".join(f"{line}{end}" for line in lines)).encode())
    return read_pool(str(path))


def refusal(folder: Path, *lines: str) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, *lines)
    message = str(caught.value)
    assert "\n" not in message
    return message


def names(candidates: tuple[ModelSpec, ...]) -> list[str]:
    return [candidate.name for candidate in candidates]


# --- What a line can say ---


def test_comments_and_blank_lines_are_no_candidates(folder: Path) -> None:
    found = read(folder, "# the small ones", "", "alpha  # the first", "   ", "beta#close", "#gamma")
    assert names(found) == ["alpha", "beta"]
    assert [candidate.place for candidate in found] == [f"{folder / 'models.txt'}:{n}" for n in (3, 5)]


@pytest.mark.parametrize("name", ["with space", "with#mark"])
def test_quotes_keep_spaces_and_marks_in_a_path(folder: Path, name: str) -> None:
    (candidate,) = read(folder, f'"./{name}"')
    assert candidate.checkpoint.path_or_id == str(folder / name)


def test_a_path_is_relative_to_the_pool_file_and_not_to_the_current_directory(folder: Path) -> None:
    for written in ("alpha", "./alpha", "../pools/alpha", str(folder / "alpha")):
        (candidate,) = read(folder, written)
        assert (candidate.name, candidate.checkpoint.path_or_id) == ("alpha", str(folder / "alpha"))


def test_what_a_line_leaves_open_is_left_to_the_run(folder: Path) -> None:
    (candidate,) = read(folder, "alpha")
    assert (candidate.dtype, candidate.device, candidate.chat_template) == (None, None, None)
    assert candidate.checkpoint.trust_remote_code is False


@pytest.mark.parametrize(
    ("line", "hub_id", "revision", "name"),
    [
        ("org/model", "org/model", None, "model"),
        ("gpt2", "gpt2", None, "gpt2"),
        ("org/model@v1.0", "org/model", "v1.0", "model"),
        (f"org/model@{COMMIT} trust_remote_code=true", "org/model", COMMIT, "model"),
    ],
)
def test_what_is_no_folder_is_an_id_of_the_hub(
    folder: Path, line: str, hub_id: str, revision: str | None, name: str
) -> None:
    (candidate,) = read(folder, line)
    assert (candidate.checkpoint.path_or_id, candidate.checkpoint.revision) == (hub_id, revision)
    assert candidate.name == name


@pytest.mark.parametrize(("end", "start"), [("\r\n", ""), ("\r\n", "\ufeff"), ("\n", "\ufeff"), ("\r", "")])
def test_files_of_other_systems_read_the_same(folder: Path, end: str, start: str) -> None:
    assert names(read(folder, "alpha", "beta name=b", end=end, start=start)) == ["alpha", "b"]


@pytest.mark.parametrize("name", ["demo", "demo-thinking"])
def test_no_file_takes_the_place_of_a_bundled_pool(folder: Path, name: str) -> None:
    Path(name).write_text(f"{folder / 'alpha'}\n", encoding="utf-8")
    assert all(candidate.place.startswith(str(DEMO.parent)) for candidate in read_pool(name))
    assert names(read_pool(f"./{name}")) == ["alpha"]


# --- What is refused ---


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("alpha colour=red", "'colour=red' is not an option of a model; the options are name, device"),
        ("alpha bfloat16", "'bfloat16' is not an option"),
        ("alpha dtype=float8", "dtype should be one of auto, float32, float64, bfloat16, float16, not 'float8'"),
        ("alpha chat_template=maybe", "chat_template should be auto, always or never, not 'maybe'"),
        ("alpha trust_remote_code=yes", "trust_remote_code should be true or false, not 'yes'"),
        ("alpha dtype=float32 dtype=float16", "dtype is given twice"),
        ("alpha reasoning_effort=low", "is an option of a model behind a server; the options of this one are name,"),
        ("alpha name=", "must be printable"),
        ("alpha name=\x1b[2J", "must be printable"),
        ("alpha 'name=unclosed", "close the quotation mark"),
        ("./gone", "no such folder"),
        ("notes.txt", "is a file"),
        ("a/b/c", "neither a folder next to the pool file nor a hub id"),
        ("org/model@", "has no revision"),
        ("org/model trust_remote_code=true", "needs a pinned revision"),
        (f"org/model@{COMMIT[:39]} trust_remote_code=true", "all 40 digits"),
        ("org/here", "is a folder of the current directory"),
        ("~nobody-of-this-name/model", "cannot be read as a path"),
        ("x" * 5000, "cannot be read as a path"),
        ("alpha\0", "neither a folder"),
        ("org/model price_in=1", "price_out= is missing"),
        ("org/model price_in=1 price_out=nan", "price_out should be a finite number, not 'nan'"),
        ("org/model price_in=-1 price_out=1", "price_in should be at least 0, not '-1'"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(folder: Path, line: str, says: str) -> None:
    message = refusal(folder, "# a pool", "beta", line)
    assert message.startswith(f"{folder / 'models.txt'}:3: ")
    assert says in message


def test_a_name_that_is_there_twice_names_both_lines(folder: Path) -> None:
    message = refusal(folder, "alpha", "", "beta name=alpha")
    assert message.startswith(f"{folder / 'models.txt'}:3: {folder / 'models.txt'}:1 has the name 'alpha', too")
    assert "name=" in message


@pytest.mark.parametrize("lines", [(), ("",), ("# nothing", "  ")])
def test_a_pool_without_a_model_is_refused(folder: Path, lines: tuple[str, ...]) -> None:
    assert refusal(folder, *lines).startswith(f"{folder / 'models.txt'}: the pool is empty")


@pytest.mark.parametrize(("pool", "says"), [("gone.txt", "no such file"), ("alpha", "is a folder")])
def test_a_pool_that_is_no_file_is_refused(folder: Path, pool: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_pool(str(folder / pool))
    (folder / "models.txt").write_bytes(b"\xff\xfe\x00alpha")
    with pytest.raises(InputError, match=r"cannot be read as text \(not UTF-8\); give a text file"):
        read_pool(str(folder / "models.txt"))


@pytest.mark.parametrize("name", ["quiz.csv", "quiz.jsonl.gz", "quiz.PARQUET", "quiz.yaml"])
def test_data_and_task_files_are_no_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(b"q,a\n1,\xff\n")
    with pytest.raises(InputError, match=f"--pool {name}: this looks like data or a task file, .*`advisor {name}`"):
        read_pool(name)


def test_names_and_globs_take_some_candidates(folder: Path) -> None:
    entries = read(folder, "alpha", "beta", "alpha name=[b]")
    assert [each.name for each in entries_named(entries, ["b*", "[b]"], "models.txt")] == ["beta", "[b]"]
    assert entries_named(entries, [], "models.txt") == entries
    assert [each.name for each in entries_named(entries, ["!b*"], "models.txt")] == ["alpha", "[b]"]
    assert [each.name for each in entries_named(entries, ["!b*", "*a"], "models.txt")] == ["alpha"]
    for wrong, says in (
        (["!gamma"], "--only !gamma: no candidate"),
        (["!*"], "--only !*: no candidate of --pool m is l"),
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            entries_named(entries, wrong, "m")
    with pytest.raises(InputError) as refused:
        entries_named(entries, ["alpha", "gamma"], "models.txt")
    assert str(refused.value) == (
        "--only gamma: no candidate of --pool models.txt has this name; its names are alpha, beta, [b]"
    )


def test_prices_are_dollars_per_million_tokens(tmp_path: Path) -> None:
    (tmp_path / "pool.txt").write_text("openai:http://h:1/v1#m price_in=0.5 price_out=2\norg/free\n", encoding="utf-8")
    paid, free = read_pool(str(tmp_path / "pool.txt"))
    assert paid.price is not None
    assert paid.price.of(prompt_tokens=1000, tokens=100) == pytest.approx((0.5 * 1000 + 2 * 100) / 1e6)
    assert paid.price.of(prompt_tokens=0, tokens=100) is None
    assert free.price is None


# --- The tokenizer of a model behind a server ---

SERVER = "openai:http://host/v1#m"


@pytest.mark.parametrize("written", ["alpha", "./alpha", "'./with space'", "org/name", "org/name@main"])
def test_a_tokenizer_is_a_folder_relative_to_the_pool_file_or_an_id_on_the_hub(folder: Path, written: str) -> None:
    (candidate,) = read(folder, f"{SERVER} tokenizer={written}")
    assert candidate.checkpoint.is_remote
    on_hub = written.startswith("org/")
    assert candidate.checkpoint.tokenizer == (written if on_hub else str(folder / written.strip("'")))


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("./absent", "no such folder; paths are relative to the pool file"),
        ("notes.txt", "is a file"),
        ("'a b'", "is neither a folder next to the pool file nor a hub id"),
        ("org/here", "is a folder of the current directory"),
        ("org/name@", "has no revision after the @"),
    ],
)
def test_a_tokenizer_that_is_nowhere_is_refused_with_its_line(folder: Path, written: str, reason: str) -> None:
    message = refusal(folder, "alpha", f"{SERVER} tokenizer={written}")
    assert message.startswith(f"{folder / 'models.txt'}:2: tokenizer=")
    assert reason in message


VALUES = {
    "device": "cuda:1",
    "dtype": "bfloat16",
    "chat_template": "never",
    "quantization": "4bit",
    "price_in": 1.5,
    "price_out": 2.0,
    "thinking": "<a>...</a>",
    "thinking_budget": 16,
    "prompt": "{{prompt}}!",
    "shots": 0,
    "system": "Be brief.",
    "temperature": 0.5,
    "top_p": 0.9,
    "max_new_tokens": 8,
    "num_cpus": 2,
    "num_gpus": 0.5,
    "trust_remote_code": True,
    "source": "eng_Latn",
    "target": "deu_Latn",
    "reads": "prompt",
    "gguf_file": "a.gguf",
    "tokenizer": "org/name",
    "key_env": "MY_API_KEY",
    "revision": "r1",
    "timeout": 9.0,
    "concurrency": 2,
    "requests_per_minute": 30.0,
    "reasoning_effort": "low",
    "left_out": ["seed", "top_p"],
}
"""A value of each option, as JSON has it."""


@pytest.mark.parametrize("remote", [False, True])
def test_each_option_of_a_line_is_where_its_field_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    place = SERVER if remote else f"org/model@{COMMIT}"
    for name, option in options_of_models(remote=remote).items():
        value = VALUES[name]
        text = ",".join(value) if isinstance(value, list) else str(value).replace("True", "true")
        if name == "prompt":
            (tmp_path / text).write_text(f"{text}\n", encoding="utf-8")
        both = f"price_in={text} price_out={text}" if name.startswith("price") else f"{name}={shlex.quote(text)}"
        spec = read_line(f"{place} {both}", "pool:1")
        member = member_to_json(spec, tmp_path)
        written = {
            "ensemble": {**member, **member.get("server", {})},
            "result": ModelSource(**provenance_of(spec)).model_dump(mode="json"),
            "key": spec.options("key"),
        }
        if remote:
            written["result"] |= written["result"]["remote"]
        for goal, found in written.items():
            kept = found.get(name)
            assert (kept is not None) == getattr(option.goes, goal), (name, goal)
            if kept is not None and not (goal == "ensemble" and name == "quantization"):
                assert kept == (value if not isinstance(kept, tuple) else tuple(value)), (name, goal)
        again = member_of(SavedMember(**member), "ensemble.json", tmp_path)
        assert member_to_json(again, tmp_path) == member


def provenance_of(spec: ModelSpec) -> dict[str, Any]:
    remote = {"remote": spec.checkpoint.as_dict()} if spec.checkpoint.is_remote else {}
    return {"path_or_id": spec.checkpoint.path_or_id, **remote, **spec.options("result")}
