"""The set of models that a command names: in a run folder, in a saved ensemble, or one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.config import InferenceConfig, check_decodes, read_judges
from advisor.options.chosen import ChosenOptions
from advisor.options.on_run import AgainOptions
from advisor.options.shared import CheckJudgeOptions, EngineName, LoadingOptions, ServerOptions
from advisor.runs.result_json import read_result
from advisor.pool.checks import check_device, check_set
from advisor.pool.placement import place_models
from advisor.pool.pool_file import read_line, read_pool
from advisor.pool.quantization import quantization_config
from advisor.profile.loader import silence_libraries, load_ensemble
from advisor.progress import Progress
from advisor.tasks import Task
from ensemble.api import Ensemble
from ensemble.decode.settings import Settings
from ensemble.distributed.engine import check_engine
from ensemble.errors import InputError
from ensemble.common.files import default_cache_dir
from ensemble.methods import DEFAULT
from ensemble.models.spec import Checkpoint, EnsembleSpec, ModelSpec, Sides, resolve_device
from ensemble.saved import folder as savedfolder
from ensemble.servers.address import PREFIX, ServerAddress, why_not_decodable


def chosen_by_options(options: ChosenOptions, chosen: EnsembleSpec | None = None) -> EnsembleSpec:
    """The set that the options of ``run`` or ``serve`` name, with the changes that they make. No weights are loaded.

    Args:
        options: The options of the command.
        chosen: The set, if it is known already.

    Raises:
        InputError: An option is out of range, or the set or a model of it cannot be used.
    """
    inference = check_decoding(options)
    if chosen is not None:
        spec = chosen
    elif options.run is None:
        spec = chosen_by_hand(options.models)
    else:
        spec = chosen_by_folder(
            Path(options.run),
            trust_remote_code=options.trust_remote_code,
            check_files=not options.no_check_files,
            allow_servers=options.allow_server,
            allow_key_env=options.allow_key_env,
        )
    check_servers(spec.members, options, options.run or "--models", is_trusted=options.names_places)
    # An empty list is an option that is not given.
    spec = spec.with_decoding(
        method=options.method,
        k=options.k,
        max_new_tokens=options.max_new_tokens,
        stop=options.stop or None,
    )
    if len(spec.members) > 1:
        check_engine(inference.engine, spec.method, spec.members)
    return replace(spec, members=loaded_as(spec.members, options, inference.engine))


def loaded_as(models: Sequence[ModelSpec], options: ChosenOptions, engine: EngineName = "local") -> tuple[ModelSpec, ...]:
    """The models as the options ``device``, ``dtype`` and ``chat_template`` load them, after they are checked.

    Raises:
        InputError: A model cannot be loaded.
    """
    changed = EnsembleSpec(tuple(models)).with_loading(
        device=options.device, dtype=options.dtype, chat_template=options.chat_template
    ).members
    if (quantization := options.quantization) is not None:
        changed = tuple(replace(model, quantization=quantization_config(quantization)) for model in changed)
    if is_here := engine == "local":
        changed, said = place_models(changed)
        if said is not None:
            Progress().say(said)
        changed = tuple(replace(model, device=resolve_device(model.device or "auto")) for model in changed)
    # With the options applied: a device of the run may be absent here, and --device replaces it.
    check_set(changed, on_this_machine=is_here, of_run=options.device is None)
    return changed


def entries_as(entries: Sequence[ModelSpec], options: LoadingOptions) -> tuple[ModelSpec, ...]:
    """The candidates of a run as the options ``device``, ``dtype`` and ``chat_template`` load them.

    Raises:
        InputError: This machine lacks a device of the run, and no option replaces it.
    """
    names = ("device", "dtype", "chat_template")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
    for entry in entries:
        if entry.device is not None and "device" not in given:
            check_device(f"{entry.place}: {entry.name} ran on another device, which --device replaces", entry.device)
    return tuple(replace(entry, **given) for entry in entries)


def deterministic_as(options: AgainOptions) -> bool:
    """Whether each text is decoded by itself: as the option says, or as in the run if it is not given.

    Raises:
        InputError: The folder is not a run folder.
    """
    given = options.deterministic
    return bool((read_result(options.run).get("provenance") or {}).get("deterministic")) if given is None else given


def check_decoding(options: ChosenOptions) -> InferenceConfig:
    """Check the options of ``run`` or ``serve`` that say how to decode, before a model or a folder is read.

    Raises:
        InputError: An option is out of range.
    """
    check_decodes(options.method or DEFAULT)
    inference = InferenceConfig.from_options(options)
    # A value out of range is an error now, not after the minutes that loading the models takes.
    Settings(stop=options.stop)
    silence_libraries()
    return inference


def load_chosen(spec: EnsembleSpec, engine: str = "local") -> Ensemble:
    """Load a set.

    Args:
        spec: The set.
        engine: ``local`` for this process; ``ray`` for the cluster that this process has joined.
    """
    return load_ensemble(spec, default_cache_dir(), engine=engine)


def chosen_by_run(
    run: Path, names: Sequence[str] = (), method: str | None = None, pool: str | None = None
) -> EnsembleSpec:
    """The set in a run folder's ``result.json``, with the task's stop strings and token limit.

    Args:
        run: The folder.
        names: The members; empty for the chosen set.
        method: How they decode; None for the method of the chosen set.
        pool: A pool file with the places of the models; None for those of the run.

    Raises:
        InputError: The folder is not a run folder, its result names no models, or a model is behind a server that gives
            whole texts only.
    """
    result = read_result(run)
    members = []
    for entry in candidates_of_run(run, names, pool):
        # Before anything is contacted.
        if not entry.can_decode:
            raise InputError(why_not_decodable(entry.name))
        members.append(entry)
    ensemble = result.get("ensemble") or {}
    max_new_tokens, stop = limits_of_run(run)
    decodes = method or ensemble.get("method") or DEFAULT
    # They belong to the set that decoded, and to its method: another one may take none.
    measured = [each.get("model") for each in ensemble.get("members") or ()], ensemble.get("method")
    weights = ensemble.get("weights") if measured == ([each.name for each in members], decodes) else None
    if isinstance(weights, list) and not (len(weights) == len(members) and sum(weights) > 0):
        raise InputError(
            f"{run / 'result.json'}: ensemble: weights should be {len(members)} numbers, one of them above 0; run "
            "`advisor select` again"
        )
    return EnsembleSpec(
        tuple(members),
        decodes,
        ensemble.get("k") or 10,
        tuple(weights) if isinstance(weights, list) else weights,
        max_new_tokens=max_new_tokens,
        stop=stop,
    )


def limits_of_run(run: Path) -> tuple[int | None, tuple[str, ...]]:
    """The token limit of a run's responses, None for responses of logs, and their stop strings.

    Raises:
        InputError: The folder is not a run folder, or its result does not say it.
    """
    result = read_result(run)
    task, from_logs = result.get("task") or {}, bool((result.get("provenance") or {}).get("logs"))
    if task.get("stop") is None or (task.get("max_new_tokens") is None and not from_logs):
        raise InputError(f"{run / 'result.json'}: task has no stop or max_new_tokens; run `advisor select` again")
    return task.get("max_new_tokens"), tuple(task["stop"])


def judges_beside(options: AgainOptions, task: Task) -> tuple[ModelSpec, ...]:
    """The judges that the options name: candidates of a run, or other models by lines as in a pool file.

    Args:
        options: The options of the command.
        task: The task that is judged.

    Raises:
        InputError: A judge is missing, cannot be used, or is behind a server that the user does not allow.
    """
    models = (read_result(options.run).get("provenance") or {}).get("models") or {}
    given = (options.judge, options.check_judge if isinstance(options, CheckJudgeOptions) else None)
    named = [name for name in models if name in given]
    of_run = entries_as(candidates_of_run(options.run, named), options) if named else ()
    check_servers(of_run, options, str(options.run))
    return read_judges(options, of_run, task)


def check_servers(
    models: Sequence[ModelSpec], options: ServerOptions, source: str, *, is_trusted: bool = False
) -> None:
    """Check that the user allows the servers that a folder names, and the variables of their keys.

    Args:
        models: The models, some of which may be behind servers.
        options: The options of the command.
        source: The folder or the option that names the models, for messages.
        is_trusted: Whether the user wrote where they are. A folder may come from other people: it must not decide where
            prompts and keys are sent.

    Raises:
        InputError: A server, or the variable of its key, is not allowed.
    """
    for model in models:
        if not model.checkpoint.is_remote:
            continue
        place = f"{model.place or source}: {model.name}"
        if not is_trusted:
            model.checkpoint.check_consent(options.allow_server, place)
        model.checkpoint.check_key_name(options.allow_key_env, place)


def chosen_by_folder(
    folder: Path,
    *,
    trust_remote_code: bool = False,
    check_files: bool = True,
    allow_servers: Collection[str] = (),
    allow_key_env: Collection[str] = (),
) -> EnsembleSpec:
    """The set of a run folder or of a saved ensemble's folder; see :func:`ensemble.saved.folder.read`.

    Raises:
        InputError: The folder is neither of the two, or cannot be used.
    """
    # A folder that is both counts as a run folder. A strategy that does not decode is refused by the reader.
    is_exported = savedfolder.is_saved(folder) or (folder / savedfolder.STRATEGY_FILE).is_file()
    if not is_exported or (folder / "result.json").exists():
        return chosen_by_run(folder)
    return savedfolder.read(
        folder,
        trust_remote_code=trust_remote_code,
        check_files=check_files,
        allow_servers=allow_servers,
        allow_key_env=allow_key_env,
    )


def candidates_of_run(run: Path, names: Sequence[str] = (), pool: str | None = None) -> tuple[ModelSpec, ...]:
    """Candidates of a run folder, with the values that the run used.

    Args:
        run: The folder.
        names: The candidates; empty for the chosen set.
        pool: A pool file that says where the models are; None for the places of the run.

    Raises:
        InputError: The folder is not a run folder, or its result or the pool file lacks one of these models.
    """
    result, place = read_result(run), str(run / "result.json")
    if pool is not None:
        entries = {entry.name: entry for entry in read_pool(pool)}
        wanted = names or result["selected"]
        if unknown := next((name for name in wanted if name not in entries), None):
            raise InputError(
                f"--pool {pool}: it has no model with the name {unknown!r} of {place}; add name={unknown} to its line"
            )
        return tuple(entries[name] for name in wanted)
    sources = (result.get("provenance") or {}).get("models") or {}
    if sources and (unknown := next((name for name in names if name not in sources), None)):
        raise InputError(f"{place}: it has no candidate {unknown!r}; its candidates are {', '.join(sources)}")
    if missing := next((name for name in names or result["selected"] if name not in sources), None):
        raise InputError(
            f"{place}: it does not have the place of its model {missing}, because the run used --logs or --scores; "
            "`advisor run`, `serve` and `export` take a pool file in which the models have these names: --pool FILE"
        )
    return tuple(_entry(name, sources[name], place) for name in names or result["selected"])


def _entry(name: str, source: Mapping[str, Any], place: str) -> ModelSpec:
    template = source["chat_template"]
    if source.get("remote") is not None:
        remote = ServerAddress.from_dict(source["remote"], f"{place}: {name}")
        return ModelSpec(remote, name, chat_template=template, place=place)
    sides = Sides(source.get("source"), source.get("target"), source.get("reads"))
    _check_path(source["path_or_id"], f"{place}: {name}")
    checkpoint = Checkpoint(
        source["path_or_id"], source.get("revision"), sides=sides, gguf_file=source.get("gguf_file")
    )
    kind = source.get("quantization")
    quantization = None if kind is None else quantization_config(kind)
    return ModelSpec(checkpoint, name, source["device"], source["dtype"], template, quantization, place=place)


def _check_path(model: str, place: str) -> None:
    """Raise InputError if the system cannot look for such a path: it is too long, or has ~ with an unknown user."""
    try:
        Path(model).expanduser().exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{place}: {model[:60]!r} cannot be read as a path ({error}); correct it") from None


def chosen_by_hand(models: Sequence[str]) -> EnsembleSpec:
    """Models given by folder, hub id (``@revision`` may follow an id) or server, the primary first.

    A model behind a server is written as in a pool file: ``openai:http://HOST:PORT/v1#MODEL tokenizer=FOLDER_OR_ID``.
    """
    members = []
    for model in models:
        if model.startswith(PREFIX):
            entry = read_line(model, "--models")
            if not entry.can_decode:
                raise InputError(why_not_decodable(entry.name))
            members.append(entry)
            continue
        _check_path(model, "--models")
        # The path of a folder may contain an @.
        path_or_id, _, revision = (model, "", "") if Path(model).expanduser().exists() else model.partition("@")
        if not path_or_id.strip():
            # An empty path would be the current folder.
            raise InputError(f"--models {model!r}: give a folder or a hub id")
        checkpoint = Checkpoint(path_or_id, revision or None)
        members.append(ModelSpec(checkpoint, checkpoint.name))
    return EnsembleSpec(tuple(members))
