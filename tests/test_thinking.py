"""Thinking and answer apart: the forms of the families, servers, logs, and that no tag in an answer is thinking."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Raw, as_json, completion, models

from advisor.advice.comparison import compare_strategies
from advisor.advice.doubts import completed, enough_tokens, finished_accuracy, with_more_tokens
from advisor.advice.pairs import pairs_of_standings
from advisor.advice.recommendation import recommend
from advisor.advice.rules import select
from advisor.logs.inspect import _thoughts
from advisor.logs.join import Scoring, join_logs
from advisor.logs.sources import LogOptions
from advisor.models.completions import body_of, generate
from advisor.models.pool_file import read_line
from advisor.models.profiler import Profiler
from advisor.models.response_cache import Response, ResponseCache, split_thinking
from advisor.models.server_model import ServerIdentity
from advisor.progress import Progress
from advisor.records import Answer, Limits, Profile, Standing, compared_lengths, length_ratio, within
from advisor.strategies.strategy import AnsweredSplit
from advisor.tasks.task import Example, Task
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec
from ensemble.models.thinking import FAMILIES, ThinkingReader, ThinkingTags
from ensemble.servers.address import ServerAddress, thinking_fields
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


CHANNELS = {
    "gpt-oss": "<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant<|channel|>final<|message|>It is 4."
    "<|return|>",
    "Kimi K3": "<|open|>think<|sep|>2 + 2<|close|>think<|sep|><|open|>response<|sep|>It is 4.<|close|>response<|sep|>"
    "<|close|>message<|sep|><|end_of_msg|>",
    "Inkling": "<|content_thinking|>2 + 2<|end_message|><|message_model|><|content_text|>It is 4.<|end_message|>",
}


@pytest.mark.parametrize("text", CHANNELS.values(), ids=CHANNELS)
def test_models_that_write_in_channels_leave_no_control_text(text: str) -> None:
    """Texts as vLLM's parsers describe them: with thinking, without, cut off, and opened by the template."""
    (form,) = (form for form in FAMILIES if form.ending and text.startswith(form.opening))
    assert read(text) == ("2 + 2", "It is 4.")
    answer = text[text.index(form.closing) :]
    for others in ([], [(text, False)] * 3):
        assert ThinkingReader([*others, (answer, False)]).read(answer) == (None, "It is 4.")
    assert read(text[: text.index(form.closing)], cut=True) == ("2 + 2", "")
    behind = text.removeprefix(form.opening)
    assert read(behind) == ("2 + 2", "It is 4.")


@pytest.mark.parametrize("text", CHANNELS.values(), ids=CHANNELS)
def test_an_answer_whose_channel_the_template_opened_leaves_no_control_text(text: str) -> None:
    """So Kimi K3 and Inkling answer where thinking is off."""
    (form,) = (form for form in FAMILIES if form.ending and text.startswith(form.opening))
    answer = text.partition(form.closing)[2]
    assert read(answer) == (None, "It is 4.")
    others = [("It is 4.", False)] * 3
    assert ThinkingReader([*others, (answer, False)]).read(answer) == (None, answer)


@pytest.mark.parametrize(
    "text",
    [
        "<|plamo:begin_think:plamo|>2 + 2<|plamo:end_think:plamo|>It is 4.<|plamo:tag|>",
        "<|START_THINKING|>2 + 2<|END_THINKING|><|START_RESPONSE|>It is 4.<|END_RESPONSE|>",
        "<|START_THINKING|>2 + 2<|END_THINKING|><|START_TEXT|>It is 4.<|END_TEXT|>",
    ],
)
def test_the_tags_around_an_answer_are_not_its(text: str) -> None:
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
    (parted,) = split_thinking([response])
    assert (parted.thinking, parted.text) == ("first\n\nmore", "4")
    assert split_thinking([parted]) == [parted]


def ask(raw: Raw, message: dict[str, Any], **usage: Any) -> Response:
    body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 9, **usage}}
    raw.answer = lambda _path, _body: as_json(body)
    with ServerClient(ServerAddress(raw.url, "m"), 0) as client:
        return generate(client, "2 + 2?", Settings(20), chat=True)[0]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_the_thinking_of_a_server_is_apart(raw: Raw, field: str) -> None:
    response = ask(raw, {"content": "4", field: "hm"})
    assert (response.text, response.thinking, response.tokens) == ("4", "hm", 9)


def test_an_empty_section_apart_is_no_thinking(raw: Raw, tmp_path: Path) -> None:
    """So vLLM and tables give that of a model whose thinking is off."""
    (response,) = split_thinking(
        [ask(raw, {"content": "4", "reasoning": "\n\n"}, completion_tokens_details={"reasoning_tokens": 1})]
    )
    assert (response.text, response.thinking, response.thinking_tokens) == ("4", None, 0)
    row = {"id": "1", "model": "a", "response": "4", "thinking": "\n\n", "score": 1}
    whole = {"id": "1", "model": "b", "response": raw_answer("\n\n", 1), "score": 1}
    counted = {**row, "model": "c", "thinking_tokens": 1, "thinking_length": 2}
    for each in join_logs([str(write(tmp_path / "log.jsonl", [row, whole, counted]))]).profiles.values():
        (answer,) = each.answers
        assert (answer.text, answer.thinking, answer.thought) == ("4", None, False)


def test_many_tokens_behind_white_space_are_thinking_that_is_not_shown(raw: Raw, tmp_path: Path) -> None:
    details = {"reasoning_tokens": 500}
    (response,) = split_thinking([ask(raw, {"content": "4", "reasoning": "\n\n"}, completion_tokens_details=details)])
    assert (response.text, response.thinking, response.thinking_tokens) == ("4", None, 500)
    row = {"id": "1", "model": "a", "response": raw_answer("\n\n", 500), "score": 1}
    (answer,) = join_logs([str(write(tmp_path / "log.jsonl", [row]))]).profiles["a"].answers
    assert (answer.text, answer.thinking, answer.thought) == ("4", None, True)


def raw_answer(reasoning: str, tokens: int) -> dict[str, Any]:
    """The answer of a provider as it came."""
    return {
        "choices": [{"message": {"content": "4", "reasoning": reasoning}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": tokens + 9, "completion_tokens_details": {"reasoning_tokens": tokens}},
    }


@pytest.mark.parametrize("value", [None, 7, ["hm"], {"text": "hm"}, "\ud800"])
def test_a_strange_thinking_of_a_server_costs_no_response(raw: Raw, value: Any) -> None:
    response = ask(raw, {"content": "4", "reasoning": value}, completion_tokens_details=[])
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


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("length", "length"),
        ("MAX_TOKENS", "length"),
        ("max_output_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("end_turn", "unknown"),
        (7, "unknown"),
    ],
)
def test_the_words_of_providers_for_a_cut_off_are_known(tmp_path: Path, finish: object, reason: str) -> None:
    row = {"id": "1", "model": "a", "response": "", "score": 0, "finish": finish}
    (answer,) = join_logs([str(write(tmp_path / "log.jsonl", [row]))]).profiles["a"].answers
    assert answer.finish_reason == reason


def test_answers_are_extracted_behind_the_thinking(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "question": "2 + 2?", "reference": "4", "model": "a", "response": "<think>5? No.</think>4 it is"},
        {"id": "1", "question": "2 + 2?", "reference": "4", "model": "b", "response": "<think>maybe 4"},
    ]

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


def test_stored_responses_are_parted_when_they_are_read(place: Place, raw: Raw) -> None:
    """The response is asked for once; other tags in the pool file read the same row, whose key has no tags."""
    said = "<plan>9? No.</plan>7"

    def answer(path: str, _: dict[str, Any]) -> Answer:
        return models("m") if path.endswith("/models") else completion(said)

    raw.answer = answer
    place.task()
    found = []
    for option in ("", " thinking=<plan>...</plan>"):
        place.pool(f"openai:{raw.url}#m chat_template=never revision=1{option}")
        plan = place.plan()
        with ResponseCache(place.cache) as store:
            (profile,) = Profiler(plan, store, Progress(quiet=True)).alone(["m"], plan.dev).values()
        found.append({(each.text, each.thinking, each.thought) for each in profile.answers})
    assert found == [{(said, None, False)}, {("7", "9? No.", True)}]
    assert len(raw.questions) == len(plan.dev.examples)


LINEAGE = Path(__file__).parents[2] / "shared" / "pools" / "lineage-2025.table.jsonl.xz"
needs_lineage = pytest.mark.skipif(not LINEAGE.is_file(), reason=f"{LINEAGE} is absent")


@cache
def lineage() -> tuple[Profile, ...]:
    """The answers of models that think."""
    return tuple(join_logs([str(LINEAGE)]).profiles.values())


@needs_lineage
def test_models_that_think_are_compared_by_their_tokens() -> None:
    """Of the pairs that the gap allows; of 17 with a gap of exactly 10 points, a plain <= of fractions misses three."""
    standings = [profile.standing for profile in lineage()]
    pairs = [pair for pair in pairs_of_standings(standings) if within(pair.gap, 10)]
    visible = {each.model: each.mean_length for each in standings}
    by_characters = [length_ratio(visible[pair.a], visible[pair.b]) for pair in pairs]
    by_tokens = [pair.length_ratio for pair in pairs]
    assert {pair.length_unit for pair in pairs} == {"tokens"}
    assert len(pairs) == 172 + 3
    assert sum(within(10, pair.gap) for pair in pairs) == 17
    assert sum(ratio is not None and within(ratio, 2) for ratio in by_characters) == 38
    assert sum(ratio is not None and within(ratio, 2) for ratio in by_tokens) == 129 + 3


@given(st.lists(st.tuples(st.floats(1, 1e4), st.none() | st.floats(1, 1e4), st.booleans()), min_size=2, max_size=2))
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


@needs_lineage
def test_the_models_of_a_log_have_their_points_on_what_they_finished() -> None:
    profiles = {profile.model: profile for profile in lineage()}
    minimax = profiles["minimax-m2"]
    assert (minimax.truncated, len(minimax.answers)) == (26, 160)
    assert minimax.accuracy == pytest.approx(56.25)
    assert finished_accuracy(minimax) == pytest.approx(67.16, abs=0.01)
    assert profiles["glm-4.6"].truncated == 17
    assert (enough_tokens(minimax) or 0) > 65_535


@needs_lineage
def test_a_run_on_logs_warns_that_more_tokens_would_change_the_advice(place: Place) -> None:
    ran = place.advisor("select", "--logs", str(LINEAGE), "--out", "run", "--quiet")
    assert ran.status == 0
    result = place.json()
    (found,) = (each for each in result["advice"]["warnings"] if "cut off at a token limit" in each)
    assert found.index("minimax-m2") < found.index("glm-4.6") < found.index("the order of the candidates")
    assert "tokens would be enough for 95% of the responses" in found
    figures = {each["model"]: each for each in result["candidates"]}
    assert figures["minimax-m2"]["thinks"] and not figures["qwen3-max"]["thinks"]
    assert figures["minimax-m2"]["finished_accuracy"] > figures["minimax-m2"]["accuracy"]
    assert figures["gpt-5"]["finished_accuracy"] is None
    assert "cut off, which count as wrong" in (place.folder / "run" / "report.html").read_text(encoding="utf-8")


def graded(name: str, right: str, ends: str = "") -> Profile:
    """A model's answers: ``+`` is right; in ``ends`` ``c`` is cut off."""
    answers = []
    for n, (sign, end) in enumerate(zip(right, ends or "." * len(right), strict=True)):
        answer = Answer(str(n), "", "1" if sign == "+" else "0", float(sign == "+"), "length" if end == "c" else "eos")
        answers.append(replace(answer, tokens=10 + n))
    return Profile(name, tuple(answers))


def split_of(*profiles: Profile) -> AnsweredSplit:
    examples = tuple(Example(answer.id, "question", "question", "1") for answer in profiles[0].answers)
    task = Task("t", "exact_match", "dev", examples, (), 1, 0, 0, None, (), "")
    return AnsweredSplit(task, {profile.model: profile for profile in profiles})


def advised(*profiles: Profile) -> str | None:
    """What more tokens would change on dev questions alone."""
    split = split_of(*profiles)
    return with_more_tokens(split, replace(split, profiles={}), None, can_vote=True, rules=Limits())


def test_cut_off_responses_are_right_as_often_as_the_others_and_on_easy_questions_first() -> None:
    split = split_of(graded("a", "+-+---", "..cccc"), graded("b", "++-+--"))
    then = completed(split).profiles["a"]
    # Half of its finished responses are right, and so are two of the four that were cut off: b is right on one of them.
    assert [answer.score for answer in then.answers] == [1, 0, 1, 1, 0, 0]
    assert [answer.extracted for answer in then.answers] == ["1", "0", "1", "1", "0", "0"]


def test_more_tokens_change_the_order_where_the_better_model_was_cut_off() -> None:
    found = advised(graded("cut", "++++++----", "......cccc"), graded("whole", "+++++++---"))
    assert found is not None
    assert found.startswith("4 of 10 responses of cut to the dev questions were cut off at a token limit and count as")
    assert "the order of the candidates and the set of the rules would change" in found


def test_cut_off_responses_that_have_points_are_not_said_to_be_wrong() -> None:
    cut, whole = graded("cut", "++++++----", "......cccc"), graded("whole", "+++++++---")
    partly = [replace(answer, score=answer.score or 0.2) for answer in cut.answers]
    found = advised(replace(cut, answers=tuple(partly)), replace(whole, answers=(*whole.answers[:9], partly[0])))
    assert found is not None
    assert "were cut off at a token limit. If they" in found


def test_more_tokens_change_no_recommendation_that_a_limit_decides() -> None:
    # The vote gains most, and within 60 points of it the single model is cheapest: also if the response had not ended.
    split = split_of(graded("a", "++-" * 20, "." * 59 + "c"), graded("b", "+-+" * 20), graded("c", "-++" * 20))
    rules = Limits(within=60)
    before = recommend(compare_strategies(split, split, can_vote=True, rules=rules), rules)
    assert before is not None and before.is_single
    assert with_more_tokens(split, split, before, can_vote=True, rules=rules) is None


def test_nothing_is_said_where_nothing_was_cut_off_or_would_change() -> None:
    better = graded("a", "++++++++--")
    assert advised(better, graded("b", "+++-------")) is None
    assert advised(better, graded("b", "+++-------", ".........c")) is None


@settings(max_examples=15)
@given(st.floats(0.7, 3), st.floats(50, 1e5), st.floats(0.1, 0.4), st.integers(0, 99))
def test_tokens_for_most_responses_are_estimated_beyond_the_limit(
    shape: float, scale: float, share: float, seed: int
) -> None:
    lengths = (scale * np.random.default_rng(seed).weibull(shape, 500)).round() + 1
    limit = float(np.quantile(lengths, 1 - share))
    answers = [
        Answer(str(k), "", None, 0.0, "length" if each > limit else "eos", tokens=int(min(each, limit)))
        for k, each in enumerate(lengths)
    ]
    found = enough_tokens(Profile("m", tuple(answers)))
    assert found is not None
    assert 0.6 <= found / np.quantile(lengths, 0.95) <= 1.6


def test_tokens_that_are_enough_are_counted_where_few_responses_were_cut_off() -> None:
    answers = [Answer(str(n), "", None, 0.0, "eos", tokens=n + 1) for n in range(100)]
    assert enough_tokens(Profile("m", tuple(answers))) == 95
    unknown = [replace(answer, tokens=0) for answer in answers]
    assert enough_tokens(Profile("m", tuple(unknown))) is None


def owned_by(owner: str) -> Answer:
    return as_json({"data": [{"id": "other", "owned_by": "nobody"}, {"id": "m", "owned_by": owner}]})


@pytest.mark.parametrize(
    ("owner", "budget", "effort"),
    [
        ("vllm", {"thinking_token_budget": 50}, {"reasoning_effort": "low"}),
        ("sglang", {"custom_params": {"thinking_budget": 50}}, {"reasoning_effort": "low"}),
        (
            "llamacpp",
            {"thinking_budget_tokens": 50},
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}},
        ),
        ("somebody", {"thinking_budget": 50}, {"reasoning_effort": "low"}),
    ],
)
def test_each_server_gets_the_field_that_it_expects(
    raw: Raw, owner: str, budget: dict[str, Any], effort: dict[str, Any]
) -> None:
    raw.answer = lambda path, _: owned_by(owner) if path.endswith("/models") else chat("4")
    plain = sent(raw, ServerAddress(raw.url, "m"))
    for option, fields in ({"thinking_budget": 50}, budget), ({"reasoning_effort": "low"}, effort):
        assert sent(raw, ServerAddress(raw.url, "m", **option)) == {**plain, **fields}


def chat(text: str) -> Answer:
    return as_json({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": {}})


def sent(raw: Raw, address: ServerAddress) -> dict[str, Any]:
    """The body of a request."""
    with ServerClient(address, 0) as client:
        generate(client, "2 + 2?", Settings(20), chat=True)
    return raw.asked[-1][2]


def test_a_budget_goes_with_token_ids_too() -> None:
    address = ServerAddress("http://host/v1", "m", tokenizer="org/name", thinking_budget=50)
    body = body_of(address, lambda: "vllm", [1, 2], Settings(), chat=False, left_out=())
    assert (body["prompt"], body["thinking_token_budget"]) == ([1, 2], 50)


@pytest.mark.parametrize(
    ("url", "option", "fields"),
    [
        ("https://openrouter.ai/api/v1", {"thinking_budget": 50}, {"reasoning": {"max_tokens": 50}}),
        ("https://openrouter.ai/api/v1", {"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        (
            "https://api.anthropic.com/v1",
            {"thinking_budget": 50},
            {"thinking": {"type": "enabled", "budget_tokens": 50}},
        ),
        ("https://example.org/v1", {}, {}),
    ],
)
def test_providers_are_known_by_their_host(url: str, option: dict[str, Any], fields: dict[str, Any]) -> None:
    def never() -> str:
        raise AssertionError("the server was asked")

    assert thinking_fields(ServerAddress(url, "m", **option), never) == fields


def test_a_server_without_a_list_of_models_is_one_of_the_others(raw: Raw) -> None:
    raw.answer = lambda path, _: as_json({}, 404) if path.endswith("/models") else chat("4")
    assert sent(raw, ServerAddress(raw.url, "m", thinking_budget=50))["thinking_budget"] == 50


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("thinking_budget=-1", "should be at least 0"),
        ("thinking_budget=1e3", "should be a whole number"),
        ("reasoning_effort=High!", "a word such as low"),
        ("thinking_budget=5 reasoning_effort=low", "not both"),
        ("reasoning_effort=low tokenizer=org/name", "without tokenizer="),
    ],
)
def test_a_limit_of_thinking_that_cannot_be_is_refused(option: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_line(f"openai:http://host/v1#m {option}", "pool:1")


@pytest.mark.parametrize("option", ["thinking_budget=5", "reasoning_effort=vast"])
def test_a_server_that_refuses_a_limit_of_thinking_is_quoted_with_the_option(
    place: Place, raw: Raw, option: str
) -> None:
    refusal = {"error": {"message": "thinking cannot be limited so"}}
    raw.answer = lambda path, _: models("m") if path.endswith("/models") else as_json(refusal, 400)
    place.task()
    place.pool(f"openai:{raw.url}#m {option}")
    said = place.refused("select", "--pool", "models.txt", "--task", "task.yaml", "--out", "run")
    name = option.partition("=")[0]
    assert said.endswith(f"says: thinking cannot be limited so; correct {name}= of its line, or leave it out")


def test_openai_takes_no_budget() -> None:
    with pytest.raises(InputError, match="take no thinking_budget=; give reasoning_effort="):
        read_line("openai:https://api.openai.com/v1#gpt thinking_budget=5", "pool:1")


def test_a_budget_is_kept_with_the_address_and_is_in_the_key_only_if_it_is_set() -> None:
    plain, limited = ServerAddress("http://host/v1", "m"), ServerAddress("http://host/v1", "m", thinking_budget=0)
    keys = [ServerIdentity(ModelSpec(each, "m"), {}, "2026-01-01").key() for each in (plain, limited)]
    assert keys[1] == {**keys[0], "thinking_budget": 0}
    assert "thinking_budget" not in keys[0]
