"""Whether judges prefer models of their family: ``python -m benchmarks.judge_family``, one minute.

*WildBench*: six models with the grades of gpt-4o and of gpt-4-turbo on the same responses. Both are GPT models, so they
cannot show a preference of a family; but each of the other models may be called the judge's own. None is, so a
preference that is found there is a false one. Then one grade more is added to a share of one family's grades. Reads
``../shared/pools``.

*Simulated*: six models, of which one is of the judge's family, and 1,000 questions. The mean difference of the two
judges varies between models with a standard deviation of 0.6 points, about as on WildBench.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from advisor.judge.family import Scores, family_of, family_preferences
from advisor.records import FIGURE_ALPHA
from advisor.runs.schema.judge import FamilyPreference
from advisor.statistics import cluster_interval
from benchmarks._measure import Figure, arguments, progress, tell
from benchmarks.studies._pools import POOLS, read_pool

JUDGES = {"gpt-4o": "wildbench-gpt4o", "gpt-4-turbo": "wildbench-gpt4turbo"}
QUESTIONS, MODELS = 1000, 6
MODEL_SPREAD, QUESTION_SPREAD = 0.006, 0.11
"""Standard deviations of what two judges' scores differ by: of a model's mean, and of a response."""
SHARES = (0.1, 0.2, 0.4)
"""Of responses that get one grade more."""
GRADE = 1 / 9
PREFERRED = (2.0, 4.0)
"""Points that the judge gives its family more."""


def over_questions(judges: Sequence[tuple[str, Scores]], own: str, others: Sequence[str]) -> float:
    """The lower end of an interval of the contrast that is over questions alone, in points."""
    (_, first), (_, second) = judges
    questions = dict.fromkeys(question for question, _ in first)
    contrast = [
        first[each, own] - second[each, own] - np.mean([first[each, name] - second[each, name] for name in others])
        for each in questions
        if all((each, name) in said for name in (own, *others) for said in (first, second))
    ]
    return cluster_interval(np.array(contrast), [*map(str, range(len(contrast)))], FIGURE_ALPHA, (-2.0, 2.0))[0]


def preference(judges: Sequence[tuple[str, Scores]], models: Sequence[str], own: str) -> FamilyPreference:
    """The figures of the first judge, if one of the models is of its family and the second judge of another one."""
    families = {name: "own" if name == own else name for name in models} | {judges[0][0]: "own", judges[1][0]: ""}
    return family_preferences(judges, families, models)[0]


def simulated(chance: np.random.Generator, preferred: float = 0.0) -> list[tuple[str, Scores]]:
    """The scores of two judges, of which the first one gives model 0 some more."""
    shifts = chance.normal(0, MODEL_SPREAD, MODELS)
    shifts[0] += preferred
    gaps = shifts + chance.normal(0, QUESTION_SPREAD, (QUESTIONS, MODELS))
    keys = [(str(question), str(model)) for question in range(QUESTIONS) for model in range(MODELS)]
    return [("a", dict(zip(keys, gaps.ravel().tolist(), strict=True))), ("b", dict.fromkeys(keys, 0.0))]


def found(runs: int, preferred: float = 0.0) -> tuple[float, float]:
    """How often a preference is found: by the interval over questions alone, and by the advisor's."""
    chance, names = np.random.default_rng(0), [str(model) for model in range(MODELS)]
    alone = both = 0
    for _ in range(runs):
        judges = simulated(chance, preferred)
        alone += over_questions(judges, "0", names[1:]) > 0
        both += preference(judges, names, "0").code == "prefers"
    return alone / runs, both / runs


def said_of(pool: str) -> dict[tuple[str, str], float]:
    """A judge's scores of a pool, by question and model."""
    profiles = read_pool(pool).logs.profiles
    return {(answer.id, name): answer.score for name, own in profiles.items() for answer in own.answers}


def planted(said: Scores, models: Sequence[str], share: float) -> dict[tuple[str, str], float]:
    """The scores, with one grade more on a share of some models' responses."""
    chance = np.random.default_rng(0)
    return {
        key: min(1.0, score + GRADE) if key[1] in models and chance.random() < share else score
        for key, score in said.items()
    }


def on_wildbench() -> list[Figure]:
    """The figures of the two pools."""
    judges = [(name, said_of(pool)) for name, pool in JUDGES.items()]
    models = sorted({model for _, model in judges[0][1]} & {model for _, model in judges[1][1]})
    families = {name: family_of(name) for name in (*JUDGES, *models)}
    (real,) = family_preferences(judges, families, models)
    (own,) = real.models
    low, high = real.points_ci or (None, None)
    note = f"gpt-4o against gpt-4-turbo on {own}, {real.n} questions; {real.code}"
    unrelated = [name for name in models if name != own]
    placebos = [
        (preference(each, models, name), over_questions(each, name, [other for other in models if other != name]))
        for name in unrelated
        for each in (judges, judges[::-1])
    ]
    figures = [
        Figure("wildbench_points", real.points, low, high, note=note),
        Figure("wildbench_over_questions", over_questions(judges, own, unrelated), note="its lower end there"),
        Figure(
            "wildbench_false_over_questions",
            sum(alone > 0 for _, alone in placebos),
            note=f"of {len(placebos)} preferences for a model of another family; by questions alone",
        ),
        Figure(
            "wildbench_false",
            sum(found.code == "prefers" for found, _ in placebos),
            limit="at most 1",
            note="the same, by the wider interval",
        ),
    ]
    for share in SHARES:
        # gemma has two models, and no judge is of its family.
        own_models = [name for name in models if families[name] == "gemma"]
        liking = [("gemma", planted(judges[0][1], own_models, share)), judges[1]]
        found = family_preferences(liking, {**families, "gemma": "gemma"}, models)[0]
        note = f"one grade more on {share:.0%} of the responses of {' and '.join(own_models)}; {found.code}"
        low, high = found.points_ci or (None, None)
        figures.append(Figure(f"wildbench_planted_{share:g}", found.points, low, high, note=note))
    return figures


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    runs = 50 if options.quick else 2000
    figures = on_wildbench() if POOLS.is_dir() else []
    for preferred in (0.0, *PREFERRED):
        progress(f"benchmarks.judge_family: a preference of {preferred:g} points")
        alone, both = found(runs, preferred / 100)
        name = f"{preferred:g}"
        figures += [
            Figure(f"found_over_questions_{name}", alone, note="share of pools, by the interval over questions alone"),
            Figure(f"found_{name}", both, limit="" if preferred else "at most 0.035", note="by the wider interval"),
        ]
    tell("judge_family", figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
