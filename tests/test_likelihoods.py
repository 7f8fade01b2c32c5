"""Length-normalised accuracy, held against lm-eval's own scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from advisor.jobs.figures import accuracy_by_bytes
from advisor.records import Answer, Profile
from advisor.tasks.task import Example, Task

CHOICES = ("no", "certainly", "今天")


def answer(n: int, options: Sequence[float | None], score: float = 0.0) -> Answer:
    return Answer(str(n), "", None, score, "eos", options=tuple(options))


def task_of(references: Sequence[str]) -> Task:
    examples = tuple(Example(str(n), "?", "?", reference, CHOICES) for n, reference in enumerate(references))
    return Task("t", "choice", "dev", examples, (), 8, 0, 0, None, (), "")


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
