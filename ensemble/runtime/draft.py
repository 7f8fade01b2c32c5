"""Drafting: the primary writes some tokens ahead, and the other members check them in one pass.

The members agree on most steps, so most of what the primary would write alone is what the ensemble writes. Reading
eight tokens at once takes a member hardly longer than reading one. Drafting changes no emitted token: the method
decides each one, from every member's logits at its position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
_STEPS, _TEXTS = 0.97, 0.95
"""How much the time of a step, and the acceptance of a draft, count against the next ones."""
_DITHER = (0, 1, 0, -1)
_RETRY = 32
"""Of so many steps one has a draft in any case, because members may begin to agree."""
_RETRY_TOKENS = 4
_REQUEST_PLACES = 3
"""Places that take about as long as a request, before anything is measured."""
_TRUST = 2.0
"""The variance of the number of places that outweighs that."""


class Drafter:
    """Chooses the tokens of a draft: the primary's greedy choice, while its probability is high.

    Args:
        tables: The primary's side of the joint vocabulary. A draft ends before EOS and before an id that is no
            candidate.
        longest: Tokens of the longest draft.
        min_probability: A draft ends before a token with a smaller probability. The others may want another token
            there, and what follows it would be lost.

    Attributes:
        max_tokens: Tokens of the next draft, at most.
    """

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

    def pace(self, seconds: float, places: float) -> None:
        """Note how long a step took, for so many places of each text (0 without a draft).

        A device gives each place at about the same cost, so this changes nothing here.
        """


class PacedDrafter(Drafter):
    """Sets the length of drafts by the time that requests take, for members in other processes.

    A step takes a time ``A`` for its requests, however long the drafts are, and ``B`` for each of their places. At each
    place the text ends with a probability ``e``, or the drafted token is accepted with a probability ``a``, or the draft
    is lost. So a draft of ``n`` tokens has ``1 + (1 - e) + ... + (1 - e)^n`` places, and emits ``1 + a + ... + a^n``
    tokens. The length with the most tokens per second follows from the measured values: long drafts where requests
    travel far or the members agree, and none where a step without a draft is faster.
    """

    def __init__(
        self, tables: MemberTables, longest: int = MAX_DRAFT_TOKENS, min_probability: float = MIN_REMOTE_PROBABILITY
    ) -> None:
        super().__init__(tables, longest, min_probability)
        self._accepted, self._lost, self._ended = 8.0, 1.0, 0.0
        self._plain: float | None = None
        # Sums over the steps so far, of which old ones count less: 1, x, x^2, t, x * t for x places in t seconds.
        self._sums = [0.0] * 5
        self._steps = 0

    def adapt(self, wanted: int, drafted: int, accepted: int, *, ended: bool) -> None:  # noqa: ARG002  # as Drafter
        """Count accepted and lost tokens; see :meth:`Drafter.adapt`."""
        # A draft that the primary ended, because it was not sure, is as short as one that the others ended.
        lost = accepted < wanted and not ended
        self._accepted = _TEXTS * self._accepted + accepted
        self._lost = _TEXTS * self._lost + lost
        self._ended = _TEXTS * self._ended + ended

    def pace(self, seconds: float, places: float) -> None:
        """Note how long a step took, and set the length of the next draft; 0 for a step without one."""
        self._steps += 1
        if places:
            new = (1, places, places**2, seconds, places * seconds)
            self._sums = [_STEPS * old + each for old, each in zip(self._sums, new, strict=True)]
        else:
            self._plain = seconds if self._plain is None else _STEPS * self._plain + (1 - _STEPS) * seconds
        if not self._sums[0]:
            return
        fixed, each = self._cost()
        events = self._accepted + self._lost + self._ended
        accepted, goes_on = self._accepted / events, 1 - self._ended / events

        def speed(n: int) -> float:
            return _sum_of_powers(accepted, n) / (fixed + each * _sum_of_powers(goes_on, n))

        best = max(range(1, self._longest + 1), key=speed)
        # Without a draft all members are asked at the same time, and with one the primary first.
        plain = each + fixed / 2 if self._plain is None else self._plain
        if 1 / plain > speed(best):
            self.max_tokens = 0 if self._steps % _RETRY else min(_RETRY_TOKENS, self._longest)
            return
        # Lengths beside the best one show how the time depends on the length.
        self.max_tokens = min(max(1, best + _DITHER[self._steps % len(_DITHER)]), self._longest)

    def _cost(self) -> tuple[float, float]:
        """The seconds of a step, and of each place: a line through the measured steps."""
        count, places, squares, seconds, products = self._sums
        mean, middle = seconds / count, places / count
        spread = squares / count - middle**2
        # Until the lengths differ, a request is taken to cost as much as some places.
        usual = mean / (middle + _REQUEST_PLACES)
        slope = (products / count - mean * middle + _TRUST * usual) / (spread + _TRUST)
        # Noise must make neither of them nothing.
        slope = min(max(slope, usual / 10), mean / middle)
        return mean - slope * middle, slope


def _sum_of_powers(base: float, n: int) -> float:
    """``1 + base + ... + base^n``."""
    return n + 1 if base == 1 else (1 - base ** (n + 1)) / (1 - base)
