"""What the metrics read from responses, and that they never raise."""

from __future__ import annotations

import itertools
import json
import lzma
import re
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import BLEU, corpus_bleu, corpus_chrf, sentence_bleu, sentence_chrf

from advisor.tasks import templates
from advisor.tasks.metrics import get_metric, metric_names, read_with, runs_code
from advisor.tasks.metrics.bleu import corpus_score
from advisor.tasks.task import Example, Task, place_of_answer

ANY_TEXT = st.text(st.characters()) | st.text("0123456789.,-−$ ()ABab:\n")  # the second one hits the patterns
OPTIONS = ("dry palms", "wet palms", "palms covered with oil")
ACCEPTED = {
    "number": ("3",),
    "number_comma": ("3",),
    "choice": ("B",),
    "json": ("3",),
    "json_fields": ("3",),
    "tool_call": ("[]",),
}
ANSWERS = Path(__file__).parent / "data" / "answers.tsv"
"""A line is a metric, the right answer or whether the response is right, the reference, and a response."""
# Those that run code, and the judge, have tests of their own.
READING = [name for name in metric_names() if not runs_code(name) and name != "judge"]


def read(metric: str, text: str, *, choices: tuple[str, ...] = ()) -> str | None:
    return get_metric(metric).score(text, ACCEPTED.get(metric, ("3",)), choices)[1]


def score(metric: str, text: str, *accepted: str, choices: tuple[str, ...] = ()) -> float:
    return get_metric(metric).score(text, accepted, choices)[0]


@given(st.integers(-(10**30), 10**30), st.integers(0, 6))
def test_every_spelling_of_a_number_is_the_same_number(value: int, zeros: int) -> None:
    spelled = f"so it is ${value:,}.{'0' * zeros} in all"
    assert read("number", spelled) == str(value)


@pytest.mark.parametrize("kind", ["number", "number_comma", "choice", "exact_match", "contains", "json", "tool_call"])
def test_responses_whose_answers_were_decided_by_hand_are_read_so(kind: str) -> None:
    wrong = []
    for line in ANSWERS.read_text(encoding="utf-8").splitlines():
        metric, right, reference, response = line.replace("⏎", "\n").split("\t")
        if metric == kind:
            options = OPTIONS if kind == "choice" else ()
            value, answer = get_metric(kind).score(response, (reference or ACCEPTED.get(kind, ("",))[0],), options)
            found = f"{value:.0f}" if kind in ("exact_match", "contains") else answer or "-"
            wrong += [(response, reference, found)] if found != right else []
    assert not wrong


def test_every_example_of_the_table_of_rules_is_read_as_it_says() -> None:
    page = (Path(__file__).parents[1] / "docs" / "tasks.md").read_text(encoding="utf-8")
    section = page.partition("## What is read from a response\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20
    metric = ""
    for rule, response, right in rows:
        metric = next((name for name in READING if f"`{name}`" in rule.split(":")[0].split(" ")[1]), metric)
        text, reference = (*re.findall("`([^`]+)`", response), None)[:2]
        options = ("wet palms", "dry palms") if metric == "choice" else ()
        value, answer = get_metric(metric).score(text, ACCEPTED[metric] if reference is None else (reference,), options)
        read_as = {"right": value == 1, "wrong": value == 0, "none": answer is None}
        assert read_as.get(right.strip(), f"`{answer}`" == right.strip()), response


@pytest.mark.parametrize(("number", "other"), [("9" * 5000 + "/7", "7"), ("1e" + "9" * 5000, "1")])
def test_a_number_that_cannot_be_computed_equals_no_other(number: str, other: str) -> None:
    assert score("number", number, other) == 0


@pytest.mark.parametrize(
    ("metric", "extract", "text", "answer", "marked"),
    [
        ("number", None, "So #### 1,234.0 in 2 steps", "1234", "1,234.0"),
        ("number", "is ([0-9]+)", "It is 5, not 7.", "5", "5"),
        ("number_comma", None, "Antwort: 1.362,50 Euro", "1362,5", "1.362,50"),
        ("choice", None, "A is dry. The answer is (B).", "B", "B"),
        ("choice", None, r"\boxed{\text{C}}", "C", "C"),
        (
            "pass_at_1",
            None,
            "So:\n```python\ndef f():\n    return 2\n```\n",
            "def f():\n    return 2\n",
            "def f():\n    return 2\n",
        ),
        ("chrf", None, "Der Hund schläft.", "Der Hund schläft.", "Der Hund schläft."),
        ("exact_match", None, " Sunset Boulevard.", "sunset boulevard", "Sunset Boulevard"),
        ("contains", None, "It was PARIS.", "Paris", "PARIS"),
        ("number", None, "It is 5.", "7", None),
        ("json", "json", '{"a":  1}', '{"a":1}', None),
    ],
)
def test_the_place_of_an_answer_is_found_again(
    metric: str, extract: str | None, text: str, answer: str, marked: str | None
) -> None:
    place = place_of_answer(metric, extract, text, answer)
    assert (None if place is None else text[slice(*place)]) == marked


@given(ANY_TEXT)
@settings(max_examples=60)
def test_no_metric_raises_on_any_text_and_scores_stay_between_0_and_1(text: str) -> None:
    for name in READING:
        choices = OPTIONS if name == "choice" else ()
        value, answer = get_metric(name).score(text, ACCEPTED.get(name, ("some text", "3")), choices)
        assert 0 <= value <= 1
        assert answer is None or answer


@given(ANY_TEXT)
@settings(max_examples=60)
def test_what_was_read_is_read_again_as_itself(text: str) -> None:
    for name in ("number", "number_comma", "choice", "exact_match", "exact_match_squad", "json", "bleu", "chrf"):
        choices = OPTIONS if name == "choice" else ()
        answer = read(name, text, choices=choices)
        assert answer is None or read(name, answer, choices=choices) == answer


PIECES = [
    *("1", "1,", "1,111", ".1", "-", "(A", "answer ", "a ", "\u0000", "\\boxed{", "#### ", "the answer is ", "**1**"),
    *("1 (", "\\frac{1}{", "1/", "8 or ", "A, ", "(", "*a", "a.", "\n"),
]


@pytest.mark.parametrize("piece", PIECES)
def test_long_responses_take_no_long_time(piece: str) -> None:
    text = piece * (20_000 // len(piece))
    # Those that look for an answer, where the time must be linear in the text; and all others for the first of these.
    for name in READING if piece in PIECES[:9] else ("number", "choice", "exact_match", "contains"):
        start = time.process_time()
        read(name, text, choices=OPTIONS)
        assert time.process_time() - start < 1, name


@pytest.mark.parametrize(
    "options",
    [("C", "NO_2", "O_2", "CO"), ("-1", "+1", "-2", "+2"), ("R", "rr", "Rr", "RR"), ("156", "15.6", "1.56", "2")],
)
def test_the_text_of_an_option_is_that_option_though_others_look_like_it(options: tuple[str, ...]) -> None:
    # Real ones, of ARC-Challenge and MMLU. A reference that is a letter stays one.
    for letter, option in zip("ABCD", options, strict=True):
        assert read("choice", option, choices=options) == letter
        assert score("choice", option, letter, choices=options) == 1


def test_any_of_several_accepted_texts_is_right_and_no_call_is_an_answer() -> None:
    assert score("number", "about 8", "7", "8") == score("exact_match", "a b", "a", "a b") == 1
    assert score("tool_call", "I need the base.", "no call") == score("tool_call", "no call", "[]") == 1
    assert score("tool_call", "no call", '["f", {}]') == score("tool_call", '["f", {"a": 1', "no call") == 0


def test_a_longer_option_is_not_taken_for_the_shorter_one_inside_it() -> None:
    assert read("choice", "I think it is palms covered with oil", choices=("palms", "palms covered with oil")) == "B"


def test_bleu_and_chrf_are_sacrebleus_sentence_scores() -> None:
    response, references = "The cat sat on a mat.", ["The cat sat on the mat.", "A cat was sitting on the mat."]
    assert score("bleu", response, *references) == pytest.approx(sentence_bleu(response, references).score / 100)
    assert score("chrf", response, *references) == pytest.approx(sentence_chrf(response, references).score / 100)


@pytest.mark.parametrize(
    ("reference", "response", "tokenizer"),
    [
        ("我们现在有四个月大的老鼠。", "我们现在有四个月大的小鼠。", "zh"),
        ("生後4か月のマウスがいます。", "生後4か月のねずみがいます。", "char"),
        ("เรามีหนูอายุสี่เดือนแล้ว", "เรามีหนูอายุสามเดือนแล้ว", "char"),
        ("Der Name 北京 heißt nördliche Hauptstadt.", "Der Name 北京 bedeutet nördliche Hauptstadt.", "13a"),
        ("우리는 생후 4개월 된 쥐를 가지고 있다.", "우리는 생후 4개월 된 생쥐를 가지고 있다.", "13a"),
    ],
)
def test_bleu_splits_writing_without_spaces_into_characters(reference: str, response: str, tokenizer: str) -> None:
    """With 13a a sentence without spaces is one word, and another character anywhere in it gives 0."""
    wanted = BLEU(tokenize=tokenizer, effective_order=True).sentence_score(response, [reference]).score
    assert wanted > 20
    assert score("bleu", response, reference) == pytest.approx(wanted / 100)
    assert corpus_score("bleu", [response], [(reference,)])[0] == pytest.approx(
        BLEU(tokenize=tokenizer).corpus_score([response], [[reference]]).score
    )


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"answer is (-?[0-9]+)", "The answer is 5. The answer is 6.", "5"),
        (r"[0-9]+", "5 and 6", "5"),
        (r"(x)|(y)", "y", "y"),
        (r"answer is (-?[0-9]+)", "5", None),
        (r"(x)?", "y", None),
    ],
)
def test_extract_takes_the_first_group_of_the_first_match_or_all_of_it(
    pattern: str, text: str, found: str | None
) -> None:
    assert templates.find_answer(pattern, text) == found


def test_a_pattern_that_backtracks_forever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "PATTERN_SECONDS", 0.2)
    start = time.process_time()
    assert templates.find_answer(r"(a|aa)+$", "a" * 5000 + "b") is None
    assert time.process_time() - start < 3 * templates.PATTERN_SECONDS


# --- Scores of a whole corpus ---


def _translations(metric: str) -> tuple[Task, dict[str, str | None]]:
    lines = ["The cat sat on the mat .", "It rains in the north today .", "Two dogs ran home .", "He is not here ."]
    said = ["The cat sat on a mat .", "It rains in north .", "Two dogs ran home .", "She was there ."]
    examples = tuple(Example(str(n), "?", "?", line) for n, line in enumerate(lines * 10))
    task = Task("t", metric, "dev", examples, (), 8, 0, 0, None, (), "")
    return task, {example.id: f" {text}" for example, text in zip(examples, said * 10, strict=True)}


@pytest.mark.parametrize(("metric", "theirs"), [("bleu", corpus_bleu), ("chrf", corpus_chrf)])
def test_the_score_of_a_corpus_is_sacrebleus(metric: str, theirs: Callable[..., Any]) -> None:
    task, texts = _translations(metric)
    score, (low, high) = task.corpus_score(texts) or (0.0, (0.0, 0.0))
    hypotheses = [(text or "").strip() for text in texts.values()]
    assert score == pytest.approx(theirs(hypotheses, [[str(e.reference) for e in task.examples]]).score)
    assert low < score < high
    sentences = [task.score(e, texts[e.id] or "").value for e in task.examples]
    assert abs(score - 100 * sum(sentences) / len(sentences)) > 0.1


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_a_corpus_without_any_match_has_a_score(metric: str) -> None:
    task, texts = _translations(metric)
    assert task.corpus_score(dict.fromkeys(texts)) == (0, (0, 0))


def test_a_missing_response_lowers_the_score_of_a_corpus_which_most_metrics_do_not_have() -> None:
    task, texts = _translations("bleu")
    whole, less = task.corpus_score(texts), task.corpus_score({**texts, "0": None})
    assert whole is not None
    assert less is not None
    assert less[0] < whole[0]
    assert _translations("exact_match")[0].corpus_score(texts) is None


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(ANY_JSON, st.booleans(), st.sampled_from([None, 1, "\t"]), st.randoms())
def test_every_spelling_of_a_json_value_is_the_same_answer(
    value: Any, ascii_only: bool, indent: int | str | None, random: Random
) -> None:
    shuffled = json.loads(json.dumps(value), object_pairs_hook=lambda pairs: dict(random.sample(pairs, len(pairs))))
    spelled = json.dumps(shuffled, ensure_ascii=ascii_only, indent=indent)
    answer = read("json", json.dumps(value))
    assert read("json", f"So it is:\n```json\n{spelled}\n```\n") == read("json", spelled) == answer
    assert answer is not None
    assert read("json", answer) == answer


@given(ANY_JSON, ANY_JSON)
def test_two_json_values_are_equal_as_a_validator_of_schemas_says(value: Any, other: Any) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    # It compares characters as they are spelled.
    value, other = (
        json.loads(unicodedata.normalize("NFC", json.dumps(each, ensure_ascii=False))) for each in (value, other)
    )
    alike = validator({"const": value}).is_valid(other)
    assert score("json", json.dumps(other), json.dumps(value)) == alike


@pytest.mark.parametrize(
    ("reader", "text", "reason"),
    [
        ("json", "nothing", "Expecting value: line 1 column 1 (char 0)"),
        ("json", '{"a": 1,\n "b": }', "Expecting value: line 2 column 7 (char 15)"),
        ("json", "Sure:\n```json\n[1,\n two]\n```", "Expecting value: line 4 column 2 (char 19)"),
        ("json", 'It is {"a": 1, b} now', "Expecting property name enclosed in double quotes: line 1 column 16"),
        ("json", '["NaN", NaN]', "NaN is not valid JSON: line 1 column 9 (char 8)"),
        ("json", '{"a":\n1e999}', "1e999 is too large: line 2 column 1 (char 6)"),
        ("json", '["x", "\\ud800"]', "Half a surrogate pair: line 1 column 7 (char 6)"),
        ("json", "x\n" + "[" * 101 + "]" * 101, "More than 100 objects and lists inside each other: line 2 column 101"),
        ("tool_call", "Now:\n<tool_call>{1: 1}", "Expecting property name enclosed in double quotes: line 2 column 13"),
        ("tool_call", '["f", {"a": 1', "Expecting ',' delimiter: line 1 column 14 (char 13)"),
        ("tool_call", '{"name": "f", "arguments": "{"}', "the arguments of 'f': Expecting property name"),
        ("tool_call", "3", "3 has no name and arguments of a call"),
    ],
)
def test_what_is_no_json_has_a_reason_with_its_place(reader: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}"):
        read_with(reader, text)


@given(ANY_JSON, st.randoms())
def test_the_place_of_a_broken_text_is_where_jsons_own_parser_stops(value: Any, random: Random) -> None:
    text = json.dumps({"value": value}, indent=1)
    cut = text[: random.randrange(len('{ "v'), len(text))]
    with pytest.raises(ValueError) as own:
        json.loads(cut)
    with pytest.raises(ValueError) as told:
        read_with("json", f"See {cut}")
    assert told.value.pos - len("See ") == own.value.pos  # type: ignore[attr-defined]


def test_a_field_that_is_missing_or_additional_is_wrong_in_the_share_of_fields() -> None:
    reference = '{"name": "Ann", "age": 41, "tags": ["a", "b"]}'
    responses = (reference, '{"name": "Ann", "age": 41.0}', '{"name": "Bob", "x": 1}', "[1]", "{}")
    assert [score("json_fields", text, reference) for text in responses] == [1, 2 / 3, 0, 0, 0]
    assert score("json_fields", '{"name": "Ann"}', '{"name": "Bob"}', '{"name": "Ann", "age": 1}') == 0.5


def test_a_reference_that_is_no_json_is_refused_with_its_place() -> None:
    assert get_metric("json").problem(('{"a": 1}',), ()) is None
    told = get_metric("json").problem(('{"a": }',), ())
    assert told == "the reference '{\"a\": }' is not valid JSON: Expecting value: line 1 column 7 (char 6)"


def test_tool_calls_may_come_in_any_order() -> None:
    calls = ['["f", {"a": 1}]', '["f", {"a": 2}]', '["g", {}]']
    read_answers = {
        read("tool_call", joint.join(order)) for order in itertools.permutations(calls) for joint in ("; ", ",", "\n")
    }
    assert len(read_answers) == 1
    reference = f"[{','.join(calls)}]"
    assert all(score("tool_call", "; ".join(order), reference) == 1 for order in itertools.permutations(calls))
    assert score("tool_call", "; ".join(calls[:2]), reference) == 0
    assert score("tool_call", "; ".join([*calls, calls[0]]), reference) == 0


def test_each_tool_call_needs_an_accepted_one_of_its_own() -> None:
    # The first call fits both references, and the second one only the first: in order of the texts, one would be left.
    reference = '{"f_1": {"a": [1, 2]}, "f_2": {"a": [1]}}'
    assert score("tool_call", '["f", {"a": 1}]; ["f", {"a": 2}]', reference) == 1
    assert score("tool_call", '["f", {"a": 2}]; ["f", {"a": 2}]', reference) == 0


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"city": "new york"}, 1), ({"city": "New-York", "unit": "c"}, 1), ({"city": "NYC", "when": {"day": 3}}, 1),
        ({"city": "NYC", "when": {"day": 4}}, 0), ({"city": "NYC", "at": [1, 2.0]}, 1),
        ({"city": "NYC", "at": [1]}, 0), ({"city": "NYC", "unit": True}, 0), ({"city": "Boston"}, 0),
        ({"unit": "C"}, 0), ({"city": "NYC", "more": 1}, 0),
    ],
)  # fmt: skip
def test_an_argument_has_one_of_the_accepted_values(arguments: dict[str, Any], right: int) -> None:
    accepted = {
        "city": ["New York", "NYC"], "unit": ["", "C", 1], "when": ["", {"day": [3]}], "at": ["", [1, 2]]
    }  # fmt: skip
    reference = json.dumps({"weather.now": accepted})
    assert score("tool_call", json.dumps(["weather_now", arguments]), reference) == right


def test_a_reference_that_is_no_tool_call_is_refused_and_never_raises() -> None:
    metric = get_metric("tool_call")
    assert metric.problem(('["f", {}]', "no call", '{"f": {"a": [1]}}'), ()) is None
    assert (
        metric.problem(("null",), ())
        == "the reference 'null' is no tool call: null has no name and arguments of a call"
    )
    assert metric.score('["f", {}]', ("null", '["f", {}]'), ()) == (1, '[["f",{}]]')
    assert get_metric("json").score("1", ("{", "1"), ()) == (1, "1")


def test_scores_of_tool_calls_agree_with_those_of_the_leaderboard() -> None:
    pool = Path(__file__).parents[2] / "shared/pools/bfcl-part.jsonl.xz"
    if not pool.is_file():
        pytest.skip("the pools of ../shared are not here")
    metric, agree = get_metric("tool_call"), []
    for line in lzma.decompress(pool.read_bytes()).splitlines()[::5]:
        row = json.loads(line)
        # Some responses of the log are in another form, and those of functions that were run have no reference.
        if metric.problem((str(row["reference"]),), ()) is None:
            scored = [
                (text, value) for text, value, _ in row["models"].values() if text and text.startswith(('["', "no "))
            ]
            agree += [
                score("tool_call", text, row["reference"]) == value
                for text, value in scored
                if read("tool_call", text) is not None
            ]
    assert len(agree) > 2_000
    assert sum(agree) / len(agree) > 0.97
