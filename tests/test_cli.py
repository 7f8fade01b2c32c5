"""The command: what it prints where, what reaches the terminal, and what is left when it is stopped."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pools import LENIENT, SELECT, Place

from advisor import cli
from advisor.progress import Progress
from advisor.run.result import Result
from benchmarks.kills import without_measures
from ensemble.step.trace import Candidate, Step
from reports.terminal import print_conclusion, print_next, print_tables, trace_lines

pytest_plugins = ["pools"]

ADVISOR = [sys.executable, "-c", "from advisor.cli import main; main()"]
HOSTILE = "\x1b[31mred\x1b[0m \x1b]8;;http://evil\x07 \u202eabc\u2066 [bold]b[/] [link=x]y[/] :fire: \x9b2J \x00"


# --- A finished run ---


def test_json_is_all_on_standard_output_and_quiet_leaves_standard_error_empty(finished: SimpleNamespace) -> None:
    assert (finished.status, finished.err) == (0, "")
    assert json.loads(finished.out) == json.loads((finished.run / "result.json").read_text(encoding="utf-8"))


def test_a_run_folder_holds_its_task_and_three_files_and_the_report_is_made_again_from_the_others(
    place: Place, finished: SimpleNamespace
) -> None:
    assert sorted(path.name for path in finished.run.iterdir()) == [
        "report.html",
        "result.json",
        "samples.jsonl",
        "task",
    ]
    copy = place.folder / "copy"
    copy.mkdir()
    for name in ("result.json", "samples.jsonl"):
        (copy / name).write_bytes((finished.run / name).read_bytes())
    ran = place.advisor("report", "copy")
    assert (ran.status, ran.out, ran.err) == (0, "copy/report.html\n", "")
    assert (copy / "report.html").read_bytes() == (finished.run / "report.html").read_bytes()


def test_without_a_home_that_can_be_written_the_cache_is_beside_the_run(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.job(models, "alpha", "beta")
    place.write("home", "a file, and no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.folder / "home"))
    ran = place.select("--no-verify")
    said = [line for line in ran.err.splitlines() if "what is cached" in line]
    assert said == [
        f"note {place.folder}/home/unite-advisor cannot be written, so what is cached goes to {place.folder}/.cache"
    ]
    assert answered(place.folder / ".cache") > 0


def test_the_chosen_set_of_a_run_goes_on_writing(
    place: Place, finished: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json.loads((finished.run / "result.json").read_text(encoding="utf-8"))
    samples = [json.loads(line) for line in (finished.run / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    sample = samples[-1]
    ran = place.advisor("run", finished.run, sample["prompt"], "--method", "unite")
    assert (ran.status, ran.out) == (0, f"{sample['ensemble']['text']}\n")
    assert place.advisor("run", finished.run, sample["prompt"], "--stream", "--method", "unite").out == ran.out
    monkeypatch.setattr("sys.stdin", io.StringIO(sample["prompt"]))
    assert place.advisor("run", finished.run, "-", "--method", "unite").out == ran.out
    models = [result["provenance"]["models"][name]["path_or_id"] for name in result["selected"]]
    by_hand = [part for model in models for part in ("--models", model)]
    assert place.advisor("run", *by_hand, sample["prompt"], "--max-new-tokens", "6").out == ran.out


def test_a_trace_goes_to_standard_error(place: Place, finished: SimpleNamespace) -> None:
    ran = place.advisor("run", finished.run, "What is", "--trace", "--max-new-tokens", "2")
    assert ran.status == 0
    assert [line.split(":")[0] for line in ran.err.splitlines() if line.startswith("step")] == ["step 1", "step 2"]


def test_a_trace_shows_what_won_and_nothing_that_nobody_wants() -> None:
    shares = [0.6, 0.3999, 0.0001, 0.0, 0.0, 0.0, 0.0]
    candidates = [Candidate(f"{n}".encode(), n, (0,), (share, share), share) for n, share in enumerate(shares)]
    lines = list(trace_lines([Step(tuple(candidates), 6, b"6")], ["a", "b"]))
    assert [re.findall(r"'(.)'", line) for line in lines] == [["6"], ["0"], ["1"], ["6"]]


def test_a_prompt_that_is_empty_or_no_text_is_refused(
    place: Place, finished: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the prompt is empty" in place.refused("run", finished.run, "")
    assert "the prompt is not UTF-8 text" in place.refused("run", finished.run, "a\udcff")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="utf-8"))
    assert "the prompt is not UTF-8 text" in place.refused("run", finished.run, "-")


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 100_000, "9" * 5000, '{"schema_version": 99}', '{"schema_version": 1}']
)
def test_a_run_folder_with_another_result_is_refused(place: Place, content: str) -> None:
    place.write("result.json", content)
    assert "result.json" in place.refused("run", ".", "a prompt")


def test_profiles_that_were_printed_can_be_selected_from(place: Place, finished: SimpleNamespace, models: Path) -> None:
    place.job(models)
    ran = place.advisor("profile", "--pool", "models.txt", "--task", "task.yaml", "--json", "--quiet")
    assert (ran.status, ran.err) == (0, "")
    assert place.files() == {"models.txt", "task.yaml", "dev.jsonl", "held_out.jsonl"}
    place.write("numbers.json", ran.out)
    again = place.advisor("select", "--scores", "numbers.json", *LENIENT, "--json", "--quiet", "--out", "run")
    assert again.status == 0
    wanted, found = (json.loads(text) for text in (finished.out, again.out))
    assert found["selected"] == wanted["selected"]
    assert [each["reason"] for each in found["candidates"]] == [each["reason"] for each in wanted["candidates"]]


def test_help_names_the_first_page_of_the_documentation(place: Place) -> None:
    (page,) = re.findall(r"Documentation: (.*)", place.advisor("--help").out)
    assert Path(page).read_text(encoding="utf-8").startswith("# ")


def test_a_failed_candidate_is_noted_and_all_failing_is_exit_1(place: Place, models: Path) -> None:
    place.task()
    place.pool(str(models / "incomplete"), str(models / "alpha"))
    ran = place.advisor("profile", "--pool", "models.txt", "--task", "task.yaml")
    assert ran.status == 0
    assert "note incomplete: its weights lack " in ran.err
    assert re.fullmatch(r" *[\d.]+ points +\d+ characters +\d+ cut off  ( *\d+ empty  )?alpha\n", ran.out)
    place.pool(str(models / "incomplete"), str(models / "numberless"))
    ran = place.advisor(*SELECT, "--quiet")
    assert (ran.status, ran.out) == (1, "")
    assert ran.line.startswith("advisor: none of the 2 candidates could be run; incomplete: its weights lack")
    assert not (place.folder / "runs").exists()


def test_debug_shows_where_a_candidate_failed(place: Place, models: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "advisor")  # and back to what it was, at the end of the test
    caplog.handler.setLevel(logging.DEBUG)
    place.task()
    place.pool(str(models / "numberless"), str(models / "alpha"))
    assert place.advisor("profile", *SELECT[1:], "--limit", "1", "--debug").status == 0
    assert "Traceback (most recent call last):" in caplog.text
    assert "MemberError: numberless: its logits are not numbers" in caplog.text


def test_questions_that_cannot_be_answered_are_noted(place: Place, models: Path) -> None:
    place.task([{"question": "what? " * n, "answer": "e"} for n in (1, 100, 2)] * 2)
    place.pool(str(models / "alpha"))
    ran = place.advisor(*SELECT, "--no-verify", "--out", "run")
    assert ran.status == 0
    assert "note alpha: 1 of 3 questions could not be answered; they count as wrong, and not for its mean" in ran.err
    (candidate,) = json.loads((place.folder / "run" / "result.json").read_text(encoding="utf-8"))["candidates"]
    assert candidate["errors"] == 1


def test_lists_are_a_line_each(place: Place) -> None:
    assert place.advisor("tasks").out.startswith("arc_challenge ")
    assert place.advisor("methods").out.startswith("unite ")
    assert place.advisor("--help").out.startswith("Usage: advisor ")


# --- What reaches the terminal ---


def test_nothing_hostile_reaches_the_terminal(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # A name with a null character is refused.
    named = HOSTILE.replace("\0", "")
    result = printed(2, HOSTILE)
    result["task"] |= {"name": HOSTILE, "split": HOSTILE}
    result["candidates"][0] |= {"reason": HOSTILE, "close_call": HOSTILE}
    gains = {"predicted_gain": 1.0, "predicted_gain_ci": [0.0, 2.0], "measured_gain": None}
    shown = {"models": [HOSTILE], **gains, "rules": True, "decoded": False}
    result["prediction"] = {"set_by": "predicted", "sets": [shown]}
    member = {"model": HOSTILE, "accuracy": 50.0, "accuracy_ci": [1.0, 2.0]}
    result["ensemble"] = {**member, "n": 5, "method": "unite", "members": [member]}
    strategy = {"strategy": named, "members": [named, "b"]}
    result["strategies"][0] |= {**strategy, "best_single_model": HOSTILE}
    result["advice"] |= {"text": HOSTILE, "warnings": [HOSTILE]}
    result["advice"]["recommendation"] |= {**strategy, "text": HOSTILE}
    progress = Progress()
    progress.say(HOSTILE)
    found = finished_run(result)
    print_tables(found)
    print_conclusion(found)
    print_next(found, tmp_path / "[bold]\x1b[31m" / "report.html")
    with progress.stage(HOSTILE, 3) as advance:
        advance(3)
    captured = capfd.readouterr()
    assert not [c for c in captured.out + captured.err if not c.isprintable() and c != "\n"]
    assert "⟨U+202E⟩" in captured.out
    for text in ("[bold]b[/]", "[link=x]y[/]", ":fire:", "⟨U+202E⟩", "␛[31mred"):
        assert text in re.sub(r"[\s│]+", "", captured.err) or text in captured.err


def finished_run(values: dict[str, Any]) -> Result:
    """The result of a run with these values."""
    return Result.model_validate({"schema_version": 2, "selected": [], **values})


def printed(candidates: int, names: str = "model-{:02}") -> dict[str, Any]:
    """A result of many candidates, all but two of which the rules reject."""
    status = ["primary", "selected", *["rejected"] * (candidates - 2)]
    measured = {"accuracy_ci": [80.0, 95.0], "mean_length": 12.0, "accuracy_macro": 88.0, "truncated": 1}
    compared = {"draws": 1, "n": 1, "best_single_model": "a", "questions": 2, "cross_fitted": True, "probability": 0.9}
    figures = (
        ("vote", ["a", "b", "c"], 4.0, 0.0004, 2.25),
        ("single", ["a"], 0.0, None, 1.0),
        ("vote", ["a", "b"], -3.0, 0.3, 1.0),
    )
    strategies = [
        {"strategy": name, "members": members, "accuracy": 50.0 + gain, "calls_per_question": calls}
        | {"measured_gain": gain, "expected_gain": gain - 1, "p_no_gain": p, "p_adjusted": p, **compared}
        for name, members, gain, p, calls in figures
    ]
    cost = {"seconds_per_question": 0.5, "price_per_1000": 1.2}
    vote = {**strategies[0], **cost, "probability": 0.972, "expected_gain_ci": [0.5, 5.4], "text": "Ask a, b and c."}
    return {
        "task": {"name": "sums", "n": 300, "split": "dev"},
        "candidates": [
            {"model": names.format(n), "accuracy": 90.0 - n, "status": status[n], "reason": f"reason {n}", **measured}
            for n in range(candidates)
        ],
        "strategies": strategies,
        "advice": {
            "verdict": "unclear",
            "text": "The set was not run.",
            "recommendation": vote,
            "warnings": ["The models guess."],
        },
    }


def concluded(result: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_conclusion(finished_run(result))
    print_next(finished_run(result), folder / "report.html")
    return capsys.readouterr().out.splitlines()


def test_the_conclusion_is_what_to_run_what_is_shown_its_cost_the_warnings_the_verdict_and_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = concluded(printed(3), tmp_path, capsys)
    assert lines[:6] == [
        "Recommended: Ask a, b and c.",
        "Expected gain: +3.0 points over a, the best single model (90% interval +0.5 to +5.4).",
        "How sure: better than a alone with probability 0.97.",
        "Cost: 2.2 calls and 500 ms a question, $1.20 for 1,000 questions; a alone takes 1 call a question",
        "Warning: The models guess.",
        "The set was not run.",
    ]
    assert lines[6].startswith("Report: ") and len(lines) == 8
    use = f"Use it: advisor run {tmp_path} QUESTION, or advisor serve {tmp_path}. Does it still hold? advisor check "
    assert lines[7] == f"{use}{tmp_path} FILE"

    # More labels are named where they would raise it, and many warnings do not hide the verdict.
    result = printed(3)
    sure = {"probability": 0.88, "expected_gain_ci": [-1.2, 7.2]}
    result["advice"]["recommendation"] |= {**sure, "questions": 300, "measured_gain_ci": [-1.5, 7.5]}
    result["advice"]["warnings"] = [f"warning {n}" for n in range(50)]
    lines = concluded(result, tmp_path, capsys)
    assert lines[2] == "How sure: better than a alone with probability 0.88; 66 more labels: 0.90 if the gain is real."
    assert len(lines) == 12 and lines[8] == "The report has 46 more warnings."

    # Without held-out questions it says why nothing is recommended.
    result["advice"] |= {"recommendation": None, "warnings": []}
    assert concluded(result, tmp_path, capsys)[:2] == [
        "Recommended: nothing yet, because no strategy was compared on held-out questions.",
        "The set was not run.",
    ]


def test_the_commands_that_use_a_run_have_the_group_that_they_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = printed(3)
    routes = {"law": "a", "math": "b"}
    own = {"strategy": "group_router", "members": ["a", "b"], "routes": routes}
    result["advice"]["recommendation"] |= own
    result["strategies"][0] |= own
    lines = concluded(result, tmp_path, capsys)
    use = f"Use it: advisor run {tmp_path} QUESTION --group law, or advisor serve {tmp_path}."
    assert lines[-1] == f"{use} Does it still hold? advisor check {tmp_path} FILE"


def test_strategies_are_printed_with_their_gain_and_calls(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(finished_run(printed(3)))
    table = capsys.readouterr().err.partition("Strategies, 2 questions, compared with a alone")[2]
    rows = [" ".join(line.split()) for line in table.splitlines() if line.strip()]
    assert rows[0] == "Strategy Accuracy Gain Better Calls"
    assert rows[2:] == [
        "Vote, 3 models * 54.0 +3.0 0.90 2.25",
        "a, then b, then c",
        "a alone 50.0 −1.0 0.90 1.00",
        "Vote, 2 models 47.0 −4.0 0.90 1.00",
        "a, then b",
        "* recommended",
    ]


def test_of_many_candidates_only_the_first_have_their_notes_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_tables(finished_run(printed(28)))
    shown = capsys.readouterr().err
    assert re.findall(r"Reason \d+", shown) == [f"Reason {n}" for n in range(10)]
    assert "The report has notes on 18 more rows." in shown
    print_tables(finished_run(printed(7)))
    assert "more row" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model-{:02}", "a-model-with-a-very-long-name-of-45-chars-{:02}"])
def test_a_name_is_not_broken_to_make_room_for_details(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_tables(finished_run(printed(28, name)))
    table = capsys.readouterr().err.partition("Strategies")[0]
    assert all(f" {name.format(n)} " in table for n in range(28))


def test_long_names_are_shortened_in_the_middle_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = printed(4, "an-owner/a-model-with-a-name-that-is-longer-than-half-of-a-line-{:02}")
    names = [candidate["model"] for candidate in result["candidates"]]
    result["strategies"][0]["members"] = names[:3]
    result["strategies"].append({**result["strategies"][0], "members": names[1:]})
    print_tables(finished_run(result))
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    ends = [re.search(r"an-owner/\S+…\S+-(\d\d) ", line) for line in lines[:9]]
    assert [found[1] for found in ends if found] == ["00", "01", "02", "03"]
    # Two strategies of the same title are told apart by their members.
    below = " ".join(lines).partition("Vote, 3 models")[2]
    assert below.index("line-00") < below.index("Vote, 3 models") < below.index("line-03")


def test_an_error_about_something_hostile_is_still_one_harmless_line(place: Place) -> None:
    place.task()
    place.pool("'./gone \x1b[2J\u202e\x9b'")
    line = place.refused(*SELECT)
    assert line.isprintable()
    assert "␛[2J⟨U+202E⟩" in line


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "␛[2J\n⟨U+202E⟩"), (False, "\x1b[2J\n\u202e")])
def test_a_terminal_obeys_no_command_of_a_model(
    place: Place, finished: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, shown: str
) -> None:
    hostile = SimpleNamespace(stream=lambda *_, **__: iter(["\x1b[2J", "\n\u202e"]))
    monkeypatch.setattr("advisor.commands.run.load_chosen", lambda *_: hostile)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert place.advisor("run", finished.run, "What is", "--stream").out == f"{shown}\n"


def test_a_command_on_a_terminal_shows_that_it_starts_before_anything_else(tmp_path: Path) -> None:
    person, terminal = os.openpty()
    command = [sys.executable, "-c", "from advisor.cli import main; main()", "select", "--task", "word_problems"]
    running = subprocess.Popen([*command, "--pool", "missing.txt"], cwd=tmp_path, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    # Linux says with an error that the other side is closed.
    with suppress(OSError):
        while part := os.read(person, 4096):
            shown += part
    os.close(person)
    assert running.wait() == 2
    first, *rest = re.sub(rb"\x1b\[[\d;]*m", b"", shown).decode().splitlines()
    assert first == "Starting: the libraries take a few seconds to load"
    assert "missing.txt" in rest[-1]


def test_the_version_is_said(place: Place) -> None:
    ran = place.advisor("--version")
    lines = ran.out.splitlines()
    assert (ran.status, lines[0]) == (0, f"unite-advisor {metadata.version('unite-advisor')}")
    assert [line.split()[0] for line in lines[1:4]] == ["python", "torch", "transformers"]


def test_what_a_library_makes_of_ctrl_c_is_a_stop_and_no_fault(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("cannot import") from error

    monkeypatch.setattr("advisor.tasks.list_tasks", stopped)
    ran = place.advisor("tasks")
    assert (ran.status, ran.line.split(";")[0]) == (130, "advisor: stopped")


INTERRUPTED = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(self, name, *_):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
runpy.run_module("advisor", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["advisor.cli", "typer", "advisor.options.shared", "advisor.commands.report"])
def test_ctrl_c_is_one_line_while_the_modules_are_imported(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, "report", module]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "advisor: stopped\n")


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    with subprocess.Popen([*ADVISOR, "tasks"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait()) == ("", 0)


# --- Stopped, and gone on ---


LONG = (*SELECT, "--quiet", "--batch-size", "4", *LENIENT, "--out", "run")
# What runs in the background begins with Ctrl-C ignored.
SIGNALLED = """
import signal
from advisor.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def stop(place: Place, count: int, number: signal.Signals, wait: float = 0.0) -> tuple[int, str]:
    """Run the long job in a process, and signal it some time after the store has this many answers; status, errors."""
    with subprocess.Popen([sys.executable, "-c", SIGNALLED, *LONG], stderr=subprocess.PIPE, text=True) as run:
        end = time.monotonic() + 120
        while answered(place.cache) < count and run.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(wait)
        run.send_signal(number)
        assert run.stderr is not None
        return run.wait(), run.stderr.read()


def answered(cache: Path) -> int:
    """Responses in the store of a process that may still be writing."""
    try:
        connection = sqlite3.connect(f"file:{cache / 'unite-advisor' / 'responses.sqlite'}?mode=ro", uri=True)
        try:
            return int(connection.execute("SELECT count(*) FROM responses").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.Error:
        return 0


def write_long(place: Place, models: Path) -> None:
    place.task([{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)], max_new_tokens=16)
    place.pool(*(str(models / name) for name in ("alpha", "gamma")))


def outcome(folder: Path) -> tuple[Any, list[str]]:
    """Result and samples without what two runs may differ in: the command, the date, and what it cost."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return without_measures(result), (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()


def test_a_run_that_is_stopped_says_that_the_same_command_goes_on(place: Place, models: Path) -> None:
    write_long(place, models)
    line = "advisor: stopped; complete responses are cached, and the same command continues from there\n"
    assert stop(place, 9, signal.SIGINT) == (130, line)
    assert answered(place.cache) >= 9


def test_a_run_that_is_killed_again_and_again_goes_on_to_the_undisturbed_result(place: Place, models: Path) -> None:
    write_long(place, models)
    chance = random.Random(0)
    for count in sorted(chance.sample(range(100), 2)):
        # The last may come too late, when all is done.
        assert stop(place, count, signal.SIGKILL, chance.random() / 20) in ((-signal.SIGKILL, ""), (0, ""))
    ran = place.advisor(*LONG)
    assert (ran.status, ran.err) == (0, "")
    gone_on = outcome(place.folder / "run")
    assert place.advisor(*LONG, "--force", "--cache-dir", "another").status == 0
    assert gone_on == outcome(place.folder / "run")


def test_what_keeps_nothing_does_not_say_so_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {}
    for command in ("serve", "run", "select"):
        monkeypatch.setattr(sys, "argv", ["advisor", command, "x"])
        said[command] = cli.stopped()
    assert said["serve"] == said["run"] == "stopped"
    assert said["select"].endswith("continues from there")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full, or standard output"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n 4096"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "no more processes or threads"),
        (RuntimeError("can't start new thread"), "no more processes or threads"),
        (MemoryError(), "the memory is full"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), "the memory is full"),
        (ModuleNotFoundError("No module named '_sqlite3'", name="_sqlite3"), "was built without _sqlite3"),
    ],
    ids=str,
)
def test_what_the_machine_lacks_is_no_bug(error: Exception, says: str) -> None:
    found = cli._lack_of_machine(error)
    assert found is not None
    assert says in found
    assert cli._lack_of_machine(OSError(errno.ENOENT, "no such file")) is None


@pytest.mark.parametrize(("redirection", "status"), [(">/dev/full", 1), (">&-", 0)])
def test_a_standard_output_that_cannot_be_written_is_one_line(redirection: str, status: int) -> None:
    command = ["sh", "-c", f'exec "$0" -c "from advisor.cli import main; main()" tasks {redirection}', sys.executable]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == status
    assert ran.stderr.count("\n") == status
    assert "a bug" not in ran.stderr
