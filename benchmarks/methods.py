"""Every method side by side on the demo, and what GaC behind a threshold costs: ``python -m benchmarks.methods``.

The set is chosen as ``advisor select`` does it, and evaluated as ``advisor evaluate`` does it, from an empty cache: all
methods that need nothing from elsewhere, on the 500 held-out questions, once, one after the other, in batches and so
without drafts. DeePEn-Adapt gets the members' accuracies on the dev questions. Then GaC behind a threshold and the gate
alone decode in turns. What is not here: a step on real vocabularies by itself (see ``benchmarks.steps``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from advisor.checks import check_options
from advisor.commands.evaluate import learnt
from advisor.config import InferenceConfig, RunConfig
from advisor.output.evaluation_json import evaluation_of
from advisor.output.result_json import result_of, samples_of
from advisor.output.run_folder import write_run
from advisor.output.terminal import Terminal
from advisor.pipeline import run
from advisor.planning import opened, plan_of, plan_of_run
from advisor.profile.profiler import Profiler
from advisor.records import Rules
from advisor.verify.methods import Evaluator
from benchmarks._decoding import BATCH, K, Work, by_ensemble
from benchmarks._measure import Figure, Timer, arguments, progress, ratio, tell
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.methods import list_methods
from ensemble.models.member import Member

TASK = "word_problems"
LIMIT = 1.2
FEW = 0.1
"""Share of the steps that are ensembled, below which the limit is to hold."""
THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""From the highest, until few steps are ensembled: the dearest case for which the limit is meant."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    terminal = Terminal(quiet=options.json)
    with tempfile.TemporaryDirectory() as folder:
        cache, out = Path(folder) / "cache", Path(folder) / "run"
        choose(out, cache, terminal, 6 if options.quick else None)
        plan = _plan_of_run(out, cache, 6 if options.quick else None)
        with opened(plan, terminal, quiet=options.json) as (store, _):
            table = evaluate(plan, out, store, terminal)
            members = _members(plan, store, terminal)
        figures = [*of_table(table), *behind_a_threshold(members, plan, options)]
    if not options.json:
        terminal.compare(table)
    kept = {key: value for key, value in table.items() if key not in ("schema_version", "provenance")}
    tell("methods", figures, options, table=kept)
    return 0


def choose(out: Path, cache: Path, terminal: Terminal, limit: int | None) -> None:
    """Choose a set among the demo's models, and write its run folder."""
    progress(f"benchmarks.methods: choosing a set for {TASK}")
    plan = plan_of(
        pool="demo",
        task=TASK,
        data=None,
        split="dev",
        limit=limit,
        shots=None,
        seed=0,
        allow_code_execution=False,
        # A few questions choose nobody; what is tried with them is only whether all of it runs.
        rules=Rules() if limit is None else Rules(max_gap=100, max_length_ratio=1e9),
        inference=InferenceConfig(),
        method="unite",
        k=K,
        verify=False,
        cache_dir=cache,
        command="python -m benchmarks.methods",
    )
    with opened(plan, terminal, quiet=True) as (store, _):
        outcome = run(plan, store, terminal)
    write_run(out, result_of(outcome), samples_of(outcome))


def evaluate(plan: RunConfig, out: Path, store: Any, terminal: Terminal) -> Mapping[str, Any]:
    """The table, as ``advisor evaluate`` writes it."""
    names = list(list_methods())
    options = check_options(learnt(out, names, [candidate.name for candidate in plan.candidates]), names)
    progress(f"benchmarks.methods: {len(names)} methods")
    evaluator = Evaluator(plan, names, options, store, terminal)
    return evaluation_of(*evaluator.run(), plan, evaluator.task, {})


def of_table(table: Mapping[str, Any]) -> Iterator[Figure]:
    """The table's figures: each method's, and each member's accuracy."""
    task = f"{table['n']} {table['split']} questions of {table['task']}"
    for member in table["members"]:
        name = f"{_key(member['model'])}_accuracy"
        yield _figure(name, member, "accuracy", f"alone, {task}")
    unite = next(entry for entry in table["methods"] if entry["method"] == "unite")
    for entry in table["methods"]:
        name, out = _key(entry["method"]), entry["left_out"]
        if out:
            yield Figure(f"{name}_accuracy", None, note=f"left out: {out}")
            continue
        adjusted = entry["p_adjusted"]
        yield _figure(f"{name}_accuracy", entry, "accuracy", task)
        yield _figure(f"{name}_delta", entry, "delta", f"points over {table['best_single']}")
        note = "McNemar, as found" if adjusted is None else "McNemar, after Holm's correction for the table"
        yield Figure(f"{name}_p", entry["p_value"] if adjusted is None else adjusted, note=note)
        if name != "unite" and entry["ms_per_token"] and unite["ms_per_token"]:
            cost = entry["ms_per_token"] / unite["ms_per_token"]
            yield Figure(f"{name}_over_unite", cost, note="milliseconds a token, each measured once")


def _figure(name: str, entry: Mapping[str, Any], what: str, note: str) -> Figure:
    low, high = entry[f"{what}_ci"]
    return Figure(name, entry[what], low, high, note=note)


def behind_a_threshold(members: Sequence[Member], plan: RunConfig, options: argparse.Namespace) -> Iterator[Figure]:
    """What GaC behind a threshold costs over its gate alone, for single prompts and for batches."""
    questions = plan.held_out.examples if plan.held_out else ()
    tokens = 4 if options.quick else 64
    work = Work([example.prompt for example in questions[: 2 * BATCH]], 2 if options.quick else BATCH, tokens)
    timer = Timer(options.rounds or (1 if options.quick else 7), options.clock)
    gate = Ensemble(members[:1], k=1)
    shares = {}
    for threshold in THRESHOLDS:
        joint = Ensemble(members, method="gac-threshold", k=K, threshold=threshold)
        shares[threshold] = _share(joint, work)
        if shares[threshold] < FEW:
            break
    progress(f"benchmarks.methods: GaC behind a threshold of {threshold:g}")
    for batch, name in ((1, "gac_threshold_over_gate"), (BATCH, f"gac_threshold_over_gate_batch{BATCH}")):
        parts = {"joint": by_ensemble(joint, work, batch=batch), "gate": by_ensemble(gate, work, batch=batch)}
        times = timer(parts)
        what = f"threshold {threshold:g}, {batch} at a time, without drafts; the gate is {members[0].name}"
        yield ratio(name, times["joint"], times["gate"], limit=f"at most {LIMIT:g}", note=what)
    note = "of the steps are ensembled; by threshold: " + ", ".join(
        f"{each:g} {share:.3f}" for each, share in shares.items()
    )
    yield Figure("gac_threshold_share", shares[threshold], note=note)


def _share(ensemble: Ensemble, work: Work) -> float:
    encoded = [ensemble.encode(prompt) for prompt in work.prompts]
    made = ensemble.generate_each(encoded, Settings(work.tokens), Batch(BATCH))
    counts = [generation.counts for _, generation in made]
    return sum(count.combined for count in counts) / sum(count.steps for count in counts)


def _plan_of_run(out: Path, cache: Path, limit: int | None) -> RunConfig:
    return plan_of_run(
        out,
        task=TASK,
        data=None,
        split="held_out",
        limit=limit,
        shots=None,
        seed=0,
        allow_code_execution=False,
        inference=InferenceConfig(),
        methods=list(list_methods()),
        k=K,
        cache_dir=cache,
        command="python -m benchmarks.methods",
    )


def _members(plan: RunConfig, store: Any, terminal: Terminal) -> Sequence[Member]:
    """The set's members, loaded as the table's were."""
    profiler = Profiler(plan, store, terminal, keep_models=True)
    return profiler.load([candidate.name for candidate in plan.candidates]).members


def _key(name: str) -> str:
    return name.replace("-", "_")


if __name__ == "__main__":
    sys.exit(main())
