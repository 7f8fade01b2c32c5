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

from advisor.config import RunConfig
from advisor.evaluation import evaluate_run, evaluation_config
from advisor.output.result_json import result_of, samples_of
from advisor.output.run_folder import write_run
from advisor.output.terminal import print_methods
from advisor.pipeline import run
from advisor.profile.loader import KeepingLoader
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.session import open_session
from benchmarks._decoding import BATCH, K, Work, by_ensemble
from benchmarks._measure import Figure, Timer, arguments, progress, ratio, tell
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.methods import list_methods
from ensemble.models.member import Member

COMMAND = "python -m benchmarks.methods"
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
    bars, limit = Progress(quiet=options.json), 6 if options.quick else None
    with tempfile.TemporaryDirectory() as folder:
        cache, out = Path(folder) / "cache", Path(folder) / "run"
        choose(out, cache, bars, limit)
        settings = {"task": TASK, "limit": limit, "methods": ",".join(list_methods()), "k": K, "cache_dir": cache}
        progress(f"benchmarks.methods: {len(list_methods())} methods")
        table = evaluate_run(out, settings, COMMAND, bars)
        plan = evaluation_config(out, settings, COMMAND)
        with open_session(plan, bars) as (store, _):
            members = _members(plan, store, bars)
        figures = [*of_table(table), *behind_a_threshold(members, plan, options)]
    if not options.json:
        print_methods(table)
    kept = {key: value for key, value in table.items() if key not in ("schema_version", "provenance")}
    tell("methods", figures, options, table=kept)
    return 0


def choose(out: Path, cache: Path, bars: Progress, limit: int | None) -> None:
    """Choose a set among the demo's models, and write its run folder."""
    progress(f"benchmarks.methods: choosing a set for {TASK}")
    options: dict[str, Any] = {
        "pool": "demo",
        "task": TASK,
        "limit": limit,
        "k": K,
        "no_verify": True,
        "cache_dir": cache,
    }
    if limit is not None:
        # With few questions the rules would choose nobody, and the point is only to run everything once.
        options |= {"max_gap": 100.0, "max_length_ratio": 1e9}
    plan = RunConfig.from_options(options, COMMAND)
    with open_session(plan, bars) as (store, _):
        outcome = run(plan, store, bars)
    write_run(out, result_of(outcome), samples_of(outcome))


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


def _members(plan: RunConfig, store: Any, bars: Progress) -> Sequence[Member]:
    """The set's members, loaded as the table's were."""
    profiler = Profiler(plan, store, bars, KeepingLoader(plan.cache_dir))
    return profiler.load([candidate.name for candidate in plan.candidates]).members


def _key(name: str) -> str:
    return name.replace("-", "_")


if __name__ == "__main__":
    sys.exit(main())
