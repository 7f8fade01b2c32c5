"""The same answers of four models as logs of six formats, in the forms that the tests of each format have."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import test_logs_every_eval_ever, test_logs_helm, test_logs_inspect, test_logs_lm_eval

MODELS = {"small": 0.5, "medium": 0.65, "large": 0.75, "other": 0.7}
"""How often each one adds rightly, roughly."""
QUESTIONS = 36


@dataclass(frozen=True)
class Said:
    """What a model said to a question."""

    model: str
    id: int
    answer: str

    @property
    def question(self) -> str:
        """The question."""
        return f"{self.id} + 3?"

    @property
    def right(self) -> str:
        """The reference."""
        return str(self.id + 3)

    @property
    def score(self) -> float:
        """1 if it is right."""
        return float(self.answer == self.right)


def answers(model: str = "") -> list[Said]:
    """All answers, or those of one model."""
    chance = random.Random(1)
    skills = [(number, name, skill) for number in range(QUESTIONS) for name, skill in MODELS.items()]
    said = [
        Said(name, n, str(n + (3 if chance.random() < skill else chance.randint(4, 6)))) for n, name, skill in skills
    ]
    return [one for one in said if model in ("", one.model)]


def pool(folder: Path, *, scored: bool = True) -> None:
    """A pool, without references and scores if it is not scored."""
    lines: dict[int, dict[str, Any]] = {}
    for one in answers():
        line = lines.setdefault(one.id, {"id": one.id, "question": one.question, "models": {}})
        line["models"][one.model] = [one.answer, one.score if scored else None, len(one.answer)]
        line |= {"reference": one.right, "group": "even" if one.id % 2 else "odd"} if scored else {}
    (folder / "sums.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines.values()), encoding="utf-8")


def lm_eval(folder: Path) -> None:
    """A folder for each model."""
    for name in MODELS:
        lines = [
            test_logs_lm_eval.line(
                one.id,
                doc={"question": one.question, "answer": one.right},
                target=one.right,
                resps=[[f"It is {one.answer}."]],
                filtered_resps=[one.answer],
                exact_match=one.score,
            )
            for one in answers(name)
        ]
        (folder / name).mkdir()
        about = {"model_name": f"org/{name}", "config": {"model": "hf"}, "n-samples": {}}
        test_logs_lm_eval.write(folder / name, *lines, results={**test_logs_lm_eval.RESULTS, **about})


def inspect(folder: Path) -> None:
    """A log for each model."""
    for name in MODELS:
        samples = [
            test_logs_inspect.sample(
                one.id,
                input=one.question,
                target=one.right,
                output={"choices": [{"message": {"role": "assistant", "content": one.answer}, "stop_reason": "stop"}]},
                scores={"match": {"value": "C" if one.score else "I", "answer": one.answer}},
                model_usage={f"org/{name}": {"output_tokens": 5}},
            )
            for one in answers(name)
        ]
        about = {**test_logs_inspect.EVAL, "model": f"org/{name}", "dataset": {}, "config": {}}
        (folder / name).mkdir()
        test_logs_inspect.write(folder / name, *samples, header={**test_logs_inspect.HEADER, "eval": about})


def helm(folder: Path) -> None:
    """A run for each model."""
    for name in MODELS:
        states = [
            test_logs_helm.state(
                f"id{one.id}",
                instance={
                    "input": {"text": one.question},
                    "references": [{"output": {"text": one.right}, "tags": ["correct"]}],
                    "split": "test",
                    "id": f"id{one.id}",
                },
                output_mapping=None,
                result={"success": True, "completions": [{"text": one.answer, "tokens": []}], "request_time": 0.5},
            )
            for one in answers(name)
        ]
        stats = [test_logs_helm.stats(f"id{one.id}", exact_match=one.score) for one in answers(name)]
        (folder / name).mkdir()
        adapter = {"method": "generation", "instructions": "Add.", "model": f"org/{name}"}
        spec = {**test_logs_helm.SPEC, "name": f"sums:model=org_{name}", "adapter_spec": adapter}
        run = test_logs_helm.write(folder / name, states, stats, spec)
        state = {"adapter_spec": adapter, "request_states": states}
        (run / "scenario_state.json").write_text(json.dumps(state), encoding="utf-8")


def every_eval_ever(folder: Path) -> None:
    """The instances of all models, and their aggregate."""
    lines = [
        test_logs_every_eval_ever.line(
            f"q{one.id}",
            model_id=f"org/{one.model}",
            input={"raw": one.question, "reference": [one.right]},
            output={"raw": [one.answer]},
            answer_attribution=[{"extracted_value": one.answer}],
            evaluation={"score": one.score, "is_correct": bool(one.score)},
        )
        for one in answers()
    ]
    test_logs_every_eval_ever.write(folder, *lines)


def table(folder: Path) -> None:
    """A row for each answer."""
    with (folder / "sums.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("id", "question", "answer", "model", "response", "score"))
        rows.writerows((one.id, one.question, one.right, one.model, one.answer, one.score) for one in answers())


FORMATS: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (pool, lm_eval, inspect, helm, every_eval_ever, table)
}
