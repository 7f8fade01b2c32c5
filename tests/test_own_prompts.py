"""One model with several prompts and settings is a pool of several, each asked, saved and run as its line says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pools import LENIENT, SELECT, Place
from servers import Answer, Raw, as_json
from servers import models as listed

from ensemble import Ensemble, Sourced
from ensemble.models.load import load_members
from ensemble.models.spec import Checkpoint, ModelSpec

pytest_plugins = ["pools"]
pytestmark = pytest.mark.usefixtures("no_pauses")

POLITE = "Please: {{question}} {{prompt}}"


def texts(place: Place, name: str, split: str = "dev") -> list[str]:
    return [sample["responses"][name]["text"] for sample in place.samples(split)]


def run(place: Place, *options: str, out: str = "run") -> dict[str, Any]:
    ran = place.advisor(*SELECT, *LENIENT, "--out", out, "--quiet", *options)
    assert ran.status == 0, ran.err
    found: dict[str, Any] = place.json(f"{out}/result.json")
    return found


@pytest.mark.parametrize(
    ("option", "task"),
    [
        ("prompt=polite.txt", {"prompt": "Please: {{question}} {{question}}\nAnswer:"}),
        ("shots=2", {"shots": 2}),
        ("max_new_tokens=3", {"max_new_tokens": 3}),
    ],
)
def test_a_line_is_asked_as_a_task_with_this_prompt_asks(
    place: Place, models: Path, option: str, task: Mapping[str, Any]
) -> None:
    place.write("polite.txt", f"{POLITE}\n")
    data = {"dev": "dev.jsonl", "held_out": "held_out.jsonl", "shots": "held_out.jsonl"}
    place.task(data=data)
    place.pool(str(models / "alpha"), f"{models / 'alpha'} name=own {option}")
    run(place, "--no-verify")
    own, plain = texts(place, "own"), texts(place, "alpha")
    place.task(data=data, **task)
    place.pool(str(models / "alpha"))
    run(place, "--no-verify", "--force")
    assert own == texts(place, "alpha") != plain


def test_a_temperature_draws_other_responses_of_a_local_model(place: Place, models: Path) -> None:
    place.task()
    place.pool(
        str(models / "alpha"),
        f"{models / 'alpha'} name=warm temperature=3",
        f"{models / 'alpha'} name=cool temperature=0",
    )
    run(place, "--no-verify")
    assert texts(place, "warm") != texts(place, "alpha") == texts(place, "cool")


def test_lines_with_the_same_weights_load_once_and_their_memory_counts_once(place: Place, models: Path) -> None:
    place.task()
    place.write("polite.txt", POLITE)
    line = str(models / "alpha")
    place.pool(line, f"{line} name=polite prompt=polite.txt", f"{line} name=never chat_template=never max_new_tokens=5")
    ran = place.advisor(*SELECT, "--dry-run", "--json")
    plan = json.loads(ran.out)
    assert plan["together"]["memory"] == plan["models"][0]["weights"]
    loads = run(place)["provenance"]["loads"]
    assert {name: each["count"] for name, each in loads.items()} == {"alpha": 1}


def test_members_that_share_weights_each_read_their_prompt(models: Path) -> None:
    checkpoint = Checkpoint(str(models / "alpha"))
    lines = [ModelSpec(checkpoint, "plain"), ModelSpec(checkpoint, "own", system="Be brief.")]
    first, second = load_members(lines)
    assert first.local.model is second.local.model
    ensemble = Ensemble([first, second])
    plain, own = ensemble.encode(Sourced("What is 1 + 1?", own={"own": "Say it."}))
    assert (first.tokenizer.decode(plain), first.tokenizer.decode(own)) == ("What is 1 + 1?", "Be brief.\n\nSay it.")


def test_a_set_is_asked_with_the_prompt_of_each_member(place: Place, models: Path) -> None:
    place.task()
    place.write("polite.txt", POLITE)
    line = str(models / "alpha")
    place.pool(f"{line} name=plain dtype=float64", f"{line} name=polite dtype=float64 prompt=polite.txt")
    primary, other = run(place)["selected"]
    sample = place.samples("held_out")[0]
    task = sample["prompt"]
    own = {"plain": task, "polite": f"Please: {task.partition(chr(10))[0]} {task}"}
    checkpoint = Checkpoint(line)
    members = load_members([ModelSpec(checkpoint, name, dtype="float64") for name in (primary, other)])
    (wanted,) = Ensemble(members).generate([Sourced(task, own=own)], max_new_tokens=6)
    assert sample["ensemble"]["text"] == wanted.text


# --- Behind a server: one model with three prompts ---

LINES = (
    "name=plain",
    "name=steps prompt=steps.txt temperature=0.5 top_p=0.9 max_new_tokens=40",
    "name=brief system='Be brief.'",
)


def right(path: str, body: Mapping[str, Any]) -> Answer:
    """The right sum to prompts with steps, and to every second one with a text of the system."""
    if path.endswith("/models"):
        return listed("m")
    said = [message["content"] for message in body["messages"]]
    numbers = [int(number) for number in re.findall(r"\d+", said[-1])] or [0]
    is_right = "steps" in said[-1] or (len(said) > 1 and numbers[0] % 2 == 0)
    message = {"role": "assistant", "content": str(2 * numbers[0] if is_right else 0)}
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    return as_json({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})


@pytest.fixture
def served(place: Place, raw: Raw) -> Place:
    """A finished run of one model behind a server with three prompts."""
    raw.answer = right
    place.write("steps.txt", "{{prompt}} Give the steps.\n")
    place.task([{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 81)], metric="number")
    place.pool(*(f"openai:{raw.url}#m {line}" for line in LINES))
    run(place)
    raw.asked.clear()
    return place


def sent(raw: Raw) -> dict[str, Any]:
    """The body of the latest request for a text."""
    return next(
        body for path, _, body in reversed(raw.asked) if path.endswith("completions") and "Hello" not in str(body)
    )


def test_the_best_prompt_is_recommended_and_run_as_it_was_verified(served: Place, raw: Raw) -> None:
    assert served.json()["advice"]["recommendation"]["members"] == ["steps"]
    ran = served.advisor("run", "run", "What is 9 + 9?", "--allow-server", raw.url)
    assert ran.out == "18\n"
    body = sent(raw)
    assert body["messages"] == [{"role": "user", "content": "What is 9 + 9?\nAnswer: Give the steps."}]
    assert {name: body[name] for name in ("temperature", "top_p", "max_tokens")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 40,
    }


def test_a_request_with_other_settings_has_them(served: Place, raw: Raw) -> None:
    options = ("--temperature", "1", "--max-new-tokens", "7", "--allow-server", raw.url)
    assert served.advisor("run", "run", "What is 9 + 9?", *options).status == 0
    assert (sent(raw)["temperature"], sent(raw)["max_tokens"]) == (1, 7)


def test_an_exported_strategy_asks_each_model_as_its_line_says(served: Place, raw: Raw) -> None:
    assert served.advisor("export", "run", "out", "--strategy", "vote").status == 0
    served.write("steps.txt", "changed")
    assert served.advisor("run", "out", "What is 9 + 9?", "--allow-server", raw.url).status == 0
    said = [body["messages"] for path, _, body in raw.asked if path.endswith("completions")]
    task = {"role": "user", "content": "What is 9 + 9?\nAnswer:"}
    assert [{"role": "system", "content": "Be brief."}, task] in said
    assert [{"role": "user", "content": "What is 9 + 9?\nAnswer: Give the steps."}] in said


def test_a_check_asks_fresh_questions_with_the_prompt_of_the_run(served: Place, raw: Raw) -> None:
    served.write("steps.txt", "changed")
    served.task([{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(101, 181)], metric="number")
    ran = served.advisor("check", "run", "--task", "task.yaml", "--limit", "30", "--allow-server", raw.url)
    assert (ran.status, ran.out.startswith("The recommendation holds")) == (0, True), ran
    assert sent(raw)["messages"][0]["content"].endswith("Give the steps.")


def test_another_program_that_cannot_ask_so_asks_advisor_serve(served: Place, raw: Raw) -> None:
    ran = served.advisor("export", "run", "out", "--as", "litellm", "--allow-server", raw.url)
    assert "does not ask steps as its line says: `advisor serve run" in ran.err


def test_the_report_shows_the_prompt_and_the_settings_of_a_line(served: Place) -> None:
    page = (served.folder / "run" / "report.html").read_text(encoding="utf-8")
    for shown in ("prompt={{prompt}} Give the steps.", "temperature=0.5", "system=Be brief."):
        assert shown in page


# --- Refusals ---


@pytest.mark.parametrize(
    ("line", "text", "reason"),
    [
        ("prompt=absent.txt", None, "absent.txt: it cannot be read"),
        ("prompt=../own.txt", None, "prompt=../own.txt: give a file in the folder of the pool file"),
        ("prompt=own.txt", "Say hello.", "names a field of the question or {{prompt}}"),
        ("prompt=own.txt", "{{prompt", "the template is broken"),
        ("prompt=own.txt", "{{prompt}} {{hint}}", "names the field 'hint'"),
        ("prompt=own.txt", "{{prompt.__class__.__mro__}}", "the template under prompt fails"),
        ("shots=13", None, "--shots 13: the split"),
        ("temperature=default", None, "temperature=default is for a model behind a server"),
        ("temperature=-1", None, "temperature"),
        ("shots=2", None, "has the name 'alpha', too; add name=ANOTHER"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_in_one_line(
    place: Place, models: Path, line: str, text: str | None, reason: str
) -> None:
    place.task(data={"dev": "dev.jsonl", "held_out": "held_out.jsonl", "shots": "held_out.jsonl"})
    if text is not None:
        place.write("own.txt", text)
    name = "" if "too" in reason else "name=own"
    place.pool(str(models / "alpha"), f"{models / 'alpha'} {name} {line}")
    assert reason in place.refused(*SELECT)


def test_conversations_are_refused_where_a_line_has_its_own_prompt(place: Place, models: Path) -> None:
    place.task(follow_ups=["And {{answer}} more?"])
    place.write("polite.txt", POLITE)
    place.pool(f"{models / 'alpha'} prompt=polite.txt")
    assert "are for questions of one turn" in place.refused(*SELECT)
