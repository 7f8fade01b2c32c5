"""Whether a judge prefers models of its family: against a slow computation, simulated judges, two logs, and servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy import stats
from servers import Raw
from test_judge import SINGLE, line, raw, result, serve

from advisor.judge.family import Scores, family_of, family_preferences
from advisor.judge.verdicts import Grade, Match, mean_scores
from advisor.statistics import cluster_interval
from benchmarks.judge_family import found as found_in

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]
__all__ = ["raw"]

MODELS = ("gpt-1", "claude-1", "llama-1", "qwen-1", "gemma-1")
FAMILIES = {name: family_of(name) for name in (*MODELS, "gpt-9", "gpt-8", "claude-9")}


def scores(seed: int, bonus: Sequence[float] = (), questions: int = 40) -> dict[tuple[str, str], float]:
    chance = np.random.default_rng(seed)
    bonus = bonus or [0.0] * len(MODELS)
    return {
        (str(n), name): float(chance.integers(0, 5) / 10 + more)
        for n in range(questions)
        for name, more in zip(MODELS, bonus, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("openai/gpt-4o-mini", "gpt"),
        ("Llama-3-8B-Tulu-330K", "llama"),
        ("Qwen1.5-72B-Chat", "qwen"),
        ("text_davinci_003", "text"),
        ("7b", "7b"),
    ],
)
def test_the_family_is_the_first_word_of_the_name(name: str, family: str) -> None:
    assert family_of(name) == family


def test_the_contrast_is_over_models_of_neither_family_and_the_wider_interval_counts() -> None:
    first, second = scores(1, [0.4, 0, 0, 0, 0]), scores(2)
    del second["3", "qwen-1"]
    mine, theirs = family_preferences([("gpt-9", first), ("claude-9", second)], FAMILIES, MODELS)
    gaps = {name: [first[str(n), name] - second[str(n), name] for n in range(40) if n != 3] for name in MODELS}
    contrast = [gaps["gpt-1"][n] - fmean(gaps[name][n] for name in MODELS[2:]) for n in range(39)]
    assert (mine.models, mine.others, mine.n) == (("gpt-1",), MODELS[2:], 39)
    assert mine.points == pytest.approx(100 * fmean(contrast))
    assert mine.points_ci is not None
    over_questions = cluster_interval(np.array(contrast), [str(n) for n in range(39)], ends=(-2, 2))
    half = 100 * stdev(map(fmean, [gaps[name] for name in MODELS[2:]])) * (1 + 1 / 3) ** 0.5 * stats.t.isf(0.025, 2)
    assert mine.points_ci[0] == pytest.approx(min(over_questions[0], mine.points - half))
    assert mine.points_ci[1] == pytest.approx(max(over_questions[1], mine.points + half))
    assert (theirs.judge, theirs.models, theirs.others) == ("claude-9", ("claude-1",), MODELS[2:])


@pytest.mark.parametrize(("bonus", "code"), [(0.4, "prefers"), (-0.4, "against"), (0.0, "unclear")])
def test_what_the_interval_says(bonus: float, code: str) -> None:
    first = scores(1, [bonus, 0, 0, 0, 0], questions=200)
    mine, _ = family_preferences([("gpt-9", first), ("claude-9", scores(2, questions=200))], FAMILIES, MODELS)
    assert mine.code == code


def test_two_judges_of_one_family_say_nothing_about_it() -> None:
    (found,) = family_preferences([("gpt-9", scores(1, [0.4, 0, 0, 0, 0])), ("gpt-8", scores(2))], FAMILIES, MODELS)
    assert (found.judge, found.code) == ("gpt-9", "same_family")


def test_few_models_of_neither_family_show_no_spread() -> None:
    judges: list[tuple[str, Scores]] = [("gpt-9", scores(1)), ("claude-9", scores(2))]
    assert {each.code for each in family_preferences(judges, FAMILIES, MODELS[:3])} == {"few_others"}
    assert family_preferences(judges, FAMILIES, MODELS[2:]) == []


def test_clusters_of_questions_widen_the_interval() -> None:
    # The same question twenty times, and models that differ little.
    first = {(str(n), name): 0.5 + 0.4 * (name == "gpt-1") * (n % 4 > 0) for n in range(80) for name in MODELS}
    second = dict.fromkeys(first, 0.5)
    judges: list[tuple[str, Scores]] = [("gpt-9", first), ("claude-9", second)]
    (alone, _), (shared, _) = (
        family_preferences(judges, FAMILIES, MODELS, clusters)
        for clusters in (None, {str(n): str(n % 4) for n in range(80)})
    )
    assert alone.code == "prefers"
    assert shared.code == "unclear"


def test_a_preference_is_rarely_found_where_models_only_differ() -> None:
    """Intervals over questions alone find one four times as often as they say."""
    over_questions, over_both = found_in(200)
    assert over_questions > 0.08
    # Two and a half percent, and three standard deviations of 200 runs.
    assert over_both < 0.06


def test_mean_scores_of_comparisons_are_over_both_orders() -> None:
    matches = [Match("1", "a", "b", 1.0), Match("1", "b", "a", 0.5), Match("1", "a", "c", None)]
    assert mean_scores(matches) == {("1", "a"): 0.75, ("1", "b"): 0.25}
    assert mean_scores([Grade("1", "a", 0.3), Grade("1", "b", None)]) == {("1", "a"): 0.3}


# --- The commands ---


def logs(place: Place) -> None:
    for name, own in (("first", scores(1, [0.4, 0, 0, 0, 0], 80)), ("second", scores(2, questions=80))):
        lines = [
            {"id": n, "question": f"Q{n}?", "model": model, "response": f"{model} {n}", "score": score}
            for (n, model), score in own.items()
        ]
        place.write(f"{name}.jsonl", "".join(f"{json.dumps(each)}\n" for each in lines))
        ran = place.advisor("select", "--logs", f"{name}.jsonl", "--out", name, "--quiet")
        assert ran.status == 0, ran.err


def test_two_logs_with_the_scores_of_two_judges(place: Place) -> None:
    logs(place)
    ran = place.advisor("judge", "first", "--check-run", "second", "--judges", "gpt-9,claude-9", "--json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    mine, theirs = found["families"]
    assert (mine["judge"], mine["code"], mine["n"]) == ("gpt-9", "prefers", 80)
    assert (theirs["judge"], theirs["code"]) == ("claude-9", "unclear")
    assert "it prefers its own family" in found["text"][-2]
    assert json.loads(place.advisor("judge", "first", "--json").out)["families"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--check-run", "second"), "the names of the two judges are not known; add --judges FIRST,SECOND"),
        (("--check-run", "second", "--judges", "a,a"), "the names of the two judges are not known"),
        (("--check-run", "second", "--judges", "mistral,phi"), "none is of the family mistral or phi"),
        (("--judges", "a,b"), "--check-run"),
        (("--check-run", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(place: Place, arguments: tuple[str, ...], message: str) -> None:
    logs(place)
    ran = place.advisor("judge", "first", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.line


def test_a_run_with_two_judges_names_the_one_that_prefers_its_family(place: Place, raw: Raw) -> None:
    """The families are those of the lines; the first judge gives its own more than the second one does."""
    serve(
        raw,
        judge=lambda prompt: "[[9]]" if prompt.split(" | ")[1] == "short" else "[[5]]",
        second=lambda _: "[[5]]",
    )
    questions = [{"question": f"What is {n} + {n}?", "answer": str(n)} for n in range(30)]
    place.task(questions, metric="judge", judge=SINGLE)
    place.pool(f"{line(raw, 'short')} family=Acme", line(raw, "medium"), line(raw, "longest"))
    wide = ("--max-gap", "100")
    judges = ("--judge", f"{line(raw, 'judge')} family=acme", "--check-judge", line(raw, "second"))
    ran = place.advisor("select", "--pool", "models.txt", "--task", "task.yaml", *judges, *wide, "--out", "run")
    assert ran.status == 0, ran.err
    found: dict[str, Any] = result(place)["judge"]["splits"][-1]
    (family,) = found["families"]
    assert (family["family"], family["models"], family["code"]) == ("acme", ["short"], "prefers")
    assert family["points"] == pytest.approx(100 * 4 / 9)
    sentence = "it prefers its own family"
    assert sentence in ran.err
    assert any(sentence in each for each in result(place)["advice"]["warnings"])
    assert sentence in (place.folder / "run" / "report.html").read_text(encoding="utf-8")
    assert sentence in place.advisor("judge", "run").out
