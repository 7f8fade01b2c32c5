"""Steps of real references: ``python -m benchmarks.studies.real_steps --save``, after ``make real GEMMA=1``.

Each model reads references (translations, worked solutions) behind their questions in one pass, and at every
place of them it is asked what each pair and triple would write there, against what the reference has. That takes no
decoding, and there are thousands of places, where a task has hundreds of answers. The weights by likelihood of a place
are those of the texts in other folds. A gain is in points of right steps over the better member.

What a model has read is stored at once, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from advisor.models.likelihood import Flags, by_other_texts, read_set, weights_to_try
from advisor.models.loaded_models import ALONE, LoadedModels
from advisor.models.response_cache import ResponseCache, key_of
from advisor.tasks.data_sources import open_source
from advisor.tasks.load import find_task
from advisor.tasks.questions import QuestionBank
from advisor.tasks.task_file import read_definition
from benchmarks._measure import Figure, arguments, parsed, progress, tell
from benchmarks.studies.real import GEMMA, LARGER_QWEN, QWEN, SAME_FAMILY, SMOLLM2, K, sets_of, spec
from benchmarks.studies.real_models import FOLDER, there
from ensemble.common.files import remembered_sha256
from ensemble.models.member import Member
from ensemble.models.spec import EnsembleSpec
from ensemble.reading import GivenText, Reading, ReadSteps, read, set_vocabulary, steps_of
from ensemble.step.token_method import ENOUGH
from ensemble.vocabulary.joint import build


class StepTask(NamedTuple):
    """Whose references are read: a task and its split, how many texts, and which models read them, the best first."""

    source: str
    split: str
    texts: int
    models: tuple[str, ...]


STEP_TASKS = {
    "flores": StepTask("flores:deu-eng", "devtest", 50, (LARGER_QWEN, GEMMA, QWEN, SMOLLM2)),
    "gsm8k": StepTask("gsm8k", "test", 24, (LARGER_QWEN, QWEN, SMOLLM2, GEMMA)),
}
STEP_WAYS = ("unite", "likelihood", "primary", "unsure", "geometric", "either")


def main(given: Sequence[str] | None = None) -> int:
    """Read, compare, print, and keep where asked."""
    parser = arguments((__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where make real put the models")
    parser.add_argument("--data", type=Path, help="where questions are, instead of the hub; as for advisor select")
    parser.add_argument("--cache", type=Path, help="where readings are stored; a folder in that one by default")
    parser.add_argument("--stored", action="store_true", help="take what has been read, and read no more")
    parser.add_argument("--only", choices=STEP_TASKS, action="append", help="just this task")
    options = parsed(parser, given)
    folder = options.cache or options.folder / "cache"
    models = LoadedModels(folder)
    with ResponseCache(folder) as store:
        table = {name: rows for name in options.only or STEP_TASKS if (rows := rows_of(name, options, models, store))}
    tell("real_steps", list(step_figures(table)), options, table=table)
    return 0


def texts_of(name: str, folder: Path | None, quick: bool = False) -> list[tuple[str, GivenText]]:
    """The first questions of a task without demonstrations, and their references: the worked solutions of shots."""
    source, split, count, _ = STEP_TASKS[name]
    definition = read_definition(*find_task(source))
    bank = QuestionBank(definition, open_source(definition.settings.data, find_task(source)[0], folder))
    records = bank.split(bank.source.split_of(split))[: 2 if quick else count]
    found = []
    for record in records:
        # Line ends as the models write them, and nothing from where a response would stop.
        text = bank.shot(record).removeprefix(record.text).replace("\r\n", "\n")
        for stop in definition.settings.stop:
            text = text.partition(stop)[0]
        found.append((record.text, GivenText(text.rstrip().encode(), ends=False)))
    return found


def rows_of(
    name: str, options: argparse.Namespace, models: LoadedModels, store: ResponseCache
) -> dict[str, Any] | None:
    """What is kept of a task: a row for each set of the models that have read its texts."""
    texts = texts_of(name, options.data, options.quick)
    readings, members = dict[str, list[Reading]](), dict[str, Member]()
    for model in there(options.folder):
        if model.name not in STEP_TASKS[name].models:
            continue
        own = spec(model, options.folder, "bfloat16" if model.options else "float32")
        digest = remembered_sha256(options.folder / model.file.path)
        keys = [key_of({"read": 1, "file": digest, "prompt": prompt, "text": str(text)}) for prompt, text in texts]
        stored = {n: Reading.unpacked(value) for n, key in enumerate(keys) if (value := store.value(key)) is not None}
        left = [n for n in range(len(keys)) if n not in stored]
        if left and options.stored:
            continue
        # Also where all is stored: what the ids of a reading stand for is in the vocabulary.
        [members[model.name]] = models.ensemble(EnsembleSpec((own,), ALONE)).members
        member = members[model.name].as_writing(alone=False)
        prompts = [member.encode_prompt(texts[n][0]) for n in left]
        for place, [reading] in read(member, prompts, [[texts[n][1]] for n in left], batch_size=16):
            stored[left[place]] = reading
            store.keep(keys[left[place]], reading.packed())
            progress(f"{name}: {model.name}: {len(stored)} of {len(keys)}")
        readings[model.name] = [stored[n] for n in range(len(keys))]
    names = [each for each in STEP_TASKS[name].models if each in readings]
    if len(names) < 2:
        return None
    joint = build([members[each].vocabulary for each in names])
    rows = []
    for chosen in sets_of(names):
        numbers = [names.index(each) for each in chosen]
        steps = steps_of([readings[each] for each in chosen], set_vocabulary(joint, numbers), K)
        rows.append({"members": list(chosen), **compared(steps)})
        progress(f"{name}: {rows[-1]}")
    return {"texts": len(texts), "sets": rows}


def compared(steps: ReadSteps) -> dict[str, Any]:
    """The share of right steps of each member, and what each way gains over the better one, with its 95% interval."""
    texts, count = steps.texts.numpy(), len(steps.members)
    alone = np.stack([steps.right(np.eye(count)[n].tolist()).numpy() for n in range(count)])
    best = alone[int(alone.mean(axis=1).argmax())]
    gains = {}
    for way, right in ways(steps, alone).items():
        differences = 100 * (right.astype(float) - best)
        mean = float(differences.mean())
        off = np.bincount(texts, weights=differences - mean)
        error = float(np.sqrt((off**2).sum())) / len(differences)
        gains[way] = [mean, mean - 1.96 * error, mean + 1.96 * error]
    return {
        "steps": len(texts),
        "share": steps.share,
        "right": [100 * float(each) for each in alone.mean(axis=1)],
        "weights": list(known.weights) if (known := read_set(steps)) else [],
        "gains": gains,
    }


def ways(steps: ReadSteps, alone: Flags) -> dict[str, Flags]:
    """For each way to decode, whether it would write what the text has at each step."""
    count = len(alone)
    same, rest = (1 / count,) * count, 0.2 / (count - 1)
    equal = steps.right(same).numpy()
    sure = (steps.members[0].amax(dim=1) > ENOUGH).numpy()
    logarithms = replace(steps, members=steps.members.clamp(min=np.finfo(np.float64).tiny).log())
    grid = weights_to_try(count)
    tried = np.stack([steps.right(weights.tolist()).numpy() for weights in grid])
    found: dict[str, Flags] = {
        "unite": equal,
        "likelihood": by_other_texts(steps, grid, tried),
        "primary": steps.right((0.8, *(rest,) * (count - 1))).numpy(),
        "unsure": np.where(sure, alone[0], equal),
        "geometric": logarithms.right(same).numpy(),
        "either": np.asarray(alone.any(axis=0)),
    }
    return {way: found[way] for way in STEP_WAYS}


def step_figures(table: Mapping[str, Any]) -> Iterator[Figure]:
    """The mean gain of each way over all pairs, and the worst, of one family and of several."""
    pairs = [row for task in table.values() for row in task["sets"] if len(row["members"]) == 2]
    for family in ("same", "other"):
        own = [row for row in pairs if (set(row["members"]) == SAME_FAMILY) == (family == "same")]
        for way in STEP_WAYS if own else ():
            gains = [row["gains"][way][0] for row in own]
            note = f"points of right steps over the better member, {len(own)} pairs of {family} family"
            yield Figure(f"steps_{family}_{way}", float(np.mean(gains)), min(gains), max(gains), note=note)
    yield Figure("steps", sum(row["steps"] for row in pairs), limit="at least 10000", note="of all pairs")


if __name__ == "__main__":
    sys.exit(main())
