"""A run folder such as `advisor select` writes, made up: six candidates, 300 dev and 100 held-out sums, seeded.

Its result.json, an evaluation.json and figures of judges are recorded (data/report_*.json); its samples.jsonl may have
more or fewer questions.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from advisor.run.folder import Run
from advisor.strategies.schema import strategy_of
from reports import write_report
from reports.report_data import ReportData, report_data

TERSE = {"terse-bytes": 0.79, "terse-pieces": 0.755, "terse-unigram": 0.735}
CANDIDATES = {**TERSE, "steps-bytes": 0.78, "weak-bytes": 0.30}
BROKEN = "broken-pieces"
TRACED = 5
"""Held-out questions whose ensemble response has a trace."""
RULES = {"max_gap": 10.0, "max_length_ratio": 2.0, "max_models": 3}


def write_run(folder: Path, *, dev: int = 300, held_out: int = 100, seed: int = 5) -> Path:
    """Write result.json and samples.jsonl into a folder, and return the folder."""
    return write_samples(write_json(folder, make_result()), make_samples(dev, held_out, seed))


def write_json(folder: Path, result: dict[str, Any], name: str = "result.json") -> Path:
    """Write a file of JSON alone, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(result, indent=2), encoding="utf-8")
    return folder


def write_samples(folder: Path, samples: Sequence[dict[str, Any]]) -> Path:
    """Write samples.jsonl beside a result.json, and return the folder."""
    lines = "".join(json.dumps(sample) + "\n" for sample in samples)
    (folder / "samples.jsonl").write_text(lines, encoding="utf-8")
    return folder


def write_evaluation(folder: Path, evaluation: dict[str, Any]) -> Path:
    """Write an evaluation.json beside a result.json, and return the folder."""
    return write_json(folder, evaluation, "evaluation.json")


def page_of(folder: Path) -> str:
    """Write the report of a folder, and return the page."""
    return write_report(folder).read_text(encoding="utf-8")


def written(folder: Path, result: dict[str, Any]) -> str:
    """Write a result.json alone, and return the page of its report."""
    return page_of(write_json(folder, result))


def read(folder: Path) -> ReportData:
    """What the sections of a folder's report draw from."""
    return report_data(Run.open(folder))


def data_of(page: str) -> dict[str, Any]:
    """The data of the page's script."""
    data: dict[str, Any] = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    return data


class _Words(HTMLParser):
    """The text that a reader sees, styles and scripts left out."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.silent = False

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self.silent = tag in ("style", "script")

    def handle_endtag(self, _tag: str) -> None:
        self.silent = False

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.words.append(data)


def text_of(page: str) -> str:
    """The text of a page, on one line."""
    parser = _Words()
    parser.feed(page)
    return " ".join(" ".join(parser.words).split())


def make_samples(dev: int = 300, held_out: int = 100, seed: int = 5) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    plan = [("dev", index) for index in range(dev)] + [("held_out", index) for index in range(held_out)]
    return [_sample(chance, split, index) for split, index in plan]


def recorded(name: str) -> Any:
    return json.loads((Path(__file__).parent / "data" / f"report_{name}.json").read_text(encoding="utf-8"))


def make_result() -> dict[str, Any]:
    return dict(recorded("result"))


def make_evaluation() -> dict[str, Any]:
    """The evaluation.json of the run's set: methods of each kind, one that was left out, and the control."""
    return dict(recorded("evaluation"))


def _sample(chance: random.Random, split: str, index: int) -> dict[str, Any]:
    start, more, less = chance.randint(12, 40), chance.randint(3, 30), chance.randint(2, 11)
    answer = start + more - less
    person, other = chance.sample(["Mia", "Tom", "Zoe", "Leo", "Ida", "Ben"], 2)
    things = chance.choice(["shells", "coins", "stamps", "beads"])
    prompt = (
        f"Question: {person} has {start} {things}. {person} finds {more} more. {person} gives {less} to {other}. "
        f"How many {things} does {person} have now?\nAnswer:"
    )
    hard = chance.gauss(0, 0.16)
    models = CANDIDATES if split == "dev" else TERSE
    responses, rights = {}, 0
    for model, skill in models.items():
        right = chance.random() < skill - hard
        rights += right
        said = answer if right else answer + chance.choice([-10, -1, 1, 2, 10])
        responses[model] = _response(_text(model, start, more, less, said, chance), answer)
    ensemble = None
    if split == "held_out":
        right = chance.random() < {0: 0.06, 1: 0.6, 2: 0.98, 3: 1.0}[rights]
        ensemble = _response(f"The answer is {answer if right else answer - 1}.", answer)
        ensemble["trace"] = make_trace(ensemble["text"], random.Random(index)) if index < TRACED else None
    return {
        "id": f"{split}-{index}",
        "prompt": prompt,
        "reference": str(answer),
        "split": split,
        "responses": responses,
        "ensemble": ensemble,
    }


def make_trace(text: str, chance: random.Random) -> dict[str, Any]:
    """Make a trace of a response: a step a word, on which the members agree more or less."""
    members = list(TERSE)
    words = re.findall(r"^\S+| \S+", text)
    return {"members": members, "steps": [make_step(word, chance) for word in [*words, None]], "left_out": 0}


def make_step(text: str | None, chance: random.Random) -> dict[str, Any]:
    """Make a step that emits a text: four candidates, and a first choice for each member."""
    shares = [sorted((chance.random() ** 3 for _ in range(4)), reverse=True) for _ in TERSE]
    shares = [[share / sum(own) for share in own] for own in shares]
    for own in shares:
        if chance.random() < 0.3:
            own[0], own[1] = own[1], own[0]
    others = [" so", " is\n", ""]
    return {
        "text": text,
        "won_by": [member for member, own in enumerate(shares) if own[0] == max(own)],
        "disagreement": round(chance.random() ** 2, 4),
        "union": 17,
        "chosen": 0,
        "candidates": [
            {
                "text": candidate,
                "probabilities": [round(own[place], 4) for own in shares],
                "mean": round(sum(own[place] for own in shares) / len(shares), 4),
                "wanted_by": [member for member in range(len(shares)) if place < 3 or member == 1],
            }
            for place, candidate in enumerate([text, *others])
        ],
    }


def _text(model: str, start: int, more: int, less: int, said: int, chance: random.Random) -> str:
    if model == "steps-bytes":
        text = f"{start} + {more} = {start + more}. {start + more} - {less} = {said}. The answer is {said}."
        return text[:38] if chance.random() < 0.04 else text
    if model == "weak-bytes" and chance.random() < 0.2:
        return "The answer is the answer is the answer is"
    return f"The answer is {said}." if model != "terse-unigram" else f"So the answer is {said}."


def _response(text: str, answer: int) -> dict[str, Any]:
    digits = text.rstrip(".").rsplit(" ", 1)[-1]
    extracted = digits if digits.isdigit() and text.endswith(".") else None
    return {
        "text": text,
        "extracted": extracted,
        "score": float(extracted == str(answer)),
        "length": len(text),
        "finish_reason": "eos" if text.endswith(".") else "length",
        "error": None,
    }


def recommend(strategies: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Make the recommendation: the first strategy."""
    if not strategies:
        return None
    best = strategies[0]
    what = strategy_of(best, "", "", to_run=False).describe()
    return {
        **best,
        "method": "unite" if best["strategy"] == "unite" else None,
        "min_gain": 0.0,
        "text": f"{what}.",
    }


def make_judges() -> tuple[dict[str, Any], dict[str, Any]]:
    """``judge`` of a file: of a judge that compares responses, and of one that grades them; each has a second one."""
    compared, graded = recorded("judges")
    return compared, graded
