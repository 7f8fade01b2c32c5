"""The whole job: pool -> profiles -> pairs -> selection -> the ensemble on held-out questions -> advice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor import provenance
from advisor.advice import advise, fragile
from advisor.answering import free_memory
from advisor.compatibility import all_pairs, pairs_of_standings
from advisor.evidence import accuracy_interval, compare
from advisor.loading import Model, load_ensemble
from advisor.pool import Candidate
from advisor.profiling import Cost, Identity, Setting, identify, model_of, profile
from advisor.records import Profile, Rules, Selection, Standing
from advisor.result import Outcome, Verified, task_info
from advisor.selection import select
from advisor.store import Store
from advisor.tasks.values import Task
from advisor.watching import Watcher
from ensemble.errors import InputError, MemberError, UniteError

if TYPE_CHECKING:
    from ensemble.ensemble import Ensemble


@dataclass(frozen=True, slots=True)
class Plan:
    """A run, as it was asked for and checked.

    Attributes:
        candidates: The pool.
        dev: The questions that candidates are profiled on.
        held_out: The questions that the chosen set is verified on; None to leave it unverified.
        rules: The limits.
        setting: How models are loaded and generate.
        method: How the set decodes.
        k: Candidates that each member brings to the union.
        seed: Of every draw and resampling.
        cache_dir: Where responses and tables are kept.
        command: The command line, for the record.
    """

    candidates: tuple[Candidate, ...]
    dev: Task
    held_out: Task | None
    rules: Rules
    setting: Setting
    method: str
    k: int
    seed: int
    cache_dir: Path
    command: str


@dataclass(slots=True)
class Pool:
    """The candidates as far as they have been profiled.

    Attributes:
        identities: What decides each candidate's responses, by name.
        profiles: Of those that could be run, by name.
        costs: What their responses took, by name.
        failures: Why the others could not, by name.
    """

    identities: dict[str, Identity]
    profiles: dict[str, Profile] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def fail(self, name: str, error: MemberError) -> None:
        """Take out a candidate that failed."""
        self.profiles.pop(name, None)
        self.failures[name] = str(error).removeprefix(f"{name}: ")

    def select(self, rules: Rules) -> Selection:
        """Apply the rules to those that are left."""
        if not self.profiles:
            name, reason = next(iter(self.failures.items()))
            raise UniteError(f"none of the {len(self.failures)} candidates could be run; {name}: {reason}")
        return select([Standing(p.model, p.accuracy, p.mean_length) for p in self.profiles.values()], rules)


def profile_pool(plan: Plan, store: Store, watcher: Watcher) -> Pool:
    """Profile every candidate on the dev questions, one model in memory at a time.

    Raises:
        InputError: A candidate cannot be used; before any of them is run.
        UniteError: None of them could be run.
    """
    pool = Pool({candidate.name: identify(candidate, plan.setting, store) for candidate in plan.candidates})
    found = _profile_each(plan, plan.candidates, plan.dev, pool, store, watcher)
    pool.profiles = {name: one for name, (one, _) in found.items()}
    pool.costs = {name: cost for name, (_, cost) in found.items()}
    pool.select(plan.rules)
    return pool


def run(plan: Plan, store: Store, watcher: Watcher) -> Outcome:
    """Do the whole job.

    Raises:
        InputError: A candidate cannot be used; before any of them is run.
        UniteError: No candidate could be run.
    """
    pool = profile_pool(plan, store, watcher)
    selection, verified, trouble = _choose(plan, pool, store, watcher)
    advice = advise(selection, verified.comparison if verified else None)
    if trouble:
        advice = replace(advice, text=f"{advice.text} Running it was tried, and failed: {trouble}.")
    profiles = [pool.profiles[decision.model] for decision in selection.decisions]
    margins = fragile(profiles, selection.selected[0], plan.rules, seed=plan.seed)
    return Outcome(
        task_info=task_info(plan.dev, plan.setting.max_new_tokens or plan.dev.max_new_tokens),
        rules=plan.rules,
        standings=tuple(Standing(p.model, p.accuracy, p.mean_length) for p in profiles),
        selection=selection,
        failures=pool.failures,
        pairs=all_pairs(profiles),
        advice=advice,
        task=plan.dev,
        profiles=tuple(profiles),
        intervals={p.model: accuracy_interval(p, seed=plan.seed) for p in profiles},
        margins={margin.model: margin for margin in margins},
        costs=pool.costs,
        verified=verified,
        provenance=provenance.of_run(plan.command, plan.seed, plan.setting, plan.candidates, pool.identities),
    )


def run_on_numbers(path: Path, rules: Rules, command: str) -> Outcome:
    """Apply the rules to published or earlier numbers; :func:`read_standings` says in what form.

    Raises:
        InputError: The file is not there, or is not of that form.
    """
    task, standings = read_standings(path)
    selection = select(standings, rules)
    order = {decision.model: n for n, decision in enumerate(selection.decisions)}
    return Outcome(
        task_info={**dict.fromkeys(("metric", "split", "n", "fingerprint")), "name": task, "signature": str(path)},
        rules=rules,
        standings=standings,
        selection=selection,
        failures={},
        pairs=pairs_of_standings(sorted(standings, key=lambda standing: order[standing.model])),
        advice=advise(selection),
        provenance=provenance.of_numbers(command, path),
    )


def read_standings(path: Path) -> tuple[str, tuple[Standing, ...]]:
    """The task and the numbers of a file: ``{"task": NAME, "profiles": [{model, accuracy, mean_length}, ...]}``."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"--profiles {path}: there is no such file; give one that holds numbers") from None
    except (OSError, ValueError) as error:
        raise InputError(f"--profiles {path}: cannot be read as JSON ({error})") from None
    entries = data.get("profiles") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InputError(
            f'--profiles {path}: needs the form {{"task": NAME, "profiles": [{{"model": NAME, ...}}, ...]}}'
        )
    standings = tuple(_standing(entry, f"--profiles {path}: profile {n}") for n, entry in enumerate(entries, start=1))
    names = [standing.model for standing in standings]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--profiles {path}: the model {twice!r} is there twice; give each a name of its own")
    task = data.get("task", "unnamed")
    if not isinstance(task, str):
        raise InputError(f'--profiles {path}: "task" must be a name')
    return task, standings


def _standing(entry: object, place: str) -> Standing:
    values: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    model = values.get("model")
    if not isinstance(model, str) or not model:
        raise InputError(f'{place}: needs "model", a name')
    if not model.strip() or not model.isprintable():
        raise InputError(f"{place}: the name {model!r} must be printable and not blank")
    accuracy, length = _number(values.get("accuracy")), _number(values.get("mean_length"))
    if accuracy is None or not 0 <= accuracy <= 100:
        raise InputError(f'{place} ({model}): needs "accuracy", points from 0 to 100')
    if values.get("mean_length") is not None and (length is None or length < 0):
        raise InputError(f'{place} ({model}): "mean_length" must be characters, 0 or more, or left out')
    return Standing(model, accuracy, length)


def _number(value: object) -> float | None:
    """A finite number of JSON as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's integers have no end
        return None
    return number if math.isfinite(number) else None


def _choose(plan: Plan, pool: Pool, store: Store, watcher: Watcher) -> tuple[Selection, Verified | None, str | None]:
    """Apply the rules and run the chosen set on the held-out questions; the third is why that failed, if it did.

    A member that fails there leaves the pool, and the rules are applied to the others.
    """
    by_name = {candidate.name: candidate for candidate in plan.candidates}
    while True:
        selection = pool.select(plan.rules)
        if plan.held_out is None or len(selection.selected) < 2:
            return selection, None, None
        chosen = [by_name[name] for name in selection.selected]
        members = _profile_each(plan, chosen, plan.held_out, pool, store, watcher)
        if len(members) == len(chosen):
            break
    try:
        together, cost = _profile_set(plan, chosen, plan.held_out, pool, store, watcher)
    except MemberError as error:
        watcher.say(str(error))
        return selection, None, str(error)
    return selection, _verified(plan, plan.held_out, together, cost, members), None


def _profile_each(
    plan: Plan, candidates: Sequence[Candidate], task: Task, pool: Pool, store: Store, watcher: Watcher
) -> dict[str, tuple[Profile, Cost]]:
    """Each candidate's answers and what they took; one that fails leaves the pool, and the others go on.

    It alone is an ensemble of one, which decodes exactly as the model itself does.
    """
    found = {}
    for candidate in candidates:
        name, identity = candidate.name, pool.identities[candidate.name]
        load = partial(_load, plan, [model_of(candidate, identity, plan.setting)])
        try:
            with watcher.stage(f"{name} on {task.split}", len(task.examples)) as advance:
                found[name] = profile(name, {"members": [identity.key()]}, load, task, plan.setting, store, advance)
        except MemberError as error:
            pool.fail(name, error)
            watcher.say(f"{name}: {pool.failures[name]}")
        else:
            _say_errors(found[name][0], watcher)
        if name in pool.failures:
            # Only here, behind the handler, nothing refers to the model any more.
            free_memory()
    return found


def _say_errors(profile: Profile, watcher: Watcher) -> None:
    errors = [answer.error for answer in profile.answers if answer.error is not None]
    if errors:
        watcher.say(
            f"{profile.model}: {len(errors)} of {len(profile.answers)} questions could not be answered, and count as "
            f"wrong; the first: {errors[0]}"
        )


def _profile_set(
    plan: Plan, chosen: Sequence[Candidate], task: Task, pool: Pool, store: Store, watcher: Watcher
) -> tuple[Profile, Cost]:
    """The answers of the chosen models together."""
    identities = [pool.identities[candidate.name] for candidate in chosen]
    pairs = zip(chosen, identities, strict=True)
    models = [model_of(candidate, identity, plan.setting) for candidate, identity in pairs]
    key = {"members": [identity.key() for identity in identities], "method": plan.method, "k": plan.k}
    with watcher.stage(f"{plan.method} on {task.split}", len(task.examples)) as advance:
        found = profile(plan.method, key, partial(_load, plan, models), task, plan.setting, store, advance)
    _say_errors(found[0], watcher)
    return found


def _load(plan: Plan, models: Sequence[Model]) -> Ensemble:
    together = len(models) > 1
    method, k = (plan.method, plan.k) if together else ("unite", 1)
    return load_ensemble(models, method=method, k=k, cache_dir=plan.cache_dir)


def _verified(
    plan: Plan, task: Task, together: Profile, cost: Cost, members: Mapping[str, tuple[Profile, Cost]]
) -> Verified:
    """The chosen set beside each of its members alone."""
    alone = tuple(one for one, _ in members.values())
    return Verified(
        task=task,
        ensemble=together,
        members=alone,
        comparison=compare(together, alone, plan.seed),
        intervals=tuple(accuracy_interval(member, seed=plan.seed) for member in alone),
        cost=cost,
        member_costs=tuple(each for _, each in members.values()),
        method=plan.method,
        k=plan.k,
    )
