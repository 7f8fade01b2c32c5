"""The decoder against its members, drafts against the primary, a step against topk: ``python -m benchmarks.decode``.

Every ratio comes from one run, in which its parts take turns. Three kinds of models are used: the demo's (where they
have been trained), in which what is not the model weighs most; a pair of middle size with real vocabularies; and none
at all for a step by itself and for the tables. What is not here: accelerators (see
``benchmarks.gpu``) and equal texts, which the tests compare.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks._counting import READS_LIMIT, reads_per_step
from benchmarks._decoding import BATCH, Work, drafting_figures, pair_figures, step_figures
from benchmarks._host import host_figures
from benchmarks._measure import Figure, Timer, arguments, measured, parsed, peak_memory, spread, tell
from benchmarks._models import MIDDLE, TINY, demo_members, demo_prompts, random_member, vocabularies_note, vocabulary
from ensemble.vocabulary.joint import load_or_build
from ensemble.vocabulary.token_bytes import Vocabulary

PAIR = ("qwen2", "llama-3")
SIZES = (1, 16, 64)
"""Rows for which the host's time is measured."""
KEYS = (
    "step_over_topk",
    *(f"host_ms_per_step_{size}{members}" for members in ("", "_three") for size in SIZES),
    "device_reads_per_step",
    "plain_over_members",
    "speculative_over_primary",
    "speculative_over_primary_long",
    "drafted_over_plain_batch4",
    "drafted_over_plain_sampled",
    f"batch{BATCH}_speedup",
    "tables_first_s",
    "tables_again_s",
)
"""What is always in the JSON object; null where it cannot be measured."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure what is asked for, print it, keep it where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--only", choices=SECTIONS, action="append", help="just this section; can be given several times"
    )
    parser.add_argument("--pool", default="demo", help="a pool file to take the demo's models from")
    options = parsed(parser, given)
    figures = measured("benchmarks.decode", SECTIONS, KEYS, options)
    figures.append(Figure("peak_memory_mib", peak_memory(), note="the whole process, at its end"))
    tell("decode", figures, options)
    return 0


def _timer(options: argparse.Namespace, rounds: int) -> Timer:
    return Timer(options.rounds or (1 if options.quick else rounds), options.clock)


def step(options: argparse.Namespace) -> list[Figure]:
    """A step by itself."""
    vocabularies = [vocabulary(name, quick=options.quick) for name in PAIR]
    note = vocabularies_note(PAIR, quick=options.quick)
    return step_figures(vocabularies, _timer(options, 15), 2 if options.quick else 100, note)


def host(options: argparse.Namespace) -> list[Figure]:
    """What a step costs beyond the models' passes, with the demo's models."""
    sizes = SIZES[:2] if options.quick else SIZES
    return host_figures(demo_members(options.pool)[:3], _timer(options, 7), 2 if options.quick else 100, sizes)


def reads(options: argparse.Namespace) -> list[Figure]:
    """How often a step would read from a device, which waits for it then; counted without one."""
    members = demo_members(options.pool)
    sizes = SIZES[:1] if options.quick else SIZES
    with tempfile.TemporaryDirectory() as folder:
        most = max(reads_per_step(members[:count], demo_prompts(max(sizes)), sizes, Path(folder)) for count in (2, 3))
    note = "the most of any step, two and three members, 1, 16 and 64 texts: plain, traced, drawn, log-probabilities"
    return [Figure("device_reads_per_step", most, limit=READS_LIMIT, note=note)]


def tables(options: argparse.Namespace) -> list[Figure]:
    """Building the joint vocabulary's tables, and reading them from the cache folder in a new process's place."""
    tokenizers = [vocabulary(name, quick=options.quick) for name in PAIR]
    timer = _timer(options, 3)
    seconds: dict[str, list[float]] = {"first": [], "again": []}
    for _ in range(timer.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for taken in seconds.values():
                # New ones, because they remember what they have worked out.
                fresh = [Vocabulary(tokenizer, (), rows) for tokenizer, rows in tokenizers]
                taken.append(timer.once(partial(load_or_build, fresh, Path(folder))))
    note = vocabularies_note(PAIR, quick=options.quick)
    return [
        spread("tables_first_s", seconds["first"], limit="at most 5", note=note),
        spread("tables_again_s", seconds["again"], limit="at most 0.2", note=note),
    ]


def demo(options: argparse.Namespace) -> list[Figure]:
    """The demo's models."""
    members = demo_members(options.pool)
    work = Work(demo_prompts(BATCH), 2 if options.quick else BATCH, 4 if options.quick else 64)
    timer = _timer(options, 7)
    pair = members[:2]
    figures = pair_figures(pair, work, timer, note=" + ".join(member.name for member in pair))
    figures += drafting_figures(pair, work, timer, note=" + ".join(member.name for member in pair))
    if steps := [member for member in members if member.name.startswith("stepwise")]:
        # Only one of the models writes long answers, so it is put beside itself.
        for measured in (pair_figures, drafting_figures):
            figures += measured(steps * 2, work, timer, suffix="_long", note=f"{steps[0].name} twice")
    figures.append(Figure("peak_memory_demo_mib", peak_memory(), note="the process, at the end of the demo's models"))
    return figures


def middle(options: argparse.Namespace) -> list[Figure]:
    """Random models of middle size, whose time goes into the model as that of real ones does."""
    shape, tokens = (TINY, 4) if options.quick else (MIDDLE, 32)
    members = [
        random_member(f"{name}-random", *vocabulary(name, quick=options.quick), shape, sure=name == PAIR[0])
        for name in PAIR
    ]
    prompts = [f"Tell me something about the number {n}, and say it in as few words as you can." for n in range(BATCH)]
    work = Work(prompts, 1 if options.quick else 2, tokens)
    note = f"{shape.layers} layers of {shape.hidden}, {vocabularies_note(PAIR, quick=options.quick)}"
    timer = _timer(options, 3)
    return pair_figures(members, work, timer, suffix="_middle", note=note)


SECTIONS: dict[str, Callable[[argparse.Namespace], list[Figure]]] = {
    "step": step,
    "host": host,
    "reads": reads,
    "demo": demo,
    "middle": middle,
    "tables": tables,
}


if __name__ == "__main__":
    sys.exit(main())
