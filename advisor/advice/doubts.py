"""What an expert sees in answers before any figure: why the figures of some candidates, or of all, may mislead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from scipy import stats

from advisor.advice.comparison import compare_strategies
from advisor.advice.recommendation import recommend
from advisor.advice.rules import rank, select
from advisor.records import ALPHA, Answer, Doubt, Limits, Profile, join
from advisor.run.result import DataWarning, RecommendedStrategy
from advisor.statistics import Floats, accuracy_interval, is_binary, scores
from advisor.strategies.replay import codes_of
from advisor.strategies.strategy import AnsweredSplit
from advisor.strategies.vote import near_copies
from advisor.tasks.metrics import COMPARING
from advisor.tasks.task import Task
from ensemble.common.text import counted, p_value, shortened
from ensemble.methods.voting import count_votes

FEW_QUESTIONS = 30
"""With fewer questions there is no advice: a single question is over 3 points then."""
SAME_TEXT = 0.95
"""The share of equal responses from which a candidate is said to write the same text to all questions."""
FEWER_ANSWERS = 5.0
"""The points of difference in the share of responses with an answer from which models are named."""
_SIMILAR_LENGTH = 1.5
"""The largest ratio of the mean lengths of two models that are compared in this share."""
FOLLOWS_LENGTH = 0.5
"""The rank correlation of scores and mean lengths from which scores are said to follow length. On random parts of 8
models of real pools that is so in 3 to 7% where scores are counted, and in 40 to 100% where a judge gives them."""
_LEAST_BROKEN = 3
_BROKEN_SHARE = 0.02
"""Questions, and their share, from which references are said to be broken: a few such questions are chance."""
_NEVER_GIVEN = 0.01
"""The probability below which it is no chance that no candidate is right where a text is the reference."""
_MOST_LABELS = 26
"""References among which an answer can be guessed."""
_MOST_DOUBLED = 0.1
"""The share of questions that may be there more than once."""
_FEWEST_MODELS = 6  # with fewer, orders of candidates are too often chance
_FEWEST = 20  # responses; a few may be equal by chance
_SHORTEST = 10  # characters; shorter texts may be labels, of which one is often right
_MOST_OF_A_KIND = 5
_MOST_QUESTIONS = 20
_LONGEST_REFERENCE = 60


def run_doubts(profiles: Sequence[Profile], task: Task, held_out: int = 0) -> tuple[DataWarning, ...]:
    """Why the figures of the candidates may mislead; empty if all is well.

    The best candidate comes first; `held_out` is the number of questions that judge besides those of `task`.
    """
    fewer = fewer_answers(profiles, answer_shares(profiles, task))
    return (
        *_of_questions(task, held_out),
        *_of_grades(profiles, task),
        *_of_candidates(profiles, task),
        *fewer,
        *_of_copies(profiles),
        *broken_references(profiles, task),
    )


def no_advice(
    doubts: Sequence[DataWarning], recommendation: RecommendedStrategy | None, models: int
) -> DataWarning | None:
    """The first warning that does not allow an advice; None if there is an advice. `models` counts the candidates."""
    members = set(recommendation.members) if recommendation else set()
    for each in doubts:
        if (
            each.code in ("few_questions", "doubled_questions", "guessing")
            or (each.code == "no_order" and len(members) == 1)
            or (each.code == "never_right" and len(each.models) == models)
            or (each.code == "same_text" and members & set(each.models))
        ):
            return each
    return None


def _of_questions(task: Task, held_out: int) -> Iterator[DataWarning]:
    n = len(task.examples) + held_out
    if 0 < n < FEW_QUESTIONS:
        text = (
            f"{counted(n, 'question')} {'tells' if n == 1 else 'tell'} little, because one is {100 / n:.1f} points: "
            f"ask {FEW_QUESTIONS - n} more."
        )
        yield DataWarning(code="few_questions", text=text, value=n)
    asked = Counter((each.prompt or each.question, each.choices, each.reference) for each in task.examples)
    repeated = sum(count for (text, *_), count in asked.items() if text and count > 1)
    if repeated > _MOST_DOUBLED * len(task.examples):
        text = (
            f"{repeated} of {counted(len(task.examples), 'question')} are there more than once, so they tell less than "
            "they seem to: leave the repeats out, and run again."
        )
        yield DataWarning(code="doubled_questions", text=text, value=repeated)


def _of_grades(profiles: Sequence[Profile], task: Task) -> Iterator[DataWarning]:
    """No order of grades: Friedman's test (1937, JASA 32), for two models Wilcoxon's."""
    graded = np.stack([scores(profile) for profile in profiles])
    if len(graded) < 2 or is_binary(graded) or task.metric in COMPARING or graded.shape[1] < FEW_QUESTIONS:
        return
    chance = 1.0
    if np.ptp(graded, axis=0).any():
        test = stats.wilcoxon if len(graded) == 2 else stats.friedmanchisquare
        chance = float(test(*graded).pvalue)
    if chance > ALPHA:
        text = (
            f"The grades of the models do not differ by more than chance (p {p_value(chance)}), so their order means "
            "little: read some of the grades, or ask more questions."
        )
        yield DataWarning(code="no_order", text=text, value=chance)


def guessing_points(task: Task) -> float:
    """What guessing scores, in points: an option of each question, or the most frequent reference each time."""
    n = max(len(task.examples), 1)
    by_options = sum(1 / len(each.choices) for each in task.examples if each.choices) / n
    references = Counter(each.reference for each in task.examples if each.reference)
    # Of labels; what all questions have is no answer to guess, and numbers or texts are not guessed.
    by_label = max(references.values()) / n if 1 < len(references) <= _MOST_LABELS else 0.0
    return 100 * max(by_options, by_label)


def _of_candidates(profiles: Sequence[Profile], task: Task) -> Iterator[DataWarning]:
    doubted: dict[Doubt, list[Profile]] = {}
    for profile in profiles:
        for doubt in doubts_of(profile):
            doubted.setdefault(doubt, []).append(profile)
    names = {doubt: tuple(each.model for each in own) for doubt, own in doubted.items()}
    chance, best = guessing_points(task), profiles[0]
    is_told = best.accuracy > 0 and is_binary(scores(best)) and len(best.answers) >= FEW_QUESTIONS
    if is_told and accuracy_interval(best)[0] <= chance:
        text = (
            f"No candidate is shown to be better than guessing, which scores {chance:.1f} points, so the order "
            "of the candidates means little: ask more questions, or take stronger models or another prompt."
        )
        yield DataWarning(code="guessing", text=text, value=chance)
    if never := names.get("never_right"):
        n = len(profiles[0].answers)
        text = (
            f"Not one response of {join(never)} to the {counted(n, 'question')} is right; read some of them to see "
            "whether the prompt and the metric fit."
        )
        yield DataWarning(code="never_right", text=text, models=never, value=n)
    if same := names.get("same_text"):
        text = (
            f"Nearly all responses of {join(same)} are the same text, whatever the question is. Their points say how "
            "the metric or the judge grades this text, and not how well the model answers: leave it out."
        )
        yield DataWarning(
            code="same_text", text=text, models=same, value=min(map(_share_of_one_text, doubted["same_text"]))
        )
    if (correlation := follows_length(profiles)) is not None:
        text = (
            "The longer a model's responses are, the higher is its score. Read some of them: a judge or a metric may "
            "reward length."
        )
        yield DataWarning(code="follows_length", text=text, value=correlation)
    if unread := names.get("unread"):
        models = f"{len(unread)} candidates" if len(unread) > 2 else join(unread)
        text = f"Over a fifth of the questions could not be answered by {models}; the notes say why."
        yield DataWarning(code="unread", text=text, models=unread, value=min(each.errors for each in doubted["unread"]))


def doubts_of(profile: Profile) -> tuple[Doubt, ...]:
    """Why the figures of a candidate mean little, as codes; empty if nothing is odd."""
    is_unread = 5 * profile.errors > len(profile.answers)
    found: dict[Doubt, bool] = {
        "never_right": profile.accuracy == 0 and not is_unread,
        "same_text": _share_of_one_text(profile) >= SAME_TEXT,
        "unread": is_unread,
    }
    return tuple(doubt for doubt, holds in found.items() if holds)


def _share_of_one_text(profile: Profile) -> float:
    """The share of the responses that are the most frequent text; 0 with few responses."""
    read = [answer for answer in profile.answers if answer.error is None]
    # Of a log without texts, the lengths: real responses hardly have one length.
    texts = Counter(
        answer.text or (answer.length, answer.extracted) for answer in read if (answer.length or 0) >= _SHORTEST
    )
    return max(texts.values(), default=0) / len(read) if len(read) >= _FEWEST else 0.0


def answer_shares(profiles: Sequence[Profile], task: Task) -> dict[str, float]:
    """The percentage of each model's responses from which an answer was read; empty if the metric does not tell it."""
    read = {each.model: [answer.extracted for answer in each.answers if answer.error is None] for each in profiles}
    # `contains` searches for the reference, so that a wrong response has no answer.
    if task.metric == "contains" or all(answer is None for answers in read.values() for answer in answers):
        return {}
    return {
        model: 100 * sum(answer is not None for answer in answers) / len(answers)
        for model, answers in read.items()
        if answers
    }


def fewer_answers(profiles: Sequence[Profile], shares: Mapping[str, float]) -> tuple[DataWarning, ...]:
    """Models whose responses have an answer less often than those of another one that are about as long."""
    lengths = {each.model: each.mean_length for each in profiles if each.mean_length and each.model in shares}
    best: dict[str, str] = {}
    for model, length in lengths.items():
        alike = [name for name, other in lengths.items() if 1 / _SIMILAR_LENGTH <= other / length <= _SIMILAR_LENGTH]
        most = max(alike, key=shares.__getitem__)
        if shares[most] - shares[model] > FEWER_ANSWERS:
            best[model] = most
    if not best:
        return ()
    names = tuple(sorted(best, key=lambda model: (shares[model], model)))
    least, most = names[0], best[names[0]]
    others = f", and fewer of {join(names[1 : _NAMED + 1])}, too" if names[1:] else ""
    text = (
        f"An answer was read from {shares[least]:.1f}% of the responses of {least}, and from {shares[most]:.1f}% of "
        f"those of {most}, which are about as long{others}. Read some responses without an answer: the metric may not "
        "know their form."
    )
    return (DataWarning(code="fewer_answers", text=text, models=names, value=shares[least]),)


def follows_length(profiles: Sequence[Profile]) -> float | None:
    """The rank correlation of scores and lengths, if it is 0.5 or more and its one-sided p at most 5%; else None."""
    known = [(each.accuracy, each.mean_length) for each in profiles if each.mean_length is not None]
    if len(known) < _FEWEST_MODELS or any(len(set(column)) < 2 for column in zip(*known, strict=True)):
        return None
    found = stats.spearmanr(*zip(*known, strict=True), alternative="greater")
    return float(found.statistic) if found.statistic >= FOLLOWS_LENGTH and found.pvalue <= ALPHA else None


def _of_copies(profiles: Sequence[Profile]) -> Iterator[DataWarning]:
    """Candidates that count as one voter: on real pools these are versions of a model, or one at several hosts."""
    copies = sorted(near_copies(profiles).items(), key=lambda each: -each[1][1])
    for name, (other, share) in copies[:_MOST_OF_A_KIND]:
        text = f"{other} and {name} give the same answer to {share:.0%} of the questions, so they count as one voter."
        yield DataWarning(code="near_copies", text=text, models=(other, name), value=share)


def broken_references(profiles: Sequence[Profile], task: Task) -> tuple[DataWarning, ...]:
    """Questions whose reference is doubtful.

    Where three quarters of the more accurate half of the candidates give one answer, none of them is right, and most of
    the others are. And where a text is the reference of several questions, and no candidate is right on any of them.
    """
    graded, ids = np.stack([scores(profile) for profile in profiles]), [each.id for each in task.examples]
    if not is_binary(graded):
        return ()
    found = []
    half = len(profiles) // 2
    if len(profiles) >= _FEWEST_MODELS:
        order = sorted(range(len(profiles)), key=lambda row: rank(profiles[row]))
        codes, right = codes_of(profiles)[order], graded[order]
        agree = count_votes(codes[:half]).max(axis=0) >= 3 * half / 4
        places = np.flatnonzero(agree & (right[:half].max(axis=0) < 1) & (right[-half:].mean(axis=0) > 0.5))
        if len(places) >= max(_LEAST_BROKEN, _BROKEN_SHARE * len(ids)):
            shown = tuple(ids[place] for place in places[:_MOST_QUESTIONS])
            text = (
                f"On {counted(len(places), 'question')}, for example {shown[0]}, the more accurate models give one "
                "answer, which counts as wrong, and the others are right: read the references."
            )
            found.append(DataWarning(code="broken_references", text=text, questions=shown, value=len(places)))
    by_reference: dict[str | tuple[str, ...], list[int]] = {}
    for place, example in enumerate(task.examples):
        if example.reference:
            by_reference.setdefault(example.reference, []).append(place)
    wrong, any_right = 1 - float(graded.mean(axis=1).max()), graded.max(axis=0) > 0
    for reference, own in by_reference.items():
        # By chance the best candidate is wrong on all of them so often, for any of the references.
        if any_right[own].any() or wrong ** len(own) * len(by_reference) > _NEVER_GIVEN:
            continue
        name = shortened(reference if isinstance(reference, str) else reference[0], _LONGEST_REFERENCE)
        text = (
            f"No model is right on any of the {counted(len(own), 'question')} whose reference is {name!r}: see "
            "whether the responses have it in another spelling."
        )
        shown = tuple(ids[place] for place in own[:_MOST_QUESTIONS])
        found.append(DataWarning(code="reference_never_given", text=text, questions=shown, value=len(own)))
    return tuple(found[:_MOST_OF_A_KIND])


ENOUGH = 0.95
"""The share of responses for which a number of tokens should be enough."""
_FEWEST_ENDED = 10
"""Responses that ended, from which the others' lengths can be estimated."""
_MOST_TOKENS = 1e9
_NAMED = 3


def finished_accuracy(profile: Profile) -> float | None:
    """The accuracy on the responses that were not cut off, in points; None if all were."""
    ended = [answer.score for answer in profile.answers if answer.finish_reason != "length"]
    return 100 * math.fsum(ended) / len(ended) if ended else None


def enough_tokens(profile: Profile) -> int | None:
    """The tokens that would be enough for 95% of a model's responses, with two digits; None if that is not known.

    If more were cut off, the lengths of these are estimated: all lengths have a Weibull distribution, and a cut-off
    response is longer than its limit (maximum likelihood with censored data).
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
    recommendation: RecommendedStrategy | None,
    *,
    can_vote: bool,
    rules: Limits,
    apart: Collection[str] = (),
) -> str | None:
    """Sentences on what would change with more tokens: the order, the set of the rules or the recommendation.

    None if nothing would.
    """
    cut = sorted((each for each in dev.profiles.values() if each.truncated), key=lambda each: -each.truncated)
    if not cut and not any(each.truncated for each in held_out.profiles.values()):
        return None
    then = completed(dev)
    before, after = (
        select([each.standing for each in split.profiles.values()], rules, (), apart) for split in (dev, then)
    )
    changes = []
    if [each.model for each in before.decisions] != [each.model for each in after.decisions]:
        changes.append("the order of the candidates")
    if before.selected != after.selected:
        changes.append("the set of the rules")
    other = None
    if recommendation is not None:
        compared = compare_strategies(then, completed(held_out), can_vote=can_vote, rules=rules)
        other = recommend(compared, rules)
        if other is not None and other.key != recommendation.key:
            changes.append("the recommendation")
    if not changes:
        return None
    known = [enough_tokens(each) for each in cut]
    enough = max((tokens for tokens in known if tokens is not None), default=None) if None not in known else None
    return _text(cut, changes, enough)


def completed(split: AnsweredSplit) -> AnsweredSplit:
    """A split in which the cut-off responses are right as often as the model's others."""
    profiles = list(split.profiles.values())
    if not any(each.truncated for each in (*profiles, *(each.profile for each in split.written.values()))):
        return split
    easy = np.mean([[answer.score for answer in each.answers] for each in profiles], axis=0)
    # What a right response is read as; the reference where no model is right.
    right = [
        next(
            (answer.extracted for answer in given if answer.score == 1 and answer.extracted is not None),
            next(iter(example.accepted), None),
        )
        for example, *given in zip(split.task.examples, *(each.answers for each in profiles), strict=True)
    ]
    written = {
        strategy: each._replace(profile=_completed(each.profile, easy, right))
        for strategy, each in split.written.items()
    }
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


def _text(cut: Sequence[Profile], changes: Sequence[str], enough: int | None) -> str:
    named = [f"{each.truncated:,} of {len(each.answers):,} responses of {each.model}" for each in cut[:_NAMED]]
    if len(cut) > _NAMED:
        named.append(f"some of {len(cut) - _NAMED} others")
    who = f"{join(named)} to the dev questions" if named else "Some responses to the held-out questions"
    # A metric such as chrF gives points to a part of a text.
    are_wrong = all(each.score == 0 for own in cut for each in own.answers if each.finish_reason == "length")
    tokens = "" if enough is None else f" About {enough:,} tokens would be enough for {ENOUGH:.0%} of the responses."
    return (
        f"{who} were cut off at a token limit{' and count as wrong' if are_wrong else ''}. If they were right as often "
        f"as the others, {join(changes)} would change.{tokens}"
    )
