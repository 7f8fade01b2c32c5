"""``samples.jsonl``: the questions with every response, what is telling about each, and which of them the report shows.

A line, as written (``split`` is ``dev`` or ``held_out``; ``ensemble`` is null on the questions that it did not see)::

    {"id": "q7", "prompt": "2 + 2 =", "reference": "4", "split": "held_out",
     "responses": {"tiny-a": {"text": " 4", "extracted": "4", "score": 1.0, "length": 2, "finish_reason": "stop"}},
     "ensemble": {"text": " 4", "extracted": "4", "score": 1.0, "length": 2, "finish_reason": "stop"}}

The ensemble's may have a ``trace`` (:mod:`reports.traces`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from reports.fields import Fields, read_lines
from reports.model import Result
from reports.traces import MOST_BYTES as MOST_TRACES
from reports.traces import Trace, read_trace
from reports.visible import visible

MOST_EXAMPLES = 200
"""Examples in the report; the others stay in ``samples.jsonl``."""

LONGEST_TEXT = 4000
"""Characters that are shown of a prompt or a response: 200 examples of 5 candidates have to stay below 2 MB."""

MOST_BYTES = 1_300_000
"""Bytes of all examples together; a page of 2 MB has room for the figures and the markup beside them."""

OVERHEAD = 70
"""Bytes of the page that a response takes beside its text."""

RIGHT = 0.5
"""The score from which a response counts as right, for metrics that also score between 0 and 1."""

PROFILED = "dev"
"""The split that every candidate answered, and that the rules were applied to."""

TAGS = {
    "mended": "Ensemble mended it",
    "broke": "Ensemble broke it",
    "lone": "Only one right",
    "wrong": "All wrong",
    "cut": "Cut off",
    "traced": "Step by step",
}
"""What may be telling about an example, in the order of the filters."""


@dataclass(frozen=True, slots=True)
class Response:
    """One response to one question; ``candidate`` is an index, or None for the ensemble."""

    candidate: int | None
    text: str
    extracted: str | None
    score: float | None
    length: int
    finish_reason: str
    error: str

    @property
    def right(self) -> bool:
        """Whether the score counts as right."""
        return self.score is not None and self.score >= RIGHT


@dataclass(frozen=True, slots=True)
class Example:
    """A question with the candidates' responses, best candidate first, and the ensemble's where it has one.

    ``trace`` has the steps of the ensemble's response, where they were recorded.
    """

    id: str
    split: str
    prompt: str
    reference: tuple[str, ...]
    responses: tuple[Response, ...]
    ensemble: Response | None
    tags: tuple[str, ...]
    trace: Trace | None

    @property
    def ask(self) -> str:
        """The prompt's last paragraph on one line, shortened: with worked examples before it, that is the question."""
        paragraphs = [" ".join(paragraph.split()) for paragraph in self.prompt.split("\n\n") if paragraph.strip()]
        # A lone "Answer:" asks nothing.
        text = " ".join(paragraphs[-2:] if paragraphs and len(paragraphs[-1]) < 20 else paragraphs[-1:])
        return text if len(text) <= 160 else f"{text[:159]}…"

    @property
    def weight(self) -> int:
        """Bytes that the example adds to the page, about."""
        responses = self.responses if self.ensemble is None else (*self.responses, self.ensemble)
        texts = [self.prompt, *self.reference, *(text for each in responses for text in (each.text, each.error))]
        return OVERHEAD * (2 + len(responses)) + sum(_weight(text) for text in texts)


@dataclass(frozen=True, slots=True)
class Samples:
    """What the report takes from ``samples.jsonl``.

    Attributes:
        total: Questions in the file.
        examples: Those that are shown, those with an ensemble's response first, else in the file's order.
        opening: What every prompt begins with, as with worked examples; it is left out of the examples' prompts.
        lengths: For each candidate, the lengths of its responses on the profiled split, in characters.
    """

    total: int
    examples: tuple[Example, ...]
    opening: str
    lengths: tuple[tuple[int, ...], ...]


def read_samples(path: Path, result: Result) -> Samples | None:
    """Read ``samples.jsonl``; None where there is no such file.

    Raises:
        InputError: A line is not what it should be.
    """
    if not path.exists():
        return None
    indices = {candidate.model: candidate.index for candidate in result.candidates}
    best_single = _best_single(result, indices)
    lengths: list[list[int]] = [[] for _ in result.candidates]
    examples = []
    for fields in read_lines(path):
        example = _example(fields, indices, best_single)
        examples.append(example)
        if example.split == PROFILED:
            for response in example.responses:
                if response.candidate is not None and not response.error:
                    lengths[response.candidate].append(response.length)
    opening = common_opening([example.prompt for example in examples])
    shown = choose([_clipped(example, len(opening)) for example in _light(examples)])
    return Samples(len(examples), tuple(shown), _clip(opening), tuple(map(tuple, lengths)))


def choose(examples: list[Example]) -> list[Example]:
    """Choose the examples that are shown: held-out ones before others, and telling ones where there are too many."""

    def importance(position: int) -> tuple[bool, bool, bool, bool, int]:
        example = examples[position]
        changed = "mended" in example.tags or "broke" in example.tags
        return (example.ensemble is None, example.trace is None, not changed, not example.tags, position)

    chosen, room = [], MOST_BYTES
    for position in sorted(range(len(examples)), key=importance)[:MOST_EXAMPLES]:
        room -= examples[position].weight
        if room < 0:
            break
        chosen.append(position)
    return [
        examples[position]
        for position in sorted(chosen, key=lambda position: (examples[position].ensemble is None, position))
    ]


def common_opening(prompts: list[str]) -> str:
    """Return what all the prompts begin with, up to a paragraph's end; empty where that is hardly worth a fold."""
    if len(prompts) < 2:
        return ""
    first, last = min(prompts), max(prompts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    end = first.rfind("\n\n", 0, same) + 2
    return first[:end] if end > 160 else ""


def _light(examples: list[Example]) -> list[Example]:
    """Return the examples without the traces that the page has no room for."""
    room, light = MOST_TRACES, []
    for example in examples:
        weight = example.trace.weight if example.trace else 0
        heavy = weight > room
        room -= 0 if heavy else weight
        tags = tuple(tag for tag in example.tags if tag != "traced")
        light.append(replace(example, trace=None, tags=tags) if heavy else example)
    return light


def _example(fields: Fields, indices: dict[str, int], best_single: int | None) -> Example:
    written = fields.part("responses")
    responses = []
    for name in written.values:
        candidate = indices.get(visible(name))
        if candidate is not None:
            responses.append(_response(written.part(name), candidate))
    responses.sort(key=lambda response: response.candidate or 0)
    joint = fields.optional_part("ensemble")
    ensemble = None if joint is None else _response(joint, None)
    trace = None if joint is None else read_trace(joint.optional_part("trace"))
    return Example(
        id=fields.line("id"),
        split=fields.line("split"),
        prompt=fields.prose("prompt"),
        reference=fields.texts("reference", keep_lines=True),
        responses=tuple(responses),
        ensemble=ensemble,
        tags=(*_tags(responses, ensemble, best_single), *(["traced"] if trace else [])),
        trace=trace,
    )


def _response(fields: Fields, candidate: int | None) -> Response:
    text = fields.prose("text")
    return Response(
        candidate=candidate,
        text=text,
        extracted=None if fields.values.get("extracted") is None else fields.line("extracted"),
        score=fields.number("score"),
        length=fields.count("length", len(text)),
        finish_reason=fields.line("finish_reason"),
        error=fields.line("error"),
    )


def _tags(responses: Iterable[Response], ensemble: Response | None, best_single: int | None) -> list[str]:
    alone = list(responses)
    everyone = alone if ensemble is None else [*alone, ensemble]
    best = next((response for response in alone if response.candidate == best_single), None)
    found = {
        "mended": best is not None and ensemble is not None and ensemble.right and not best.right,
        "broke": best is not None and ensemble is not None and best.right and not ensemble.right,
        "lone": len(alone) > 1 and sum(response.right for response in alone) == 1,
        "wrong": bool(everyone) and not any(response.right for response in everyone),
        "cut": any(response.finish_reason == "length" for response in everyone),
    }
    return [tag for tag in TAGS if found.get(tag)]


def _best_single(result: Result, indices: dict[str, int]) -> int | None:
    if result.ensemble is not None and result.ensemble.best_single_model in indices:
        return indices[result.ensemble.best_single_model]
    return result.primary.index if result.primary else None


def _clipped(example: Example, opening: int) -> Example:
    return replace(
        example,
        prompt=_clip_start(example.prompt[opening:]),
        reference=tuple(_clip(text) for text in example.reference[:20]),
        responses=tuple(_clipped_response(response) for response in example.responses),
        ensemble=None if example.ensemble is None else _clipped_response(example.ensemble),
    )


def _clipped_response(response: Response) -> Response:
    extracted = None if response.extracted is None else _clip(response.extracted, 200)
    return replace(response, text=_clip(response.text), extracted=extracted, error=_clip(response.error, 400))


def _weight(text: str) -> int:
    # In JSON that is safe in a page, these take six bytes and two.
    return len(text.encode()) + 5 * sum(map(text.count, "<>&")) + sum(map(text.count, '\n\t"\\'))


def _clip_start(prompt: str) -> str:
    # The question is at a prompt's end.
    left_out = len(prompt) - LONGEST_TEXT
    return (
        prompt if left_out <= 0 else f"({left_out:,} characters before this are in samples.jsonl) …{prompt[left_out:]}"
    )


def _clip(text: str, longest: int = LONGEST_TEXT) -> str:
    return (
        text
        if len(text) <= longest
        else f"{text[:longest]}… ({len(text) - longest:,} more characters in samples.jsonl)"
    )
