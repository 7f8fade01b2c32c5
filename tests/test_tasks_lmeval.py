"""Tasks of lm-eval: its prompts, stops, options and scores, character for character and number for number."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from advisor.tasks import Task, load_task
from advisor.tasks import lm_eval_tasks as load
from ensemble.errors import InputError

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
ANSWERS = (" It is 12.\n#### 12", " 7", " so #### -3", "", " 1,000 and #### 1,000.", " €5 #### ５", " #### x")

SUMS = {
    "task": "sums",
    "output_type": "generate_until",
    "training_split": "train",
    "fewshot_split": "train",
    "test_split": "test",
    "description": "Add up.\n\n",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "num_fewshot": 2,
    "generation_kwargs": {"until": ["Question:", "</s>"], "do_sample": False, "max_gen_toks": 40},
    "filter_list": [
        {
            "name": "strict-match",
            "filter": [{"function": "regex", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"}, {"function": "take_first"}],
        },
        {
            "name": "flexible-extract",
            "filter": [
                {"function": "regex", "group_select": -1, "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)"},
                {"function": "take_first"},
            ],
        },
    ],
    "metric_list": [
        {
            "metric": "exact_match",
            "aggregation": "mean",
            "higher_is_better": True,
            "ignore_case": True,
            "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
        }
    ],
    "metadata": {"version": 3.0},
}
PALMS = {
    "task": "palms",
    "output_type": "multiple_choice",
    "validation_split": "test",
    "doc_to_text": "{{question}} =",
    "doc_to_choice": "{{options}}",
    "doc_to_target": "{{right}}",
    "target_delimiter": "\t",
    "num_fewshot": 0,
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


def put(folder: Path, config: dict[str, Any], records: dict[str, list[dict[str, Any]]], **changes: Any) -> str:
    """Write a task of lm-eval with its data; its name."""
    files = {split: str(folder / f"{split}.jsonl") for split in records}
    for split, lines in records.items():
        Path(files[split]).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    full = {"dataset_path": "json", "dataset_kwargs": {"data_files": files}, **config, **changes}
    (folder / f"{full['task']}.yaml").write_text(yaml.safe_dump(full), encoding="utf-8")
    return f"lm_eval:{full['task']}"


def sums(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"question": f"{n} + 5?", "answer": f"It is {n} plus 5.\n#### {n + 5}"} for n in range(first, first + count)
    ]


def options(count: int) -> list[dict[str, Any]]:
    # Options that a metric of ours would read as letters, or as the same.
    kinds = (["B", "A"], ["1.0", "10", "100"], ["the palm", "palm"], ["", "none", "none"])
    return [{"question": f"{n}", "options": kinds[n % 4], "right": n % 2} for n in range(count)]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))


@pytest.fixture
def sums_task(tmp_path: Path) -> str:
    return put(tmp_path, SUMS, {"train": sums(1000, 40), "test": sums(0, 30)})


def evaluated(name: str, folder: Path, answers: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Lm-eval's own run of a task with a model that has these answers: its figures, and its samples."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    class Answering(LM):
        def generate_until(self, requests, **_):
            return [answers[request.args[0]] for request in requests]

        def loglikelihood(self, requests, **_):
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    plain = name.removeprefix("lm_eval:")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    done = simple_evaluate(Answering(), tasks=[plain], task_manager=manager, bootstrap_iters=0, log_samples=True)
    return done["results"][plain], done["samples"][plain]


def answer_of(prompt: str) -> str:
    return ANSWERS[hashlib.sha256(prompt.encode()).digest()[0] % len(ANSWERS)]


def test_prompts_and_scores_are_those_of_lm_evals_own_run(sums_task: str, tmp_path: Path) -> None:
    task = load_task(sums_task, split="held_out", data_dir=tmp_path)
    right = {example.prompt: example.accepted[0] for example in task.examples}
    answers = {prompt: right[prompt] if n % 3 == 0 else answer_of(prompt) for n, prompt in enumerate(right)}
    figures, samples = evaluated(sums_task, tmp_path, answers)  # a prompt that it makes otherwise is a KeyError
    for measure in ("strict-match", "flexible-extract"):
        task = load_task(f"{sums_task}:{measure}", split="held_out", data_dir=tmp_path)
        scores = [task.score(example, answers[example.prompt]).value for example in task.examples]
        assert scores == [sample["exact_match"] for sample in samples if sample["filter"] == measure]
        assert sum(scores) / len(scores) == figures[f"exact_match,{measure}"]
        assert 0 < sum(scores) < len(scores)


def test_stops_tokens_and_shots_are_the_tasks(sums_task: str, tmp_path: Path) -> None:
    task = load_task(sums_task, split="held_out", data_dir=tmp_path)
    assert (task.stop, task.max_new_tokens, task.shots) == (("Question:", "</s>"), 40, 2)
    assert (task.metric, task.name) == ("exact_match,strict-match", "lm_eval:sums")
    assert all(example.prompt.startswith("Add up.\n\n") for example in task.examples)
    more = load_task(sums_task, split="held_out", data_dir=tmp_path, shots=4)
    assert more.examples[0].prompt.count("\nAnswer:") == 5


def test_a_limit_takes_the_first_of_a_seeded_order_and_leaves_prompts_as_they_are(
    sums_task: str, tmp_path: Path
) -> None:
    whole = {example.id: example for example in load_task(sums_task, "held_out", tmp_path).examples}
    some = load_task(sums_task, "held_out", tmp_path, limit=7).examples
    more = load_task(sums_task, "held_out", tmp_path, limit=12).examples
    assert more[:7] == some
    assert all(whole[example.id] == example for example in more)
    assert load_task(sums_task, "held_out", tmp_path, limit=7, seed=1).examples != some


def test_dev_is_of_train_and_no_question_of_it_is_among_its_own_demonstrations(sums_task: str, tmp_path: Path) -> None:
    dev, held_out = (load_task(sums_task, split, tmp_path) for split in ("dev", "held_out"))
    assert {example.id.split("-")[0] for example in dev.examples} == {"train"}
    assert len(held_out.examples) == 30
    assert all(example.prompt.count(example.question) == 1 for example in dev.examples)
    left_out = 40 - len(dev.examples)
    assert dev.notes == (f"dev: {left_out} questions left out, which are among their own demonstrations",)


def test_a_question_of_dev_that_recurs_in_test_is_not_held_out(tmp_path: Path) -> None:
    name = put(tmp_path, SUMS, {"train": sums(0, 40), "test": sums(30, 30)})
    held_out = load_task(name, "held_out", tmp_path)
    assert [example.id for example in held_out.examples] == [f"test-{n}" for n in range(10, 30)]


def test_where_there_is_one_split_only_half_of_it_is_dev_and_the_rest_is_held_out(tmp_path: Path) -> None:
    name = put(tmp_path, PALMS, {"test": options(40)})
    dev, held_out = (load_task(name, split, tmp_path) for split in ("dev", "held_out"))
    ids = [{example.id for example in task.examples} for task in (dev, held_out)]
    assert [len(one) for one in ids] == [20, 20]
    assert not ids[0] & ids[1]
    assert dev.notes == ("dev: 20 of the 40 questions that it shares with held_out",)


def test_options_their_delimiter_and_their_scores_are_lm_evals(tmp_path: Path) -> None:
    name = put(tmp_path, PALMS, {"test": options(40)})
    task = load_task(name, "test", tmp_path)
    assert (task.metric, task.delimiter) == ("choice", "\t")
    manager_task = load.find_lm_eval_task("palms", tmp_path)
    for n, example in enumerate(task.examples):
        doc = options(40)[n]
        assert list(example.choices) == doc["options"]
        requests = manager_task.construct_requests(doc=doc, ctx=example.prompt)
        assert [request.args for request in requests] == [
            (example.prompt, f"{task.delimiter}{choice}") for choice in example.choices
        ]
        for best, choice in enumerate(example.choices):
            first = example.choices.index(choice)
            with np.errstate(all="ignore"):  # it divides by the lengths of options, and one here has none
                theirs = manager_task.process_results(doc, [(-float(k != best), False) for k in range(len(requests))])
            if first == best:
                assert task.score(example, choice).value == theirs["acc"]
    assert task.score(task.examples[0], "B").extracted == "A"
    assert task.score(task.examples[0], "neither").value == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unsafe_code": True}, "runs code that a model wrote"),
        ({"output_type": "loglikelihood_rolling"}, "perplexity"),
        ({"output_type": "loglikelihood"}, "likelihood of one text instead of an answer"),
        ({"generation_kwargs": {"until": ["\n"], "do_sample": True, "temperature": 1.0}}, "samples its responses"),
        ({"repeats": 4}, "several times"),
        ({"doc_to_image": "picture"}, "images"),
        ({"metric_list": [{"metric": "bleu", "aggregation": "bleu", "higher_is_better": True}]}, "all questions"),
        ({"metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": False}]}, "lower"),
        ({"training_split": "missing", "fewshot_split": "missing"}, "missing"),
        ({"doc_to_text": "{{nowhere}}"}, "nowhere"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    name = put(tmp_path, SUMS, {"train": sums(100, 30), "test": sums(0, 30)}, **changes)
    with pytest.raises(InputError, match=reason) as raised:
        load_task(name, "dev", tmp_path)
    assert str(raised.value).count("\n") == 0
    assert "lm_eval:sums" in str(raised.value)


def test_data_that_cannot_be_read_is_told_with_its_cause(tmp_path: Path) -> None:
    name = put(tmp_path, SUMS, {"train": sums(100, 30), "test": sums(0, 30)})
    (tmp_path / "train.jsonl").write_text("no JSON\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"lm_eval:sums cannot be loaded: .*JSON"):
        load_task(name, "dev", tmp_path)


def test_a_metric_that_wants_more_than_the_likeliest_option_is_refused(tmp_path: Path) -> None:
    name = put(tmp_path, PALMS, {"test": options(40)})
    with pytest.raises(InputError, match="its metric acc_norm needs more than the likeliest option"):
        load_task(f"{name}:acc_norm", "dev", tmp_path)
    with pytest.raises(InputError, match="neither a metric nor a filter 'f1'; metrics: acc, acc_norm; filters: none"):
        load_task(f"{name}:f1", "dev", tmp_path)


def test_an_unknown_name_gets_near_ones_and_a_group_gets_its_tasks(
    sums_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.tasks import TaskManager

    (tmp_path / "all.yaml").write_text("group: all_sums\ntask: [sums]\n", encoding="utf-8")
    # Instead of lm-eval's own 14,000 tasks, which take seconds to index.
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    monkeypatch.setattr(load, "_manager", lambda *_, **__: manager)
    with pytest.raises(InputError, match=r"has no task 'summs'; did you mean sums"):
        load_task("lm_eval:summs")
    with pytest.raises(InputError, match=r"lm_eval:all_sums is a group; .* such as lm_eval:sums"):
        load_task("lm_eval:all_sums")


def test_splits_and_folders_that_are_not_there_are_named(sums_task: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose among dev, held_out, test, train"):
        load_task(sums_task, "validation", tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        load_task(sums_task, "dev", tmp_path / "nowhere")


def test_shots_of_a_task_that_is_to_have_none_are_refused(tmp_path: Path) -> None:
    name = put(tmp_path, PALMS, {"test": options(40)})
    with pytest.raises(InputError, match="--shots 3: lm_eval:palms has none by its definition"):
        load_task(name, "dev", tmp_path, shots=3)


def test_a_fingerprint_is_the_same_with_new_functions_and_another_after_a_change(
    sums_task: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("def text(doc):\n    return doc['question']\n", encoding="utf-8")

    def loaded(**changes: Any) -> Task:
        put(tmp_path, SUMS, {"train": sums(1000, 40), "test": sums(0, 30)}, **changes)
        with (tmp_path / "sums.yaml").open("a", encoding="utf-8") as file:
            file.write("doc_to_decontamination_query: !function own.text\n")
        load.find_lm_eval_task.cache_clear()
        return load_task(sums_task, "held_out", tmp_path)

    own, again = loaded(), loaded()
    assert again.fingerprint == own.fingerprint
    changed = loaded(description="Add up:\n\n")
    assert changed.fingerprint != own.fingerprint
    assert changed.prompt_digest != own.prompt_digest
    assert ("task", "3.0") in own.versions
