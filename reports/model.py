"""What the report shows, as plain values: read from ``result.json`` first, drawn from afterwards.

Every string here has been cleaned (:mod:`reports.visible`), so that no later step has to remember to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from ensemble.errors import InputError
from reports.fields import Fields, read_object
from reports.provenance import Provenance, read_provenance
from reports.visible import visible

SCHEMA_VERSIONS = frozenset({1})
"""The versions of ``result.json`` that can be drawn."""

Status = Literal["primary", "selected", "rejected", "failed"]
Verdict = Literal["ensemble", "single", "cannot_tell"]
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Task:
    """What was asked: the task's name and metric, the profiled split and its size, and what a number was made with."""

    name: str
    metric: str
    split: str
    n: int
    fingerprint: str
    signature: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of section 4.1, all inclusive: points of accuracy, longer over shorter length, size of the set."""

    max_gap: float
    max_length_ratio: float
    max_models: int | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What responses took: seconds, tokens a second, and bytes of memory at the highest. Each may be unknown."""

    seconds: float | None
    tokens_per_second: float | None
    peak_memory: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """A part of the questions, by a name that the task gave it: how many, and the accuracy on them in points."""

    name: str
    n: int
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model of the pool: accuracy in points, mean length in characters, what the rules decided and why.

    Attributes:
        index: Its place in ``result.json``, best first; other records and the page refer to it by this.
        fragile: A sentence where the decision would flip within its interval, else empty.
        n: Questions that it was asked; None for all of the split's.
        ece: Expected calibration error, 0 to 1: how far its confidence is from how often it is right.
        groups: Its accuracy on parts of the questions.
    """

    index: int
    model: str
    accuracy: float | None
    accuracy_ci: Interval | None
    n: int | None
    mean_length: float | None
    truncated: int
    errors: int
    status: Status
    reason: str
    fragile: str
    parameters: float | None
    ece: float | None
    groups: tuple[Group, ...]
    cost: Cost

    @property
    def rank(self) -> int:
        """Place on the leaderboard, from 1."""
        return self.index + 1


@dataclass(frozen=True, slots=True)
class Pair:
    """Two candidates beside each other; ``a`` and ``b`` are indices, ``values`` has the measures that are known."""

    a: int
    b: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the ensemble alone, on the held-out questions."""

    model: str
    accuracy: float | None
    accuracy_ci: Interval | None
    mean_length: float | None
    cost: Cost


@dataclass(frozen=True, slots=True)
class EnsembleRun:
    """The chosen set together, on held-out questions: all accuracies and differences in points.

    ``gained`` and ``lost`` count the questions that it alone, or the best single model alone, got right.
    """

    method: str
    k: int | None
    n: int
    split: str
    accuracy: float | None
    accuracy_ci: Interval | None
    best_single: float | None
    best_single_model: str
    delta: float | None
    delta_ci: Interval | None
    p_value: float | None
    gained: int | None
    lost: int | None
    mean_length: float | None
    cost: Cost
    truncated: int
    signature: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another use of the members' own answers to the same held-out questions, against the best single model."""

    method: str
    accuracy: float | None
    accuracy_ci: Interval | None
    delta: float | None
    p_value: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """The whole of ``result.json``."""

    task: Task
    rules: Rules
    candidates: tuple[Candidate, ...]
    selected: tuple[int, ...]
    pairs: tuple[Pair, ...]
    ensemble: EnsembleRun | None
    alternatives: tuple[Alternative, ...]
    verdict: Verdict
    advice: str
    provenance: Provenance

    @property
    def primary(self) -> Candidate | None:
        """The best candidate, which the others are measured against; None where all failed."""
        return next((candidate for candidate in self.candidates if candidate.status == "primary"), None)

    @property
    def short_names(self) -> dict[str, str]:
        """What drawings call the candidates: hub ids and paths without their owners, where that tells them apart."""
        names = [candidate.model for candidate in self.candidates]
        tails = [name.rstrip("/").rsplit("/", 1)[-1] for name in names]
        return dict(zip(names, tails if len(set(tails)) == len(set(names)) else names, strict=True))


def read_result(path: Path) -> Result:
    """Read ``result.json``.

    Raises:
        InputError: The file is missing or broken, or its schema version is not one of ``SCHEMA_VERSIONS``.
    """
    root = read_object(path)
    _check_version(root, path)
    rules, advice = root.part("rules"), root.part("advice")
    candidates = tuple(_candidate(index, fields) for index, fields in enumerate(root.parts("candidates")))
    indices = {candidate.model: candidate.index for candidate in candidates}
    return Result(
        task=_task(root.part("task")),
        rules=Rules(
            max_gap=_or(rules.number("max_gap"), 10.0),
            max_length_ratio=_or(rules.number("max_length_ratio"), 2.0),
            max_models=rules.optional_count("max_models"),
        ),
        candidates=candidates,
        selected=tuple(indices[model] for model in root.texts("selected") if model in indices),
        pairs=tuple(pair for fields in root.parts("pairs") if (pair := _pair(fields, indices)) is not None),
        ensemble=_ensemble(root.optional_part("ensemble")),
        alternatives=tuple(_alternative(fields) for fields in root.parts("alternatives")),
        verdict=cast(Verdict, _one_of(advice, "verdict", get_args(Verdict), "cannot_tell")),
        advice=advice.line("text"),
        provenance=read_provenance(root.part("provenance")),
    )


def _check_version(root: Fields, path: Path) -> None:
    version = root.values.get("schema_version")
    if not isinstance(version, int) or version not in SCHEMA_VERSIONS:
        found, known = root.line("schema_version", "missing"), ", ".join(map(str, sorted(SCHEMA_VERSIONS)))
        raise InputError(
            f"{path}: schema_version is {found}, and this unite-advisor reads {known}; "
            "use the version that wrote it, or run `advisor select` again"
        )


def _task(fields: Fields) -> Task:
    return Task(
        name=fields.line("name", "unnamed task"),
        metric=fields.line("metric"),
        split=fields.line("split"),
        n=fields.count("n"),
        fingerprint=fields.line("fingerprint"),
        signature=fields.line("signature"),
        notes=fields.texts("notes"),
    )


def _candidate(index: int, fields: Fields) -> Candidate:
    model = fields.line("model") or fields.refuse("model", "the candidate's name")
    accuracy = fields.number("accuracy")
    status = cast(Status, _one_of(fields, "status", get_args(Status), "failed" if accuracy is None else "rejected"))
    return Candidate(
        index=index,
        model=model,
        accuracy=accuracy,
        accuracy_ci=fields.interval("accuracy_ci"),
        n=fields.optional_count("n"),
        mean_length=fields.number("mean_length"),
        truncated=fields.count("truncated"),
        errors=fields.count("errors"),
        status=status,
        reason=fields.line("reason"),
        fragile=fields.line("fragile"),
        parameters=fields.number("parameters"),
        ece=fields.number("ece"),
        groups=_groups(fields.optional_part("groups")),
        cost=_cost(fields),
    )


def _cost(fields: Fields) -> Cost:
    return Cost(fields.number("seconds"), fields.number("tokens_per_second"), fields.number("peak_memory"))


def _groups(fields: Fields | None) -> tuple[Group, ...]:
    if fields is None:
        return ()
    parts = [(visible(name), fields.part(name)) for name in fields.values]
    return tuple(Group(name, part.count("n"), part.number("accuracy")) for name, part in parts)


def _pair(fields: Fields, indices: dict[str, int]) -> Pair | None:
    a, b = indices.get(fields.line("a")), indices.get(fields.line("b"))
    if a is None or b is None or a == b:
        return None
    measures = {name: fields.number(name) for name in fields.values if fields.is_number(name)}
    return Pair(a, b, {name: value for name, value in measures.items() if value is not None})


def _ensemble(fields: Fields | None) -> EnsembleRun | None:
    if fields is None:
        return None
    return EnsembleRun(
        method=fields.line("method", "ensemble"),
        k=fields.optional_count("k"),
        n=fields.count("n"),
        split=fields.line("split"),
        accuracy=fields.number("accuracy"),
        accuracy_ci=fields.interval("accuracy_ci"),
        best_single=fields.number("best_single"),
        best_single_model=fields.line("best_single_model"),
        delta=fields.number("delta"),
        delta_ci=fields.interval("delta_ci"),
        p_value=fields.number("p_value"),
        gained=fields.optional_count("gained"),
        lost=fields.optional_count("lost"),
        mean_length=fields.number("mean_length"),
        cost=_cost(fields),
        signature=fields.line("signature"),
        truncated=fields.count("truncated"),
        members=tuple(_member(member) for member in fields.parts("members")),
    )


def _member(fields: Fields) -> Member:
    return Member(
        model=fields.line("model"),
        accuracy=fields.number("accuracy"),
        accuracy_ci=fields.interval("accuracy_ci"),
        mean_length=fields.number("mean_length"),
        cost=_cost(fields),
    )


def _alternative(fields: Fields) -> Alternative:
    return Alternative(
        method=fields.line("method"),
        accuracy=fields.number("accuracy"),
        accuracy_ci=fields.interval("accuracy_ci"),
        delta=fields.number("delta"),
        p_value=fields.number("p_value"),
    )


def _one_of(fields: Fields, name: str, known: tuple[str, ...], default: str) -> str:
    value = fields.line(name, default)
    return value if value in known else fields.refuse(name, " or ".join(known))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
