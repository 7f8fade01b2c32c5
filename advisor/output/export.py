"""The chosen set of a run as a saved ensemble, with a model card that states the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.output.chosen_set import chosen_by_run
from advisor.output.result_json import read_result
from ensemble.errors import InputError
from ensemble.models.fingerprint import check_unchanged
from ensemble.models.spec import EnsembleSpec
from ensemble.saved import folder as savedfolder
from ensemble.saved.model_card import model_card
from reports.read import result as run_result
from reports.sections.card import evidence

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


def spec_of_run(run: Path) -> EnsembleSpec:
    """The chosen set of a run, with the hashes of its local models' files.

    Raises:
        InputError: The run names no models, or only one; or a local model has changed since the run.
    """
    spec = chosen_by_run(run)
    if len(spec.members) < 2:
        raise InputError(
            f"{run}: its set has one model, {spec.members[0].name}, which is not an ensemble; use this model alone"
        )
    # The run's hashes, not new ones: the evidence is about the files that the run loaded.
    sources = read_result(run)["provenance"]["models"]
    members = []
    for member in spec.members:
        checkpoint = member.checkpoint
        # A commit pins the files of a hub model; those of a local model can change, so their hashes go along.
        files = dict(sources[member.name].get("files") or {}) if checkpoint.is_local else {}
        if checkpoint.is_local:
            check_unchanged(checkpoint, files, since="the run")
        members.append(replace(member, checkpoint=checkpoint.absolute, files=files))
    return replace(spec, members=tuple(members))


def export(run: Path, folder: Path, push: str | None, *, private: bool) -> str:
    """Write a run's chosen set into a folder as a saved ensemble, and push it to the hub on request.

    Returns:
        The folder, or the address on the hub.

    Raises:
        InputError: See :func:`spec_of_run`; the folder has other files; or a local member cannot be pushed.
        UniteError: The folder cannot be written, or the hub refuses.
    """
    spec = spec_of_run(run)
    # Checked before the card is made: everything that can be refused is refused before a file is written.
    savedfolder.check_target(folder)
    if push is not None:
        savedfolder.check_pushable(spec)
    result = run_result.read_result(run / "result.json")
    card = model_card(spec, f"An ensemble for {result.task}", evidence(result), _measured(result))
    return savedfolder.save(spec, folder, push, private=private, card=card) or str(folder)


def _measured(result: run_result.Result) -> Sequence[EvalResult]:
    """The ensemble's accuracy for the card's metadata; nothing where it was not run on held-out questions."""
    from huggingface_hub import EvalResult

    run = result.ensemble
    if run is None or run.accuracy is None:
        return ()
    return (
        EvalResult(
            task_type="text-generation",
            dataset_type=result.task,
            dataset_name=result.task,
            dataset_split=run.split,
            metric_type=result.metric,
            metric_name=f"{result.metric}, points of 100, on {run.n} held-out questions",
            # The hub compares numbers as they are shown; more digits would claim more than n questions tell.
            metric_value=round(run.accuracy, 2),
        ),
    )
