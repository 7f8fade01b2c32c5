"""The parts that are timed: decoding by an ensemble, by its members alone and by transformers, and a step by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerFast

from benchmarks._measure import Figure, Timer, ratio, spread
from ensemble import Ensemble
from ensemble.decode.settings import MAX_DRAFT_TOKENS, Batch, Settings
from ensemble.methods.unite import union
from ensemble.models.member import Member
from ensemble.runtime.draft import MAX_DRAFT_ROWS
from ensemble.step.distribution import Distribution, greedy
from ensemble.vocabulary.joint import build
from ensemble.vocabulary.token_bytes import Vocabulary

BATCH = 16
K = 10

SMALL_BATCH = 4
WARM = 0.7
"""The temperature of draws."""

STEP_LIMIT = "at most 1.25"
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


def set_times(members: Sequence[Member], work: Work, timer: Timer, sizes: Sequence[int]) -> dict[str, list[float]]:
    """The seconds of a token of some members together, for sizes of batches from 1 on, of each alone, and of drafts."""
    ensemble, alone = Ensemble(members, k=K), [Ensemble([member], k=K) for member in members]
    parts: dict[str, Callable[[], int]] = {}
    for size in sizes:
        some = replace(work, prompts=work.prompts[: max(size, work.alone)])
        parts[f"plain {size}"] = by_ensemble(ensemble, some, batch=size)
        for n, single in enumerate(alone):
            parts[f"alone {size} {n}"] = by_ensemble(single, some, batch=size)
    parts["drafted 1"] = by_ensemble(ensemble, work, batch=1, draft=MAX_DRAFT_TOKENS)
    return timer(parts)


def pair_figures(pair: Sequence[Member], work: Work, timer: Timer, suffix: str = "", note: str = "") -> list[Figure]:
    """All ratios of some members that decode together, from one run.

    Args:
        pair: The members, the primary first.
        work: What they decode.
        timer: How it is timed.
        suffix: Of the figures' names.
        note: What the members are.
    """
    return ratio_figures(set_times(pair, work, timer, (1, BATCH)), len(pair), suffix, note)


def ratio_figures(times: Mapping[str, list[float]], members: int, suffix: str, note: str) -> list[Figure]:
    """The ratios of :func:`set_times`, of one text and of BATCH texts, for so many members."""
    figures = []
    for batch in (1, BATCH):
        own = [times[f"alone {batch} {n}"] for n in range(members)]
        end = f"_batch{batch}{suffix}" if batch > 1 else suffix
        plain = times[f"plain {batch}"]
        figures.append(ratio(f"plain_over_members{end}", plain, *own, limit=PLAIN_LIMIT, note=note))
    drafted = times["drafted 1"]
    figures += [
        ratio(
            f"speculative_over_primary{suffix}",
            drafted,
            times["alone 1 0"],
            limit=DRAFTED_LIMITS.get(suffix, ""),
            note=f"{note}, the primary alone",
        ),
        ratio(f"batch{BATCH}_speedup{suffix}", times["plain 1"], times[f"plain {BATCH}"], limit=BATCH_LIMIT, note=note),
        spread(f"plain_ms_per_token{suffix}", [1000 * seconds for seconds in times["plain 1"]], note=note),
        spread(f"drafted_ms_per_token{suffix}", [1000 * seconds for seconds in drafted], note=note),
    ]
    return figures


def speed_figures(times: Mapping[str, list[float]], names: Sequence[str], suffix: str, note: str) -> list[Figure]:
    """Tokens per second of a set, over those of each member alone, the primary first; and what papers report."""
    figures = []
    for part in (part for part in times if not part.startswith("alone")):
        kind, size = part.split()
        said = f"{note}, {size} at a time, {kind}" + "; as many are never drafted" * (int(size) > MAX_DRAFT_ROWS)
        speeds = [1 / seconds for seconds in times[part]]
        figures.append(spread(f"{kind}_tokens_per_second_{size}{suffix}", speeds, note=said))
        for n, name in enumerate(names):
            key = f"{kind}_speed_over_{name}_{size}{suffix}"
            figures.append(ratio(key, times[f"alone {size} {n}"], times[part], note=said))
    alone = [times[f"alone 1 {n}"] for n in range(len(names))]
    beyond = [plain - sum(own) for plain, *own in zip(times["plain 1"], *alone, strict=True)]
    over = [1 + more / max(own) for more, *own in zip(beyond, *alone, strict=True)]
    note = f"{note}, if each member had a GPU: on one, what a step takes beyond its members"
    gac, unite = "GaC: 1.01 to 1.10 of the slowest member", "UNITE on an L40: about 10"
    figures.append(spread(f"anchor_gac_over_slowest{suffix}", over, "at most 1.1", f"{note}; {gac}"))
    milliseconds = [1000 * more for more in beyond]
    return [*figures, spread(f"anchor_unite_ms{suffix}", milliseconds, "at most 10", f"{note}; {unite}")]


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
    """A step of UNITE over just its members' topk calls, on equal random logits."""
    device = timer.device
    joint = build([Vocabulary(tokenizer, (), rows) for tokenizer, rows in vocabularies]).to(device)
    weights = torch.full((len(vocabularies),), 1 / len(vocabularies), dtype=torch.float64, device=device)
    logits = random_logits([rows for _, rows in vocabularies], device)
    parts = {
        "step": steps_of(lambda given: union(given, joint, K, weights), logits, steps),
        "topk": _topk_calls(logits, steps),
    }
    times = timer(parts)
    return [ratio("step_over_topk", times["step"], times["topk"], limit=STEP_LIMIT, note=note)]


def random_logits(sizes: Sequence[int], device: torch.device | None = None) -> list[torch.Tensor]:
    """A row of logits for each vocabulary.

    Args:
        sizes: Of the vocabularies.
        device: Where they are made; the processor without.
    """
    device = device or torch.device("cpu")
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(1, size, generator=generator, device=device) for size in sizes]


def steps_of(
    combine: Callable[[Sequence[torch.Tensor]], Distribution], logits: Sequence[torch.Tensor], steps: int
) -> Callable[[], int]:
    """A part of some steps by themselves, each on the same logits."""

    @torch.inference_mode()
    def part() -> int:
        for _ in range(steps):
            greedy(combine(logits))
        return steps

    return part


def _topk_calls(logits: Sequence[torch.Tensor], steps: int) -> Callable[[], int]:
    @torch.inference_mode()
    def part() -> int:
        for _ in range(steps):
            for z in logits:
                z.topk(K, dim=1)
        return steps

    return part
