"""Requests to a token server: split, joined, counted, sent again; and another model behind the same address."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from test_drafting import drafter

from ensemble.common.background import in_background
from ensemble.decode.settings import MAX_DRAFT_TOKENS
from ensemble.errors import MemberError
from ensemble.runtime.draft import DraftMode, TextDrafts
from ensemble.servers.client import ServerError
from ensemble.servers.token_client import TokenClient, is_half, same_model
from ensemble.servers.token_server import Ids, Logprobs, NextToken, ServerLimits

pytestmark = pytest.mark.usefixtures("no_pauses")


def logprob(context: Ids, index: int) -> float:
    """Something that depends on the whole context."""
    return -((sum(context) * 7919 + index * 104729) % 997) / 97 - 0.0123


def threads() -> SimpleNamespace:
    """What a token server needs of a client that sends nothing."""
    start = partial(in_background, name="requests")
    return SimpleNamespace(connections=1, start=start, close=lambda: None)


@dataclass
class Server:
    """A server that keeps what it was sent, and fails as often as it is told to."""

    limits: ServerLimits = field(default_factory=lambda: ServerLimits(k=20, contexts=4, chosen=3))
    client: Any = field(default_factory=threads)
    failures: list[ServerError] = field(default_factory=list)
    sent: list[tuple[list[Ids], object]] = field(default_factory=list)
    value: Callable[[Ids, int], float] = logprob

    def write(self, contexts: Sequence[Ids], max_tokens: int, k: int) -> list[list[NextToken]]:
        self._note(contexts, (max_tokens, k))
        return [
            [NextToken(0, {n: self.value(context, n) for n in range(k)}) for _ in range(max_tokens)]
            for context in contexts
        ]

    def chosen(self, contexts: Sequence[Ids], ids: Ids) -> list[Logprobs]:
        self._note(contexts, list(ids))
        return [{index: self.value(context, index) for index in ids} for context in contexts]

    def tokenize(self, text: str) -> list[int] | None:
        raise ServerError(f"no path for {text}", "temporary", 500)

    def _note(self, contexts: Sequence[Ids], what: object) -> None:
        if self.failures:
            raise self.failures.pop()
        self.sent.append((list(contexts), what))


BUSY = ServerError("http://a accepts no more requests now (429)", "temporary", 429)


def test_many_contexts_go_in_parts_and_come_back_in_their_order() -> None:
    server = Server()
    contexts = [[n] for n in range(10)]
    answers = TokenClient("m", server, 1).write(contexts, 2, 3)()
    assert [tokens[0].top for tokens in answers] == [{n: logprob(each, n) for n in range(3)} for each in contexts]
    assert sorted(len(sent) for sent, _ in server.sent[1:]) == [2, 4, 4]
    # An answer with many values is asked for in parts, too.
    server = Server(ServerLimits(k=20_000, contexts=100, chosen=1))
    TokenClient("m", server, 1).write([[1], [2], [3]], 1, 20_000)()
    assert sorted(len(sent) for sent, _ in server.sent[1:]) == [1, 2]


@pytest.mark.parametrize(
    "ids", [[[5], [6], [7, 8]], [[1, 2, 3, 4, 5], [1]], [[9], [], [9]], [[1, 2], [2, 3], [3, 4]]], ids=str
)
def test_chosen_ids_of_each_context_come_back_however_they_are_split(ids: list[list[int]]) -> None:
    server = Server()
    contexts = [[n] for n in range(len(ids))]
    answers = TokenClient("m", server, 1).chosen(contexts, ids)()
    for context, wanted, answer in zip(contexts, ids, answers, strict=True):
        assert {index: answer[index] for index in wanted} == {index: logprob(context, index) for index in wanted}
    assert all(len(what) <= 3 for _, what in server.sent[1:] if isinstance(what, list))


def test_contexts_that_want_the_same_many_ids_share_their_requests() -> None:
    server = Server()
    TokenClient("m", server, 1).chosen([[1], [2], [3]], [[5, 6, 7, 8, 9]] * 3)()
    assert [(len(contexts), what) for contexts, what in server.sent[1:]] == [(3, [5, 6, 7]), (3, [8, 9])]


def test_a_busy_server_gets_the_same_request_again_and_a_second_one_is_counted_apart() -> None:
    server = Server()
    client = TokenClient("m", server, 5)
    server.failures = [BUSY, BUSY]
    assert client.write([[1, 2]], 1, 3)()[0][0].top[2] == logprob([1, 2], 2)
    assert (client.counts.requests, client.counts.failed) == (1, 2)
    client.chosen([[1]], [[2]])()
    assert (client.counts.requests, client.counts.second) == (2, 1)


@pytest.mark.parametrize(
    ("error", "patience"),
    [
        (ServerError("http://a refuses the request (400)", "refused", 400), 60),
        (ServerError("no server answers at http://a", "temporary"), 0.01),
    ],
)
def test_a_refused_request_is_not_sent_again_nor_one_after_the_patience(error: ServerError, patience: float) -> None:
    server = Server()
    client = TokenClient("m", server, patience)
    server.failures = [error] * 1000
    with pytest.raises(MemberError, match=f"^m: {re.escape(str(error))}$"):
        client.write([[1, 2]], 1, 3)()
    assert client.counts.requests == 0


@pytest.mark.parametrize("fault", ["failure", "connection"])
def test_another_model_is_noticed_after_a_fault(fault: str) -> None:
    server = Server()
    client = TokenClient("m", server, 5)
    server.value = lambda context, index: logprob(context, index) - 0.5 * index
    if fault == "failure":
        server.failures = [BUSY]
    else:
        server.client.connections += 1
    with pytest.raises(MemberError, match=r"^m: the server has another model or numeric type than at the start; "):
        client.write([[1, 2]], 1, 3)()


def test_a_server_that_cannot_tokenize_does_not_hold_the_start() -> None:
    assert TokenClient("m", Server(), 60).tokenize("text") is None


TOPS = [{n: logprob([m], n) for n in range(5)} for m in range(3)]


def moved(by: float) -> list[dict[int, float]]:
    return [{index: value + by for index, value in top.items()} for top in TOPS]


def halved() -> list[dict[int, float]]:
    """The same logits as bfloat16 writes them between 4 and 8, and the constant of a softmax."""
    return [{index: round(value * 32) / 32 - 0.777 for index, value in top.items()} for top in TOPS]


def test_half_precision_is_told_from_single_and_allows_more_rounding() -> None:
    assert (same_model(TOPS, moved(1e-4)), same_model(TOPS, moved(0.1))) == (True, False)
    assert (is_half(TOPS), is_half(halved())) == (False, True)
    assert not same_model(TOPS, halved())
    other = [{index: value + 1 / 32 for index, value in top.items()} for top in halved()]
    assert same_model(halved(), other)


def paced(
    seconds: Callable[[DraftMode, int], float], accepts: Callable[[DraftMode, int], int], steps: int = 300
) -> tuple[DraftMode, int]:
    """The way and the length of most of the last steps, each of which takes some seconds and accepts some tokens."""
    drafting, text = drafter("ahead", "check", "plain"), TextDrafts()
    made: list[tuple[DraftMode, int]] = []
    for _ in range(steps):
        way, (n,) = drafting.plan([text], [MAX_DRAFT_TOKENS])
        accepted = accepts(way, n) if n else 0
        if n:
            drafting.count(way, text, n, n, accepted, ended=False)
        drafting.note(way, 1, seconds(way, n), n + 1, accepted + 1)
        made.append((way, n))
    most = Counter(way for way, _ in made[-40:]).most_common(1)[0][0]
    return most, sorted(n for way, n in made[-40:] if way == most)[10]


def check_only(seconds: Callable[[int], float]) -> Callable[[DraftMode, int], float]:
    """Times where the other ways take for ever."""
    return lambda way, n: seconds(n) if way == "check" else 99.0


def test_drafts_are_as_long_as_requests_and_agreement_make_it_worth_while() -> None:
    near = paced(check_only(lambda n: 0.005 + 0.004 * n), lambda _, n: min(n, 4))
    far = paced(check_only(lambda n: 0.200 + 0.004 * n), lambda _, n: min(n, 4))
    assert (near[0], far[0]) == ("check", "check")
    assert near[1] < far[1]
    seldom = paced(check_only(lambda n: 0.01 + 0.003 * n), lambda _, n: min(n, 2))
    often = paced(check_only(lambda n: 0.01 + 0.003 * n), lambda _, n: min(n, 20))
    assert seldom[1] < often[1]
    assert paced(lambda _, n: 0.01 + 0.01 * n, lambda *_: 0) == ("plain", 0)
    assert paced(lambda way, n: {"ahead": 0.5, "check": 1.0, "plain": 0.6}[way] * (1 + n), lambda _, n: n)[0] == "ahead"


def test_drafts_begin_again_where_the_members_begin_to_agree() -> None:
    steps: list[int] = []

    def seconds(_: DraftMode, n: int) -> float:
        steps.append(n)
        return 0.01 + 0.001 * n

    way, _ = paced(seconds, lambda _, n: n if len(steps) > 100 else 0, steps=2000)
    assert (way != "plain", steps[50:90].count(0) > 30) == (True, True)
