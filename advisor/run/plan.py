"""What a command runs: models of a run folder, of a saved ensemble or by hand, and the strategy that asks them.

A set that decodes together, and a single model that is loaded here, are an :class:`EnsembleSpec`. All other strategies
ask their models one by one: they are a :class:`StrategyPlan`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from advisor.models.fit import check_device, check_set, place_models
from advisor.models.loaded_models import ALONE, load_ensemble, silence_libraries
from advisor.models.pool_file import check_pinned, read_line, read_pool
from advisor.models.run_config import check_decodes, read_judges
from advisor.options.finished_run import CheckOptions, ChosenOptions, EvaluateOptions, RerunOptions
from advisor.options.shared import LoadingOptions, ServerOptions, StrategyOptions
from advisor.progress import Progress
from advisor.records import join
from advisor.run.figures import StrategyKey
from advisor.run.folder import TASK, Run
from advisor.run.permissions import keep_servers, kept_servers
from advisor.run.result import ModelSource, StrategyFigures
from advisor.strategies import kinds, label
from advisor.strategies.schema import SCHEMA_VERSION, file_json, file_shape_of, strategy_of
from advisor.strategies.strategy import Decoded, Single, Strategy
from advisor.strategies.vote import VOTE_METRICS, VoteReader
from advisor.tasks import Task
from advisor.tasks.load import task_file_of
from advisor.tasks.task import LM_EVAL
from ensemble.common.files import default_cache_dir, exists
from ensemble.common.garbage import keep_present
from ensemble.common.pool_option import given_by
from ensemble.common.schema import is_usable, read_json, validated
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.methods import DEFAULT, check_members, list_methods
from ensemble.models.prompts import ServedTask
from ensemble.models.spec import THINK, Checkpoint, EnsembleSpec, ModelSpec, resolve_device
from ensemble.saved import folder as savedfolder
from ensemble.saved.ensemble_json import member_of, member_to_json
from ensemble.servers.address import PREFIX, is_allowed, read_address, why_not_decodable, without_consent

if TYPE_CHECKING:
    from ensemble.api import Ensemble

Rerun = TypeVar("Rerun", CheckOptions, EvaluateOptions)
RUN_AGAIN = "run `advisor select` again"


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
    if weights is not None and not (len(weights) == len(members) and sum(weights) > 0):
        raise InputError(
            f"{run.place}: ensemble.weights should be {len(members)} numbers, one of them above 0; {RUN_AGAIN}"
        )
    return EnsembleSpec(
        tuple(members),
        decodes,
        (measured.k if measured else None) or 10,
        weights,
        {THINK: think} if think is not None and list_methods()[decodes].level == "token" else {},
        members[0].max_new_tokens or max_new_tokens,
        stop,
        task=task_of_run(run),
    )


def task_of_run(run: Run) -> ServedTask | None:
    """How a run made its prompts and read its answers; None where only the tool knows that wrote its logs."""
    result, task = run.result, run.result.task
    if result.provenance.logs and result.provenance.scoring is None:
        return None
    return ServedTask(metric=task.metric, extract=task.extract, template=task.template, templates=task.templates)


def limits_of_run(run: Run) -> tuple[int | None, tuple[str, ...]]:
    """The token limit of a run's responses, None for responses of logs, and their stop strings."""
    task, from_logs = run.result.task, bool(run.result.provenance.logs)
    if task.stop is None or (task.max_new_tokens is None and not from_logs):
        raise InputError(f"{run.place}: task has no stop or max_new_tokens; {RUN_AGAIN}")
    return task.max_new_tokens, task.stop


def judges_beside(run: Run, options: RerunOptions, task: Task) -> tuple[ModelSpec, ...]:
    """The judges that the options name: candidates of a run, or other models by lines as in a pool file."""
    named = [name for name in run.result.provenance.models if name in options.judge]
    of_run = entries_as(candidates_of_run(run, named, trusted=options.trust_remote_code), options) if named else ()
    check_servers(of_run, options, run.file)
    return read_judges(options, of_run, task)


def check_servers(models: Sequence[ModelSpec], options: ServerOptions, file: Path | None) -> None:
    """Check that the user allows the servers of models that a file names, and the variables of their keys.

    What is allowed now is kept. The file is None if the user's own words say where the models are.
    """
    servers = {f"{each.place or file or '--models'}: {each.name}": each.checkpoint for each in models}
    remote = {place: address for place, address in servers.items() if address.is_remote}
    # A folder may come from other people: it must not decide where prompts and keys are sent.
    allowed = None if file is None else (*options.allow_server, *kept_servers(file))
    refused = dict[str, str]()
    for place, address in remote.items():
        if allowed is not None and not is_allowed(address.url, allowed):
            refused.setdefault(address.origin, place)
    if refused:
        raise without_consent({place: remote[place] for place in refused.values()})
    for place, address in remote.items():
        address.check_consent(None, place)
    if file is not None:
        keep_servers(file, [address.url for address in remote.values()])


def chosen_by_folder(folder: Path) -> EnsembleSpec:
    """The set of a run folder or of a saved ensemble's folder; see :func:`ensemble.saved.folder.read`."""
    # A folder that is both counts as a run folder. A strategy that does not decode is refused by the reader.
    is_exported = savedfolder.is_saved(folder) or (folder / savedfolder.STRATEGY_FILE).is_file()
    if not is_exported or (folder / "result.json").exists():
        return chosen_by_run(Run.open(folder))
    return savedfolder.read(folder)


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
    models = [_entry(name, sources[name], place) for name in names]
    # Where the run was made on another machine.
    tokenizers = [(each.name, each.tokenizer) for each in models if each.can_decode]
    if gone := [f"{name} ({at.path_or_id})" for name, at in tokenizers if at.is_local and not exists(at.path_or_id)]:
        raise InputError(f"{place}: not on this machine: {join(gone)}; add --pool FILE, a pool file that says where")
    return tuple(_with_trust(model, trusted) for model in models)


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


def with_task_of(run: Run, options: Rerun) -> Rerun:
    """The options with the task of the run where they name none; InputError if the run may not decide what is read."""
    if options.task is not None:
        return options
    settings, kept = run.result.provenance.settings or {}, run.folder / TASK
    task, data = settings.get("task"), settings.get("data")
    if not isinstance(task, str):
        raise InputError(f"--task is missing, and {run.place} does not say which task it had; give --task")
    # The folder may come from a stranger: a task of lm-eval may run code, and any folder may be named as data.
    if task.startswith(LM_EVAL):
        raise InputError(f"--task is missing; give --task {task} to load the task of the run, which may run code")
    if data is not None and options.data is None:
        if not kept.is_dir() or kept.is_symlink():
            raise InputError(f"--data is missing: the run read {task} from {data}; give that folder, or one like it")
        options = replace(options, data=kept)
    if (file := task_file_of(task)) is not None:
        # The copy in the run folder, and no file elsewhere, which a stranger's folder may name, also by a link.
        own = kept / Path(file).name
        if not (own.is_file() and own.resolve().is_relative_to(run.folder.resolve())):
            raise InputError(f"--task is missing: {run.folder} has no copy of {own.name}; give --task FILE")
        task = f"{own}{task.removeprefix(file)}"
    return replace(options, task=task)


def plan_by_options(options: ChosenOptions, say: Callable[[str], None]) -> EnsembleSpec | StrategyPlan:
    """What the options of ``run`` or ``serve`` name, with the changes that they make. No weights are loaded."""
    # A value out of range is an error now, not after the minutes that loading the models takes.
    check_decodes(options.method or DEFAULT)
    Settings(stop=options.stop)
    silence_libraries()
    if options.strategy is not None:
        _refuse(options, ("method", "k"), f"--strategy {options.strategy} says how the models are used")
    run = None if options.run is None else Path(options.run)
    trusted, check_files = options.trust_remote_code, not options.no_check_files
    # A folder with both files is a run folder, which has all strategies.
    is_run = run is not None and exists(run / "result.json")
    chosen: EnsembleSpec | StrategyPlan
    file = None
    if run is not None and not is_run and exists(run / savedfolder.STRATEGY_FILE):
        _refuse(options, ("strategy", "pool", "method", "k"), f"{run} is a strategy that `advisor export` wrote")
        chosen, file = read_plan(run, trusted=trusted, check_files=check_files), run / savedfolder.STRATEGY_FILE
    elif run is None or (savedfolder.is_saved(run) and not is_run):
        _refuse(options, ("strategy", "pool", "group"), "--models and a saved ensemble have no strategies")
        if run is None:
            chosen = chosen_by_hand(options.models, trusted)
        else:
            # Its servers are checked below.
            chosen = savedfolder.read(run, trust_remote_code=trusted, check_files=check_files, allow_servers=None)
            file = run / savedfolder.FILE
    else:
        opened = Run.open(run)
        chosen, file = plan_of_run(opened, options, say, options.method, options.k), opened.file
    check_servers(chosen.members, options, None if options.pool is not None else file)
    if isinstance(chosen, StrategyPlan):
        return _with_options(chosen, options, say)
    _refuse(options, ("group",), "only a router by groups reads it")
    # An empty list is an option that is not given.
    spec = chosen.with_decoding(
        method=options.method,
        k=options.k,
        options=None if options.think is None else {THINK: options.think},
        max_new_tokens=options.max_new_tokens,
        stop=options.stop or None,
    )
    if len(spec.members) > 1:
        check_members(spec.method, spec.members)
    spec = replace(spec, members=loaded_as(spec.members, options))
    if run is not None and is_run and not Run.open(run).result.strategies:
        say(f"{run}: nothing was verified on held-out questions, so there is no evidence for what runs")
    return spec


def plan_of_run(
    run: Run, options: StrategyOptions, say: Callable[[str], None], method: str | None = None, k: int | None = None
) -> EnsembleSpec | StrategyPlan:
    """The strategy of a run folder: the recommended one, or the one that the options name."""
    result, place = run.result, run.place
    pool, trusted = options.pool, options.trust_remote_code
    # All strategies are checked, also those that do not run: notes quote them.
    compared = result.strategies
    strategies = [figures_to_strategy(each, place) for each in compared]
    found = result.advice.recommendation
    recommended = None if found is None else figures_to_strategy(found, place)
    spec = None
    if options.strategy is not None:
        strategy = find_strategy(options.strategy, strategies, place)
    elif method or k or recommended is None:
        spec = chosen_by_run(run, method=method, pool=pool, trusted=trusted)
        strategy = Decoded(tuple(member.name for member in spec.members), spec.method)
    else:
        strategy = recommended
    if recommended is not None:
        _warn(strategy, recommended, strategies, compared, say)
    if spec is not None:
        return spec
    if isinstance(strategy, Decoded):
        return chosen_by_run(run, strategy.members, strategy.name, pool, trusted)
    entries = candidates_of_run(run, strategy.members, pool, trusted)
    (first, *_) = entries
    # Decoded in this process, a model also gives streams and log-probabilities; the likeliest tokens alone.
    if isinstance(strategy, Single) and not first.is_remote and not first.temperature:
        return chosen_by_run(run, strategy.members, ALONE, pool, trusted)
    # After the places: without a place no model runs, and that is the first thing to know.
    max_new_tokens, stop = limits_of_run(run)
    task, reader = task_of_run(run), None
    if strategy.COUNTS and task is None:
        raise InputError(
            f"{place}: its answers come from logs, and only the tool that wrote them knows how to read an answer; "
            "run `advisor select --logs ... --metric METRIC:PATTERN` again, then votes can run"
        )
    if strategy.COUNTS:
        reader = VoteReader(result.task.metric, result.task.extract, f"{place}: task")
    return StrategyPlan(strategy, entries, max_new_tokens, stop, task, reader)


def _with_options(plan: StrategyPlan, options: ChosenOptions, say: Callable[[str], None]) -> StrategyPlan:
    """The plan with the changes of the options, after its members are checked."""
    local = [member for member in plan.members if not member.is_remote]
    models = {model.name: model for model in loaded_as(local, options)}
    groups = plan.strategy.groups
    if not groups:
        _refuse(options, ("group",), f"the strategy {plan.strategy.name} has no groups")
    elif options.group not in groups:
        given = "a prompt has no group" if options.group is None else f"--group {options.group} is not in the run"
        shown = ", ".join(groups[:5]) + (", ..." if len(groups) > 5 else "")
        say(f"{given}, so {plan.strategy.members[0]} answers; give --group NAME, for example {shown}")
    if plan.reader is not None and plan.reader.metric == "choice":
        say("votes count the letter in each response; the run chose options by their likelihood")
    members = [models.get(member.name, member) for member in plan.members]
    if options.max_new_tokens is not None:
        members = [replace(member, max_new_tokens=None) for member in members]
    return replace(
        plan,
        members=tuple(members),
        max_new_tokens=options.max_new_tokens or plan.max_new_tokens,
        stop=options.stop or plan.stop,
    )


def figures_to_strategy(figures: StrategyKey, place: str) -> Strategy:
    """The strategy of an object of ``result.json``, after it is checked that it can run."""
    values = {"strategy": figures.strategy, "members": figures.members, **(figures.model_extra or {})}
    return strategy_of(values, place, "run `advisor select` again")


def find_strategy(wanted: str, strategies: Sequence[Strategy], place: str) -> Strategy:
    """The strategy that ``--strategy`` names by its label, ``NAME``, or ``NAME/DETAIL``; of several the first."""
    labels = {label(each, strategies): each for each in strategies}
    if not labels:
        raise InputError(
            f"--strategy {wanted}: {place} compares no strategies, for example because of --no-verify; run `advisor "
            "select` again, or leave out --strategy"
        )
    if wanted in labels:
        return labels[wanted]
    name, _, detail = wanted.partition("/")
    for strategy in strategies:
        if strategy.name == name and (not detail or detail in strategy.details):
            return strategy
    raise InputError(f"--strategy {wanted}: {place} has no such strategy; give one of {', '.join(labels)}")


def _warn(
    strategy: Strategy,
    recommended: Strategy,
    strategies: Sequence[Strategy],
    compared: Sequence[StrategyFigures],
    say: Callable[[str], None],
) -> None:
    """Say so if the evidence is against a strategy, or if there is no evidence for it."""
    if strategy == recommended:
        return
    figures = {each: own.accuracy for each, own in zip(strategies, compared, strict=True)}
    best, own = figures.get(recommended), figures.get(strategy)
    recommendation = f"the recommended {label(recommended, strategies)}"
    if best is None or own is None:
        say(f"{label(strategy, strategies)} was not compared on held-out questions with {recommendation}")
    elif own < best:
        on = f"on {compared[strategies.index(strategy)].n:,} held-out questions"
        say(f"{label(strategy, strategies)} scored {best - own:.1f} points less than {recommendation} {on}")


def _refuse(options: ChosenOptions, names: Sequence[str], reason: str) -> None:
    """Raise InputError if one of these options is given."""
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(f"--{name}: {reason}; leave out --{name}")


_WAY_OUT = "write the folder again with `advisor export`"


@dataclass(frozen=True, slots=True)
class StrategyPlan:
    """A strategy that asks its models one by one."""

    strategy: Strategy  # with the dev questions if it reads them
    members: tuple[ModelSpec, ...]  # in the strategy's order
    max_new_tokens: int | None = None  # the default limit of a response; None for the program's
    stop: tuple[str, ...] = ()  # the default stop strings
    task: ServedTask | None = None  # the task of its run; None if that is not known
    reader: VoteReader | None = None  # reads the answers; None if the strategy counts none


def answer_reader(chosen: EnsembleSpec | StrategyPlan) -> VoteReader | None:
    """What reads the answer in a response; None if the task is not known or its metric needs a reference to read it."""
    if isinstance(chosen, StrategyPlan) and chosen.reader is not None:
        return chosen.reader
    task = chosen.task
    if task is None or task.metric not in VOTE_METRICS:
        return None
    return VoteReader(task.metric, task.extract, "task")


def plan_json(plan: StrategyPlan, folder: Path) -> str:
    """The content of ``strategy.json`` in a folder; local members have the hashes of their files."""
    content = file_json(
        plan.strategy,
        task=plan.task,
        generation={"max_new_tokens": plan.max_new_tokens, "stop": plan.stop},
        models=tuple(member_to_json(member, folder) for member in plan.members),
    )
    return f"{json.dumps(content, indent=2, allow_nan=False)}\n"


def read_plan(folder: Path, *, trusted: Collection[str] = (), check_files: bool = True) -> StrategyPlan:
    """Read the ``strategy.json`` of a folder. No server is contacted."""
    path = folder / savedfolder.STRATEGY_FILE
    values = read_json(path, _WAY_OUT)
    if values.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path}: schema_version should be {SCHEMA_VERSION}; {_WAY_OUT}")
    name = values.get("strategy")
    if not isinstance(name, str) or name not in kinds():
        raise InputError(f"{path}: strategy should be one of {', '.join(kinds())}; {_WAY_OUT}")
    kind = kinds()[name]
    # Not cleaned: stop strings and dev questions are used as they are.
    file = validated(file_shape_of(kind), values, str(path), _WAY_OUT, clean=False)
    own = {each.name: getattr(file, each.name) for each in fields(kind)}
    strategy = kind(**own)
    if problem := strategy.problem():
        raise InputError(f"{path}: {problem[0]} should be {problem[1]}; {_WAY_OUT}")
    members = tuple(member_of(each, f"{path}: models[{n}]", folder) for n, each in enumerate(file.models))
    # Weights and the order of a vote go by the order.
    if tuple(member.name for member in members) != strategy.members:
        raise InputError(f"{path}: models should be one object for each of members, in the same order; {_WAY_OUT}")
    local = [member for member in members if not member.is_remote]
    savedfolder.check_members(local, str(path), trust_remote_code=trusted, check_files=check_files)
    reader = None
    if kind.COUNTS:
        task = file.task
        metric, extract = (None, None) if task is None else (task.metric, task.extract)
        reader = VoteReader(metric, extract, f"{path}: task")
    generation = file.generation
    return StrategyPlan(strategy, members, generation.max_new_tokens, generation.stop, file.task, reader)
