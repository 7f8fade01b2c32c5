"""Calibration and length-normalised accuracy, held against scikit-learn's bins and lm-eval's own scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from advisor.profile import calibration
from advisor.profile.calibration import accuracy_by_bytes, calibration_error
from advisor.records import Answer, Profile
from advisor.tasks.task import Example, Signature, Task

CHOICES = ("no", "certainly", "今天")


def answer(n: int, options: Sequence[float | None], score: float = 0.0) -> Answer:
    return Answer(str(n), "", None, score, "eos", options=tuple(options))


def of_confidence(n: int, confidence: float, score: float) -> Answer:
    """An answer whose likeliest of two options has this probability; log-probabilities need not be normalised."""
    return answer(n, [math.log(confidence) - 7, math.log1p(-confidence) - 7], score)


def task_of(references: Sequence[str]) -> Task:
    examples = tuple(Example(str(n), "?", "?", reference, CHOICES) for n, reference in enumerate(references))
    signature = Signature("t", "choice", "dev", len(examples), 0, 0, "", ())
    return Task("t", "choice", "dev", examples, (), 8, 0, 0, None, (), "", signature)


def test_the_error_is_the_weighted_gap_in_each_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "BINS", 10)
    # By hand: in (0.6, 0.7] half are right at 0.65, in (0.9, 1] all are right at 0.95.
    answers = [of_confidence(0, 0.65, 1), of_confidence(1, 0.65, 0), of_confidence(2, 0.95, 1)]
    assert calibration_error(Profile("a", tuple(answers))) == pytest.approx((2 * 0.15 + 0.05) / 3)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_the_bins_are_scikit_learns(bins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "BINS", bins)
    random = np.random.default_rng(0)
    confidence = random.uniform(0.5, 1, 400)
    right = (random.uniform(size=400) < confidence**2).astype(float)
    answers = [of_confidence(n, *pair) for n, pair in enumerate(zip(confidence, right, strict=True))]
    accuracies, means = calibration_curve(right, confidence, n_bins=bins)
    counts = np.histogram(confidence, bins, (0, 1))[0]
    expected = (np.abs(accuracies - means) * counts[counts > 0]).sum() / 400
    assert calibration_error(Profile("a", tuple(answers))) == pytest.approx(expected)


def test_a_model_that_is_sure_and_right_has_no_error() -> None:
    answers = [answer(n, [-1.0, None, None], 1) for n in range(3)]
    assert calibration_error(Profile("a", tuple(answers))) == 0


def test_questions_without_likelihoods_do_not_count() -> None:
    failed = Answer("1", "", None, 0.0, "error", "too long")
    assert calibration_error(Profile("a", (failed,))) is None
    sure = answer(0, [0.0, None], 1)
    assert calibration_error(Profile("a", (sure, failed))) == 0


def test_accuracy_by_bytes_is_lm_evals() -> None:
    """The lines of lm-eval 0.4.13 that make acc_bytes: argmax(lls / byte_length) == gold."""
    random = np.random.default_rng(1)
    likelihoods = random.uniform(-30, -1, (60, 3))
    gold = random.integers(0, 3, 60)
    byte_length = np.array([float(len(i.encode("utf-8"))) for i in CHOICES])
    expected = 100 * np.mean(
        [np.argmax(lls / byte_length) == right for lls, right in zip(likelihoods, gold, strict=True)]
    )
    answers = tuple(answer(n, lls.tolist()) for n, lls in enumerate(likelihoods))
    found = accuracy_by_bytes(Profile("a", answers), task_of(["ABC"[right] for right in gold]))
    assert found == pytest.approx(expected)
    assert 0 < expected < 100


def test_accuracy_by_bytes_counts_a_failed_question_as_wrong() -> None:
    failed = Answer("1", "", None, 0.0, "error", "too long")
    right = answer(0, [-1.0, None, -50.0])
    assert accuracy_by_bytes(Profile("a", (right, failed)), task_of(["A", "A"])) == 50
    assert accuracy_by_bytes(Profile("a", (failed,)), task_of(["A"])) is None
