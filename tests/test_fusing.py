"""Strategies that take new calls, above all fusion: what the writer reads, what is measured, costs, and is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pools import Place
from servers import SKIPS, Adders, Raw, raw_server
from test_serving_strategies import Says, plan_of, serving, usage
from test_strategies import compare_strategies, profile, splits_of

from advisor.models.response_cache import Response
from advisor.run.asking import Answered, Answerer
from advisor.run.plan import find_strategy
from advisor.strategies import label
from advisor.strategies.fusion import Fusion, own_prompt, prompt_template, with_drafts
from advisor.strategies.schema import strategy_json, strategy_of
from advisor.strategies.self_consistency import TEMPERATURE
from advisor.strategies.strategy import QuestionText, Replay, Single
from advisor.strategies.vote import Vote
from ensemble.decode.settings import Settings
from ensemble.errors import InputError, MemberError
from ensemble.models.spec import Price

pytest_plugins = ["pools"]

TEMPLATE = "{% for r in responses %}<{{ r }}>{% endfor %} {{ prompt }}"
PLAIN = prompt_template("{{ responses | join('|') }}")
N = 40
"""Questions of each split."""


def fusion(panel: Sequence[str], writer: str, draws: int = 1, rounds: int = 1) -> Fusion:
    return Fusion.of(panel, writer, draws, rounds, TEMPLATE)


def answered(
    models: Sequence[Any], strategy: Fusion, prompt: Any = "Why?", settings: Settings = Settings()
) -> Answered:
    fields = {
        each.name: getattr(strategy, each.name) for each in dataclasses.fields(strategy) if each.name != "members"
    }
    return asyncio.run(Answerer(plan_of("fusion", models, **fields), models).answer(prompt, settings))


def members(*texts: str | Exception) -> list[Says]:
    return [Says("abc"[number], text) for number, text in enumerate(texts)]


# --- What the writer reads ---


@given(st.text(max_size=20), st.lists(st.none() | st.text("xyz", min_size=1, max_size=3), max_size=5))
def test_the_writer_reads_each_draft_once_and_none_that_failed(prompt: str, drafts: list[str | None]) -> None:
    read = with_drafts(PLAIN, QuestionText(prompt, ""), drafts).split("|")
    assert Counter(read) == Counter([draft for draft in drafts if draft is not None] or [""])


def test_a_place_says_nothing_of_who_wrote_the_draft() -> None:
    firsts = Counter(with_drafts(PLAIN, QuestionText(f"question {n}", ""), "abc")[0] for n in range(600))
    # Each is first on 200 questions; six standard deviations are 69.
    assert all(abs(count - 200) < 69 for count in firsts.values()), firsts
    assert len({with_drafts(PLAIN, QuestionText("one question", ""), "abc") for _ in range(5)}) == 1


def test_the_writer_reads_the_last_message_with_the_drafts_and_no_names() -> None:
    asked = members("one", "two", "three")
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"}]
    made = answered(asked, fusion("ab", "c"), chat)
    assert (made.response.text, made.model, made.calls) == ("three", "c", 3)
    ((read, _),) = asked[2].asked
    assert read[0] == chat[0]
    assert read[1]["role"] == "user"
    assert sorted(re.findall("<(.*?)>", read[1]["content"])) == ["one", "two"]
    assert read[1]["content"].endswith(" Why?")


def test_a_writer_of_the_panel_answers_and_then_writes() -> None:
    asked = members("one", "two")
    answered(asked, fusion("ab", "a"))
    (first, _), (second, _) = asked[0].asked
    assert first == "Why?"
    assert sorted(re.findall("<(.*?)>", second)) == ["one", "two"]


def test_several_drafts_of_one_model_are_drawn_with_seeds() -> None:
    asked = members("one")
    made = answered(asked, fusion("a", "a", draws=3), settings=Settings(9, seed=4))
    ways = [(settings.temperature, settings.seed) for _, settings in asked[0].asked]
    assert ways == [(TEMPERATURE, 4), (TEMPERATURE, 5), (TEMPERATURE, 6), (0.0, 4)]
    assert made.calls == 4


class Counts(Says):
    """A member that says how often it was asked, and fails one time."""

    def __init__(self, name: str, fails: int | None = None) -> None:
        super().__init__(name, "")
        self._fails = fails

    async def reply(self, prompt: Any, settings: Settings) -> Response:
        self.says = f"{self.name}{len(self.asked)}" if len(self.asked) != self._fails else MemberError("gone")
        return await super().reply(prompt, settings)


def test_in_a_second_round_the_panel_reads_the_drafts_and_an_earlier_one_replaces_one_that_failed() -> None:
    asked = [Counts("a"), Counts("b", fails=1), Counts("c")]
    answered(asked, fusion("ab", "c", rounds=2))
    second = [sorted(re.findall("<(.*?)>", each.asked[1][0])) for each in asked[:2]]
    assert second == [["a0", "b0"]] * 2
    assert sorted(re.findall("<(.*?)>", asked[2].asked[0][0])) == ["a1", "b0"]


def test_a_draft_that_failed_is_left_out_and_without_a_writer_the_first_draft_counts() -> None:
    asked = members(MemberError("gone"), "two", "three")
    assert answered(asked, fusion("ab", "c")).response.text == "three"
    assert re.findall("<(.*?)>", asked[2].asked[0][0]) == ["two"]
    made = answered(members("one", "two", MemberError("gone")), fusion("ab", "c"))
    assert (made.response.text, [name for name, _ in made.failures]) == ("one", ["c"])
    made = answered(members(MemberError("gone"), "two", MemberError("gone")), fusion("ab", "c"))
    assert made.response.text == "two"
    with pytest.raises(MemberError, match="no model answered"):
        answered(members(*[MemberError("gone")] * 3), fusion("ab", "c"))


def test_calls_of_functions_are_refused_before_a_model_is_asked() -> None:
    asked = members("one", "two")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    with (
        serving("fusion", asked, panel=("a", "b"), writer="b") as (_, client),
        pytest.raises(openai.BadRequestError, match="leave out tools"),
    ):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Why?"}], tools=tools)  # type: ignore[arg-type]
    assert not any(each.asked for each in asked)


def test_a_stream_has_the_text_of_the_writer_in_pieces() -> None:
    text = "word " * 30
    with serving("fusion", members("one", "two", text), panel=("a", "b"), writer="c") as (_, client):
        chunks = list(client.completions.create(model="tiny", prompt="Why?", stream=True))
        whole = client.completions.create(model="tiny", prompt="Why?")
    pieces = [choice.text for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == text
    assert len(pieces) > 1
    assert usage(whole)["calls"] == 3
    assert usage(whole)["members"] == ["c"]


def test_a_fusion_is_written_and_read() -> None:
    for strategy in (fusion("ab", "c"), fusion("abc", "a", rounds=2), fusion("a", "a", draws=3)):
        assert strategy_of(strategy_json(strategy), "x", "y") == strategy
        assert strategy.title(strategy.members).startswith("Fusion by ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": ["b", "a", "c"]}, "members should be the models of panel, and then the writer"),
        ({"writer": "d"}, "members should be the models of panel, and then the writer"),
        ({"panel": []}, "panel should"),
        ({"draws": 2, "rounds": 2}, "rounds should be 1 where each model writes several drafts"),
        ({"rounds": 0}, "rounds should"),
        ({"prompt": "{{ responses }"}, "prompt should be a template over prompt and responses"),
        ({"prompt": "{{ prompt }}"}, "prompt should be a template over prompt and responses"),
        ({"prompt": "{{ responses }}{{ question }}{{ prompt }}"}, "names the field 'question'"),
    ],
)
def test_a_fusion_that_cannot_run_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        strategy_of({**strategy_json(fusion("ab", "c")), **changes}, "result.json", "run it again")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- Named by --strategy ---


FUSIONS = st.builds(
    lambda panel, writer, draws, rounds: fusion(panel, writer, draws, 1 if draws > 1 else rounds),
    st.permutations("abc").flatmap(lambda names: st.integers(1, 3).map(lambda n: names[:n])),
    st.sampled_from("abcd"),
    st.integers(1, 3),
    st.integers(1, 3),
)


@given(st.lists(FUSIONS, max_size=8, unique=True))
def test_each_of_several_fusions_has_a_name_that_finds_it(fusions: list[Fusion]) -> None:
    strategies = [Single(("a",)), Vote(("a", "b", "c")), Vote(("b", "a", "d")), *fusions]
    for strategy in strategies:
        assert find_strategy(label(strategy, strategies), strategies, "x") == strategy
    if fusions:
        assert find_strategy("fusion", strategies, "x") == fusions[0]


# --- Compared ---


def test_a_fusion_has_its_own_answers_and_the_price_of_all_its_calls() -> None:
    rights = {"a": "11121", "b": "12311", "c": "31141"}
    dev, held_out = splits_of(rights, rights)
    both = fusion("ab", "c"), fusion("abc", "a")
    made = profile("fusion", held_out.task, "1", seconds=0.1)
    paid = dataclasses.replace(made, answers=tuple(dataclasses.replace(a, prompt_tokens=100) for a in made.answers))
    written = {
        each: Replay(made, calls=[([name], paid, int(name == each.writer)) for name in each.members]) for each in both
    }
    prices = {name: Price(1.0, 10.0) for name in "abc"}
    judged = dataclasses.replace(held_out, written=written, prices=prices)
    found = {each.strategy: each for each in compare_strategies(dev, judged, can_vote=True).results}
    assert both[1] in found
    one = found[both[0]]
    row = one.figures
    costs = row.calls_per_question, row.tokens_per_question, row.seconds_per_question
    assert costs == pytest.approx((3.0, 30.0, 0.3))
    # Two drafts at the same time, then the writer.
    assert (row.seconds_median, row.seconds_p95) == (pytest.approx(0.2), pytest.approx(0.2))
    assert row.price_per_1000 == pytest.approx(1000 / N * 3 * (4000 * 1.0 + 400 * 10.0) / 1e6)
    assert one.replay.profile.accuracy == 100
    assert one.gain.points > 0


def test_a_fusion_is_tested_with_the_sets_that_write_and_leaves_the_votes_alone() -> None:
    rights = {"a": "11122", "b": "12311", "c": "31141"}
    dev, held_out = splits_of(rights, rights)
    strategies = [fusion("ab", "c"), fusion("abc", "a")]
    results = []
    for count in range(3):
        written = {each: Replay(profile("fusion", held_out.task, "1112")) for each in strategies[:count]}
        judged = dataclasses.replace(held_out, written=written)
        results.append({each.strategy: each for each in compare_strategies(dev, judged, can_vote=True).results})
    none, one, two = results
    for strategy, own in none.items():
        assert two[strategy].figures.p_adjusted == own.figures.p_adjusted
    alone, first = (each[strategies[0]].figures.p_adjusted for each in (one, two))
    assert alone is not None
    # Holm: two equal p-values are doubled.
    assert first == pytest.approx(min(1.0, 2 * alone))


# --- A run on servers with prices ---


@pytest.fixture
def server() -> Iterator[tuple[Raw, Adders]]:
    with raw_server() as raw:
        raw.answer = sums = Adders()
        yield raw, sums


def prepare(place: Place, raw: Raw) -> tuple[str, ...]:
    place.task(
        [{"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1)} for n in range(2 * N)],
        metric="number",
        extract=r"is (\d+)",
        name="sums",
    )
    place.pool(
        *(
            f"openai:{raw.url}/v1#{name} name={name} chat_template=never price_in=1 price_out={n}"
            for n, name in enumerate(SKIPS, start=2)
        )
    )
    return ("select", "--pool", "models.txt", "--task", "task.yaml", "--out", "run")


def fusion_of(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in place.json()["strategies"] if each["strategy"] == "fusion")
    return found


def test_what_is_measured_is_what_runs_and_what_it_costs(place: Place, server: tuple[Raw, Adders]) -> None:
    raw, sums = server
    command = prepare(place, raw)
    planned = place.advisor(*command, "--fusion", "cyd panel=ada,bob", "--dry-run")
    assert f"writing      at most {N} calls" in planned.out
    assert " for single models and the fusion\n" in planned.out
    planned = place.advisor(*command, "--fusion", "cyd panel=ada,bob", "--dry-run", "--json")
    (reader,) = json.loads(planned.out)["readers"]
    ran = place.advisor(*command, "--fusion", "cyd panel=ada,bob", "--quiet")
    assert ran.status == 0, ran.err
    found = fusion_of(place)
    own = {key: found[key] for key in ("members", "panel", "writer", "draws", "rounds", "prompt")}
    assert own == {
        "members": ["ada", "bob", "cyd"],
        "panel": ["ada", "bob"],
        "writer": "cyd",
        "draws": 1,
        "rounds": 1,
        "prompt": own_prompt(),
    }
    assert (found["accuracy"], found["calls_per_question"], found["probability"] > 0.9) == (100, 3, True)
    readings = [prompt for name, prompt in sums.read if "before it come" in prompt.lower()]
    assert len(readings) == N
    assert not any(name in prompt for prompt in readings for name in ("ada", "bob", "cyd"))
    # The panel reads the held-out prompts, the writer the readings.
    plain = [f"What is {n} + {n + 1}?\nAnswer:" for n in range(N, 2 * N)]
    drafts = sum(len(prompt) // 4 + 4 * price for price in (2, 3) for prompt in plain)
    written = sum(len(prompt) // 4 + 4 * 4 for prompt in readings)
    assert found["price_per_1000"] == pytest.approx(1000 / N * (drafts + written) / 1e6)
    assert (reader["model"], reader["questions"]) == ("cyd", N)
    assert written <= 1e6 * reader["price"] < 2 * written
    # The prompts of the evaluation, byte for byte.
    sums.read.clear()
    ran = place.advisor("run", "run", f"What is {N} + {N + 1}?", "--allow-server", raw.url, "--strategy", "fusion")
    assert (ran.status, ran.out) == (0, f" It is {2 * N + 1}.\n")
    assert sums.read[-1] in [("cyd", prompt) for prompt in readings]
    assert {name for name, _ in sums.read[:-1]} == {"ada", "bob"}
    # The recommended one is a fusion, so the run has its texts, and the report shows them.
    samples = place.samples()
    taken = [each["recommended"] for each in samples if each["split"] == "held_out"]
    assert {each["model"] for each in taken} == {"cyd"}
    assert taken[0]["text"] == f" It is {2 * int(samples[N]['prompt'].split()[2]) + 1}."
    assert "E for <bdi>Fusion by cyd, 2 models</bdi>" in (place.folder / "run" / "report.html").read_text()


def test_at_equal_cost_the_best_model_is_asked_as_often_and_only_with_the_option(
    place: Place, server: tuple[Raw, Adders]
) -> None:
    raw, sums = server
    command = (*prepare(place, raw), "--force", "--quiet")
    ran = place.advisor(*command)
    assert ran.status == 0 and "At equal cost" not in ran.out
    rows = {each["strategy"]: each for each in place.json()["strategies"]}
    assert "self_consistency" not in rows and rows["learned_vote"]["over_one_model"] is None
    planned = place.advisor(*command, "--equal-cost", "--dry-run", "--json")
    (reader,) = json.loads(planned.out)["readers"]
    # The most voters, and the questions of both splits.
    assert (reader["model"], reader["questions"]) == ("cyd", 5 * 2 * N)
    sums.read.clear()
    assert place.advisor(*command, "--equal-cost").status == 0
    assert Counter(name for name, _ in sums.read) == {"cyd": 3 * 2 * N}
    ran = place.advisor(*command, "--equal-cost")
    assert len(sums.read) == 3 * 2 * N
    rows = {each["strategy"]: each for each in place.json()["strategies"]}
    drawn, vote = rows["self_consistency"], rows["learned_vote"]
    assert (drawn["members"], drawn["draws"], drawn["calls_per_question"]) == (["cyd"], 3, 3)
    # This server gives one answer however often it is asked.
    gain = vote["over_one_model"]["3 responses of cyd"][0]
    assert (drawn["measured_gain"], gain) == (0, pytest.approx(vote["measured_gain"]))
    (told,) = [line for line in ran.out.splitlines() if line.startswith("At equal cost: ")]
    begin = f"At equal cost: This is not shown to pay against 3 responses of cyd (+{gain:.1f} points, 90% interval "
    assert told.startswith(begin) and "; 3 calls and " in told


def test_at_equal_cost_the_writer_of_a_fusion_reads_as_many_drafts_of_its_own(
    place: Place, server: tuple[Raw, Adders]
) -> None:
    raw, sums = server
    command = (*prepare(place, raw), "--fusion", "cyd panel=ada,bob", "--equal-cost", "--quiet")
    planned = place.advisor(*command, "--dry-run", "--json")
    written = [each["questions"] for each in json.loads(planned.out)["readers"] if "written" in each["role"]]
    assert written == [N, N]
    ran = place.advisor(*command)
    assert ran.status == 0, ran.err
    panel, own = sorted(
        (each for each in place.json()["strategies"] if each["strategy"] == "fusion"), key=lambda each: each["draws"]
    )
    assert (own["panel"], own["writer"], own["draws"]) == (["cyd"], "cyd", 2)
    assert own["calls_per_question"] == panel["calls_per_question"] == 3
    # Where both have the same drafts, the reading is stored already. This server always answers one well.
    assert N < sum("before it come" in prompt.lower() for _, prompt in sums.read) <= 2 * N
    assert panel["over_one_model"]["Fusion by cyd of 2 drafts, its own"][0] == own["accuracy"] - panel["accuracy"] == 0
    assert set(panel["over_one_model"]) == {"Fusion by cyd of 2 drafts, its own", "3 responses of cyd"}


def test_it_is_checked_and_exported(place: Place, server: tuple[Raw, Adders]) -> None:
    raw, _ = server
    command = prepare(place, raw)
    assert place.advisor(*command, "--fusion", "best", "--quiet").status == 0
    fresh = [{"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1)} for n in range(500, 740)]
    place.task(fresh, metric="number", extract=r"is (\d+)", name="sums")
    named = ("--strategy", "fusion", "--quiet")
    ran = place.advisor("check", "run", "--task", "task.yaml", "--allow-server", raw.url, "--json", *named)
    found = json.loads(ran.out)
    assert (ran.status, found["strategy"], found["accuracy"], found["verdict"]) == (0, "fusion", 100, "better")
    assert place.advisor("export", "run", "folder", "--strategy", "fusion").status == 0
    ran = place.advisor("run", "folder", "What is 3 + 4?", "--allow-server", raw.url)
    assert ran.out == " It is 7.\n"
    refused = place.advisor("check", "run", "--logs", "run", *named)
    assert "write a new text together (fusion), and logs have the answers of models alone" in refused.line


def test_rounds_drafts_and_a_prompt_are_asked_as_the_options_say(place: Place, server: tuple[Raw, Adders]) -> None:
    raw, sums = server
    command = prepare(place, raw)
    place.write("writer.j2", f"before it come {TEMPLATE}\n")
    ran = place.advisor(*command, "--fusion", "ada rounds=2 prompt=writer.j2", "--quiet")
    assert ran.status == 0, ran.err
    readings = Counter(name for name, prompt in sums.read if prompt.startswith("before it come <"))
    # Where the panel writes the same again, the last prompt is stored already.
    assert readings["bob"] == readings["cyd"] == N < readings["ada"] < 2 * N
    assert fusion_of(place)["calls_per_question"] == 7
    sums.read.clear()
    own = ("--fusion", "ada panel=ada drafts=3")
    ran = place.advisor(*command[:-1], "own", *own, "--quiet")
    assert ran.status == 0, ran.err
    assert Counter(name for name, _ in sums.read) == {"ada": 4 * N}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fusion", "four"), "--fusion: no candidate has the name four; their names are ada, bob, cyd"),
        (("--fusion", "ada panel=ada,four"), "--fusion: no candidate has the name four"),
        (("--fusion", "ada drafts=0"), "--fusion: drafts=0: give a number from 1 to 100"),
        (("--fusion", "ada rounds=2 drafts=2"), "rounds=2: models that write several drafts read none; leave one out"),
        (("--fusion", "ada prompt=gone.j2"), "prompt gone.j2: it cannot be read"),
        (
            ("--fusion", "ada prompt=task.yaml"),
            "task.yaml: the template must use responses, and prompt; add what is missing",
        ),
        (("--fusion", "ada panel=,"), "--fusion: panel: no name is given; give candidates, or leave it out"),
        (("--fusion", "ada bob"), "--fusion: bob: give panel=NAME,... drafts=N rounds=N prompt=FILE"),
        (("--fusion", ""), "--fusion '': give a candidate or best"),
        (("--fusion", "ada", "--no-verify"), "--fusion has no effect with --no-verify"),
    ],
)
def test_options_that_name_no_fusion_are_refused_in_one_line(
    place: Place, server: tuple[Raw, Adders], options: tuple[str, ...], message: str
) -> None:
    assert message in place.refused(*prepare(place, server[0]), *options)


def test_options_of_a_choice_are_not_written(place: Place, server: tuple[Raw, Adders]) -> None:
    command = prepare(place, server[0])
    records = [{"question": f"{n} is even?", "answer": "AB"[n % 2]} for n in range(12)]
    place.task(records, prompt="{{question}}", choices=["A", "B"], metric="choice")
    assert "this task chooses options by their likelihood" in place.refused(*command, "--fusion", "ada")
