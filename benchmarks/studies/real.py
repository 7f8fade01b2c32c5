"""Decoding together with real models: ``python -m benchmarks.studies.real --save``, after ``make real GEMMA=1``.

Four real models answer three tasks, each alone on 300 dev and 350 held-out questions: a choice (SciQ), short free
answers (TriviaQA) and a translation (Multi30k). Every pair and triple of them answers the held-out ones by `unite`, the
primary of a set being the member that is best on dev. Other methods and other k run on the two best models without
TinyLlama, which takes most of the time.

The GGUF files are dequantized into bfloat16. Responses are stored as soon as they exist, so a run that was stopped goes
on where it was. ``--only TASK`` just answers a task, so that processes can share the work; ``--stored`` runs no model,
and leaves out what is not stored. ``python -m benchmarks._pages`` writes the page again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from advisor.advice.compared_models import compare
from advisor.advice.rules import select
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.options.new_run import SelectOptions
from advisor.progress import Progress
from advisor.records import Limits, Profile, length_ratio
from advisor.statistics import accuracy_interval, scores
from advisor.strategies.vote import can_vote
from advisor.tasks import Task, load_task
from benchmarks._measure import Figure, arguments, parsed, progress, tell
from benchmarks.studies.real_models import FOLDER, TASKS, RealModel, there
from benchmarks.studies.zoo import answer_digits
from ensemble.models.spec import Checkpoint, ModelSpec

COMMAND = "python -m benchmarks.studies.real"
DEV, HELD_OUT = 300, 350
METHODS = ("gac", "safe", "geometric")
"""Besides `unite`."""
K = 10
KS = (2, 5, 20)
"""Besides the default."""
SLOW = "tinyllama-1.1b"
"""The model whose sets are decoded by `unite` alone."""
GAPS = (0.0, 10.0, 20.0, 100.0)
"""Points between the last member of a set and its primary, on dev: limits of groups of sets."""
RATIOS = (1.0, 1.5, 2.0, 100.0)
"""Largest ratios of mean lengths, likewise."""

Members = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A set's answers to the held-out questions.

    Attributes:
        method: How it decoded.
        k: Its k.
        members: The primary first.
        profile: The answers.
    """

    method: str
    k: int
    members: Members
    profile: Profile


@dataclass(frozen=True, slots=True)
class TaskAnswers:
    """The answers to the questions of a task.

    Attributes:
        task: The held-out questions.
        dev: Each model's answers to the dev questions, the most accurate model first.
        alone: Each model's answers to the held-out questions, in the same order.
        sets: Those of sets.
    """

    task: Task
    dev: Mapping[str, Profile]
    alone: Mapping[str, Profile]
    sets: Sequence[Decoded]


def main(given: Sequence[str] | None = None) -> int:
    """Answer, measure, print, and keep where asked."""
    parser = arguments((__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where make real put models and questions")
    parser.add_argument("--cache", type=Path, help="where responses are stored; a folder in that one by default")
    parser.add_argument("--stored", action="store_true", help="take the answers that are stored, and no others")
    parser.add_argument("--only", choices=TASKS, help="just answer this task")
    options = parsed(parser, given)
    if options.only:
        answer(options.only, options)
        return 0
    table = {name: rows_of(answer(name, options)) for name in TASKS}
    tell("real", list(answer_figures(table)), options, table=table)
    return 0


def answer(name: str, options: argparse.Namespace) -> TaskAnswers:
    """Have all models and sets answer a task; what is stored is not computed again."""
    limits = {"dev": 4, "held_out": 4} if options.quick else {"dev": DEV, "held_out": HELD_OUT}
    dev, held_out = (
        load_task(TASKS[name], split=split, data_dir=options.folder, limit=limit) for split, limit in limits.items()
    )
    models = there(options.folder)
    plan = RunConfig(
        options=SelectOptions(chat_template="never"),
        candidates=tuple(spec(model, options.folder, "bfloat16") for model in models),
        dev=dev,
        held_out=None,
        cache_dir=options.cache or options.folder / "cache",
        command=COMMAND,
    )
    with ResponseCache(plan.cache_dir) as store:
        profiler = Profiler(plan, store, Progress(quiet=True))

        def is_known(name: str) -> bool:
            return all(len(profiler.stored_alone(name, task)) == len(task.examples) for task in (dev, held_out))

        on_dev = profiler.alone([model.name for model in models if not options.stored or is_known(model.name)], dev)
        order = by_accuracy(on_dev.values())
        alone = profiler.alone(order, held_out)
        for profile in alone.values():
            _say(name, profile.model, profile)
        sets = []

        def decode(by: Profiler, method: str, k: int, members: Members) -> None:
            if options.stored and not by.is_stored(members, held_out, method, {}):
                return
            sets.append(Decoded(method, k, members, by.together(members, held_out, method)))
            _say(name, f"{method}, k = {k}, {', '.join(members)}", sets[-1].profile)

        for members in sorted(sets_of(order), key=lambda each: (SLOW in each, len(each))):
            decode(profiler, "unite", K, members)
        quick = tuple(model for model in order if model != SLOW)[:2]
        for method in METHODS:
            decode(profiler, method, K, quick)
        for k in KS:
            with_k = replace(plan, options=replace(plan.options, k=k))
            decode(Profiler(with_k, store, Progress(quiet=True)), "unite", k, quick)
    return TaskAnswers(held_out, {model: on_dev[model] for model in order}, alone, sets)


def spec(model: RealModel, folder: Path, dtype: str) -> ModelSpec:
    """How a model is loaded: what is dequantized in ``dtype``, what was not quantized in float32."""
    place = folder / model.path
    return ModelSpec(Checkpoint(str(place)), model.name, dtype=dtype if place.is_file() else "float32")


def by_accuracy(profiles: Iterable[Profile]) -> Members:
    """The models in the order of the rules."""
    decisions = select([profile.standing for profile in profiles], Limits()).decisions
    return tuple(decision.model for decision in decisions)


def sets_of(order: Sequence[str]) -> list[Members]:
    """All pairs and triples."""
    return [members for size in (2, 3) for members in combinations(order, size)]


def rows_of(answers: TaskAnswers) -> dict[str, Any]:
    """What is kept of a task: a row for each model and set, with its score on each question."""
    answered = {
        key: answer_digits(list(by.values())) if can_vote(answers.task) else [None] * len(by)
        for key, by in (("dev_answers", answers.dev), ("answers", answers.alone))
    }
    models = [
        {
            "model": name,
            "dev": answers.dev[name].accuracy,
            "accuracy": profile.accuracy,
            "accuracy_ci": list(accuracy_interval(profile)),
            "mean_length": answers.dev[name].mean_length,
            "failed": sum(one.error is not None for one in profile.answers),
            "seconds": _seconds(profile),
            "dev_scores": packed(answers.dev[name]),
            "scores": packed(profile),
            **{key: digits[place] for key, digits in answered.items()},
        }
        for place, (name, profile) in enumerate(answers.alone.items())
    ]
    sets = [
        {"strategy": each.method, "k": each.k, **_set_row(each.members, each.profile, answers)} for each in answers.sets
    ]
    seconds = [profile.cost.seconds for profile in (*answers.dev.values(), *answers.alone.values())]
    return {
        "metric": answers.task.metric,
        "dev_questions": len(next(iter(answers.dev.values())).answers),
        "held_out_questions": len(answers.task.examples),
        "seconds": sum(seconds) + sum(each.profile.cost.seconds for each in answers.sets),
        "models": models,
        "sets": sets,
    }


def _set_row(members: Members, profile: Profile, answers: TaskAnswers) -> dict[str, Any]:
    dev = [answers.dev[name] for name in members]
    difference = compare(profile, [answers.alone[name] for name in members])
    ratios = [length_ratio(one.mean_length, other.mean_length) for one, other in combinations(dev, 2)]
    known = [ratio for ratio in ratios if ratio is not None]
    return {
        "members": list(members),
        "accuracy": profile.accuracy,
        "gain": difference.difference,
        "gain_ci": list(difference.difference_ci),
        "p": difference.p_two_sided,
        "over": difference.over,
        "gap": dev[0].accuracy - dev[-1].accuracy,
        "ratio": max(known) if len(known) == len(ratios) else None,
        "failed": sum(one.error is not None for one in profile.answers),
        "seconds": _seconds(profile),
        "scores": packed(profile),
    }


def packed(profile: Profile) -> str:
    """Each question's score in percent, as two hexadecimal digits."""
    return np.rint(100 * scores(profile)).astype(np.uint8).tobytes().hex()


def unpacked(text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The scores, 0 to 1, of what :func:`packed` wrote."""
    return np.frombuffer(bytes.fromhex(text), dtype=np.uint8) / 100


def answer_figures(table: Mapping[str, Any]) -> Iterator[Figure]:
    """What the rows of all tasks come to."""
    rows = [row for task in table.values() for row in plain_sets(task)]
    yield from _gains("all", rows, "pairs and triples by unite, all tasks")
    for name, limits in (("gap", GAPS), ("ratio", RATIOS)):
        for low, high in pairwise(limits):
            inside = [row for row in rows if row[name] is not None and (low < row[name] or low == limits[0])]
            inside = [row for row in inside if row[name] <= high]
            note = f"with a {name} of {low:g} to {high:g} on dev"
            yield from _gains(f"{name}_{low:g}_{high:g}".replace(".", ""), inside, note)
    models = {model["model"] for task in table.values() for model in task["models"]}
    yield Figure("table_models", len(models), limit="at least 4")
    questions = sum(task["held_out_questions"] for task in table.values())
    yield Figure("held_out_questions", questions, limit="at least 1000", note="of all tasks")
    hours = sum(task["seconds"] for task in table.values()) / 3600
    yield Figure("hours", hours, limit="at most 2", note="of all answers, in processes with one thread")


def plain_sets(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of `unite` with the usual k."""
    return [row for row in task["sets"] if row["strategy"] == "unite" and row["k"] == K]


def _gains(name: str, rows: Sequence[Mapping[str, Any]], note: str) -> Iterator[Figure]:
    """The mean gain over the best member, and the share of the rows that gain."""
    gains = [row["gain"] for row in rows]
    if gains:
        note = f"{len(gains)} {note}"
        yield Figure(f"{name}_gain", float(np.mean(gains)), min(gains), max(gains), note=f"points; {note}")
        yield Figure(f"{name}_share", float(np.mean([gain > 0 for gain in gains])), note=f"that gain; {note}")
        for word, sign in (("better", 1), ("worse", -1)):
            shown = sum(row["p"] <= 0.05 and sign * row["gain"] > 0 for row in rows)
            yield Figure(f"{name}_{word}", shown, note=f"with p of at most 0.05; {note}")


def _seconds(profile: Profile) -> float:
    return profile.cost.seconds / len(profile.answers)


def _say(task: str, what: str, profile: Profile) -> None:
    progress(f"{task}: {what}: {profile.accuracy:.1f} in {profile.cost.seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
