"""Whether a judge prefers models of its family, where another judge scored the same responses.

A judge that gives its own family more points may be right: these models may be better. A judge of another family sees
the same texts. So what counts is how much more the one gives than the other, and how much more for the models of its
family than for models of neither family. Models that no judge is related to differ in this, too, as one judge minds
length, and another one mistakes. So they are a sample, as the questions are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from advisor.records import FIGURE_ALPHA
from advisor.runs.schema.judge import FamilyPreference
from advisor.statistics import cluster_interval

FEWEST_OTHERS = 2
"""Models of neither family, which show how much models differ."""

Scores = Mapping[tuple[str, str], float]
"""A judge's, from 0 to 1, by question and model."""


def family_of(name: str) -> str:
    """The first word of a model's name: ``gpt`` of ``openai/gpt-4o-mini``, ``llama`` of ``Llama-3-8B``."""
    last = name.rpartition("/")[2]
    word = re.match(r"[^\W\d_]+", last)
    return (word.group() if word else last).lower()


def family_preferences(
    judges: Sequence[tuple[str, Scores]],
    families: Mapping[str, str],
    candidates: Sequence[str],
    clusters: Mapping[str, str] | None = None,
) -> list[FamilyPreference]:
    """How much more each of two judges gives to models of its family than the other judge does.

    The contrast of a question is the mean difference of the two judges' scores over the models of the family, minus
    that over the models of neither family. Its interval is the wider one of two: over clusters of questions, and over
    models, as a new model's difference is predicted from those of the models of neither family (Student's t).

    Args:
        judges: The names of two judges, and their scores.
        families: The family of each judge and candidate.
        candidates: The models; those without scores by both judges are left out.
        clusters: What questions share with others, by their ids; None if each is alone.

    Returns:
        The preference of each judge that has candidates of its family. Two judges of one family have one entry, for the
        first of them.
    """
    found: list[FamilyPreference] = []
    # Not all candidates answer the held-out questions.
    scored = set.intersection(*({model for _, model in said} for _, said in judges))
    candidates = [each for each in candidates if each in scored]
    for (name, own_scores), (rival, rival_scores) in (judges, judges[::-1]):
        family, other = families[name], families[rival]
        own = [each for each in candidates if families[each] == family]
        others = [each for each in candidates if families[each] not in (family, other)]
        if not own or (found and family == other):
            continue
        questions = dict.fromkeys(question for question, _ in own_scores)
        keys = [[(question, model) for model in (*own, *others)] for question in questions]
        # A question counts if both judges have scored all of these models on it.
        keys = [each for each in keys if all(key in own_scores and key in rival_scores for key in each)]
        figures = FamilyPreference(
            judge=name,
            rival=rival,
            family=family,
            models=tuple(own),
            others=tuple(others),
            code="few_others",
            n=len(keys),
        )
        if len(others) < FEWEST_OTHERS or not keys:
            found.append(figures)
            continue
        gaps = np.array([[own_scores[key] - rival_scores[key] for key in each] for each in keys])
        contrast = gaps[:, : len(own)].mean(axis=1) - gaps[:, len(own) :].mean(axis=1)
        points = 100 * float(contrast.mean())
        labels = [(clusters or {}).get(each[0][0], each[0][0]) for each in keys]
        low, high = cluster_interval(contrast, labels, FIGURE_ALPHA, (-2.0, 2.0))
        spread = float(gaps.mean(axis=0)[len(own) :].std(ddof=1)) * math.sqrt(1 / len(own) + 1 / len(others))
        over_models = 100 * spread * float(stats.t.isf(FIGURE_ALPHA, len(others) - 1))
        ends = min(low, points - over_models), max(high, points + over_models)
        code = "prefers" if ends[0] > 0 else "against" if ends[1] < 0 else "unclear"
        code = "same_family" if family == other else code
        found.append(figures.model_copy(update={"code": code, "points": points, "points_ci": ends}))
    return found
