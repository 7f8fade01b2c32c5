"""What the sections draw from: a run's result, what the page shows of its questions, and its evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from advisor.runs.run import Run
from advisor.runs.schema.evaluation import Evaluation
from advisor.runs.schema.result import Result
from advisor.runs.schema.samples import (
    RIGHT,
    RecommendedAnswer,
    ResponseTrace,
    Sample,
    SampleResponse,
    TracedStep,
)
from advisor.strategies.fusion import Fusion
from advisor.tasks.task import place_of_answer
from reports.question_rows import KINDS, QuestionRow, field_differences, fitted, question_row, written_bytes

MOST_EXAMPLES = 200  # in the report: a reader looks at few, and the others stay in samples.jsonl
LONGEST_TEXT = 4000  # characters of a prompt or a response: one endless response must not fill the page
MOST_BYTES = 1_300_000  # of all examples and question rows: with the figures and the markup, the page has at most 2 MB
MOST_BYTES_OF_A_CANDIDATE = 6_000  # of the above: its part of the tables and drawings
LEAST_BYTES = 300_000  # of all examples, however many candidates there are
MOST_TRACE_BYTES = 400_000  # of all traces, a part of the above: a single trace has hundreds of steps
MOST_SECONDS_OF_PLACES = 5.0  # for finding the answers in the responses
OVERHEAD = 70  # bytes of markup for each response
PROFILED = "dev"  # only on this split did every candidate answer, so only its lengths can be compared
DISAGREEMENTS = (0.02, 0.1, 0.25, 0.5)  # between five shades, closer at the low end, where most steps are

# What may be remarkable about an example, in the order of the filters on the page.
TAGS = {
    "recovered": KINDS["recovered"],
    "broken": KINDS["broken"],
    "lone": "Only one right",
    "wrong": "All wrong",
    "cut": "Cut off",
    "traced": "Step by step",
}


@dataclass(frozen=True, slots=True)
class ShownResponse:
    """One response to one question; ``candidate`` is an index, or None for the ensemble.

    ``text`` and ``length`` are None if a log lacks them. ``thinking_tokens`` are those of thinking and answer together;
    None for a model that did not think, or if they are not known. ``differs`` has the fields in which a wrong JSON
    object differs from the reference, or why no answer was found. ``place`` is where the answer stands in the text.
    """

    candidate: int | None
    text: str | None
    extracted: str | None
    score: float | None
    length: int | None
    finish_reason: str
    error: str
    thinking_tokens: int | None
    differs: tuple[str, ...] = ()
    place: tuple[int, int] | None = None

    @property
    def right(self) -> bool:
        """Whether the score counts as right."""
        return _is_right(self.score)


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The steps of an ensemble's response. The last ``left_out`` of them were not recorded.

    The steps are JSON values, because all of them go to the page's script. A step is the list ``[text, won_by,
    disagreement, shade, union, chosen, candidates]``: the text (None for the end), the members whose first choice it
    was, their disagreement (0 to 1, None if unknown) and its shade (0 to 4), the size of the union, the number of the
    candidate that won (None if unknown), and the likeliest candidates, each ``[text, wanted_by, mean, probability of
    each member ...]`` with probabilities in thousandths.
    """

    members: tuple[str, ...]
    steps: tuple[list[Any], ...]
    left_out: int

    @property
    def weight(self) -> int:
        """About how many bytes the trace adds to the page."""
        candidates = [candidate for step in self.steps for candidate in step[-1]]
        texts = [text or "" for text, *_ in (*self.steps, *candidates)]
        # In JSON that is safe in a page, a character of markup takes six bytes.
        written = sum(len(text.encode()) + 5 * sum(map(text.count, '<>&\n"\\')) for text in texts)
        return written + 40 * len(self.steps) + (20 + 8 * len(self.members)) * len(candidates)


@dataclass(frozen=True, slots=True)
class ShownExample:
    """A question with the candidates' responses, best candidate first, and a joint one: the ensemble's, or a fusion's.

    ``taken`` is the index of the candidate whose response the recommended strategy takes, if it takes one.
    ``changed`` is whether this strategy is right, or else the ensemble; None if neither answered.
    """

    id: str
    split: str
    prompt: str
    reference: tuple[str, ...]
    responses: tuple[ShownResponse, ...]
    ensemble: ShownResponse | None
    taken: int | None
    changed: bool | None
    tags: tuple[str, ...]
    trace: StepTrace | None

    @property
    def all_responses(self) -> tuple[ShownResponse, ...]:
        """The candidates' responses, then the ensemble's."""
        return self.responses if self.ensemble is None else (*self.responses, self.ensemble)

    @property
    def question(self) -> str:
        """The prompt's last paragraph on one line, shortened: after worked examples, that is the question."""
        paragraphs = [" ".join(paragraph.split()) for paragraph in self.prompt.split("\n\n") if paragraph.strip()]
        # A short last paragraph such as "Answer:" is no question, so the one before it is needed.
        text = " ".join(paragraphs[-2:] if paragraphs and len(paragraphs[-1]) < 20 else paragraphs[-1:])
        return text if len(text) <= 160 else f"{text[:159]}…"

    @property
    def weight(self) -> int:
        """About how many bytes the example adds to the page."""
        responses = self.all_responses
        written = (text or "" for each in responses for text in (each.text, each.extracted, each.error, *each.differs))
        texts = [self.prompt, *self.reference, *written]
        return OVERHEAD * (2 + len(responses)) + sum(map(written_bytes, texts))


@dataclass(frozen=True, slots=True)
class ShownSamples:
    """What the report takes from ``samples.jsonl``.

    Attributes:
        total: Questions in the file.
        examples: Those that are shown, the held-out ones first, else in the file's order.
        opening: The text that all prompts begin with, such as worked examples. The prompts of the examples lack it.
        lengths: For each candidate, the lengths of its responses on the profiled split, in characters.
        questions: Who is right on each question that the page has room for, held-out questions first.
        by_strategy: Whether the file says what the recommended strategy answers; else the ensemble is compared.
    """

    total: int
    examples: tuple[ShownExample, ...]
    opening: str
    lengths: tuple[tuple[int, ...], ...]
    questions: tuple[QuestionRow, ...]
    by_strategy: bool


def shown_samples(run: Run) -> ShownSamples | None:
    """Choose what the page shows of a run's questions; None without ``samples.jsonl``.

    Raises:
        InputError: A line is broken.
    """
    if not run.has_samples:
        return None
    names = [candidate.model for candidate in run.result.candidates]
    indices = {name: index for index, name in enumerate(names)}
    # Examples are tagged by what the recommended strategy, else the ensemble, changed against this candidate.
    best_index = indices[run.result.best_single.model] if run.result.best_single else None
    lengths: list[list[int]] = [[] for _ in names]
    examples, by_strategy = [], False
    for sample in run.samples():
        example = _example(sample, indices, best_index)
        by_strategy |= sample.recommended is not None
        examples.append(example)
        if example.split == PROFILED:
            for response in example.responses:
                # A failed response has no text, and a length of 0 would distort the histogram.
                if response.candidate is not None and response.length is not None and not response.error:
                    lengths[response.candidate].append(response.length)
    # With worked examples all prompts share thousands of characters, which the page has once.
    opening = _common_opening([example.prompt for example in examples])
    questions = fitted([_question_row(example, len(names), best_index) for example in examples])
    room = MOST_BYTES - MOST_BYTES_OF_A_CANDIDATE * len(names) - sum(each.weight for each in questions)
    clipped = [_clipped_example(example, len(opening)) for example in _without_heavy_traces(examples)]
    shown = _with_places(_most_telling(clipped, max(room, LEAST_BYTES)), run.result)
    return ShownSamples(len(examples), shown, _clipped(opening), tuple(map(tuple, lengths)), questions, by_strategy)


def _example(sample: Sample, indices: dict[str, int], best_index: int | None) -> ShownExample:
    # Responses of models that result.json does not list are ignored.
    known = sorted((indices[name], name) for name in sample.responses if name in indices)
    responses = [_response(sample.responses[name], index, sample.reference) for index, name in known]
    own, recommended = sample.ensemble, sample.recommended
    trace = None if own is None or own.trace is None else _trace(own.trace)
    written: SampleResponse | None = own
    if recommended is not None and recommended.text is not None:
        # The text that runs, in place of that of a set which is not recommended.
        written, trace = SampleResponse(**recommended.model_dump(include={"text", "extracted", "score"})), None
    ensemble = None if written is None else _response(written, None, sample.reference)
    taken = None if recommended is None or recommended.draw or written is not own else indices.get(recommended.model)
    changed = _changed(sample.recommended, ensemble)
    return ShownExample(
        id=sample.id,
        split=sample.split,
        prompt=sample.prompt,
        reference=sample.reference,
        responses=tuple(responses),
        ensemble=ensemble,
        taken=taken,
        changed=changed,
        tags=_tags(responses, ensemble, changed, best_index, traced=trace is not None),
        trace=trace,
    )


def _changed(recommended: RecommendedAnswer | None, ensemble: ShownResponse | None) -> bool | None:
    """Whether the recommended strategy is right, or else the ensemble; None if neither answered the question."""
    if recommended is not None:
        return _is_right(recommended.score)
    return ensemble.right if ensemble else None


def _question_row(example: ShownExample, candidates: int, best_index: int | None) -> QuestionRow:
    right = {each.candidate: each.right for each in example.responses if each.candidate is not None}
    held_out = example.split != PROFILED
    return question_row(
        example.id,
        example.question,
        right,
        example.changed,
        held_out=held_out,
        candidates=candidates,
        best=best_index,
    )


def _response(response: SampleResponse, candidate: int | None, reference: Sequence[str]) -> ShownResponse:
    text = response.text
    is_measured = "length" in response.model_fields_set
    return ShownResponse(
        candidate=candidate,
        # Clipped at once: a run with many models has hundreds of thousands.
        text=None if text is None else _clipped(text),
        # No answer found (null) is different from an empty answer.
        extracted=None if response.extracted is None else _clipped(response.extracted, 200),
        score=response.score,
        # Null says that the text is an option, whose length is not the model's.
        length=len(text) if text is not None and not is_measured else response.length,
        finish_reason=response.finish_reason or "",
        error=_clipped(response.error or "", 400),
        thinking_tokens=response.tokens if response.thought else None,
        differs=_differences(response, reference),
    )


def _differences(response: SampleResponse, reference: Sequence[str]) -> tuple[str, ...]:
    if response.problem is not None:
        return (_clipped(response.problem, 200),)
    return () if _is_right(response.score) else field_differences(response.extracted, reference)


def _is_right(score: float | None) -> bool:
    return score is not None and score >= RIGHT


def _tags(
    responses: Sequence[ShownResponse],
    ensemble: ShownResponse | None,
    changed: bool | None,
    best_index: int | None,
    *,
    traced: bool,
) -> tuple[str, ...]:
    # Several tags may hold, and some need responses that the question does not have.
    everyone = responses if ensemble is None else [*responses, ensemble]
    best = next((response for response in responses if response.candidate == best_index), None)
    holds = {
        "recovered": best is not None and changed is True and not best.right,
        "broken": best is not None and changed is False and best.right,
        "lone": len(responses) > 1 and sum(response.right for response in responses) == 1,
        "wrong": bool(everyone) and not any(response.right for response in everyone),
        "cut": any(response.finish_reason == "length" for response in everyone),
        "traced": traced,
    }
    return tuple(tag for tag in TAGS if holds[tag])


def _trace(trace: ResponseTrace) -> StepTrace | None:
    steps = tuple(_step(step) for step in trace.steps)
    return StepTrace(trace.members, steps, trace.left_out) if trace.members and steps else None


def _step(step: TracedStep) -> list[Any]:
    # Thousandths keep the page small: a run has thousands of steps.
    candidates = [
        [each.text, list(each.wanted_by), *(round(1000 * share) for share in (each.mean or 0.0, *each.probabilities))]
        for each in step.candidates
    ]
    return [
        step.text,
        list(step.won_by),
        step.disagreement,
        sum((step.disagreement or 0.0) >= limit for limit in DISAGREEMENTS),
        len(candidates) if step.union is None else step.union,
        # A number outside the recorded candidates reads as unknown: the file keeps only the likeliest of them.
        step.chosen if step.chosen is not None and step.chosen < len(candidates) else None,
        candidates,
    ]


def _common_opening(prompts: list[str]) -> str:
    """Return the text that all prompts begin with, up to the end of a paragraph; empty if it is short."""
    if len(prompts) < 2:
        return ""
    # In alphabetical order all others lie between the first and the last, and so begin with what these two share.
    first, last = min(prompts), max(prompts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    end = first.rfind("\n\n", 0, same) + 2
    # A short opening would take more room as a fold than as text.
    return first[:end] if end > 160 else ""


def _without_heavy_traces(examples: list[ShownExample]) -> list[ShownExample]:
    """Remove the traces that the page has no room for."""
    room, light = MOST_TRACE_BYTES, []
    for example in examples:
        weight = example.trace.weight if example.trace else 0
        heavy = weight > room
        room -= 0 if heavy else weight
        tags = tuple(tag for tag in example.tags if tag != "traced")
        light.append(replace(example, trace=None, tags=tags) if heavy else example)
    return light


def _most_telling(examples: list[ShownExample], room: int) -> list[ShownExample]:
    """Choose the examples for so many bytes: held-out ones first, then those with a trace or with tags."""
    changed = [n for n, example in enumerate(examples) if {"recovered", "broken"} & set(example.tags)]
    # At most half, so that the other filters have examples too.
    first_changed = set(changed[: MOST_EXAMPLES // 2])

    def importance(position: int) -> tuple[bool, bool, bool, bool, int]:
        example = examples[position]
        is_changed = position in first_changed
        return (example.split == PROFILED, example.trace is None, not is_changed, not example.tags, position)

    chosen = []
    for position in sorted(range(len(examples)), key=importance)[:MOST_EXAMPLES]:
        room -= examples[position].weight
        # Stop at the first that does not fit: smaller but less important examples would be an odd selection.
        if room < 0:
            break
        chosen.append(position)
    chosen.sort(key=lambda position: (examples[position].split == PROFILED, position))
    return [examples[position] for position in chosen]


def _with_places(examples: list[ShownExample], result: Result) -> tuple[ShownExample, ...]:
    """Examples with the places of the answers in their responses."""
    # A pattern may be a stranger's, and slow.
    deadline = time.monotonic() + MOST_SECONDS_OF_PLACES

    def placed(response: ShownResponse) -> ShownResponse:
        if not response.text or not response.extracted or time.monotonic() > deadline:
            return response
        task = result.task
        return replace(response, place=place_of_answer(task.metric, task.extract, response.text, response.extracted))

    return tuple(
        replace(
            example,
            responses=tuple(map(placed, example.responses)),
            ensemble=None if example.ensemble is None else placed(example.ensemble),
        )
        for example in examples
    )


def _clipped_example(example: ShownExample, opening: int) -> ShownExample:
    prompt = example.prompt[opening:]
    left_out = len(prompt) - LONGEST_TEXT
    if left_out > 0:  # the question is at the end of a prompt
        prompt = f"({left_out:,} characters before this are in samples.jsonl) …{prompt[left_out:]}"
    return replace(
        example,
        prompt=prompt,
        reference=tuple(_clipped(text) for text in example.reference[:20]),
    )


def _clipped(text: str, longest: int = LONGEST_TEXT) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text) - longest:,} more characters in samples.jsonl)"


@dataclass(frozen=True, slots=True)
class ReportData:
    """A run as the page has room for it.

    Attributes:
        result: ``result.json``.
        samples: None without ``samples.jsonl``.
        evaluation: None without ``evaluation.json``.
    """

    result: Result
    samples: ShownSamples | None
    evaluation: Evaluation | None


def report_data(run: Run) -> ReportData:
    """Read all files of a run.

    Raises:
        InputError: A file is broken, or an older version wrote it.
    """
    return ReportData(run.result, shown_samples(run), run.evaluation)


def joint_name(result: Result) -> str:
    """What writes the joint response that examples show: a recommended fusion, or else the set; empty if neither."""
    recommended = result.recommended
    if recommended is not None and isinstance(recommended.key, Fusion):
        return recommended.title
    return f"{result.ensemble.name} ensemble" if result.ensemble else ""
