"""A fusion at equal cost: what the arms are, what they cost, when a fusion pays, and what is asked again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import SKIPS, Adders, Answer, Raw, as_json, models, raw_server

from advisor.advice.arms import cost_in, decide, leads_of, unit_of
from advisor.compare.paired import PairedScores
from advisor.records import ALPHA, Cost, Shown
from advisor.statistics import holm
from benchmarks import fusion
from benchmarks._measure import Figure
from ensemble.common.text import difference, price
from ensemble.models.spec import Price

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

ROOT = Path(__file__).resolve().parents[1]

N = 40
"""Questions of each split."""
PRICES = {"ada": (1, 2), "bob": (1, 3), "cyd": (2, 8)}


@pytest.fixture
def raw() -> Iterator[Raw]:
    with raw_server() as server:
        yield server


def prepare(place: Place, raw: Raw, adders: Adders, *, priced: bool = True, **task: Any) -> tuple[str, ...]:
    raw.answer = adders
    questions = [{"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1)} for n in range(2 * N)]
    place.task(questions, **{"metric": "number", "extract": r"is (\d+)", **task})
    place.pool(
        *(
            f"openai:{raw.url}/v1#{name} name={name} chat_template=never"
            + (f" price_in={PRICES[name][0]} price_out={PRICES[name][1]}" if priced else "")
            for name in SKIPS
        )
    )
    return "select", "--pool", "models.txt", "--task", "task.yaml", "--out", "run", "--fusion", "best", "--arms"


def section(place: Place, *command: str) -> dict[str, Any]:
    ran = place.advisor(*command, "--quiet")
    assert ran.status == 0, ran.err
    found: dict[str, Any] = json.loads((place.folder / "run" / "result.json").read_text(encoding="utf-8"))["arms"]
    return found


def by_arm(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["arm"]: each for each in found["arms"]}


# --- What is asked, and what it costs ---


def test_each_arm_has_the_dollars_of_its_own_calls_and_one_model_spends_what_the_fusion_costs(
    place: Place, raw: Raw
) -> None:
    adders = Adders()
    found = section(place, *prepare(place, raw, adders))
    arms = by_arm(found)
    assert list(arms) == ["single", "fusion", "self_consistency", "vote", "self_fusion", "cheapest"]
    assert (found["unit"], found["n"], found["left_out"]) == ("dollars", N, [])
    assert (arms["single"]["models"], arms["cheapest"]["models"]) == (["cyd"], ["ada"])
    plain = [f"What is {n} + {n + 1}?\nAnswer:" for n in range(N, 2 * N)]

    def dollars(name: str, prompts: Sequence[str]) -> float:
        price = PRICES[name]
        return sum(price[0] * (len(prompt) // 4) + price[1] * 4 for prompt in prompts) / 1e6

    readings = [prompt for _, prompt in adders.read if "before it come" in prompt.lower()]
    of_panel = [prompt for prompt in readings if len(re.findall("It is", prompt)) == 3]
    own = {name: 1000 / N * dollars(name, plain) for name in SKIPS}
    whole = sum(own.values()) + 1000 / N * dollars("cyd", of_panel[:N])
    assert arms["single"]["cost_per_1000"] == pytest.approx(own["cyd"])
    assert arms["cheapest"]["cost_per_1000"] == pytest.approx(own["ada"])
    assert arms["vote"]["cost_per_1000"] == pytest.approx(sum(own.values()))
    assert arms["fusion"]["cost_per_1000"] == pytest.approx(whole)
    draws = arms["self_consistency"]["draws"]
    # As many as the fusion's cost buys, to the nearest whole number.
    assert abs(draws * own["cyd"] - whole) <= own["cyd"] / 2
    assert arms["self_consistency"]["cost_per_1000"] == pytest.approx(draws * own["cyd"])
    drafts = arms["self_fusion"]["draws"]
    assert abs(drafts * own["cyd"] - sum(own.values())) <= own["cyd"] / 2
    assert arms["self_fusion"]["cost_per_1000"] == pytest.approx(whole, rel=0.25)


@pytest.mark.slow
def test_a_second_run_asks_nothing_and_another_panel_only_what_is_new(place: Place, raw: Raw) -> None:
    adders = Adders()
    command = prepare(place, raw, adders)
    first = section(place, *command)
    adders.read.clear()
    assert section(place, *command) == first
    assert adders.read == []
    other = section(place, *command, "--panel", "ada,cyd", "--force")
    readings = [prompt for _, prompt in adders.read if "before it come" in prompt.lower()]
    # The drafts and most draws are there: a cheaper panel buys no more of them.
    assert len(adders.read) == len(readings) <= 2 * N
    assert by_arm(other)["self_consistency"]["draws"] <= by_arm(first)["self_consistency"]["draws"]


@pytest.mark.slow
@pytest.mark.parametrize(("priced", "usage", "unit"), [(False, True, "tokens"), (False, False, "calls")])
def test_without_prices_tokens_are_equal_and_without_usage_calls(
    place: Place, raw: Raw, priced: bool, usage: bool, unit: str
) -> None:
    adders = Adders()
    adders.usage = usage
    found = section(place, *prepare(place, raw, adders, priced=priced))
    arms = by_arm(found)
    assert found["unit"] == unit
    cost = arms["single"]["cost_per_1000"]
    draws = arms["self_consistency"]["draws"]
    assert abs(draws * cost - arms["fusion"]["cost_per_1000"]) <= cost / 2
    if unit == "calls":
        assert (draws, arms["self_fusion"]["draws"]) == (4, 3)
        assert [(each["arm"], each["reason_code"]) for each in found["left_out"]] == [("cheapest", "same")]


@pytest.mark.slow
def test_a_dry_run_says_at_most_what_the_experiment_costs_and_asks_nothing(place: Place, raw: Raw) -> None:
    adders = Adders()
    command = prepare(place, raw, adders)
    planned = json.loads(place.advisor(*command, "--dry-run", "--json").out)
    lines = place.advisor(*command, "--dry-run").out
    for role in ("fusion, written by", "arm, responses of", "arm, own drafts of", "arm, own drafts read by"):
        assert f"\n{role} " in lines
    assert adders.read == []
    section(place, *command)
    spent = sum(PRICES[name][0] * (len(prompt) // 4) + PRICES[name][1] * 4 for name, prompt in adders.read) / 1e6
    assert spent <= planned["total"]["price"] < 4 * spent
    assert re.search(r"fusing       about [\d,]+ calls; those that are stored are not asked again", lines)


@pytest.mark.parametrize(
    ("reads", "writes"), [("ada", "cyd"), pytest.param("cyd", "ada", marks=pytest.mark.second_lane)]
)
def test_a_dry_run_of_arms_says_the_most_whichever_model_the_dev_questions_choose(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch, reads: str, writes: str
) -> None:
    """Of long questions the model costs most whose prompts are dear, and of many calls the cheapest one gets most."""
    prices = {"bob": (1, 1), reads: (9, 1), writes: (1, 9)}
    monkeypatch.setattr("test_arms.PRICES", prices)
    adders = Adders()
    command = (*prepare(place, raw, adders, prompt=f"{'Add. ' * 80}{{{{question}}}}\nAnswer:"), "--fusion", "bob")
    command = (*command, "--panel", "ada,cyd", "--max-new-tokens", "4")
    planned = json.loads(place.advisor(*command, "--dry-run", "--json").out)
    section(place, *command)
    spent = sum(prices[name][0] * (len(prompt) // 4) + prices[name][1] * 4 for name, prompt in adders.read) / 1e6
    assert spent <= planned["total"]["price"] < 2 * spent
    calls = sum(planned["total"][part] for part in ("profiling", "alone", "reading"))
    assert len(adders.read) <= calls


GRADED = {
    "metric": "judge",
    "extract": None,
    "judge": {"mode": "single", "prompt": "Grade: {{ response }}", "max_new_tokens": 8},
}


def graded(path: str, body: dict[str, Any]) -> Answer:
    """Responses with a quality that depends on question and seed, a judge that likes it, and one that does not."""
    if path.endswith("/models"):
        return models(*SKIPS, "likes", "dislikes")
    name, prompt = body["model"], body["prompt"]
    usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 4}
    if name in SKIPS:
        (number,) = re.findall(r"(\d+) \+", prompt) or ["0"]
        text = f" quality {(int(number) + 3 * body.get('seed', 0) if body.get('temperature') else SKIPS[name]) % 10}"
    else:
        quality = int((re.findall(r"quality (\d)", prompt) or ["0"])[-1])
        text = f" [[{1 + (quality if name == 'likes' else 9 - quality)}]]"
    return as_json({"choices": [{"text": text, "finish_reason": "stop"}], "usage": usage})


def test_the_second_judge_chooses_among_the_draws_and_the_first_one_scores_its_choice(place: Place, raw: Raw) -> None:
    command = prepare(place, raw, Adders(), **GRADED)
    raw.answer = graded
    judge = f"openai:{raw.url}/v1#likes chat_template=never price_in=1 price_out=1"
    command = (*command, "--panel", "ada,bob", "--judge", judge)
    found = section(place, *command)
    assert {each["arm"]: each["reason_code"] for each in found["left_out"]} == {
        "best_of_n": "no_judge",
        "vote": "no_vote",
    }
    checks = f"openai:{raw.url}/v1#dislikes chat_template=never price_in=3 price_out=3"
    found = section(place, *command, "--check-judge", checks, "--force")
    best = by_arm(found)["best_of_n"]
    draws = best["draws"]
    assert draws > 1
    # The one that dislikes quality takes the least of it.
    least = [min((n + 3 * seed) % 10 for seed in range(draws)) / 9 for n in range(N, 2 * N)]
    assert best["accuracy"] == pytest.approx(100 * np.mean(least))
    single, fusion_cost = by_arm(found)["single"]["cost_per_1000"], by_arm(found)["fusion"]["cost_per_1000"]
    # Its verdicts cost money, too.
    assert best["cost_per_1000"] > draws * single
    # Draws of equal texts take no verdicts, so their costs differ.
    assert abs(best["cost_per_1000"] - fusion_cost) <= best["cost_per_1000"] / draws


def test_on_a_task_with_references_a_judge_chooses_among_the_draws_and_sees_no_reference(
    place: Place, raw: Raw
) -> None:
    adders, verdicts = Adders(drawn=1), list[str]()
    command = prepare(place, raw, adders)

    def answer(path: str, body: dict[str, Any]) -> Answer:
        """A judge that adds: it prefers the right sum."""
        if path.endswith("/models") or body["model"] != "judge":
            return adders(path, body)
        prompt = body["prompt"]
        verdicts.append(prompt)
        first, second, said = map(int, (re.findall(r"(\d+) \+ (\d+).*It is (\d+)", prompt, re.DOTALL) or [(0,) * 3])[0])
        text = f" [[{10 if said == first + second else 1}]]"
        usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 4}
        return as_json({"choices": [{"text": text, "finish_reason": "stop"}], "usage": usage})

    raw.answer = answer
    judge = f"openai:{raw.url}/v1#judge chat_template=never price_in=1 price_out=1"
    command = (*command, "--panel", "ada,bob,cyd", "--drafts", "3", "--judge", judge)
    planned = json.loads(place.advisor(*command, "--dry-run", "--json").out)
    assert (verdicts, adders.read) == ([], [])
    (chooses,) = (reader for reader in planned["readers"] if reader["model"] == "judge")
    found = section(place, *command)
    arms = by_arm(found)
    best, vote = arms["best_of_n"], arms["self_consistency"]
    # Of some sums one draw in three is right: the judge finds it, and the vote does not.
    assert best["draws"] >= 3
    assert best["accuracy"] == 100 > vote["accuracy"]
    assert best["draws"] < vote["draws"]
    assert abs(best["cost_per_1000"] - arms["fusion"]["cost_per_1000"]) <= best["cost_per_1000"] / best["draws"]
    asked = [prompt for prompt in verdicts if " + " in prompt]
    assert asked
    assert all(
        str(sum(map(int, re.findall(r"(\d+) \+ (\d+)", prompt)[0]))) not in prompt.split("===")[2] for prompt in asked
    )
    spent = sum(PRICES[name][0] * (len(prompt) // 4) + PRICES[name][1] * 4 for name, prompt in adders.read)
    spent += sum(len(prompt) // 4 + 4 for prompt in verdicts)
    assert spent / 1e6 <= planned["total"]["price"]
    assert len(asked) <= chooses["questions"]
    result = json.loads((place.folder / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["judge"] is None
    assert list(result["provenance"]["judges"]) == ["judge"]


@pytest.mark.parametrize("more", [("--check-judge", "ada"), ()])
def test_without_arms_no_judge_is_asked_on_a_task_with_references(
    place: Place, raw: Raw, more: tuple[str, ...]
) -> None:
    command = [each for each in prepare(place, raw, Adders()) if more or each != "--arms"]
    assert "which needs no judge; leave it out (only --arms asks one" in place.refused(
        *command, *(more or ("--judge", "ada"))
    )


# --- What cannot be asked ---


@pytest.mark.slow
def test_arms_that_are_no_arms_are_left_out_with_a_code(place: Place, raw: Raw) -> None:
    command = prepare(place, raw, Adders())
    found = section(place, *command, "--panel", "cyd", "--drafts", "2")
    assert {each["arm"]: each["reason_code"] for each in found["left_out"]} == {
        "vote": "few_voters",
        "self_fusion": "same",
    }
    found = section(place, *prepare(place, raw, Adders(), metric="contains", extract=None), "--force")
    assert {each["arm"]: each["reason_code"] for each in found["left_out"]} == {
        "self_consistency": "no_vote",
        "vote": "no_vote",
    }


def test_where_one_response_costs_as_much_as_the_fusion_there_are_no_more_of_it(place: Place, raw: Raw) -> None:
    command = prepare(place, raw, Adders())
    pool = (place.folder / "models.txt").read_text(encoding="utf-8")
    place.write("models.txt", pool.replace("price_in=2 price_out=8", "price_in=200 price_out=800"))
    found = section(place, *command, "--fusion", "ada", "--panel", "ada,bob")
    reason = next(each for each in found["left_out"] if each["arm"] == "self_consistency")
    assert reason["reason_code"] == "costs_more"
    ran = place.advisor(*command, "--fusion", "ada", "--panel", "ada,bob")
    assert "self consistency was left out: two responses of cyd cost more than the fusion" in ran.err
    assert by_arm(found)["single"]["models"] == ["cyd"]


def test_arms_need_a_fusion(place: Place, raw: Raw) -> None:
    command = [each for each in prepare(place, raw, Adders()) if each not in ("--fusion", "best")]
    assert "--arms has no effect without --fusion; add --fusion" in place.refused(*command)


# --- What it comes to ---


def test_a_fusion_that_only_its_own_drafts_reach_does_not_pay_and_the_report_and_the_terminal_say_so(
    place: Place, raw: Raw
) -> None:
    command = prepare(place, raw, Adders())
    ran = place.advisor(*command)
    found = json.loads((place.folder / "run" / "result.json").read_text(encoding="utf-8"))["arms"]
    arms = by_arm(found)
    assert (arms["fusion"]["accuracy"], arms["self_fusion"]["accuracy"]) == (100, 100)
    assert arms["single"]["accuracy"] < 90
    # With 40 questions equal texts are not shown to be within one point.
    assert (found["pays"], found["decided_by"]) == ("not_yet", "self_fusion")
    assert found["questions_needed"] > N
    assert f"At equal cost: {found['text']}" in ran.out
    assert f"About {found['questions_needed']:,} questions would tell" in found["text"]
    assert "The fusion at equal cost, 40 held-out questions" in ran.err
    page = (place.folder / "run" / "report.html").read_text(encoding="utf-8")
    assert "<h2>Fusion at equal cost</h2>" in page
    # A chart of the gains over the costs, with each arm.
    assert f"Gain over cost of {len(found['arms'])} arms" in page
    for arm in found["arms"]:
        assert f": {difference(arm['gain'])} points, {price(arm['cost_per_1000'])} dollars of 1,000" in page
    assert re.search(r"<bdi>fusion by cyd from its own \d drafts</bdi>", page)
    assert section(place, *command, "--min-gain", "20", "--force")["pays"] == "no"


def compared(
    scores: Sequence[Sequence[float]], clusters: Sequence[str] | None = None, **options: Any
) -> tuple[Shown, int, int | None]:
    """What is said of these scores of arms, the best single model's first and then the fusion's."""
    paired = PairedScores(np.array(scores).T, clusters)
    return decide(paired, 1, leads_of(paired, fusion.ARMS[: len(scores)], 1, ALPHA), ALPHA, **options)


def test_a_fusion_pays_only_if_it_is_better_than_each_other_arm() -> None:
    good, weak = [1.0] * 60, [1.0, 0.0, 1.0] * 20
    assert compared([weak, good, weak, weak])[0] == "yes"
    assert compared([weak, good, weak, good])[:2] == ("not_yet", 3)
    assert compared([weak, good, weak, good], margin=8)[0] == "no"
    assert compared([good, weak, weak, weak])[0] == "no"


def test_the_arms_are_corrected_for_their_number() -> None:
    scores = np.random.default_rng(3).integers(0, 2, (50, 6)).astype(float)
    leads = leads_of(PairedScores(scores), fusion.ARMS, 1, ALPHA)
    found = [lead.p_two_sided or 0.0 for lead, _ in leads.values()]
    assert [p_adjusted for _, p_adjusted in leads.values()] == holm(found)
    assert sorted(leads) == [0, 2, 3, 4, 5]
    # Intervals are wider the more arms there are.
    alone, _ = leads_of(PairedScores(scores[:, :2]), fusion.ARMS[:2], 1, ALPHA)[0]
    assert alone.interval[0] > leads[0][0].interval[0]


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=12, max_size=12), min_size=2, max_size=6))
def test_the_order_of_the_other_arms_changes_nothing(scores: list[list[float]]) -> None:
    first, second = compared(scores), compared([*scores[:2], *reversed(scores[2:])])
    assert (first[0], first[2]) == (second[0], second[2])


def test_questions_that_share_a_passage_count_as_one() -> None:
    weak, good = [0.0, 0.0, 0.0, 1.0] * 5, [1.0] * 20
    assert compared([weak, good])[0] == "yes"
    assert compared([weak, good], [str(n // 10) for n in range(20)])[0] == "not_yet"


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0.01, 100), st.floats(0.01, 100))
def test_costs_are_those_of_the_prices(read: int, written: int, price_in: float, price_out: float) -> None:
    costs, prices = {"a": Cost(1.0, written, prompt_tokens=read)}, {"a": Price(price_in, price_out)}
    assert cost_in("dollars", costs, 3, prices) == pytest.approx((read * price_in + written * price_out) / 1e6)
    assert cost_in("tokens", costs, 3, prices) == pytest.approx(read + written)
    assert cost_in("calls", costs, 3, prices) == 3
    assert (unit_of(costs, prices), unit_of(costs, {}), unit_of({"a": Cost(1.0, written)}, prices)) == (
        "dollars",
        "tokens",
        "calls",
    )
    assert unit_of(costs, {"a": Price(0.0, 0.0)}) == "tokens"


# --- How often it is wrong ---


def test_the_benchmark_keeps_its_promises_and_the_page_has_its_figures() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "fusion.json").read_text(encoding="utf-8"))
    figures = {name: Figure(name, **each) for name, each in kept["figures"].items()}
    promised = [each for each in figures.values() if each.limit]
    assert len(promised) == 10
    assert [each.name for each in promised if not each.held] == []
    page = (ROOT / "docs" / "how-to" / "fusion.md").read_text(encoding="utf-8")
    kinds = ("false_pays_equal", "false_pays_one_equal", "false_pays_not", "pays_gain5", "pays_gain10")
    for kind in kinds:
        row = " | ".join(f"{100 * (figures[f'{kind}_{n}'].value or 0.0):.1f}%" for n in (50, 200, 800))
        assert f"| {row} |" in page


def test_simulated_arms_have_the_accuracy_that_they_should_have() -> None:
    chance = np.random.default_rng(1)
    scores = np.concatenate([fusion.answers([0.5, 0.8, 0.6], 2000, chance, graded=False) for _ in range(5)])
    # The best of four on these very questions is a little better than each of them.
    assert scores.mean(axis=0) == pytest.approx([0.51, 0.8, 0.6], abs=0.02)
    assert np.corrcoef(scores.T)[0, 1] > 0.2
