"""A run folder is complete: it is used elsewhere, by one process at a time, with the consent that was given once."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from pools import Place
from running_server import serving
from sharing import demo_cache

from advisor.run.folder import locked
from ensemble import Ensemble
from ensemble.errors import UniteError
from ensemble.models.load import load_member
from ensemble.models.spec import Checkpoint, ModelSpec

pytest_plugins = ["pools"]

DEMO = Path(__file__).resolve().parents[1] / "advisor" / "demo"
VOTERS = ("terse-neox", "terse-mistral", "terse-olmo")
QUESTION = "Ann has 12 pens. She buys 5 more. How many pens does Ann have now?"
ADVISOR = [sys.executable, "-c", "from advisor.cli import main; main()"]


# --- Elsewhere ---


@pytest.fixture
def moved(place: Place, models: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A run that is now in another folder, `there`, which is the current one; its pool, task and data are gone."""
    place.job(models)
    place.select("--quiet")
    (place.folder / "there").mkdir()
    shutil.move(place.folder / "run", place.folder / "there" / "x")
    for name in ("models.txt", "task.yaml", "dev.jsonl", "held_out.jsonl"):
        (place.folder / name).unlink()
    monkeypatch.chdir(place.folder / "there")
    return place


def test_a_run_folder_is_used_where_it_was_moved(moved: Place) -> None:
    question = "What is 50 + 50?"
    commands = (("report", "x"), ("run", "x", question), ("evaluate", "x"), ("export", "x", "out"), ("run", "out", "?"))
    for command in commands:
        ran = moved.advisor(*command)
        assert ran.status == 0, ran.err
    # No question of its own is left, so this one looks for them.
    assert "the run has all of its 6 questions" in moved.advisor("check", "x").line


def test_all_questions_of_a_file_are_asked(moved: Place) -> None:
    questions = [{"question": f"What is {n} * 3?", "answer": str(3 * n)} for n in range(120)]
    moved.write("there/fresh.jsonl", "".join(f"{json.dumps(each)}\n" for each in questions))
    ran = moved.advisor("check", "x", "fresh.jsonl", "--strategy", "single", "--json", "--quiet")
    found = json.loads(ran.out)
    assert (found["n"], found["split"], found["left_out"]) == (120, "fresh", 0)


def test_a_single_model_is_compared_with_its_accuracy_on_all_questions_of_the_run(moved: Place) -> None:
    def grade(sample: dict[str, Any], score: float) -> str:
        for answer in sample["responses"].values():
            answer["score"] = score
        return json.dumps(sample) + "\n"

    samples = moved.samples(out="there/x")
    moved.write("there/x/samples.jsonl", "".join(grade(each, float(each["split"] == "dev")) for each in samples))
    moved.write("there/fresh.jsonl", '{"question": "What is 7 * 3?", "answer": "21"}\n')
    ran = moved.advisor("check", "x", "fresh.jsonl", "--strategy", "single", "--json", "--quiet")
    assert ran.status in (0, 3), ran.err
    assert json.loads(ran.out)["accuracy_in_run"] == 50


def test_a_copy_of_the_task_that_leads_out_of_the_run_folder_is_not_read(moved: Place) -> None:
    kept = moved.folder / "there" / "x" / "task" / "task.yaml"
    shutil.move(kept, moved.folder / "task.yaml")
    assert "has no copy of task.yaml; give --task FILE" in moved.refused("check", "x")
    kept.symlink_to(moved.folder / "task.yaml")
    assert "has no copy of task.yaml; give --task FILE" in moved.refused("check", "x")


def test_models_that_are_not_on_this_machine_are_named_with_the_way_out(moved: Place, models: Path) -> None:
    def lose(result: dict[str, Any]) -> None:
        for name, source in result["provenance"]["models"].items():
            source["path_or_id"] = f"/gone/{name}"

    moved.edit(lose, "there/x/result.json")
    names = moved.json("there/x/result.json")["selected"]
    line = moved.refused("evaluate", "x")
    assert all(f"{name} (/gone/{name})" in line for name in names) and "add --pool FILE" in line
    moved.pool(*(str(models / name) for name in names), name="there/here.txt")
    assert moved.advisor("evaluate", "x", "--pool", "here.txt").status == 0


def test_data_that_was_given_by_a_folder_is_kept(place: Place, models: Path) -> None:
    place.job(models)
    (place.folder / "data").mkdir()
    for name in ("dev.jsonl", "held_out.jsonl"):
        shutil.move(place.folder / name, place.folder / "data" / name)
    place.select("--quiet", "--data", "data")
    shutil.rmtree(place.folder / "data")
    # They are questions, and no logs.
    assert "not read" not in place.advisor("select", "--logs", "run", "--out", "again").err
    assert place.advisor("evaluate", "run").status == 0


# --- One process at a time ---


def test_a_second_process_ends_with_the_name_of_the_folder_and_the_first_process(place: Place, models: Path) -> None:
    place.job(models, "alpha", "beta")
    with locked(place.folder / "run"):
        for options in (("--pool", "models.txt", "--task", "task.yaml"), ("--scores", "scores.json")):
            place.write("scores.json", '{"task": "sums", "profiles": [{"model": "a", "accuracy": 50}]}')
            ran = place.advisor("select", *options, "--out", "run", "--quiet")
            assert (ran.status, f"run: the process {os.getpid()} writes into this folder now" in ran.line) == (1, True)
    assert not (place.folder / "run").exists()
    place.select("--quiet")
    with locked(place.folder / "run"):
        assert "writes into this folder now" in place.advisor("evaluate", "run", "--quiet").line


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    imports = "from pathlib import Path; from advisor.run.folder import locked"
    code = f"{imports}\nwith locked(Path({str(tmp_path)!r})):\n    print(1, flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stdin=pipe) as one:
        assert one.stdout is not None
        one.stdout.readline()
        with pytest.raises(UniteError, match=f"the process {one.pid} writes"), locked(tmp_path):
            pass
        one.kill()
    with locked(tmp_path):
        assert (tmp_path / ".running").read_text(encoding="utf-8") == str(os.getpid())
    assert list(tmp_path.iterdir()) == []


# --- From select to evaluate ---


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The lines of a pool: a model here, three models here, and the three behind servers of their own."""
    tables = tmp_path_factory.mktemp("tables")
    here = {name: str(DEMO / "models" / name) for name in VOTERS}
    with ExitStack() as stack:
        remote = []
        for name, folder in here.items():
            ensemble = Ensemble([load_member(ModelSpec(Checkpoint(folder), name))], cache_dir=tables)
            url = stack.enter_context(serving(ensemble)).url
            remote.append(f"openai:{url}/v1#tiny name={name} chat_template=never")
        yield {"single": "\n".join([*here.values()][:2]), "set": "\n".join(here.values()), "servers": "\n".join(remote)}


def printed_commands(text: str) -> list[str]:
    """The commands that a run prints, with a question and a file."""
    found = re.search(r"Use it: (.*), or (.*)\. Does it still hold\? (.*)", text)
    assert found is not None, text
    return [each.replace("QUESTION", shlex.quote(QUESTION)).replace("FILE", "fresh.jsonl") for each in found.groups()]


def ask_server(command: str) -> str:
    """The answer of a command that serves."""
    words, pipe = [*ADVISOR, *shlex.split(command)[1:], "--port", "0"], subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        address = started.stdout.readline().strip()
        assert address, started.stderr.read()
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            (served,) = client.models.list()
            message: Any = {"role": "user", "content": QUESTION}
            answer = client.chat.completions.create(model=served.id, messages=[message])
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0
    return answer.choices[0].message.content or ""


@pytest.mark.timeout(180)
@pytest.mark.second_lane
@pytest.mark.parametrize("kind", ["single", "set", "servers"])
def test_the_commands_that_a_run_prints_work_one_after_another_without_another_option(
    kind: str,
    lines: dict[str, str],
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(demo_cache(tmp_path_factory)))
    place.pool(lines[kind])
    shutil.copy(DEMO / "data" / "test.jsonl", place.folder / "all.jsonl")
    fresh = (place.folder / "all.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:12]
    place.write("fresh.jsonl", "".join(fresh))
    command = ("select", "--pool", "models.txt", "--task", "word_problems", "--limit", "24", "--quiet", "--out", "run")
    ran = place.advisor(*command, *(["--min-gain", "100"] if kind == "single" else []))
    assert ran.status == 0, ran.err
    assert (place.json()["advice"]["recommendation"]["strategy"] == "single") == (kind == "single")
    run, serve, check = printed_commands(ran.out)
    answer = place.advisor(*shlex.split(run)[1:])
    assert answer.status == 0, answer.err
    assert ask_server(serve).strip() == answer.out.strip()
    assert place.advisor(*shlex.split(check)[1:], "--json").status in (0, 3)
    for words in (("export", "run", "out"), ("run", "out", QUESTION), ("evaluate", "run", "--limit", "4")):
        ran = place.advisor(*words)
        assert ran.status == 0, ran.err
    # Those of the report, in its folder.
    page = (place.folder / "run" / "report.html").read_text(encoding="utf-8")
    use = re.search(r"<pre><code>(advisor run .*?)</code></pre>", page, re.DOTALL)
    assert use is not None
    run, serve = html.unescape(use[1]).splitlines()
    monkeypatch.chdir(place.folder / "run")
    assert place.advisor(*shlex.split(run.replace("...", QUESTION))[1:]).out == answer.out
    assert serve == "advisor serve ."
