"""Run folders of other people: whatever their ``result.json`` says, a command ends with one line or works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pools import Place

pytest_plugins = ["pools"]

DEEP = "DEEP"


def honest(models: Path) -> dict[str, Any]:
    """What of a result.json decides how its set is loaded."""
    common = {"revision": None, "files": {}, "dtype": "float32", "device": "cpu", "chat_template": "never"}
    return {
        "schema_version": 2,
        "task": {"name": "sums", "metric": "contains", "max_new_tokens": 2, "stop": ["\n"]},
        "selected": ["a", "b"],
        "ensemble": {"method": "unite", "k": 10},
        "candidates": [{"model": "a", "accuracy": 50.0}, {"model": "b", "accuracy": 40.0}],
        "provenance": {
            "models": {
                "a": {"path_or_id": str(models / "alpha"), **common},
                "b": {"path_or_id": str(models / "beta"), **common},
            }
        },
    }


def write(place: Place, models: Path, keys: str = "", value: object = None) -> None:
    """A run folder whose result has another value in one place."""
    result = honest(models)
    *path, last = keys.split("/") if keys else [""]
    part = result
    for key in path:
        part = part[key]
    if keys:
        part[last] = value
    (place.folder / "run").mkdir(exist_ok=True)
    place.write("run/result.json", json.dumps(result).replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000))


MODEL = "provenance/models/a"
ODD = [
    *((f"{MODEL}/path_or_id", value) for value in (7, None, "", "a\0b", "~no-such-user/m", "x" * 5000, "\udc80")),
    *((f"{MODEL}/revision", value) for value in ([], "\0")),
    *((f"{MODEL}/dtype", value) for value in (7, None, "int8", "__class__")),
    *((f"{MODEL}/device", value) for value in (7, None, "meta", "gpu", "cuda:99", "\x1b")),
    *((f"{MODEL}/chat_template", value) for value in (7, "maybe")),
    *((f"{MODEL}/{key}", value) for key in ("source", "target", "reads", "gguf_file") for value in (7, "\0")),
    *((f"{MODEL}/remote", value) for value in ("x", {}, {"address": 7}, {"address": "openai:http://h#m", "x": 1})),
    *((MODEL, value) for value in (None, "x", {})),
    *(("provenance/models", value) for value in (None, [], "ab")),
    *(("provenance", value) for value in (None, "models", DEEP)),
    *(("selected", value) for value in (None, [], "ab", [["a"]], ["a", "a"], ["nobody"], [7], ["\x1b[2J"])),
    *(("task", value) for value in (None, "x", {})),
    *(("task/stop", value) for value in (None, "ab", [7], [""], ["\ud800"])),
    *(("task/max_new_tokens", value) for value in (0, 1.5, "2", True, 10**30, float("nan"))),
    *(("ensemble", value) for value in (7, [1])),
    *(("ensemble/method", value) for value in (7, None, "voting", "../x", "magic\x1b")),
    *(("ensemble/k", value) for value in (0, 1.5, None, True, 10**30)),
    ("schema_version", DEEP),
    ("schema_version", [1]),
]


@pytest.mark.parametrize(("keys", "value"), ODD, ids=lambda value: repr(value)[:30])
def test_an_odd_value_in_a_result_ends_with_one_line(
    place: Place, models: Path, keys: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place, models, keys, value)
    monkeypatch.setattr("ensemble.models.load.load_member", lambda _: pytest.fail("a model was loaded"))
    assert "result.json" in place.refused("run", "run", "Hello") or "device" in keys


def test_an_honest_result_is_run(place: Place, models: Path) -> None:
    write(place, models)
    assert place.advisor("run", "run", "Hello").status == 0


@pytest.mark.parametrize("value", [None, [7], [{"model": []}], [{"model": "a"}], [{"model": "a", "accuracy": "x"}]])
def test_odd_candidates_are_one_line_for_a_method_that_reads_their_accuracy(
    place: Place, models: Path, value: object
) -> None:
    place.task()
    write(place, models, "candidates", value)
    line = place.refused("evaluate", "run", "--task", "task.yaml", "--methods", "deepen-adapt")
    assert "result.json" in line


def test_a_name_that_controls_the_terminal_is_cleaned(place: Place, models: Path) -> None:
    result = honest(models)
    name = "\x1b]0;owned\x07"
    result["provenance"]["models"][name] = result["provenance"]["models"].pop("a")
    result["selected"] = [name, "b"]
    (place.folder / "run").mkdir()
    place.write("run/result.json", json.dumps(result))
    line = place.refused("evaluate", "run", "--task", place.task(), "--members", "x,y")
    assert "candidate" in line
    assert line.isprintable()
    ran = place.advisor("run", "run", "Hello", "--trace")
    assert ran.status == 0 and not {"\x1b", "\x07"} & {*ran.out, *ran.err}


@pytest.mark.parametrize("value", ["[", "[" * 1000, "!!python/name:os.system"])
def test_an_option_of_a_method_that_is_no_yaml_is_one_line(place: Place, models: Path, value: str) -> None:
    place.task()
    write(place, models)
    line = place.refused("evaluate", "run", "--task", "task.yaml", "--methods", "unite", "--set", f"unite.k={value}")
    assert line.startswith("advisor: --set unite.k=")


def test_a_stop_string_that_is_no_text_is_refused(place: Place, models: Path) -> None:
    write(place, models)
    assert "stop: it is not Unicode text" in place.refused("run", "run", "Hello", "--stop", "\udcff")


@pytest.mark.parametrize("model", ["~no-such-user/m", "x" * 5000, "a\0b", "", "@", "\udcff"])
def test_a_model_that_is_no_path_is_one_line(place: Place, model: str) -> None:
    place.refused("run", "--models", model, "Hello")
