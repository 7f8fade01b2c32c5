r"""``lm_eval:NAME``: any task of an installed lm-eval that gives each question a score between 0 and 1.

    >>> load("lm_eval:gsm8k:flexible-extract", split="held_out", folder=None, shots=None, limit=20, seed=0)
    Task(name='lm_eval:gsm8k', metric='exact_match,flexible-extract', ...)

Prompts, stops, options and scores are lm-eval's own, made by its code. With ``--seed 0`` a prompt is, character for
character, the one that lm-eval makes for that question by itself; another seed draws other demonstrations.

The held-out split is what lm-eval evaluates on: the task's test split, or validation where it has none. The dev split
is 300 questions, drawn by seed, of the task's validation split, else of its training split, else of that of its
demonstrations, if that has 20 at least; where it has none, of the test split (half of it at most), and the rest is held
out. What is in dev is left out
of held-out, by the text of the question. So are, in dev, questions that are among their own demonstrations.

Not covered: groups of tasks, code that is run (``mbpp`` is a task of our own), perplexity, metrics of a whole corpus,
likelihood per character (``acc_norm``), sampled responses, images and sound. Each is refused with its reason. A chat
template is given the whole prompt as one message, which is what lm-eval does with its ``--apply_chat_template`` but for
system prompts.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from advisor.tasks.lmeval.finding import find, told
from advisor.tasks.lmeval.questions import ask
from advisor.tasks.lmeval.scoring import Likelihood, Written, choose_measure
from advisor.tasks.values import Example, Signature, Task
from ensemble.errors import InputError

PREFIX = "lm_eval:"


def load(name: str, *, split: str, folder: Path | None, shots: int | None, limit: int | None, seed: int) -> Task:
    """Load one split of a task of lm-eval.

    Args:
        name: ``lm_eval:NAME``; ``:METRIC,FILTER``, or one of the two, may follow.
        split: ``dev``, ``held_out``, or the name of one of the splits that the task uses.
        folder: Where more of lm-eval's task files are, as with its ``--include_path``.
        shots: Demonstrations; None for the task's own number.
        limit: Questions, at least 1; None for all.
        seed: Of the demonstrations, the dev sample and the limit.

    Raises:
        InputError: lm-eval is missing, or the task is, or it cannot be used here.
    """
    plain, _, wanted = name.removeprefix(PREFIX).partition(":")
    task = find(plain, folder)
    with told(plain):
        measure = choose_measure(plain, task, wanted)
        count = _shots(plain, task, shots)
        asked = ask(plain, task, split, shots=count, limit=limit, seed=seed)
    by_likelihood = task.OUTPUT_TYPE == "multiple_choice"
    docs = {question.example.id: question.doc for question in asked.questions}
    scorer = Likelihood(task, docs) if by_likelihood else Written(task, docs, measure)
    examples = tuple(question.example for question in asked.questions)
    config = json.dumps(task.dump_config(), sort_keys=True, default=_named)
    stop, tokens = ((), 1) if by_likelihood else _ends(task)
    versions = [(package, version(package)) for package in ("unite-advisor", "lm_eval", "datasets")]
    full = f"{PREFIX}{plain}"
    metric = "choice" if by_likelihood else str(measure)
    return Task(
        name=full,
        metric=metric,
        split=split,
        examples=examples,
        stop=stop,
        max_new_tokens=tokens,
        shots=count,
        seed=seed,
        prefix="",  # demonstrations may differ from question to question
        extract=None,
        notes=asked.notes,
        fingerprint=_sha256(config, split, *map(_identity, examples)),
        signature=Signature(
            task=full,
            metric=metric,
            split=split,
            n=len(examples),
            shots=count,
            seed=seed,
            prompt=_sha256(config, count)[:12],
            versions=(*versions, ("task", str(task.VERSION))),
        ),
        delimiter=str(task.config.target_delimiter),
        scorer=scorer,
    )


def _shots(name: str, task: Any, shots: int | None) -> int:
    own = int(task.config.num_fewshot or 0)
    if shots is None or shots == own:
        return own
    # lm-eval passes over --num_fewshot here; a task that says 0 is not to have any.
    if task.config.num_fewshot == 0:
        raise InputError(f"--shots {shots}: lm_eval:{name} has none by its definition; leave the option out")
    return shots


def _ends(task: Any) -> tuple[tuple[str, ...], int]:
    """Stops, and tokens at most, as lm-eval reads them."""
    from lm_eval.models.utils import normalize_gen_kwargs

    settings = normalize_gen_kwargs({"do_sample": False, **(task.config.generation_kwargs or {})})
    return tuple(dict.fromkeys(stop for stop in settings["until"] if stop)), int(settings["max_gen_toks"])


def _identity(example: Example) -> object:
    return [example.id, example.prompt, example.choices, example.accepted]


def _named(value: object) -> str:
    """A function or a class in a task's definition, without its address in memory."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _sha256(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


__all__ = ["PREFIX", "load"]
