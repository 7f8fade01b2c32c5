"""Judges' scores corrected by labels, on simulated questions with a known truth: ``python -m benchmarks.judge_labels``.

Each run has 1,000 questions, a judge that is right on a share of them, and labels of a random few. *Yes or no* is the
share of right responses (true shares 0.3, 0.5 and 0.8 together), *difference* the gain of one model over another one on
the same questions. Rogan and Gladen's estimate has the same labels and prior. Two minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product

import numpy as np

from advisor.judge.corrected import Corrected, corrected_mean
from advisor.statistics import Floats
from benchmarks._measure import Figure, arguments, progress, tell

QUESTIONS = 1000
LABELS = (20, 50, 100, 300)
ACCURACIES = (0.6, 0.75, 0.9, 0.95)
SHARES = (0.3, 0.5, 0.8)
GAIN = 0.06
_DRAWS = 4_000


def said(truth: Floats, accuracy: float, chance: np.random.Generator) -> Floats:
    """A judge's verdicts, which are right with a probability."""
    verdicts: Floats = np.where(chance.random(len(truth)) < accuracy, truth, 1 - truth)
    return verdicts


def one_model(share: float, accuracy: float, labels: int, chance: np.random.Generator) -> tuple[Floats, Floats]:
    """The truth of the labelled questions, and the judge's verdicts on all."""
    truth = (chance.random(QUESTIONS) < share).astype(np.float64)
    return truth[:labels], said(truth, accuracy, chance)


def two_models(accuracy: float, labels: int, chance: np.random.Generator) -> tuple[Floats, Floats]:
    """The same of the difference of two models, which agree on four of ten questions."""
    first = (chance.random(QUESTIONS) < 0.5 + GAIN / 1.2).astype(np.float64)
    second = (chance.random(QUESTIONS) < 0.5 - GAIN / 1.2).astype(np.float64)
    second = np.where(chance.random(QUESTIONS) < 0.4, first, second)
    return (first - second)[:labels], said(first, accuracy, chance) - said(second, accuracy, chance)


def corrected(labels: Floats, everything: Floats) -> Corrected:
    """The correction by the first questions' labels."""
    return corrected_mean(labels, everything[: len(labels)], everything)


def covers(found: Corrected, truth: float) -> bool:
    """Whether an interval contains the truth."""
    return found.interval[0] <= 100 * truth <= found.interval[1]


def rogan_gladen(labels: Floats, everything: Floats, chance: np.random.Generator) -> float:
    """The width in points of the interval by sensitivity and specificity, with Jeffreys' prior for all three shares."""
    scores = everything[: len(labels)]

    def share(ones: float, of: float) -> Floats:
        drawn: Floats = chance.beta(ones + 0.5, of - ones + 0.5, _DRAWS)
        return drawn

    sensitivity = share(float((labels * scores).sum()), float(labels.sum()))
    specificity = share(float(((1 - labels) * (1 - scores)).sum()), float((1 - labels).sum()))
    positive = share(float(everything.sum()), len(everything))
    over = sensitivity + specificity - 1
    found = np.clip((positive + specificity - 1) / np.where(np.abs(over) < 1e-9, 1e-9, over), 0, 1)
    low, high = np.quantile(found, [0.025, 0.975])
    return 100 * float(high - low)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    runs = 10 if options.quick else 300
    figures = []
    for labels, accuracy in product(LABELS, ACCURACIES):
        progress(f"benchmarks.judge_labels: {labels} labels, a judge that is right on {accuracy:.0%}")
        chance = np.random.default_rng(labels)
        shares = [(share, one_model(share, accuracy, labels, chance)) for share in SHARES for _ in range(runs)]
        found = [(share, corrected(*each)) for share, each in shares]
        differences = [corrected(*two_models(accuracy, labels, chance)) for _ in range(3 * runs)]
        name, note = f"{labels}_{accuracy:g}", f"{labels} labels; the judge is right on {accuracy:.0%} of the questions"
        widths = [each.interval[1] - each.interval[0] for _, each in found]
        by_errors = [
            rogan_gladen(*each, chance) for _, each in shares[:: len(shares) // (10 if options.quick else 100)]
        ]
        figures += [
            Figure(
                f"coverage_yes_no_{name}", float(np.mean([covers(each, share) for share, each in found])), note=note
            ),
            Figure(
                f"coverage_difference_{name}", float(np.mean([covers(each, GAIN) for each in differences])), note=note
            ),
            Figure(f"width_{name}", float(np.mean(widths)), note=f"points, yes or no; {note}"),
            Figure(f"rogan_gladen_width_{name}", float(np.mean(by_errors)), note=f"points; {note}"),
            Figure(f"worth_{name}", float(np.mean([each.worth for _, each in found])), note=f"labels alone; {note}"),
        ]
    tell("judge_labels", figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
