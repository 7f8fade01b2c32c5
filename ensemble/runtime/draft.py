"""Drafting: some tokens are written ahead, and the members check them in one pass.

The members agree on most steps, so most of what the primary would write alone is what the ensemble writes. A text that
repeats itself needs not even the primary to write ahead. Reading eight tokens at once takes a member hardly longer than
reading one. Drafting changes no emitted token: the method decides each one, from every member's logits at its position.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from ensemble.runtime.forward_pass import to_device
from ensemble.vocabulary.joint import EOS, MemberTables

MAX_DRAFT_ROWS = 8
"""Texts with drafts at a time, if all members are here. More of them fill a device without drafts."""
MIN_PROBABILITY = 0.4
"""The smallest probability that the primary may give to a drafted token."""
MIN_REMOTE_PROBABILITY = 0.15
"""The same for members elsewhere: a token that is seldom accepted costs less than another request."""
_DRAWN_FROM = 32
"""The primary's likeliest tokens, from which a draft is drawn; the others have next to no probability."""
_FIRST_DRAFT_TOKENS = 8
"""Tokens of the first draft, when it is not yet known how often the others agree."""
_STEPS, _TEXTS = 0.93, 0.95
"""How much a step, and what became of a text's draft, count against the next ones."""
_WEIGHT_OF_OTHER_BATCH_SIZES = 0.2
"""The weight of steps with another number of texts, against 1."""
_SHARED = 4.0
"""Drafted tokens of other texts that a new text begins with, when its acceptance is estimated."""
_DITHER = (0, 1, 0, -1)
_TRIES, _RETRY = 2, 48
"""Steps with which each mode is tried at first; of so many steps, one is of the mode with the fewest steps."""
_WEIGHT_OF_EARLIER_ACCURACY = 0.9
"""The weight of what earlier steps emitted of their expected tokens; a new step has the rest."""
_ABOUT = 0.97
_SPEEDUP_WITHOUT_PLAIN_TRIALS = 2.0
"""The expected ratio of speeds, drafts to plain steps, from which plain steps are not tried."""
_LEAST_SPEEDUP_OF_DRAFTS = 1.1
"""The same ratio from which drafts are used: what they will emit is less certain."""
_USUAL_PLACES = 3
"""Places that take about as long as the rest of a step, before anything is measured."""
_TRUST = 2.0
"""Variance of draft lengths at which measurements replace the default cost model."""

_REPEATED = 3
"""Tokens that must be the same where a text repeats itself. Fewer are often followed by something else."""

DraftMode = Literal["ahead", "check", "repeat", "plain"]
"""How a step is made. ``ahead``: all members elsewhere write at the same time. ``check``: the primary writes, and then
the others check. ``repeat``: all check what followed the text's last tokens before. ``plain``: all give one place."""

Chance = tuple[float, float, Sequence[float]]
"""How a text's next tokens are drawn: temperature (0 for the likeliest token), top-p, a number in [0, 1) for each."""


class Draft:
    """The draft of a step: for each text the tokens that the primary alone would emit, likeliest or drawn likewise.

    Drafts have at most ``max_tokens`` each, of ids in ``candidates``, and end before a token less likely than
    ``min_probability``: the others may want another token there, and what follows would be lost. ``chances`` say how
    the tokens of each text are drawn; all are the likeliest ones if None.
    """

    def __init__(
        self,
        candidates: bytes,
        min_probability: float,
        max_tokens: Sequence[int],
        chances: Sequence[Chance] | None = None,
    ) -> None:
        self.tokens: list[list[int]] = [[] for _ in max_tokens]
        self.max_tokens, self.longest = max_tokens, max(max_tokens)
        self._candidates = candidates
        self._min_probability = min_probability
        self._chances = chances if chances and any(temperature for temperature, _, _ in chances) else None
        self._going = [True] * len(max_tokens)
        # On the device of the logits, moved there once for all places.
        self._drawing: tuple[Tensor, Tensor, Tensor] | None = None

    def choose(self, logits: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """The next tokens [texts] after logits [texts, V], and the probability of each."""
        # The logits may be raw: a wrong guess costs time and changes no emitted token.
        if self._chances is None:
            shares, tokens = logits.softmax(dim=1).max(dim=1)
            return tokens, shares
        return self._draw(logits, place)

    def take(self, tokens: Sequence[int], shares: Sequence[float], *, is_fed: bool) -> bool:
        """Append a token to each draft that goes on (``is_fed``: the primary read it); whether enough go on."""
        for n, (token, share) in enumerate(zip(tokens, shares, strict=True)):
            if self._going[n]:
                is_long = len(self.tokens[n]) >= self.max_tokens[n]
                self._going[n] = not is_long and share >= self._min_probability and self._is_candidate(token)
        # A forward pass takes about as long for one row as for all, so it must be worth it for many of them.
        if 2 * sum(self._going) < len(tokens) and not (is_fed and any(self._going)):
            return False
        for own, token, going in zip(self.tokens, tokens, self._going, strict=True):
            if going:
                own.append(token)
        return True

    def take_written(self, text: int, written: Sequence[tuple[int, Mapping[int, float]]]) -> None:
        """Take a text's draft from ids that a server wrote greedily, each with top log-probabilities."""
        temperature, _, uniform = self._chances[text] if self._chances else (0.0, 1.0, ())
        for place, (token, top) in enumerate(written[: self.max_tokens[text]]):
            share = math.exp(top.get(token, 0.0))
            if temperature:
                # The likeliest token comes first in the order in which a draw goes through all. A server may write
                # another one, by rounding; over a small temperature, the exponential of the difference has no float.
                own = top.get(token, 0.0)
                scaled = [math.exp(min(0.0, (logprob - own) / temperature)) for logprob in top.values()]
                share = 1 / max(1.0, sum(scaled))
            drawn = not temperature or uniform[place] < share
            if share < self._min_probability or not drawn or not self._is_candidate(token):
                break
            self.tokens[text].append(token)

    def take_found(self, found: Iterable[Sequence[int]]) -> None:
        """Take drafts that no model wrote, each up to its first token that is no candidate."""
        self.tokens = [
            list(itertools.takewhile(self._is_candidate, own[:most]))
            for own, most in zip(found, self.max_tokens, strict=True)
        ]

    def _is_candidate(self, token: int) -> bool:
        # Negative ids are those that an encoder reads.
        return 0 <= token < len(self._candidates) and bool(self._candidates[token])

    def _draw(self, logits: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """The tokens [texts] drawn at a place, and the probability of each among the likeliest ones."""
        if self._drawing is None:
            self._drawing = self._drawing_on(logits)
        temperature, top_p, uniform = self._drawing
        values, ids = logits.float().topk(min(_DRAWN_FROM, logits.shape[1]), dim=1)
        shares = (values / temperature[:, None]).softmax(dim=1)
        # As :func:`ensemble.step.distribution.sample` draws from the mean.
        before = shares.cumsum(dim=1) - shares
        kept = shares.masked_fill(before >= top_p[:, None], 0).cumsum(dim=1)
        drawn = torch.searchsorted(kept, (uniform[:, place] * kept[:, -1])[:, None], right=True)
        drawn.clamp_(max=ids.shape[1] - 1)
        return ids.gather(1, drawn)[:, 0], shares.gather(1, drawn)[:, 0]

    def _drawing_on(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Temperature, top-p and uniform numbers [texts, places]; a greedy text takes the first token of all."""
        chances = self._chances or ()
        longest = self.longest
        numbers = [[*uniform, *[0.0] * longest][:longest] if t else [0.0] * longest for t, _, uniform in chances]
        one = torch.tensor([[t or 1.0, p, *own] for (t, p, _), own in zip(chances, numbers, strict=True)])
        # One copy to the device for all three.
        one = to_device(one.clamp(min=1e-30), logits.device)
        return one[:, 0], one[:, 1], one[:, 2:]


class PromptLookup:
    """A text's ids, and the last index of each few ids in a row: what followed is a draft that no model writes."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        # For each run of ids, the place after its last occurrence that is followed by an id.
        self._after: dict[tuple[int, ...], int] = {}

    def read(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Read on: the ids are a prompt and tokens after it, which only grow."""
        # Only what is new is read, so a step costs the same however long the text is.
        known = len(self._ids)
        new = [*prompt[known:], *tokens[max(0, known - len(prompt)) :]]
        for place, token in enumerate(new, start=known):
            if place >= _REPEATED:
                self._after[tuple(self._ids[-_REPEATED:])] = place
            self._ids.append(token)

    def draft(self, most: int) -> list[int]:
        """What followed the last occurrence of the last ids; at most so many ids; empty if they are new."""
        start = self._after.get(tuple(self._ids[-_REPEATED:]))
        if start is None:
            return []
        # A text that repeats itself with a short period goes on with the draft itself.
        period = len(self._ids) - start
        return [self._ids[start + n % period] for n in range(most)]


class TextDrafts:
    """What became of a text's drafts, and where the primary's ids of prompt and text repeat themselves."""

    def __init__(self) -> None:
        self.repeats = PromptLookup()
        self._events: dict[DraftMode, _Events] = {}

    def events(self, mode: DraftMode) -> _Events:
        """Those of a mode."""
        return self._events.setdefault(mode, _Events())


class Drafter:
    """Chooses the mode of the next step and the lengths of its drafts, by measured times and by what was accepted.

    A step with drafts takes a time ``A``, however long the drafts are, and ``B`` for each place of them. At each place
    the draft ends with a probability ``e``, or the token is accepted with a probability ``a``, or the draft is lost. So
    a draft of ``n`` tokens has ``1 + (1 - e) + ... + (1 - e)^n`` places, and emits ``1 + a + ... + a^n`` tokens. The
    length with the most tokens per second follows: long drafts where requests travel far or the members agree. Each
    text has its own probabilities, which begin with those of the others. The mode is the one with the most tokens per
    second over all texts; with equal values the first of ``modes`` counts.
    """

    def __init__(
        self,
        tables: MemberTables,
        longest: int,
        modes: Sequence[DraftMode] = get_args(DraftMode),
        min_probability: float = MIN_PROBABILITY,
    ) -> None:
        self._candidates = bytes((tables.entry_of > EOS).to("cpu", torch.uint8).numpy())
        # A draft that is read only at its end, as on an accelerator, does not end earlier.
        self._ends_early = tables.entry_of.device.type == "cpu"
        self._longest = longest
        self._modes = [mode for mode in modes if longest or mode == "plain"]
        self._min_probability = min_probability
        self._events: dict[DraftMode, _Events] = {mode: _Events(8.0, 1.0) for mode in self._modes}
        self._records: dict[tuple[DraftMode, int], _Record] = {}
        self._steps = 0
        # Tokens per second that the step planned last is expected to emit; 0 if that is not known.
        self._promised = 0.0

    @property
    def repeats(self) -> bool:
        """Whether a text that repeats itself may be its own draft."""
        return "repeat" in self._modes

    @property
    def writes(self) -> bool:
        """Whether the primary may write drafts, which it does without the other members."""
        return not {"ahead", "check"}.isdisjoint(self._modes)

    def drafts(self, max_tokens: Sequence[int], chances: Sequence[Chance]) -> Draft:
        """The empty draft of a step."""
        return Draft(self._candidates, self._min_probability, max_tokens, chances)

    def plan(self, texts: Sequence[TextDrafts], rooms: Sequence[int]) -> tuple[DraftMode, list[int]]:
        """The mode of the next step and the length of each text's draft, at most that in ``rooms``."""
        self._steps += 1
        lengths = {mode: self._lengths(mode, texts, rooms) for mode in self._modes}
        # A mode that drafts nothing is a plain step.
        modes = [mode for mode in self._modes if mode == "plain" or any(lengths[mode])]
        if not modes:
            return "plain", [0] * len(texts)
        records = {mode: self._record(mode, len(texts)) for mode in modes}
        expected = {mode: self._expected(mode, texts, lengths[mode]) for mode in modes}
        speeds = {
            mode: tokens / records[mode].seconds(places) * records[mode].kept
            for mode, (tokens, places) in expected.items()
            if records[mode].steps
        }
        # A plain step takes about as long as one with drafts that have one place. Where they are much faster, it is not
        # worth a trial.
        single = max((len(texts) / records[mode].seconds(1) for mode in speeds if mode != "plain"), default=0.0)
        trials = [
            mode
            for mode in modes
            if mode != "plain" or not single or max(speeds.values()) < _SPEEDUP_WITHOUT_PLAIN_TRIALS * single
        ]
        untried = [mode for mode in trials if records[mode].steps < _TRIES]
        if untried:
            mode = untried[0]
        elif self._steps % _RETRY:
            mode = max(speeds, key=lambda mode: speeds[mode] * (_LEAST_SPEEDUP_OF_DRAFTS if mode == "plain" else 1.0))
        else:
            # Members may begin to agree, or a server may have been busy.
            mode = min(trials, key=lambda mode: records[mode].steps)
        self._promised = speeds.get(mode, 0.0)
        return mode, lengths[mode]

    def count(
        self, mode: DraftMode, text: TextDrafts, wanted: int, drafted: int, accepted: int, *, ended: bool
    ) -> None:
        """Count the accepted of the ``drafted`` tokens; where the text ``ended``, nothing is known of the others."""
        for events in (text.events(mode), self._events[mode]):
            # A draft that the primary ended, because it was not sure, is as short as one that the others ended.
            events.count(accepted, lost=accepted < wanted and not ended, ended=ended, short=drafted < wanted)

    def note(self, mode: DraftMode, rows: int, seconds: float, places: float, tokens: int) -> None:
        """Note the seconds of a step; ``places`` are the text's end and the drafted tokens of the longest draft."""
        self._record(mode, rows).note(seconds, places, tokens, self._promised * seconds)

    def _record(self, mode: DraftMode, rows: int) -> _Record:
        # Twice as many rows can take twice as long.
        rows = rows.bit_length()
        if (mode, rows) not in self._records:
            # The times of another number of rows are better than none, until a few new ones outweigh them.
            others = [each for each in self._records if each[0] == mode]
            nearest = min(others, key=lambda each: abs(each[1] - rows), default=None)
            self._records[mode, rows] = _Record() if nearest is None else self._records[nearest].faded()
        return self._records[mode, rows]

    def _lengths(self, mode: DraftMode, texts: Sequence[TextDrafts], rooms: Sequence[int]) -> list[int]:
        if mode == "plain":
            return [0] * len(texts)
        # Nothing can be repeated in a text whose last tokens are new.
        rooms = [
            room if mode != "repeat" or text.repeats.draft(1) else 0 for text, room in zip(texts, rooms, strict=True)
        ]
        record = self._record(mode, len(texts))
        if not record.steps:
            return [min(_FIRST_DRAFT_TOKENS, self._longest, room) for room in rooms]
        cost = record.cost()
        return [
            min(self._length(cost, *self._shares(mode, text)), room) if room else 0
            for text, room in zip(texts, rooms, strict=True)
        ]

    def _shares(self, mode: DraftMode, text: TextDrafts) -> tuple[float, float]:
        """At a place of a text's draft, the probability that its token is accepted, and that the draft goes on."""
        accepted, goes_on = text.events(mode).shares(self._events[mode])
        # What is drafted without a model has its length from the beginning.
        goes_on = goes_on if self._ends_early and mode != "repeat" else 1.0
        # Rounded, so that equal shares come again.
        return round(accepted, 2), round(goes_on, 2)

    def _length(self, cost: tuple[float, float], accepted: float, goes_on: float) -> int:
        fixed, each = cost
        speeds = [tokens / (fixed + each * places) for tokens, places in _sums(accepted, goes_on, self._longest)]
        # Of lengths that are about as fast, the longest takes the fewest requests. Those beside it show how the time
        # depends on the length.
        enough = _ABOUT * max(speeds)
        best = next(n for n in range(self._longest, 0, -1) if speeds[n - 1] >= enough)
        return min(max(1, best + _DITHER[self._steps % len(_DITHER)]), self._longest)

    def _expected(self, mode: DraftMode, texts: Sequence[TextDrafts], lengths: Sequence[int]) -> tuple[float, float]:
        """The tokens that a step is expected to emit, and the places of its longest draft."""
        sums = [
            _sums(*self._shares(mode, text), self._longest)[n - 1] if n else (1.0, 1.0)
            for text, n in zip(texts, lengths, strict=True)
        ]
        return sum(tokens for tokens, _ in sums), max(places for _, places in sums)


@lru_cache(maxsize=4096)  # it is needed for each text at each step, and takes longer than the rest of a plan
def _sums(accepted: float, goes_on: float, longest: int) -> tuple[tuple[float, float], ...]:
    """For drafts of 1, 2, ... tokens: ``1 + a + ... + a^n`` and ``1 + g + ... + g^n``."""
    tokens = places = power = other = 1.0
    found = []
    for _ in range(longest):
        power, other = power * accepted, other * goes_on
        tokens, places = tokens + power, places + other
        found.append((tokens, places))
    return tuple(found)


class _Events:
    """How often drafted tokens were accepted; old ones count less."""

    def __init__(self, accepted: float = 0.0, lost: float = 0.0) -> None:
        self._accepted, self._lost, self._ended, self._short = accepted, lost, 0.0, 0.0

    def count(self, accepted: int, *, lost: bool, ended: bool, short: bool) -> None:
        """Count what became of a draft: tokens accepted, and whether it was lost, the text ended, it was short."""
        self._accepted = _TEXTS * self._accepted + accepted
        self._lost = _TEXTS * self._lost + lost
        self._ended = _TEXTS * self._ended + ended
        self._short = _TEXTS * self._short + (ended or short)

    def shares(self, start: _Events) -> tuple[float, float]:
        """The probabilities that a token is accepted, and that the draft goes on; few events count little."""
        share = _SHARED / (start._accepted + start._lost + start._ended)
        accepted = self._accepted + share * start._accepted
        total = accepted + self._lost + self._ended + share * (start._lost + start._ended)
        return accepted / total, max(0.0, 1 - (self._short + share * start._short) / total)


class _Record:
    """What the steps of one mode took, old ones less; ``kept`` of the expected tokens were emitted, at most 1."""

    def __init__(self) -> None:
        self.steps = 0
        self.kept = 1.0
        # Sums over the steps: 1, x, x^2, t, x * t for x places in t seconds.
        self._sums = [0.0] * 5

    def note(self, seconds: float, places: float, tokens: float, promised: float) -> None:
        """Note a step, and the tokens that it was expected to emit in its time; 0 if that is not known."""
        if promised:
            # Not every place is as likely to be accepted: members may agree on how texts begin, and on little more.
            step = tokens * self.kept / promised
            self.kept = min(_WEIGHT_OF_EARLIER_ACCURACY * self.kept + (1 - _WEIGHT_OF_EARLIER_ACCURACY) * step, 1.0)
        self.steps += 1
        new = (1, places, places**2, seconds, places * seconds)
        self._sums = [_STEPS * old + each for old, each in zip(self._sums, new, strict=True)]

    def faded(self) -> _Record:
        """A copy that counts little."""
        copy = _Record()
        copy.steps, copy.kept, copy._sums = (
            self.steps,
            self.kept,
            [_WEIGHT_OF_OTHER_BATCH_SIZES * each for each in self._sums],
        )
        return copy

    def seconds(self, places: float) -> float:
        """The expected seconds of a step whose longest draft has so many places."""
        fixed, each = self.cost()
        return fixed + each * places

    def cost(self) -> tuple[float, float]:
        """The seconds of a step, and of each place: a line through the measured steps."""
        count, places, squares, seconds, products = self._sums
        mean, middle = seconds / count, places / count
        spread = squares / count - middle**2
        # Until the lengths differ, the rest of a step is taken to cost as much as some places.
        usual = mean / (middle + _USUAL_PLACES)
        slope = (products / count - mean * middle + _TRUST * usual) / (spread + _TRUST)
        # Noise must make neither of them nothing.
        slope = min(max(slope, usual / 10), usual * 2, mean / middle)
        return mean - slope * middle, slope
