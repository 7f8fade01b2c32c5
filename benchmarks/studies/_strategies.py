"""What each way to choose loses on the zoo's outcomes, whether its verdict was right, and how many sets it decodes.

The questions are split at random into some to choose by (dev), some for the verdict (held out) and some that tell what
was best (test). Where a strategy orders a set's members differently from the order in which the set was decoded, the
latter stands: not all orders were decoded.

A set is predicted by coefficients that were fitted on sets which share no model with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

from advisor.advice.comparison import Compared, compare_strategies
from advisor.advice.predict import WORTH, PredictedSet, Prediction, Predictor, predicted_sets
from advisor.advice.recommendation import recommend
from advisor.choose.rules import fitting_voters, select
from advisor.records import TRIES, Limits, Profile, Shown, Verdict
from advisor.strategies.cascade import Cascade
from advisor.strategies.decoded import Decoded
from advisor.strategies.strategy import FEWEST_VOTERS, AnsweredSplit, Strategy
from advisor.strategies.vote import codes_of
from advisor.tasks.task import Example, Signature, Task
from benchmarks.studies._decoded_sets import of_real, of_zoo, set_gains
from benchmarks.studies._outcomes import Outcomes
from benchmarks.studies.prediction import fit_decode
from ensemble.methods._votes import vote

Places = Sequence[int]
METHOD = "unite"
_VERDICTS: Mapping[Shown, Verdict] = {"yes": "better", "no": "worse", "not_yet": "unclear"}


class Way(NamedTuple):
    """A way to choose, on one pool and one split of the questions.

    Attributes:
        worth: The accuracy of what it chose on test, in points.
        decoded: How many sets were decoded on held-out questions.
        verdict: What the advice says about the set of the rules; None without a set.
        right: Whether that is true on test; None where the verdict is ``unclear``, or none.
    """

    worth: float
    decoded: int = 0
    verdict: Verdict | None = None
    right: bool | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    """A pool and a split of the questions.

    Attributes:
        outcomes: What is known of all models and sets.
        fitted: The coefficients of the prediction of each set, by its members as they decode.
        pool: Some of the models.
        dev: Places of the questions to choose by, in random order.
        held_out: Those for the verdict.
        test: Those that tell what was best.
    """

    outcomes: Outcomes
    fitted: Mapping[tuple[str, ...], Mapping[str, Any]]
    pool: tuple[str, ...]
    dev: Places
    held_out: Places
    test: Places

    def alone(self, places: Places) -> dict[str, Profile]:
        """The pool's answers to some questions, by name."""
        return {model: self.outcomes.profiles[model].part(places) for model in self.pool}

    def together(self, models: Sequence[str], places: Places) -> Profile:
        """A set's answers to some questions."""
        return self.outcomes.together(models).part(places)

    def voters(self) -> list[tuple[str, ...]]:
        """The members of the cascades that the advisor compares."""
        models = fitting_voters(list(self.alone(self.dev).values()), Limits())
        return [models[:size] for size in sorted({FEWEST_VOTERS, len(models)}) if size <= len(models) >= FEWEST_VOTERS]

    def best(self) -> float:
        """The best that could have been chosen of the pool: a model, a decoded set or a cascade, in points."""
        sizes = range(2, self.outcomes.largest + 1)
        return max(
            *(profile.accuracy for profile in self.alone(self.test).values()),
            *(self.together(models, self.test).accuracy for size in sizes for models in combinations(self.pool, size)),
            *(cascade(self.alone(self.test), models).accuracy for models in self.voters()),
        )

    def sets(self) -> list[PredictedSet]:
        """The sets that could be decoded, the most promising first."""
        profiles = list(self.alone(self.dev).values())
        found = []
        for each in predicted_sets(profiles, self.rules):
            fitted = self.fitted[self.outcomes.ordered(each.models)]
            found.append(replace(each, prediction=Predictor(profiles, fitted).decoded(each.models)))
        return sorted(found, key=lambda each: -each.prediction.points)

    def compare(self, predictions: Mapping[tuple[str, ...], Prediction | None]) -> Compared:
        """The pool's models, votes, and these sets with their predicted gains, as the advisor compares them."""
        splits = []
        for split, places in (("dev", self.dev), ("held_out", self.held_out)):
            # Without prompts, so that no router is made: learning from thousands of texts takes long.
            examples = tuple(Example(f"{split}-{place}", "", "", "") for place in places)
            signature = Signature("zoo", "number", split, len(places), 0, 0, "", ())
            task = Task("zoo", "number", split, examples, (), 1, 0, 0, None, (), "", signature)
            splits.append(AnsweredSplit(task, self.alone(places)))
        sets: dict[Strategy, Profile] = {
            Decoded(models, METHOD): self.together(models, self.held_out) for models in predictions
        }
        known: dict[Strategy, Prediction] = {
            Decoded(models, METHOD): each for models, each in predictions.items() if each is not None
        }
        return compare_strategies(splits[0], replace(splits[1], written=sets), can_vote=True, predictions=known)

    @property
    def rules(self) -> Limits:
        """The default rules, with no set larger than those that were decoded."""
        return replace(Limits(), max_models=min(Limits().max_models, self.outcomes.largest))


def grounds(outcomes: Outcomes, count: int, seed: int = 0) -> Iterator[Ground]:
    """Random pools of at least three models on random splits: 30% dev, 30% held out, the rest test."""
    chance = Random(seed)
    known = [each for decoded in (of_zoo(outcomes), *of_real()) for each in set_gains(decoded)]
    fitted = {models: {"decode": fit_decode(known, without=models)} for models in outcomes.sets}
    for _ in range(count):
        size = chance.randint(min(3, len(outcomes.models)), len(outcomes.models))
        pool = tuple(sorted(chance.sample(outcomes.models, size), key=outcomes.models.index))
        order = chance.sample(range(outcomes.questions), outcomes.questions)
        first, second = 3 * len(order) // 10, 6 * len(order) // 10
        yield Ground(outcomes, fitted, pool, order[:first], order[first:second], order[second:])


def cascade(profiles: Mapping[str, Profile], models: Sequence[str]) -> Profile:
    """The answers of a vote, and of a cascade, which gives the same."""
    members = [profiles[model] for model in models]
    picks = vote(codes_of(members))
    return Profile(Cascade.KIND, tuple(members[pick].answers[n] for n, pick in enumerate(picks)))


def best_single(ground: Ground) -> Way:
    """The most accurate model on dev."""
    model = select([profile.standing for profile in ground.alone(ground.dev).values()], Limits()).selected[0]
    return Way(ground.alone(ground.test)[model].accuracy)


def always_rules(ground: Ground) -> Way:
    """The rules' set, whatever the held-out questions say, and the verdict on it."""
    models = select([profile.standing for profile in ground.alone(ground.dev).values()], ground.rules).selected
    if len(models) < 2:
        return best_single(ground)
    test = ground.alone(ground.test)
    worth = ground.together(models, ground.test).accuracy
    (result,) = (each for each in ground.compare({models: None}).results if each.strategy.name == METHOD)
    verdict = _VERDICTS[result.shown]
    gains = worth > max(profile.accuracy for profile in test.values())
    right: Mapping[Verdict, bool | None] = {"better": gains, "worse": not gains, "unclear": None}
    return Way(worth, 1, verdict, right[verdict])


def recommended(ground: Ground, choose: str = "predicted") -> Way:
    """What the advisor recommends after verification.

    Args:
        ground: The pool and the split.
        choose: As the option of `advisor select`: ``rules`` or ``predicted``.
    """
    sets = ground.sets()
    queue = sets[:TRIES] if choose == "predicted" else [each for each in sets if each.rules]
    if not queue:
        queue = [each for each in sets[:1] if each.prediction.points > 0]
    dev, held_out, test = (ground.alone(places) for places in (ground.dev, ground.held_out, ground.test))
    both = [Profile(name, (*dev[name].answers, *held_out[name].answers)) for name in ground.pool]
    decoded: dict[tuple[str, ...], Prediction | None] = {}
    best = 0.0
    for each in queue:
        if decoded and each.prediction.improvement(best) < WORTH:
            break
        fitted = ground.fitted[ground.outcomes.ordered(each.models)]
        decoded[each.models] = Predictor(both, fitted).decoded(each.models)
        results = ground.compare(decoded).results
        best = max(best, *(result.expected_gain for result in results if not result.strategy.ASKS))
    found = recommend(ground.compare(decoded))
    if found is None:
        raise AssertionError("compared strategies have a best one")
    members = found.result.strategy.members
    if found.result.strategy.IS_SINGLE:
        return Way(test[members[0]].accuracy, len(decoded))
    if not found.result.strategy.ASKS:
        return Way(ground.together(members, ground.test).accuracy, len(decoded))
    return Way(cascade(test, members).accuracy, len(decoded))
