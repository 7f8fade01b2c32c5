"""``advisor run``: one text from the set that a run chose, or from any models."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from advisor.output.result_json import read_result
from advisor.pool.pool_file import Candidate
from advisor.profile.loader import Decoding, FreshLoader, Model, SpreadLoader
from advisor.servers.address import PREFIX, Remote, not_here, remote_of
from ensemble.api import Ensemble
from ensemble.decode.decoder import Generation
from ensemble.errors import InputError
from ensemble.files import default_cache_dir
from ensemble.methods import check_distributed
from ensemble.models.spec import ChatTemplate, Checkpoint, Reads, Sides
from ensemble.saved import folder as savedfolder
from ensemble.step.trace import Step
from reports.visible import visible

_SHOWN = 5
"""Candidates of a step that a trace shows."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Models in order, and how and where they decode together.

    Attributes:
        options: What ``Ensemble`` takes beside method and k.
        engine: ``local`` is this process; with ``ray`` each model is on a node of the cluster that is joined.
    """

    models: tuple[Model, ...]
    method: str = "unite"
    k: int = 10
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "local"

    def but(self, method: str | None, k: int | None, max_new_tokens: int | None, stop: Sequence[str] | None) -> Chosen:
        """The same with what is given in place of its own."""
        return dataclasses.replace(
            self,
            method=method or self.method,
            # Settings are a method's own.
            options=self.options if method in (None, self.method) else {},
            k=self.k if k is None else k,
            max_new_tokens=max_new_tokens or self.max_new_tokens,
            stop=self.stop if stop is None else tuple(stop),
        )

    def loaded_by(self, device: str | None, dtype: str | None, chat_template: str | None) -> Chosen:
        """The same with what is given in place of how each model was loaded."""
        models = tuple(
            dataclasses.replace(
                model,
                device=device or model.device,
                dtype=dtype or model.dtype,
                chat_template=cast("ChatTemplate", chat_template or model.chat_template),
            )
            for model in self.models
        )
        return dataclasses.replace(self, models=models)

    def at(self, engine: str) -> Chosen:
        """The same where an engine runs it.

        Raises:
            InputError: The method needs its members in one process.
        """
        if engine == "ray" and len(self.models) > 1:
            check_distributed(self.method)
        return dataclasses.replace(self, engine=engine)

    def load(self) -> Ensemble:
        """Load the models."""
        loader = SpreadLoader if self.engine == "ray" else FreshLoader
        return loader(default_cache_dir())(self.models, Decoding(self.method, self.k, self.options))


def chosen_by_run(run: Path) -> Chosen:
    """The set that a run folder's ``result.json`` names, as it was run, with the task's stop strings and token limit.

    Raises:
        InputError: The folder is no run folder, its result names no models, or one of them is behind a server.
    """
    result = read_result(run)
    models = tuple(_model(candidate) for candidate in candidates_of_run(run))
    try:
        task, ensemble = result["task"], result["ensemble"] or {}
        return Chosen(
            models,
            ensemble.get("method", "unite"),
            ensemble.get("k", 10),
            task["max_new_tokens"],
            tuple(task["stop"]),
        )
    except (KeyError, TypeError) as error:
        raise _incomplete(run, error) from None


def chosen_by_folder(folder: Path, *, trust_remote_code: bool = False, check_files: bool = True) -> Chosen:
    """The set of a run folder, or of a saved ensemble's; see :func:`ensemble.saved.folder.read`.

    Raises:
        InputError: It is neither, or cannot be used.
    """
    if not savedfolder.is_saved(folder) or (folder / "result.json").exists():
        return chosen_by_run(folder)
    recipe = savedfolder.read(folder, trust_remote_code=trust_remote_code, check_files=check_files)
    models = tuple(
        Model(
            part.name or part.checkpoint.name,
            part.checkpoint,
            "cpu",
            part.dtype,
            part.chat_template,
            savedfolder.quantization_of(part),
        )
        for part in recipe.parts
    )
    weights = {} if recipe.weights is None else {"weights": recipe.weights}
    options = {**recipe.options, **weights}
    return Chosen(models, recipe.method, recipe.k, recipe.max_new_tokens or 256, recipe.stop, options)


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


def _model(candidate: Candidate) -> Model:
    if isinstance(candidate.checkpoint, Remote):
        raise InputError(not_here(candidate.name))
    template = candidate.chat_template or "auto"
    return Model(candidate.name, candidate.checkpoint, candidate.device or "cpu", candidate.dtype or "auto", template)


def _sides(source: Mapping[str, str]) -> Sides:
    return Sides(source.get("source"), source.get("target"), cast("Reads | None", source.get("reads")))


def chosen_by_hand(models: Sequence[str]) -> Chosen:
    """Models given by folder or hub id (``@revision`` may follow an id), the primary first."""
    chosen = []
    for model in models:
        if model.startswith(PREFIX):
            raise InputError(not_here(model.partition("#")[2] or "a model"))
        folder = Path(model).expanduser()
        path_or_id, _, revision = (model, "", "") if folder.exists() else model.partition("@")
        checkpoint = Checkpoint(path_or_id, revision or None)
        chosen.append(Model(checkpoint.name, checkpoint, "cpu", "auto", "auto"))
    return Chosen(tuple(chosen))


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


def pieces(chosen: Chosen, prompt: str, *, temperature: float, top_p: float, seed: int) -> Iterator[str]:
    """The text, piece by piece as it comes."""
    return chosen.load().stream(
        prompt,
        max_new_tokens=chosen.max_new_tokens,
        stop=chosen.stop,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )


def generation(chosen: Chosen, prompt: str, *, temperature: float, top_p: float, seed: int, trace: bool) -> Generation:
    """The whole text, with what happened at each step where asked for."""
    return chosen.load().generate(
        [prompt],
        max_new_tokens=chosen.max_new_tokens,
        stop=chosen.stop,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        trace=trace,
    )[0]


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
