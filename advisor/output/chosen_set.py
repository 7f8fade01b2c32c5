"""The set of models that a command names: in a run folder, in a saved ensemble, or one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from advisor.config import InferenceConfig, check_method
from advisor.output.result_json import read_result
from advisor.pool.checks import check_models
from advisor.pool.pool_file import PoolEntry
from advisor.profile.loader import hush, load_ensemble
from advisor.servers.address import PREFIX, ServerAddress, why_not_decodable
from ensemble.api import Ensemble
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.files import default_cache_dir
from ensemble.methods import DEFAULT, check_distributed, list_methods
from ensemble.models.spec import (
    CHAT_TEMPLATES,
    DTYPES,
    READS,
    ChatTemplate,
    Checkpoint,
    EnsembleSpec,
    ModelSpec,
    Reads,
    Sides,
)
from ensemble.saved import folder as savedfolder


def check_source(options: Mapping[str, Any]) -> None:
    """Raise InputError unless the options name a run folder or models, but not both."""
    if options["models"] and options["run"] is not None:
        raise InputError("give a run folder or --models, not both")
    if not options["models"] and options["run"] is None:
        raise InputError("give a run folder, or --models for each model, the primary first")


def chosen_by_options(options: Mapping[str, Any]) -> EnsembleSpec:
    """The set that the options of ``run`` or ``serve`` name, with the changes that they make. No weights are loaded.

    Args:
        options: The options of the command, by parameter name.

    Raises:
        InputError: An option is out of range, or the set or a model of it cannot be used.
    """
    check_source(options)
    method, k = options["method"], options["k"]
    check_method(method or "unite", 1 if k is None else k)
    inference = InferenceConfig.from_options(options)
    # A value out of range is an error now, not after the minutes that loading the models takes.
    Settings(
        stop=tuple(options["stop"] or ()), temperature=options.get("temperature", 0.0), top_p=options.get("top_p", 1.0)
    )
    if not all(map(is_text, options["stop"] or ())):
        raise InputError("--stop: one of the strings is not UTF-8 text; convert it")
    hush()
    if options["models"]:
        spec = chosen_by_hand(options["models"])
    else:
        spec = chosen_by_folder(
            Path(options["run"]),
            trust_remote_code=options["trust_remote_code"],
            check_files=not options["no_check_files"],
        )
    # An empty list is an option that is not given.
    spec = spec.with_decoding(
        method=method, k=k, max_new_tokens=options["max_new_tokens"], stop=options["stop"] or None
    ).with_loading(device=options["device"], dtype=options["dtype"], chat_template=options["chat_template"])
    if inference.engine == "ray" and len(spec.members) > 1:
        check_distributed(spec.method)
    # Last, with the options applied: a device of the run may be absent here, and --device replaces it.
    check_models(spec.members)
    return spec


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
        InputError: The folder is not a run folder, its result names no models, or a model is on a server.
    """
    result, place = read_result(run), str(run / "result.json")
    members = []
    for entry in candidates_of_run(run):
        # Before anything is contacted: only `evaluate` asks servers, and it wants consent.
        if isinstance(entry.checkpoint, ServerAddress):
            raise InputError(why_not_decodable(entry.name))
        device, dtype, template = entry.device or "cpu", entry.dtype or "auto", entry.chat_template or "auto"
        members.append(ModelSpec(entry.checkpoint, entry.name, device, dtype, template))
    task, ensemble = (_object(result.get(key) or {}, key, place) for key in ("task", "ensemble"))
    methods = [name for name, method in list_methods().items() if method.level != "response"]
    return EnsembleSpec(
        tuple(members),
        _text({"method": DEFAULT, **ensemble}, "method", f"{place}: ensemble", methods),
        _count({"k": 10, **ensemble}, "k", f"{place}: ensemble"),
        max_new_tokens=_count(task, "max_new_tokens", f"{place}: task"),
        stop=_stop_strings(task.get("stop"), f"{place}: task: stop"),
    )


def chosen_by_folder(folder: Path, *, trust_remote_code: bool = False, check_files: bool = True) -> EnsembleSpec:
    """The set of a run folder or of a saved ensemble's folder; see :func:`ensemble.saved.folder.read`.

    Raises:
        InputError: The folder is neither of the two, or cannot be used.
    """
    # A folder that is both counts as a run folder.
    if not savedfolder.is_saved(folder) or (folder / "result.json").exists():
        return chosen_by_run(folder)
    return savedfolder.read(folder, trust_remote_code=trust_remote_code, check_files=check_files)


def candidates_of_run(run: Path, names: Sequence[str] = ()) -> tuple[PoolEntry, ...]:
    """Candidates of a run folder, with the values that the run used.

    Args:
        run: The folder.
        names: The candidates; empty for the chosen set.

    Raises:
        InputError: The folder is not a run folder, or its result lacks one of these models.
    """
    result, place = read_result(run), str(run / "result.json")
    try:
        sources = _object(result["provenance"]["models"], "provenance: models", place)
        if any(not name.isprintable() for name in (*names, *sources)):
            # The pool file accepts no such name, so advisor did not write this one.
            raise InputError(f"{place}: the name of a model has characters that cannot be printed; correct it")
        if unknown := next((name for name in names if name not in sources), None):
            raise InputError(f"{place}: it has no candidate {unknown!r}; its candidates are {', '.join(sources)}")
        # Names of the command line are checked there; those of the file are untrusted.
        chosen = names or result["selected"]
        if not isinstance(chosen, list) or not chosen or not all(isinstance(name, str) for name in chosen):
            raise InputError(f"{place}: selected must be a list of names; run `advisor select` again")
        if len({*chosen}) < len(chosen):
            raise InputError(f"{place}: selected has a name twice; run `advisor select` again")
        return tuple(_entry(name, _object(sources[name], name, place), place) for name in chosen)
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{place}: it does not have the place of its models ({error} is missing), for example because the run "
            "used --profiles; give the models with --models"
        ) from None


def _entry(name: str, source: Mapping[str, Any], place: str) -> PoolEntry:
    inside = f"{place}: {name}"
    template = cast("ChatTemplate", _text(source, "chat_template", inside, CHAT_TEMPLATES))
    if "remote" in source:
        remote = ServerAddress.from_dict(_object(source["remote"], f"{name}: remote", place), inside)
        return PoolEntry(name, remote, place, chat_template=template)
    option = partial(_optional_text, source, place=inside)
    sides = Sides(option("source"), option("target"), cast("Reads | None", option("reads", known=READS)))
    path = _text(source, "path_or_id", inside)
    _check_path(path, inside)
    checkpoint = Checkpoint(path, option("revision"), sides=sides, gguf_file=option("gguf_file"))
    dtype, device = _text(source, "dtype", inside, DTYPES), _text(source, "device", inside)
    return PoolEntry(name, checkpoint, place, dtype, device, template)


def _object(value: object, key: str, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place}: {key} must be a JSON object; run `advisor select` again")
    return value


def _text(values: Mapping[str, Any], key: str, place: str, known: Collection[str] = ()) -> str:
    value = values[key]
    # A hash of a list or an object would raise TypeError, so the type comes first.
    if not isinstance(value, str) or not is_text(value) or not value or (known and value not in known):
        form = f"one of {', '.join(known)}" if known else "a text"
        raise InputError(f"{place}: {key} must be {form}; run `advisor select` again")
    return value


def _optional_text(values: Mapping[str, Any], key: str, *, place: str, known: Collection[str] = ()) -> str | None:
    return None if values.get(key) is None else _text(values, key, place, known)


def _count(values: Mapping[str, Any], key: str, place: str) -> int:
    value = values.get(key)
    # In Python True is an int; torch takes no number above 2**63.
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise InputError(f"{place}: {key} must be a whole number of at least 1; run `advisor select` again")
    return value


def _stop_strings(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each and is_text(each) for each in value):
        raise InputError(f"{place} must be a list of texts that are not empty; run `advisor select` again")
    return tuple(value)


def is_text(value: str) -> bool:
    """Whether UTF-8 can encode it: JSON and arguments may have halves of surrogate pairs. It has no null characters."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _check_path(model: str, place: str) -> None:
    """Raise InputError if the system cannot look for such a path: it is too long, or has ~ with an unknown user."""
    try:
        Path(model).expanduser().exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{place}: {model[:60]!r} cannot be read as a path ({error}); correct it") from None


def chosen_by_hand(models: Sequence[str]) -> EnsembleSpec:
    """Models given by folder or hub id (``@revision`` may follow an id), the primary first."""
    members = []
    for model in models:
        # Said before the text is taken as a hub id, which would end in a message about a missing folder.
        if model.startswith(PREFIX):
            raise InputError(why_not_decodable(model.partition("#")[2] or "a model"))
        _check_path(model, "--models")
        # The path of a folder may contain an @.
        path_or_id, _, revision = (model, "", "") if Path(model).expanduser().exists() else model.partition("@")
        if not path_or_id.strip():
            # An empty path would be the current folder.
            raise InputError(f"--models {model!r}: give a folder or a hub id")
        checkpoint = Checkpoint(path_or_id, revision or None)
        members.append(ModelSpec(checkpoint, checkpoint.name))
    return EnsembleSpec(tuple(members))
