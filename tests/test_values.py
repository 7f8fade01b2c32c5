"""Values that people bring: read in each form in which tools save them, or refused with the form in words."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from advisor.tasks.tables.values import (
    UnknownFormError,
    accepted_texts,
    option_texts,
    read_response,
    response_text,
)
from benchmarks.reading import measure


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 5, "reason": "a sum"}',
        '{"name": "f", "arguments": {"x": 1}}',
        '[{"name": "f", "arguments": {}}]',
        '[{"type": "person", "name": "Ann"}]',
        '{"choices": [{"id": 1}]}',
        '{"role": "admin", "content": "x"}',
        '["Paris"]',
        "[1, 2]",
        "{x",
    ],
)
def test_json_that_a_model_wrote_stays_text(text: str) -> None:
    assert response_text(text) == text


def test_what_a_provider_tells_of_a_response_is_kept() -> None:
    value = {
        "choices": [{"message": {"role": "assistant", "content": "", "reasoning": "2"}, "finish_reason": "length"}],
        "usage": {"completion_tokens": 7},
    }
    found = read_response(json.dumps(value))
    assert (found.text, found.thinking, found.finish, found.usage) == ("", ["2"], "length", {"completion_tokens": 7})
    assert read_response({"error": {"message": "too many requests", "code": 429}}).error == "too many requests"
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}
    assert read_response(cut).finish == "max_output_tokens"


@pytest.mark.parametrize(
    "text", ['{"city": "Paris"}', "[1, 2]", "[0, 1)", "{1, 2", "['a' if x else 'b']", '{"name": "f", "arguments": {}}']
)
def test_a_reference_that_is_an_object_or_a_list_of_numbers_stays_text(text: str) -> None:
    assert accepted_texts(text) == (text,)


def test_a_reference_in_an_unknown_form_is_refused_and_an_absent_one_has_no_text() -> None:
    with pytest.raises(UnknownFormError, match="an object with the keys city"):
        accepted_texts({"city": "Paris"})
    assert accepted_texts({"text": [], "answer_start": []}) is None
    assert accepted_texts("  ") is None
    assert accepted_texts({"short_answers": [], "yes_no_answer": ["YES"]}) == ("yes",)
    assert accepted_texts(5.0) == ("5",)


def test_every_form_is_read_right_or_refused() -> None:
    figures = measure()
    assert (figures["wrong"], figures["refused"]) == (0, 12)


@pytest.mark.parametrize("value", [{"red": 1, "green": 2}, {"A": "x", "C": "y"}, "red green", [{"a": 1}, {"b": 2}]])
def test_options_of_an_unknown_form_are_refused(value: object) -> None:
    with pytest.raises(UnknownFormError):
        option_texts(value)


HOSTILE = [
    *("[" * 50_000 + "]" * 50_000, "[" + "-" * 90_000 + "1]", "['" + "\\'" * 45_000 + "]", "[" + "'a' " * 20_000 + "]"),
    *(
        "[" + "1+" * 40_000 + "1]",
        "A. " * 50_000,
        "(" * 100_000,
        "{" * 1000 + "}" * 1000,
        "1" * 50_000,
        "a" + " " * 99_999,
    ),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_takes_little_time_and_raises_nothing_else(text: str) -> None:
    began = time.process_time()
    assert response_text(text) == text
    accepted_texts(text)
    for value in (text, {text: "x", "B": "y"}):
        with contextlib.suppress(UnknownFormError):
            option_texts(value)
    assert time.process_time() - began < 3
