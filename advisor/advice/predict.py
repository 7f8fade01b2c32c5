"""The gain that is expected before anything is measured, from what others gained.

Each kind of strategy has few coefficients (prediction.json; ``python -m benchmarks.studies.prediction`` fits them:
votes and routers on pools of real models, sets that decode on the zoo of small models and on real models):

    decode   The set decodes together. Its accuracy lies between that of a vote among its members and that of an oracle,
             which always takes the best answer of any member. The gain is linear in the mean of the two.
    choose   The set scores options together. Of few options many are right by luck, so the oracle says little, and the
             gain over the set's best member is the mean of what such sets gained.
    vote     Members vote. The gain is that of learned votes in the pools, as a difference of log-odds: where nearly all
             answers are right, or wrong, there is less to gain. The measured gain then updates it by Bayes' rule: the
             more questions, the more it counts.
    route    A router sends each group of questions to one model: likewise.

A vote of three, question by question; of several answers with the most votes, each has the same probability:

    question    a        b        c        vote   oracle
    1           right    right    "12"     1      1
    2           right    "12"     "15"     1/3    1
    3           right    "12"     "12"     0      1
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from advisor.advice.rules import rank, select
from advisor.records import ALPHA, Limits, Profile, join, signed
from advisor.run.result import PredictedFigures
from advisor.statistics import Floats, Interval, check_same_questions, is_binary, scores, z_value
from ensemble.errors import UniteError
from ensemble.methods.voting import answer_key

WORTH = 0.25
"""Points: a set is decoded only if it is expected to improve the best result so far by this much."""
MOST_MEMBERS = 5
"""Members of the largest sets that are predicted."""
_MOST_SETS = 4000  # of the best candidates: all pairs and triples of 24, predicted within a second
COEFFICIENTS = Path(__file__).with_name("prediction.json")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A gain over the best single model that is predicted or expected, in points, as a normal distribution."""

    points: float
    deviation: float

    @classmethod
    def of(cls, promise: PredictedFigures) -> Prediction:
        """That of a set, from its figures."""
        low, high = promise.predicted_gain_ci or (0.0, 0.0)
        return cls((low + high) / 2, (high - low) / 2 / z_value(ALPHA))

    @property
    def probability(self) -> float:
        """The probability that the true gain is above 0."""
        return float(stats.norm.cdf(self.points / self.deviation))

    def interval(self, alpha: float = ALPHA) -> Interval:
        """Its interval; the true gain is beyond each end with the probability `alpha`, between 0 and 0.5."""
        half = z_value(alpha) * self.deviation
        return self.points - half, self.points + half

    def updated(self, points: float, error: float) -> Prediction:
        """The expected gain after a gain was measured with a standard error, by Bayes' rule.

        If the two are more than two standard errors apart, the prediction does not fit this task. Its deviation is then
        as large as the difference says, so that the measured gain counts more.
        """
        variance, noise = self.deviation**2, max(error, 1e-9) ** 2
        variance = max(variance, ((points - self.points) / 2) ** 2 - noise)
        weight = variance / (variance + noise)
        return Prediction(weight * points + (1 - weight) * self.points, (weight * noise) ** 0.5)

    def improvement(self, best: float) -> float:
        """How much a set with this gain is expected to improve a best gain so far; 0 or more points."""
        z = (self.points - best) / self.deviation
        return self.deviation * float(stats.norm.pdf(z) + z * stats.norm.cdf(z))


class Predictor:
    """Predicts the gains of sets of some models over the best of all these models."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        check_same_questions(*profiles)
        self._rows = {profile.model: row for row, profile in enumerate(profiles)}
        self._right, self._codes = _coded(profiles)
        self._means = self._right.mean(axis=1)
        self._best = int(self._means.round(9).argmax())
        self._kind = "choose" if any(profile.standing.chooses for profile in profiles) else "decode"

    def decoded(self, models: Sequence[str]) -> Prediction:
        """The gain of a set that decodes together."""
        rows = self._ordered(models)
        fitted = read_coefficients()[self._kind]
        right, slope = self._right[rows], fitted["slope"]
        promise = (self._vote(rows) + right.max(axis=0)) / 2
        # Also what the set's own best member is behind the best of all models.
        values = slope * (promise - right[0]) + right[0] - self._right[self._best]
        mean, error = _mean(values)
        return Prediction(fitted["intercept"] + mean, math.hypot(fitted["deviation"], error))

    def shares(self, models: Sequence[str]) -> tuple[float, float]:
        """The accuracy of a vote that shares ties, and that of an oracle, in points."""
        rows = self._ordered(models)
        return 100 * float(self._vote(rows).mean()), 100 * float(self._right[rows].max(axis=0).mean())

    def _ordered(self, models: Sequence[str]) -> list[int]:
        """The rows of models, the most accurate first; of equal ones in the order of `models`."""
        return sorted((self._rows[model] for model in models), key=lambda row: -round(float(self._means[row]), 9))

    def _votes(self, rows: Sequence[int]) -> NDArray[np.int64]:
        codes = self._codes[rows]
        # All questions at once: a Python loop over them would be slow for thousands of sets.
        votes: NDArray[np.int64] = (codes[:, None, :] == codes[None, :, :]).sum(axis=1)
        return votes

    def _vote(self, rows: Sequence[int]) -> Floats:
        votes = self._votes(rows)
        winning = votes == votes.max(axis=0)
        shared: Floats = (winning * self._right[rows]).sum(axis=0) / winning.sum(axis=0)
        return shared


def predicted_sets(profiles: Sequence[Profile], rules: Limits) -> tuple[PredictedFigures, ...]:
    """The sets that could decode together, the most promising first.

    The members' lengths fit by the rules; the gap has no limit here, because the prediction takes it into account. With
    many candidates only the best are combined. The set of the rules is always among them.
    """
    predictor = Predictor(profiles)
    standings = {profile.model: profile.standing for profile in sorted(profiles, key=rank)}
    greedy = select(list(standings.values()), rules).selected
    lengths = Limits(max_gap=100, max_length_ratio=rules.max_length_ratio, max_models=len(profiles), think=rules.think)

    def fits(models: tuple[str, ...]) -> bool:
        return len(select([standings[model] for model in models], lengths).selected) == len(models)

    found = [models for models in _sets(list(standings), rules.max_models) if models != greedy and fits(models)]
    if len(greedy) > 1:
        found.insert(0, greedy)
    predicted = []
    for models in found:
        gain, (vote, oracle) = predictor.decoded(models), predictor.shares(models)
        predicted.append(
            PredictedFigures(
                models=models,
                predicted_gain=gain.points,
                predicted_gain_ci=gain.interval(),
                vote=vote,
                oracle=oracle,
                rules=models == greedy,
            )
        )
    # The sort is stable: of equal predictions the set of the rules comes first, then pairs, then better models.
    return tuple(sorted(predicted, key=lambda each: -round(each.predicted_gain or 0.0, 9)))


def other_set_note(sets: Sequence[PredictedFigures]) -> str | None:
    """A sentence that the prediction would choose another set than the rules; None if it would not."""
    own = next((each.predicted_gain for each in sets if each.rules), None)
    best, gain = sets[0], Prediction.of(sets[0])
    if own is None or gain.points - own < WORTH:
        return None
    more = gain.points - own
    low, high = map(signed, gain.interval())
    return (
        f"The prediction would choose {join(best.models)} instead: predicted gain {signed(gain.points)} "
        f"points (90% interval {low} to {high}), {more:.1f} more than that of the rules' set; --set-by predicted "
        "verifies it."
    )


def gain_of_others(kind: Literal["vote", "route"], accuracy: float) -> Prediction:
    """The gain of votes or routers in pools of real models, at an accuracy in points between 0 and 100."""
    fitted = read_coefficients()[kind]
    scale = accuracy * (100 - accuracy) / 100
    return Prediction(scale * fitted["log_odds"], scale * fitted["deviation"])


@cache
def read_coefficients() -> dict[str, Any]:
    """The coefficients that are part of the package."""
    try:
        coefficients: dict[str, Any] = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UniteError(f"{COEFFICIENTS}: cannot be read ({error}); install the package again") from None
    return coefficients


def provenance() -> dict[str, str]:
    """What the coefficients were fitted on, and by which command."""
    coefficients = read_coefficients()
    return {
        "command": coefficients["command"],
        "commit": coefficients["commit"],
        **{kind: coefficients[kind]["fitted_on"] for kind in ("decode", "vote", "route")},
    }


def real_sets() -> str:
    """A sentence on what decoding together came to on real models elsewhere."""
    found = read_coefficients()["decode"]["real"]
    return (
        f"Elsewhere, decoding together gained in {found['gained']} of {found['sets']} sets of small real models "
        f"within the limits of the rules (mean {signed(found['mean'])} points)."
    )


def _sets(ranked: Sequence[str], most: int) -> Iterator[tuple[str, ...]]:
    """All sets of the best candidates, pairs first; `ranked` is in order of accuracy."""
    sizes = range(2, min(most, MOST_MEMBERS) + 1)
    count = len(ranked)
    while sum(math.comb(count, size) for size in sizes) > _MOST_SETS:
        count -= 1
    for size in sizes:
        yield from combinations(ranked[:count], size)


def _mean(values: Floats) -> tuple[float, float]:
    """The mean of differences of scores, and its standard error, in points."""
    return 100 * float(values.mean()), 100 * float(values.std()) / math.sqrt(len(values))


def _coded(profiles: Sequence[Profile]) -> tuple[Floats, NDArray[np.int32]]:
    """Scores, and a number for each answer, which is the same for equal answers; models by questions.

    Graded scores have no equal answers, and a vote is the members' mean.
    """
    graded = np.stack([scores(profile) for profile in profiles])
    coded = np.arange(graded.size, dtype=np.int32).reshape(graded.shape)
    if is_binary(graded):
        known: dict[tuple[int, str | None], int] = {}
        for row, profile in enumerate(profiles):
            for question, answer in enumerate(profile.answers):
                # All right answers count as the same one, however they are spelled. A missing answer equals no other.
                if answer.extracted is not None or answer.score == 1:
                    text = None if answer.score == 1 else answer_key(answer.extracted or "")
                    coded[row, question] = known.setdefault((question, text), int(coded[row, question]))
    return graded, coded
