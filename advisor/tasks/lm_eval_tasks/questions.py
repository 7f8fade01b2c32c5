"""The questions of one split of a task of lm-eval, with the prompts that lm-eval makes for them."""

from __future__ import annotations

import json
import logging
import math
import random
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from advisor.tasks.task import Example, Score
from ensemble.errors import InputError

_DEV = 300  # questions of the dev split, as GSM8K's has in the papers
# A split with fewer questions is not used for dev: some have just the demonstrations (MMLU's have five).
_MIN_DEV = 20
_SEED = 1234  # of lm-eval's demonstrations, if the user gives no seed

Doc: TypeAlias = Mapping[str, Any]
"""A record of lm-eval."""


def choose_questions(
    name: str, task: Any, split: str, *, shots: int, limit: int | None, seed: int
) -> tuple[tuple[Example, ...], dict[str, Doc], tuple[str, ...]]:
    """Choose the questions of a split, and make their prompts.

    Returns:
        The questions, lm-eval's record of each by the question's id, and notes on what was left out.
    """
    splits = Splits(name, task)
    notes: list[str] = []
    role = splits.dev if split == "dev" else splits.held_out if split == "held_out" else split
    docs = splits.docs(role)
    order = random.Random(seed).sample(range(len(docs)), len(docs))
    dev = splits.sample(seed)
    if split == "dev":
        places = dev
        if role == splits.held_out:
            notes.append(f"dev: {len(dev)} of the {len(docs)} questions that it shares with held_out")
    elif split == "held_out":
        places = _outside(task, docs, order, limit, splits.texts(dev))
    else:
        places = order
    kept = sorted(places if split == "dev" else places[:limit])
    prompts = dict(zip(kept, _prompts(task, docs, kept, shots, seed), strict=True))
    repeated = {place for place, prompt in prompts.items() if split == "dev" and _repeats(task, docs[place], prompt)}
    if repeated:
        notes.append(f"dev: {len(repeated)} questions left out, which are among their own demonstrations")
    # As for our own tasks: all in the order of the data, or the first of a seeded order.
    usable = prompts.keys() - repeated
    final = [place for place in (kept if limit is None else order) if place in usable][:limit]
    if not final:
        raise InputError(f"lm_eval:{name}: the split '{split}' has no questions; give another split, or fewer --shots")
    if limit is not None and len(final) < limit:
        notes.append(f"{split}: the limit is {limit}, and there are only {len(final)} questions")
    examples = tuple(_example(task, role, place, docs[place], prompts[place]) for place in final)
    return examples, {example.id: docs[place] for example, place in zip(examples, final, strict=True)}, tuple(notes)


class Splits:
    """The role of each of a task's splits."""

    def __init__(self, name: str, task: Any) -> None:
        self._name, self._task = name, task
        config = task.config
        self._readers = {
            config.training_split: task.training_docs,
            config.validation_split: task.validation_docs,
            config.test_split: task.test_docs,
        }
        self._readers.pop(None, None)
        shots = task.fewshot_cfg.split
        if shots is not None:
            self._readers.setdefault(shots, task.fewshot_docs)
        self.held_out: str = config.test_split or config.validation_split
        others = (config.validation_split, config.training_split, shots)
        self.dev: str = next(
            (split for split in others if split not in (None, self.held_out) and len(self.docs(split)) >= _MIN_DEV),
            self.held_out,
        )

    def docs(self, split: str) -> Sequence[Doc]:
        """All records of a split."""
        if split not in self._readers:
            known = ", ".join(sorted({"dev", "held_out", *self._readers}))
            raise InputError(f"--split {split}: lm_eval:{self._name} has no such split; choose among {known}")
        docs: Sequence[Doc] = self._readers[split]()
        return docs

    def sample(self, seed: int) -> list[int]:
        """Places of the dev questions in their split, in a seeded order; at most half of a split that is shared."""
        count = len(self.docs(self.dev))
        most = count // 2 if self.dev == self.held_out else count
        return random.Random(seed).sample(range(count), count)[: min(_DEV, most)]

    def texts(self, places: Sequence[int]) -> set[str]:
        """The texts that identify dev questions."""
        docs = self.docs(self.dev)
        return {_text(self._task, docs[place]) for place in places}


def _outside(task: Any, docs: Sequence[Doc], order: Sequence[int], limit: int | None, taken: set[str]) -> list[int]:
    """Places of questions that are not taken, in the order given, up to the limit."""
    places: list[int] = []
    for place in order:
        if limit is not None and len(places) == limit:
            break
        if _text(task, docs[place]) not in taken:
            places.append(place)
    return places


def _prompts(task: Any, docs: Sequence[Doc], places: Sequence[int], shots: int, seed: int) -> Iterator[str]:
    """The prompts of some questions, in the order of the data."""
    wanted = set(places)
    demonstrations = task.fewshot_docs() if shots else None
    if demonstrations is not None:
        # A new sampler: the task is used for several splits, and a sampler remembers what it has drawn.
        task.sampler = type(task.sampler)(list(demonstrations), rnd=None)
    task.set_fewshot_seed(_SEED + seed)
    same_split = task.fewshot_cfg.split == task.config.test_split
    for place in range(max(places, default=-1) + 1):
        if place in wanted:
            doc = docs[place]
            yield task.fewshot_context(doc, num_fewshot=shots, gen_prefix=task.doc_to_prefix(doc))
        elif shots:
            # lm-eval draws the demonstrations of all questions from one stream of random numbers, so the draws of the
            # questions before this one must be made, too.
            task.sampler.sample(n=shots, eval_doc=docs[place] if same_split else None)


def _example(task: Any, split: str, place: int, doc: Doc, prompt: str) -> Example:
    target = task.doc_to_target(doc)
    choices: tuple[str, ...] = ()
    if task.OUTPUT_TYPE == "multiple_choice":
        choices = tuple(map(str, task.doc_to_choice(doc)))
    if task.config.doc_to_choice is not None:
        texts_of_choices = choices or tuple(map(str, task.doc_to_choice(doc)))
        target = [texts_of_choices[item] if isinstance(item, int) else item for item in _as_list(target)]
    texts = tuple(str(text) for text in _as_list(target))
    reference = texts[0] if len(texts) == 1 else texts
    return Example(f"{split}-{place}", prompt, str(task.doc_to_text(doc)), reference, choices)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _repeats(task: Any, doc: Doc, prompt: str) -> bool:
    """Whether a prompt contains its question more than once."""
    text = str(task.doc_to_text(doc))
    return bool(text.strip()) and prompt.count(text) > 1


def _text(task: Any, doc: Doc) -> str:
    choices = task.doc_to_choice(doc) if task.OUTPUT_TYPE == "multiple_choice" else []
    return json.dumps([str(task.doc_to_text(doc)), *map(str, choices)])


_LOG = logging.getLogger(__name__)
_NO_MATCH = "[invalid]"  # the result of lm-eval's regular expressions if they match nothing


def choose_metric(name: str, task: Any, wanted: str) -> tuple[str, str]:
    """Choose the metric and the filter: those that are wanted, or the first that score each question from 0 to 1."""
    metrics, filters = list(task.aggregation()), [pipeline.name for pipeline in task._filters]
    parts = [part.strip() for part in wanted.split(",") if part.strip()]
    for part in parts:
        if part not in (*metrics, *filters):
            raise InputError(
                f"lm_eval:{name} has neither a metric nor a filter '{part}'; metrics: {', '.join(metrics)}; filters: "
                f"{', '.join(filters)}"
            )
    chosen = next((part for part in parts if part in filters), filters[0])
    problems = {metric: _problem(task, metric, chosen) for metric in metrics}
    for metric in [part for part in parts if part in metrics] or metrics:
        if problems[metric] is None:
            return metric, chosen
        if metric in parts:
            raise InputError(f"lm_eval:{name}: its metric {metric} {problems[metric]}; choose another")
    reasons = "; ".join(f"{metric} {problem}" for metric, problem in problems.items())
    raise InputError(f"lm_eval:{name} has no metric that can be used: {reasons}")


def score_text(
    task: Any, docs: Mapping[str, Doc], metric: str, filter_name: str, example: Example, response: str
) -> Score:
    """Score a written response. A response on which the code of lm-eval or of the task fails is wrong."""
    try:
        value, filtered = _value(task, docs[example.id], response, metric, filter_name)
    except Exception as error:  # noqa: BLE001  # metrics of a task may be any code
        _LOG.debug("%s cannot be scored", example.id, exc_info=error)
        return Score(0.0, None)
    if isinstance(filtered, list):
        filtered = filtered[0] if filtered else None
    extracted = None if filtered is None or filtered == _NO_MATCH else str(filtered)
    # lm-eval's mean of a NaN would be NaN for the whole task.
    return Score(0.0 if math.isnan(value) else min(1.0, max(0.0, value)), extracted)


def score_choice(task: Any, docs: Mapping[str, Doc], example: Example, response: str) -> Score:
    """Score the option that is the likeliest: 1 if lm-eval counts it as right, else 0; the answer is its letter."""
    if response not in example.choices:
        return Score(0.0, None)
    best = example.choices.index(response)
    # lm-eval's code wants all likelihoods. Any numbers that make the same option the likeliest give the same `acc`.
    likelihoods = [(0.0 if place == best else -1.0, False) for place in range(len(example.choices))]
    if "acc_mutual_info" in task.aggregation():
        likelihoods += [(0.0, False)] * len(example.choices)
    import numpy as np

    try:
        # It also divides by the options' lengths, which may be 0.
        with np.errstate(all="ignore"):
            value = task.process_results(docs[example.id], likelihoods)["acc"]
    except Exception as error:  # noqa: BLE001  # as in score_text
        _LOG.debug("%s cannot be scored", example.id, exc_info=error)
        return Score(0.0, None)
    letters = string.ascii_uppercase
    return Score(float(value), letters[best] if best < len(letters) else str(best + 1))


def _problem(task: Any, metric: str, filter_name: str) -> str | None:
    """Why a metric cannot be used, as the end of a sentence; None if it can."""
    from lm_eval.api.metrics import mean

    if task.aggregation()[metric] is not mean:
        return "is a score of all questions together, but a score for each question is needed"
    if not task.higher_is_better().get(metric, True):
        return "is better if it is lower"
    if task.OUTPUT_TYPE == "multiple_choice":
        return None if metric == "acc" else "needs more than the likeliest option"
    doc = task.eval_docs[0]
    # Two responses show whether the metric works at all: one without an answer, and the right one.
    for response in ("", _gold(task, doc)):
        try:
            value = _value(task, doc, response, metric, filter_name)[0]
        except Exception as error:  # noqa: BLE001  # of lm-eval's and of a task's own code
            return f"cannot score a response ({' '.join(str(error).split())})"
        if not 0 <= value <= 1:
            return "is not between 0 and 1"
    return None


def _gold(task: Any, doc: Doc) -> str:
    target = task.doc_to_target(doc)
    if task.config.doc_to_choice is not None and isinstance(target, int):
        target = task.doc_to_choice(doc)[target]
    return str(target[0] if isinstance(target, list) and target else target)


def _value(task: Any, doc: Doc, response: str, metric: str, filter_name: str) -> tuple[float, Any]:
    """The score, and the text that the filters leave of the response."""
    from lm_eval.api.instance import Instance

    instance = Instance("generate_until", doc, ("", {}), 0, (task.task_name, 0, 1), [response])
    next(pipeline for pipeline in task._filters if pipeline.name == filter_name).apply([instance])
    filtered = instance.filtered_resps[filter_name]
    return float(task.process_results(doc, [filtered])[metric]), filtered
