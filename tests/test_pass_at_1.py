"""MBPP: what is read from a response, what is run, and only where it is allowed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor import sandbox
from advisor.sandbox import run_program
from advisor.tasks import Task, load_task
from advisor.tasks.metrics import get_metric, runs_code
from advisor.tasks.metrics.pass_at_1 import read_program
from ensemble.errors import InputError

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the benchmark files in ../shared/data")
CODE = "def f(x):\n    return 2 * x\n"
PIECES = ("```", "```python\n", "[BEGIN]", "[DONE]", "\n", "def f():", "    ", "return 1", "~", "`")


@pytest.mark.parametrize(
    "response",
    [
        CODE,
        f"{CODE}[DONE]\n\nYou are an expert",
        f"[BEGIN]\n{CODE}[DONE]",
        f"Here it is:\n\n```python\n{CODE}```\nIt doubles.\n```python\nx = f(2)\n```",
        f"```\n{CODE}```",
        f"```Python\n{CODE}",
        f"```python title=double\n{CODE}```",
        f"First `pip`:\n```bash\npip=1\n```\n```py\n{CODE}```",
        f"```python\nf(2)\n```\n```python\n{CODE}```",
        f"1. So:\n{indent(f'```python{chr(10)}{CODE}```', '   ')}",
        f"{CODE}```\nIt doubles.",
        f"[BEGIN]\n```python\n{CODE}```\n[DONE]",
    ],
)
def test_the_program_is_found_however_it_is_wrapped(response: str) -> None:
    program = read_program(response)
    space: dict[str, Any] = {}
    exec(program or "", space)  # a program of this file, not of a model
    assert space["f"](2) == 4


@pytest.mark.parametrize("response", ["", " \n", "[DONE]", "[BEGIN]\n[DONE] x", "```\n```"])
def test_a_response_without_anything_has_no_program(response: str) -> None:
    assert read_program(response) is None
    assert get_metric("pass_at_1", allow_code_execution=True).score(response, ("pass",), ()) == (0.0, None)


@given(st.text(st.characters()) | st.lists(st.sampled_from(PIECES)).map("".join))
@settings(max_examples=100)
def test_reading_a_program_never_raises(text: str) -> None:
    program = read_program(text)
    assert program is None or program.strip()


@pytest.mark.parametrize("piece", ["```", "```a", "```\n", "[BEGIN]", "a ", "\u0000", "def ", "x ="])
def test_reading_a_long_response_takes_no_long_time(piece: str) -> None:
    import time

    start = time.process_time()
    read_program(piece * (100_000 // len(piece)))
    assert time.process_time() - start < 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record = {"ask": "Double.", "tests": ["assert f(2) == 4", "assert f(3) == 6"]}
    for split in ("dev", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({**record, "ask": split}), encoding="utf-8")
    (tmp_path / "double.yaml").write_text(
        "{name: double, data: {dev: dev.jsonl, held_out: test.jsonl}, prompt: '{{ask}}', reference: '{{tests}}', "
        "metric: pass_at_1}",
        encoding="utf-8",
    )
    return tmp_path


def test_only_a_program_that_passes_all_tests_is_right(folder: Path) -> None:
    task = load_task(folder / "double.yaml", allow_code_execution=True, allow_weak_sandbox=True)
    responses = [CODE, "def f(x): return 4", "def f(x): return x * 2", "f = None"]
    scores = task.score_all([(task.examples[0], response) for response in responses])
    assert [score.value for score in scores] == [1, 0, 1, 0]
    assert scores == [task.score(task.examples[0], response) for response in responses]
    assert scores[0].extracted == CODE


def test_nothing_is_run_unless_it_was_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("a program was run")

    monkeypatch.setattr(sandbox, "run", never)
    monkeypatch.setattr(run_program, "_run", never)
    task = load_task(folder / "double.yaml")
    with pytest.raises(InputError, match=r"^double runs programs .* give --allow-code-execution to take that risk"):
        task.score(task.examples[0], CODE)
    with pytest.raises(InputError, match="--allow-code-execution"):
        task.check_allowed()
    with pytest.raises(InputError, match="allow_code_execution=True"):
        get_metric("pass_at_1").score(CODE, ("pass",), ())


def test_other_tasks_need_no_permission_and_load_no_sandbox(folder: Path) -> None:
    text = (folder / "double.yaml").read_text(encoding="utf-8").replace("pass_at_1", "contains")
    (folder / "double.yaml").write_text(text, encoding="utf-8")
    load_task(folder / "double.yaml").check_allowed()
    assert not runs_code("contains")


def test_what_the_system_does_not_give_is_a_note_of_the_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "gaps", lambda: ("no namespaces",))
    monkeypatch.setattr(sandbox, "check_strong", lambda: None)
    assert load_task(folder / "double.yaml", allow_code_execution=True).notes == ("no namespaces",)
    assert load_task(folder / "double.yaml").notes == ()


WEAK = run_program.Isolation(unprivileged=False, namespaces=False, read_only=False)


def test_a_weak_sandbox_needs_a_permission_with_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_program, "isolation", lambda: WEAK)
    with pytest.raises(InputError, match=r"environment variables \(API keys\) .* set ADVISOR_WEAK_SANDBOX=1"):
        load_task(folder / "double.yaml", allow_code_execution=True)
    task = load_task(folder / "double.yaml", allow_code_execution=True, allow_weak_sandbox=True)
    assert any("can read your environment variables" in note for note in task.notes)


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("x = " + "-" * 50_000 + "1", ".* is nested too deeply"),
        ("x = " + "-" * 5_000 + "1", ".* is nested too deeply"),
        ("assert f(", r"'assert f\(' is not Python"),
    ],
)
def test_a_test_that_cannot_be_read_is_refused_with_its_line(folder: Path, test: str, says: str) -> None:
    (folder / "dev.jsonl").write_text(json.dumps({"ask": "x", "tests": [test]}), encoding="utf-8")
    with pytest.raises(InputError, match=rf"dev\.jsonl:1: the test {says}"):
        load_task(folder / "double.yaml")


@cache
def mbpp(split: str) -> Task:
    return load_task("mbpp", split=split, data_dir=DATA, allow_code_execution=True, allow_weak_sandbox=True)


def records() -> list[dict[str, Any]]:
    lines = (DATA / "mbpp" / "mbpp.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def solutions(task: Task) -> list[str]:
    """The data's own program for each question."""
    code = {record["test_list"][0]: record["code"] for record in records()}
    return [next(code[test] for test in example.accepted if test in code) for example in task.examples]


@needs_data
def test_mbpp_has_the_papers_splits() -> None:
    sizes = {split: len(mbpp(split).examples) for split in ("train", "test", "validation", "dev", "held_out")}
    assert sizes == {"train": 374, "test": 500, "validation": 90, "dev": 300, "held_out": 500}


@needs_data
def test_mbpps_own_solutions_pass_and_those_of_other_tasks_do_not() -> None:
    task = mbpp("test")
    examples = task.examples[:40]
    own = solutions(task)[:40]
    right = task.score_all(list(zip(examples, own, strict=True)))
    assert [score.value for score in right] == [1] * 40
    wrong = task.score_all(list(zip(examples, own[1:] + own[:1], strict=True)))
    assert [score.value for score in wrong] == [0] * 40


@needs_data
def test_the_set_up_code_of_a_task_is_run_between_program_and_tests() -> None:
    task = mbpp("test")
    example, solution = next(
        pair for pair in zip(task.examples, solutions(task), strict=True) if len(pair[0].accepted) == 4
    )
    assert example.accepted[0].startswith("root = Node(1)")
    assert task.score(example, solution).value == 1


@needs_data
def test_mbpps_prompts_and_stop_are_those_of_lm_eval() -> None:
    """Rendered by its own file; its module of helpers is not imported, since that fetches a metric from the hub."""
    lm_eval = pytest.importorskip("lm_eval")
    import ast

    import jinja2
    import yaml

    folder = Path(lm_eval.__file__).parent / "tasks" / "mbpp"
    config = yaml.safe_load((folder / "mbpp.yaml").read_text(encoding="utf-8").replace("!function", ""))
    helpers = ast.parse((folder / "utils.py").read_text(encoding="utf-8"))
    listing = next(n for n in helpers.body if isinstance(n, ast.FunctionDef) and n.name == "list_fewshot_samples")
    assert isinstance(listing.body[0], ast.Return)
    assert listing.body[0].value is not None
    shots = ast.literal_eval(listing.body[0].value)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    ask, answer = (environment.from_string(config[key]) for key in ("doc_to_text", "doc_to_target"))
    prefix = "".join(f"{ask.render(shot)}{answer.render(shot)}\n\n" for shot in shots)
    task = mbpp("test")
    assert [example.prompt for example in task.examples] == [
        prefix + ask.render(record) for record in records() if 11 <= record["task_id"] <= 510
    ]
    assert list(task.stop) == config["generation_kwargs"]["until"]
    assert (config["target_delimiter"], task.shots) == ("", config["num_fewshot"])
