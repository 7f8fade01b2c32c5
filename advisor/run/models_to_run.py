"""The models that a command names, in a run folder, in a saved ensemble, or one by one, made ready to be loaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from advisor.models.fit import check_device, check_set, place_models
from advisor.models.loaded_models import load_ensemble, silence_libraries
from advisor.models.pool_file import check_pinned, read_line, read_pool
from advisor.models.run_config import InferenceConfig, check_decodes, read_judges
from advisor.options.finished_run import RerunOptions
from advisor.options.production import ChosenOptions
from advisor.options.shared import LoadingOptions, ServerOptions
from advisor.progress import Progress
from advisor.run.folder import Run
from advisor.run.result import ModelSource
from advisor.tasks import Task
from ensemble.api import Ensemble
from ensemble.common.files import default_cache_dir
from ensemble.common.garbage import keep_present
from ensemble.common.pool_option import given_by
from ensemble.common.schema import is_usable
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.methods import DEFAULT, check_members, list_methods
from ensemble.models.served_task import ServedTask
from ensemble.models.spec import THINK, Checkpoint, EnsembleSpec, ModelSpec, resolve_device
from ensemble.saved import folder as savedfolder
from ensemble.servers.address import PREFIX, read_address, why_not_decodable

RUN_AGAIN = "run `advisor select` again"


def chosen_by_options(options: ChosenOptions, chosen: EnsembleSpec | None = None) -> EnsembleSpec:
    """The set that the options of ``run`` or ``serve`` name, with the changes that they make. No weights are loaded."""
    check_decoding(options)
    if chosen is not None:
        spec = chosen
    elif options.run is None:
        spec = chosen_by_hand(options.models, options.trust_remote_code)
    else:
        spec = chosen_by_folder(
            Path(options.run),
            trusted=options.trust_remote_code,
            check_files=not options.no_check_files,
            allow_servers=options.allow_server,
        )
    check_servers(spec.members, options, options.run or "--models", is_trusted=options.names_places)
    # An empty list is an option that is not given.
    spec = spec.with_decoding(
        method=options.method,
        k=options.k,
        options=None if options.think is None else {THINK: options.think},
        max_new_tokens=options.max_new_tokens,
        stop=options.stop or None,
    )
    if len(spec.members) > 1:
        check_members(spec.method, spec.members)
    return replace(spec, members=loaded_as(spec.members, options))


def loaded_as(models: Sequence[ModelSpec], options: ChosenOptions) -> tuple[ModelSpec, ...]:
    """The models as the options ``device``, ``dtype`` and ``chat_template`` load them, after they are checked."""
    changed, said = place_models(_loaded_by(models, options))
    if said is not None:
        Progress().say(said)
    changed = tuple(replace(model, device=resolve_device(model.device or "auto")) for model in changed)
    # With the options applied: a device of the run may be absent here, and --device replaces it.
    check_set(changed, of_run=options.device is None)
    return changed


def entries_as(entries: Sequence[ModelSpec], options: LoadingOptions) -> tuple[ModelSpec, ...]:
    """The candidates of a run as the options ``device``, ``dtype`` and ``chat_template`` load them."""
    for entry in entries:
        if entry.device is not None and options.device is None:
            check_device(f"{entry.place}: {entry.name} ran on another device, which --device replaces", entry.device)
    return _loaded_by(entries, options)


def _loaded_by(models: Sequence[ModelSpec], options: LoadingOptions) -> tuple[ModelSpec, ...]:
    spec = EnsembleSpec(tuple(models))
    return spec.with_loading(device=options.device, dtype=options.dtype, chat_template=options.chat_template).members


def check_decoding(options: ChosenOptions) -> None:
    """Check the options of ``run`` or ``serve`` that say how to decode, before a model or a folder is read."""
    check_decodes(options.method or DEFAULT)
    InferenceConfig.from_options(options)
    # A value out of range is an error now, not after the minutes that loading the models takes.
    Settings(stop=options.stop)
    silence_libraries()


def load_chosen(spec: EnsembleSpec) -> Ensemble:
    """Load a set."""
    ensemble = load_ensemble(spec, default_cache_dir())
    keep_present()
    return ensemble


def chosen_by_run(
    run: Run,
    names: Sequence[str] = (),
    method: str | None = None,
    pool: str | None = None,
    trusted: Collection[str] = (),
) -> EnsembleSpec:
    """The set in a run folder's ``result.json``, or one of other candidates, with the task's stop strings and limit."""
    members = []
    for entry in candidates_of_run(run, names, pool, trusted):
        # Before anything is contacted.
        if not entry.can_decode:
            raise InputError(why_not_decodable(entry.name))
        members.append(entry)
    measured, think = run.result.ensemble, run.result.rules.think
    max_new_tokens, stop = limits_of_run(run)
    if measured is not None and measured.k is None:
        raise InputError(f"{run.place}: ensemble.k should be a whole number of at least 1; {RUN_AGAIN}")
    decodes = method or (measured.method if measured else DEFAULT)
    if decodes not in list_methods() or list_methods()[decodes].level == "response":
        raise InputError(f"{run.place}: ensemble.method should be an installed method that decodes; {RUN_AGAIN}")
    if len(members) == 1 and any(each.model == members[0].name and each.thinks for each in run.result.candidates):
        # Its answers were read behind its thinking.
        think = "apart"
    # They belong to the set that decoded, and to its method: another one may take none.
    names = [each.name for each in members]
    is_measured = measured is not None and measured.method == decodes and [m.model for m in measured.members] == names
    weights = measured.weights if measured is not None and is_measured else None
    if isinstance(weights, tuple) and not (len(weights) == len(members) and sum(weights) > 0):
        raise InputError(
            f"{run.place}: ensemble.weights should be {len(members)} numbers, one of them above 0; {RUN_AGAIN}"
        )
    return EnsembleSpec(
        tuple(members),
        decodes,
        (measured.k if measured else None) or 10,
        weights,
        {THINK: think} if think is not None and list_methods()[decodes].level == "token" else {},
        max_new_tokens,
        stop,
        task=task_of_run(run),
    )


def task_of_run(run: Run) -> ServedTask | None:
    """How a run made its prompts and read its answers; None where only the tool knows that wrote its logs."""
    result, task = run.result, run.result.task
    if result.provenance.logs and result.provenance.scoring is None:
        return None
    return ServedTask(metric=task.metric, extract=task.extract, template=task.template)


def limits_of_run(run: Run) -> tuple[int | None, tuple[str, ...]]:
    """The token limit of a run's responses, None for responses of logs, and their stop strings."""
    task, from_logs = run.result.task, bool(run.result.provenance.logs)
    if task.stop is None or (task.max_new_tokens is None and not from_logs):
        raise InputError(f"{run.place}: task has no stop or max_new_tokens; {RUN_AGAIN}")
    return task.max_new_tokens, task.stop


def judges_beside(run: Run, options: RerunOptions, task: Task) -> tuple[ModelSpec, ...]:
    """The judges that the options name: candidates of a run, or other models by lines as in a pool file."""
    models = run.result.provenance.models
    named = [name for name in models if name in options.judge]
    of_run = entries_as(candidates_of_run(run, named, trusted=options.trust_remote_code), options) if named else ()
    check_servers(of_run, options, str(options.run))
    return read_judges(options, of_run, task)


def check_servers(
    models: Sequence[ModelSpec], options: ServerOptions, source: str, *, is_trusted: bool = False
) -> None:
    """Check that the user allows the servers that a folder names, and the variables of their keys."""
    # A folder may come from other people: it must not decide where prompts and keys are sent.
    allowed = None if is_trusted else options.allow_server
    for model in models:
        model.check_consent(None, allowed, f"{model.place or source}: {model.name}")


def chosen_by_folder(
    folder: Path,
    *,
    trusted: Collection[str] = (),
    check_files: bool = True,
    allow_servers: Collection[str] = (),
) -> EnsembleSpec:
    """The set of a run folder or of a saved ensemble's folder; see :func:`ensemble.saved.folder.read`."""
    # A folder that is both counts as a run folder. A strategy that does not decode is refused by the reader.
    is_exported = savedfolder.is_saved(folder) or (folder / savedfolder.STRATEGY_FILE).is_file()
    if not is_exported or (folder / "result.json").exists():
        return chosen_by_run(Run.open(folder), trusted=trusted)
    return savedfolder.read(
        folder,
        trust_remote_code=trusted,
        check_files=check_files,
        allow_servers=allow_servers,
    )


def candidates_of_run(
    run: Run, names: Sequence[str] = (), pool: str | None = None, trusted: Collection[str] = ()
) -> tuple[ModelSpec, ...]:
    """Candidates of a run folder, or its chosen set, with the run's values; a pool file says where they are now."""
    place, names = run.place, names or run.result.selected
    if not 0 < len(set(names)) == len(names):
        raise InputError(f"{place}: selected should be a list of different names; {RUN_AGAIN}")
    if pool is not None:
        entries = {entry.name: entry for entry in read_pool(pool)}
        if unknown := next((name for name in names if name not in entries), None):
            raise InputError(
                f"--pool {pool}: it has no model with the name {unknown!r} of {place}; add name={unknown} to its line"
            )
        for name in names:
            entries[name].check_consent(trusted, None, f"{entries[name].place}: {name}")
        return tuple(entries[name] for name in names)
    sources = run.result.provenance.models
    if sources and (unknown := next((name for name in names if name not in sources), None)):
        raise InputError(f"{place}: it has no candidate {unknown!r}; its candidates are {', '.join(sources)}")
    if missing := next((name for name in names if name not in sources), None):
        raise InputError(
            f"{place}: it does not say where its model {missing} is, because the run used --logs or --scores; add "
            "--pool FILE, a pool file in which the models have the names of the run"
        )
    return tuple(_with_trust(_entry(name, sources[name], place), trusted) for name in names)


def _with_trust(model: ModelSpec, trusted: Collection[str]) -> ModelSpec:
    """A model that a run or the command line names: it runs the code in its own files if the user says so."""
    if model.checkpoint.is_remote or not model.is_trusted(trusted):
        return model
    check_pinned(model.checkpoint, f"--trust-remote-code {model.name}")
    return replace(model, checkpoint=replace(model.checkpoint, trust_remote_code=True))


def _entry(name: str, source: ModelSource, place: str) -> ModelSpec:
    given = {**given_by(source), "name": name}
    if source.remote is not None:
        address = read_address(source.remote.address, f"{place}: {name}")
        return ModelSpec.read(address, given | given_by(source.remote), place)
    model = source.path_or_id or ""
    for key in ("path_or_id", "revision"):
        if not is_usable(getattr(source, key) or ""):
            raise InputError(f"{place}: provenance.models.{name}.{key} should be a text; {RUN_AGAIN}")
    _check_path(model, f"{place}: {name}")
    if not model or not given.keys() >= {"device", "dtype", "chat_template"}:
        raise InputError(
            f"{place}: provenance.models.{name} should have path_or_id, device, dtype and chat_template; {RUN_AGAIN}"
        )
    return ModelSpec.read(Checkpoint(model, source.revision), given, place)


def _check_path(model: str, place: str) -> None:
    """Raise InputError if the system cannot look for such a path: it is too long, or has ~ with an unknown user."""
    try:
        Path(model).expanduser().exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{place}: {model[:60]!r} cannot be read as a path ({error}); correct it") from None


def chosen_by_hand(models: Sequence[str], trusted: Collection[str] = ()) -> EnsembleSpec:
    """Models by folder, hub id (``@revision`` may follow) or server, as a pool file has it; the primary is first."""
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
        members.append(_with_trust(ModelSpec(checkpoint, checkpoint.name), trusted))
    return EnsembleSpec(tuple(members))
