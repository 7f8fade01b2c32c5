"""Our scores beside lm-eval's, for the same question and the same response, on the real references.

Where the two differ, it is one of QUIRKS, and docs/tasks.md says so too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from advisor.tasks import load_task
from advisor.tasks.metrics import get_metric

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
DATA = Path(__file__).parents[2] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the benchmark files in ../shared/data")
PAGE = Path(__file__).parents[1] / "docs" / "tasks.md"
EVERY = 25  # references of a task that are tried in all wordings


class Pair(NamedTuple):
    """A task of ours and one of lm-eval's."""

    split: str  # of ours
    file: str  # of ../shared/data
    config: str  # of lm-eval, as the filter
    record: Callable[[dict[str, Any]], dict[str, Any]]  # from a record of the file to lm-eval's
    filter: str


PAIRS = {
    "gsm8k": Pair("test", "gsm8k/test.jsonl", "gsm8k/gsm8k.yaml", dict, "flexible-extract"),
    "triviaqa": Pair(
        "test",
        "triviaqa/test_wikipedia_6000.jsonl",
        "triviaqa/default.yaml",
        lambda record: {**record, "answer": {"aliases": record["answer"]}},
        "remove_whitespace",
    ),
    "nq_open": Pair("validation", "nq_open/test_NQ-open.dev.jsonl", "nq_open/nq_open.yaml", dict, "remove_whitespace"),
    **{
        f"bbh:{name}": Pair("test", f"bbh/tasks/{name}.json", f"bbh/fewshot/{name}.yaml", dict, "none")
        for name in ("boolean_expressions", "dyck_languages", "multistep_arithmetic_two", "snarks", "word_sorting")
    },
}
NUMBERS = (
    "{a}", " {a}", "The answer is {a}.", "#### {a}", "#### {a}.\n", "#### {a}\nSo.", "so ${a}", "(${a})",
    "= {a} dollars", "{a} apples.", "€{a}", "It costs ${a:,}.", "**{a}**", "\\boxed{{{a}}}", "{a}%",
    "-{a}", "-${a}", "#### -{a}", "3, 4, {a}", "5 + 2? No, {a}!", "答案是{a}。", "x={a}", "{a},",
    "{a}\u202f", "{a}/7", "half of it is {a}.5", "{a} or 4", "",
    "none", "\u3000",
)  # fmt: skip
WORDS = (
    "{a}", " {a}", "{a}.", "{a}\n", '"{a}"', "{a}!", "({a})", "{a},", " {a}\u00a0", "\t{a}?", "It is {a}",
    "{a} or so", "“{a}”", "{a} a", "", "?!", "{a}, or not", "{a} {a}", "never 1 of 2", "Ünïcödé 東京",
)  # fmt: skip
LETTERS = ("{a}",)
"""BBH's answers are compared as they stand by lm-eval, so any other wording of a right one is a quirk."""
WRONG = ("It is {a}", "{a} or so", "", "?!", "{a}, or not", "no")


QUIRKS = [
    line.replace("⏎", "\n").replace("␀", "\0").split("\t")
    for line in (Path(__file__).parent / "data" / "quirks.tsv").read_text(encoding="utf-8").split("\n")[:-1]
]
"""What lm-eval scores otherwise, on purpose: the task, the reference, the response, lm-eval's score, ours, and why."""


@cache
def records(name: str) -> list[dict[str, Any]]:
    text = (DATA / PAIRS[name].file).read_text(encoding="utf-8")
    if name.startswith("bbh:"):
        return list(json.loads(text)["examples"])
    return [json.loads(line) for line in text.split("\n") if line]


def built(config: str, questions: list[dict[str, Any]], shots: list[dict[str, Any]] | None = None) -> Any:
    """A task of lm-eval as its file says, over our records instead of the hub's."""
    import lm_eval.tasks
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    content = load_yaml(Path(lm_eval.tasks.__file__).parent / config)
    names = {content.get(key) for key in ("training_split", "validation_split", "test_split", "fewshot_split")} - {None}
    data = dict.fromkeys(names, Dataset.from_list(questions))
    if shots is not None:
        data[content.get("fewshot_split") or "train"] = Dataset.from_list(shots)
    return ConfigurableTask(config={**content, "metadata": None, "custom_dataset": lambda **_: data})


@cache
def their_task(name: str) -> Any:
    return built(PAIRS[name].config, [PAIRS[name].record(records(name)[0])])


def their_score(name: str, record: dict[str, Any], response: str) -> float:
    from lm_eval.api.instance import Instance

    pair, task = PAIRS[name], their_task(name)
    instance = Instance("generate_until", record, ("", {}), 0, (name, 0, 1), [response])
    next(one for one in task._filters if one.name == pair.filter).apply([instance])
    return float(task.process_results(record, [instance.filtered_resps[pair.filter]])["exact_match"])


def wordings(name: str, answer: str) -> list[str]:
    if name == "gsm8k":
        return [form.format(a=int(answer.replace(",", ""))) for form in NUMBERS]
    return [form.format(a=answer) for form in (LETTERS + WRONG if name.startswith("bbh:") else WORDS)]


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_response_has_the_score_that_lm_eval_gives_it(name: str) -> None:
    task = load_task(name, split=PAIRS[name].split, data_dir=DATA, shots=0)
    pairs = list(zip(task.examples, records(name), strict=True))
    right = tried = 0
    for example, record in pairs[:: len(pairs) // EVERY]:
        theirs = PAIRS[name].record(record)
        for response in [form for answer in example.accepted[:3] for form in wordings(name, answer)]:
            score = task.score(example, response).value
            assert score == their_score(name, theirs, response), (example.accepted, response)
            right, tried = right + int(score), tried + 1
    assert 0.1 < right / tried < 0.9


@pytest.mark.parametrize(("task", "reference", "response", "theirs", "ours", "why"), QUIRKS)
def test_where_lm_eval_scores_otherwise_both_scores_are_known_and_the_reason_is_told(
    task: str, reference: str, response: str, theirs: str, ours: str, why: str
) -> None:
    form: dict[str, dict[str, Any]] = {
        "gsm8k": {"question": "?", "answer": f"So.\n#### {reference}"},
        "triviaqa": {"question": "?", "answer": {"aliases": [reference, "some longer alias"]}},
        "nq_open": {"question": "?", "answer": [reference]},
    }
    record = form.get(task, {"input": "?", "target": reference})
    metrics = {"gsm8k": "number", "triviaqa": "exact_match_squad", "nq_open": "exact_match_squad"}
    score = get_metric(metrics.get(task, "exact_match")).score(response, (reference,), ())[0]
    assert (their_score(task, record, response), score) == (float(theirs), float(ours))
    assert why in PAGE.read_text(encoding="utf-8")


class Published(NamedTuple):
    """A choice task of ours, and how lm-eval has it; the fields are those of Pair."""

    file: str
    config: str
    record: Callable[[dict[str, Any]], dict[str, Any]]
    shots: int  # demonstrations, of the file of this subject
    measure: str  # of lm-eval


def _mmlu(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "question": record["question"],
        "choices": [record[letter] for letter in "ABCD"],
        "answer": "ABCD".index(record["answer"]),
    }


def _arc(record: dict[str, Any]) -> dict[str, Any]:
    letters = [letter for letter in "ABCDE" if record.get(letter)]
    return {
        "question": record["question"],
        "choices": {"text": [record[letter] for letter in letters], "label": letters},
        "answerKey": record["answer"],
    }


def _piqa(record: dict[str, Any]) -> dict[str, Any]:
    return {"goal": record["question"], "sol1": record["A"], "sol2": record["B"], "label": "AB".index(record["answer"])}


PUBLISHED = {
    **{
        f"mmlu:{subject}": Published(
            f"mmlu/{{split}}/{subject}.jsonl", f"mmlu/default/mmlu_{subject}.yaml", _mmlu, 5, "acc"
        )
        for subject in ("anatomy", "high_school_us_history")
    },
    "arc_challenge": Published("arc_challenge/test.jsonl", "arc/arc_challenge.yaml", _arc, 0, "acc_norm"),
    "arc_challenge:texts": Published("arc_challenge/test.jsonl", "arc/arc_challenge.yaml", _arc, 0, "acc"),
    "piqa": Published("piqa/dev_our.jsonl", "piqa/piqa.yaml", _piqa, 0, "acc_norm"),
    "piqa:texts": Published("piqa/dev_our.jsonl", "piqa/piqa.yaml", _piqa, 0, "acc"),
}


def _records(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / file).read_text(encoding="utf-8").split("\n") if line]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_choice_task_has_lm_evals_prompts_options_and_scores(name: str) -> None:
    """Each question: the same prompt with shots, the same texts to score, and the same score for random likelihoods."""
    from lm_eval.api.task import ConfigurableTask

    published = PUBLISHED[name]
    split = "validation" if name.startswith("piqa") else "test"
    ours = load_task(name, split=split, data_dir=DATA)
    records = {f"{split}-{n}": record for n, record in enumerate(_records(published.file.format(split="test")))}
    # The others are among the shots, or have no options in this copy of the data.
    kept = [published.record(records[example.id]) for example in ours.examples]
    assert len(records) - len(kept) <= 22
    shots = [published.record(record) for record in _records(published.file.format(split="dev"))[: published.shots]]
    theirs: ConfigurableTask = built(published.config, kept, shots or kept)
    theirs.set_config(key="num_fewshot", value=published.shots)
    theirs.build_all_requests()
    requests: dict[int, list[tuple[str, str]]] = {}
    for instance in theirs.instances:
        requests.setdefault(instance.doc_id, []).append(instance.args)
    random = np.random.default_rng(0)
    for n, example in enumerate(ours.examples):
        logprobs = list(-random.exponential(20, len(example.choices)))
        assert requests[n] == [(example.prompt, text) for text in ours.continuations(example)]
        with np.errstate(all="ignore"):
            wanted = theirs.process_results(kept[n], [(value, False) for value in logprobs])[published.measure]
        assert ours.score(example, ours.likeliest(example, logprobs)).value == wanted
