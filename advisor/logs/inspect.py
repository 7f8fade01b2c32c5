"""Logs of Inspect (``inspect_ai``), in both of its forms.

``.eval`` is a zip file with ``header.json`` (``_journal/start.json`` while the evaluation runs) and one member
``samples/ID_epoch_N.json`` for each sample. ``.json`` is one object with ``eval``, ``samples`` and others.

The readers of inspect_ai have no limits: they take a member or a whole ``.json`` file into memory, whatever it expands
to, and pass settings of a sandbox to its plug-in. So the files are read here piece by piece, and inspect_ai only
checks the parts of a sample that are used, and brings old forms of them to the present one.

**Score.** The scorer's name, or ``SCORER/KEY`` for a scorer that gives several values; by default the first of the
file. ``C`` is 1, ``P`` is 0.5, ``I`` and ``N`` are 0, as inspect_ai's ``value_to_float`` has it; but a value that it
cannot convert gives no score here, and not 0.

**Draws.** The epochs, from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource
from advisor.logs.values import amount_of, choose_score, count_of, note_others, object_at
from advisor.tasks.tables.rows import LeftOut
from advisor.tasks.tables.streams import ZIP, Notes, head_of, json_items, json_members, zip_members
from advisor.tasks.tables.values import CUT, line_of, text_of, texts_of
from ensemble.common.extras import check_installed
from ensemble.errors import InputError
from ensemble.models.thinking import has_thought

if TYPE_CHECKING:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessageAssistant

SUMMARY = "Inspect: logs of inspect_ai, .eval or .json"
_HEADERS = ("header.json", "_journal/start.json")
_SAMPLE = re.compile(r"samples/.+\.json")
# Not "sandbox", whose settings would go to a plug-in, nor what is large: messages, events, attachments, store.
_USED = (
    *("id", "epoch", "input", "choices", "target", "output", "scores", "metadata", "model_usage", "total_time"),
    "error",
)
_VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_MOST_EPOCHS = 100_000


def recognise(files: Sequence[LogFile], notes: Notes) -> list[LogSource]:
    """Zip files with a header and samples, and JSON files with ``eval.created`` and samples."""
    sources = []
    for file in files:
        names = _names(file.path) if file.head.startswith(ZIP) else []
        # Not "eval.model": the ids of all samples come before it, and may fill the head.
        is_json = {"eval.task", "eval.created", "status"} <= file.outline
        if any(map(_SAMPLE.fullmatch, names)) if names else is_json and _has_samples(file.path):
            sources.append(LogSource("inspect", file.path))
        elif is_json or any(name in names for name in _HEADERS):
            notes.append(f"{file.path}: a summary without responses; run inspect without --no-log-samples")
    return sources


def _names(path: Path) -> list[str]:
    """The members of a zip file that may be a log; none if it is another one."""
    try:
        names = zip_members(path)
    except InputError:
        return []
    return names if any(name in _HEADERS for name in names) else []


def _has_samples(path: Path) -> bool:
    try:
        return next(json_items(path, "samples.item"), None) is not None
    except InputError:
        return True  # reading it says what is wrong


def _content(path: Path, notes: Notes) -> tuple[dict[str, Any], Iterator[tuple[Any, str]]]:
    """The header, and the samples with their places."""
    if head_of(path).startswith(ZIP):
        names = zip_members(path)
        found = next(json_members(path, [name for name in _HEADERS if name in names], notes), None)
        return {} if found is None else found[0], json_members(path, filter(_SAMPLE.fullmatch, names), notes)
    # Only as much of the file is read as these need.
    keys = {key: next((value for value, _ in json_items(path, key)), None) for key in ("eval", "status")}
    return keys, json_items(path, "samples.item")


def read(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord | LeftOut]:
    """One record for each sample and epoch; see :class:`advisor.logs.sources.LogFormat`."""
    path = source.path
    check_installed("inspect_ai", f"{path}: a log of Inspect")
    # Also reads zip files that are compressed with zstd, from here on.
    from inspect_ai.log import EvalSample

    header, samples = _content(path, notes)
    spec = object_at(header, "eval")
    model, task = text_of(spec.get("model")), text_of(spec.get("task"))
    if model is None or not task:
        raise InputError(f"{path}: its header names no model or no task; write the log again")
    status = header.get("status")
    if status != "success":
        notes.append(f"{path}: the run did not end with success (status: {line_of(status) or 'it was still running'})")
    chosen, names = None, dict[str, None]()
    for value, place in samples:
        sample = _validated(EvalSample, value)
        number = None if sample is None else text_of(sample.id)
        if sample is None or number is None or not 1 <= sample.epoch <= _MOST_EPOCHS:
            yield LeftOut("inspect_ai says that it is not a sample of its logs", place)
            continue
        scores = _scores(sample)
        # Names are only for messages, and an untrusted file may have millions.
        if scores and len(names) < 100:
            names.update(dict.fromkeys(scores))
        if chosen is None and scores:
            # The name of a scorer with several values stands for its first value.
            first = next((name for name in scores if name.partition("/")[0] == options.score), options.score)
            chosen = choose_score(list(scores), first, path)
        grade, extracted = scores.get(chosen or "", (None, None))
        # An error is no score that cannot be read.
        score = options.scores.read(grade, model) if grade is not None or sample.error is None else None
        output, asked, error = sample.output, sample.input, sample.error
        # The first is the sum over all turns; output has the last turn only.
        usage = sample.model_usage.get(model) or output.usage
        thoughts = None if output.empty else _thoughts(output.message)
        yield LogRecord(
            model=model,
            task=task,
            id=number,
            place=place,
            question=text_of(asked if isinstance(asked, str) else "\n\n".join(message.text for message in asked)),
            reference=text_of(sample.target) or texts_of(sample.target),
            choices=texts_of(sample.choices) or (),
            response=None if output.empty else text_of(output.completion),
            extracted=text_of(extracted),
            score=score,
            metric=chosen,
            cluster=text_of(sample.metadata.get(options.cluster)) if options.cluster else None,
            tokens=None if usage is None else count_of(usage.output_tokens),
            thinking=text_of("\n\n".join(thoughts)) if thoughts else None,
            # A block without a text is hidden.
            thought=thoughts == []
            or has_thought("\n\n".join(thoughts or ()), count_of(usage and usage.reasoning_tokens) or 0),
            seconds=amount_of(sample.total_time),
            draw=sample.epoch - 1,
            cut=not output.empty and output.stop_reason in CUT,
            # Inspect can score what a model wrote before an error.
            error=(line_of(error.message) or "an error without a message") if error and score is None else None,
        )
    note_others(chosen or "", names, options.score, path, notes)


def _validated(kind: type[EvalSample], value: object) -> EvalSample | None:
    """A sample with what is used of it, in the present form; None if it is not a sample."""
    if not isinstance(value, dict):
        return None
    used = {key: value[key] for key in _USED if key in value}
    if "score" in value:  # the form of logs with one scorer, before 2024
        used["scores"] = {"score": value["score"]}
    try:
        return kind.model_validate(used, context={"deserializing": True})
    # What the functions that bring old forms up to date raise is not documented.
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return None


def _scores(sample: EvalSample) -> dict[str, tuple[object, str | None]]:
    """The value and the extracted answer of each score."""
    found: dict[str, tuple[object, str | None]] = {}
    for name, score in (sample.scores or {}).items():
        values = score.value if isinstance(score.value, Mapping) else {None: score.value}
        for key, value in values.items():
            label = str(text_of(name if key is None else f"{name}/{key}"))
            found[label] = (_VALUES.get(str(value), value), score.answer)
    return found


def _thoughts(message: ChatMessageAssistant) -> list[str] | None:
    """The texts of a message's reasoning blocks, without those that are hidden; None if it has no block."""
    blocks = [part for part in message.content if not isinstance(part, str) and part.type == "reasoning"]
    return [part.reasoning for part in blocks if part.reasoning and not part.redacted] if blocks else None
