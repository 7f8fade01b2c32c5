"""Every method side by side on the demo: ``python -m benchmarks.studies.methods --threads 1 --save``.

The set is chosen as ``advisor select`` does it, and evaluated as ``advisor evaluate`` does it, from an empty cache: all
methods that need nothing from elsewhere, on the 500 held-out questions, once, one after the other, in batches and so
without drafts. DeePEn-Adapt gets the members' accuracies on the dev questions. A step on real vocabularies is timed by
``benchmarks.steps``. ``python -m benchmarks._pages`` writes the page again.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from advisor.commands.evaluate import Evaluator, evaluation_config, evaluation_of, learned_options
from advisor.commands.select import run
from advisor.jobs.session import open_session
from advisor.models.run_config import RunConfig
from advisor.options.finished_run import EvaluateOptions
from advisor.options.new_run import SelectOptions
from advisor.progress import Progress
from advisor.run.evaluation import Evaluation
from advisor.run.folder import Run, write_run
from advisor.run.result import Provenance
from benchmarks._measure import arguments, parsed, progress, tell
from ensemble.common.schema import written
from ensemble.methods import list_methods
from reports.terminal import print_methods

COMMAND = "python -m benchmarks.studies.methods"
TASK = "word_problems"


def main(given: Sequence[str] | None = None) -> int:
    """Choose a set, evaluate all methods with it, print them, and keep the table where asked."""
    options = parsed(arguments((__doc__ or "").partition("\n\n")[0]), given)
    bars, limit = Progress(quiet=options.json), 6 if options.quick else None
    with tempfile.TemporaryDirectory() as name:
        table = evaluated(Path(name), bars, limit)
    if not options.json:
        print_methods(table)
    kept = {key: value for key, value in written(table).items() if key not in ("schema_version", "provenance")}
    tell("methods", [], options, table=kept)
    return 0


def evaluated(folder: Path, bars: Progress, limit: int | None) -> Evaluation:
    """Choose a set of the demo, and evaluate all methods with it.

    Args:
        folder: Where the run and its cache are written.
        bars: Shows progress.
        limit: Questions of each split; None for all.
    """
    cache, out = folder / "cache", folder / "run"
    progress(f"{COMMAND}: choosing a set for {TASK}")
    chosen = SelectOptions(pool="demo", task=TASK, limit=limit, no_verify=True, cache_dir=cache)
    if limit is not None:
        # With few questions the rules would choose nothing, and the point is only to run everything once.
        chosen = replace(chosen, max_gap=100.0, max_length_ratio=1e9)
    plan = RunConfig.from_options(chosen, COMMAND)
    with open_session(plan, bars) as (store, _):
        result, samples = run(plan, store, bars)
    write_run(out, result, samples)
    names = list(list_methods())
    options = EvaluateOptions(run=out, task=TASK, limit=limit, methods=",".join(names), cache_dir=cache)
    selected = Run.open(out)
    config = evaluation_config(selected, options, COMMAND)
    progress(f"{COMMAND}: {len(names)} methods")
    with open_session(config, bars) as (store, _):
        evaluator = Evaluator(config, names, learned_options(selected, names, config), store, bars)
        profiles, results = evaluator.run()
        return evaluation_of(profiles, results, config, evaluator.task, Provenance())


if __name__ == "__main__":
    sys.exit(main())
