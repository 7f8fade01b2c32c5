"""``result.json`` as plain values. Every string in them is cleaned (:class:`advisor.runs.read.fields.Fields`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from advisor.runs.read.evaluation import MethodTable
from advisor.runs.read.fields import Fields, Interval, read_object
from advisor.runs.read.judge import MEASURES, Judged, read_judged
from advisor.runs.read.measurements import Measurements, measurements
from advisor.runs.read.prediction import LookRow, PredictedRow, read_looks, read_predictions
from advisor.runs.read.samples import Samples
from advisor.runs.read.strategies import Strategies, read_strategies
from ensemble.common.text import visible

# The versions of ``result.json`` that this package reads.
SCHEMA_VERSIONS = frozenset({1})

_MOST_WARNINGS = 20
_MOST_NEEDED = 10**12

Status = Literal["primary", "selected", "rejected", "failed"]
Verdict = Literal["ensemble", "single", "cannot_tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow(Measurements):
    """A model of the pool with the decision of the rules.

    Attributes:
        index: Place in ``result.json``, best first. Other records and the page's script refer to it.
        fragile: A sentence if the decision would change within its interval, else empty.
        ece: Expected calibration error, 0 to 1.
        groups: Accuracy on parts of the questions.
    """

    index: int
    status: Status
    reason: str
    fragile: str
    errors: int
    parameters: float | None
    ece: float | None
    groups: tuple[Measurements, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleRun(Measurements):
    """The chosen set together, on held-out questions.

    Attributes:
        best_single: Accuracy of the best member alone, in points.
        gain: The measured gain over the best single model from all questions, in points, with its interval ``gain_ci``;
            ``delta`` is the difference on these questions alone.
        gain_p: The one-sided p-value of no gain, which decides the verdict.
        gained: Questions that the ensemble answers right and the best single model wrong; ``lost`` the reverse.
        members: The members alone, on the same questions.
        weights: Their weights, as text; empty for equal ones.
    """

    k: int | None
    weights: str
    split: str
    best_single: float | None
    best_single_model: str
    gain: float | None
    gain_ci: Interval | None
    gain_p: float | None
    gained: int | None
    lost: int | None
    signature: str
    members: tuple[Measurements, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All of ``result.json``, and what the run folder's other files add.

    Attributes:
        n: Questions of the split that the rules were applied to.
        max_gap: The rules' limit for the gap to the primary, in points, inclusive as the others.
        max_length_ratio: Their limit for the longer over the shorter mean response.
        max_models: Their limit for the size of the set; None for no limit.
        selected: The chosen set, the primary first.
        pairs: By two candidates' indices, the measures of the pair that are known.
        strategies: What could run in production, compared on the held-out questions, and the recommended one.
        confidence: Two-sided, of the intervals of gains.
        warnings: What the reader must know besides the advice, each a sentence.
        questions_needed: How many held-out questions, in all, show the gain of the set that decodes together, from few
            to many; None in place of the second one if there may be no gain.
        predictions: What sets that decode together promise before they answer a held-out question.
        looks: The looks at the held-out questions, of this run and of earlier ones.
        judged: What a judge said; None for a task without a judge.
        logs: Path and format of each log that the responses come from; empty for models that ran.
        facts: Device, seed, times and the like, as text; ``versions`` those of the libraries.
        model_files: Name, source, revision, and the SHA-256 of each file.
        samples: None without ``samples.jsonl``.
        evaluation: None without ``evaluation.json``.
    """

    task: str
    metric: str
    split: str
    n: int
    fingerprint: str
    signature: str
    notes: tuple[str, ...]
    max_gap: float
    max_length_ratio: float
    max_models: int | None
    candidates: tuple[CandidateRow, ...]
    selected: tuple[CandidateRow, ...]
    pairs: Mapping[tuple[int, int], dict[str, float]]
    ensemble: EnsembleRun | None
    strategies: Strategies
    verdict: Verdict
    advice: str
    confidence: float
    warnings: tuple[str, ...]
    questions_needed: tuple[int, int | None] | None
    predictions: tuple[PredictedRow, ...]
    looks: tuple[LookRow, ...]
    judged: Judged | None
    command: str
    created: str
    facts: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    model_files: tuple[tuple[str, str, str, tuple[tuple[str, str], ...]], ...]
    logs: tuple[tuple[str, str], ...]
    samples: Samples | None = None
    evaluation: MethodTable | None = None

    @property
    def primary(self) -> CandidateRow | None:
        """The best candidate, to which the rules compare the others; None if all failed."""
        return next((candidate for candidate in self.candidates if candidate.status == "primary"), None)

    @property
    def best_single(self) -> CandidateRow | None:
        """The candidate that gains are measured against: the best one on all questions, else the primary."""
        runs = (*self.strategies.rows, self.ensemble)
        name = next((run.best_single_model for run in runs if run and run.best_single_model), "")
        return next((candidate for candidate in self.candidates if candidate.name == name), self.primary)

    @property
    def measure(self) -> str:
        """What the points of a model are: its accuracy, or by a judge its win rate or its grade."""
        return MEASURES[self.judged.mode if self.judged else ""]

    @property
    def is_graded(self) -> bool:
        """Whether points are means of grades (a judge, BLEU, chrF), so that no answer is simply right or wrong."""
        return self.judged is not None or any(each.corpus_score is not None for each in self.candidates)

    @property
    def held_out(self) -> int:
        """The number of held-out questions; 0 if none was asked."""
        return next((run.n for run in (self.ensemble, *self.strategies.rows) if run), 0)

    @property
    def short_names(self) -> dict[str, str]:
        """The candidates' names in drawings: hub ids and paths without their owners, if these are unique."""
        names = [candidate.name for candidate in self.candidates]
        tails = [name.rstrip("/").rsplit("/", 1)[-1] for name in names]
        # Two owners may have models of the same name.
        return dict(zip(names, tails if len(set(tails)) == len(set(names)) else names, strict=True))


def read_result(path: Path) -> Result:
    """Read ``result.json``.

    Raises:
        InputError: The file is missing or broken, or its schema version is not one of ``SCHEMA_VERSIONS``.
    """
    root = read_object(path)
    root.check_version(SCHEMA_VERSIONS, "use the version that wrote it, or run `advisor select` again")
    task, rules, advice, provenance = (root.part(name) for name in ("task", "rules", "advice", "provenance"))
    max_gap, max_length_ratio = rules.number("max_gap"), rules.number("max_length_ratio")
    # A result of --no-verify has no ensemble.
    if max_length_ratio is not None and max_length_ratio < 1:
        rules.refuse("max_length_ratio", "at least 1")  # the map divides by it
    n, ensemble = task.count("n"), root.optional_part("ensemble")
    candidates = tuple(_candidate(index, fields, n) for index, fields in enumerate(root.parts("candidates")))
    by_name = {candidate.name: candidate for candidate in candidates}
    return Result(
        task=task.line("name", "unnamed task"),
        metric=task.line("metric"),
        split=task.line("split"),
        n=n,
        fingerprint=task.line("fingerprint"),
        signature=task.line("signature"),
        notes=task.texts("notes"),
        max_gap=10.0 if max_gap is None else max_gap,
        max_length_ratio=2.0 if max_length_ratio is None else max_length_ratio,
        max_models=rules.optional_count("max_models"),
        candidates=candidates,
        # A set may name a model that is no longer among the candidates.
        selected=tuple(by_name[name] for name in root.texts("selected") if name in by_name),
        pairs=_pairs(root, by_name),
        ensemble=None if ensemble is None else _ensemble(ensemble),
        strategies=read_strategies(root),
        verdict=cast(Verdict, advice.word("verdict", get_args(Verdict), "cannot_tell")),
        advice=advice.line("text"),
        confidence=_confidence(advice),
        warnings=advice.texts("warnings")[:_MOST_WARNINGS],
        questions_needed=_questions_needed(advice),
        predictions=read_predictions(root),
        looks=read_looks(root),
        judged=read_judged(root),
        command=provenance.line("command"),
        created=provenance.line("created"),
        facts=_facts(provenance),
        versions=provenance.part("versions").items(),
        model_files=_model_files(provenance.part("models")),
        logs=tuple((each.line("path"), each.line("format")) for each in provenance.parts("logs")),
    )


def _candidate(index: int, fields: Fields, n: int) -> CandidateRow:
    name, numbers = fields.line("model") or fields.refuse("model", "the candidate's name"), measurements(fields, n)
    groups = fields.part("groups")
    # A result of bare profiles has no statuses.
    default = "failed" if numbers["accuracy"] is None else "rejected"
    return CandidateRow(
        name=name,
        **numbers,
        index=index,
        status=cast(Status, fields.word("status", get_args(Status), default)),
        reason=fields.line("reason"),
        fragile=fields.line("fragile"),
        errors=fields.count("errors"),
        parameters=fields.number("parameters"),
        ece=fields.number("ece"),
        groups=tuple(Measurements(name=visible(group), **measurements(groups.part(group))) for group in groups.values),
    )


def _confidence(advice: Fields) -> float:
    confidence = advice.number("confidence")
    if confidence is None or not 0 < confidence < 1:
        advice.refuse("confidence", "above 0 and below 1")
    return confidence


def _questions_needed(advice: Fields) -> tuple[int, int | None] | None:
    value = advice.values.get("questions_needed")
    # Older versions wrote one number, and the text has it.
    if not isinstance(value, list):
        return None
    ends = [end if type(end) is int and 0 <= end < _MOST_NEEDED else None for end in value]
    if len(ends) != 2 or ends[0] is None or (ends[1] is None and value[1] is not None):
        advice.refuse("questions_needed", "[low, high]")
    return ends[0], ends[1]


def _pairs(root: Fields, by_name: dict[str, CandidateRow]) -> dict[tuple[int, int], dict[str, float]]:
    pairs = {}
    for fields in root.parts("pairs"):
        a, b = by_name.get(fields.line("a")), by_name.get(fields.line("b"))
        if a is not None and b is not None and a is not b:
            # A newer version may have measures that this one does not know.
            pairs[a.index, b.index] = fields.known_numbers()
    return pairs


def _weights(fields: Fields) -> str:
    """The members' weights as text; empty for equal ones."""
    if isinstance(fields.values.get("weights"), list):
        return " : ".join(f"{each:.3g}" for each in fields.numbers("weights"))
    return fields.word("weights", ("perplexity", ""), "")


def _ensemble(fields: Fields) -> EnsembleRun:
    return EnsembleRun(
        name=fields.line("method", "ensemble"),
        **measurements(fields),
        k=fields.optional_count("k"),
        weights=_weights(fields),
        split=fields.line("split"),
        best_single=fields.number("best_single"),
        best_single_model=fields.line("best_single_model"),
        gain=fields.number("gain"),
        gain_ci=fields.interval("gain_ci"),
        gain_p=fields.number("gain_p"),
        gained=fields.optional_count("gained"),
        lost=fields.optional_count("lost"),
        signature=fields.line("signature"),
        members=tuple(
            Measurements(name=member.line("model"), **measurements(member, fields.count("n")))
            for member in fields.parts("members")
        ),
    )


def _facts(provenance: Fields) -> tuple[tuple[str, str], ...]:
    times = provenance.part("times")
    facts = [
        (visible(name), provenance.line(name))
        for name, value in provenance.values.items()
        # The command and the date have their own places on the page; objects are read one by one.
        if name not in ("command", "created") and value is not None and not isinstance(value, dict | list)
    ]
    known = times.known_numbers()
    took = [(visible(name), f"{known[name]:.1f} s" if name in known else times.line(name)) for name in times.values]
    return (*facts, *((f"{name} took", time) for name, time in took))


def _model_files(models: Fields) -> tuple[tuple[str, str, str, tuple[tuple[str, str], ...]], ...]:
    parts = [(visible(name), models.part(name)) for name in models.values]
    return tuple(
        (name, model.line("path_or_id"), model.line("revision"), model.part("files").items()) for name, model in parts
    )
