"""Two models of seven billion parameters on an accelerator: ``python -m benchmarks.gpu``.

The weights are random and in bfloat16, the shapes Llama 2 7B's, the vocabularies as large as Llama 2's, Qwen2's and
Llama 3's (made up where the real tokenizers are absent). Where there is no accelerator it says so, and that is all.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import torch
from transformers import PreTrainedTokenizerFast

from benchmarks._decoding import BATCH, Work, pair_figures, step_figures
from benchmarks._measure import Figure, Timer, arguments, machine, peak_memory, progress, tell
from benchmarks._models import (
    ROWS,
    SEVEN_BILLION,
    TINY,
    TOKENIZERS,
    Shape,
    made_up_tokenizer,
    random_member,
    vocabulary,
)
from ensemble.models.member import Member

NAMES = ("llama-2", "qwen2", "llama-3")
ROOM = 0.85
"""Share of the free memory that the weights of two models may take; caches and logits need the rest."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure every pair, print the figures, keep them where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--device", default="cuda", help="where to compute; cpu tries the benchmark out")
    parser.add_argument("--tokens", type=int, default=None, help="tokens of each prompt")
    parser.add_argument("--layers", type=int, default=None, help="fewer layers than 32, where memory is short")
    options = parser.parse_args(given)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        progress("benchmarks.gpu: there is no CUDA device here, so nothing is measured")
        if options.json:
            print("{}")
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    timer = Timer(options.rounds or (1 if options.quick else 3), options.clock, device)
    figures = _steps(options, timer)
    for names in combinations(NAMES, 2):
        figures += _pair(names, options, timer)
    tell(f"gpu-{_slug(machine(device).get('device', device.type))}", figures, options, device)
    return 0


def _steps(options: argparse.Namespace, timer: Timer) -> list[Figure]:
    """A step by itself, for each pair of vocabularies; the last pair is the one that a limit is set for."""
    progress("benchmarks.gpu: a step by itself")
    figures = []
    for names in combinations(NAMES, 2):
        found = step_figures(
            [_vocabulary(name, options.quick) for name in names],
            timer,
            2 if options.quick else 100,
            _note(names, options),
        )
        last = names == NAMES[-2:]
        figures += [
            figure if last else replace(figure, name=f"{figure.name}{_suffix(names)}", limit="") for figure in found
        ]
    return figures


def _pair(names: tuple[str, ...], options: argparse.Namespace, timer: Timer) -> list[Figure]:
    """Two models of 7 billion parameters with these vocabularies."""
    shape = _shape(names, options, timer.device)
    note = f"{_note(names, options)}, {shape.layers} layers of {shape.hidden}, bfloat16"
    progress(f"benchmarks.gpu: {note}")
    suffix = _suffix(names)
    if timer.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(timer.device)
    try:
        members = [_member(name, shape, options, timer.device, sure=name == names[0]) for name in names]
        weights = sum(p.numel() * p.element_size() for member in members for p in member.local.model.parameters())
        prompts = [f"Tell me something about the number {n}, and say it in few words." for n in range(BATCH)]
        work = Work(prompts, 1, options.tokens or (4 if options.quick else 128))
        figures = pair_figures(members, work, timer, suffix=suffix, note=note)
    except torch.OutOfMemoryError:
        return [Figure(f"plain_over_members{suffix}", None, note=f"{note}: not enough memory; try --layers 16")]
    peak = peak_memory(timer.device)
    figures.append(Figure(f"peak_memory_mib{suffix}", peak, note=note))
    if timer.device.type == "cuda":
        figures.append(Figure(f"peak_memory_over_weights{suffix}", peak * 2**20 / weights, note=note))
    notes = {member.name: reason for member in members if (reason := member.local.recompute_reason)}
    if notes:
        figures.append(Figure(f"recomputed{suffix}", None, note=f"caches are not used: {notes}"))
    return figures


def _member(name: str, shape: Shape, options: argparse.Namespace, device: torch.device, *, sure: bool) -> Member:
    tokenizer, rows = _vocabulary(name, options.quick)
    return random_member(f"{name}-random", tokenizer, rows, shape, sure=sure, dtype=torch.bfloat16, device=device)


def _shape(names: Sequence[str], options: argparse.Namespace, device: torch.device) -> Shape:
    """7 billion parameters, with fewer layers where two such models do not fit."""
    if options.quick:
        return TINY
    full = SEVEN_BILLION
    if options.layers:
        return replace(full, layers=options.layers)
    if device.type != "cuda":
        return full
    free, _ = torch.cuda.mem_get_info(device)
    layer = 2 * (4 * full.hidden**2 + 3 * full.hidden * full.intermediate)
    embeddings = sum(2 * 2 * ROWS[name] * full.hidden for name in names)
    return replace(full, layers=max(1, min(full.layers, int((ROOM * free - embeddings) / (layer * len(names))))))


def _vocabulary(name: str, quick: bool) -> tuple[PreTrainedTokenizerFast, int]:
    if quick:
        return made_up_tokenizer(2000, name), 2048
    return vocabulary(name, real=(TOKENIZERS / name).is_dir())


def _suffix(names: Sequence[str]) -> str:
    return "_" + "_".join(re.sub(r"\W", "", name) for name in names)


def _note(names: Sequence[str], options: argparse.Namespace) -> str:
    real = not options.quick and all((TOKENIZERS / name).is_dir() for name in names)
    return f"{'real' if real else 'made-up'} vocabularies of {' + '.join(names)}"


def _slug(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
