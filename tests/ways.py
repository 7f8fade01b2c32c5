"""The ways to decode the same texts, which must make no difference: drafts, batches, traces, streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ensemble import Ensemble, Generation
from ensemble.decode.settings import Batch, Settings

PLAIN = Batch(1, draft=0)
"""One by one, without drafts."""
WAYS = {
    "drafted": Batch(1),
    "batched": Batch(3, draft=0),
    "batched and drafted": Batch(3),
    "traced": Batch(32, trace=True),
}


def decode(ensemble: Ensemble, prompts: Sequence[str], settings: Settings, batch: Batch = PLAIN) -> list[Generation]:
    """The generations of some prompts, without their traces. Where a batch is smaller, prompts join it in turn."""
    encoded = [ensemble.encode(prompt) for prompt in prompts]
    made = {}
    for number, generation in ensemble.generate_each(encoded, settings, batch):
        assert len(generation.trace) == (generation.counts.steps if batch.trace else 0)
        made[number] = replace(generation, trace=())
    return [made[number] for number in range(len(prompts))]


def differences(
    ensemble: Ensemble, prompts: Sequence[str], settings: Settings, plain: Sequence[Generation]
) -> list[str]:
    """Which texts come out otherwise in another way than plain.

    Args:
        ensemble: The ensemble.
        prompts: Its prompts, each of them once.
        settings: How to decode them.
        plain: What `decode` makes of them.

    Returns:
        For each such text the way and the prompt.
    """
    found = []
    for way, batch in WAYS.items():
        made = decode(ensemble, prompts, settings, batch)
        found += [f"{way}: {p!r}" for p, one, other in zip(prompts, made, plain, strict=True) if one != other]
    for prompt, expected in zip(prompts, plain, strict=True):
        pieces = ensemble.stream(
            prompt,
            max_new_tokens=settings.max_new_tokens,
            stop=settings.stop,
            temperature=settings.temperature,
            top_p=settings.top_p,
            seed=settings.seed,
        )
        if "".join(pieces) != expected.text:
            found.append(f"streamed: {prompt!r}")
    return found
