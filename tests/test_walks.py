"""The walks of CONTRIBUTING.md: the files that run for a prompt, a question, a line of a log and a request."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from running_server import serving

from ensemble import Ensemble

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

ROOT = Path(__file__).parents[1]
MARK = "zebra"
PACKAGES = ("advisor", "ensemble", "reports")


def named(walk: str) -> set[str]:
    """The files that a walk names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split(f"**{walk}**", 1)[1]
    return set(re.findall(r"`((?:advisor|ensemble|reports)/[\w/]+\.py)`", re.split(r"\n(?:\*\*|## )", text)[0]))


def holds(value: Any, depth: int = 2) -> bool:
    """Whether a value is a text with the mark, or has one."""
    if isinstance(value, str):
        return MARK in value
    if depth == 0 or value is None or isinstance(value, (int, float, bytes, type)):
        return False
    if isinstance(value, dict):
        return any(holds(each, depth - 1) for each in (*value, *value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(holds(each, depth - 1) for each in value)
    names = getattr(type(value), "__slots__", None) or getattr(value, "__dict__", ())
    return type(value).__module__.partition(".")[0] in PACKAGES and any(
        holds(getattr(value, name, None), depth - 1) for name in names
    )


@contextmanager
def traced(*, marked: bool) -> Iterator[set[str]]:
    """The files of the packages whose functions are called; if `marked`, with the mark in an argument."""
    found: set[str] = set()
    folders = tuple(f"{ROOT / package}/" for package in PACKAGES)

    def note(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(folders) or code.co_name == "<module>":
            return
        file = str(Path(code.co_filename).relative_to(ROOT))
        if file in found or file.startswith("ensemble/common/"):
            return
        arguments = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
        if not marked or any(map(holds, arguments)):
            found.add(file)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def test_a_prompt_goes_the_way_that_the_walk_says(sure: Ensemble) -> None:
    sure.generate(["x"], max_new_tokens=40)  # what is made once is not on the way
    with traced(marked=False) as found:
        sure.generate(["x"], max_new_tokens=40)
    assert found == named("A prompt to its text")


def test_a_question_goes_the_way_that_the_walk_says(place: Place, models: Path) -> None:
    place.task([{"question": f"What is {n} + {n}{f', {MARK}' * (n == 1)}?", "answer": str(n)} for n in range(4)])
    place.pool(*(str(models / name) for name in ("alpha", "beta")))
    with traced(marked=True) as found:
        place.select("--quiet")
    assert found == named("A question to the report")


def test_a_line_of_a_log_goes_the_way_that_the_walk_says(place: Place) -> None:
    for model in "abc":
        lines = [
            {
                "id": n,
                "question": f"{n}?{MARK * (n == 2)}",
                "response": f"It is {n}",
                "reference": str(n if n % 3 else 7),
            }
            for n in range(30)
        ]
        place.write(f"{model}.jsonl", "\n".join(map(json.dumps, lines)))
    with traced(marked=True) as found:
        ran = place.advisor("select", "--logs", ".", "--metric", "contains", "--out", "run", "--quiet")
    assert ran.status == 0, ran.err
    assert found == named("A line of a log to the report")


def test_a_request_goes_the_way_that_the_walk_says(sure: Ensemble) -> None:
    with traced(marked=False) as found, serving(sure) as server, server.client() as client:
        client.completions.create(model="tiny", prompt="x", max_tokens=3)
        found.clear()
        client.completions.create(model="tiny", prompt="y", max_tokens=3)
        request = set(found)
    own = named("A request to its response")
    assert own <= request
    # The text is written as in the first walk.
    assert request - own <= named("A prompt to its text")
