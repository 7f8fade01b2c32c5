"""``advisor label``, and ``select --labels``: advice for people who have questions and no references.

:mod:`advisor.advice.labels` says which questions need a label, and why they are enough.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from advisor.advice.comparison import Compared, StrategyResult, compare_by_labels, fitting_voters
from advisor.advice.doubts import run_doubts
from advisor.advice.labels import (
    Labels,
    OpenQuestion,
    Round,
    accuracy_by_labels,
    labelled_first,
    open_questions,
    with_labels,
)
from advisor.advice.profiled_pool import find_copies, profile_candidates
from advisor.advice.recommendation import recommend
from advisor.advice.rules import rank
from advisor.commands.command_line import command_line, print_found
from advisor.jobs.figures import (
    candidate_figures,
    provenance_of_logs,
    provenance_of_run,
    recommended_of,
    samples_of,
    single_models,
    task_info,
)
from advisor.jobs.held_out import prices_of
from advisor.jobs.session import open_session, with_devices
from advisor.logs.join import read_logs
from advisor.models.profiler import Profiler
from advisor.models.run_config import RunConfig
from advisor.options.new_run import LabelOptions, SelectOptions
from advisor.options.shared import split_names
from advisor.progress import Progress
from advisor.records import ALPHA, Decision, Profile, Selection
from advisor.run.figures import SCHEMA_VERSION, LabelRow, Sample
from advisor.run.result import AdviceSection, Provenance, Result, RuleLimits, TaskInfo
from advisor.statistics import Interval, questions_needed, scores, z_value
from advisor.strategies import default_strategy
from advisor.strategies.replay import replay_all
from advisor.strategies.strategy import FEWEST_VOTERS, AnsweredSplit, Single, Strategy
from advisor.strategies.vote import VOTE_METRICS, can_vote
from advisor.tasks.metrics import get_metric
from advisor.tasks.tables.rows import LeftOut, Row, columns_of, rows_of
from advisor.tasks.tables.streams import Notes
from advisor.tasks.tables.values import text_of
from advisor.tasks.task import Task, clusters_of
from ensemble.common.files import write_text
from ensemble.common.schema import validated, written
from ensemble.common.text import counted, shortened
from ensemble.errors import InputError, UniteError

DEV_SIZE = 100
"""Questions of logs that choose by default, where each costs a label; at most half of all."""
_POWER = 0.8
_NO_ANSWER = "(no answer)"
_NONE = "none"
_LABEL = ("key", "round", "right", "reference")
_MOST_FAULTS = 20  # that are shown, each in a line
_WAY_OUT = "correct the row, or write the table again with `advisor label`"


class _Answers(NamedTuple):
    """The answers of all models that are no copies, without scores, and what the result says of them."""

    dev: AnsweredSplit
    held_out: AnsweredSplit
    dropped: tuple[Profile, ...]
    task: TaskInfo
    failures: Mapping[str, str]
    provenance: Provenance

    def to_choose(self, seed: int) -> list[OpenQuestion]:
        """The dev questions whose labels choose the models."""
        return open_questions(self.dev, list(self.dev.profiles.values()), "choose", seed)


class LabelTable(NamedTuple):
    """What people have filled in: the right answers of each question that has a label, and its row."""

    labels: Labels
    rows: Mapping[str, LabelRow]


class _Chosen(NamedTuple):
    """What the labels of the dev questions choose, and the held-out questions that then decide."""

    dev: Mapping[str, Profile]
    single: str
    strategy: Strategy | None
    verify: list[OpenQuestion]
    agreed: list[OpenQuestion]


def label(options: LabelOptions) -> None:
    """Write the table of the questions that need a label next, and print what it has."""
    progress, of_select = Progress(quiet=options.quiet), options.of_select
    answers = _answers(of_select, command_line(), progress)
    first = answers.to_choose(options.seed)
    if options.labels is None:
        if not first:
            raise InputError("all models give the same answers to the dev questions, so there is nothing to choose")
        write_table(options.table, first, {})
        n = len(answers.dev.task.examples)
        text = (
            f"{options.table}: {counted(len(first), 'question')} to label, of {counted(n, 'dev question')}; to the "
            f"others all models give the same answer. Then add the held-out questions: --labels {options.table}"
        )
        print_found(options, {"table": str(options.table), "choose": len(first), "dev": n, "text": text})
        return
    table, chosen = _read(of_select, answers, first, progress)
    if chosen.strategy is None:
        raise InputError(_no_vote(chosen, of_select))
    wanted = chosen.agreed[: options.accuracy]
    write_table(options.table, [*first, *chosen.verify, *wanted], table.rows)
    n, differ = len(answers.held_out.task.examples), len(chosen.verify)
    # Both answers may be wrong, so that at most all questions that differ count.
    size = 100 * (z_value(ALPHA) + z_value(1 - _POWER)) * math.sqrt(differ / n / n)
    text = (
        f"{options.table}: {counted(differ, 'question')} to label, of {counted(n, 'held-out question')}; to the others "
        f"{chosen.single} and {str(chosen.strategy).lower()} give the same answer. All of these labels show a gain of "
        f"{size:.1f} points with 80% probability, or a smaller one if both are often wrong. Then: advisor select "
        f"--labels {options.table}, with the same models and questions."
    )
    dev = {"choose": len(first), "dev": len(answers.dev.task.examples)}
    held_out = {"verify": differ, "held_out": n, "accuracy": len(wanted), "shown_gain": size}
    print_found(options, {"table": str(options.table), **dev, **held_out, "text": text})


def run_on_labels(options: SelectOptions, command: str, progress: Progress) -> tuple[Result, Iterator[Sample]]:
    """Compare the vote of the best models with the best single model by the labels of a table.

    The result is that of :func:`advisor.commands.select.run`, in which scores without a label are null.
    """
    answers = _answers(options, command, progress)
    first = answers.to_choose(options.seed)
    table, chosen = _read(options, answers, first, progress)
    limits = options.rules
    n = len(answers.held_out.task.examples)
    labelled = labelled_first(chosen.verify, table.labels)
    results, held_out, notes = tuple[StrategyResult, ...](), answers.held_out, list[str]()
    accuracies: dict[Strategy, tuple[float, Interval]] = {}
    if chosen.strategy is not None:
        _check_enough(options.labels, chosen.verify, labelled, table.labels, answers.held_out)
        shown = [*labelled, *chosen.agreed]
        known = {name: with_labels(own, shown, table.labels) for name, own in held_out.profiles.items()}
        held_out = replace(held_out, profiles=known)
        is_labelled = np.zeros(n, dtype=bool)
        is_labelled[[each.number for each in labelled]] = True
        results = compare_by_labels(held_out, chosen.strategy, chosen.single, is_labelled)
        notes.append(_labels_used(chosen, labelled, n, results))
        if len(labelled) == len(chosen.verify):
            sample = [each.number for each in labelled_first(chosen.agreed, table.labels)]
            for each in results:
                own = scores(each.replay.profile)
                if (found := accuracy_by_labels(own[is_labelled], own[sample], n)) is not None:
                    accuracies[each.strategy] = found
    results = _with_accuracies(results, accuracies)
    if results and not accuracies:
        notes.append("No accuracy is known: that takes labels of the round `accuracy`, and all of the round `verify`.")
    no_vote = "" if chosen.strategy is not None else _no_vote(chosen, options)
    compared = Compared(results, no_vote=no_vote)
    on_dev = [with_labels(own, first, table.labels) for own in answers.dev.profiles.values()]
    profiles = sorted(on_dev, key=lambda each: rank(chosen.dev[each.model]))
    doubts = run_doubts(profiles, answers.dev.task)
    advice = AdviceSection(
        verdict="unclear",
        text=no_vote or "Without references no set can be decoded together and verified.",
        recommendation=recommend(compared, limits),
        warnings=(*notes, *(each.text for each in doubts)),
        doubts=doubts,
    )
    selection, prices = _selection(chosen), held_out.prices
    dev_profiles = {profile.model: profile for profile in profiles}
    alone = [held_out.profiles[name] for name in dev_profiles] if results else []
    result = Result(
        schema_version=SCHEMA_VERSION,
        task=answers.task,
        rules=RuleLimits(**asdict(limits)),
        candidates=candidate_figures(selection, answers.dev.task, profiles, answers.failures),
        selected=selection.selected,
        strategies=tuple(each.figures for each in results),
        single_models=single_models(alone, dev_profiles, prices),
        advice=advice,
        provenance=answers.provenance,
    )
    everyone = [*profiles, *(with_labels(each, (), {}) for each in answers.dropped)]
    recommended = recommended_of(advice, compared)
    on_held_out = samples_of(held_out.task, "held_out", alone, recommended=recommended)
    return result, chain(samples_of(answers.dev.task, "dev", everyone), on_held_out)


def _with_accuracies(
    results: Sequence[StrategyResult], accuracies: Mapping[Strategy, tuple[float, Interval]]
) -> tuple[StrategyResult, ...]:
    """The strategies with the accuracies that labels tell: those of other questions stay unknown."""
    best = next((found for strategy, (found, _) in accuracies.items() if isinstance(strategy, Single)), None)
    known = []
    for result in results:
        accuracy, ends = accuracies.get(result.strategy, (None, None))
        figures = {"accuracy": accuracy, "accuracy_ci": ends, "best_single_accuracy": best}
        known.append(replace(result, figures=result.figures.model_copy(update=figures)))
    return tuple(known)


def _answers(options: SelectOptions, command: str, progress: Progress) -> _Answers:
    """Read the answers from logs, or ask the models."""
    if options.labels is not None:
        # Its rows need the answers; that it is a table of labels should be known before a model runs.
        label_columns(options.labels)
    if options.logs:
        logs = read_logs(options, split_names(options.only or ""), progress.say, needs_score=False)
        if logs.no_vote_note is not None:
            raise InputError(logs.no_vote_note)
        dev, held_out = logs.halves(options.seed, DEV_SIZE)
        origin = provenance_of_logs(command, options.seed, logs)
        return _without_copies(_Answers(dev, held_out, (), task_info(dev.task), {}, origin))
    run = with_devices(RunConfig.from_options(options, command, needs_reference=False), progress)
    if not can_vote(run.dev) or run.held_out is None:
        raise InputError(
            f"{run.dev.name}: labels are for answers that can be compared; give a task whose metric is "
            f"{', '.join(VOTE_METRICS[:-1])} or {VOTE_METRICS[-1]}"
        )
    with open_session(run, progress) as (cache, engine):
        profiler = Profiler(run, cache, progress, engine=engine)
        own = profile_candidates(run, profiler).complete
        held = profiler.alone(list(own), run.held_out)
        prices = prices_of(run)
        # Without the models that failed on the held-out questions.
        dev = AnsweredSplit(run.dev, {name: own[name] for name in held}, prices=prices)
        held_out, task = AnsweredSplit(run.held_out, held, prices=prices), task_info(run.dev, run.dev.max_new_tokens)
        origin = provenance_of_run(run, profiler)
        return _without_copies(_Answers(dev, held_out, (), task, dict(profiler.failures), origin))


def _without_copies(answers: _Answers) -> _Answers:
    # A copy of a model would have two votes.
    everyone = answers.dev.profiles
    copies = find_copies([with_labels(each, (), {}, 0.0) for each in everyone.values()])
    kept = [name for name in everyone if name not in copies]
    if len(kept) < FEWEST_VOTERS:
        raise InputError(f"labels compare a vote with a single model; give at least {FEWEST_VOTERS} different models")
    dev, held_out = (
        replace(split, profiles={name: split.profiles[name] for name in kept})
        for split in (answers.dev, answers.held_out)
    )
    return answers._replace(dev=dev, held_out=held_out, dropped=tuple(everyone[name] for name in copies))


def _read(
    options: SelectOptions, answers: _Answers, first: list[OpenQuestion], progress: Progress
) -> tuple[LabelTable, _Chosen]:
    """The labels of a table, and what those of the dev questions choose."""
    if options.labels is None:
        raise InputError("--labels is missing; give the table that `advisor label` wrote")
    keys = {each.key: each for each in first}
    # The second round depends on the labels of the first one, so those are read alone before.
    table = read_table(options.labels, keys, ("choose",), answers.dev.task, progress)
    if missing := sum(each.key not in table.labels for each in first):
        raise InputError(
            f"{options.labels}: {missing:,} of {counted(len(first), 'row')} of the round `choose` lack a label; label "
            "all of them, because they choose the models"
        )
    chosen = _choose(answers, first, table.labels, options)
    second = {each.key: each for each in (*chosen.verify, *chosen.agreed)}
    later = read_table(options.labels, second, ("verify", "accuracy"), answers.dev.task, progress)
    return LabelTable({**table.labels, **later.labels}, {**table.rows, **later.rows}), chosen


def _choose(answers: _Answers, first: list[OpenQuestion], labels: Labels, options: SelectOptions) -> _Chosen:
    # Ranks and gaps are differences, so the score of the answers that all models give does not matter.
    dev = {name: with_labels(own, first, labels, 0.0) for name, own in answers.dev.profiles.items()}
    voters = fitting_voters(list(dev.values()), options.rules)
    if len(voters) < FEWEST_VOTERS:
        return _Chosen(dev, voters[0], None, [], [])
    strategy, held_out = default_strategy(voters), answers.held_out
    both = [replay_all(strategy, held_out).profile, held_out.profiles[voters[0]]]
    verify = open_questions(held_out, both, "verify", options.seed)
    agreed = open_questions(held_out, both, "accuracy", options.seed, agreed=True)
    if not verify:
        raise InputError(
            f"the vote and {voters[0]} give the same answer to all held-out questions, so no label can tell them apart"
        )
    return _Chosen(dev, voters[0], strategy, verify, agreed)


def _no_vote(chosen: _Chosen, options: SelectOptions) -> str:
    return (
        f"By the labels of the dev questions {chosen.single} is the best model, and fewer than {FEWEST_VOTERS - 1} "
        f"others are within {options.rules.vote_gap:g} points of it, so there is no vote to verify (--max-gap)."
    )


def _check_enough(
    table: Path | None,
    questions: list[OpenQuestion],
    labelled: list[OpenQuestion],
    labels: Labels,
    held_out: AnsweredSplit,
) -> None:
    """Check that the labels of a round are all, or a random sample of it."""
    later = [each for each in questions[len(labelled) :] if each.key in labels]
    n = len(questions)
    if later:
        gap = questions[len(labelled)]
        raise InputError(
            f"{table}: row {gap.key} of the round `verify` has no label, and {counted(len(later), 'row')} after it "
            "have one; the rows are in random order, so only labels from the first one on without a gap are a sample: "
            "label it, or empty the later ones"
        )
    if len(labelled) < 2:
        raise InputError(
            f"{table}: the round `verify` has {counted(len(labelled), 'label')} for {counted(n, 'row')}; label its "
            f"first rows, at least 2 (`advisor label --labels {table}` adds these rows)"
        )
    if len(labelled) < n and clusters_of(held_out.task) is not None:
        raise InputError(
            f"{table}: the round `verify` has {len(labelled):,} labels for {n:,} rows; label all rows, because "
            "questions share passages (--column cluster=FIELD)"
        )


def _labels_used(chosen: _Chosen, labelled: list[OpenQuestion], n: int, results: tuple[StrategyResult, ...]) -> str:
    """What the figures come from, and how many labels more would show the gain."""
    count, differ = len(labelled), len(chosen.verify)
    text = (
        f"The gain comes from the labels of {count:,} of {differ:,} held-out questions to which the two strategies "
        f"give different answers; on the other {n - differ:,} both have the same score."
    )
    tested = next(each for each in results if not each.figures.is_single)
    changed = ((tested.figures.gained or 0) + (tested.figures.lost or 0)) / count * differ / n
    needed = questions_needed(tested.gain.points, changed, ALPHA) if tested.gain.points > 0 and changed else None
    if tested.shown == "not_yet" and needed is not None:
        more = max(0, math.ceil(needed * differ / n) - count)
        source = f", of them {differ - count:,} in this table" if count < differ else ""
        text += f" To show this gain with 80% probability, about {more:,} more labels are needed{source}."
    return text


def _selection(chosen: _Chosen) -> Selection:
    """The candidates by the labels of the dev questions: no set decodes together without references."""
    best, *others = sorted(chosen.dev.values(), key=rank)
    decisions = [Decision(best.model, "primary", "primary", "the most accurate on the dev questions with labels")]
    for each in others:
        behind = f"{best.accuracy - each.accuracy:.1f} points behind {best.model} on dev"
        decisions.append(Decision(each.model, "rejected", "other_set", behind))
    return Selection(tuple(decisions), (best.model,))


def write_table(path: Path, questions: Sequence[OpenQuestion], earlier: Mapping[str, LabelRow]) -> None:
    """Write the questions to a table, with the labels of earlier rows; its extension decides its format."""
    rows = []
    for question in questions:
        answers = [None if answer is None else _usable(answer) for answer in question.answers]
        known = earlier.get(question.key)
        rows.append(
            LabelRow(
                key=question.key,
                round=question.round,
                question=_usable(question.question),
                answers=dict(zip(_letters(len(answers)), answers, strict=True)),
                right=known.right if known else None,
                reference=known.reference if known else None,
            )
        )
    if path.suffix == ".jsonl":
        text = "".join(f"{json.dumps(written(row), ensure_ascii=False)}\n" for row in rows)
    else:
        # It loads the library that draws, which advice on logs need not wait for.
        from reports.formats import as_csv

        most = _letters(max((len(row.answers) for row in rows), default=0))
        text = as_csv(
            [
                {
                    **row.model_dump(include={"key", "round", "question"}),
                    **{letter: _shown(row.answers[letter]) if letter in row.answers else "" for letter in most},
                    **row.model_dump(include={"right", "reference"}),
                }
                for row in rows
            ]
        )
    try:
        write_text(path, text)
    except OSError as error:
        raise UniteError(f"{path}: cannot be written ({error.strerror or error}); give another --out") from error


def label_columns(path: Path) -> list[str]:
    """The names of a table's columns; InputError if a column of labels is missing."""
    names = columns_of(path)
    if missing := [name for name in _LABEL if name not in names and path.suffix != ".jsonl"]:
        raise InputError(f"{path}: it has no column {missing[0]}; give a table that `advisor label` wrote")
    return names


def read_table(
    path: Path, questions: Mapping[str, OpenQuestion], rounds: Sequence[Round], task: Task, progress: Progress
) -> LabelTable:
    """Read the labels of some rounds of a table; a row without a label is no fault.

    The metric of the task compares answers with a reference. Each row that cannot be used is shown, in a line.
    """
    names = label_columns(path)
    notes: Notes = []
    faults: list[str] = []
    labels: dict[str, frozenset[int]] = {}
    rows: dict[str, LabelRow] = {}
    places: dict[str, str] = {}
    answers = [name for name in names if name == "answers" or re.fullmatch("[A-Z]{1,2}", name)]
    for found in rows_of(path, [*_LABEL, *answers], notes):
        try:
            row, place = _row(found)
            if row.key in places:
                raise InputError(f"{place}: its question is in {places[row.key]}, too; leave out one of the rows")
            places[row.key] = place
            if row.round not in rounds:
                continue
            question = _question(row, place, questions)
            if question is not None:
                labels[row.key], rows[row.key] = _right_answers(row, question, place, task), row
        except InputError as error:
            faults.append(str(error))
    for note in notes:
        progress.say(note)
    for fault in faults[:_MOST_FAULTS] if len(faults) > 1 else ():
        progress.say(fault)
    if faults:
        rest = f" (and {counted(len(faults) - 1, 'more row')} that cannot be used)" if len(faults) > 1 else ""
        raise InputError(f"{faults[0]}{rest}")
    return LabelTable(labels, rows)


def _row(found: Row | LeftOut) -> tuple[LabelRow, str]:
    if isinstance(found, LeftOut):
        raise InputError(f"{found.place}: {found.reason}; {_WAY_OUT}")
    values, place = found
    # A spreadsheet may have numbers in place of texts, and blanks.
    cells = {name: (text_of(values[name]) or "").strip() or None for name in _LABEL}
    given = values.get("answers")
    answers = (
        given if isinstance(given, dict) else {name: text_of(values[name]) for name in values if name not in _LABEL}
    )
    return validated(LabelRow, {**cells, "answers": answers}, place, _WAY_OUT, clean=False), place


def _question(row: LabelRow, place: str, questions: Mapping[str, OpenQuestion]) -> OpenQuestion | None:
    """The question of a row; None for a row without a label."""
    if row.right is None and row.reference is None:
        return None
    question = questions.get(row.key)
    if question is None:
        raise InputError(
            f"{place}: no question with these answers has the key {shortened(row.key, 20)!r}; give the models, logs, "
            "task and options that the table was written with, or write it again: the answers or earlier labels have "
            "changed"
        )
    for letter, answer in zip(_letters(len(question.answers)), question.answers, strict=True):
        if letter in row.answers and not _is_same(row.answers[letter], answer):
            raise InputError(
                f"{place}: answer {letter} is {shortened(row.answers[letter] or '', 40)!r}, and was "
                f"{shortened(answer or _NO_ANSWER, 40)!r} when the table was written; restore it"
            )
    return question


def _right_answers(row: LabelRow, question: OpenQuestion, place: str, task: Task) -> frozenset[int]:
    """The places of the right answers."""
    if row.right is not None and row.reference is not None:
        raise InputError(f"{place}: it has both right and reference; empty one of them")
    if row.reference is not None:
        metric = get_metric(task.metric if task.metric in VOTE_METRICS else "exact_match")
        if (problem := metric.problem((row.reference,), question.choices)) is not None:
            raise InputError(f"{place}: {problem}; correct it")
        values = [
            0.0 if answer is None else metric.score(answer, (row.reference,), question.choices)[0]
            for answer in question.answers
        ]
        return frozenset(place for place, value in enumerate(values) if value == 1)
    words = re.split(r"[\s,;]+", (row.right or "").strip().strip("'"))
    letters = _letters(len(question.answers))
    if [word.lower() for word in words] == [_NONE]:
        return frozenset()
    if wrong := next((word for word in words if word.upper() not in letters), None):
        last = f" to {letters[-1]}" if len(letters) > 1 else ""
        raise InputError(f"{place}: right is {shortened(wrong, 20)!r}; give {letters[0]}{last}, or none")
    return frozenset(letters.index(word.upper()) for word in words)


def _letters(count: int) -> list[str]:
    """A, B, ..., Z, AA, AB, ..."""
    alphabet = string.ascii_uppercase
    return [*alphabet, *(first + second for first in alphabet for second in alphabet)][:count]


def _shown(answer: str | None) -> str:
    return _NO_ANSWER if answer is None else answer


def _usable(text: str) -> str:
    # Halves of surrogate pairs occur in JSON, and no file in UTF-8 can have them.
    return text.replace("\0", "").encode(errors="replace").decode()


def _is_same(cell: str | None, answer: str | None) -> bool:
    """Whether a cell has an answer as it was written; a spreadsheet may write a number in another way."""
    written_as, given = _usable(_shown(answer)).strip(), (cell or "").strip().removeprefix("'")
    if given in (written_as, written_as.removeprefix("'")) or (answer is None and cell is None):
        return True
    try:
        return float(given) == float(written_as)
    except ValueError:
        return " ".join(given.split()) == " ".join(written_as.removeprefix("'").split())
