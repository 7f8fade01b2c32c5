r"""``lm_eval:NAME``: tasks of an installed lm-eval that give each question a score between 0 and 1.

    >>> load_task("lm_eval:gsm8k:flexible-extract", split="held_out", limit=20)
    Task(name='lm_eval:gsm8k', metric='exact_match,flexible-extract', ...)

lm-eval's code makes the prompts, stops, options and scores. With ``--seed 0`` a prompt is, character for character, the
one that lm-eval makes for that question; another seed draws other demonstrations. A chat template gets the whole prompt
as one message, as with lm-eval's ``--apply_chat_template``, but without system prompts.

The held-out split is the one that lm-eval evaluates on: the task's test split, else its validation split. The dev split
is 300 questions, drawn by seed, of the validation split, else of the training split, else of the split of the
demonstrations, if that has at least 20. Without these, dev is at most half of the test split, and the rest is held out.
Held-out never holds a question of dev, by the question's text. A dev question that is among its own demonstrations is
left out.

Not covered, and refused with the reason: groups of tasks, code that a model wrote (the built-in task ``mbpp`` runs it),
perplexity, metrics of a whole corpus, likelihood per character (``acc_norm``), sampled responses, images and sound.
"""

from __future__ import annotations

import json
import logging
import math
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from advisor.tasks.data_sources import one_line_errors
from advisor.tasks.task import LM_EVAL, Example, Score, Task, fingerprint, sha256
from ensemble.common.extras import check_installed
from ensemble.common.text import did_you_mean
from ensemble.errors import InputError

_WAY_OUT = "check its file and its data"
_DEV = 300  # questions of the dev split, as GSM8K's has in the papers
# A split with fewer questions is not used for dev: some have just the demonstrations (MMLU's have five).
_MIN_DEV = 20
_SEED = 1234  # of lm-eval's demonstrations, if the user gives no seed

Doc: TypeAlias = Mapping[str, Any]
"""A record of lm-eval."""
_LOG = logging.getLogger(__name__)
_NO_MATCH = "[invalid]"  # the result of lm-eval's regular expressions if they match nothing


def load_lm_eval_task(
    name: str, *, split: str, folder: Path | None, shots: int | None, limit: int | None, seed: int
) -> Task:
    """Load one split of ``lm_eval:NAME``, as :func:`advisor.tasks.load.load_task` says; `folder` has task files."""
    plain, _, wanted = name.removeprefix(LM_EVAL).partition(":")
    task = find_lm_eval_task(plain, folder and folder.resolve())
    with one_line_errors(f"{LM_EVAL}{plain}", _WAY_OUT):
        measure, filter_name = choose_metric(plain, task, wanted)
        count = _shots(plain, task, shots)
        examples, docs, notes = choose_questions(plain, task, split, shots=count, limit=limit, seed=seed)
    by_likelihood = task.OUTPUT_TYPE == "multiple_choice"
    metric = "choice" if by_likelihood else f"{measure},{filter_name}"
    # Functions are in it by their source; the repr of other values has an address, which changes from run to run.
    config = json.dumps(task.dump_config(), sort_keys=True, default=lambda value: type(value).__qualname__)
    from lm_eval.models.utils import normalize_gen_kwargs

    ends = normalize_gen_kwargs({"do_sample": False, **(task.config.generation_kwargs or {})})
    stop = () if by_likelihood else tuple(dict.fromkeys(each for each in ends["until"] if each))
    # Nothing is generated for options, but a task needs at least one token.
    tokens = 1 if by_likelihood else int(ends["max_gen_toks"])
    versions = [(package, version(package)) for package in ("unite-advisor", "lm_eval", "datasets")]
    return Task(
        name=f"{LM_EVAL}{plain}",
        metric=metric,
        split=split,
        examples=examples,
        stop=stop,
        max_new_tokens=tokens,
        shots=count,
        seed=seed,
        extract=None,
        notes=notes,
        fingerprint=fingerprint(config, split, examples),
        prompt_digest=sha256(config, count)[:12],
        versions=(*versions, ("task", str(task.VERSION))),
        delimiter=str(task.config.target_delimiter),
        scorer=partial(score_choice, task, docs)
        if by_likelihood
        else partial(score_text, task, docs, measure, filter_name),
    )


def _shots(name: str, task: Any, shots: int | None) -> int:
    default = int(task.config.num_fewshot or 0)
    if shots is None or shots == default:
        return default
    # lm-eval ignores --num_fewshot for a task that says 0. An error is clearer.
    if task.config.num_fewshot == 0:
        raise InputError(f"--shots {shots}: lm_eval:{name} has none by its definition; leave the option out")
    return shots


@cache  # every split of a run loads the same task
def find_lm_eval_task(name: str, folder: Path | None) -> Any:
    """The task, with its data loaded; those of the folder go first. Its type is Any, since lm-eval ships no types."""
    check_installed("lm_eval", f"lm_eval:{name}")
    if folder is not None and not folder.is_dir():
        raise InputError(f"--data {folder} is not a folder; give the folder that holds your lm-eval task files")
    # lm-eval warns of everything that a task file leaves open, in many lines.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with one_line_errors(f"{LM_EVAL}{name}", _WAY_OUT):
        # First without lm-eval's own 14,000 tasks, which take seconds to index.
        manager = _manager(folder, include_defaults=folder is None)
        if name not in manager.task_index:
            manager = _manager(folder, include_defaults=True)
        entry = manager.task_index.get(name)
        if entry is None:
            where = "" if folder is None else f", and no readable file below {folder} has this name as its `task`"
            raise InputError(
                f"lm-eval {version('lm_eval')} has no task '{name}'{where}; "
                f"{did_you_mean(name, manager.all_subtasks, 3)}`lm_eval ls tasks` lists them"
            )
        reason = _refusal(name, entry, manager)
        if reason is not None:
            raise InputError(f"lm_eval:{name} {reason}")
        task = manager.load(name)["tasks"][name]
        from lm_eval.api.task import ConfigurableTask

        if not isinstance(task, ConfigurableTask):
            raise InputError(f"lm_eval:{name} is a Python class; only tasks of a YAML file can be used")
        if task.multiple_input:
            raise InputError(f"lm_eval:{name} puts its options before the text that is scored; choose another task")
    return task


def _manager(folder: Path | None, *, include_defaults: bool) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=None if folder is None else str(folder), include_defaults=include_defaults)


def _refusal(name: str, entry: Any, manager: Any) -> str | None:
    """Why a task cannot be used, as the end of a sentence; None if it can."""
    from lm_eval.tasks._index import Kind

    if entry.kind in (Kind.GROUP, Kind.TAG):
        members = [f"lm_eval:{task}" for task in sorted(set(_members(name, manager)))[:3]]
        return f"is a group; give one of its tasks{', such as ' if members else ''}{', '.join(members)}"
    if entry.kind is not Kind.TASK:
        return "is a Python class; only tasks of a YAML file can be used"
    config: Mapping[str, Any] = entry.cfg or {}
    output = config.get("output_type", "generate_until")
    generation = config.get("generation_kwargs") or {}
    reasons = (
        (config.get("unsafe_code"), "runs code that a model wrote; the built-in task mbpp does that in a sandbox"),
        (
            config.get("doc_to_image") or config.get("doc_to_audio"),
            "has images or sound; only text can be used",
        ),
        (
            output == "loglikelihood",
            "computes the likelihood of one text instead of an answer; it cannot be used",
        ),
        (output == "loglikelihood_rolling", "measures the perplexity of texts instead of answers; it cannot be used"),
        (generation.get("do_sample"), "samples its responses; only greedy responses are supported"),
        (int(config.get("repeats") or 1) > 1, "repeats every question several times; only once is supported"),
        (
            output == "multiple_choice" and config.get("process_results"),
            "scores options by its own code, which needs all of their likelihoods; it cannot be used",
        ),
    )
    return next((reason for applies, reason in reasons if applies), None)


def _members(name: str, manager: Any) -> Iterator[str]:
    """Names of the tasks below a group or a tag, whose members may be groups and tags themselves."""
    from lm_eval.tasks._index import Kind

    entry = manager.task_index.get(name)
    if entry is None:
        return
    if entry.kind is Kind.TASK:
        yield name
        return
    for member in entry.tags if entry.kind is Kind.TAG else (entry.cfg or {}).get("task") or ():
        if isinstance(member, str) and member != name:
            yield from _members(member, manager)


def choose_questions(
    name: str, task: Any, split: str, *, shots: int, limit: int | None, seed: int
) -> tuple[tuple[Example, ...], dict[str, Doc], tuple[str, ...]]:
    """The questions of a split with their prompts, lm-eval's record of each by its id, and notes."""
    readers, config = _readers(task), task.config
    held_out = config.test_split or config.validation_split
    others = (config.validation_split, config.training_split, task.fewshot_cfg.split)
    dev_split = next(
        (each for each in others if each not in (None, held_out) and len(readers[each]()) >= _MIN_DEV), held_out
    )
    notes: list[str] = []
    role = {"dev": dev_split, "held_out": held_out}.get(split, split)
    if role not in readers:
        known = ", ".join(sorted({"dev", "held_out", *readers}))
        raise InputError(f"--split {role}: lm_eval:{name} has no such split; choose among {known}")
    docs, own = readers[role](), readers[dev_split]()
    order = random.Random(seed).sample(range(len(docs)), len(docs))
    # In a seeded order; at most half of a split that is shared.
    most = len(own) // 2 if dev_split == held_out else len(own)
    dev = random.Random(seed).sample(range(len(own)), len(own))[: min(_DEV, most)]
    if split == "dev":
        places = dev
        if role == held_out:
            notes.append(f"dev: {len(dev)} of the {len(docs)} questions that it shares with held_out")
    elif split == "held_out":
        taken = {_text(task, own[place]) for place in dev}
        places = list(islice((place for place in order if _text(task, docs[place]) not in taken), limit))
    else:
        places = order
    kept = sorted(places if split == "dev" else places[:limit])
    prompts = dict(zip(kept, _prompts(task, docs, kept, shots, seed), strict=True))
    texts = {place: str(task.doc_to_text(docs[place])) for place in (prompts if split == "dev" else ())}
    repeated = {place for place, text in texts.items() if text.strip() and prompts[place].count(text) > 1}
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


def _readers(task: Any) -> dict[str, Callable[[], Sequence[Doc]]]:
    """What reads all records of each of a task's splits."""
    config, shots = task.config, task.fewshot_cfg.split
    readers = {
        config.training_split: task.training_docs,
        config.validation_split: task.validation_docs,
        config.test_split: task.test_docs,
    }
    readers.pop(None, None)
    if shots is not None:
        readers.setdefault(shots, task.fewshot_docs)
    return readers


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
    choices = tuple(map(str, task.doc_to_choice(doc))) if task.OUTPUT_TYPE == "multiple_choice" else ()
    texts = _right(task, doc)
    reference = texts[0] if len(texts) == 1 else texts
    return Example(f"{split}-{place}", prompt, str(task.doc_to_text(doc)), reference, choices)


def _right(task: Any, doc: Doc) -> tuple[str, ...]:
    """The right answers of a record; those that are numbers of options as the options' texts."""
    target = task.doc_to_target(doc)
    items = list(target) if isinstance(target, (list, tuple)) else [target]
    if task.config.doc_to_choice is not None:
        choices = task.doc_to_choice(doc)
        items = [choices[item] if isinstance(item, int) else item for item in items]
    return tuple(map(str, items))


def _text(task: Any, doc: Doc) -> str:
    choices = task.doc_to_choice(doc) if task.OUTPUT_TYPE == "multiple_choice" else []
    return json.dumps([str(task.doc_to_text(doc)), *map(str, choices)])


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
    for response in ("", *_right(task, doc)[:1]):
        try:
            value = _value(task, doc, response, metric, filter_name)[0]
        except Exception as error:  # noqa: BLE001  # of lm-eval's and of a task's own code
            return f"cannot score a response ({' '.join(str(error).split())})"
        if not 0 <= value <= 1:
            return "is not between 0 and 1"
    return None


def _value(task: Any, doc: Doc, response: str, metric: str, filter_name: str) -> tuple[float, Any]:
    """The score, and the text that the filters leave of the response."""
    from lm_eval.api.instance import Instance

    instance = Instance("generate_until", doc, ("", {}), 0, (task.task_name, 0, 1), [response])
    next(pipeline for pipeline in task._filters if pipeline.name == filter_name).apply([instance])
    filtered = instance.filtered_resps[filter_name]
    return float(task.process_results(doc, [filtered])[metric]), filtered
