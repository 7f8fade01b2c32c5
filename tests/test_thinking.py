"""Thinking and answer apart: the forms of the families, servers, logs, and that no tag in an answer is thinking."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import Raw, as_json, completion, models, raw_server
from test_pipeline import plan_of_pool

from advisor.choose.rules import select
from advisor.compare.pairs import pairs_of_standings
from advisor.logs.inspect import _thoughts
from advisor.logs.join import join_logs
from advisor.logs.record import LogOptions
from advisor.pool.pool_file import read_line
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Answer, Limits, Profile, Standing, compared_lengths, length_ratio, within
from advisor.response_cache import Response, ResponseCache, apart
from advisor.servers.completions import generate
from advisor.statistics import paired_intervals
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.models.thinking import FAMILIES, ThinkingReader, ThinkingTags
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import ServerClient

if TYPE_CHECKING:
    from pools import Place
    from servers import Answer

pytest_plugins = ["pools"]

TAGS = [text for form in FAMILIES for text in (form.opening, form.closing)]
WORDS = st.text("ab 1\n", min_size=1, max_size=20)
SECTION = st.sampled_from(FAMILIES)


def read(text: str, *, cut: bool = False) -> tuple[str | None, str]:
    return ThinkingReader([(text, cut)]).read(text, cut=cut)


@pytest.mark.parametrize("form", FAMILIES, ids=lambda form: form.opening.strip())
def test_each_family_has_its_thinking_apart(form: ThinkingTags) -> None:
    assert read(f"\n{form.opening}2 + 2 is 4{form.closing}\n\nIt is 4.") == ("2 + 2 is 4", "It is 4.")


def test_harmony_leaves_no_control_text() -> None:
    text = "<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>"
    assert read(text) == ("2 + 2", "It is 4.")


@pytest.mark.parametrize("form", [form for form in FAMILIES if not form.needs_closing], ids=lambda f: f.opening.strip())
def test_a_response_that_is_cut_off_while_thinking_has_no_answer(form: ThinkingTags) -> None:
    assert read(f"{form.opening}so the answer is 4, or", cut=True) == ("so the answer is 4, or", "")


def test_an_empty_section_is_no_thinking() -> None:
    assert read("<think>\n\n</think>\n\nIt is 4.") == (None, "It is 4.")


def test_a_section_that_a_budget_closed_twice_leaves_no_tag() -> None:
    assert read("<think>hm</think>\n\n</think>\n\nIt is 4.") == ("hm", "It is 4.")


def test_an_opening_tag_of_the_template_is_known_by_the_other_responses() -> None:
    texts = [("hm\n</think>\n\nIt is 4.", False), ("let me see\n</think>\nFive", False), ("and then", True)]
    reader = ThinkingReader(texts)
    parts = [reader.read(text, cut=cut) for text, cut in texts]
    assert parts == [("hm", "It is 4."), ("let me see", "Five"), ("and then", "")]


def test_one_closing_tag_among_many_answers_is_part_of_its_answer() -> None:
    texts = [("It is 4.", False)] * 5 + [("</think>\n\nends the section", False)]
    reader = ThinkingReader(texts)
    assert reader.read(texts[-1][0]) == (None, texts[-1][0])


def test_the_tags_of_a_user_replace_the_known_ones() -> None:
    tags = read_line("org/model thinking=<plan>...</plan>", "pool").thinking
    reader = ThinkingReader([("<plan>hm</plan>4", False)], tags)
    assert reader.read("<plan>hm</plan>4") == ("hm", "4")
    assert reader.read("<think>hm</think>4") == (None, "<think>hm</think>4")


@pytest.mark.parametrize("value", ["<think>", "...", "<a>...<a>", "<a>..."])
def test_tags_that_are_no_pair_are_refused(value: str) -> None:
    with pytest.raises(InputError, match="two different tags with three dots"):
        read_line(f"org/model thinking={value}", "pool:1")


@given(st.lists(st.one_of(WORDS, st.sampled_from(TAGS)), min_size=1).map("".join), WORDS.filter(str.strip))
def test_tags_within_an_answer_are_no_thinking(rest: str, begin: str) -> None:
    """A response that begins with a word, among other answers of the model, stays as it is."""
    text = begin + rest
    others = [("It is 4.", False)] * 3
    assert ThinkingReader([*others, (text, False)]).read(text) == (None, text)


@given(SECTION, WORDS.filter(str.strip), st.lists(st.one_of(WORDS, st.sampled_from(TAGS))).map("".join))
def test_what_follows_the_section_is_the_answer_with_all_its_tags(form: ThinkingTags, thought: str, rest: str) -> None:
    answer = f"x{rest}x"
    assert read(f"{form.opening}{thought}{form.closing}{answer}") == (thought.strip(), answer)


@given(SECTION, WORDS, WORDS)
def test_no_thinking_is_left_in_an_answer(form: ThinkingTags, thought: str, answer: str) -> None:
    marked = f"THOUGHT{thought}"
    assert "THOUGHT" not in read(f"{form.opening}{marked}{form.closing}{answer}")[1]


@given(st.text(), st.booleans())
def test_any_text_is_read_and_nothing_is_invented(text: str, cut: bool) -> None:
    thinking, answer = read(text, cut=cut)
    assert answer in text
    assert thinking is None or thinking in text


def test_responses_without_thinking_have_the_rows_that_they_had(tmp_path: Path) -> None:
    plain = Response("It is 4.", 3, "eos", 0.5, prompt_tokens=7)
    new = {"thinking", "thinking_tokens", "calls"}
    before = {name: value for name, value in asdict(plain).items() if name not in new}
    with ResponseCache(tmp_path) as cache:
        cache.put("plain", plain)
        cache.put("hidden", replace(plain, thinking_tokens=40))
        cache.put("shown", replace(plain, thinking="hm"))
        assert cache.get(["plain", "hidden", "shown"]) == {
            "plain": plain,
            "hidden": replace(plain, thinking_tokens=40),
            "shown": replace(plain, thinking="hm"),
        }
    with sqlite3.connect(tmp_path / "responses.sqlite") as rows:
        (value,) = rows.execute("SELECT value FROM responses WHERE key = 'plain'").fetchone()
    rows.close()
    assert value == json.dumps(before)


def test_thinking_of_a_server_and_tags_in_its_text_are_one() -> None:
    response = Response("<think>more</think>4", 3, "eos", 0.5, thinking="first")
    (parted,) = apart([response])
    assert (parted.thinking, parted.text) == ("first\n\nmore", "4")
    assert apart([parted]) == [parted]


@pytest.fixture
def server() -> Iterator[Raw]:
    with raw_server() as raw:
        yield raw


def ask(raw: Raw, message: dict[str, Any], **usage: Any) -> Response:
    body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 9, **usage}}
    raw.answer = lambda _path, _body: as_json(body)
    with ServerClient(ServerAddress(raw.url, "m"), 0) as client:
        return generate(client, "2 + 2?", Settings(20), chat=True)[0]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_the_thinking_of_a_server_is_apart(server: Raw, field: str) -> None:
    response = ask(server, {"content": "4", field: "hm"})
    assert (response.text, response.thinking, response.tokens) == ("4", "hm", 9)


def test_the_tokens_of_hidden_thinking_are_known(server: Raw) -> None:
    response = ask(server, {"content": "4"}, completion_tokens_details={"reasoning_tokens": 8})
    assert (response.thinking, response.thinking_tokens) == (None, 8)


@pytest.mark.parametrize("value", [None, 7, ["hm"], {"text": "hm"}, "\ud800"])
def test_a_strange_thinking_of_a_server_costs_no_response(server: Raw, value: Any) -> None:
    response = ask(server, {"content": "4", "reasoning": value}, completion_tokens_details=[])
    assert (response.text, response.thinking) == ("4", "?" if value == "\ud800" else None)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_table_has_thinking_tokens_and_end(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "model": "a", "response": "4", "thinking": "hm", "output_tokens": 9, "finish": "stop", "score": 1},
        {
            "id": "1",
            "model": "b",
            "response": "",
            "reasoning_tokens": 9,
            "output_tokens": 9,
            "finish": "length",
            "score": 0,
        },
        {"id": "1", "model": "c", "response": "<think>x</think>4", "output_tokens": 9, "finish": None, "score": 1},
        {"id": "1", "model": "d", "response": "4", "thinking_length": 0, "output_tokens": 1, "score": 1},
    ]
    logs = join_logs([str(write(tmp_path / "log.jsonl", rows))])
    (a,), (b,), (c,), (d,) = (logs.profiles[name].answers for name in "abcd")
    assert (a.text, a.thinking, a.thought, a.tokens, a.finish_reason) == ("4", "hm", True, 9, "unknown")
    assert (b.text, b.thinking, b.thought, b.finish_reason) == ("", None, True, "length")
    assert (c.text, c.thinking, c.thought) == ("4", "x", True)
    assert (d.text, d.thinking, d.thought, d.tokens) == ("4", None, False, 1)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_table_may_have_the_answers_of_a_provider_as_they_came(tmp_path: Path, as_text: bool) -> None:
    raw = {
        "choices": [{"message": {"content": "4", "reasoning": "hm"}, "finish_reason": "length"}],
        "usage": {"completion_tokens": 12, "completion_tokens_details": {"reasoning_tokens": 10}},
    }
    row = {"id": "1", "model": "a", "response": json.dumps(raw) if as_text else raw, "score": 1}
    (answer,) = join_logs([str(write(tmp_path / "log.jsonl", [row]))]).profiles["a"].answers
    assert (answer.text, answer.thinking, answer.tokens, answer.finish_reason) == ("4", "hm", 12, "length")


def test_answers_are_extracted_behind_the_thinking(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "question": "2 + 2?", "reference": "4", "model": "a", "response": "<think>5? No.</think>4 it is"},
        {"id": "1", "question": "2 + 2?", "reference": "4", "model": "b", "response": "<think>maybe 4"},
    ]
    from advisor.logs.scoring import Scoring

    path = str(write(tmp_path / "log.jsonl", rows))
    logs = join_logs([path], LogOptions(), scoring=Scoring("number", r"(-?\d+)"))
    assert [logs.profiles[name].answers[0].extracted for name in "ab"] == ["4", None]


def test_reasoning_blocks_of_inspect_are_thinking() -> None:
    model = pytest.importorskip("inspect_ai.model")
    blocks = [model.ContentReasoning(reasoning="hm"), model.ContentText(text="4")]
    assert _thoughts(model.ChatMessageAssistant(content=blocks)) == ["hm"]
    hidden = [model.ContentReasoning(reasoning="c2Vj", redacted=True), model.ContentText(text="4")]
    assert _thoughts(model.ChatMessageAssistant(content=hidden)) == []
    assert _thoughts(model.ChatMessageAssistant(content="4")) is None


def test_stored_responses_are_parted_when_they_are_read(place: Place, server: Raw) -> None:
    """The response is asked for once; other tags in the pool file read the same row, whose key has no tags."""
    said = "<plan>9? No.</plan>7"

    def answer(path: str, _: dict[str, Any]) -> Answer:
        return models("m") if path.endswith("/models") else completion(said)

    server.answer = answer
    place.task()
    found = []
    for option in ("", " thinking=<plan>...</plan>"):
        place.pool(f"openai:{server.url}#m chat_template=never revision=1{option}")
        plan = plan_of_pool(place)
        with ResponseCache(place.cache) as store:
            (profile,) = Profiler(plan, store, Progress(quiet=True)).alone(["m"], plan.dev).values()
        found.append({(each.text, each.thinking, each.thought) for each in profile.answers})
    assert found == [{(said, None, False)}, {("7", "9? No.", True)}]
    assert len(server.questions) == len(plan.dev.examples)


LINEAGE = Path(__file__).parents[2] / "shared" / "pools" / "lineage-2025.table.jsonl.xz"
needs_lineage = pytest.mark.skipif(not LINEAGE.is_file(), reason=f"{LINEAGE} is absent")


@cache
def lineage() -> tuple[Profile, ...]:
    """The answers of models that think."""
    return tuple(join_logs([str(LINEAGE)]).profiles.values())


@needs_lineage
def test_models_that_think_are_compared_by_their_tokens() -> None:
    """Of the pairs that the gap allows; three of these have a gap of exactly 10 points, which a plain <= may miss."""
    standings = [profile.standing for profile in lineage()]
    pairs = [pair for pair in pairs_of_standings(standings) if within(pair.gap, 10)]
    visible = {each.model: each.mean_length for each in standings}
    by_characters = [length_ratio(visible[pair.a], visible[pair.b]) for pair in pairs]
    by_tokens = [pair.length_ratio for pair in pairs]
    assert {pair.length_unit for pair in pairs} == {"tokens"}
    assert len(pairs) == 172 + 3
    assert sum(ratio is not None and within(ratio, 2) for ratio in by_characters) == 38
    assert sum(ratio is not None and within(ratio, 2) for ratio in by_tokens) == 129 + 3


@given(
    st.lists(st.tuples(st.floats(1, 1e4), st.none() | st.floats(1, 1e4), st.booleans()), min_size=2, max_size=2),
)
def test_tokens_are_compared_only_if_one_thinks_and_both_are_known(
    models: list[tuple[float, float | None, bool]],
) -> None:
    a, b = (Standing(name, 50.0, n, False, t, thinks) for name, (n, t, thinks) in zip("ab", models, strict=True))
    by_tokens = (a.thinks or b.thinks) and None not in (a.mean_tokens, b.mean_tokens)
    lengths = (a.mean_tokens, b.mean_tokens) if by_tokens else (a.mean_length, b.mean_length)
    assert compared_lengths(a, b) == (*lengths, "tokens" if by_tokens else "characters")


def test_the_reason_says_the_unit() -> None:
    models = [Standing("a", 80.0, 18.0, False, 500.0, True), Standing("b", 79.0, 900.0, False, 1100.0, True)]
    assert (
        "its mean length of 1100.0 tokens is 2.20 times the primary's 500.0"
        in select(models, Limits()).decisions[1].reason
    )
    near = [models[0], replace(models[1], mean_tokens=900.0)]
    assert "the length ratio by tokens is 1.80" in select(near, Limits()).decisions[1].reason


def test_the_interval_of_the_ratio_is_of_the_same_lengths() -> None:
    def profile(name: str, tokens: list[int]) -> Profile:
        answers = (
            Answer(str(n), "x" * (n + 1), None, n % 2, "eos", tokens=each, thought=True)
            for n, each in enumerate(tokens)
        )
        return Profile(name, tuple(answers))

    a, b = profile("a", [100, 120, 90, 110] * 10), profile("b", [200, 240, 180, 220] * 10)
    ((_, ends),) = paired_intervals(a, [b])
    assert ends == pytest.approx((2, 2))
