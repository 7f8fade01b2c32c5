"""The sampler: what each row of a step emits, by the method's distribution, its gates, and the row's settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ensemble.errors import MemberError
from ensemble.models.member import Member
from ensemble.runtime.forward_pass import to_device
from ensemble.runtime.logits import Logits, fault
from ensemble.step import compiled
from ensemble.step.distribution import Distribution, greedy, sample
from ensemble.step.grammar import Allowed
from ensemble.step.token_method import AppendsOnly, Combine, TokenRule
from ensemble.step.trace import Step, StepLogprobs, explain, packed_candidates, packed_logprobs, step_logprobs
from ensemble.vocabulary.joint import EOS, NONE, texts_of
from ensemble.vocabulary.token_bytes import Vocabulary

NO_TOKEN = -2
"""The sampled token of a row with NaN, or with no entry that the primary can express."""
Run: TypeAlias = Callable[[int, Sequence[int]], Logits]
"""Runs a member, given by its number, for some rows in ascending order; returns its logits [rows, V]."""
Decide: TypeAlias = Callable[[Distribution, Sequence[int]], Distribution]
"""Leaves only those entries of some rows, given by their numbers, that the rows may choose."""
_CHOICE = 3
"""Numbers of each row's choice: the sum of its probabilities, the token, and the entries that were looked at."""


class Draw(NamedTuple):
    """How to choose a row's token; see :func:`ensemble.step.distribution.sample`."""

    temperature: float = 0.0  # 0 takes the likeliest entry
    top_p: float = 1.0  # in (0, 1]
    uniform: float = 0.0  # in [0, 1); decides the draw
    alternatives: int | None = None  # see :class:`ensemble.decode.settings.Settings`
    top_k: int = 0  # 0 for all entries


class SampledToken(NamedTuple):
    """What a row emits."""

    token: int  # as in :class:`ensemble.step.distribution.Distribution`; NO_TOKEN if nothing can be chosen
    vocabulary_entries: int  # those whose probabilities were looked at
    is_ensembled: bool  # whether several members decided
    step: Step | None = None  # for the trace; None unless requested
    logprobs: StepLogprobs | None = None  # its log-probability and those of alternatives; None unless requested


class Detokenizer:
    """Turns sampled tokens into the primary's ids and into bytes.

    A sampled token is an id of the primary. Or it is the number of the primary's ids plus an entry of the joint
    vocabulary, which the primary spells with several ids.
    """

    def __init__(self, vocabularies: Sequence[Vocabulary]) -> None:
        self._vocabularies = tuple(vocabularies)
        self._eos = min(vocabularies[0].eos_ids, default=NONE)
        self.size = vocabularies[0].size

    def ids(self, token: int) -> list[int]:
        """The primary's ids of a sampled token."""
        if token < self.size:
            # An id of the primary is emitted as it is: to spell its bytes again could give other ids.
            return [token]
        return self._vocabularies[0].continue_ids(self.entry_bytes(token - self.size) or b"")

    def data(self, token: int) -> bytes | None:
        """The bytes that a sampled token adds to the text; None for EOS."""
        if token == self._eos:
            return None
        return self._vocabularies[0].token_bytes(token) if token < self.size else self.entry_bytes(token - self.size)

    def entry_bytes(self, entry: int) -> bytes | None:
        """The bytes of an entry of the joint vocabulary; None for EOS."""
        return None if entry == EOS else texts_of(self._vocabularies)[entry]


class Sampler:
    """Chooses a token for each row of a step, and explains it for a trace."""

    def __init__(self, rule: TokenRule, members: int, detokenizer: Detokenizer, *, trace: bool) -> None:
        self._rule = rule
        self._members = members
        self._detokenizer = detokenizer
        self._trace = trace

    def __call__(
        self,
        logits: Sequence[Logits],
        draws: Sequence[Draw],
        appends_only: AppendsOnly,
        run: Run | None = None,
        allowed: Allowed | None = None,
    ) -> list[SampledToken]:
        """Choose for each row, independently of others, by logits [B, V_i] of each member that does not wait.

        ``run`` runs a member that waits; None if ``logits`` has all members'. Where texts follow a grammar, ``allowed``
        says which entries count, and the logits are changed in place.
        """
        rule = self._rule
        decide: Decide = _as_it_is
        if allowed is not None:
            decide = allowed.decide
            for member, values in enumerate(logits):
                allowed.restrict(member, values, range(len(draws)))
            run = run and partial(_restricted, run, allowed)
        alone = rule.primary_alone if self._members > 1 else None
        if alone is not None and rule.needs_others is not None:
            run = run or (lambda member, rows: logits[member][[*rows]])
            return self._behind_a_gate(rule.needs_others(logits[0]), logits[0], alone, draws, run, decide)
        step = decide(self._combine(draws)(logits), range(len(draws)))
        closed: list[int] = []
        # Only the rows whose gate is closed are combined again: a method over a whole vocabulary takes long.
        if alone is not None and rule.gate is not None:
            closed = [row for row, is_open in enumerate(rule.gate(step, appends_only)) if not is_open]
        # After the gate, which compares the members' own probabilities.
        picks = [_Pick(self._revised(step), draws, is_ensembled=self._members > 1, trace=self._trace)]
        if closed and alone is not None:
            picks.append(self._alone(decide(alone([logits[0][closed]]), closed), [draws[row] for row in closed]))
        sampled, *others = _read(picks, self._detokenizer)
        for own in others:
            for row, token in zip(closed, own, strict=True):
                sampled[row] = token
        return sampled

    def _behind_a_gate(
        self,
        is_open: Tensor,
        own: Logits,
        alone: Combine,
        draws: Sequence[Draw],
        run: Run,
        decide: Decide,
    ) -> list[SampledToken]:
        """Choose where the other members run only for the rows whose gate is open: `is_open` [B]."""
        # The primary chooses in all rows, so that one copy from the device brings the gate and these choices.
        pick = self._alone(decide(alone([own]), range(len(draws))), draws)
        gate = is_open.to(pick.numbers)[:, None]
        rows = torch.cat([gate, pick.numbers], dim=1).tolist()
        opened = [n for n, row in enumerate(rows) if row[0]]
        sampled = pick.read([row[1:] for row in rows], self._detokenizer)
        if opened:
            chosen = [draws[row] for row in opened]
            first = own if len(opened) == len(draws) else own[opened]
            logits = [first, *(run(member, opened) for member in range(1, self._members))]
            step = self._revised(decide(self._combine(chosen)(logits), opened))
            (together,) = _read([_Pick(step, chosen, is_ensembled=True, trace=self._trace)], self._detokenizer)
            for row, token in zip(opened, together, strict=True):
                sampled[row] = token
        return sampled

    def _revised(self, step: Distribution) -> Distribution:
        """The distribution that a token is chosen from. A single member's is not changed."""
        return self._rule.revise(step) if self._rule.revise is not None and self._members > 1 else step

    def _alone(self, step: Distribution, draws: Sequence[Draw]) -> _Pick:
        return _Pick(step, draws, is_ensembled=False, trace=self._trace)

    def _combine(self, draws: Sequence[Draw]) -> Combine:
        """The cheapest combination that is enough for these draws."""
        rough = self._rule.combine_greedy
        # Draws, log-probabilities and traces need exact probabilities.
        return self._rule.combine if rough is None or self._trace or not _are_plain(draws) else rough


class _Pick:
    """What the rows of a step choose: numbers on the step's device, until one copy brings them to the host.

    The ``numbers`` [B, n] are in float64, which holds ids exactly.
    """

    def __init__(self, step: Distribution, draws: Sequence[Draw], *, is_ensembled: bool, trace: bool) -> None:
        self._draws, self._is_ensembled, self._trace = draws, is_ensembled, trace
        # Where nothing is drawn or told, the choice is all.
        choices = None if trace or not _are_plain(draws) else compiled.choice(step)
        if choices is not None:
            self.numbers = choices
            return
        winners = _winners(step, draws).unsqueeze(1)
        # NaN where a probability is. In float64, so that all of them are when they are joined.
        total = step.mean.sum(dim=1, keepdim=True, dtype=torch.float64)
        tokens = step.ids.gather(1, winners)
        columns = [total, tokens, step.present.sum(dim=1, keepdim=True)]
        counts = {row: n for row, draw in enumerate(draws) if (n := draw.alternatives) is not None}
        if counts:
            columns.append(packed_logprobs(step, tokens, counts))
        self._traced = len(columns) - _CHOICE
        if trace:
            columns += packed_candidates(step, winners)
        self._ends = [*accumulate(column.shape[1] for column in columns)][_CHOICE - 1 :]
        self.numbers = torch.cat(columns, dim=1)

    def read(self, rows: Sequence[Sequence[float]], texts: Detokenizer) -> list[SampledToken]:
        sampled = []
        for row, draw in zip(rows, self._draws, strict=True):
            total, token, entries = row[:_CHOICE]
            if math.isnan(total) or token == NONE:
                sampled.append(SampledToken(NO_TOKEN, int(entries), self._is_ensembled))
            elif len(row) == _CHOICE:
                sampled.append(SampledToken(int(token), int(entries), self._is_ensembled))
            else:
                told = self._told(row, draw, int(token), texts)
                sampled.append(SampledToken(int(token), int(entries), self._is_ensembled, *told))
        return sampled

    def _told(
        self, row: Sequence[float], draw: Draw, token: int, texts: Detokenizer
    ) -> tuple[Step | None, StepLogprobs | None]:
        """What is told about a choice: its explanation and its log-probabilities, as far as they are requested."""
        parts = [row[start:end] for start, end in pairwise(self._ends)]
        step = logprobs = None
        if draw.alternatives is not None:
            logprobs = step_logprobs(parts[0], token, draw.alternatives, texts.data)
        if self._trace:
            # The log-probabilities come before it, if any row requests them.
            step = explain(parts[self._traced :], texts.entry_bytes, texts.data(token), texts.size)
        return step, logprobs


def _as_it_is(step: Distribution, rows: Sequence[int]) -> Distribution:  # noqa: ARG001  # one of two functions
    return step


def _restricted(run: Run, allowed: Allowed, member: int, rows: Sequence[int]) -> Logits:
    """The logits of a member that waits, for texts that follow a grammar."""
    logits = run(member, rows)
    allowed.restrict(member, logits, rows)
    return logits


def _read(picks: Sequence[_Pick], texts: Detokenizer) -> list[list[SampledToken]]:
    if len(picks) == 1:
        return [picks[0].read(picks[0].numbers.tolist(), texts)]
    # One copy from the device for all steps, since each copy waits for it.
    numbers = iter(torch.cat([pick.numbers.flatten() for pick in picks]).tolist())
    shapes = [pick.numbers.shape for pick in picks]
    tables = [[list(islice(numbers, width)) for _ in range(rows)] for rows, width in shapes]
    return [pick.read(table, texts) for pick, table in zip(picks, tables, strict=True)]


def no_token(ran: Iterable[tuple[Member, Logits]], rows: Sequence[int], where: str = "") -> MemberError:
    """The error of a text for which no token can be chosen, by the members that ran and the text's rows."""
    for member, own in ran:
        if reason := next((why for row in rows if (why := fault(own, row))), None):
            return MemberError(f"{reason}{where}", of=member.name)
    return MemberError(f"no member has a candidate token{where}")


def _are_plain(draws: Sequence[Draw]) -> bool:
    """Whether the likeliest entries are taken, and no log-probabilities are told."""
    return not any(draw.temperature or draw.alternatives is not None for draw in draws)


def _winners(step: Distribution, draws: Sequence[Draw]) -> Tensor:
    """The index [B] of the entry that each row chooses."""
    drawing = [draw.temperature > 0 for draw in draws]
    if not any(drawing):
        return greedy(step)
    # One copy to the device for all numbers, for which the host does not wait.
    rows = [(draw.temperature, draw.top_p, draw.uniform, draw.top_k) for draw in draws]
    numbers = to_device(torch.tensor(rows, dtype=torch.float64), step.mean.device)
    temperature, top_p, uniform, top_k = numbers.unbind(dim=1)
    # A greedy row takes part in the draw at temperature 1, and its result is not used.
    is_drawn = temperature > 0
    limits = top_k if any(draw.top_k for draw in draws) else None
    drawn = sample(step, temperature.where(is_drawn, 1.0), top_p, uniform.float(), limits)
    return drawn if all(drawing) else torch.where(is_drawn, drawn, greedy(step))
