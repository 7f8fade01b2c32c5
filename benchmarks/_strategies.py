"""Ways to choose a set, each tried on the zoo's outcomes: what it lost, whether its verdict was right, what it cost.

The questions are split at random into some to choose by (dev), some for the verdict (held out) and some that tell what
was best (test). Where a strategy orders a set's members differently from the order in which the set was decoded, the
latter stands: not all orders were decoded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random

from advisor.choose.race import race
from advisor.choose.rules import select
from advisor.choose.search import Try, best_of, promising_sets
from advisor.records import TRIES, Profile, Rules, Selection, Standing, Verdict
from advisor.statistics import compare
from advisor.verify.advice import advise
from benchmarks._outcomes import Outcomes, scores_of

Places = Sequence[int]
ANYBODY = Rules(max_gap=100, max_length_ratio=sys.float_info.max)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a strategy chose, and what that took.

    Attributes:
        models: The set, or one model.
        responses: Of single models, on dev.
        decodings: Responses of sets, on dev.
    """

    models: tuple[str, ...]
    responses: int
    decodings: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """A strategy on one pool and one split of the questions. Regrets are points behind the best set there is, on test.

    Attributes:
        choice: What was chosen.
        verdict: What the advice said of it; None where a single model was chosen, of which there is nothing to say.
        right: Whether that is true on test; None where the verdict is ``cannot_tell``, or none.
        regret: Where the set is used whatever the verdict.
        followed: Where the verdict is followed, and where it cannot tell what did better on held-out questions is used.
        cautious: The same, but where it cannot tell the best single model is used.
    """

    choice: Choice
    verdict: Verdict | None
    right: bool | None
    regret: float
    followed: float
    cautious: float


@dataclass(frozen=True, slots=True)
class Ground:
    """A pool and a split of the questions.

    Attributes:
        outcomes: What is known of all models and sets.
        pool: Some of the models.
        dev: Places of the questions to choose by, in random order.
        held_out: Those for the verdict.
        test: Those that tell what was best.
    """

    outcomes: Outcomes
    pool: tuple[str, ...]
    dev: Places
    held_out: Places
    test: Places

    def alone(self, model: str, places: Places) -> Profile:
        """A model's answers to some questions."""
        answers = self.outcomes.profiles[model].answers
        return Profile(model, tuple(answers[place] for place in places))

    def together(self, models: Sequence[str], places: Places) -> Profile:
        """A set's, or a model's, answers to some questions."""
        if len(models) == 1:
            return self.alone(models[0], places)
        answers = self.outcomes.together(models).answers
        return Profile("unite", tuple(answers[place] for place in places))

    def profiles(self) -> list[Profile]:
        """The pool's answers to the dev questions."""
        return [self.alone(model, self.dev) for model in self.pool]

    def worth(self, models: Sequence[str]) -> float:
        """Accuracy of a set, or a model, on test, in points."""
        return self.together(models, self.test).accuracy

    def best(self) -> float:
        """The best that could have been chosen of the pool, in points."""
        sizes = range(1, self.outcomes.largest + 1)
        return max(self.worth(models) for size in sizes for models in combinations(self.pool, size))

    @property
    def rules(self) -> Rules:
        """The default rules, with no set larger than those that were decoded."""
        return replace(Rules(), max_models=min(Rules().max_models, self.outcomes.largest))


def grounds(outcomes: Outcomes, count: int, seed: int = 0) -> Iterator[Ground]:
    """Random pools of at least three models on random splits: 30% dev, 30% held out, the rest test."""
    chance = Random(seed)
    for _ in range(count):
        size = chance.randint(min(3, len(outcomes.models)), len(outcomes.models))
        pool = tuple(sorted(chance.sample(outcomes.models, size), key=outcomes.models.index))
        order = chance.sample(range(outcomes.questions), outcomes.questions)
        first, second = 3 * len(order) // 10, 6 * len(order) // 10
        yield Ground(outcomes, pool, order[:first], order[first:second], order[second:])


def try_out(ground: Ground, strategy: Callable[[Ground], Choice], best: float) -> Trial:
    """Choose, ask for the verdict, and look at the test questions."""
    choice = strategy(ground)
    worth = ground.worth(choice.models)
    if len(choice.models) < 2:
        return Trial(choice, None, None, best - worth, best - worth, best - worth)
    # As the advisor does: the best candidate is what a set has to beat, also where it is not in it.
    compared = dict.fromkeys([*choice.models, *_selected(ground, ANYBODY)[:1]])
    alone = [ground.alone(model, ground.held_out) for model in compared]
    comparison = compare(ground.together(choice.models, ground.held_out), alone)
    verdict = advise(Selection((), choice.models), comparison).verdict
    single = ground.worth([comparison.best_single])
    gains = worth > max(ground.worth([model]) for model in compared)
    doubtful = worth if comparison.delta > 0 else single
    said: Mapping[Verdict, tuple[float, float, bool | None]] = {
        "ensemble": (worth, worth, gains),
        "single": (single, single, not gains),
        "cannot_tell": (doubtful, single, None),
    }
    followed, cautious, right = said[verdict]
    return Trial(choice, verdict, right, best - worth, best - followed, best - cautious)


def best_single(ground: Ground) -> Choice:
    """The most accurate on dev, alone."""
    return Choice(_selected(ground, ANYBODY)[:1], _profiled(ground))


def two_best(ground: Ground) -> Choice:
    """The two most accurate on dev, whether they fit or not."""
    return Choice(_selected(ground, ANYBODY)[:2], _profiled(ground))


def rules(ground: Ground) -> Choice:
    """The paper's rules."""
    return Choice(_selected(ground, ground.rules), _profiled(ground))


def search(ground: Ground) -> Choice:
    """The most promising sets, decoded on dev, and the best of them."""
    tried = [
        Try(one, ground.together(one.models, ground.dev).accuracy)
        for one in promising_sets(ground.profiles(), ground.rules, TRIES)
    ]
    best = best_of(tried)
    models = _selected(ground, ANYBODY)[:1] if best is None else best.prospect.models
    return Choice(models, _profiled(ground), len(tried) * len(ground.dev))


def raced(ground: Ground) -> Choice:
    """The paper's rules on those that finish a race."""
    profiles = ground.profiles()
    result = race(scores_of(profiles), ground.rules)
    selected = select(_standings([profiles[model] for model in result.running]), ground.rules).selected
    return Choice(selected, sum(result.asked))


STRATEGIES: Mapping[str, Callable[[Ground], Choice]] = {
    "single": best_single,
    "two_best": two_best,
    "rules": rules,
    "search": search,
    "race": raced,
}


def _selected(ground: Ground, limits: Rules) -> tuple[str, ...]:
    return select(_standings(ground.profiles()), limits).selected


def _standings(profiles: Sequence[Profile]) -> list[Standing]:
    return [Standing(one.model, one.accuracy, one.mean_length) for one in profiles]


def _profiled(ground: Ground) -> int:
    return len(ground.pool) * len(ground.dev)
