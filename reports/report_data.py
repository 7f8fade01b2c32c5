"""What the sections draw from: a run's result, what the page shows of its questions, and its evaluation.

Of the questions it shows some as examples, with every response, and of all of them who is right: a line of signs for
each question, small enough for a page of thousands.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from advisor.run.evaluation import Evaluation
from advisor.run.figures import RIGHT, ResponseTrace, Sample, SampleResponse, TracedStep
from advisor.run.folder import Run
from advisor.run.result import Result
from advisor.tasks.task import place_of_answer

MOST_EXAMPLES = 200  # in the report: a reader looks at few, and the others stay in samples.jsonl
LONGEST_TEXT = 4000  # characters of a prompt or a response: one endless response must not fill the page
MOST_BYTES = 1_300_000  # of all examples and question rows: with the figures and the markup, the page has at most 2 MB
MOST_BYTES_OF_A_CANDIDATE = 6_000  # of the above: its part of the tables and drawings
LEAST_BYTES = 300_000  # of all examples, however many candidates there are
MOST_TRACE_BYTES = 400_000  # of all traces, a part of the above: a single trace has hundreds of steps
MOST_SECONDS_OF_PLACES = 5.0  # for finding the answers in the responses
PROFILED = "dev"  # only on this split did every candidate answer, so only its lengths can be compared
DISAGREEMENTS = (0.02, 0.1, 0.25, 0.5)  # between five shades, closer at the low end, where most steps are

MOST_BYTES_OF_ROWS = 700_000  # of all question rows
MOST_MODELS = 60  # columns: more would make a page of cells slow to draw
_LENGTHS = (120, 80, 56, 40, 28, 16, 0)  # of a question's text: with more questions, each gets fewer characters
_LONGEST_ID = 60
# U+2028 and U+2029 end a line in older JavaScript.
_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})

NOT_ASKED = "-"
# What a question may be, in the order of the filters on the page. The first two compare the strategy with the best
# single model, the others hold for all models that answered.
KINDS = {
    "recovered": "Recovered",
    "broken": "Broken",
    "disagree": "Disagree",
    "wrong": "All wrong",
    "right": "All right",
}
_BITS = {kind: 1 << place for place, kind in enumerate(KINDS)}
OF_STRATEGY = ("recovered", "broken")
SURE = 0.9
"""The probability from which on it is said that a strategy is better, and not only probably better."""
MOST_FIELDS = 8  # in the page: a reader sees then that the whole answer is another one
_ABSENT = object()

# What may be remarkable about an example, in the order of the filters on the page.
TAGS = {
    "recovered": KINDS["recovered"],
    "broken": KINDS["broken"],
    "lone": "Only one right",
    "wrong": "All wrong",
    "cut": "Cut off",
    "traced": "Step by step",
}

Shown = dict[str, Any]
"""A part of an example, or the columns of the questions, as the page's script reads it.

What most responses lack or have is left out.

An example has ``id``, ``split``, ``ask`` (its question on one line), ``prompt``, ``reference``, ``tags``,
``responses``, and where they exist ``taken`` (the candidate whose response the recommended strategy takes) and
``trace``. A response has ``by`` (the number of the candidate, best first; None for the joint one, which is last), and
where they exist ``text``, ``length`` in characters, ``tokens`` with its thinking, ``right``, ``score`` (of grades),
``extracted``, ``place`` (of the answer in the text), ``differs`` (the fields in which a wrong JSON object differs from
the reference, or why no answer was found), ``end`` and ``error``. A trace has ``members``, ``left`` (the steps that
were not recorded), and ``steps``, each the list ``[text, won_by, disagreement, shade, union, chosen, candidates]``: the
text (None for the end), the members whose first choice it was, their disagreement (0 to 1, None if unknown) and its
shade (0 to 4), the size of the union, the number of the candidate that won (None if unknown), and the likeliest
candidates, each ``[text, wanted_by, mean, probability of each member ...]`` with probabilities in thousandths.

The questions have ``ids`` and ``asks``, both shortened, the held-out questions first, and ``heldOut``, their number. A
run has up to 10,000, so all else of them is a text that the script cuts: ``cells``, a sign for each question and each
of ``models`` (the numbers of the candidates that were asked something), ``1`` for right, ``0`` for wrong and ``-`` for
not asked; ``strategy``, the signs of the strategy that is compared with the best single model; and ``flags``, a letter
for the ``kinds`` of a question, of which several may hold.
"""


@dataclass(frozen=True, slots=True)
class ShownSamples:
    """What the report takes from ``samples.jsonl``."""

    total: int  # number of questions in the file
    examples: tuple[Shown, ...]  # those that are shown, the held-out ones first
    opening: str  # what all prompts begin with, such as worked examples; those of the examples lack it
    lengths: tuple[tuple[int, ...], ...]  # by candidate, of the responses on the profiled split, in characters
    questions: Shown  # who is right on each question that the page has room for
    by_strategy: bool  # whether it says what the recommended strategy answers; else the ensemble is compared


def shown_samples(run: Run) -> ShownSamples | None:
    """Choose what the page shows of a run's questions; None without ``samples.jsonl``."""
    if not (run.folder / "samples.jsonl").exists():
        return None
    names = [candidate.model for candidate in run.result.candidates]
    indices = {name: index for index, name in enumerate(names)}
    # Examples are tagged by what the recommended strategy, else the ensemble, changed against this candidate.
    best = indices[run.result.best_single.model] if run.result.best_single else None
    lengths: list[list[int]] = [[] for _ in names]
    examples, rows, by_strategy = [], [], False
    for sample in run.samples():
        example, strategy, kinds = _example(sample, indices, best)
        by_strategy |= sample.recommended is not None
        examples.append(example)
        rows.append((example, strategy, kinds))
        if sample.split == PROFILED:
            for response in example["responses"]:
                # A failed response has no text, and a length of 0 would distort the histogram.
                if response["by"] is not None and "length" in response and "error" not in response:
                    lengths[response["by"]].append(response["length"])
    # With worked examples all prompts share thousands of characters, which the page has once.
    opening = _common_opening([example["prompt"] for example in examples])
    questions, weight = question_columns(rows, len(names))
    room = MOST_BYTES - MOST_BYTES_OF_A_CANDIDATE * len(names) - weight
    _drop_heavy_traces(examples)
    for example in examples:
        prompt = example["prompt"][len(opening) :]
        # The question is at the end of a prompt.
        if (left_out := len(prompt) - LONGEST_TEXT) > 0:
            prompt = f"({left_out:,} characters before this are in samples.jsonl) …{prompt[left_out:]}"
        example["prompt"] = prompt
    shown = _most_telling(examples, max(room, LEAST_BYTES))
    _add_places(shown, run.result)
    return ShownSamples(
        len(examples), tuple(shown), _clipped(opening), tuple(map(tuple, lengths)), questions, by_strategy
    )


def _example(sample: Sample, indices: dict[str, int], best: int | None) -> tuple[Shown, bool | None, set[str]]:
    """The example, whether the strategy that is compared is right, and the kinds of ``KINDS`` that hold."""
    # Responses of models that result.json does not list are ignored.
    known = sorted((indices[name], name) for name in sample.responses if name in indices)
    responses = [_response(sample.responses[name], index, sample.reference) for index, name in known]
    right = {each["by"]: "right" in each for each in responses}
    own, recommended = sample.ensemble, sample.recommended
    trace = None if own is None or own.trace is None else _trace(own.trace)
    joint: SampleResponse | None = own
    if recommended is not None and recommended.text is not None:
        # The text that runs, in place of that of a set which is not recommended.
        joint, trace = SampleResponse(**recommended.model_dump(include={"text", "extracted", "score"})), None
    if joint is not None:
        responses.append(_response(joint, None, sample.reference))
    # Whether the recommended strategy is right, or else the ensemble; None if neither answered the question.
    changed = _is_right(recommended.score) if recommended is not None else _is_right(joint.score) if joint else None
    alone = None if best is None else right.get(best)
    of_kinds = {
        "recovered": changed is True and alone is False,
        "broken": changed is False and alone is True,
        "disagree": len(set(right.values())) > 1,
        "wrong": bool(right) and not any(right.values()),
        "right": bool(right) and all(right.values()),
    }
    # Several tags may hold, and some need responses that the question does not have.
    holds = {
        **of_kinds,
        "lone": len(right) > 1 and sum(right.values()) == 1,
        "wrong": bool(responses) and not any("right" in response for response in responses),
        "cut": any(response.get("end") == "length" for response in responses),
        "traced": trace is not None,
    }
    example: Shown = {
        "id": sample.id,
        "split": sample.split,
        "ask": _question(sample.prompt),
        "prompt": sample.prompt,
        "reference": [_clipped(text) for text in sample.reference[:20]],
        "tags": [tag for tag in TAGS if holds.get(tag)],
        "responses": responses,
    }
    if recommended is not None and not recommended.draw and joint is own and recommended.model in indices:
        example["taken"] = indices[recommended.model]
    if trace is not None:
        example["trace"] = trace
    return example, changed, {kind for kind, is_so in of_kinds.items() if is_so}


def _question(prompt: str) -> str:
    """The prompt's last paragraph on one line, shortened: after worked examples, that is the question."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in prompt.split("\n\n") if paragraph.strip()]
    # A short last paragraph such as "Answer:" is no question, so the one before it is needed.
    text = " ".join(paragraphs[-2:] if paragraphs and len(paragraphs[-1]) < 20 else paragraphs[-1:])
    return _beginning(text, 160)


def _response(response: SampleResponse, candidate: int | None, reference: Sequence[str]) -> Shown:
    text = response.text
    # Null says that the text is an option, whose length is not the model's.
    is_measured = "length" in response.model_fields_set
    differs: Sequence[str] = () if _is_right(response.score) else field_differences(response.extracted, reference)
    if response.problem is not None:
        differs = [_clipped(response.problem, 200)]
    known: Shown = {
        # Clipped at once: a run with many models has hundreds of thousands.
        "text": None if text is None else _clipped(text),
        "length": len(text) if text is not None and not is_measured else response.length,
        "tokens": (response.tokens or None) if response.thought else None,
        "right": 1 if _is_right(response.score) else None,
        "score": None if response.score in (0, 1) else response.score,
        # No answer found (null) is different from an empty answer.
        "extracted": None if response.extracted is None else _clipped(response.extracted, 200),
        "differs": differs or None,
        "end": response.finish_reason if response.finish_reason in ("length", "error") else None,
        "error": _clipped(response.error, 400) if response.error else None,
    }
    return {"by": candidate, **{name: value for name, value in known.items() if value is not None}}


def _is_right(score: float | None) -> bool:
    return score is not None and score >= RIGHT


def _trace(trace: ResponseTrace) -> Shown | None:
    steps = [_step(step) for step in trace.steps]
    return {"members": trace.members, "left": trace.left_out, "steps": steps} if trace.members and steps else None


def _step(step: TracedStep) -> list[Any]:
    # Thousandths keep the page small: a run has thousands of steps.
    candidates = [
        [each.text, list(each.wanted_by), *(round(1000 * share) for share in (each.mean or 0.0, *each.probabilities))]
        for each in step.candidates
    ]
    return [
        step.text,
        list(step.won_by),
        None if step.disagreement is None else round(step.disagreement, 3),
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


def _drop_heavy_traces(examples: list[Shown]) -> None:
    """Remove the traces that the page has no room for."""
    room = MOST_TRACE_BYTES
    for example in examples:
        if "trace" in example:
            weight = page_bytes(example["trace"])
            if weight > room:
                del example["trace"]
                example["tags"].remove("traced")
            else:
                room -= weight


def _most_telling(examples: list[Shown], room: int) -> list[Shown]:
    """Choose the examples for so many bytes: held-out ones first, then those with a trace or with tags."""
    changed = [n for n, example in enumerate(examples) if {"recovered", "broken"} & set(example["tags"])]
    # At most half, so that the other filters have examples too.
    first_changed = set(changed[: MOST_EXAMPLES // 2])

    def importance(position: int) -> tuple[bool, bool, bool, bool, int]:
        example = examples[position]
        is_changed = position in first_changed
        return (example["split"] == PROFILED, "trace" not in example, not is_changed, not example["tags"], position)

    chosen = []
    for position in sorted(range(len(examples)), key=importance)[:MOST_EXAMPLES]:
        room -= page_bytes(examples[position])
        # Stop at the first that does not fit: smaller but less important examples would be an odd selection.
        if room < 0:
            break
        chosen.append(position)
    chosen.sort(key=lambda position: (examples[position]["split"] == PROFILED, position))
    return [examples[position] for position in chosen]


def _add_places(examples: list[Shown], result: Result) -> None:
    # A pattern may be a stranger's, and slow.
    deadline, task = time.monotonic() + MOST_SECONDS_OF_PLACES, result.task
    for response in (response for example in examples for response in example["responses"]):
        text, answer = response.get("text"), response.get("extracted")
        if text and answer and time.monotonic() <= deadline:
            place = place_of_answer(task.metric, task.extract, text, answer)
            if place is not None:
                response["place"] = place


def _clipped(text: str, longest: int = LONGEST_TEXT) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text) - longest:,} more characters in samples.jsonl)"


@dataclass(frozen=True, slots=True)
class ReportData:
    """A run as the page has room for it; `samples` and `evaluation` are None without their files."""

    result: Result
    samples: ShownSamples | None
    evaluation: Evaluation | None


def report_data(run: Run) -> ReportData:
    """Read all files of a run."""
    return ReportData(run.result, shown_samples(run), run.evaluation)


def joint_name(result: Result) -> str:
    """What writes the joint response that examples show: a recommended fusion, or else the set; empty if neither."""
    recommended = result.advice.recommendation
    if recommended is not None and recommended.key.author is not None:
        return recommended.title
    return f"{result.ensemble.name} ensemble" if result.ensemble else ""


def page_json(value: Any) -> str:
    """Return JSON that is safe inside a ``script`` element."""
    # NaN is no JSON: a browser would refuse the whole block, and the page would lose its script.
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def page_bytes(value: Any) -> int:
    """Return how many bytes a value adds to the page."""
    return len(page_json(value).encode())


def question_columns(rows: Sequence[tuple[Shown, bool | None, set[str]]], candidates: int) -> tuple[Shown, int]:
    """The questions that the page has room for, with texts that are short enough, and the bytes that they take."""
    ordered = sorted(rows, key=lambda row: row[0]["split"] == PROFILED)
    ids = [_beginning(example["id"], _LONGEST_ID) for example, *_ in ordered]
    cells = []
    for example, *_ in ordered:
        right = {each["by"]: "right" in each for each in example["responses"]}
        cells.append("".join(_sign(right.get(number)) for number in range(min(candidates, MOST_MODELS))))
    for longest in _LENGTHS:
        asks = [_beginning(example["ask"], longest) for example, *_ in ordered]
        weights = [page_bytes(each) for each in zip(ids, asks, cells, strict=True)]
        if sum(weights) <= MOST_BYTES_OF_ROWS:
            break
    count = sum(total <= MOST_BYTES_OF_ROWS for total in accumulate(weights))
    kept = ordered[:count]
    models = [number for number, signs in enumerate(zip(*cells[:count], strict=True)) if {*signs} != {NOT_ASKED}]
    columns = {
        "models": models,
        "kinds": KINDS,
        "ids": ids[:count],
        "asks": asks[:count],
        "cells": "".join(own[number] for own in cells[:count] for number in models),
        "strategy": "".join(_sign(strategy) for _, strategy, _ in kept),
        "flags": "".join(chr(ord("a") + sum(_BITS[kind] for kind in kinds)) for *_, kinds in kept),
        "heldOut": sum(example["split"] != PROFILED for example, *_ in kept),
    }
    return columns, sum(weights[:count])


def of_kind(questions: Shown, kind: str) -> int:
    """How many of the questions are of a kind."""
    return sum(bool((ord(flag) - ord("a")) & _BITS[kind]) for flag in questions["flags"])


def _sign(right: bool | None) -> str:
    return NOT_ASKED if right is None else "1" if right else "0"


def _beginning(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest - 1]}…" if longest else ""


def field_differences(answer: str | None, references: Sequence[str]) -> tuple[str, ...]:
    """The fields in which an answer differs from the reference that is the most like it: ``age is 40, not 41``."""
    own = _object(answer)
    accepted = [each for each in map(_object, references) if each is not None]
    if own is None or not accepted:
        return ()
    words = min((_compared(own, each) for each in accepted), key=len)
    more = len(words) - MOST_FIELDS
    return (*words[:MOST_FIELDS], *([f"{more} more fields"] if more > 0 else []))


def _compared(own: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    words = []
    for name in dict.fromkeys([*reference, *own]):
        value, wanted = own.get(name, _ABSENT), reference.get(name, _ABSENT)
        if value is _ABSENT:
            words.append(f"{name} is missing")
        elif wanted is _ABSENT:
            words.append(f"{name} is not in the reference")
        elif value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
            words.append(f"{name} is {_short(value)}, not {_short(wanted)}")
    return words


def _object(text: str | None) -> dict[str, Any] | None:
    # Most answers are no objects, and parsing costs time.
    if text is None or not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _short(value: Any) -> str:
    return _beginning(json.dumps(value, ensure_ascii=False), 40)
