"""Response-level methods: each against a slow implementation of its definition, and what each needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu import sentence_chrf

from ensemble.methods import get_module, make_options, voting
from ensemble.methods._response import ResponseMethod

WORDS = st.sampled_from(["the", "answer", "is", "7", "8", "cat", "sat", "", "été"])


def made(name: str, **options: Any) -> ResponseMethod:
    method: ResponseMethod = get_module(name).make(make_options(name, options))
    return method


def vote(answers: Sequence[str | None]) -> int:
    return int(voting.vote(voting.answer_codes([[answer] for answer in answers]))[0])


def choose(method: ResponseMethod, *texts: str, prompt: str = "?") -> int:
    return method.choose(prompt, texts, [None] * len(texts))


# --- Voting ---


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        (("7", "8", "8"), 1),
        (("7", "8", "9"), 0),  # a tie goes to the earliest of the tied members
        (("7", "8", "8", "7"), 0),
        (("9", "8", "7", "7", "8"), 1),  # which is not always the primary
        ((None, "8", "7", "7", "8"), 1),
        ((None, "8", "8"), 1),
        ((None, "8", None), 1),  # no answer has no vote
        ((None, None), 0),
        (("7", "8"), 0),
    ],
)
def test_a_vote_takes_the_answer_that_most_give_and_ties_go_to_the_earliest_member(
    answers: tuple[str | None, ...], chosen: int
) -> None:
    assert vote(answers) == chosen


@given(st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=7))
def test_no_answer_has_more_votes_than_the_chosen_one(answers: list[str | None]) -> None:
    votes = Counter(answer for answer in answers if answer is not None)
    chosen = answers[vote(answers)]
    assert (chosen is None and not votes) or votes[chosen] == max(votes.values())


# --- Minimum Bayes risk ---


@given(st.lists(st.lists(WORDS, max_size=6).map(" ".join), min_size=1, max_size=5))
def test_minimum_bayes_risk_is_the_response_with_the_highest_mean_chrf(texts: list[str]) -> None:
    gains = [
        sum(sentence_chrf(text, [other]).score for other in texts[:n] + texts[n + 1 :]) for n, text in enumerate(texts)
    ]
    chosen = choose(made("mbr"), *texts)
    assert gains[chosen] == pytest.approx(max(gains))
    assert all(gain < max(gains) - 1e-12 or gain == pytest.approx(max(gains)) for gain in gains[:chosen])
