"""A run's chosen set as a saved ensemble, with a model card that states the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.output.chosen_set import chosen_by_run
from advisor.output.result_json import read_result
from ensemble.errors import InputError
from ensemble.models.fingerprint import check_unchanged
from ensemble.saved import folder as savedfolder
from ensemble.saved.ensemble_json import Part, Recipe
from ensemble.saved.model_card import model_card
from reports.card import evidence
from reports.read import result as run_result

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


def recipe_of_run(run: Path) -> Recipe:
    """What a run's chosen set is made of, as it was run.

    Raises:
        InputError: The run names no models, or one alone; or a local one has changed since.
    """
    chosen = chosen_by_run(run)
    if len(chosen.models) < 2:
        raise InputError(
            f"{run}: its set is {chosen.models[0].name} alone, which is no ensemble; use that model itself"
        )
    sources = read_result(run)["provenance"]["models"]
    parts = []
    for model in chosen.models:
        place, files = model.checkpoint, {}
        if place.is_local:
            files = dict(sources[model.name].get("files") or {})
            check_unchanged(place, files, since="the run")
            place = place.absolute
        parts.append(Part(place, model.name, model.dtype, model.chat_template, files))
    return Recipe(tuple(parts), chosen.method, chosen.k, max_new_tokens=chosen.max_new_tokens, stop=tuple(chosen.stop))


def export(run: Path, folder: Path, push: str | None, *, private: bool) -> str:
    """Write a run's chosen set into a folder, and push it where that is asked for.

    Returns:
        Where it is: the folder, or the address on the hub.

    Raises:
        InputError: See :func:`recipe_of_run`; the folder has other things in it; a local member cannot be pushed.
        UniteError: The folder cannot be written, or the hub refuses.
    """
    recipe = recipe_of_run(run)
    savedfolder.check_target(folder)
    if push is not None:
        savedfolder.check_pushable(recipe)
    result = run_result.read_result(run / "result.json")
    title = f"An ensemble for {result.task}"
    savedfolder.write(folder, recipe, model_card(recipe, title, evidence(result), _measured(result)))
    return str(folder) if push is None else savedfolder.push(folder, push, private=private)


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
            metric_value=round(run.accuracy, 2),
        ),
    )
