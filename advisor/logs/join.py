"""Joins the records of all logs: the answers of several models to the same questions.

Two records are about the same question if they have the same id, question, options and reference, whatever the spelling
of numbers and white space; or, where ids differ between logs, the same question, options and reference. Nothing else is
joined: what does not match is left out, and a note says how much it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from advisor.logs.sources import LogOptions, LogRecord, LogSource, find_sources, plugins, records_of
from advisor.options.shared import LogsOptions, TaskOptions, split_names
from advisor.records import Answer, Cost, Profile, fits, fits_patterns, join
from advisor.strategies.strategy import AnsweredSplit
from advisor.tasks.load import find_task
from advisor.tasks.metrics import COMPARING, READERS, Metric, get_metric, metric_names, runs_code
from advisor.tasks.metrics import plugins as metric_plugins
from advisor.tasks.tables.streams import Notes
from advisor.tasks.tables.values import ScoreReader
from advisor.tasks.task import JUDGE, MAX_RESPONSE, Example, Task, sha256
from advisor.tasks.task_file import read_definition
from advisor.tasks.templates import check_pattern
from ensemble.common.text import counted, first_of
from ensemble.errors import InputError
from ensemble.methods.voting import LONGEST_PLAIN, answer_key
from ensemble.models.thinking import FAMILIES, ThinkingReader

DEV_SIZE = 300
"""Questions of the dev split by default; at most half of all."""
_FEWEST_SHARED = 0.75
"""A model that would reduce the common questions below this share is left out, if others remain."""
_LONGEST_NUMBER = 30  # characters
_MOST_UNUSABLE = 0.05
"""The share of references that a metric may be unable to use."""
_LISTED = 5
"""How many models or evaluations a message names."""
_OPENINGS = tuple([form.opening.strip() for form in FAMILIES if not form.needs_closing])
"""What begins a thinking, in any model."""
_NAMELESS = "no name"
"""The evaluation of records that name none."""
_LONGEST_RAW = 10 * MAX_RESPONSE
"""Characters of a response with its thinking in it."""
_MOST_LONG = 0.05
"""The share of long answers up to which it does not matter whether they are whole responses."""
_FEWEST_ALIKE = 0.1
"""The share of the long answers that another model gives, too; with fewer they are whole responses, and no votes."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """A metric that reads an answer from a response and compares it with the reference."""

    metric: str  # the name of the metric; the options of a choice question are compared by their letters
    extract: str | None = None  # see :class:`advisor.tasks.task.Task`

    def __post_init__(self) -> None:
        metric_plugins().check(self.metric)
        if self.metric not in metric_names() or needs_more(self.metric):
            # A plug-in is named without being loaded: only the one that is used may fail.
            names = [name for name in metric_names() if name in metric_plugins() or not needs_more(name)]
            raise InputError(f"--metric {self.metric}: not one of {', '.join(map(metric_plugins().label, names))}")
        if self.extract is not None and (problem := check_pattern(self.extract)) is not None:
            raise InputError(f"--metric {self.metric}:{self.extract}: {problem}")

    @classmethod
    def of_text(cls, text: str) -> Scoring:
        """Read ``METRIC`` or ``METRIC:PATTERN``."""
        metric, colon, pattern = text.partition(":")
        if colon and not pattern:
            raise InputError(f"--metric {text}: give a pattern behind the colon, or leave out the colon")
        return cls(metric, pattern or None)

    @classmethod
    def of_task(cls, name_or_path: str | Path) -> Scoring:
        """The metric and the pattern of a built-in task or a task file. Its data is not read."""
        path, variant = find_task(name_or_path)
        definition = read_definition(path, variant)
        if needs_more(definition.metric):
            what = "asks a model" if definition.metric == JUDGE else "runs code"
            raise InputError(
                f"{path}: its metric {definition.metric} {what}, and does not score logs; give another task"
            )
        return cls(definition.metric, definition.extract)


def needs_more(metric: str) -> bool:
    """Whether a metric needs more than texts: a sandbox, or a judge."""
    return metric == JUDGE or runs_code(metric)


@dataclass(frozen=True, slots=True)
class JoinedLogs:
    """The answers of several models to the same questions."""

    name: str
    metric: str
    examples: tuple[Example, ...]
    # Each model's answers, in the order of the questions; of several responses to a question the first.
    profiles: Mapping[str, Profile]
    # All responses of the models that answered each question several times, the first ones included.
    draws: Mapping[str, tuple[Profile, ...]]
    # The cluster of each question; None if the user named no field, and no run folder has clusters.
    clusters: tuple[str, ...] | None
    notes: tuple[str, ...]  # what was left out, and why, one sentence each
    sources: tuple[LogSource, ...]
    # The metric and the pattern that scored the responses again; None if the scores are the logs' own.
    scoring: Scoring | None = None
    # For each model how many scores are ``unread``, and how many responses are ``missing`` or ``failed``.
    lost: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def no_vote_note(self) -> str | None:
        """A note why no vote is compared; None if votes are possible, or the texts themselves are compared."""
        if self.can_vote or self.metric in COMPARING:
            return None
        return (
            "no votes are compared, because most answers have no extracted answer, or long ones that are "
            "all different; add --metric METRIC:PATTERN, or name the column of a table with --column extracted=NAME"
        )

    @property
    def can_vote(self) -> bool:
        """Whether the extracted answers can be counted: most have one, and long ones are given more than once."""
        if self.metric in COMPARING:
            return False
        answers = [[answer.extracted for answer in profile.answers] for profile in self.profiles.values()]
        known = sum(text is not None for own in answers for text in own)
        long = alike = 0
        for given in zip(*answers, strict=True):
            counts = Counter(answer_key(text) for text in given if text is not None and len(text) > LONGEST_PLAIN)
            long += counts.total()
            alike += sum(count for count in counts.values() if count > 1)
        is_counted = long <= _MOST_LONG * known or alike >= _FEWEST_ALIKE * long
        return 2 * known > sum(map(len, answers)) and is_counted

    def part(self, split: str, numbers: Sequence[int], seed: int) -> AnsweredSplit:
        """Some of the questions, by their numbers, as a split with the answers to them; see :meth:`task`."""
        return AnsweredSplit(
            self.task(split, numbers, seed),
            {name: each.part(numbers) for name, each in self.profiles.items()},
            draws={name: [each.part(numbers) for each in drawn] for name, drawn in self.draws.items()},
        )

    def halves(self, seed: int, size: int = DEV_SIZE) -> tuple[AnsweredSplit, AnsweredSplit]:
        """The dev questions and the held-out ones, as :meth:`split` draws them."""
        dev, held_out = self.split(seed, size)
        return self.part("dev", dev, seed), self.part("held_out", held_out, seed)

    def split(self, seed: int, size: int = DEV_SIZE) -> tuple[list[int], list[int]]:
        """The numbers of the dev questions (half of all at most), and of the others; a cluster stays together."""
        n = len(self.examples)
        # Without clusters each question is a cluster of one.
        labels = self.clusters or tuple(map(str, range(n)))
        order = list(dict.fromkeys(labels))
        if len(order) < 2:
            raise InputError(
                f"the logs have too few common questions ({n}) or clusters ({len(order)}); give logs with more: one "
                "part chooses, another verifies"
            )
        target = min(size, n // 2)
        np.random.default_rng(seed).shuffle(order)
        sizes = Counter(labels)
        # Whatever the sizes are, the first cluster chooses and the last one verifies.
        chosen, count = {order[0]}, sizes[order[0]]
        for label in order[1:-1]:
            if count + sizes[label] <= target:
                chosen.add(label)
                count += sizes[label]
        dev = [number for number, label in enumerate(labels) if label in chosen]
        return dev, [number for number, label in enumerate(labels) if label not in chosen]

    def task(self, split: str, numbers: Sequence[int], seed: int) -> Task:
        """Some of the questions as a split of a task."""
        labels = self.clusters or (None,) * len(self.examples)
        examples = tuple(replace(self.examples[number], cluster=labels[number]) for number in numbers)
        digest = sha256(self.name, split, *([each.id, each.prompt, each.accepted] for each in examples))
        extract = self.scoring.extract if self.scoring else None
        return Task(
            name=self.name,
            metric=self.metric,
            split=split,
            examples=examples,
            stop=(),
            max_new_tokens=1,
            shots=0,
            seed=seed,
            extract=extract,
            notes=self.notes if split == "dev" else (),
            fingerprint=digest,
            prompt_digest=digest[:12],
        )


class _Reading:
    """All records, as far as they are read. A question's number is its place in ``examples``."""

    def __init__(self) -> None:
        # The number of each spelling of a question, which most records share with others, and of it in one spelling.
        self.spellings: dict[tuple[object, ...], int] = {}
        self.numbers: dict[tuple[str, ...], int] = {}
        self.examples: list[Example] = []
        self.clusters: list[str | None] = []
        # The answers of each model by number of the question, then by number of the response.
        self.models: dict[str, dict[int, dict[int, Answer]]] = {}
        self.repeated: dict[str, tuple[int, str]] = {}  # how many records of a model repeat one, and the first place
        self.tasks: Counter[str] = Counter()
        self.metrics: Counter[str] = Counter()


def read_logs(
    options: LogsOptions,
    models: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    *,
    paths: Sequence[str] = (),
    needs_score: bool = True,
) -> JoinedLogs:
    """Read logs as the options of a command say, and join them; `say` shows the notes."""
    columns = options.columns()
    told = LogOptions(
        score=columns.get("score"),
        cluster=columns.pop("cluster", None),
        evaluation=columns.pop("evaluation", None),
        model_columns=split_names(columns.pop("models", "")),
        columns=columns,
        needs_score=needs_score,
        scores=ScoreReader(options.score_map),
    )
    scoring = None if options.metric is None else Scoring.of_text(options.metric)
    if isinstance(options, TaskOptions) and options.task is not None:
        if scoring is not None:
            raise InputError("--task has a metric; leave out --metric or --task")
        scoring = Scoring.of_task(options.task)
    notes: Notes = []
    try:
        return join_logs(paths or options.logs, told, models=models, scoring=scoring, notes=notes)
    finally:
        # Also before an error: what was left out of a log often is its reason.
        if say is not None:
            for note in notes:
                say(note)


def join_logs(
    paths: Sequence[str],
    options: LogOptions | None = None,
    *,
    models: Sequence[str] = (),
    scoring: Scoring | None = None,
    notes: Notes | None = None,
) -> JoinedLogs:
    """Read logs and join them; `scoring` scores the responses again, instead of the scores of the logs.

    The `paths` are files, folders and globs, and `models` globs of the models to take, or to leave out after ``!``. A
    model that is named without a wildcard is never left out. Notes come also where the logs cannot be joined.
    """
    notes = Notes() if notes is None else notes
    options = replace(
        options or LogOptions(),
        is_rescored=scoring is not None,
        reads_json=scoring is not None and {scoring.metric, scoring.extract} & {*READERS, *READERS.values()} != set(),
    )
    sources = find_sources(paths, notes)
    named = {Path(path).absolute() for path in paths}
    try:
        reading = _read(_records(sources, options, notes, named), models, options.evaluation, notes)
    finally:
        # Also before an error: what cannot be read is often its reason.
        if options.needs_score and not options.is_rescored:
            options.scores.check(notes)
    _part(reading)
    _join_by_question(reading, notes)
    kept = _kept(reading, models, notes)
    common = _common(reading, kept, notes)
    if scoring is not None:
        # Without scores the metric only reads the answers, for people to label.
        common = _with_references(reading, common, scoring, notes) if options.needs_score else common
        _score_again(reading, kept, common, scoring, notes)
    if options.needs_score:
        common = _scored(reading, kept, common, notes)
    _separate(reading, common, notes)
    lost = _lost(reading, kept, common, options, notes)
    examples = tuple(reading.examples[number] for number in common)
    metrics = [metric for metric, _ in reading.metrics.most_common()]
    if len(metrics) > 1 and scoring is None:
        notes.append(f"the logs have several scores, {join(metrics)}; they are compared as if they were one")
    return JoinedLogs(
        name=next(iter(reading.tasks), _name(sources)),
        metric=scoring.metric if scoring else (metrics or ["score"])[0],
        examples=examples,
        profiles={model: _profile(reading, model, common, 0) for model in kept},
        draws=_draws(reading, kept, common),
        clusters=_clusters(reading, common, options),
        notes=tuple(notes),
        sources=tuple(sources),
        scoring=scoring,
        lost=lost,
    )


def _records(
    sources: Sequence[LogSource], options: LogOptions, notes: Notes, named: Collection[Path]
) -> Iterator[LogRecord]:
    for source in sources:
        try:
            with plugins().running(source.format):
                yield from records_of(source, options, notes)
        except InputError as error:
            # A file in a folder may be anything, but one that the user named is meant.
            if source.path.absolute() in named or len(sources) == 1:
                raise
            notes.append(f"{error}; the file is left out")


def _read(records: Iterable[LogRecord], models: Sequence[str], task: str | None, notes: Notes) -> _Reading:
    reading, other_models, other_tasks = _Reading(), Counter[str](), Counter[str]()
    for record in records:
        # So those of a table can be chosen among others, too.
        if task is not None and not fits(record.task or _NAMELESS, task):
            other_tasks[record.task or _NAMELESS] += 1
            continue
        name = record.model.strip()
        if not fits_patterns(name, models):
            other_models[name] += 1
            continue
        if record.task is not None:
            reading.tasks[record.task] += 1
        if record.metric is not None:
            reading.metrics[record.metric] += 1
        draws = reading.models.setdefault(name, {}).setdefault(_number(reading, record), {})
        # A record without a score is replaced by one that has it: some tools write a log before they score it.
        if record.draw in draws and not math.isnan(draws[record.draw].score):
            count, first = reading.repeated.get(name, (0, record.place))
            reading.repeated[name] = count + 1, first
            continue
        draws[record.draw] = _answer(record)
    if other_tasks and not (reading.models or other_models):
        raise InputError(
            f"--column evaluation={task}: no evaluation of the logs matches; they have {_some(other_tasks)}"
        )
    _check(reading, models, other_models, notes)
    return reading


def _check(reading: _Reading, models: Sequence[str], others: Counter[str], notes: Notes) -> None:
    """Check that every name fits a model, and that the records are of one evaluation; note what repeats."""
    # A misspelt name must not leave out a candidate without a word.
    known = Counter({name: len(answers) for name, answers in reading.models.items()}) + others
    if missing := [name for name in models if not any(fits(model, name.removeprefix("!")) for model in known)]:
        raise InputError(f"{join(missing)}: no model of the logs matches; they have {_some(known)}")
    if known and not reading.models:
        raise InputError(f"{join(models)}: no model of the logs is left; they have {_some(known)}")
    if not reading.models:
        reason = f": {notes[0]}" if notes else "; give other files"
        raise InputError(f"the logs have no record that can be used{reason}")
    if len(reading.tasks) > 1:
        counts = ", ".join(f"{name} ({count:,} records)" for name, count in reading.tasks.most_common(10))
        raise InputError(f"the logs are of several evaluations, {counts}; choose one with --column evaluation=NAME")
    for name, (count, first) in reading.repeated.items():
        notes.append(
            f"{name}: {counted(count, 'record', 'repeats')} a question of this model, and the first answer counts; the "
            f"first is {first}"
        )


def question_key(example: Example) -> tuple[str, ...]:
    """The question, the options and the reference, whatever the spelling of numbers and white space."""
    return tuple(map(plain, (example.question, *example.choices, "\0", *example.accepted)))


def plain(text: str) -> str:
    """A text with one spelling of white space; a whole number without zeros around it: 7 for 0007 and 7.0."""
    text = " ".join(text.split())
    head, _, tail = text[:_LONGEST_NUMBER].partition(".")
    is_whole = text[:_LONGEST_NUMBER] == text and head.isdecimal() and not tail.strip("0")
    return (head.lstrip("0") or "0") if is_whole else text


def _number(reading: _Reading, record: LogRecord) -> int:
    """The number of a record's question."""
    spelling = (record.id, record.question, record.reference, record.choices)
    if (known := reading.spellings.get(spelling)) is not None:
        return known
    question, reference = record.question or "", record.reference or ""
    if len(reference) == 1:
        reference = reference[0]
    example = Example(record.id, question, question, reference, choices=record.choices, group=record.group)
    number = reading.numbers.setdefault((plain(record.id), *question_key(example)), len(reading.examples))
    if number == len(reading.examples):
        reading.examples.append(example)
        reading.clusters.append(record.cluster)
    reading.spellings[spelling] = number
    return number


def _join_by_question(reading: _Reading, notes: Notes) -> None:
    """Join questions with different ids, such as the rows of shuffled tables, by what they ask and their reference."""
    keys = [question_key(example) for example in reading.examples]
    # What a model answered twice is not known by its text alone.
    repeated = {
        key
        for answers in reading.models.values()
        for key, count in Counter(keys[number] for number in answers).items()
        if count > 1
    }
    first: dict[tuple[str, ...], int] = {}
    target = [
        number if key in repeated or not example.question.strip() else first.setdefault(key, number)
        for number, (key, example) in enumerate(zip(keys, reading.examples, strict=True))
    ]
    joined = len(target) - len(set(target))
    if joined:
        for name, answers in reading.models.items():
            reading.models[name] = {target[number]: draws for number, draws in answers.items()}
        what = counted(joined, "question", "has")
        notes.append(f"{what} another id in one log than in another, and were joined by their text and reference")


def _separate(reading: _Reading, common: Sequence[int], notes: Notes) -> None:
    """Give different questions with one id different ids."""
    taken = Counter(reading.examples[number].id for number in common)
    repeated = [name for name, count in taken.items() if count > 1]
    seen = set[str]()
    for number in common:
        example = reading.examples[number]
        name, copy = example.id, 1
        while name in seen or (copy > 1 and name in taken):
            copy += 1
            name = f"{example.id} ({copy})"
        seen.add(name)
        reading.examples[number] = replace(example, id=name)
    if repeated:
        notes.append(
            f"{counted(len(repeated), 'id', 'has')} several questions or references in the same logs, and these are "
            f"kept apart; the first is {_shown(repeated[0])}"
        )


def _answer(record: LogRecord) -> Answer:
    text = None if record.response is None else record.response[:_LONGEST_RAW]
    thinking = record.thinking if record.thinking and record.thinking.strip() else None
    return Answer(
        id=record.id,
        text="" if record.error is not None else text,
        extracted=record.extracted,
        # NaN is no score: it is replaced, or the question is left out.
        score=0.0 if record.error is not None else math.nan if record.score is None else record.score,
        finish_reason="error" if record.error is not None else "length" if record.cut else "unknown",
        error=record.error,
        group=record.group,
        logged_length=record.length,
        tokens=record.tokens or 0,
        prompt_tokens=record.prompt_tokens or 0,
        seconds=record.seconds or 0.0,
        thinking=thinking,
        thought=record.thought or thinking is not None,
        dollars=record.dollars,
    )


def _part(reading: _Reading) -> None:
    """Part the thinking of each response from its answer."""
    for answers in reading.models.values():
        places = [(draws, draw) for draws in answers.values() for draw in draws if draws[draw].text is not None]
        whole = [draws[draw] for draws, draw in places]
        reader = ThinkingReader((answer.text or "", answer.finish_reason == "length") for answer in whole)
        parted: list[Answer] = []
        for answer in whole:
            thinking, text = reader.read(answer.text or "", cut=answer.finish_reason == "length")
            known = "\n\n".join(part for part in (answer.thinking, thinking) if part)[:MAX_RESPONSE]
            thought = answer.thought or bool(known)
            parted.append(replace(answer, text=text[:MAX_RESPONSE], thinking=known or None, thought=thought))
        can_answer = any(answer.thought and not _is_blank(answer) for answer in parted)
        for (draws, draw), before, answer in zip(places, whole, parted, strict=True):
            is_open = (answer.thinking and _is_blank(answer)) or (before.text or "").rstrip().endswith(_OPENINGS)
            # Where the log does not say how it ended, a thinking without an answer was cut off.
            is_cut = can_answer and is_open and answer.finish_reason == "unknown"
            draws[draw] = replace(answer, finish_reason="length") if is_cut else answer


def _is_blank(answer: Answer) -> bool:
    return not (answer.text or "").strip()


def _kept(reading: _Reading, patterns: Sequence[str], notes: Notes) -> list[str]:
    """The models that are compared, in the order of the logs."""
    counts = {name: len(answers) for name, answers in reading.models.items()}
    if len(counts) < 2:
        return list(counts)
    # From the model with the most questions on: to try all sets of models would take exponential time.
    largest = sorted(counts, key=lambda name: -counts[name])
    common, kept = set(reading.models[largest[0]]), {largest[0]}
    for name in largest[1:]:
        shared = common & reading.models[name].keys()
        # A name without a wildcard is equal to its pattern.
        if name in patterns or len(shared) >= _FEWEST_SHARED * len(common):
            common, kept = shared, {*kept, name}
    # No two models share enough: with all of them, the message tells how few questions are common.
    if len(kept) < 2:
        return list(counts)
    few = {name: len(common & reading.models[name].keys()) for name in counts if name not in kept}
    if few:
        # Models of another benchmark share none, and to keep them would leave no question.
        way_out = (
            "name a model to keep it: --only NAME in select; LOG#NAME, or --logs LOG NAME, in compare"
            if any(few.values())
            else "their logs may be of another evaluation; read each evaluation in a separate run"
        )
        notes.append(
            f"left out, because they share too few of the {len(common):,} questions of the others: {_some(few)}; "
            f"{way_out}"
        )
    return [name for name in counts if name in kept]


def _common(reading: _Reading, kept: Sequence[str], notes: Notes) -> list[int]:
    """The numbers of the questions that all models answered."""
    answered = [reading.models[name].keys() for name in kept]
    common = set(answered[0]).intersection(*answered[1:])
    counts = {name: len(reading.models[name]) for name in kept}
    if not common:
        ids = [
            f"id {_shown(reading.examples[next(iter(own))].id)} in {name}"
            for name, own in zip(kept, answered, strict=True)
        ]
        raise InputError(
            f"no question is in the logs of all models, by id and by question and reference: {_some(counts)}; for "
            f"example {join(ids[:2])}; {_why_apart(reading, kept) or 'choose models that answered the same questions'}"
        )
    # Of a question that not all have, another question or reference may have the same id in another log.
    apart = set().union(*answered) - common
    of_id = Counter(reading.examples[number].id for number in set().union(*answered))
    differ = sorted({reading.examples[number].id for number in apart if of_id[reading.examples[number].id] > 1})
    if differ:
        notes.append(
            f"{counted(len(differ), 'id', 'has')} another question or reference in one log than in another, and these "
            f"were not joined; the first is {_shown(differ[0])}"
        )
    lost = {name: count - len(common) for name, count in counts.items() if count > len(common)}
    if lost:
        notes.append(
            f"{counted(len(common), 'question')} answered by all models; answers to other questions are left out: "
            f"{_some(lost)}"
        )
    return sorted(common)


def _scored(reading: _Reading, kept: Sequence[str], common: Sequence[int], notes: Notes) -> list[int]:
    """The questions that have a score of every model."""
    missing = {
        name: [
            number for number in common if any(math.isnan(each.score) for each in reading.models[name][number].values())
        ]
        for name in kept
    }
    for name, numbers in missing.items():
        if len(numbers) == len(common):
            answers = reading.models[name]
            if all(answer.text is None for number in numbers for answer in answers[number].values()):
                raise InputError(
                    "the log has neither scores nor responses; give a log with one of them, or name the column of a "
                    "table: --column score=NAME or --column response=NAME",
                    of=name,
                )
            raise InputError(
                "the log has no scores; score its responses with --metric METRIC (such as exact_match or "
                "number), or --metric METRIC:PATTERN",
                of=name,
            )
    without = set().union(*missing.values())
    lacking = {name: len(numbers) for name, numbers in missing.items() if numbers}
    if without:
        notes.append(f"left out, because a score is missing: {counted(len(without), 'question')}: {_some(lacking)}")
    if len(without) == len(common):
        # Also if each model lacks only some of the scores.
        raise InputError("no question has a score of every model; leave out the models whose logs lack scores")
    rest = [number for number in common if number not in without]
    left = {answer.score for name in kept for number in rest for answer in reading.models[name][number].values()}
    if without and len(left) == 1:
        raise InputError(
            f"all scores of the logs are {left.pop():g}, and {counted(len(without), 'question')} lack one: "
            f"{_some(lacking)}; perhaps only one outcome can be read: correct the logs"
        )
    return rest


def _why_apart(reading: _Reading, kept: Sequence[str]) -> str | None:
    """What differs between two models in a question with one id; None if they share no id."""
    one, other = ({plain((e := reading.examples[n]).id): e for n in reading.models[name]} for name in kept[:2])
    shared = next((name for name in one if name in other), None)
    if shared is None:
        return None
    pairs = {
        "question": (one[shared].question, other[shared].question),
        "options": ("; ".join(one[shared].choices), "; ".join(other[shared].choices)),
        "reference": ("; ".join(one[shared].accepted), "; ".join(other[shared].accepted)),
    }
    part, (first, second) = next((part, pair) for part, pair in pairs.items() if plain(pair[0]) != plain(pair[1]))
    return (
        f"{_shown(shared)} has another {part} in {kept[1]} ({_shown(second)}) than in {kept[0]} ({_shown(first)}): "
        "make them equal, or choose models that answered the same questions"
    )


def _with_references(reading: _Reading, common: Sequence[int], scoring: Scoring, notes: Notes) -> list[int]:
    """The questions whose references a metric can use, which are made ready for it."""
    # It compares letters of options; without options every answer would be wrong.
    if scoring.metric == "choice" and not any(reading.examples[number].choices for number in common):
        raise InputError("--metric choice: the questions of the logs have no options; give --metric exact_match")
    metric, kept = get_metric(scoring.metric), list[int]()
    absent, problems = 0, dict[str, str]()
    parts = [text.split("|") for n in common if isinstance(text := reading.examples[n].reference, str)]
    has_bars = 2 * sum(len(each) > 1 and all(map(str.strip, each)) for each in parts) > len(common)
    if has_bars:
        notes.append("the references are read as accepted answers with | between them")
    for number in common:
        example = reading.examples[number]
        accepted = [text for text in example.accepted if text.strip()]
        if has_bars:
            accepted = [part.strip() for text in accepted for part in text.split("|")]
        # Of "5" and "five" a metric for numbers can use one.
        found = {text: _problem(metric, text, example.choices) for text in accepted}
        usable = tuple(text for text, problem in found.items() if problem is None)
        if usable:
            reading.examples[number] = replace(example, reference=usable[0] if len(usable) == 1 else usable)
            kept.append(number)
        elif accepted:
            problems[example.id] = str(found[accepted[0]])
        else:
            absent += 1
    if problems:
        first, problem = next(iter(problems.items()))
        what = f"{scoring.metric} cannot use {counted(len(problems), 'reference')}; for the question {_shown(first)} "
        if len(problems) > _MOST_UNUSABLE * len(common):
            raise InputError(f"--metric {what}{problem}; correct the references, or give another metric")
        notes.append(f"{what}{problem}; these questions are left out")
    if absent:
        notes.append(f"left out, because they have no reference: {counted(absent, 'question')} of {len(common):,}")
    if not kept:
        raise InputError(
            "no question of the logs has a reference, so --metric cannot score the responses; name its column with "
            "--column reference=NAME"
        )
    return kept


def _problem(metric: Metric, reference: str, choices: tuple[str, ...]) -> str | None:
    """Why a metric cannot use a reference; None if it can, or if it would at least take the same text as right."""
    problem = metric.problem((reference,), choices)
    return None if problem is None or metric.score(reference, (reference,), choices)[0] == 1 else problem


def _score_again(reading: _Reading, kept: Sequence[str], common: Sequence[int], scoring: Scoring, notes: Notes) -> None:
    """Replace the scores and the extracted answers by those of a metric."""
    task = JoinedLogs("", scoring.metric, (), {}, {}, None, (), (), scoring).task("dev", (), 0)
    changed = graded = 0
    for name in kept:
        for number in common:
            draws = reading.models[name][number]
            for draw, answer in draws.items():
                if answer.error is not None:
                    continue
                if answer.text is None:
                    raise InputError(
                        f"--metric: {name} has no responses in its log, so they cannot be scored again; leave out "
                        "this model, or --metric"
                    )
                score = task.score(reading.examples[number], answer.text)
                graded += not math.isnan(answer.score)
                changed += abs(score.value - answer.score) > 1e-9
                draws[draw] = replace(answer, score=score.value, extracted=score.extracted, problem=score.problem)
    if changed:
        notes.append(
            f"{scoring.metric} gives another score than the log to {changed:,} of {graded:,} responses; the log's "
            "scores are not used"
        )


def _profile(reading: _Reading, name: str, numbers: Sequence[int], draw: int) -> Profile:
    examples = [reading.examples[number] for number in numbers]
    # By their order: some logs count draws from 1.
    answers = [reading.models[name][number] for number in numbers]
    # In different logs a question may have different ids.
    own = [draws[sorted(draws)[draw] if draw else min(draws)] for draws in answers]
    taken = tuple(
        answer if answer.id == example.id else replace(answer, id=example.id)
        for answer, example in zip(own, examples, strict=True)
    )
    cost = Cost(
        sum(each.seconds for each in taken),
        sum(each.tokens for each in taken),
        prompt_tokens=sum(each.prompt_tokens for each in taken),
    )
    return Profile(name, taken, cost)


def _draws(reading: _Reading, kept: Sequence[str], common: Sequence[int]) -> dict[str, tuple[Profile, ...]]:
    draws = {}
    for name in kept:
        fewest = min((len(reading.models[name][number]) for number in common), default=0)
        if fewest > 1:
            draws[name] = tuple(_profile(reading, name, common, draw) for draw in range(fewest))
    return draws


def _lost(
    reading: _Reading, kept: Sequence[str], common: Sequence[int], options: LogOptions, notes: Notes
) -> dict[str, dict[str, int]]:
    """For each model how many scores were unread, how many responses are missing, and how many failed."""
    answers = {name: [each for number in common for each in reading.models[name][number].values()] for name in kept}
    failed = Counter({name: sum(answer.error is not None for answer in own) for name, own in answers.items()})
    missing = Counter({name: sum(map(_is_missing, own)) for name, own in answers.items()})
    for what, counts in (("have no response", +missing), ("failed", +failed)):
        if counts:
            notes.append(f"some questions {what} and count as wrong: {_some(counts)}")
    if not options.needs_score:
        return {name: {"unread": 0, "missing": missing[name], "failed": failed[name]} for name in kept}
    if +(missing + failed) and _order(answers) != _order(
        {name: [each for each in own if each.error is None and not _is_missing(each)] for name, own in answers.items()}
    ):
        notes.append(
            "the order of the models depends on these: on the questions that each model answered it is another; run "
            "them again, or leave out the models"
        )
    if common and all(answer.score == 0 for own in answers.values() for answer in own):
        notes.append(f"not one response of any model is right{_first_pair(reading.examples[common[0]], answers)}")
    unread = options.scores.unread
    return {name: {"unread": unread[name], "missing": missing[name], "failed": failed[name]} for name in kept}


def _first_pair(example: Example, answers: Mapping[str, Sequence[Answer]]) -> str:
    """What to compare where no response is right: the first reference and the first response to it."""
    said = next((own[0].text for own in answers.values() if own[0].text), None)
    if said is None or not example.reference:
        return "; see whether the scores are those of the right column"
    return f": for {_shown(example.accepted[0])} the response is {_shown(said)}; see whether the metric reads it"


def _is_missing(answer: Answer) -> bool:
    """Whether a model gave no response, and nothing else says why."""
    is_missing = answer.text is not None and _is_blank(answer) and not answer.thought
    return is_missing and answer.error is None and answer.finish_reason != "length" and answer.score == 0


def _order(answers: Mapping[str, Sequence[Answer]]) -> list[str]:
    """The models, the most accurate first."""
    # Rounded, so that a rounding error does not break a tie.
    means = {name: round(math.fsum(each.score for each in own) / max(len(own), 1), 9) for name, own in answers.items()}
    return sorted(means, key=lambda name: -means[name])


def _clusters(reading: _Reading, common: Sequence[int], options: LogOptions) -> tuple[str, ...] | None:
    if options.cluster is None:
        # Only run folders have clusters that the user did not name. There a question without one is a cluster alone.
        own = [reading.clusters[number] for number in common]
        is_alone = all(label is None for label in own)
        return None if is_alone else tuple(f"\0{n}" if label is None else label for n, label in enumerate(own))
    named = [
        reading.examples[number].group if options.cluster == "group" else reading.clusters[number] for number in common
    ]
    known = tuple(label for label in named if label is not None)
    if len(known) < len(named):
        raise InputError(
            f"--column cluster={options.cluster}: {len(named) - len(known):,} of {len(named):,} questions have no such "
            "field in the logs; give the name of a field that all have, or leave it out"
        )
    return known


def _shown(number: str) -> str:
    """An id in quotation marks, shortened."""
    return repr(number if len(number) <= 40 else f"{number[:40]}…")


def _some(counts: Mapping[str, int]) -> str:
    return first_of([f"{name} ({count:,})" for name, count in counts.items()], _LISTED)


def _name(sources: Sequence[LogSource]) -> str:
    """A name for a task that the logs do not name: that of the one file, or of the folder."""
    path = sources[0].path
    return path.name.partition(".")[0] if len(sources) == 1 else path.absolute().parent.name
