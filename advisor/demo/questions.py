"""The demo's word problems: one- to three-step sums in plain English, generated from a seed.

A record as written to ``data/dev.jsonl``::

    {"id": "dev-0", "question": "Mia has 17 shells. She finds 5 more. She gives 9 to Tom.
     How many shells does Mia have now?", "terse": "The answer is 13.",
     "steps": "17 + 5 = 22. 22 - 9 = 13. The answer is 13.", "answer": "13"}

Not covered: products, fractions, distractors. The problems are so easy that a model of 0.9 million parameters, trained
in minutes on two cores, solves many of them and makes real mistakes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

PEOPLE = {
    "She": ("Mia", "Ann", "Zoe", "Eva", "Lea", "Ida", "Amy", "Kim"),
    "He": ("Tom", "Ben", "Max", "Leo", "Sam", "Jan", "Ali", "Tim"),
}
THINGS = ("apples", "shells", "coins", "books", "cards", "stamps", "pens", "eggs", "nuts", "beads", "balls", "keys")
GAINS = ("buys {n} more", "finds {n} more", "wins {n} more", "gets {n} from {other}")
LOSSES = ("gives {n} to {other}", "loses {n}", "sells {n}", "drops {n}")

LARGEST = 99
"""The largest number in a problem and in the steps to its answer."""

SPLITS = {"dev": 300, "held_out": 500, "test": 1000}
"""Questions in each split; they are never used in training."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, the steps to its answer, and the answer in three styles."""

    question: str
    steps: tuple[str, ...]
    answer: int

    @property
    def terse(self) -> str:
        """The answer in one short sentence."""
        return f"The answer is {self.answer}."

    @property
    def verbose(self) -> str:
        """Every step, then the same sentence."""
        return " ".join((*self.steps, self.terse))

    @property
    def thinking(self) -> str:
        """The steps as thinking, then the same sentence."""
        return f"<think>{' '.join(self.steps)}</think> {self.terse}"


def make_problem(rng: random.Random) -> Problem:
    """Draw one problem: a start, one to three gains or losses, a question."""
    # Sorted, so that the order of the lines above does not change the published questions.
    pronoun = rng.choice(sorted(PEOPLE))
    hero = rng.choice(PEOPLE[pronoun])
    other = rng.choice([name for names in PEOPLE.values() for name in names if name != hero])
    thing = rng.choice(THINGS)
    total = rng.randint(2, 60)
    sentences = [f"{hero} has {total} {thing}."]
    steps = []
    for _ in range(rng.randint(1, 3)):
        sign, number, verb = _draw_step(rng, total)
        result = total + number if sign == "+" else total - number
        sentences.append(f"{pronoun} {verb.format(n=number, other=other)}.")
        steps.append(f"{total} {sign} {number} = {result}.")
        total = result
    sentences.append(f"How many {thing} does {hero} have now?")
    return Problem(" ".join(sentences), tuple(steps), total)


def _draw_step(rng: random.Random, total: int) -> tuple[str, int, str]:
    """One gain or loss that keeps the running total between 0 and LARGEST."""
    gain = rng.random() < 0.5
    room = LARGEST - total if gain else total
    # At the border only a step in the other direction is possible.
    if room == 0:
        gain, room = not gain, LARGEST
    number = rng.randint(1, min(room, 40))
    return ("+", number, rng.choice(GAINS)) if gain else ("-", number, rng.choice(LOSSES))


def make_splits() -> dict[str, list[Problem]]:
    """The three evaluation splits: disjoint, without repeats, and always the same."""
    # A text as the seed: its numbers differ from those of the training, whose seed may be 0.
    rng = random.Random("word problems 0")
    seen: set[str] = set()
    splits: dict[str, list[Problem]] = {}
    for split, size in SPLITS.items():
        problems: list[Problem] = []
        while len(problems) < size:
            problem = make_problem(rng)
            if problem.question not in seen:
                seen.add(problem.question)
                problems.append(problem)
        splits[split] = problems
    return splits


def training_stream(seed: int, excluded: set[str]) -> Iterator[Problem]:
    """An endless stream of problems whose questions are not in ``excluded``."""
    rng = random.Random(f"training {seed}")
    while True:
        problem = make_problem(rng)
        if problem.question not in excluded:
            yield problem
