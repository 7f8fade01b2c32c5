"""Judges: grades and comparisons against figures computed by hand, what is asked again, and what cannot be judged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from servers import Answer, Raw, completion, models, raw_server

from advisor.config import RunConfig

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

SINGLE = {"prompt": "{{question}} | {{response}} | grade"}
PAIRWISE = {"mode": "pairwise", "prompt": "{{question}} | {{response_a}} | {{response_b}}"}
WRITERS = ("short", "medium", "longest")
"""Candidates; each writes its name, so that all responses and all verdicts are known."""
Verdict = Callable[[str], str]


@pytest.fixture
def raw() -> Iterator[Raw]:
    with raw_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ensemble.servers.client.FIRST_PAUSE_S", 0.01)


def serve(raw: Raw, **judges: Verdict) -> None:
    """Candidates that write their names, and judges that say what a function of the prompt says."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if path.endswith("/models"):
            return models(*WRITERS, *judges)
        name, prompt = body["model"], body["prompt"]
        return completion(judges[name](prompt) if name in judges and prompt != "Hello" else name)

    raw.answer = answer


def line(raw: Raw, name: str) -> str:
    return f"openai:{raw.url}#{name} chat_template=never"


def prepare(place: Place, raw: Raw, judge: dict[str, Any], **keys: Any) -> tuple[str, ...]:
    """A task with a judge and a pool of the writers; the arguments of a run."""
    place.task(metric="judge", judge=judge, **keys)
    place.pool(*(line(raw, name) for name in WRITERS))
    return ("--pool", "models.txt", "--task", "task.yaml", "--judge", line(raw, "judge"), "--max-gap", "100")


def asked(raw: Raw, name: str = "judge") -> list[str]:
    """The prompts that a judge got, without those that test whether the model answers."""
    return [body["prompt"] for _, _, body in raw.asked if body.get("model") == name and body["prompt"] != "Hello"]


def result(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place.folder / "run" / "result.json").read_text(encoding="utf-8"))
    return found


def accuracies(place: Place) -> dict[str, float]:
    return {each["model"]: each["accuracy"] for each in result(place)["candidates"]}


def read_config(*arguments: str, **options: Any) -> RunConfig:
    names = [name.removeprefix("--").replace("-", "_") for name in arguments[::2]]
    return RunConfig.from_options({**dict(zip(names, arguments[1::2], strict=True)), **options}, "")


def longer(prompt: str) -> str:
    """The longer response is better."""
    _, first, second = prompt.split(" | ")
    return "[[A]]" if len(first) > len(second) else "[[B]]"


def test_a_grade_is_the_share_of_the_scale_that_the_judge_gives(place: Place, raw: Raw) -> None:
    grades = {"short": 1, "medium": 4, "longest": 10}
    serve(raw, judge=lambda prompt: f"It says [[9]] but I say [[{grades[prompt.split(' | ')[1]]}]].")
    arguments = prepare(place, raw, SINGLE)
    assert place.advisor("select", *arguments, "--out", "run", "--quiet").status == 0
    assert accuracies(place) == pytest.approx({"short": 0, "medium": 100 * 3 / 9, "longest": 100})


def test_a_win_share_is_the_mean_over_all_opponents_in_both_orders(place: Place, raw: Raw) -> None:
    serve(raw, judge=longer)
    arguments = prepare(place, raw, PAIRWISE)
    assert place.advisor("select", *arguments, "--out", "run", "--quiet").status == 0
    # Of three opponents, one of them the response itself, which is a tie.
    assert accuracies(place) == pytest.approx({"short": 100 / 6, "medium": 50, "longest": 500 / 6})
    assert Counter(asked(raw)).most_common(1)[0][1] == 1
    # 12 questions, 3 pairs, 2 orders.
    assert len(asked(raw)) == 12 * 3 * 2
