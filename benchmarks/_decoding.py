"""The parts that are timed: decoding by an ensemble, by its members alone and by transformers, and a step by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from benchmarks._measure import Figure, Timer, ratio, spread
from ensemble import Ensemble
from ensemble.decode.settings import MAX_DRAFT_TOKENS, Batch, Settings
from ensemble.methods.gac import over_all
from ensemble.methods.unite import union
from ensemble.models.member import Member
from ensemble.step.distribution import Distribution, greedy
from ensemble.vocabulary.joint import build
from ensemble.vocabulary.token_bytes import Vocabulary

BATCH = 16
K = 10

SMALL_BATCH = 4
WARM = 0.7
"""The temperature of draws."""

STEP_LIMIT = "at most 1.25"
HALF_LIMIT = "at most 1.3"
GAC_LIMIT = "at least 10"
PLAIN_LIMIT = "at most 1.05"
DRAFTED_LIMITS = {"": "at most 1.1", "_long": "at most 0.9", "_middle": "at most 1.15"}
"""By the end of the figures' names: the demo's short and long answers, and models of middle size or real ones."""
WORTH_LIMIT = "at most 1.0"
BATCH_LIMIT = "at least 6.5"


@dataclass(frozen=True, slots=True)
class Work:
    """What is decoded.

    Attributes:
        prompts: BATCH texts.
        alone: How many of them are decoded where it is one at a time.
        tokens: Of each prompt at most.
    """

    prompts: Sequence[str]
    alone: int
    tokens: int


def by_ensemble(
    ensemble: Ensemble, work: Work, *, batch: int, draft: int = 0, temperature: float = 0.0
) -> Callable[[], int]:
    """A part that decodes the work, ``batch`` prompts at a time; its units are steps, those of EOS included."""
    prompts = work.prompts if batch > 1 else work.prompts[: work.alone]
    encoded = [ensemble.encode(prompt) for prompt in prompts]
    settings, together = Settings(work.tokens, temperature=temperature), Batch(batch, draft)

    def part() -> int:
        steps = 0
        for start in range(0, len(encoded), batch):
            for _, generation in ensemble.generate_each(encoded[start : start + batch], settings, together):
                steps += len(generation.tokens) + (generation.finish_reason == "eos")
        return steps

    return part


def pair_figures(pair: Sequence[Member], work: Work, timer: Timer, suffix: str = "", note: str = "") -> list[Figure]:
    """All ratios of some members that decode together, from one run.

    Args:
        pair: The members, the primary first.
        work: What they decode.
        timer: How it is timed.
        suffix: Of the figures' names.
        note: What the members are.
    """
    ensemble, alone = Ensemble(pair, k=K), [Ensemble([member], k=K) for member in pair]
    parts: dict[str, Callable[[], int]] = {}
    for batch in (1, BATCH):
        parts[f"plain {batch}"] = by_ensemble(ensemble, work, batch=batch)
        for n, single in enumerate(alone):
            parts[f"alone {batch} {n}"] = by_ensemble(single, work, batch=batch)
    parts["drafted"] = by_ensemble(ensemble, work, batch=1, draft=MAX_DRAFT_TOKENS)
    times = timer(parts)
    figures = []
    for batch in (1, BATCH):
        own = [times[f"alone {batch} {n}"] for n in range(len(pair))]
        end = f"_batch{batch}{suffix}" if batch > 1 else suffix
        plain = times[f"plain {batch}"]
        figures.append(ratio(f"plain_over_members{end}", plain, *own, limit=PLAIN_LIMIT, note=note))
    one_by_one = [sum(seconds) for seconds in zip(*(times[f"alone 1 {n}"] for n in range(len(pair))), strict=True)]
    together = [times[f"alone {BATCH} {n}"] for n in range(len(pair))]
    said = f"{note}, the members alone: what a batch gives them"
    figures.append(ratio(f"batch{BATCH}_speedup_of_members{suffix}", one_by_one, *together, note=said))
    drafted = times["drafted"]
    figures += [
        ratio(
            f"speculative_over_primary{suffix}",
            drafted,
            times["alone 1 0"],
            limit=DRAFTED_LIMITS.get(suffix, ""),
            note=f"{note}, the primary alone",
        ),
        ratio(f"batch{BATCH}_speedup{suffix}", times["plain 1"], times[f"plain {BATCH}"], limit=BATCH_LIMIT, note=note),
        ratio(f"batch{BATCH}_over_drafted{suffix}", drafted, times[f"plain {BATCH}"], note=f"{note}, drafting at 1"),
        spread(f"plain_ms_per_token{suffix}", [1000 * seconds for seconds in times["plain 1"]], note=note),
        spread(f"drafted_ms_per_token{suffix}", [1000 * seconds for seconds in drafted], note=note),
    ]
    return figures


def drafting_figures(
    pair: Sequence[Member], work: Work, timer: Timer, suffix: str = "", note: str = ""
) -> list[Figure]:
    """Drafted decoding over plain decoding where drafts pay less: a few texts at a time, and draws.

    Args:
        pair: The members, the primary first.
        work: What they decode.
        timer: How it is timed.
        suffix: Of the figures' names.
        note: What the members are.
    """
    ensemble = Ensemble(pair, k=K)
    kinds = {f"batch{SMALL_BATCH}": (SMALL_BATCH, 0.0), "sampled": (1, WARM)}
    times = timer(
        {
            f"{name} {draft}": by_ensemble(ensemble, work, batch=batch, draft=draft, temperature=temperature)
            for name, (batch, temperature) in kinds.items()
            for draft in (0, MAX_DRAFT_TOKENS)
        }
    )
    said = {f"batch{SMALL_BATCH}": f"{SMALL_BATCH} texts at a time", "sampled": f"one text, temperature {WARM}"}
    return [
        ratio(
            f"drafted_over_plain_{name}{suffix}",
            times[f"{name} {MAX_DRAFT_TOKENS}"],
            times[f"{name} 0"],
            limit=WORTH_LIMIT,
            note=f"{note}, {said[name]}",
        )
        for name in kinds
    ]


def step_figures(
    vocabularies: Sequence[tuple[PreTrainedTokenizerFast, int]], timer: Timer, steps: int, note: str = ""
) -> list[Figure]:
    """A step of UNITE over just its members' topk calls, and one of GaC over that of UNITE, on equal random logits."""
    device = timer.device
    joint = build([Vocabulary(tokenizer, (), rows) for tokenizer, rows in vocabularies]).to(device)
    weights = torch.full((len(vocabularies),), 1 / len(vocabularies), dtype=torch.float64, device=device)
    sizes = [rows for _, rows in vocabularies]
    whole = over_all(joint, weights.tolist())
    parts = {
        "step": _steps(lambda logits: union(logits, joint, K, weights), sizes, steps, device),
        "gac": _steps(whole, sizes, steps, device),
        "topk": _topk_calls(sizes, steps, device),
    }
    times = timer(parts)
    return [
        ratio("step_over_topk", times["step"], times["topk"], limit=STEP_LIMIT, note=note),
        ratio("gac_step_over_step", times["gac"], times["step"], limit=GAC_LIMIT, note=note),
    ]


def half_figures(
    vocabularies: Sequence[tuple[PreTrainedTokenizerFast, int]], timer: Timer, steps: int, note: str = ""
) -> list[Figure]:
    """A step of UNITE over 16 rows of logits in bfloat16, over one in float32.

    In bfloat16 the largest logits of a real model are often equal, since neighbours differ by 1/16 or 1/8 there.
    """
    joint = build([Vocabulary(tokenizer, (), rows) for tokenizer, rows in vocabularies]).to(timer.device)
    weights = torch.full((len(vocabularies),), 1 / len(vocabularies), dtype=torch.float64, device=timer.device)
    generator = torch.Generator(timer.device).manual_seed(0)
    single = [_peaked(BATCH, rows, generator) for _, rows in vocabularies]
    kinds = {
        "fp32": single,
        "bf16": [z.bfloat16() for z in single],
        # Whole numbers: tens of equal logits at any place.
        "ties": [z.round().bfloat16() for z in single],
    }
    times = timer(
        {name: _combined(lambda z: union(z, joint, K, weights), logits, steps) for name, logits in kinds.items()}
    )
    return [
        ratio(f"step_bf16_over_fp32{end}", times[name], times["fp32"], limit=HALF_LIMIT, note=f"{note}, {said}")
        for name, end, said in (
            ("bf16", "", f"{BATCH} rows"),
            ("ties", "_ties", f"{BATCH} rows, the logits in bfloat16 rounded to whole numbers"),
        )
    ] + [spread("step_fp32_batch16_ms", [1000 * seconds for seconds in times["fp32"]], note=f"{note}, {BATCH} rows")]


def _peaked(rows: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Logits [rows, size] as a model's: a normal bulk, and some fifty tokens above it that it considers."""
    device = generator.device
    logits = 2.5 * torch.randn(rows, size, generator=generator, device=device)
    few = torch.randint(size, (rows, 50), generator=generator, device=device)
    heights = 8 + 4 * torch.empty(rows, 50, device=device).exponential_(generator=generator)
    return logits.scatter_(1, few, heights)


def _logits(sizes: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(1, size, generator=generator, device=device) for size in sizes]


def _steps(
    combine: Callable[[Sequence[torch.Tensor]], Distribution], sizes: Sequence[int], steps: int, device: torch.device
) -> Callable[[], int]:
    return _combined(combine, _logits(sizes, device), steps)


def _combined(
    combine: Callable[[Sequence[torch.Tensor]], Distribution], logits: Sequence[torch.Tensor], steps: int
) -> Callable[[], int]:
    @torch.inference_mode()
    def part() -> int:
        for _ in range(steps):
            greedy(combine(logits))
        return steps

    return part


def _topk_calls(sizes: Sequence[int], steps: int, device: torch.device) -> Callable[[], int]:
    logits = _logits(sizes, device)

    @torch.inference_mode()
    def part() -> int:
        for _ in range(steps):
            for z in logits:
                z.topk(K, dim=1)
        return steps

    return part
