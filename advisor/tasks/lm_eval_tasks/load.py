"""Load one split of a task of lm-eval."""

from __future__ import annotations

import json
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from advisor.tasks.lm_eval_tasks.find import find_lm_eval_task, one_line_errors
from advisor.tasks.lm_eval_tasks.questions import choose_questions
from advisor.tasks.lm_eval_tasks.scoring import choose_metric, score_choice, score_text
from advisor.tasks.task import Signature, Task, fingerprint, sha256
from ensemble.errors import InputError

PREFIX = "lm_eval:"


def load_lm_eval_task(
    name: str, *, split: str, folder: Path | None, shots: int | None, limit: int | None, seed: int
) -> Task:
    """Load one split of a task of lm-eval.

    Args:
        name: ``lm_eval:NAME``; ``:METRIC,FILTER``, or one of the two, may follow.
        split: ``dev``, ``held_out``, or the name of one of the splits that the task uses.
        folder: Folder with more task files of lm-eval, as with its ``--include_path``.
        shots: Demonstrations; None for the task's own number.
        limit: Maximum number of questions, at least 1; None for all.
        seed: Seed of the demonstrations, the dev sample and the limit.

    Raises:
        InputError: lm-eval or the task is missing, or the task cannot be used here.
    """
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
