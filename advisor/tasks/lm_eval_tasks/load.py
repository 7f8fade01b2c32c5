"""Load one split of a task of lm-eval."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from advisor.tasks.lm_eval_tasks import check_installed
from advisor.tasks.lm_eval_tasks.questions import choose_metric, choose_questions, score_choice, score_text
from advisor.tasks.task import Signature, Task, fingerprint, sha256
from ensemble.common.text import did_you_mean
from ensemble.errors import InputError, UniteError

PREFIX = "lm_eval:"


def load_lm_eval_task(
    name: str, *, split: str, folder: Path | None, shots: int | None, limit: int | None, seed: int
) -> Task:
    """Load one split of ``lm_eval:NAME``, as :func:`advisor.tasks.load.load_task` says; `folder` has task files."""
    plain, _, wanted = name.removeprefix(PREFIX).partition(":")
    task = find_lm_eval_task(plain, folder)
    with one_line_errors(plain):
        measure, filter_name = choose_metric(plain, task, wanted)
        count = _shots(plain, task, shots)
        examples, docs, notes = choose_questions(plain, task, split, shots=count, limit=limit, seed=seed)
    by_likelihood = task.OUTPUT_TYPE == "multiple_choice"
    metric = "choice" if by_likelihood else f"{measure},{filter_name}"
    config = json.dumps(task.dump_config(), sort_keys=True, default=_qualified_name)
    # Nothing is generated for options, but a task needs at least one token.
    stop, tokens = ((), 1) if by_likelihood else _ends(task)
    versions = [(package, version(package)) for package in ("unite-advisor", "lm_eval", "datasets")]
    return Task(
        name=f"{PREFIX}{plain}",
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
        signature=Signature(
            task=f"{PREFIX}{plain}",
            metric=metric,
            split=split,
            n=len(examples),
            shots=count,
            seed=seed,
            prompt=sha256(config, count)[:12],
            versions=(*versions, ("task", str(task.VERSION))),
        ),
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


def _ends(task: Any) -> tuple[tuple[str, ...], int]:
    """The stop strings and the maximum number of tokens, as lm-eval reads them."""
    from lm_eval.models.utils import normalize_gen_kwargs

    settings = normalize_gen_kwargs({"do_sample": False, **(task.config.generation_kwargs or {})})
    return tuple(dict.fromkeys(stop for stop in settings["until"] if stop)), int(settings["max_gen_toks"])


def _qualified_name(value: object) -> str:
    # For a function or a class in a task's definition: its repr has an address, which changes from run to run.
    return str(getattr(value, "__qualname__", type(value).__qualname__))


_OUTPUTS = {
    "loglikelihood": "computes the likelihood of one continuation instead of an answer",
    "loglikelihood_rolling": "measures the perplexity of texts instead of answers",
}


def find_lm_eval_task(name: str, folder: Path | None) -> Any:
    """The task, with its data loaded; those of the folder go first. Its type is Any, since lm-eval ships no types."""
    check_installed(f"lm_eval:{name}")
    if folder is not None and not folder.is_dir():
        raise InputError(f"--data {folder} is not a folder; give the folder that holds your lm-eval task files")
    return _load(name, None if folder is None else folder.resolve())


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Turn every error of lm-eval, of `datasets` or of a task's code into one line."""
    try:
        yield
    except UniteError:
        raise
    except Exception as error:  # task files may run any code, and lm-eval has no base class of exceptions
        # `datasets` names the reason only in the error that is the cause of the one it raises.
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        parts = [" ".join(str(part).split()).rstrip(".") or type(part).__name__ for part in (error, root)]
        raise InputError(
            f"lm_eval:{name} cannot be loaded: {': '.join(dict.fromkeys(parts))}; check its file, its data and the "
            "network"
        ) from error


@cache  # every split of a run loads the same task
def _load(name: str, folder: Path | None) -> Any:
    # lm-eval warns of everything that a task file leaves open, in many lines.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with one_line_errors(name):
        manager = _manager(name, folder)
        entry = manager.task_index.get(name)
        if entry is None:
            raise InputError(_unknown(name, manager.all_subtasks, folder))
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


def _manager(name: str, folder: Path | None) -> Any:
    from lm_eval.tasks import TaskManager

    if folder is not None:
        # Without lm-eval's own 14,000 tasks, which take seconds to index.
        local = TaskManager(include_path=str(folder), include_defaults=False)
        if name in local.task_index:
            return local
    return _full_manager(folder)


@cache
def _full_manager(folder: Path | None) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=None if folder is None else str(folder))


def _unknown(name: str, names: list[str], folder: Path | None) -> str:
    where = "" if folder is None else f", and no readable file below {folder} has this name as its `task`"
    guess = did_you_mean(name, names, 3)
    return f"lm-eval {version('lm_eval')} has no task '{name}'{where}; {guess}`lm_eval ls tasks` lists them"


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
        (output in _OUTPUTS, f"{_OUTPUTS.get(output, '')}; it cannot be used"),
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
