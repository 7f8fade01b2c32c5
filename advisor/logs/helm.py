"""Runs of HELM: folders with ``run_spec.json``, ``scenario_state.json`` and ``per_instance_stats.json``.

The responses are in ``scenario_state.json``, the scores in ``per_instance_stats.json``, and the name of the run, from
which the task follows, in ``run_spec.json``. The files are told apart by their content.

**Task, group, ids.** The run's name without the model, for example ``mmlu:method=multiple_choice_joint``; a subject,
subset or category in the name is the group, and ids are ``GROUP/ID`` then. Trials are draws.

**Score.** The name of a statistic; by default the first of ``_PREFERRED`` that the run has.

**Choices.** The model sees letters in an order that the run chose; the extracted answer and the reference are the texts
of the options. An instance that was changed on purpose (a perturbation) is left out, because its id is the one of the
original.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource
from advisor.logs.values import amount_of, choose_score, companion_object, count_of, note_others, object_at
from advisor.tasks.tables.rows import LeftOut
from advisor.tasks.tables.streams import Notes, json_items
from advisor.tasks.tables.values import line_of, text_of
from ensemble.errors import InputError

SUMMARY = "HELM: a run's folder with scenario_state.json, per_instance_stats.json and run_spec.json"
_FORMS = {
    "state": {"adapter_spec", "request_states"},
    "spec": {"adapter_spec", "scenario_spec", "name"},
    "scores": {"item.instance_id", "item.stats"},
    "means": {"item.name.name", "item.count"},
    "scenario": {"definition_path", "description", "name"},
}
_PREFERRED = (
    *("exact_match", "quasi_exact_match", "final_number_exact_match", "math_equiv_chain_of_thought", "math_equiv"),
    *("chain_of_thought_correctness", "ifeval_strict_accuracy", "code_eval_acc", "pass", "prefix_exact_match"),
    *("quasi_prefix_exact_match", "f1_score", "f1_set_match", "rouge_l", "bleu_4"),
)
_NAMES = {"state": "scenario_state.json", "spec": "run_spec.json", "scores": "per_instance_stats.json"}
_RUN = re.compile(r"(?P<scenario>[^=]*?)[:-](?P<arguments>[^=:-]+=.*)", re.DOTALL)
_GROUPS = ("subject", "subset", "category")
_MODELS = ("model", "model_deployment")


def recognise(files: Sequence[LogFile], notes: Notes) -> list[LogSource]:
    """Folders with a file of responses, whatever the names of the files are."""
    folders: dict[Path, dict[str, Path]] = {}
    for file in files:
        if form := _form(file):
            folders.setdefault(file.path.parent, {}).setdefault(form, file.path)
    sources = []
    for folder, found in folders.items():
        # The other two forms are too general: alone they do not tell a run.
        if not {"state", "spec", "scores"} & found.keys():
            continue
        # Also files that the user did not name: a response without its score is of little use.
        for form, name in _NAMES.items():
            path = folder / name
            if form not in found and path.is_file() and _form(LogFile(path, given=False)) == form:
                found[form] = path
        state = found.pop("state", None)
        if state is not None:
            sources.append(LogSource("helm", state, tuple(found.values())))
        else:
            notes.append(f"{next(iter(found.values()))}: a run without responses; give also its scenario_state.json")
    return sources


def _form(file: LogFile) -> str | None:
    """Which file of a run it is."""
    return next((form for form, keys in _FORMS.items() if keys <= file.outline), None)


def read(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord | LeftOut]:
    """One record for each instance and trial; see :class:`advisor.logs.sources.LogFormat`."""
    path = source.path
    # By content again, because a source has only the paths.
    parts = {_form(LogFile(companion, given=False)): companion for companion in source.companions}
    spec = _spec(parts.get("spec"), path, notes)
    model = text_of(object_at(spec, "adapter_spec").get("model"))
    if model is None:
        raise InputError(f"{path}: neither it nor run_spec.json beside it names the model; give another run")
    # HELM names a run's folder after the run.
    task, group = _task(text_of(spec.get("name")) or path.resolve().parent.name)
    metric, scores = _scores(parts["scores"], options.score, notes) if "scores" in parts else (None, {})
    if "scores" not in parts:
        notes.append(f"{path}: no per_instance_stats.json beside it, so its responses have no scores")
    separate = 0
    for state, place in json_items(path, "request_states.item"):
        instance, result = object_at(state, "instance"), object_at(state, "result")
        number, question = text_of(instance.get("id")), text_of(object_at(instance, "input").get("text"))
        if number is None or question is None:
            yield LeftOut("its instance has no id or no text", place)
            continue
        if instance.get("perturbation") is not None:
            yield LeftOut("it is a changed copy of another instance (a perturbation)", place)
            continue
        index = state.get("reference_index")
        separate += index is not None
        if index not in (None, 0) or state.get("request_mode") == "calibration":
            continue  # the same instance with another option
        trial = count_of(state.get("train_trial_index")) or 0
        # A request for one option has the likelihood of this option; its text is no response.
        completion = _completion(result) if index is None else {}
        response = text_of(completion.get("text"))
        mapping, texts, correct = object_at(state, "output_mapping"), *_references(instance)
        has_failed = result.get("success") is False
        value = scores.get((number, trial))
        score = None if value is None and has_failed else options.scores.read(value, model)
        tokens = completion.get("tokens")
        yield LogRecord(
            model=model,
            task=task,
            id=number if group is None else f"{group}/{number}",
            place=place,
            question=question,
            reference=correct[0] if len(correct) == 1 else correct or None,
            choices=texts if mapping or index is not None else (),
            response=response,
            extracted=text_of(mapping.get(response.strip())) if response is not None else None,
            score=score,
            metric=metric,
            group=group,
            cluster=text_of(instance.get(options.cluster)) if options.cluster else None,
            tokens=len(tokens) if isinstance(tokens, list) and tokens else None,
            seconds=amount_of(result.get("request_time")),
            draw=trial,
            thinking=text_of(object_at(completion, "thinking").get("text")),
            cut=object_at(completion, "finish_reason").get("reason") == "length",
            error=(line_of(result.get("error")) or "the request failed") if has_failed else None,
        )
    if separate:
        notes.append(f"{path}: it has a request for each option, and so no response and no extracted answer")


def _spec(path: Path | None, state: Path, notes: Notes) -> Mapping[str, Any]:
    """What the run says of itself, or, without its file, what the responses' file says of it."""
    if path is not None and (spec := companion_object([path], notes)):
        return spec
    notes.append(f"{state}: no run_spec.json beside it, so the task has the folder's name")
    # Only this object: the file has all responses, and may be large.
    return {"adapter_spec": next((value for value, _ in json_items(state, "adapter_spec")), None)}


def _task(name: str) -> tuple[str, str | None]:
    """The task and the group that a run's name says; folders have ``-`` in place of ``:``."""
    match = _RUN.fullmatch(name)
    if match is None:
        return name, None
    pairs = [pair.partition("=") for pair in match["arguments"].split(",")]
    groups = [value for key, _, value in pairs if key in _GROUPS and value]
    # Without these parts all models, and all groups, have the same task.
    rest = ",".join("".join(pair) for pair in pairs if pair[0] not in (*_GROUPS, *_MODELS))
    return f"{match['scenario']}:{rest}" if rest else match["scenario"], ",".join(groups) or None


def _scores(path: Path, wanted: str | None, notes: Notes) -> tuple[str | None, dict[tuple[str, int], object]]:
    """The name of the score that counts, and its value for each instance and trial that has one."""
    chosen, names = None, dict[str, None]()
    scores: dict[tuple[str, int], object] = {}
    for item, _ in json_items(path):
        listed = item.get("stats") if isinstance(item, dict) and item.get("perturbation") is None else None
        stats = {
            name: entry.get("mean")
            for entry in (listed if isinstance(listed, list) else ())
            if (name := text_of(object_at(entry, "name").get("name")))
            and object_at(entry, "name").get("perturbation") is None
        }
        known = [name for name in _PREFERRED if name in stats]
        names.update(dict.fromkeys(known))
        if chosen is None and stats and (known or wanted is not None):
            # The user may name any statistic. By default only known ones count: most are counts of tokens, or times.
            chosen = wanted if wanted in stats else choose_score(known, wanted, path)
        number, score = text_of(item.get("instance_id")) if stats else None, stats.get(chosen or "")
        if number is not None and score is not None:
            scores[number, count_of(item.get("train_trial_index")) or 0] = score
    note_others(chosen or "", names, wanted, path, notes)
    return chosen, scores


def _references(instance: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts of all references, and of the correct ones."""
    listed = instance.get("references")
    pairs = [
        (text, isinstance(tags := reference.get("tags"), list) and "correct" in tags)
        for reference in (listed if isinstance(listed, list) else ())
        if (text := text_of(object_at(reference, "output").get("text"))) is not None
    ]
    return tuple(text for text, _ in pairs), tuple(text for text, correct in pairs if correct)


def _completion(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first of a request's completions."""
    listed = result.get("completions")
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, dict) else {}
