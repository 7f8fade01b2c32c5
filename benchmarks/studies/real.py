"""Decoding together with real models: ``python -m benchmarks.studies.real --save``, after ``make real GEMMA=1``.

Real models answer tasks, each alone on dev and on held-out questions, and sets of them answer the held-out ones
together: each pair and triple by `unite`, the primary being the member that is best on dev; and, if the set is inside
the rules, in the other ways of `SETTINGS`, too.

The GGUF files are dequantized into bfloat16. Responses are stored as soon as they exist, so a run that was stopped goes
on where it was. ``--tasks``, ``--models`` and ``--settings`` just answer a part, and the other tasks of the kept result
stay; ``--stored`` decodes nothing, and leaves out what is not stored. ``python -m benchmarks._pages`` writes the page
again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from advisor.advice.compared_models import compare
from advisor.advice.rules import select
from advisor.models.loaded_models import LocalJobRunner
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.options.new_run import SelectOptions
from advisor.progress import Progress
from advisor.records import Limits, Profile, Standing, length_ratio, within
from advisor.statistics import accuracy_interval, scores
from advisor.strategies.replay import replay_all
from advisor.strategies.strategy import AnsweredSplit
from advisor.strategies.vote import Vote, can_vote
from advisor.tasks import Task, load_task
from benchmarks._measure import RESULTS, Figure, arguments, commit, parsed, progress, tell
from benchmarks.studies.real_models import FOLDER, RealModel, there
from benchmarks.studies.zoo import answer_digits
from ensemble.models.spec import Checkpoint, ModelSpec

COMMAND = "python -m benchmarks.studies.real"
SMOLLM2, GEMMA = "smollm2-135m", "gemma3-270m"
QWEN, LARGER_QWEN = "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"
SAME_FAMILY = frozenset({QWEN, LARGER_QWEN})


class RealTask(NamedTuple):
    """A task of the study: its name in the command, the models, and the numbers of dev and held-out questions."""

    source: str
    models: tuple[str, ...]
    sizes: tuple[int, int]


TASKS = {
    "german": RealTask("flores:deu-eng", (GEMMA, QWEN, LARGER_QWEN), (100, 200)),
    "romanian": RealTask("flores:ron-eng", (GEMMA, QWEN), (100, 200)),
    "piqa": RealTask("piqa", (GEMMA, SMOLLM2, QWEN), (300, 350)),
    "triviaqa": RealTask("triviaqa", (GEMMA, SMOLLM2, QWEN), (300, 350)),
    "arc": RealTask("arc_challenge:letters", (QWEN, LARGER_QWEN), (300, 350)),
    "mbpp": RealTask("mbpp", (QWEN, LARGER_QWEN), (50, 100)),
}


class Setting(NamedTuple):
    """A way to decode a set: the method, and the value of ``--weights``; the primary's share stands for numbers."""

    method: str
    weights: str | float = "equal"


SETTINGS = {
    "unite": Setting("unite"),
    "likelihood": Setting("unite", "likelihood"),
    "primary": Setting("unite", 0.8),
    "safe": Setting("safe"),
    "geometric": Setting("geometric"),
    "gac": Setting("gac"),
}
VOTE = "vote"
K = 10
KINDS = {
    "inside": "of several families inside the rules that write texts",
    "options": "of several families inside the rules that score options",
    "same": "of one family inside the rules",
    "outside": "outside the rules",
}

Members = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A set's answers to the held-out questions.

    Attributes:
        setting: How it decoded, of `SETTINGS`, or a vote.
        members: The primary first.
        weights: The members' shares.
        profile: The answers.
    """

    setting: str
    members: Members
    weights: tuple[float, ...]
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
    """Answer, measure, print, and keep where asked; tasks that are not answered now stay as they were kept."""
    parser = arguments((__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where make real put the models")
    parser.add_argument("--data", type=Path, help="where questions are, instead of the hub; as for advisor select")
    parser.add_argument("--cache", type=Path, help="where responses are stored; a folder in that one by default")
    parser.add_argument("--stored", action="store_true", help="take the answers that are stored, and no others")
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=list(TASKS), help="just answer these")
    parser.add_argument("--models", help="just these models, with commas between them, and sets of them")
    parser.add_argument("--settings", help=f"just these, with commas between them, of {', '.join(SETTINGS)}; or none")
    options = parsed(parser, given)
    kept = json.loads((RESULTS / "real.json").read_text(encoding="utf-8"))["table"] if not options.quick else {}
    new = {name: rows_of(answers) for name in options.tasks if (answers := answer(name, options)) is not None}
    table = {**kept, **new}
    tell("real", list(answer_figures(table)), options, table=table)
    return 0


def answer(name: str, options: argparse.Namespace) -> TaskAnswers | None:
    """Have models and sets answer a task; what is stored is not computed again. None for fewer than two models."""
    sizes = (4, 4) if options.quick else TASKS[name].sizes
    dev, held_out = (
        load_task(TASKS[name].source, split=split, data_dir=options.data, limit=limit, allow_code_execution=True)
        for split, limit in zip(("dev", "held_out"), sizes, strict=True)
    )
    asked = options.models.split(",") if options.models else TASKS[name].models
    models = [model for model in there(options.folder) if model.name in TASKS[name].models and model.name in asked]
    plan = RunConfig(
        options=SelectOptions(chat_template="never"),
        candidates=tuple(spec(model, options.folder, "bfloat16") for model in models),
        dev=dev,
        held_out=None,
        cache_dir=options.cache or options.folder / "cache",
        command=COMMAND,
    )
    settings = [each for each in SETTINGS if not options.settings or each in options.settings.split(",")]
    with ResponseCache(plan.cache_dir) as store:
        engine = LocalJobRunner(plan.cache_dir)

        def profiler(weights: str = "equal") -> Profiler:
            own = replace(plan, options=replace(plan.options, weights=weights))
            return Profiler(own, store, Progress(quiet=True), engine=engine)

        alone = profiler()

        def is_known(model: str) -> bool:
            return all(len(alone.stored_alone(model, task)) == len(task.examples) for task in (dev, held_out))

        wanted = [model.name for model in models if not options.stored or is_known(model.name)]
        if not wanted:
            return None
        on_dev = alone.alone(wanted, dev)
        order = by_accuracy(on_dev.values())
        apart = alone.alone(order, held_out)
        for profile in apart.values():
            _say(name, f"{profile.model} (dev {on_dev[profile.model].accuracy:.1f})", profile)
        if len(order) < 2:
            return None
        sets = list(_votes(order, on_dev, AnsweredSplit(held_out, apart))) if can_vote(held_out) else []
        for setting, members in _to_decode(order, on_dev, settings):
            method, weights = SETTINGS[setting]
            by = profiler(weights if isinstance(weights, str) else _shares(members, weights, plan.candidates))
            if options.stored and not by.is_stored(members, held_out, method, {}):
                continue
            profile = by.together(members, held_out, method)
            own = by.weights(members) or (1.0,) * len(members)
            shares = tuple(float(each) / sum(own) for each in own)
            sets.append(Decoded(setting, members, shares, profile))
            _say(name, f"{setting}, {', '.join(members)}", profile)
    return TaskAnswers(held_out, {model: on_dev[model] for model in order}, apart, sets)


def _to_decode(order: Members, on_dev: Mapping[str, Profile], settings: Sequence[str]) -> Iterator[tuple[str, Members]]:
    """What is decoded: the pairs inside the rules first, in each way; outside the rules, just by `unite`."""
    inside = {members: is_inside([on_dev[name].standing for name in members]) for members in sets_of(order)}
    for members in sorted(inside, key=lambda each: (not inside[each], len(each))):
        for setting in settings:
            if inside[members] or setting == "unite":
                yield setting, members


def _votes(order: Members, on_dev: Mapping[str, Profile], answered: AnsweredSplit) -> Iterator[Decoded]:
    """The plain votes of triples inside the rules; of two models that differ, the primary's answer counts."""
    for members in combinations(order, 3):
        if is_inside([on_dev[name].standing for name in members]):
            yield Decoded(VOTE, members, (1 / 3,) * 3, replay_all(Vote(members), answered).profile)


def _shares(members: Members, primary: float, candidates: Sequence[ModelSpec]) -> str:
    """The value of ``--weights`` that gives the primary a share, and the others the same part of the rest."""
    others = (1 - primary) / (len(members) - 1)
    by = dict.fromkeys(members, others) | {members[0]: primary}
    return ",".join(f"{by.get(each.name, 0):g}" for each in candidates)


def is_inside(dev: Sequence[Standing]) -> bool:
    """Whether the rules allow a set: by its largest gap and its largest length ratio on dev."""
    rules = Limits()
    ratios = [length_ratio(one.mean_length, other.mean_length) for one, other in combinations(dev, 2)]
    gap = max(one.accuracy for one in dev) - min(one.accuracy for one in dev)
    return gap <= rules.max_gap and all(ratio is None or within(ratio, rules.max_length_ratio) for ratio in ratios)


def spec(model: RealModel, folder: Path, dtype: str) -> ModelSpec:
    """How a model is loaded."""
    return ModelSpec(Checkpoint(str(folder / model.file.path)), model.name, dtype=dtype)


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
    seconds = [profile.cost.seconds for profile in (*answers.dev.values(), *answers.alone.values())]
    return {
        "commit": commit(),
        "metric": answers.task.metric,
        "dev_questions": len(next(iter(answers.dev.values())).answers),
        "held_out_questions": len(answers.task.examples),
        "seconds": sum(seconds) + sum(each.profile.cost.seconds for each in answers.sets if each.setting != VOTE),
        "models": models,
        "sets": [_set_row(each, answers) for each in answers.sets],
    }


def _set_row(decoded: Decoded, answers: TaskAnswers) -> dict[str, Any]:
    members, profile = decoded.members, decoded.profile
    dev = [answers.dev[name] for name in members]
    difference = compare(profile, [answers.alone[name] for name in members])
    ratios = [length_ratio(one.mean_length, other.mean_length) for one, other in combinations(dev, 2)]
    known = [ratio for ratio in ratios if ratio is not None]
    return {
        "setting": decoded.setting,
        "members": list(members),
        "weights": list(decoded.weights),
        "inside": is_inside([one.standing for one in dev]),
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
    """What the rows of all tasks come to, by rule, family and setting."""
    kinds = [(kind_of(row, task["metric"]), row) for task in table.values() for row in task["sets"]]
    for kind, words in KINDS.items():
        own = [row for found, row in kinds if found == kind]
        for setting in dict.fromkeys(row["setting"] for row in own):
            chosen = [row for row in own if row["setting"] == setting]
            yield from _gains(f"{kind}_{setting}", chosen, f"sets {words}, {setting}, all tasks")
    models = {model["model"] for task in table.values() for model in task["models"]}
    yield Figure("table_models", len(models), limit="at least 4")
    questions = sum(task["held_out_questions"] for task in table.values())
    yield Figure("held_out_questions", questions, limit="at least 1000", note="of all tasks")
    hours = sum(task["seconds"] for task in table.values()) / 3600
    yield Figure("hours", hours, note="of all answers, by the clock, while other work ran on the same two cores")


def kind_of(row: Mapping[str, Any], metric: str) -> str:
    """Whether the rules allow a set, whether its members are of one family, what they do; a key of `KINDS`."""
    if not row["inside"]:
        return "outside"
    if set(row["members"]) == SAME_FAMILY:
        return "same"
    return "options" if metric == "choice" else "inside"


def default_sets(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row for each set: of `unite` with learned weights, or with equal ones where nothing else was decoded."""
    rows = {
        tuple(row["members"]): row for way in ("unite", "likelihood") for row in task["sets"] if row["setting"] == way
    }
    return list(rows.values())


def _gains(name: str, rows: Sequence[Mapping[str, Any]], note: str) -> Iterator[Figure]:
    """The mean gain over the best member, and how many of the rows gain."""
    gains = [row["gain"] for row in rows]
    note = f"{len(gains)} {note}"
    yield Figure(f"{name}_gain", float(np.mean(gains)), min(gains), max(gains), note=f"points; {note}")
    yield Figure(f"{name}_gaining", sum(gain > 0 for gain in gains), note=f"that gain; {note}")
    for word, sign in (("better", 1), ("worse", -1)):
        shown = sum(row["p"] <= 0.05 and sign * row["gain"] > 0 for row in rows)
        yield Figure(f"{name}_{word}", shown, note=f"with p of at most 0.05; {note}")


def _seconds(profile: Profile) -> float:
    return profile.cost.seconds / len(profile.answers)


def _say(task: str, what: str, profile: Profile) -> None:
    progress(f"{task}: {what}: {profile.accuracy:.1f} in {profile.cost.seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
