"""The ways to decode the same texts, which must make no difference: drafts, batches, traces, streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from reference import EOS, ReferenceGeneration

from ensemble import Ensemble, Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import MemberError

T = TypeVar("T")

PLAIN = Batch(1, draft=0)
"""One by one, without drafts."""
WAYS = {
    "drafted": Batch(1),
    "batched": Batch(3, draft=0),
    "batched and drafted": Batch(3),
    "traced": Batch(3, trace=True),
    "traced and drafted": Batch(1, trace=True),
}
CLOSE = 1e-6
"""How near the probabilities of a trace must be; some norms compute in float32."""


def decode(ensemble: Ensemble, prompts: Sequence[str], settings: Settings, batch: Batch = PLAIN) -> list[Generation]:
    """The generations of some prompts. Where a batch is smaller, prompts join it in turn."""
    encoded = [ensemble.encode(prompt) for prompt in prompts]
    made = dict(ensemble.generate_each(encoded, settings, batch))
    return [made[number] for number in range(len(prompts))]


def differences(
    ensemble: Ensemble,
    prompts: Sequence[str],
    settings: Settings,
    plain: Sequence[Generation],
    judged: Sequence[ReferenceGeneration] = (),
) -> list[str]:
    """Which texts come out otherwise in another way than plain.

    Args:
        ensemble: The ensemble.
        prompts: Its prompts, each of them once.
        settings: How to decode them.
        plain: What `decode` makes of them.
        judged: What the reference makes of them; its steps are those that traces must show.

    Returns:
        For each such text the way and the prompt.
    """
    found = []
    for way, batch in WAYS.items():
        made = decode(ensemble, prompts, settings, batch)
        for n, (prompt, one, other) in enumerate(zip(prompts, made, plain, strict=True)):
            if replace(one, trace=()) != other or len(one.trace) != (one.counts.steps if batch.trace else 0):
                found.append(f"{way}: {prompt!r}")
            elif batch.trace and judged and not is_trace_of(one, judged[n]):
                found.append(f"{way}, the trace: {prompt!r}")
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


def is_trace_of(made: Generation, judged: ReferenceGeneration) -> bool:
    """Whether each step has the reference's union, and each member's probabilities: so each member read the text."""
    for step, expected in zip(made.trace, judged.steps, strict=True):
        shown = {EOS if one.data is None else one.data: (*one.probabilities, one.mean) for one in step.candidates}
        if shown.keys() != {*expected.union}:
            return False
        wanted = {entry: (*(p[entry] for p in expected.member_p), expected.p[entry]) for entry in expected.union}
        if any(abs(p - q) > CLOSE for entry, own in shown.items() for p, q in zip(own, wanted[entry], strict=True)):
            return False
    return True


def until_error(results: Iterable[tuple[int, T]], message: str) -> dict[int, T]:
    """The results by their numbers, after the last of which a member's error is raised."""
    found: dict[int, T] = {}
    with pytest.raises(MemberError, match=message):
        for number, result in results:
            found[number] = result
    return found


def assert_alike(got: Generation, wanted: Generation) -> None:
    """Log-probabilities and probabilities are rounded differently in another batch; all else is the same."""
    assert replace(got, likelihoods=(), trace=()) == replace(wanted, likelihoods=(), trace=())
    for own, other in zip(got.likelihoods, wanted.likelihoods, strict=True):
        entries = [(own.emitted, *own.alternatives), (other.emitted, *other.alternatives)]
        assert [entry.data for entry in entries[0]] == [entry.data for entry in entries[1]]
        assert [entry.logprob for entry in entries[0]] == pytest.approx([entry.logprob for entry in entries[1]])
    for mine, its in zip(got.trace, wanted.trace, strict=True):
        assert mine.data == its.data
        for one, another in zip(mine.candidates, its.candidates, strict=True):
            assert one.probabilities == pytest.approx(another.probabilities)
