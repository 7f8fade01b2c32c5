"""The whole job: pool -> profiles -> pairs -> selection -> the ensemble on held-out questions -> advice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor import provenance
from advisor.advice import advise, fragile
from advisor.compatibility import all_pairs, pairs_of_standings
from advisor.evidence import accuracy_interval, compare
from advisor.loading import load_ensemble
from advisor.pool import Candidate
from advisor.profiling import Cost, Identity, Setting, identify, model_of, profile
from advisor.records import Profile, Rules, Standing
from advisor.result import Outcome, Verified, task_info
from advisor.selection import select
from advisor.store import Store
from advisor.tasks.values import Task
from advisor.watching import Watcher
from ensemble.errors import InputError, MemberError, UniteError


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
        profiles: Of those that could be run.
        costs: What their responses took.
        failures: Why the others could not.
    """

    identities: dict[str, Identity]
    profiles: list[Profile] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def profile_pool(plan: Plan, store: Store, watcher: Watcher) -> Pool:
    """Profile every candidate on the dev questions, one model in memory at a time.

    Raises:
        InputError: A candidate cannot be used; before any of them is run.
        UniteError: None of them could be run.
    """
    pool = Pool({candidate.name: identify(candidate, plan.setting, store) for candidate in plan.candidates})
    for candidate in plan.candidates:
        try:
            found, cost = _profile_one(plan, candidate, pool, plan.dev, store, watcher)
        except MemberError as error:
            pool.failures[candidate.name] = str(error)
            watcher.say(str(error))
        else:
            pool.profiles.append(found)
            pool.costs[candidate.name] = cost
    if not pool.profiles:
        raise UniteError(
            f"none of the {len(plan.candidates)} candidates could be run: {next(iter(pool.failures.values()))}"
        )
    return pool


def run(plan: Plan, store: Store, watcher: Watcher) -> Outcome:
    """Do the whole job.

    Raises:
        InputError: A candidate cannot be used; before any of them is run.
        UniteError: No candidate could be run, or the chosen set could not.
    """
    pool = profile_pool(plan, store, watcher)
    standings = tuple(Standing(p.model, p.accuracy, p.mean_length) for p in pool.profiles)
    selection = select(standings, plan.rules)
    order = {decision.model: n for n, decision in enumerate(selection.decisions)}
    profiles = sorted(pool.profiles, key=lambda p: order[p.model])
    verified = None
    if plan.held_out is not None and len(selection.selected) > 1:
        verified = _verify(plan, selection.selected, plan.held_out, pool, store, watcher)
    margins = fragile(profiles, selection.selected[0], plan.rules, seed=plan.seed)
    return Outcome(
        task_info=task_info(plan.dev, plan.setting.max_new_tokens or plan.dev.max_new_tokens),
        rules=plan.rules,
        standings=standings,
        selection=selection,
        failures=pool.failures,
        pairs=all_pairs(profiles),
        advice=advise(selection, verified.comparison if verified else None),
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
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"--profiles {path}: there is no such file") from None
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
    return str(data.get("task", "unnamed")), standings


def _standing(entry: object, place: str) -> Standing:
    values: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    model = values.get("model")
    if not isinstance(model, str) or not model:
        raise InputError(f'{place}: needs "model", a name')
    accuracy, length = _number(values.get("accuracy")), _number(values.get("mean_length"))
    if accuracy is None or not 0 <= accuracy <= 100:
        raise InputError(f'{place} ({model}): needs "accuracy", points from 0 to 100')
    if values.get("mean_length") is not None and (length is None or length < 0):
        raise InputError(f'{place} ({model}): "mean_length" must be characters, 0 or more, or left out')
    return Standing(model, accuracy, length)


def _number(value: object) -> float | None:
    """A finite number of JSON as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _profile_one(
    plan: Plan, candidate: Candidate, pool: Pool, task: Task, store: Store, watcher: Watcher
) -> tuple[Profile, Cost]:
    """A candidate's answers: it alone is an ensemble of one, which decodes exactly as the model itself does."""
    with watcher.stage(f"{candidate.name} on {task.split}", len(task.examples)) as advance:
        return profile(
            candidate.name,
            {"members": [pool.identities[candidate.name].key()]},
            lambda: load_ensemble([model_of(candidate, plan.setting)], method="unite", k=1, cache_dir=plan.cache_dir),
            task,
            plan.setting,
            store,
            advance,
        )


def _verify(plan: Plan, selected: Sequence[str], task: Task, pool: Pool, store: Store, watcher: Watcher) -> Verified:
    """Run the chosen set, and each of its members alone, on the held-out questions."""
    by_name = {candidate.name: candidate for candidate in plan.candidates}
    chosen = [by_name[name] for name in selected]
    models = [model_of(candidate, plan.setting) for candidate in chosen]
    members, costs = [], {}
    for candidate in chosen:
        found, costs[candidate.name] = _profile_one(plan, candidate, pool, task, store, watcher)
        members.append(found)
    key = {"members": [pool.identities[name].key() for name in selected], "method": plan.method, "k": plan.k}
    with watcher.stage(f"{plan.method} on {task.split}", len(task.examples)) as advance:
        together, costs[plan.method] = profile(
            plan.method,
            key,
            lambda: load_ensemble(models, method=plan.method, k=plan.k, cache_dir=plan.cache_dir),
            task,
            plan.setting,
            store,
            advance,
        )
    return Verified(
        task=task,
        ensemble=together,
        members=tuple(members),
        comparison=compare(together, members, plan.seed),
        intervals=tuple(accuracy_interval(member, seed=plan.seed) for member in members),
        costs=costs,
        method=plan.method,
        k=plan.k,
    )
