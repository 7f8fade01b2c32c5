"""Drafting: the primary writes some tokens ahead, and the other members check them in one pass.

The members agree on most steps, so most of what the primary would write alone is what the ensemble writes. Reading
eight tokens at once takes a member hardly longer than reading one. Drafting changes no emitted token: the method
decides each one, from every member's logits at its position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ensemble.vocabulary.joint import EOS, NONE, MemberTables

MAX_DRAFT_TOKENS = 24
"""Tokens of the longest draft."""
MIN_PROBABILITY = 0.5
"""The smallest probability that the primary may give to a drafted token."""
MIN_REMOTE_PROBABILITY = 0.15
"""The same for members elsewhere: a token that is seldom accepted costs less than another request."""
_FIRST_DRAFT_TOKENS = 8
"""Tokens of the first draft, when it is not yet known how often the others agree."""
_STEPS, _TEXTS = 0.93, 0.95
"""How much a step, and what became of a text's draft, count against the next ones."""
_DITHER = (0, 1, 0, -1)
_TRIES, _RETRY = 2, 48
"""Steps with which each way is tried at first; of so many steps, one is of the way with the fewest steps."""
_ABOUT = 0.97
_MANY = 3.0
"""Tokens of a text that a draft emits on average; where it is more, plain steps are not tried."""
_REQUEST_PLACES = 3
"""Places that take about as long as a request, before anything is measured."""
_TRUST = 2.0
"""The variance of the number of places that outweighs that."""


Way = Literal["ahead", "check", "plain"]
"""How members elsewhere make a step: all write ahead at the same time; or the primary writes, and then the others
check; or all give one place."""


class Drafter:
    """Chooses the tokens of a draft: the primary's greedy choice, while its probability is high.

    Args:
        tables: The primary's side of the joint vocabulary. A draft ends before EOS and before an id that is no
            candidate.
        longest: Tokens of the longest draft.
        min_probability: A draft ends before a token with a smaller probability. The others may want another token
            there, and what follows it would be lost.

    Attributes:
        max_tokens: Tokens of the next draft, at most; 0 for a step without one.
        way: How members elsewhere make the next step; see :data:`Way`.
    """

    way: Way = "check"

    def __init__(
        self, tables: MemberTables, longest: int = MAX_DRAFT_TOKENS, min_probability: float = MIN_PROBABILITY
    ) -> None:
        self._tables = tables
        self._longest = longest
        self.min_probability = min_probability
        self.max_tokens = min(_FIRST_DRAFT_TOKENS, longest)

    def __call__(self, logits: Tensor) -> int | None:
        """The next token after logits [1, V]; None ends the draft."""
        # The maximum and one sum: a softmax would write a row as long as the vocabulary.
        best, token = logits.max(dim=1)
        is_sure = (best - logits.logsumexp(dim=1)).exp() >= self.min_probability
        # The logits may be raw: a wrong guess costs time and changes no emitted token.
        chosen = torch.where(is_sure & (self._tables.entry_of[token] > EOS), token, NONE)
        # One copy from the device, since each copy waits for it.
        index = int(chosen)
        return None if index == NONE else index

    def sure_tokens(self, written: Sequence[tuple[int, float]]) -> list[int]:
        """The draft in what a server wrote.

        Args:
            written: The ids, and the log-probability of each.
        """
        threshold, draft = math.log(self.min_probability), []
        for token, logprob in written:
            if logprob < threshold or not self._is_candidate(token):
                break
            draft.append(token)
        return draft

    def _is_candidate(self, token: int) -> bool:
        entry_of = self._tables.entry_of
        return token < len(entry_of) and int(entry_of[token]) > EOS

    def adapt(self, wanted: int, drafted: int, accepted: int, *, ended: bool) -> None:  # noqa: ARG002  # as PacedDrafter
        """Set the length of the next draft: shorter after a rejected token, longer after a draft accepted as a whole.

        So members that want different things lose little by drafting.

        Args:
            wanted: Tokens that the draft might have had.
            drafted: Tokens that it had.
            accepted: Tokens that were emitted.
            ended: Whether the text ended there, which says nothing about how often the others agree.
        """
        if drafted and not ended:
            long = min(self._longest, max(self.max_tokens, 2 * drafted))
            self.max_tokens = accepted + 1 if accepted < drafted else long

    def pace(self, seconds: float, places: float, tokens: float) -> None:
        """Note how long a step took. A device gives each place at about the same cost, so nothing follows here.

        Args:
            seconds: The time.
            places: Places of each text, on average: its end, and the tokens of its draft; 0 without a draft.
            tokens: Tokens emitted for each text, on average.
        """


class PacedDrafter(Drafter):
    """Chooses the way of the next step and the length of its draft by measured times, for members elsewhere.

    A step with a draft takes a time ``A`` for its requests, however long the drafts are, and ``B`` for each of their
    places. At each place the text ends with a probability ``e``, or the token is accepted with a probability ``a``, or
    the draft is lost. So a draft of ``n`` tokens has ``1 + (1 - e) + ... + (1 - e)^n`` places, and emits
    ``1 + a + ... + a^n`` tokens. The length with the most tokens per second follows from the measured values: long
    drafts where requests travel far or the members agree. The way is the one that emitted the most tokens per second.

    Args:
        tables: See :class:`Drafter`.
        longest: See :class:`Drafter`; 0 leaves plain steps only.
        ways: The ways to choose from.
        min_probability: See :class:`Drafter`.
    """

    def __init__(
        self,
        tables: MemberTables,
        longest: int = MAX_DRAFT_TOKENS,
        ways: Sequence[Way] = get_args(Way),
        min_probability: float = MIN_REMOTE_PROBABILITY,
    ) -> None:
        super().__init__(tables, longest, min_probability)
        # With equal values the first way counts; plain steps are tried last.
        self._records = {way: _Record() for way in ways if longest or way == "plain"}
        self._steps = 0
        self._choose()

    def adapt(self, wanted: int, drafted: int, accepted: int, *, ended: bool) -> None:  # noqa: ARG002  # as Drafter
        """Count accepted and lost tokens; see :meth:`Drafter.adapt`."""
        # A draft that the primary ended, because it was not sure, is as short as one that the others ended.
        self._records[self.way].count(accepted, lost=accepted < wanted and not ended, ended=ended)

    def pace(self, seconds: float, places: float, tokens: float) -> None:
        """Note how long a step took, and choose the next one; see :meth:`Drafter.pace`."""
        self._records[self.way if places else "plain"].note(seconds, places, tokens)
        self._steps += 1
        self._choose()

    def _choose(self) -> None:
        # Where a draft emits many tokens, a step for each of them is not worth a trial.
        tokens = max(record.tokens for record in self._records.values())
        ways = [way for way in self._records if way != "plain" or tokens < _MANY or len(self._records) == 1]
        untried = [way for way in ways if self._records[way].steps < _TRIES]
        if untried:
            self.way = untried[0]
        elif self._steps % _RETRY:
            self.way = max(ways, key=lambda way: self._records[way].speed)
        else:
            # Members may begin to agree, or a server may have been busy.
            self.way = min(ways, key=lambda way: self._records[way].steps)
        self.max_tokens = 0 if self.way == "plain" else self._length(self._records[self.way])

    def _length(self, record: _Record) -> int:
        """The length of the next draft."""
        if not record.steps:
            return min(_FIRST_DRAFT_TOKENS, self._longest)
        fixed, each = record.cost()
        accepted, goes_on = record.shares()

        def speed(n: int) -> float:
            return _sum_of_powers(accepted, n) / (fixed + each * _sum_of_powers(goes_on, n))

        lengths = range(1, self._longest + 1)
        fastest = max(map(speed, lengths))
        # Of lengths that are about as fast, the longest takes the fewest requests. Those beside it show how the time
        # depends on the length.
        best = max(n for n in lengths if speed(n) >= _ABOUT * fastest)
        return min(max(1, best + _DITHER[self._steps % len(_DITHER)]), self._longest)


class _Record:
    """What the steps of one way took and gave; old ones count less."""

    def __init__(self) -> None:
        self.steps = 0
        self._accepted, self._lost, self._ended = 8.0, 1.0, 0.0
        self._tokens = self._seconds = 0.0
        # Sums over the steps: 1, x, x^2, t, x * t for x places in t seconds.
        self._sums = [0.0] * 5

    def count(self, accepted: int, *, lost: bool, ended: bool) -> None:
        """Count what became of a text's draft."""
        self._accepted = _TEXTS * self._accepted + accepted
        self._lost = _TEXTS * self._lost + lost
        self._ended = _TEXTS * self._ended + ended

    def note(self, seconds: float, places: float, tokens: float) -> None:
        """Note a step."""
        self.steps += 1
        new = (1, places, places**2, seconds, places * seconds)
        self._sums = [_STEPS * old + each for old, each in zip(self._sums, new, strict=True)]
        self._tokens, self._seconds = _STEPS * self._tokens + tokens, _STEPS * self._seconds + seconds

    @property
    def tokens(self) -> float:
        """Tokens of a text per step."""
        return self._tokens / self._sums[0] if self.steps else 0.0

    @property
    def speed(self) -> float:
        """Tokens of a text per second."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def shares(self) -> tuple[float, float]:
        """At a place of a draft, the probability that its token is accepted, and that the text goes on."""
        events = self._accepted + self._lost + self._ended
        return self._accepted / events, 1 - self._ended / events

    def cost(self) -> tuple[float, float]:
        """The seconds of a step, and of each place: a line through the measured steps."""
        count, places, squares, seconds, products = self._sums
        mean, middle = seconds / count, places / count
        spread = squares / count - middle**2
        # Until the lengths differ, a request is taken to cost as much as some places.
        usual = mean / (middle + _REQUEST_PLACES)
        slope = (products / count - mean * middle + _TRUST * usual) / (spread + _TRUST)
        # Noise must make neither of them nothing.
        slope = min(max(slope, usual / 10), usual * 2, mean / middle)
        return mean - slope * middle, slope


def _sum_of_powers(base: float, n: int) -> float:
    """``1 + base + ... + base^n``."""
    return n + 1 if base == 1 else (1 - base ** (n + 1)) / (1 - base)
