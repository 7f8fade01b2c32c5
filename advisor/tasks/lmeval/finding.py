"""A task of lm-eval by its name, or the reason why it cannot be used: known before any of its data is loaded."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from advisor.lm_eval import check_installed
from ensemble.errors import InputError, UniteError

_OUTPUTS = {
    "loglikelihood": "asks for the likelihood of one continuation, and not for an answer",
    "loglikelihood_rolling": "measures the perplexity of texts, and not answers to questions",
}


def find(name: str, folder: Path | None) -> Any:
    """The task, with its data loaded; lm-eval ships no types.

    Args:
        name: As lm-eval calls it.
        folder: Where more of its task files are; those go first.

    Raises:
        InputError: There is no such task, or it cannot be used here.
    """
    check_installed(f"lm_eval:{name}")
    if folder is not None and not folder.is_dir():
        raise InputError(f"--data {folder} is no folder; give the one that your lm-eval task files are in")
    return _loaded(name, None if folder is None else folder.resolve())


@contextmanager
def told(name: str) -> Iterator[None]:
    """Turn whatever lm-eval, `datasets` or a task's own code raises into one line."""
    try:
        yield
    except UniteError:
        raise
    except Exception as error:  # task files may run any code, and lm-eval has no exceptions of its own
        raise InputError(
            f"lm_eval:{name} cannot be loaded: {_reason(error)}; check its file, its data and the network"
        ) from error


def _reason(error: BaseException) -> str:
    """What went wrong, and what that came from: `datasets` says only in the second what is the matter."""
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    parts = [" ".join(str(one).split()).rstrip(".") or type(one).__name__ for one in (error, root)]
    return ": ".join(dict.fromkeys(parts))


@cache
def _loaded(name: str, folder: Path | None) -> Any:
    """Kept, because every split of a run asks for it."""
    # It warns of what task files leave open, and of what it makes of that.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with told(name):
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
            raise InputError(f"lm_eval:{name} is a Python class of its own; tasks of a YAML file can be used")
        if task.multiple_input:
            raise InputError(f"lm_eval:{name} puts its options before the text that is scored; that is not done here")
    return task


def _manager(name: str, folder: Path | None) -> Any:
    from lm_eval.tasks import TaskManager

    if folder is not None:
        # lm-eval's own 14,000 take seconds to index.
        local = TaskManager(include_path=str(folder), include_defaults=False)
        if name in local.task_index:
            return local
    return _everything(folder)


@cache
def _everything(folder: Path | None) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=None if folder is None else str(folder))


def _unknown(name: str, names: list[str], folder: Path | None) -> str:
    near = difflib.get_close_matches(name, names, n=3)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    where = "" if folder is None else f", nor a file below {folder} that it can read and whose `task` is that"
    return f"lm-eval {version('lm_eval')} has no task '{name}'{where}; {guess}`lm_eval ls tasks` lists them"


def _refusal(name: str, entry: Any, manager: Any) -> str | None:
    """Why a task cannot be used, as the end of a sentence; None where it can."""
    from lm_eval.tasks._index import Kind

    if entry.kind in (Kind.GROUP, Kind.TAG):
        some = [f"lm_eval:{task}" for task in sorted(set(_members(name, manager)))[:3]]
        return f"is a group; groups cannot be used, single tasks can{', such as ' if some else ''}{', '.join(some)}"
    if entry.kind is not Kind.TASK:
        return "is a Python class of its own; tasks of a YAML file can be used"
    config: Mapping[str, Any] = entry.cfg or {}
    output = config.get("output_type", "generate_until")
    generation = config.get("generation_kwargs") or {}
    reasons = (
        (config.get("unsafe_code"), "runs code that a model wrote; the task mbpp does that in a process of its own"),
        (
            config.get("doc_to_image") or config.get("doc_to_audio"),
            "shows images or plays sound; only text can be used",
        ),
        (output in _OUTPUTS, f"{_OUTPUTS.get(output, '')}; it cannot be used"),
        (generation.get("do_sample"), "samples its responses; responses are greedy here"),
        (int(config.get("repeats") or 1) > 1, "asks every question several times; once is what can be done here"),
        (
            output == "multiple_choice" and config.get("process_results"),
            "scores options by code of its own, which wants all of their likelihoods; it cannot be used",
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
