"""Win rates from comparisons of two responses: the Bradley-Terry model, with the effect of the order.

The model (Bradley and Terry 1952, Biometrika 39; the order as in Agresti, "Categorical Data Analysis", section 11.6):
the log-odds that the response shown first wins are the strength of the first model, minus that of the second one, plus
an effect of the first position that is the same in all matches. This is a logistic regression, fitted by maximum
likelihood. A tie counts as half a win for each, so strengths describe expected scores.

Only differences of strengths have a meaning. So they are told as win rates: the expected score of a model against all
candidates, in points, without the effect of the order. As in the scores of :mod:`advisor.judge.judge`, a model ties
with itself, so the mean over the candidates is 50. If all meet equally often and the order has no effect, win rates are
these scores; otherwise they allow for the opponents and for the order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import expit

from advisor.judge.prompts import Verdict
from advisor.records import FIGURE_ALPHA, TOLERANCE
from advisor.run.figures import JudgedModel, JudgedSplit
from advisor.statistics import Floats, percentile_interval

_RESAMPLES = 1000
_LEAST = 1e-3
"""The least weight of an imaginary win: a draw of nearly 0 would make a strength nearly infinite."""
_MOST_STEPS = 100


def bradley_terry(
    matches: Sequence[Verdict],
    settled: Sequence[Verdict] = (),
    candidates: Collection[str] | None = None,
    seed: int = 0,
    clusters: Mapping[str, str] | None = None,
) -> JudgedSplit:
    """Estimate strengths from matches.

    Each model gets one imaginary tie against an average model, and the order one that it decides both ways. So all
    figures are finite, even if a model wins all of its matches. This is the log-F(1, 1) prior of Greenland and
    Mansournia (2015, Statistics in Medicine 34, section 4).

    The intervals come from a bootstrap over clusters of questions, because the matches of a question share its
    responses, and the turns of a conversation share what was said before: each cluster gets a random weight (Rubin
    1981, Annals of Statistics 9). The imaginary matches are as many as those of a cluster there, and have random
    weights, too (Fong, Lyddon and Holmes 2019, section 2.3). So an interval has a width even if no match was lost. For
    two models with one match a question it is Jeffreys' interval.

    Args:
        matches: The matches; those without a verdict are left out.
        settled: Matches that needed no judge, so that the order has no effect on them.
        candidates: The models that win rates are against; None for all that have a match.
        seed: Of the bootstrap.
        clusters: What each question shares with others, by its id; a question that is not there is a cluster alone.

    Returns:
        The models with their strengths as log-odds, whose average is 0; none without a match. And the win rate of the
        first one of two equal models, and the groups that met, directly or over others.
    """
    # A verdict that cannot be read says nothing. As a tie it would pull all strengths together.
    judged = [match for match in matches if match.score is not None]
    decided = [*judged, *settled]
    models = sorted({name for match in decided for name in (match.first, match.second)})
    if not models:
        return JudgedSplit(equal_first_wins=50.0, equal_first_wins_ci=(0.0, 100.0))
    place = {model: n for n, model in enumerate(models)}
    ends = np.array([(place[match.first], place[match.second]) for match in decided])
    has_order = np.arange(len(decided)) < len(judged)
    score = np.array([match.score for match in decided], dtype=np.float64)
    pairs, pair = np.unique(np.column_stack((ends, has_order)), axis=0, return_inverse=True)
    # Turns of a conversation as questions alone would narrow the intervals without saying more about the models.
    shared = clusters or {}
    labels, cluster = np.unique([shared.get(match.question, match.question) for match in decided], return_inverse=True)
    # The scores of the first and of the second one in each cluster, by pair.
    won = np.zeros((2, len(labels), len(pairs)))
    np.add.at(won[0], (cluster, pair), score)
    np.add.at(won[1], (cluster, pair), 1 - score)

    design = np.zeros((len(pairs), len(models) + 1))
    numbers = np.arange(len(pairs))
    design[numbers, pairs[:, 0]], design[numbers, pairs[:, 1]], design[:, -1] = 1, -1, pairs[:, 2]
    # The imaginary matches are of the size of a cluster, because a cluster is the unit that is drawn: with single
    # ones the interval of a model that wins all of many matches in few clusters would be far too short.
    played = np.bincount(ends.ravel(), minlength=len(models))
    takes_part = (np.abs(design[:, :-1]).T @ won.sum(axis=0).T > 0).sum(axis=1)
    # Scores near a half, as likelihoods give them, vary less than wins and losses, so the imaginary ones count less.
    decided_share = (((2 * score - 1) ** 2).sum() + 1) / (len(score) + 1)
    per_cluster = decided_share * np.append(played / takes_part, played.mean() / takes_part.mean())

    generator = np.random.default_rng(seed)
    weights = generator.exponential(size=(_RESAMPLES, len(labels)))
    imaginary = per_cluster * generator.gamma(0.5, size=(2, _RESAMPLES, len(models) + 1))
    estimate = _fit(design, won.sum(axis=1)[:, None], np.full((2, 1, len(models) + 1), 0.5))
    drawn = _fit(design, weights @ won, np.maximum(imaginary, _LEAST))

    known = {*models}.intersection(models if candidates is None else candidates)
    # Without a candidate that met another model, win rates are against all.
    against = [n for n, model in enumerate(models) if model in (known or models)]
    rates, spread = _win_rates(estimate[:, :-1], against)[0], _win_rates(drawn[:, :-1], against)
    scores = np.bincount(ends.ravel(), np.column_stack((score, 1 - score)).ravel(), len(models)) / played
    # The imaginary ties leave the mean near 0, but not at 0.
    log_odds = estimate[0, :-1] - estimate[0, :-1].mean()
    strengths = [
        JudgedModel(
            model=model,
            matches=int(played[n]),
            score=100 * float(scores[n]),
            log_odds=float(log_odds[n]),
            win_rate=float(rates[n]),
            win_rate_ci=percentile_interval(spread[:, n], FIGURE_ALPHA),
        )
        for n, model in enumerate(models)
    ]
    count, group = connected_components(coo_array((np.ones(len(pairs)), pairs[:, :2].T), shape=(len(models),) * 2))
    return JudgedSplit(
        # Rounded, so that equal models are in the order of their names and not of rounding errors.
        models=tuple(sorted(strengths, key=lambda each: (-round(each.win_rate or 0.0, 9), each.model))),
        equal_first_wins=100 * float(expit(estimate[0, -1])),
        equal_first_wins_ci=percentile_interval(100 * expit(drawn[:, -1]), FIGURE_ALPHA),
        groups=tuple(tuple(model for model, own in zip(models, group, strict=True) if own == n) for n in range(count)),
    )


def _fit(design: Floats, won: Floats, imaginary: Floats) -> Floats:
    """Fit the strengths, and the effect of the first position, which is the last column.

    Newton's method for all resamples at once. For 20 models it is over ten times faster than a logistic regression of
    scikit-learn for each resample, which also warns of weights that are nearly 0.

    Args:
        design: Pairs by parameters: 1 for the first model and for the order, -1 for the second model.
        won: First or second one, by resamples, by pairs: the weight of its wins.
        imaginary: The same of each parameter's imaginary matches.

    Returns:
        Resamples by parameters, in log-odds.
    """
    # A row for each pair, and one for each parameter's imaginary matches.
    rows = np.vstack((design, np.eye(design.shape[1])))
    wins, losses = np.concatenate((won, imaginary), axis=2)
    squares = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    log_odds = np.zeros((len(wins), rows.shape[1]))
    for _ in range(_MOST_STEPS):
        chance = expit(log_odds @ rows.T)
        slope = (wins - (wins + losses) * chance) @ rows
        curvature = ((wins + losses) * chance * (1 - chance)) @ squares
        step = np.linalg.solve(curvature.reshape(*slope.shape, -1), slope[:, :, None])[:, :, 0]
        # Far from the solution a whole step may go beyond it, and further each time.
        largest = np.abs(step).max(axis=1, keepdims=True)
        log_odds += step / np.maximum(largest, 1)
        if largest.max() < TOLERANCE:
            break
    return log_odds


def _win_rates(log_odds: Floats, against: Sequence[int]) -> Floats:
    """The mean expected scores against some of the models, in points: resamples by models, as the strengths."""
    rates: Floats = expit(log_odds[:, :, None] - log_odds[:, None, against]).mean(axis=2)
    return 100 * rates
