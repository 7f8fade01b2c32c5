"""What decoding costs on this machine's GPU, in at most eight minutes: ``python -m benchmarks.gpu``.

It needs CUDA or MPS, and no download: the models are random, with the shape of Llama 2 7B (fewer layers where memory is
short) and vocabularies as large as Llama 2's, Qwen2's and Llama 3's (made up where the real tokenizers are absent). It
prints one table to paste into a message. What does not fit into the memory or the time is left out, with the reason.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks._counting import BATCHES, MODES, READS_LIMIT, ForwardPasses, short_prompts, step_reads, tiny_members
from benchmarks._decoding import K, Work, by_ensemble, ratio_figures, set_times, speed_figures, step_figures
from benchmarks._host import host_figures
from benchmarks._measure import Figure, Timer, arguments, commit, keep, machine, parsed, peak_memory, progress, tell
from benchmarks._models import ROWS, SEVEN_BILLION, TINY, Shape, random_member, vocabularies_note, vocabulary
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, first_line
from ensemble.models.member import Member
from ensemble.models.memory import parse_device
from ensemble.runtime.local_runner import logits_device

SETS = (("qwen2", "llama-3"), ("llama-2", "qwen2", "llama-3"), ("llama-2", "llama-3"))
"""Those whose figures say most come first, in case the time ends."""
SIZES = (1, 16, 64)
"""Texts at a time."""
MINUTES = 8.0
ROOM = 0.8
"""Share of the free memory that the weights of a set's models may take; caches and logits need the rest."""
EFFORTS = ((3, 128), (3, 64), (2, 32), (1, 32), (1, 16), (1, 8))
"""Rounds, and tokens of each prompt; the first that fits into the time is taken."""
STEPS_PER_TOKEN = 10
"""Steps of a set that the parts of a round take for each token of a prompt, about."""
LATE = "the time of this section was over"
_UNITS = (("_ms", "ms"), ("_mib", "MiB"), ("_second", "tokens/s"), ("_over_", "ratio"), ("speedup", "ratio"))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of this benchmark.

    Attributes:
        options: Of the command.
        timer: Its device is that of the models.
        end: When the run must be finished, by ``time.monotonic``.
    """

    options: argparse.Namespace
    timer: Timer
    end: float

    @property
    def device(self) -> torch.device:
        """The device of the models."""
        return self.timer.device

    @property
    def step_timer(self) -> Timer:
        """For steps by themselves, which run where the logits go."""
        return replace(self.timer, device=logits_device(self.device))

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()


def main(given: Sequence[str] | None = None) -> int:
    """Measure what fits, print the table, keep it where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--device", default="auto", help="cuda, cuda:1, mps; cpu with --quick tries the benchmark out")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the most that all may take")
    parser.add_argument("--tokens", type=int, default=None, help="tokens of each prompt")
    parser.add_argument("--layers", type=int, default=None, help="fewer layers than 32")
    options = parsed(parser, given)
    try:
        device = parse_device(options.device)
    except InputError as error:
        progress(f"benchmarks.gpu: {error}")
        return 2
    if options.device == "auto" and device.type == "cpu":
        progress(
            "benchmarks.gpu: it needs a GPU that torch sees by CUDA or MPS; --quick --device cpu only tries it out"
        )
        if options.json:
            print("{}")
        return 0
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    timer = Timer(options.rounds or (1 if options.quick else 3), options.clock, device)
    figures = _measure(Run(options, timer, time.monotonic() + 60 * options.minutes))
    name = f"gpu_{_slug(machine(device).get('device', device.type))}"
    if options.json:
        tell(name, figures, options, device)
    else:
        print(table(figures, device, is_quick=options.quick))
        keep(name, figures, options, device)
    return 0


def _measure(run: Run) -> list[Figure]:
    """All sections; one that fails is left out with the reason, because the others are worth having."""
    # The share of the time that is left, which a section may take: what the first ones leave is for the last ones.
    sections: list[tuple[str, Callable[[Run], list[Figure]], float]] = [
        ("step_over_topk", _steps, 0.15),
        ("host_ms_per_step", _host, 0.15),
        ("device_reads_per_step", _reads, 0.15),
        *(
            (f"plain_over_members{_suffix(names)}", partial(_set, names), 1 / (len(SETS) - n))
            for n, names in enumerate(SETS)
        ),
    ]
    figures = []
    for key, section, share in sections:
        if run.left <= 0:
            figures.append(Figure(key, None, note=f"the {run.options.minutes:g} minutes were over"))
            continue
        progress(f"benchmarks.gpu: {key}, {share * run.left:.0f} s of {run.left:.0f} s")
        try:
            figures += section(replace(run, end=run.end - (1 - share) * run.left))
        except torch.OutOfMemoryError:
            figures.append(Figure(key, None, note=f"not enough memory ({_free(run.device) / 2**30:.1f} GiB free)"))
        except Exception as error:  # noqa: BLE001  # a device may lack any operation
            figures.append(Figure(key, None, note=f"{type(error).__name__}: {first_line(error)}"))
        _give_back(run.device)
    return figures


def _steps(run: Run) -> list[Figure]:
    """A step by itself."""
    names = SETS[0]
    vocabularies = [vocabulary(name, quick=run.options.quick) for name in names]
    note = vocabularies_note(names, quick=run.options.quick)
    return step_figures(vocabularies, run.step_timer, 2 if run.options.quick else 100, note)


def _host(run: Run) -> list[Figure]:
    """What a step takes beyond the forward passes of tiny members; the clock waits for the device around each pass."""
    sizes = BATCHES[:1] if run.options.quick else BATCHES
    return host_figures(tiny_members(run.device), run.timer, 13, sizes, lambda: run.left <= 0)


def _reads(run: Run) -> list[Figure]:
    """The most reads from the device in a step: those that CUDA reports, elsewhere those that can be counted."""
    members, sizes = tiny_members(run.device)[:2], BATCHES[:1] if run.options.quick else BATCHES
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for mode, (settings, batch) in MODES.items():
            counts: list[int] = []
            for size in sizes:
                if run.left <= 0:
                    break
                if run.device.type == "cuda":
                    counts.append(_waits(members, short_prompts(size), settings, batch, Path(folder)))
                else:
                    counts.append(step_reads(members, short_prompts(size), settings, batch, Path(folder)))
            note = "" if len(counts) == len(sizes) else LATE
            figures.append(Figure(f"device_reads_{mode}", max(counts, default=None), limit=READS_LIMIT, note=note))
    worst = max((figure.value for figure in figures if figure.value is not None), default=None)
    how = (
        "synchronizing calls that CUDA reports" if run.device.type == "cuda" else "counted, not reported by the device"
    )
    return [Figure("device_reads_per_step", worst, limit=READS_LIMIT, note=f"{how}, without those of models"), *figures]


def _waits(members: Sequence[Member], texts: Sequence[str], settings: Settings, batch: Batch, folder: Path) -> int:
    """The most calls in a step of which CUDA says that the host waits, outside of the members' forward passes."""
    ensemble = Ensemble(members, cache_dir=folder)
    decoder = ensemble.decoder(batch)
    for number, text in enumerate(texts):
        decoder.add(number, ensemble.encode(text), settings)
    decoder.step()
    most = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def reported() -> float:
            return sum("called a synchronizing" in str(warning.message) for warning in caught)

        # The clock counts warnings, so what the passes "took" is their own waits.
        with ForwardPasses([member.local.model for member in members], reported) as forward:
            torch.cuda.set_sync_debug_mode("warn")
            try:
                # The last step removes the texts.
                for _ in range(settings.max_new_tokens - 2):
                    before = reported() - forward.seconds
                    decoder.step()
                    most = max(most, round(reported() - forward.seconds - before))
            finally:
                torch.cuda.set_sync_debug_mode("default")
    return most


def _set(names: tuple[str, ...], run: Run) -> list[Figure]:
    """Models of 7 billion parameters with these vocabularies, or as large as fit."""
    suffix = _suffix(names)
    shape = _shape(names, run)
    if shape is None:
        free = f"{_free(run.device) / 2**30:.1f} GiB free"
        return [
            Figure(f"plain_over_members{suffix}", None, note=f"not enough memory for a layer of each model ({free})")
        ]
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)
    members = [_member(name, shape, run, sure=name == names[0]) for name in names]
    weights = sum(p.numel() * p.element_size() for member in members for p in member.local.model.parameters())
    texts = [f"Tell me something about the number {n}, and say it in few words." for n in range(max(SIZES))]
    effort = _effort(members, texts, run)
    if effort is None:
        return [Figure(f"plain_over_members{suffix}", None, note="too slow for the time that was left; try --layers 4")]
    rounds, tokens = effort
    kinds = vocabularies_note(names, quick=run.options.quick)
    note = f"{kinds}, {shape.layers} layers of {shape.hidden}, bfloat16, {tokens} tokens"
    times = set_times(members, Work(texts, 1, tokens), replace(run.timer, rounds=rounds), SIZES)
    figures = [
        *ratio_figures(times, len(names), suffix, note),
        *speed_figures(times, [_suffix([name])[1:] for name in names], suffix, note),
    ]
    peak = peak_memory(run.device)
    figures.append(Figure(f"peak_memory_mib{suffix}", peak, note=note))
    if run.device.type == "cuda":
        figures.append(Figure(f"peak_memory_over_weights{suffix}", peak * 2**20 / weights, note=note))
    notes = {member.name: reason for member in members if (reason := member.local.recompute_reason)}
    if notes:
        figures.append(Figure(f"recomputed{suffix}", None, note=f"caches are not used: {notes}"))
    return figures


def _effort(members: Sequence[Member], texts: Sequence[str], run: Run) -> tuple[int, int] | None:
    """How many rounds, and tokens of each prompt, fit into the time; None if not even the fewest do."""
    if run.options.quick or run.options.tokens:
        return run.timer.rounds, run.options.tokens or 4
    part = by_ensemble(Ensemble(members, k=K), Work(texts, 1, 8), batch=1)
    [step] = replace(run.timer, rounds=1)({"step": part})["step"]
    room = run.left / (STEPS_PER_TOKEN * step)
    return next(((rounds, n) for rounds, n in EFFORTS if (rounds + run.timer.untimed) * n <= room), None)


def _member(name: str, shape: Shape, run: Run, *, sure: bool) -> Member:
    tokenizer, rows = vocabulary(name, quick=run.options.quick)
    return random_member(f"{name}-random", tokenizer, rows, shape, sure=sure, dtype=torch.bfloat16, device=run.device)


def _shape(names: Sequence[str], run: Run) -> Shape | None:
    """7 billion parameters, with fewer layers where these models do not fit; None if not even one layer does."""
    if run.options.quick or run.device.type == "cpu":
        return TINY
    full = SEVEN_BILLION
    if run.options.layers:
        return replace(full, layers=run.options.layers)
    layer = 2 * (4 * full.hidden**2 + 3 * full.hidden * full.intermediate)
    embeddings = sum(2 * 2 * ROWS[name] * full.hidden for name in names)
    layers = int((ROOM * _free(run.device) - embeddings) / (layer * len(names)))
    return replace(full, layers=min(full.layers, layers)) if layers > 0 else None


def _free(device: torch.device) -> float:
    """Bytes that new tensors on a device may take."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return 0.0


def _give_back(device: torch.device) -> None:
    """Free the memory of the section before."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def table(figures: Sequence[Figure], device: torch.device, *, is_quick: bool = False) -> str:
    """The figures and what they were measured on as one table in Markdown."""
    facts = machine(device)
    facts = {"device": device.type, **facts, "quick": "tiny models: tried, not measured"}
    first = (
        "device",
        "device_memory_gib",
        "cuda",
        "torch",
        "transformers",
        "processor",
        "cores",
        "system",
        *(["quick"] * is_quick),
    )
    lines = ["| name | measured | unit | limit | note |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {facts[name]} | | | |" for name in first if name in facts]
    lines.append(f"| commit | {commit()} | | | |")
    for figure in figures:
        value = "not measured" if figure.value is None else f"{figure.value:.3g}"
        if figure.low is not None and figure.high is not None:
            value += f" ({figure.low:.3g} to {figure.high:.3g})"
        is_missed = figure.limit and figure.value is not None and not figure.held and not is_quick
        limit = f"{figure.limit}: missed" if is_missed else figure.limit
        unit = next((unit for part, unit in _UNITS if part in figure.name), "")
        # A bar would begin another column.
        note = figure.note.replace("|", "/")
        lines.append(f"| {figure.name} | {value} | {unit} | {limit} | {note} |")
    return "\n".join(lines)


def _suffix(names: Sequence[str]) -> str:
    return "_" + "_".join(re.sub(r"\W", "", name) for name in names)


def _slug(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


if __name__ == "__main__":
    sys.exit(main())
