"""The set that a run folder or a saved ensemble names, or models given by hand; and its trace as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from advisor.output.result_json import read_result
from advisor.pool.pool_file import Candidate
from advisor.profile.loader import load_ensemble
from advisor.servers.address import PREFIX, Remote, not_here, remote_of
from ensemble.api import Ensemble
from ensemble.errors import InputError
from ensemble.files import default_cache_dir
from ensemble.models.spec import ChatTemplate, Checkpoint, EnsembleSpec, ModelSpec, Reads, Sides
from ensemble.saved import folder as savedfolder
from ensemble.step.trace import Step
from reports.visible import visible

_SHOWN = 5
"""Candidates of a step that a trace shows."""


def load_chosen(spec: EnsembleSpec, engine: str = "local") -> Ensemble:
    """Load a set.

    Args:
        spec: The set.
        engine: ``local`` for this process; ``ray`` for the cluster that this process has joined.
    """
    return load_ensemble(spec, default_cache_dir(), engine=engine)


def chosen_by_run(run: Path) -> EnsembleSpec:
    """The set in a run folder's ``result.json``, with the task's stop strings and token limit.

    Raises:
        InputError: The folder is not a run folder, its result names no models, or a model is behind a server.
    """
    result = read_result(run)
    members = tuple(_model(candidate) for candidate in candidates_of_run(run))
    try:
        task, ensemble = result["task"], result["ensemble"] or {}
        return EnsembleSpec(
            members,
            ensemble.get("method", "unite"),
            ensemble.get("k", 10),
            max_new_tokens=task["max_new_tokens"],
            stop=tuple(task["stop"]),
        )
    except (KeyError, TypeError) as error:
        raise _incomplete(run, error) from None


def chosen_by_folder(folder: Path, *, trust_remote_code: bool = False, check_files: bool = True) -> EnsembleSpec:
    """The set of a run folder, or of a saved ensemble's folder; see :func:`ensemble.saved.folder.read`.

    Raises:
        InputError: The folder is neither of the two, or cannot be used.
    """
    if not savedfolder.is_saved(folder) or (folder / "result.json").exists():
        return chosen_by_run(folder)
    return savedfolder.read(folder, trust_remote_code=trust_remote_code, check_files=check_files)


def candidates_of_run(run: Path, names: Sequence[str] = ()) -> tuple[Candidate, ...]:
    """Models of a run folder, as they were run.

    Args:
        run: The folder.
        names: Which of its candidates; the chosen set where none is named.

    Raises:
        InputError: The folder is no run folder, or its result does not have these models.
    """
    result, place = read_result(run), str(run / "result.json")
    try:
        sources = result["provenance"]["models"]
        if unknown := next((name for name in names if name not in sources), None):
            raise InputError(f"{place}: it has no candidate {unknown!r}, but {', '.join(sources)}")
        return tuple(_candidate(name, sources[name], place) for name in names or result["selected"])
    except (AttributeError, KeyError, TypeError) as error:
        raise _incomplete(run, error) from None


def _incomplete(run: Path, error: Exception) -> InputError:
    return InputError(
        f"{run / 'result.json'}: it does not say where its models are ({error} is missing), as a run on numbers "
        "does not; give them with --models"
    )


def _candidate(name: str, source: Mapping[str, Any], place: str) -> Candidate:
    template = cast("ChatTemplate", source["chat_template"])
    if "remote" in source:
        return Candidate(name, remote_of(source["remote"], place), place, chat_template=template)
    checkpoint = Checkpoint(
        str(source["path_or_id"]), source["revision"], sides=_sides(source), gguf_file=source.get("gguf_file")
    )
    return Candidate(name, checkpoint, place, source["dtype"], source["device"], template)


def _model(candidate: Candidate) -> ModelSpec:
    if isinstance(candidate.checkpoint, Remote):
        raise InputError(not_here(candidate.name))
    template = candidate.chat_template or "auto"
    device, dtype = candidate.device or "cpu", candidate.dtype or "auto"
    return ModelSpec(candidate.checkpoint, candidate.name, device, dtype, template)


def _sides(source: Mapping[str, str]) -> Sides:
    return Sides(source.get("source"), source.get("target"), cast("Reads | None", source.get("reads")))


def chosen_by_hand(models: Sequence[str]) -> EnsembleSpec:
    """Models given by folder or hub id (``@revision`` may follow an id), the primary first."""
    members = []
    for model in models:
        if model.startswith(PREFIX):
            raise InputError(not_here(model.partition("#")[2] or "a model"))
        folder = Path(model).expanduser()
        path_or_id, _, revision = (model, "", "") if folder.exists() else model.partition("@")
        checkpoint = Checkpoint(path_or_id, revision or None)
        members.append(ModelSpec(checkpoint, checkpoint.name))
    return EnsembleSpec(tuple(members))


def read_prompt(prompt: str) -> str:
    """A prompt as it was given, or standard input where it is ``-``.

    Raises:
        InputError: It is empty, or no Unicode text.
    """
    try:
        text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
        text.encode()
    except UnicodeError as error:
        raise InputError(f"the prompt is not UTF-8 text ({error}); convert it") from None
    if not text:
        raise InputError("the prompt is empty; give a text to continue")
    return text


def trace_lines(steps: Sequence[Step], names: Sequence[str]) -> Iterator[str]:
    """A trace for people to read: for each step what was emitted, and the likeliest of the union."""
    for number, step in enumerate(steps, start=1):
        emitted = "<eos>" if step.data is None else repr(visible(step.data.decode(errors="replace")))
        yield f"step {number}: {emitted}"
        for place in step.likeliest(_SHOWN):
            candidate = step.candidates[place]
            mark = "*" if place == step.chosen else " "
            # Fewer than names where the primary decided alone.
            shares = "  ".join(
                f"{name} {100 * p:5.1f}%" for name, p in zip(names, candidate.probabilities, strict=False)
            )
            wanted = ", ".join(names[n] for n in candidate.wanted_by)
            text = repr(visible(candidate.text))
            yield f"  {mark} {100 * candidate.mean:5.1f}%  {text:16} {shares}   (top k of {wanted})"
