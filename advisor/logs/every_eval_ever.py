"""Logs in the schema of Every Eval Ever.

``ID_samples.jsonl`` has one line for each instance and score; ``ID.json`` beside it is the aggregate, which says what
the scores are. Most files of the collection are aggregates alone: they have no responses.

**Score.** The name or the id of the metric in the aggregate, or ``evaluation_result_id``; by default the first of the
file for each evaluation. A score counts on the scale of the aggregate (0 to 1 if it names none) if more is better;
otherwise ``is_correct`` counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource
from advisor.logs.values import amount_of, companion_object, count_of, note_others, object_at
from advisor.tasks.tables.rows import LeftOut
from advisor.tasks.tables.streams import Notes, json_lines
from advisor.tasks.tables.values import UnknownFormError, line_of, response_text, score_of, text_of, texts_of
from ensemble.models.thinking import has_thought

SUMMARY = "Every Eval Ever: ID_samples.jsonl, and the aggregate ID.json beside it"
_INSTANCE = {"evaluation_id", "model_id", "evaluation_name", "sample_id", "evaluation"}
_AGGREGATE = {"schema_version", "evaluation_id", "evaluation_results"}
_GROUPS = ("subject", "category", "subset")


def recognise(files: Sequence[LogFile], notes: Notes) -> list[LogSource]:
    """Files of lines with ``sample_id`` and ``evaluation``, each with its aggregate."""
    sources = [
        LogSource("every_eval_ever", file.path, _aggregate_of(file.path))
        for file in files
        if b'"model_id"' in file.head and file.first_object.keys() >= _INSTANCE
    ]
    used = {path for source in sources for path in source.companions}
    notes.extend(
        f"{file.path}: a summary without responses; the schema has these in a file ID_samples.jsonl"
        for file in files
        if file.path not in used and file.outline >= _AGGREGATE
    )
    return sources


def _aggregate_of(path: Path) -> tuple[Path, ...]:
    # Without the ending the name stays the same, and no file is its own aggregate.
    aggregate = path.with_name(path.name.replace("_samples.jsonl", ".json"))
    return (aggregate,) if aggregate != path and aggregate.is_file() else ()


def read(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord | LeftOut]:
    """One record for each instance; see :class:`advisor.logs.sources.LogFormat`."""
    path, metrics = source.path, _metrics(source, notes)
    chosen: dict[str, tuple[str, str]] = {}
    names: dict[str, None] = {}
    several = 0
    for line, place in json_lines(path, notes):
        model, task, number = (text_of(line.get(key)) for key in ("model_id", "evaluation_name", "sample_id"))
        given, evaluation = object_at(line, "input"), object_at(line, "evaluation")
        if not model or not task or number is None or not evaluation:
            yield LeftOut("it has no model_id, no evaluation_name, no sample_id or no evaluation", place)
            continue
        result = text_of(line.get("evaluation_result_id")) or "score"
        metric = metrics.get(result, {})
        labels = [name for key in ("metric_name", "metric_id") if (name := text_of(metric.get(key)))]
        name = (labels or [result])[0]
        # Names are only for messages, and an untrusted file may have millions.
        if len(names) < 100:
            names[name] = None
        # By evaluation, because a file may have several, each with its scores.
        if options.score in (None, result, *labels):
            chosen.setdefault(task, (result, name))
        # Another score of the same instance; an instance counts once.
        if chosen.get(task) != (result, name):
            continue
        responses = _responses(line)
        several += len(responses) > 1
        value, error = _score(evaluation, metric), line_of(line.get("error"))
        score = None if value is None and error else options.scores.read(value, model)
        metadata = object_at(line, "metadata")
        performance = object_at(line, "performance")
        milliseconds = amount_of(performance.get("latency_ms")) or amount_of(performance.get("generation_time_ms"))
        reference = texts_of(given.get("reference")) or ()
        trace = object_at(line, "output").get("reasoning_trace")
        thinking = text_of(trace) or next(iter(texts_of(trace) or ()), None)
        yield LogRecord(
            model=model,
            task=task,
            id=number,
            place=place,
            question=text_of(given.get("raw")),
            reference=(reference[0] if len(reference) == 1 else reference) or text_of(given.get("reference")),
            choices=texts_of(given.get("choices")) or (),
            response=responses[0] if responses else None,
            extracted=_extracted(line),
            score=score,
            metric=name,
            group=next((value for key in _GROUPS if (value := text_of(metadata.get(key)))), None),
            cluster=text_of(metadata.get(options.cluster)) if options.cluster else None,
            tokens=count_of(object_at(line, "token_usage").get("output_tokens")),
            thinking=thinking,
            thought=has_thought(thinking, count_of(object_at(line, "token_usage").get("reasoning_tokens")) or 0),
            seconds=None if milliseconds is None else milliseconds / 1000,
            error=error if score is None else None,
        )
    taken = dict.fromkeys(name for _, name in chosen.values())
    note_others(", ".join(taken), [name for name in names if name not in taken], options.score, path, notes)
    if several:
        notes.append(f"{path}: one score for several responses counts for the first of them; instances: {several:,}")


def _metrics(source: LogSource, notes: Notes) -> dict[str, dict[str, Any]]:
    """What the aggregate says of the metric of each result."""
    results = companion_object(source.companions, notes).get("evaluation_results")
    return {
        number: object_at(result, "metric_config")
        for result in (results if isinstance(results, list) else ())
        if isinstance(result, dict) and (number := text_of(result.get("evaluation_result_id"))) is not None
    }


def _score(evaluation: Mapping[str, Any], metric: Mapping[str, Any]) -> object:
    """The score on a scale from 0 to 1, or what is in its place."""
    score, correct, worst, best = (
        *(evaluation.get("score"), evaluation.get("is_correct")),
        *(metric.get("min_score"), metric.get("max_score")),
    )
    more_is_better = metric.get("lower_is_better") is not True
    # An aggregate may leave the scale out.
    is_proportion = more_is_better and worst in (None, 0) and best in (None, 1)
    if isinstance(correct, bool) and not (is_proportion and score_of(score) is not None):
        return correct
    if is_proportion:
        return score
    scale = [value for value in (score, worst, best) if isinstance(value, (int, float))]
    if not more_is_better or len(scale) < 3 or scale[1] == scale[2]:
        return None
    return (scale[0] - scale[1]) / (scale[2] - scale[1])


def _responses(line: Mapping[str, Any]) -> tuple[str, ...]:
    """All responses of an instance; of a conversation, the last message of the model."""
    raw = object_at(line, "output").get("raw")
    if isinstance(raw, str):
        return (str(text_of(raw)),)
    if responses := texts_of(raw):
        return responses
    with contextlib.suppress(UnknownFormError):
        text = response_text(line.get("messages", line.get("interactions")))
        return () if text is None else (text,)
    return ()


def _extracted(line: Mapping[str, Any]) -> str | None:
    """The last answer that is marked as terminal."""
    listed = line.get("answer_attribution")
    answers = [answer for answer in (listed if isinstance(listed, list) else ()) if isinstance(answer, dict)]
    last = [answer for answer in answers if answer.get("is_terminal") is not False][-1:]
    return text_of(last[0].get("extracted_value")) if last else None
