"""Responses that were cut off at a token limit: what the advice would be if the models had more tokens.

A cut-off response counts as wrong, although the model may have been on the way to the right answer. Here it is right as
often as the model's responses that ended, on the questions first that most other models get right.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from scipy import stats

from advisor.advice.comparison import compare_strategies
from advisor.advice.recommendation import Recommendation, recommend
from advisor.choose import select
from advisor.records import Answer, Limits, Profile, join
from advisor.statistics import Floats
from advisor.strategies.strategy import AnsweredSplit, Strategy
from advisor.tasks.task import Example

Change = Literal["order", "set", "recommendation"]
"""What would change: the order of the candidates, the set of the rules, or the recommendation."""
ENOUGH = 0.95
"""The share of responses for which a number of tokens should be enough."""
_FEWEST_ENDED = 10
"""Responses that ended, from which the others' lengths can be estimated."""
_MOST_TOKENS = 1e9
_NAMED = 3
_WORDS: dict[Change, str] = {
    "order": "the order of the candidates",
    "set": "the set of the rules",
    "recommendation": "the recommendation",
}


@dataclass(frozen=True, slots=True)
class CutOff:
    """What would change if the models had more tokens.

    Attributes:
        changes: What would change, at least one.
        models: The candidates with cut-off responses to the dev questions, those with the most first.
        enough_tokens: Tokens that would be enough for 95% of the responses of each; None if they cannot be estimated.
        text: All of this in sentences.
    """

    changes: tuple[Change, ...]
    models: tuple[str, ...]
    enough_tokens: int | None
    text: str


def finished_accuracy(profile: Profile) -> float | None:
    """The accuracy on the responses that were not cut off, in points; None if all were."""
    ended = [answer.score for answer in profile.answers if answer.finish_reason != "length"]
    return 100 * math.fsum(ended) / len(ended) if ended else None


def enough_tokens(profile: Profile) -> int | None:
    """The tokens that would be enough for 95% of a model's responses, with two digits.

    If more were cut off, the lengths of these are estimated: all lengths have a Weibull distribution, and a cut-off
    response is longer than its limit (maximum likelihood with censored data).

    Returns:
        None if the tokens of a response are not known, or too few responses ended.
    """
    read = [answer for answer in profile.answers if answer.error is None and answer.tokens]
    ended = tuple(answer.tokens for answer in read if answer.finish_reason != "length")
    cut = tuple(answer.tokens for answer in read if answer.finish_reason == "length")
    if len(ended) < _FEWEST_ENDED or profile.mean_tokens is None:
        return None
    if len(cut) <= (1 - ENOUGH) * len(read):
        quantile = float(np.quantile([*ended, *cut], ENOUGH, method="inverted_cdf"))
    elif len(set(ended)) == 1:
        return None
    else:
        quantile = _weibull_quantile(ended, cut)
    step = 10 ** max(math.floor(math.log10(quantile)) - 1, 0)
    return int(math.ceil(quantile / step) * step)


@cache  # a fit takes long, and the advice and the candidates' figures need the same ones
def _weibull_quantile(ended: tuple[int, ...], cut: tuple[int, ...]) -> float:
    """The tokens of ENOUGH of the responses, from those of the ones that ended and the limits of the others."""
    # In units of the longest one: the fit starts near 1.
    unit = float(max(*ended, *cut))
    known, limits = (np.array(lengths, dtype=np.float64) / unit for lengths in (ended, cut))
    shape, start, scale = stats.weibull_min.fit(stats.CensoredData(known, right=limits), floc=0)
    return min(unit * float(stats.weibull_min.ppf(ENOUGH, shape, start, scale)), _MOST_TOKENS)


def with_more_tokens(
    dev: AnsweredSplit,
    held_out: AnsweredSplit,
    recommendation: Recommendation | None,
    *,
    can_vote: bool,
    rules: Limits,
    apart: Collection[str] = (),
    seed: int = 0,
) -> CutOff | None:
    """Whether the order, the set of the rules or the recommendation would change with more tokens.

    Args:
        dev: The dev questions.
        held_out: The held-out questions, with no models if none were asked.
        recommendation: The recommendation as it is.
        can_vote: Whether the extracted answers can be counted.
        rules: The limits.
        apart: Candidates that give whole texts only.
        seed: The seed of the resampling.

    Returns:
        None if nothing would change.
    """
    cut = sorted((each for each in dev.profiles.values() if each.truncated), key=lambda each: -each.truncated)
    if not cut and not any(each.truncated for each in held_out.profiles.values()):
        return None
    then = completed(dev)
    before, after = (
        select([each.standing for each in split.profiles.values()], rules, (), apart) for split in (dev, then)
    )
    changes: list[Change] = []
    if [each.model for each in before.decisions] != [each.model for each in after.decisions]:
        changes.append("order")
    if before.selected != after.selected:
        changes.append("set")
    other = None
    if recommendation is not None:
        compared = compare_strategies(then, completed(held_out), can_vote=can_vote, rules=rules, seed=seed)
        other = recommend(compared, rules)
        if other is not None and other.result.strategy != recommendation.result.strategy:
            changes.append("recommendation")
    if not changes:
        return None
    known = [enough_tokens(each) for each in cut]
    enough = max((tokens for tokens in known if tokens is not None), default=None) if None not in known else None
    return CutOff(tuple(changes), tuple(each.model for each in cut), enough, _text(cut, changes, enough))


def completed(split: AnsweredSplit) -> AnsweredSplit:
    """A split in which the cut-off responses are right as often as the model's others."""
    profiles = list(split.profiles.values())
    if not any(each.truncated for each in (*profiles, *split.written.values())):
        return split
    easy = np.mean([[answer.score for answer in each.answers] for each in profiles], axis=0)
    right = [_right_answer(n, example, profiles) for n, example in enumerate(split.task.examples)]
    written: Mapping[Strategy, Profile] = {name: _completed(each, easy, right) for name, each in split.written.items()}
    return replace(split, profiles={each.model: _completed(each, easy, right) for each in profiles}, written=written)


def _completed(profile: Profile, easy: Floats, right: Sequence[str | None]) -> Profile:
    places = [n for n, answer in enumerate(profile.answers) if answer.finish_reason == "length"]
    share = (finished_accuracy(profile) or 0.0) / 100
    places.sort(key=lambda n: (-easy[n], n))
    changed: dict[int, Answer] = {
        n: replace(profile.answers[n], score=1.0, extracted=right[n], finish_reason="eos")
        for n in places[: round(share * len(places))]
    }
    return replace(profile, answers=tuple(changed.get(n, answer) for n, answer in enumerate(profile.answers)))


def _right_answer(n: int, example: Example, profiles: Sequence[Profile]) -> str | None:
    """What a right response is read as; the reference where no model is right."""
    found = (each.answers[n].extracted for each in profiles if each.answers[n].score == 1)
    return next((text for text in found if text is not None), next(iter(example.accepted), None))


def _text(cut: Sequence[Profile], changes: Sequence[Change], enough: int | None) -> str:
    named = [f"{each.truncated:,} of {len(each.answers):,} responses of {each.model}" for each in cut[:_NAMED]]
    if len(cut) > _NAMED:
        named.append(f"some of {len(cut) - _NAMED} others")
    who = f"{join(named)} to the dev questions" if named else "Some responses to the held-out questions"
    tokens = "" if enough is None else f" About {enough:,} tokens would be enough for {ENOUGH:.0%} of the responses."
    return (
        f"{who} were cut off at a token limit and count as wrong. If they were right as often as the others, "
        f"{join([_WORDS[change] for change in changes])} would change.{tokens}"
    )
