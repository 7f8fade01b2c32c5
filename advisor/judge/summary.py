"""How far a judge's verdicts can be trusted: its position bias, ties, agreement with a second judge, and lengths.

Each figure has the number of verdicts that it is from. Zheng et al. ("Judging LLM-as-a-Judge with MT-Bench and Chatbot
Arena", 2023) call these position bias, verbosity bias (section 3.3) and agreement (section 4).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from scipy import special, stats

from advisor.judge.bradley_terry import bradley_terry
from advisor.judge.prompts import Verdict
from advisor.records import FIGURE_ALPHA, TOLERANCE
from advisor.run.figures import JudgedModel, JudgedSplit, JudgeShare
from advisor.statistics import Floats, Interval, cluster_interval, graded_interval, is_binary, wilson, z_value
from ensemble.common.text import counted

MOST_CHANGED = 100 / 3
"""Percent of pairs whose verdict may change with the order before a warning. GPT-4 changed a third of them in Zheng et
al., table 2; a judge that changes more prefers a place more often than a strong judge did."""
LEAST_KAPPA = 0.4
"""Below this, agreement beyond chance is called fair or slight (Landis and Koch 1977, Biometrics 33). The same limit
holds for the rank correlation of grades."""
_FEW = 20
"""With fewer clusters of questions, an interval says more about chance than about the judge. Many verdicts on few
questions do not help: they are about the same few questions."""

Lengths = Mapping[tuple[str, str], int]
"""Characters of each response, by question and model."""
Clusters = Mapping[str, str]
"""What questions share with others, by their ids: turns of a conversation are a cluster. A question that is not there
is a cluster alone."""


def summarize_matches(
    judged: Sequence[Sequence[Verdict]],
    settled: Sequence[Verdict],
    lengths: Lengths,
    candidates: Collection[str] | None = None,
    seed: int = 0,
    clusters: Clusters | None = None,
) -> dict[str, Any]:
    """The figures of comparisons on one split, as in ``result.json``. Shares and win rates are in points."""
    # The first judge decides the scores; the second one is there for the agreement.
    matches = judged[0]
    scores = {(each.question, each.first, each.second): each.score for each in matches if each.score is not None}
    ranking = bradley_terry(matches, settled, candidates, seed, clusters=clusters)
    # Each pair once. A pair of which one verdict cannot be read says nothing about the order.
    says = {key: _winner(score) for key, score in scores.items()}
    changed = [
        (question, float(winner != -says[question, second, first]))
        for (question, first, second), winner in says.items()
        if first < second and (question, second, first) in says
    ]
    decided = {key: winner for key, winner in says.items() if winner}
    longer = [
        (question, float((winner > 0) == (lengths[question, first] > lengths[question, second])))
        for (question, first, second), winner in decided.items()
        # A set may have a response of which only the score is known.
        if len({lengths.get((question, first)), lengths.get((question, second))} - {None}) == 2
    ]
    return {
        "verdicts": len(matches),
        "unread": len(matches) - len(scores),
        # Equal texts and failed responses have no place that a judge could prefer, so they are in the strengths only.
        "settled": len(settled),
        "models": ranking.models,
        "groups": ranking.groups,
        "ties": _share([(key[0], float(not winner)) for key, winner in says.items()], clusters),
        "first_wins": _share([(key[0], float(winner > 0)) for key, winner in decided.items()], clusters),
        "equal_first_wins": ranking.equal_first_wins,
        "equal_first_wins_ci": ranking.equal_first_wins_ci,
        "changed": _share(changed, clusters),
        "longer_wins": _share(longer, clusters),
        "agreement": _same_winners(says, judged[1], clusters) if len(judged) > 1 else None,
    }


def summarize_grades(
    judged: Sequence[Sequence[Verdict]],
    lengths: Lengths,
    step: float,
    clusters: Clusters | None = None,
) -> dict[str, Any]:
    """The figures of single grades on one split; neighbouring grades differ by `step`, on the scale from 0 to 1."""
    grades = judged[0]
    scores = {(each.question, each.first): each.score for each in grades if each.score is not None}
    by_model = defaultdict[str, list[tuple[str, float]]](list)
    for (question, model), score in scores.items():
        by_model[model].append((question, score))
    models = [
        {
            "model": model,
            "grades": len(own),
            "score": 100 * sum(score for _, score in own) / len(own),
            "score_ci": list(_mean_interval(own, clusters)),
        }
        for model, own in by_model.items()
    ]
    sized = [(lengths[key], score) for key, score in scores.items() if key in lengths]
    return {
        "verdicts": len(grades),
        "unread": len(grades) - len(scores),
        "models": sorted(models, key=lambda each: (-cast(float, each["score"]), each["model"])),
        "length": {"n": len(sized), "spearman": _correlation(stats.spearmanr, sized)},
        "agreement": _same_grades(scores, judged[1], step, clusters) if len(judged) > 1 else None,
    }


def head_to_head(
    matches: Sequence[Verdict],
    taken: Mapping[str, str],
    rival: str,
    clusters: Clusters | None = None,
) -> dict[str, Any] | None:
    """How often the `taken` responses win against those of one model, in points; None if the two never met."""
    # By question, in both orders.
    met = defaultdict[str, list[float]](list)
    for match in matches:
        if match.score is not None and rival in (match.first, match.second):
            own = match.second if match.first == rival else match.first
            if taken.get(match.question) == own:
                met[match.question].append(match.score if match.second == rival else 1 - match.score)
    if not met:
        return None
    # Both orders of a question are one value: they compare the same two responses.
    values = {
        question: 0.5 if name == rival else float(np.mean(met[question]))
        for question, name in taken.items()
        if name == rival or question in met
    }
    scores = np.array([*values.values()])
    return {
        "questions": len(values),
        "win_rate": 100 * float(scores.mean()),
        "win_rate_ci": list(cluster_interval(scores, _labels(values, clusters), FIGURE_ALPHA, (0.0, 1.0))),
    }


def judge_warnings(names: Sequence[str], split: JudgedSplit) -> list[str]:
    """Sentences on a judge whose verdicts on a split tell little; `names` are those of the judge and the second one."""
    judge, found = names[0], []
    if split.verdicts and 5 * split.unread > split.verdicts:
        found.append(f"{split.unread:,} of {split.verdicts:,} verdicts of the judge {judge} cannot be read.")
    changed = split.changed
    # More than chance alone gives, so that chance alone gives no warning.
    if changed and _is_surely_above(changed, MOST_CHANGED):
        first = None if split.first_wins is None else split.first_wins.share
        prefers = "" if first is None else f" (the first response wins {first:.0f}% of its decided verdicts)"
        found.append(
            f"The judge {judge} changes its verdict on {changed.share:.0f}% of {counted(changed.n, 'pair')} if "
            f"the order changes{prefers}, so scores are pulled to 50, and true differences look smaller. Another judge "
            "or another prompt may be more consistent."
        )
    if split.verdicts and (how := _how_equal(split.models)):
        found.append(f"The judge {judge} {how}, so the order of the candidates means little.")
    if len(split.groups) > 1:
        found.append("Some models share no comparison with the others, so their win rates cannot be compared.")
    both = split.agreement
    if both and both.clusters >= _FEW:
        is_kappa = "kappa" in both.model_fields_set
        value, word = (both.kappa, "Cohen's kappa") if is_kappa else (both.spearman, "Spearman's correlation")
        if value is not None and value < LEAST_KAPPA:
            found.append(
                f"The judges {judge} and {names[1]} agree little ({word} {value:.2f} on {both.n:,} verdicts; "
                f"below {LEAST_KAPPA:g}), so another judge may rank the models in another order."
            )
    return found


def _is_surely_above(found: JudgeShare, limit: float) -> bool:
    """Whether a figure of :func:`_share` is above a limit, in points, by more than chance (2.5%)."""
    clusters, share, null = found.clusters, found.share or 0.0, limit / 100
    if not clusters or share <= limit or found.share_ci is None:
        return False
    if clusters >= _FEW:
        return found.share_ci[0] > limit
    # Of few clusters an interval can be too short. This bound holds for any number of values between 0 and 1, however
    # the verdicts of a cluster depend on each other (Hoeffding 1963, JASA 58, theorem 1).
    divergence = special.rel_entr(share / 100, null) + special.rel_entr(1 - share / 100, 1 - null)
    return math.exp(-clusters * divergence) <= FIGURE_ALPHA


def _how_equal(models: Sequence[JudgedModel]) -> str:
    """How a judge that prefers no model scores them, as a clause; empty if it prefers one."""
    if len(models) < 2:
        return ""
    ends = [each.win_rate_ci for each in models if each.win_rate_ci is not None]
    if ends:
        is_even = all(low <= 50 + TOLERANCE and high >= 50 - TOLERANCE for low, high in ends)
        return "does not tell the models apart: the interval of every win rate contains 50" if is_even else ""
    means = [each.score or 0.0 for each in models]
    is_same = max(means) - min(means) <= TOLERANCE
    return "does not tell the models apart: all have the same mean grade" if is_same else ""


def _share(values: Sequence[tuple[str, float]], clusters: Clusters | None) -> dict[str, Any]:
    """The share of ones in points, from pairs of a question and 0 or 1.

    The interval is Wilson's if each cluster of questions has one value. Otherwise that would count the verdicts on all
    pairs of models, and in both orders, as independent, and be far too short.
    """
    if not values:
        return {"n": 0, "clusters": 0, "share": None, "share_ci": None}
    labels, array = _labels([question for question, _ in values], clusters), np.array([one for _, one in values])
    different = len({*labels})
    if different == len(array):
        interval = wilson(array, FIGURE_ALPHA)
    else:
        interval = cluster_interval(array, labels, FIGURE_ALPHA, (0.0, 1.0))
    return {"n": len(array), "clusters": different, "share": 100 * float(array.mean()), "share_ci": list(interval)}


def _mean_interval(values: Sequence[tuple[str, float]], clusters: Clusters | None) -> Interval:
    """The interval of a mean grade in points, from pairs of a question and the grade of a model's response to it."""
    labels, array = _labels([question for question, _ in values], clusters), np.array([score for _, score in values])
    if len({*labels}) == len(array):
        return graded_interval(array, FIGURE_ALPHA)
    return cluster_interval(array, labels, FIGURE_ALPHA, (0.0, 1.0))


def _labels(questions: Iterable[str], clusters: Clusters | None) -> list[str]:
    return [(clusters or {}).get(question, question) for question in questions]


def _winner(score: float) -> int:
    """Who is better: 1 the first one, -1 the second one, 0 a tie. Likelihoods give scores between these."""
    return 0 if abs(score - 0.5) <= TOLERANCE else 1 if score > 0.5 else -1


def _same_winners(
    says: Mapping[tuple[str, str, str], int], others: Sequence[Verdict], clusters: Clusters | None
) -> dict[str, Any]:
    """How often two judges name the same winner, or both a tie."""
    from sklearn.metrics import cohen_kappa_score

    both = [
        (each.question, says[key], _winner(each.score))
        for each in others
        if each.score is not None and (key := (each.question, each.first, each.second)) in says
    ]
    ours, theirs = ([each[place] for each in both] for place in (1, 2))
    return {
        "n": len(both),
        "clusters": len({*_labels((question for question, *_ in both), clusters)}),
        "equal": 100 * float(np.mean([a == b for _, a, b in both])) if both else None,
        # It is not defined if both judges always say the same one thing.
        "kappa": float(cohen_kappa_score(ours, theirs)) if len({*ours, *theirs}) > 1 else None,
    }


def _same_grades(
    scores: Mapping[tuple[str, str], float],
    others: Sequence[Verdict],
    step: float,
    clusters: Clusters | None,
) -> dict[str, Any]:
    """How near the grades of two judges are, and whether they order the responses alike."""
    both = [
        (each.question, scores[each.question, each.first], each.score)
        for each in others
        if each.score is not None and (each.question, each.first) in scores
    ]
    near = _share([(question, float(abs(a - b) <= step + TOLERANCE)) for question, a, b in both], clusters)
    pairs = [(a, b) for _, a, b in both]
    return {
        "n": near["n"],
        "clusters": near["clusters"],
        "within_one": near["share"],
        "within_one_ci": near["share_ci"],
        "spearman": _correlation(stats.spearmanr, pairs),
        "kendall": _correlation(stats.kendalltau, pairs),
    }


def _correlation(measure: Any, pairs: Sequence[tuple[float, float]]) -> float | None:
    """A rank correlation; None where it is not defined, because all values of one side are equal."""
    values: Floats = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    if len(values) < 2 or (np.ptp(values, axis=0) == 0).any():
        return None
    return float(measure(values[:, 0], values[:, 1]).statistic)


FEWEST_LABELS = 10
"""With fewer labels an interval says nothing."""
_DRAWS = 20_000
_LEAST_SPREAD = 0.1
"""The least sum of squares of what the judge does not explain: labels that all fit are no proof that all others do."""
_TO_THE_JUDGE = re.compile(
    r"\[\[ ?(?:[abc]|\d+) ?\]\]|<\|[a-z_]+\|>|\bmodel_identifier\b"
    r"|\b(?:ignore|disregard|forget) (?:all |any )?(?:the |your )?(?:previous|above|prior)"
    r"|\b(?:output|assistant|response) \(?[ab]\)? is (?:the )?(?:better|best)\b",
    re.IGNORECASE,
)


class CorrectedScore(NamedTuple):
    """A mean score by a judge, and what labels make of it."""

    labels: int  # the number of labels
    judged: float  # the mean of the judge's scores, in points
    points: float  # the corrected mean, in points
    interval: Interval  # at 95%; it counts the error of the labels and that of the judged questions
    worth: float  # how many labels alone would be as precise, about
    # Labels, in all, that show a mean like this one with a probability of 80%; None for 0 and too few questions.
    needed: int | None


def corrected_mean(
    labels: Floats, scores: Floats, everything: Floats, ends: tuple[float, float] = (-1.0, 1.0)
) -> CorrectedScore:
    """Correct the mean of a judge's scores, or of differences of scores.

    *Grades and differences*: prediction-powered inference with power tuning (PPI: Angelopoulos et al. 2023, arXiv
    2301.09633; PPI++: arXiv 2311.01453, section 6). The labels' mean is moved by what the judge says of all questions:
    mean(y) + w (mean(F) - mean(f)), with the w of least variance, and a t interval. As the labelled questions are among
    the judged ones, w is the slope of the labels on the scores.

    *Yes or no*: the same estimate is the share of right verdicts in each of the judge's two classes. It turns an error
    rate into a share of the truth as Rogan and Gladen (1978, Am. J. Epidemiology 107) do, but by the predictive values
    of the verdicts (Tenenbein 1970, JASA 65) and not by sensitivity and specificity. From a random sample these are
    known as well, and no division by a poor judge's advantage over chance widens the interval. It is from the posterior
    of three shares with Jeffreys' prior, which a few labels without an error do not make too short.

    Args:
        labels: Of the labelled questions; from 0 to 1, or differences from -1 to 1. At least 3.
        scores: The judge's, of the same questions.
        everything: The judge's, of all questions.
        ends: The least and the largest value of a label; no mean is beyond them.
    """
    n, total = len(labels), len(everything)
    spread = float(scores.var())
    weight = float(((labels - labels.mean()) * (scores - scores.mean())).mean()) / spread if spread > 0 else 0.0
    mean = float(labels.mean()) + weight * float(everything.mean() - scores.mean())
    rest = labels - weight * scores
    unexplained = max(float(((rest - rest.mean()) ** 2).sum()), _LEAST_SPREAD) / (n - 2)
    explained = weight**2 * float(everything.var()) / total
    half = float(stats.t.ppf(1 - FIGURE_ALPHA, n - 2)) * math.sqrt(unexplained / n + explained)
    low, high = mean - half, mean + half
    if all(is_binary(each) for each in (labels, scores, everything)):
        chance = np.random.default_rng(0)

        def share(ones: float, of: float) -> Floats:
            drawn: Floats = chance.beta(ones + 0.5, of - ones + 0.5, _DRAWS)
            return drawn

        right = share(float((labels * scores).sum()), float(scores.sum()))
        missed = share(float((labels * (1 - scores)).sum()), float((1 - scores).sum()))
        said_yes = share(float(everything.sum()), total)
        low, high = np.quantile(said_yes * right + (1 - said_yes) * missed, [FIGURE_ALPHA, 1 - FIGURE_ALPHA])
    alone = float(labels.var(ddof=1))
    room = (mean / (z_value(FIGURE_ALPHA) + z_value(0.2))) ** 2 - explained
    points, lower, upper = (100 * float(np.clip(each, *ends)) for each in (mean, low, high))
    return CorrectedScore(
        n,
        100 * float(everything.mean()),
        points,
        (lower, upper),
        alone / (float(high - low) / 2 / z_value(FIGURE_ALPHA)) ** 2,
        max(FEWEST_LABELS, math.ceil(unexplained / room)) if room > 0 else None,
    )


def agreement(labels: Floats, scores: Floats) -> float | None:
    """Cohen's kappa of labels and scores, for grades with quadratic weights; None if all are the same one value."""
    from sklearn.metrics import cohen_kappa_score

    values = np.unique(np.round(np.concatenate([labels, scores]), 9))
    if len(values) < 2:
        return None
    ours, theirs = (np.searchsorted(values, np.round(each, 9)) for each in (labels, scores))
    return float(cohen_kappa_score(ours, theirs, weights="quadratic" if len(values) > 2 else None))


def speaks_to_judge(text: str) -> bool:
    """Whether a response has a verdict in it, the marks of a prompt, or tells a judge what to say."""
    return _TO_THE_JUDGE.search(text) is not None
