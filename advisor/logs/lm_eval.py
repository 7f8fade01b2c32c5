"""Logs of lm-eval (the LM Evaluation Harness), written with ``--log_samples``.

``samples_TASK_TIME.jsonl`` has one line for each question and filter, and ``results_TIME.json`` beside it says which
model ran. The two belong together by the time in their names. Without the results file the model has its folder's name.

**Question.** Prompts differ between models (chat templates, examples), so they cannot say that two models got the same
question. It is the first field of ``doc`` that is a text and named question, problem, input, query, prompt or text; if
``doc`` has none of them, it is all of ``doc`` as JSON with sorted keys.

**Score.** ``METRIC,FILTER``, for example ``exact_match,flexible-extract``; a metric alone is taken with the first
filter that has it. By default it is the first metric in the file for which more is better, with the first filter. Lines
with other filters are left out, so that a question counts once.

**Multiple choice.** The log has log-likelihoods and no text. The extracted answer is the text of the likeliest option
(``acc_norm``: the likeliest per character; ``acc_bytes``: per byte), and a target that is the number of an option
becomes its text.

**Groups.** The task of a sub-task is its outermost group with a score, the group is the sub-task, and ids are
``SUBTASK/DOC_ID``, because each sub-task counts from 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource
from advisor.logs.values import companion_object, count_of, note_others, object_at
from advisor.tasks.tables.rows import LeftOut
from advisor.tasks.tables.streams import Notes, json_lines
from advisor.tasks.tables.values import known_options, parsed_text, text_of, texts_of
from ensemble.common.text import visible
from ensemble.errors import InputError

SUMMARY = "lm-eval: samples_TASK_TIME.jsonl, and the model in results_TIME.json beside it"
_TIME = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?"
_NAME = re.compile(rf"(?:samples_)?(?P<task>.+?)(?:_(?P<time>{_TIME}))?(?:\.jsonl?)?(?:\.(?:gz|xz|bz2))?")
_QUESTION = ("question", "problem", "input", "query", "prompt", "text")
_FIELDS = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
_NO_FILTER = "none"
_NOT_FOUND = "[invalid]"
"""What the filters of lm-eval give where they find no answer."""


def recognise(files: Sequence[LogFile], notes: Notes) -> list[LogSource]:
    """Files of lines with ``doc_id`` and ``resps``, each with the results of its time."""
    sources = [LogSource("lm_eval", file.path, _results_of(file.path)) for file in files if _has_samples(file)]
    used = {path for source in sources for path in source.companions}
    notes.extend(
        f"{file.path}: a summary without responses; run lm-eval with --log_samples"
        for file in files
        if file.path not in used and {"results", "config", "versions"} <= file.outline
    )
    return sources


def _has_samples(file: LogFile) -> bool:
    if b'"doc_id"' not in file.head:
        return False
    keys = file.first_object.keys()
    return {"doc_id", "doc", "target"} <= keys and bool({"arguments", "resps", "filtered_resps"} & keys)


def _results_of(path: Path) -> tuple[Path, ...]:
    match = _NAME.fullmatch(path.name)
    results = path.with_name(f"results_{match['time']}.json") if match and match["time"] else None
    return (results,) if results is not None and results.is_file() else ()


def read(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord | LeftOut]:
    """One record for each question; see :class:`advisor.logs.sources.LogFormat`."""
    path, results = source.path, companion_object(source.companions, notes)
    model = _model(results, path, notes)
    part = _task(results, path)
    task = _outermost(part, results)
    # Losses and perplexities are no scores, also if their values are between 0 and 1.
    lower = {
        name for name, better in object_at(object_at(results, "higher_is_better"), part).items() if better is False
    }
    chosen: tuple[str, str] | None = None
    names: dict[str, None] = {}
    seen: set[str] = set()
    several = 0
    for line, place in json_lines(path, notes):
        number = text_of(line.get("doc_id"))
        metrics, kind = _metrics(line), text_of(line.get("filter")) or _NO_FILTER
        if number is None or "doc" not in line or not metrics:
            yield LeftOut("it has no doc_id, no doc or no metric", place)
            continue
        # Names are only for messages, and an untrusted file may have millions.
        if len(names) < 100:
            names.update(dict.fromkeys(f"{metric},{kind}" for metric in metrics))
        if chosen is None:
            chosen = _choose(metrics, kind, options.score, lower, path)
        if chosen is None or kind != chosen[1]:
            continue
        if number in seen:
            yield LeftOut("its question has a line with the same filter before it", place)
            continue
        seen.add(number)
        metric, doc = chosen[0], line["doc"]
        choices, best = _options(line, metric)
        draws = _draws(line)
        scores, filtered = line.get(metric), line.get("filtered_resps")
        extracted = filtered[0] if isinstance(filtered, list) and filtered else None
        # A metric gives a score for each response, or one for all of them.
        apart = len(draws) > 1 and isinstance(scores, list) and len(scores) == len(draws)
        several += len(draws) > 1 and not apart
        for draw, response in enumerate(draws if apart else draws[:1]):
            value = scores[draw] if apart and isinstance(scores, list) else scores
            score = None if metric in lower else options.scores.read(value, model)
            found = extracted[draw] if apart and isinstance(extracted, list) and len(extracted) > draw else extracted
            yield LogRecord(
                model=model,
                task=str(text_of(task)),
                id=number if part == task else f"{text_of(part)}/{number}",
                place=place,
                question=_question(doc),
                reference=_reference(line.get("target"), choices),
                choices=choices or known_options(*map(object_at(line, "doc").get, ("options", "choices"))),
                response=text_of(response),
                extracted=best if choices else _extracted(found, kind),
                score=score,
                metric=text_of(f"{metric},{kind}"),
                group=None if part == task else text_of(part),
                cluster=text_of(object_at(line, "doc").get(options.cluster)) if options.cluster else None,
                draw=draw,
            )
    note_others(",".join(chosen or ()), names, options.score, path, notes)
    if several:
        notes.append(f"{path}: one score for several responses counts for the first of them; questions: {several:,}")
    # A run that was interrupted while it wrote leaves fewer lines.
    expected = count_of(object_at(object_at(results, "n-samples"), part).get("effective"))
    if expected is not None and len(seen) < expected:
        notes.append(f"{path}: it has {len(seen):,} of the {expected:,} questions that the results count")


def _model(results: Mapping[str, Any], path: Path, notes: Notes) -> str:
    config = object_at(results, "config")
    given = config.get("model_args")
    pairs = (pair.partition("=") for pair in given.split(",")) if isinstance(given, str) else ()
    # An object, or a text such as pretrained=org/model,dtype=auto.
    arguments = object_at(config, "model_args") or {key.strip(): value for key, _, value in pairs}
    places = (results.get("model_name"), arguments.get("pretrained"), arguments.get("model"), config.get("model"))
    if name := next((text for text in map(text_of, places) if text), None):
        return name
    name = path.resolve().parent.name
    what = f"it has the folder's name, {visible(name)}"
    notes.append(f"{path}: no results file with its time says which model it is; {what}")
    return name


def _task(results: Mapping[str, Any], path: Path) -> str:
    match = _NAME.fullmatch(path.name)
    name = match["task"] if match else path.name
    known = [*object_at(results, "configs"), *object_at(results, "n-samples")]
    # Some versions replace the other characters in the file's name.
    return next((task for task in known if name in (task, re.sub(r"\W", "_", task))), name)


def _outermost(task: str, results: Mapping[str, Any]) -> str:
    scored = object_at(results, "groups")
    parents = {
        child: group
        for group, children in object_at(results, "group_subtasks").items()
        # A group without a score only lists different tasks.
        if group in scored and isinstance(children, list)
        for child in children
        if isinstance(child, str)
    }
    # In an untrusted file a group can be its own parent.
    seen = {task}
    while (parent := parents.get(task)) is not None and parent not in seen:
        task = parent
        seen.add(task)
    return task


def _metrics(line: Mapping[str, Any]) -> list[str]:
    named = line.get("metrics")
    if isinstance(named, list):
        return [name for name in named if isinstance(name, str) and name in line]
    # Older versions do not list them.
    return [name for name, value in line.items() if name not in _FIELDS and isinstance(value, (bool, int, float, list))]


def _choose(
    metrics: Sequence[str], kind: str, wanted: str | None, lower: set[str], path: Path
) -> tuple[str, str] | None:
    """The metric and the filter that count; None if this line has another filter than the one that the user named."""
    if wanted is None:
        return next(((metric, kind) for metric in metrics if metric not in lower), (metrics[0], kind))
    found = next((metric for metric in metrics if wanted in (metric, f"{metric},{kind}")), None)
    if found in lower:
        raise InputError(
            f"--column score={wanted}: less is better by the results of {path}; choose a score to be increased"
        )
    return None if found is None else (found, kind)


def _question(doc: object) -> str | None:
    if isinstance(doc, dict):
        for name in _QUESTION:
            if isinstance(doc.get(name), str) and doc[name].strip():
                return text_of(doc[name])
    try:
        return json.dumps(doc, sort_keys=True)
    except (ValueError, RecursionError):
        return None


def _reference(target: object, options: tuple[str, ...]) -> str | tuple[str, ...] | None:
    text = text_of(target)
    if text is None:
        return texts_of(target)
    # A target of digits is always the number of an option, also if options are digits.
    if text.isdecimal() and len(text) < 4 and int(text) < len(options):
        return options[int(text)]
    # A list of accepted answers, in Python's form; one of numbers is an answer itself.
    found = parsed_text(text)
    are_texts = isinstance(found, list) and all(isinstance(item, str) for item in found)
    return (texts_of(found) or text) if are_texts else text


def _draws(line: Mapping[str, Any]) -> list[object]:
    """The responses to the line's only request; one that is not a text if it has log-likelihoods."""
    responses = line.get("resps")
    first = responses[0] if isinstance(responses, list) and len(responses) == 1 else None
    return first if isinstance(first, list) and first else [first]


def _options(line: Mapping[str, Any], metric: str) -> tuple[tuple[str, ...], str | None]:
    """The options of a multiple-choice line and the one that is likeliest; none for other lines."""
    responses, arguments = line.get("resps"), line.get("arguments")
    requests = list(arguments.values()) if isinstance(arguments, dict) else arguments
    if not isinstance(responses, list) or not isinstance(requests, list) or len(responses) < 2:
        return (), None
    likelihoods = [_likelihood(response) for response in responses]
    pairs = [list(request.values()) if isinstance(request, dict) else request for request in requests]
    texts = [tuple(map(text_of, pair[:2])) for pair in pairs if isinstance(pair, list) and len(pair) >= 2]
    if None in likelihoods or len(texts) != len(likelihoods) or any(None in pair for pair in texts):
        return (), None
    # The options are the continuations, or, if these are all the same, what they continue.
    place = 0 if len({pair[1] for pair in texts}) == 1 else 1
    options = [str(pair[place]).strip() for pair in texts]
    half = len(options) // 2
    if 2 * half == len(options) > 2 and options[:half] == options[half:]:  # mutual information asks twice
        options = options[:half]
    numbers = [value for value in likelihoods if value is not None][: len(options)]
    sizes = {"acc_norm": [len(option) for option in options], "acc_bytes": [len(option.encode()) for option in options]}
    # An empty option has no length to divide by.
    lengths = [max(1, size) for size in sizes.get(metric, [1] * len(options))]
    best = max(range(len(options)), key=lambda number: numbers[number] / lengths[number])
    return tuple(options), options[best]


def _likelihood(response: object) -> float | None:
    """The log-likelihood of a request; None if its response is something else."""
    pair = response[0] if isinstance(response, list) and len(response) == 1 else None
    if not isinstance(pair, list) or len(pair) != 2 or str(pair[1]) not in ("True", "False"):
        return None
    try:
        value = float(pair[0])
    except (TypeError, ValueError, OverflowError):
        return None
    # No probability is above 1. NaN fails, too.
    return value if value <= 0 else None


def _extracted(found: object, kind: str) -> str | None:
    text = text_of(found[0] if isinstance(found, list) and found else found)
    # Without a filter it is the whole response.
    return None if kind == _NO_FILTER or not text or text == _NOT_FOUND else text
