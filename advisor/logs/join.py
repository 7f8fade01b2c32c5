"""Joins the records of all logs: the answers of several models to the same questions.

Two records are about the same question if they have the same id and the same hash of question, options and reference.
Nothing else is joined: what does not match is left out, and a note says how much it is.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from advisor.logs.scoring import Scoring
from advisor.logs.sources import LogOptions, LogRecord, LogSource, find_sources, get_format, plugins
from advisor.records import Answer, Cost, Profile, fits, fits_patterns, join
from advisor.tables.streams import Notes
from advisor.tasks.task import MAX_RESPONSE, Example, Signature, Task, sha256
from ensemble.common.text import counted
from ensemble.errors import InputError
from ensemble.methods.voting import LONGEST_PLAIN, answer_key
from ensemble.models.thinking import ThinkingReader

DEV_SIZE = 300
"""Questions of the dev split by default; at most half of all."""
_FEWEST_SHARED = 0.75
"""A model that would reduce the common questions below this share is left out, if others remain."""
_LISTED = 5
"""How many models or evaluations a message names."""
_NAMELESS = "no name"
"""The evaluation of records that name none."""
_LONGEST_RAW = 10 * MAX_RESPONSE
"""Characters of a response with its thinking in it."""
_MOST_LONG = 0.05
"""The share of long answers up to which it does not matter whether they are whole responses."""
_FEWEST_ALIKE = 0.1
"""The share of the long answers that another model gives, too; with fewer they are whole responses, and no votes."""


@dataclass(frozen=True, slots=True)
class JoinedLogs:
    """The answers of several models to the same questions.

    Attributes:
        name: The name of the task.
        metric: The name of the score.
        examples: The questions.
        profiles: Each model's answers, in the order of the questions; of several responses to a question the first.
        draws: All responses of the models that answered each question several times, the first ones included.
        clusters: The cluster of each question; None if the user named no field, and no run folder has clusters.
        notes: What was left out, and why, one sentence each.
        sources: The logs.
        scoring: The metric and the pattern that scored the responses again; None if the scores are the logs' own.
    """

    name: str
    metric: str
    examples: tuple[Example, ...]
    profiles: Mapping[str, Profile]
    draws: Mapping[str, tuple[Profile, ...]]
    clusters: tuple[str, ...] | None
    notes: tuple[str, ...]
    sources: tuple[LogSource, ...]
    scoring: Scoring | None = None

    @property
    def no_vote_note(self) -> str | None:
        """A note why no vote is compared; None if votes are possible."""
        if self.can_vote:
            return None
        return (
            "no votes and cascades are compared, because most answers have no extracted answer, or long ones that are "
            "all different; add --metric METRIC:PATTERN, or name the column of a table with --column extracted=NAME"
        )

    @property
    def can_vote(self) -> bool:
        """Whether the extracted answers can be counted: most have one, and long ones are given more than once."""
        answers = [[answer.extracted for answer in profile.answers] for profile in self.profiles.values()]
        known = sum(text is not None for own in answers for text in own)
        long = alike = 0
        for given in zip(*answers, strict=True):
            counts = Counter(answer_key(text) for text in given if text is not None and len(text) > LONGEST_PLAIN)
            long += counts.total()
            alike += sum(count for count in counts.values() if count > 1)
        is_counted = long <= _MOST_LONG * known or alike >= _FEWEST_ALIKE * long
        return 2 * known > sum(map(len, answers)) and is_counted

    def split(self, seed: int, size: int = DEV_SIZE) -> tuple[list[int], list[int]]:
        """Draw the dev questions; all others are held out. The questions of a cluster stay together.

        Args:
            seed: Of the draw.
            size: Dev questions, at least 1; half of all if that is fewer.

        Returns:
            The numbers of the dev questions and of the held-out ones, each in the order of the log.

        Raises:
            InputError: There are fewer than two questions or clusters.
        """
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
            signature=Signature(self.name, self.metric, split, len(examples), 0, seed, digest[:12], ()),
        )


class _Model:
    """A model's records while they are read: by number of the question, then by number of the response."""

    def __init__(self) -> None:
        self.answers: dict[int, dict[int, Answer]] = {}
        self.tokens = self.prompt_tokens = self.repeated = 0
        self.seconds = 0.0
        self.first_repeated = ""


class _Reading:
    """All records, as far as they are read. A question's number is its place in ``examples``."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, bytes], int] = {}
        self.examples: list[Example] = []
        self.clusters: list[str | None] = []
        self.models: dict[str, _Model] = {}
        self.tasks: Counter[str] = Counter()
        self.metrics: Counter[str] = Counter()


def join_logs(
    paths: Sequence[str],
    options: LogOptions | None = None,
    *,
    models: Sequence[str] = (),
    scoring: Scoring | None = None,
    notes: Notes | None = None,
) -> JoinedLogs:
    """Read logs and join them.

    Args:
        paths: Files, folders and globs.
        options: What the user says about the logs.
        models: Globs of the models to take, or to leave out after ``!``; case-sensitive; empty for all. A model that
            is named without a wildcard is never left out.
        scoring: Scores the responses again; None for the scores of the logs.
        notes: Gets the notes, also where the logs cannot be joined: they often say why.

    Raises:
        InputError: A log cannot be read; no model matches a name; there are several evaluations; the models share no
            question; or a log has neither scores nor responses.
    """
    notes = Notes() if notes is None else notes
    options = replace(options or LogOptions(), is_rescored=scoring is not None)
    sources = find_sources(paths, notes)
    named = {Path(path).absolute() for path in paths}
    try:
        reading = _read(_records(sources, options, notes, named), models, options.evaluation, notes)
    except InputError:
        # What cannot be read is often the reason.
        if options.needs_score:
            options.scores.check(notes)
        raise
    if options.needs_score:
        options.scores.check(notes)
    _part(reading)
    kept = _kept(reading, models, notes)
    common = _common(reading, kept, notes)
    if scoring is not None:
        _score_again(reading, kept, common, scoring, notes)
    if options.needs_score:
        common = _scored(reading, kept, common, notes)
    examples = tuple(reading.examples[number] for number in common)
    metrics = [metric for metric, _ in reading.metrics.most_common()]
    if len(metrics) > 1 and scoring is None:
        notes.append(f"the logs have several scores, {join(metrics)}; they are compared as if they were one")
    return JoinedLogs(
        name=next(iter(reading.tasks), _name(sources)),
        metric=scoring.metric if scoring else (metrics or ["score"])[0],
        examples=examples,
        profiles={model: _profile(model, reading.models[model], common, 0) for model in kept},
        draws=_draws(reading, kept, common),
        clusters=_clusters(reading, common, options),
        notes=tuple(notes),
        sources=tuple(sources),
        scoring=scoring,
    )


def _records(
    sources: Sequence[LogSource], options: LogOptions, notes: Notes, named: Collection[Path]
) -> Iterator[LogRecord]:
    for source in sources:
        try:
            with plugins().running(source.format):
                yield from get_format(source.format).read(source, options, notes)
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
        if not fits_patterns(record.model, models):
            other_models[record.model] += 1
            continue
        if record.task is not None:
            reading.tasks[record.task] += 1
        if record.metric is not None:
            reading.metrics[record.metric] += 1
        model = reading.models.setdefault(record.model, _Model())
        draws = model.answers.setdefault(_number(reading, record), {})
        # A record without a score is replaced by one that has it: some tools write a log before they score it.
        if record.draw in draws and not math.isnan(draws[record.draw].score):
            model.repeated += 1
            model.first_repeated = model.first_repeated or record.place
            continue
        # What a response takes counts once, also if a record with its score follows.
        if record.draw not in draws:
            model.tokens += record.tokens or 0
            model.prompt_tokens += record.prompt_tokens or 0
            model.seconds += record.seconds or 0.0
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
    known = Counter({name: len(model.answers) for name, model in reading.models.items()}) + others
    if missing := [name for name in models if not any(fits(model, name.removeprefix("!")) for model in known)]:
        raise InputError(f"{join(missing)}: no model of the logs matches; they have {_some(known)}")
    if known and not reading.models:
        raise InputError(f"{join(models)}: no model of the logs is left; they have {_some(known)}")
    if not reading.models:
        raise InputError(f"the logs have no record that can be used{_reasons(notes)}")
    if len(reading.tasks) > 1:
        counts = ", ".join(f"{name} ({count:,} records)" for name, count in reading.tasks.most_common(10))
        raise InputError(f"the logs are of several evaluations, {counts}; choose one with --column evaluation=NAME")
    for name, model in reading.models.items():
        if model.repeated:
            what = "1 record repeats" if model.repeated == 1 else f"{model.repeated:,} records repeat"
            notes.append(
                f"{name}: {what} a question of this model, and the first answer counts; the first is "
                f"{model.first_repeated}"
            )


def _number(reading: _Reading, record: LogRecord) -> int:
    """The number of a record's question."""
    accepted = [record.reference] if isinstance(record.reference, str) else list(record.reference or ())
    digest = hashlib.blake2b(digest_size=8)
    for text in (record.question or "", *record.choices, "\0", *accepted):
        # Surrogates occur in JSON, and UTF-8 has no form for them.
        digest.update(text.encode(errors="surrogatepass") + b"\0")
    key = (record.id, digest.digest())
    number = reading.numbers.setdefault(key, len(reading.examples))
    if number == len(reading.examples):
        reference: str | tuple[str, ...] = accepted[0] if len(accepted) == 1 else tuple(accepted)
        question = record.question or ""
        reading.examples.append(
            Example(record.id, question, question, reference or "", choices=record.choices, group=record.group)
        )
        reading.clusters.append(record.cluster)
    return number


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
        thinking=thinking,
        thought=record.thought or thinking is not None,
        dollars=record.dollars,
    )


def _part(reading: _Reading) -> None:
    """Part the thinking of each response from its answer."""
    for model in reading.models.values():
        places = [(draws, draw) for draws in model.answers.values() for draw in draws]
        answers = [draws[draw] for draws, draw in places]
        reader = ThinkingReader((answer.text or "", answer.finish_reason == "length") for answer in answers)
        for (draws, draw), answer in zip(places, answers, strict=True):
            if answer.text is None:
                continue
            thinking, text = reader.read(answer.text, cut=answer.finish_reason == "length")
            known = "\n\n".join(part for part in (answer.thinking, thinking) if part)[:MAX_RESPONSE]
            draws[draw] = replace(
                answer, text=text[:MAX_RESPONSE], thinking=known or None, thought=answer.thought or bool(known)
            )


def _kept(reading: _Reading, patterns: Sequence[str], notes: Notes) -> list[str]:
    """The models that are compared, in the order of the logs."""
    counts = {name: len(model.answers) for name, model in reading.models.items()}
    if len(counts) < 2:
        return list(counts)
    # From the model with the most questions on: to try all sets of models would take exponential time.
    largest = sorted(counts, key=lambda name: -counts[name])
    common, kept = set(reading.models[largest[0]].answers), {largest[0]}
    for name in largest[1:]:
        shared = common & reading.models[name].answers.keys()
        # A name without a wildcard is equal to its pattern.
        if name in patterns or len(shared) >= _FEWEST_SHARED * len(common):
            common, kept = shared, {*kept, name}
    # No two models share enough: with all of them, the message tells how few questions are common.
    if len(kept) < 2:
        return list(counts)
    few = {name: len(common & reading.models[name].answers.keys()) for name in counts if name not in kept}
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
    answered = [reading.models[name].answers.keys() for name in kept]
    common = set(answered[0]).intersection(*answered[1:])
    counts = {name: len(reading.models[name].answers) for name in kept}
    if not common:
        ids = [
            f"id {_shown(reading.examples[next(iter(own))].id)} in {name}"
            for name, own in zip(kept, answered, strict=True)
        ]
        raise InputError(
            f"no question is in the logs of all models, by id and by question and reference: {_some(counts)}; for "
            f"example {join(ids[:2])}; choose models that answered the same questions"
        )
    # Of a question that not all have, another question or reference may have the same id in another log.
    apart = set().union(*answered) - common
    of_id = Counter(reading.examples[number].id for number in set().union(*answered))
    differ = sorted({reading.examples[number].id for number in apart if of_id[reading.examples[number].id] > 1})
    if differ:
        what = "1 id has" if len(differ) == 1 else f"{len(differ):,} ids have"
        notes.append(
            f"{what} another question or reference in one log than in another, and these were not joined; the first is "
            f"{_shown(differ[0])}"
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
        name: [number for number in common if any(math.isnan(answer.score) for answer in answers[number].values())]
        for name, answers in ((name, reading.models[name].answers) for name in kept)
    }
    for name, numbers in missing.items():
        if len(numbers) == len(common):
            answers = reading.models[name].answers
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
    left = {
        answer.score for name in kept for number in rest for answer in reading.models[name].answers[number].values()
    }
    if without and len(left) == 1:
        raise InputError(
            f"all scores of the logs are {left.pop():g}, and {counted(len(without), 'question')} lack one: "
            f"{_some(lacking)}; perhaps only one outcome can be read: correct the logs"
        )
    return rest


def _score_again(reading: _Reading, kept: Sequence[str], common: Sequence[int], scoring: Scoring, notes: Notes) -> None:
    """Replace the scores and the extracted answers by those of a metric."""
    # It compares letters of options; without options every answer would be wrong.
    if scoring.metric == "choice" and not any(reading.examples[number].choices for number in common):
        raise InputError("--metric choice: the questions of the logs have no options; give --metric exact_match")
    task = JoinedLogs("", scoring.metric, (), {}, {}, None, (), (), scoring).task("dev", (), 0)
    changed = graded = 0
    for name in kept:
        for number in common:
            draws = reading.models[name].answers[number]
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


def _profile(name: str, model: _Model, numbers: Sequence[int], draw: int) -> Profile:
    # By their order: some logs count draws from 1.
    answers = [model.answers[number] for number in numbers]
    taken = tuple(draws[sorted(draws)[draw]] for draws in answers)
    # Tokens and seconds are sums over all records of the model; these questions get their share.
    total = sum(map(len, model.answers.values()))
    share = len(taken) / total
    tokens, prompt_tokens = round(model.tokens * share), round(model.prompt_tokens * share)
    return Profile(name, taken, Cost(model.seconds * share, tokens, prompt_tokens=prompt_tokens))


def _draws(reading: _Reading, kept: Sequence[str], common: Sequence[int]) -> dict[str, tuple[Profile, ...]]:
    draws = {}
    for name in kept:
        model = reading.models[name]
        fewest = min((len(model.answers[number]) for number in common), default=0)
        if fewest > 1:
            draws[name] = tuple(_profile(name, model, common, draw) for draw in range(fewest))
    return draws


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
    listed = ", ".join(f"{name} ({count:,})" for name, count in list(counts.items())[:_LISTED])
    return listed + (f" and {len(counts) - _LISTED} more" if len(counts) > _LISTED else "")


def _name(sources: Sequence[LogSource]) -> str:
    """A name for a task that the logs do not name: that of the one file, or of the folder."""
    path = sources[0].path
    return path.name.partition(".")[0] if len(sources) == 1 else path.absolute().parent.name


def _reasons(notes: Notes) -> str:
    return f": {notes[0]}" if notes else "; give other files"
