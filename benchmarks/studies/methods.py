"""Every method side by side on the demo, and what GaC costs: ``python -m benchmarks.studies.methods``.

The set is chosen as ``advisor select`` does it, and evaluated as ``advisor evaluate`` does it, from an empty cache: all
methods that need nothing from elsewhere, on the 500 held-out questions, once, one after the other, in batches and so
without drafts. DeePEn-Adapt gets the members' accuracies on the dev questions. The same is done with the same models
trained from other seeds (``--seeds``), so that the order of the methods is more than the luck of one training. Models
of a seed that are not in ``build/`` are trained first, which takes about 15 minutes a seed on two free cores.

Methods are compared at equal budgets: with the majority of as many responses of the best single model as cost the same
number of tokens. Then GaC behind a threshold and the gate alone decode in turns. What is not here: a step on real
vocabularies by itself (see ``benchmarks.steps``). ``python -m benchmarks._methods_page`` writes the page again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from advisor.config import RunConfig
from advisor.demo import train
from advisor.jobs.evaluate import evaluation_config, learned_options
from advisor.jobs.evaluation_json import evaluation_of
from advisor.jobs.methods import Evaluator
from advisor.jobs.result_json import result_of, samples_of
from advisor.jobs.select import run
from advisor.jobs.session import open_session
from advisor.options.evaluate import EvaluateOptions
from advisor.options.select import SelectOptions
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.runs.run import Run
from advisor.runs.run_folder import write_run
from advisor.runs.schema.evaluation import Evaluation
from advisor.statistics import scores
from advisor.terminal.tables import print_methods
from benchmarks._decoding import BATCH, K, Work, by_ensemble
from benchmarks._measure import ROOT, Figure, Timer, arguments, progress, ratio, tell
from benchmarks.studies._method_budgets import Trained, compared, draws_of, majority, tokens_of
from ensemble import Ensemble
from ensemble.common.schema import written
from ensemble.decode.settings import Batch, Settings
from ensemble.methods import list_methods
from ensemble.models.member import Member

COMMAND = "python -m benchmarks.studies.methods"
TASK = "word_problems"
SEEDS = 3
LIMIT = 1.2
FEW = 0.1
"""Share of the steps that are ensembled, below which the limit is to hold."""
THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""From the highest, until few steps are ensembled: the dearest case for which the limit is meant."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    parser = arguments((__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seeds", type=int, help=f"trainings of the demo's models, the stored one first; {SEEDS}")
    parser.add_argument("--trained", type=Path, default=ROOT / "build", help="has demo-seed-2/models, ... or gets them")
    options = parser.parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    bars, limit = Progress(quiet=options.json), 6 if options.quick else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = evaluated(folder / "1", None, (), bars, limit)
        names = [candidate.name for candidate in first.config.candidates]
        trained = [first]
        for seed in range(2, 1 + (options.seeds or (2 if options.quick else SEEDS))):
            models = train.HERE / "models" if options.quick else models_of(seed, names, options.trained)
            pool = folder / f"pool-{seed}.txt"
            pool.write_text("".join(f"{models / name}  dtype=float32\n" for name in names), encoding="utf-8")
            trained.append(evaluated(folder / str(seed), pool, names, bars, limit))
        with open_session(first.config, bars) as (store, _):
            members = _members(first.config, store, bars)
        figures = [*compared(trained), *behind_a_threshold(members, first.config, options)]
    if not options.json:
        for each in trained:
            print_methods(Evaluation.model_validate(each.table))
    kept = {key: value for key, value in first.table.items() if key not in ("schema_version", "provenance")}
    tell("methods", figures, options, table=kept)
    return 0


def models_of(seed: int, names: Sequence[str], folder: Path) -> Path:
    """The folder of the models of a seed; those that are missing are trained."""
    models = folder / f"demo-seed-{seed}" / "models"
    # Written last, so a training that was interrupted has none.
    if missing := [name for name in names if not (models / name / "training.json").is_file()]:
        progress(f"benchmarks.studies.methods: training {', '.join(missing)} from seed {seed}")
        train.main(only=missing, out=models.parent, seed=seed)
    return models


def evaluated(folder: Path, pool: Path | None, names: Sequence[str], bars: Progress, limit: int | None) -> Trained:
    """Evaluate all methods on the models of one training.

    Args:
        folder: Where the run and its cache are written.
        pool: The pool file; None for the demo's own pool, of which the rules choose a set.
        names: The members, the primary first; none to let the rules choose.
        bars: Shows progress.
        limit: Questions of each split; None for all.
    """
    cache, out = folder / "cache", folder / "run"
    choose(out, cache, bars, limit, pool)
    methods, members = ",".join(list_methods()), ",".join(names)
    options = EvaluateOptions(run=out, task=TASK, limit=limit, methods=methods, members=members, k=K, cache_dir=cache)
    run = Run.open(out)
    config = evaluation_config(run, options, COMMAND)
    progress(f"benchmarks.studies.methods: {len(list_methods())} methods on {pool or 'the demo'}")
    names = list(list_methods())
    with open_session(config, bars) as (store, _):
        given = learned_options(run, names, config)
        evaluator = Evaluator(config, names, given, store, bars)
        profiles, results = evaluator.run()
        table = written(evaluation_of(profiles, results, config, evaluator.task, {}))
        tokens = tokens_of(table)
        best = next(profile for profile in profiles if profile.model == table["best_single_model"])
        draws = {name: draws_of(count, tokens, len(profiles)) for name, count in tokens.items()}
        majorities = {
            count: majority(best.model, count, config, Profiler(config, store, bars)) for count in {*draws.values()}
        }
    scored = {result.method: scores(result.profile) for result in results if result.profile is not None}
    return Trained(config, table, scored, scores(best), tokens, draws, majorities)


def choose(out: Path, cache: Path, bars: Progress, limit: int | None, pool: Path | None = None) -> None:
    """Choose a set among the models of a pool, the demo's if none is given, and write its run folder."""
    progress(f"benchmarks.studies.methods: choosing a set for {TASK}")
    options = SelectOptions(pool=str(pool or "demo"), task=TASK, limit=limit, no_verify=True, cache_dir=cache)
    if limit is not None or pool is not None:
        # With few questions the rules would choose nothing, and the point is only to run everything once. The set of
        # another seed is given.
        options = replace(options, max_gap=100.0, max_length_ratio=1e9)
    plan = RunConfig.from_options(options, COMMAND)
    with open_session(plan, bars) as (store, _):
        outcome = run(plan, store, bars)
    write_run(out, result_of(outcome), samples_of(outcome))


def behind_a_threshold(members: Sequence[Member], plan: RunConfig, options: argparse.Namespace) -> Iterator[Figure]:
    """What GaC behind a threshold costs over its gate alone, for single prompts and for batches."""
    questions = plan.held_out.examples if plan.held_out else ()
    tokens = 4 if options.quick else 64
    work = Work([example.prompt for example in questions[: 2 * BATCH]], 2 if options.quick else BATCH, tokens)
    timer = Timer(options.rounds or (1 if options.quick else 7), options.clock)
    gate = Ensemble(members[:1], k=1)
    shares, needed = {}, list[bool]()
    for threshold in THRESHOLDS:
        joint = Ensemble(members, method="gac-threshold", k=K, threshold=threshold)
        shares[threshold], needed = _share(joint, work)
        if shares[threshold] < FEW:
            break
    progress(f"benchmarks.studies.methods: GaC behind a threshold of {threshold:g}")
    for batch, end in ((1, ""), (BATCH, f"_batch{BATCH}")):
        alone = by_ensemble(gate, work, batch=batch)
        parts = {
            "joint": by_ensemble(joint, work, batch=batch),
            "gate": alone,
            "least": _least(joint, work, needed, alone, batch),
        }
        times = timer(parts)
        what = f"threshold {threshold:g}, {batch} at a time, without drafts; the gate is {members[0].name}"
        yield ratio(
            f"gac_threshold_over_gate{end}", times["joint"], times["gate"], limit=f"at most {LIMIT:g}", note=what
        )
        note = "the gate alone, and the other members read the prompts of the texts that need them, once; no more"
        yield ratio(f"gac_threshold_least{end}", times["least"], times["gate"], note=note)
    note = "of the steps are ensembled; by threshold: " + ", ".join(
        f"{each:g} {share:.3f}" for each, share in shares.items()
    )
    yield Figure("gac_threshold_share", shares[threshold], note=note)
    yield Figure("gac_threshold_texts", sum(needed) / len(needed), note="of the texts need the other members")


def _share(ensemble: Ensemble, work: Work) -> tuple[float, list[bool]]:
    """The share of the steps that are ensembled, and which texts have such steps."""
    encoded = [ensemble.encode(prompt) for prompt in work.prompts]
    made = sorted(ensemble.generate_each(encoded, Settings(work.tokens), Batch(BATCH)), key=lambda each: each[0])
    counts = [generation.counts for _, generation in made]
    share = sum(count.combined for count in counts) / sum(count.steps for count in counts)
    return share, [count.combined > 0 for count in counts]


def _least(
    ensemble: Ensemble, work: Work, needed: Sequence[bool], alone: Callable[[], int], batch: int
) -> Callable[[], int]:
    """A part that does no more than any decoder with these members must: see the figure's note."""
    prompts = work.prompts if batch > 1 else work.prompts[: work.alone]
    encoded = [ensemble.encode(prompt) if need else None for prompt, need in zip(prompts, needed, strict=False)]

    @torch.inference_mode()
    def part() -> int:
        steps = alone()
        for start in range(0, len(encoded), batch):
            rows = [each for each in encoded[start : start + batch] if each is not None]
            for n, member in enumerate(ensemble.members[1:], start=1):
                if rows:
                    member.runner().admit([row[n] for row in rows])
        return steps

    return part


def _members(plan: RunConfig, store: Any, bars: Progress) -> Sequence[Member]:
    """The set's members, loaded as the table's were."""
    profiler = Profiler(plan, store, bars)
    return profiler.load([candidate.name for candidate in plan.candidates]).members


if __name__ == "__main__":
    sys.exit(main())
