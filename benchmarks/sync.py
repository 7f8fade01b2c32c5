"""What a step would cost an accelerator beyond its members: ``python -m benchmarks.sync``.

It counts on any machine, without an accelerator: how often the host reads from the device, which makes it wait for all
work in the queue, how many operations launch kernels, and how many copies go to the device. Members' own forward passes
are not counted, and their reads are counted apart. The host's time is measured; all else is the same on every machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks._counting import BATCHES, MODES, count_steps, host_seconds, most_per_step
from benchmarks._host import HOST_LIMITS
from benchmarks._measure import Figure, Timer, arguments, progress, spread, tell
from benchmarks._models import TINY, made_up_tokenizer, random_member
from ensemble.decode.settings import MAX_DRAFT_TOKENS, Batch, Settings
from ensemble.models.member import Member

NAMES = ("sure", "unsure", "other")
ENDS = {2: "", 3: "_three"}
"""What the names of figures end in, by the number of members."""
READS_LIMIT = "at most 2"
DRAFTED_TOKENS = 48

Counts = Mapping[tuple[int, int, str], Sequence[Counter[str]]]
"""The steps by members, texts at a time, and mode."""


def main(given: Sequence[str] | None = None) -> int:
    """Count and measure, print the figures, keep them where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    members = tiny_members()
    with tempfile.TemporaryDirectory() as folder:
        figures = [*_count(members, options, Path(folder)), *_time(members, options, Path(folder))]
    tell("sync", figures, options)
    return 0


def tiny_members(device: torch.device | None = None) -> list[Member]:
    """Random models, which write words and never end; the first is sure of its words, so that drafts are accepted."""
    return [
        random_member(name, made_up_tokenizer(2000, name), 2048, TINY, sure=name == NAMES[0], device=device)
        for name in NAMES
    ]


def prompts(count: int) -> list[str]:
    """Prompts of several lengths, so that rows are padded as those of users are."""
    return [f"Tell me something about the number {7**n}, and say it in few words." for n in range(count)]


def _count(members: Sequence[Member], options: argparse.Namespace, folder: Path) -> list[Figure]:
    batches = BATCHES[:1] if options.quick else BATCHES
    counts: dict[tuple[int, int, str], list[Counter[str]]] = {}
    for many in ENDS:
        for size in batches:
            progress(f"benchmarks.sync: {many} members, {size} at a time")
            for mode, (settings, batch) in MODES.items():
                counts[many, size, mode] = count_steps(members[:many], prompts(size), settings, batch, cache_dir=folder)
    drafted = {many: _drafted(members[:many], folder) for many in ENDS}
    modes = ", ".join(MODES)
    figures = [
        Figure("device_reads_per_step", _worst(counts, "reads"), limit=READS_LIMIT, note=f"the worst of {modes}"),
        *(Figure(f"device_reads_{mode}", _worst(counts, "reads", mode), limit=READS_LIMIT) for mode in MODES),
        *(
            Figure(f"device_reads_per_token_drafted{end}", drafted[many]["reads"] / DRAFTED_TOKENS, note="one text")
            for many, end in ENDS.items()
        ),
        Figure(
            "device_reads_in_models",
            _worst(counts, "reads_in_models"),
            note="in the forward passes of all members in a step; transformers reads a mask that has padding",
        ),
        Figure(
            "mixed_operations",
            sum(step["mixed"] for steps in [*counts.values(), list(drafted.values())] for step in steps),
            limit="0",
            note="over tensors of the host and the device, in all steps",
        ),
    ]
    for what in ("kernels", "copies"):
        figures += [
            Figure(f"{what}_per_step_{size}{end}", _median(counts[many, size, "plain"], what))
            for many, end in ENDS.items()
            for size in batches
        ]
        figures += [
            Figure(f"{what}_per_step_{mode}", _median(counts[2, batches[-1], mode], what), note=f"{batches[-1]} texts")
            for mode in list(MODES)[1:]
        ]
    return figures


def _drafted(members: Sequence[Member], folder: Path) -> Counter[str]:
    """What a text costs from its prompt to its end, with drafts."""
    settings = Settings(DRAFTED_TOKENS)
    steps = count_steps(members, prompts(1), settings, Batch(1, MAX_DRAFT_TOKENS), cache_dir=folder)
    return sum(steps, Counter())


def _worst(counts: Counts, what: str, mode: str | None = None) -> int:
    return max(most_per_step(what, steps) for (*_, own), steps in counts.items() if mode in (None, own))


def _median(steps: Sequence[Counter[str]], what: str) -> float:
    return statistics.median(step[what] for step in steps[1:-1])


def _time(members: Sequence[Member], options: argparse.Namespace, folder: Path) -> list[Figure]:
    """The host's time of a step, where all sizes take turns."""
    timer = Timer(options.rounds or (1 if options.quick else 7), options.clock)
    batches = BATCHES[:1] if options.quick else BATCHES
    seconds: dict[tuple[int, int], list[float]] = {(many, size): [] for many in ENDS for size in batches}
    for turn in range(timer.untimed + timer.rounds):
        progress(f"benchmarks.sync: the host's time, round {turn} of {timer.rounds}")
        for (many, size), taken in seconds.items():
            found = host_seconds(members[:many], prompts(size), timer.now, 4 if options.quick else 35, folder)
            if turn >= timer.untimed:
                taken.append(found)
    return [
        spread(
            f"host_ms_per_step_{size}{ENDS[many]}_tiny",
            [1000 * each for each in taken],
            limit=f"at most {HOST_LIMITS[many, size]}",
            note="random models of two narrow layers, without their forward passes",
        )
        for (many, size), taken in seconds.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
