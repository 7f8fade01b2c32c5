"""ABE: each member writes its own tokens, and only tokens whose texts agree are taken together.

"Token-level Ensembling of Models with Different Vocabularies" (Wicks et al., 2025), with what its authors' code does
where a description needs it. A hypothesis holds for each member i its tokens, their text ``x_i`` and the sum ``s_i`` of
their log-probabilities. The texts agree: each is a beginning of the longest one, ``x``. In a step each member appends a
token, but a member that is ahead of another one stalls: it keeps its text until the others have caught up. A tuple of
tokens is allowed if the texts agree again. A member that appends EOS has ended: then no text may grow beyond its text.

The allowed tuples of all hypotheses are taken in the order of ``sum_i w_i s_i / (n_i + 1)``, with the weights ``w_i``
and the number ``n_i`` of a member's tokens before the step. The first ``beams`` of them go on. A hypothesis is complete
when all members have ended. The text is the complete one with the largest ``sum_i w_i s_i``, without a division by
lengths. The search ends with ``beams`` complete hypotheses, or when none that goes on has a larger sum than the best.

The authors go through the product of the members' vocabularies best first, up to 10,000 tuples. Here members are chosen
one after the other, and a tuple is left as soon as two members disagree. The tuples and their order are the same, and
no limit is needed. Two points differ:

- Texts are compared as bytes, and tokens without a text are no candidates.
- A member that has ended stays so. In the authors' code it can append tokens after EOS once the others catch up.

``max_new_tokens`` counts the primary's tokens. A stop string in the primary's text completes a hypothesis, too.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ensemble.decode.prompt_decoder import PromptDecoder, PromptMethod, PromptText
from ensemble.decode.sequences import FinishReason, Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.decode.stream import first_stop
from ensemble.errors import InputError, MemberError
from ensemble.methods import Method
from ensemble.models.member import Member
from ensemble.runtime.local_runner import common_prefix
from ensemble.step.byte_model import SortedVocabulary
from ensemble.step.distribution import candidate_logits
from ensemble.step.token_method import Setup

METHOD = Method(
    level="span",
    summary="beam search over the members' own tokens whose texts agree (ABE, Wicks et al., 2025)",
    when="translation and other short texts, by members of similar quality with different vocabularies",
)
STALL = -1
"""A choice: the member appends nothing."""

Choices = tuple[NDArray[np.float64], NDArray[np.int64]]
"""What a member may append, the best first: each choice's part of the score, and its place among the tokens in the
order of their bytes. The place after the last token is that of EOS."""
Lead = tuple[bytes, bool]
"""The longest text of the members that have chosen, and whether one of them has ended, so that none may be longer."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ABE.

    Attributes:
        beams: Hypotheses that go on after a step, at least 1 (5 in the authors' code; 1 is greedy).
    """

    beams: int = 5

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise InputError(f"beams is {self.beams}; the search needs at least 1")


def make(setup: Setup, options: Options) -> PromptMethod:
    """Make the method."""
    # Sorted once: a vocabulary has 100,000 tokens.
    sides = zip(setup.members, setup.joint.members, strict=True)
    members = [(member, SortedVocabulary(member, tables)) for member, tables in sides]
    return partial(AgreementDecoder, members, setup.weights, options.beams)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What the members have written.

    Attributes:
        tokens: For each member its tokens, without EOS.
        texts: For each member their bytes.
        sums: For each member the sum of its log-probabilities.
        ended: For each member whether it has appended EOS.
        row: The row of the hypothesis that it continues.
    """

    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[bytes, ...]
    sums: tuple[float, ...]
    ended: tuple[bool, ...]
    row: int

    def score(self, weights: Sequence[float]) -> float:
        """The weighted sum of the log-probabilities, which decides between complete hypotheses."""
        return sum(w * s for w, s in zip(weights, self.sums, strict=True))

    def stalled(self, member: int) -> bool:
        """Whether a member waits for others."""
        shortest, longest = min(map(len, self.texts)), max(map(len, self.texts))
        is_ahead = shortest < len(self.texts[member]) == longest and not any(self.ended)
        return self.ended[member] or is_ahead


class Agreement:
    """The ways to continue a hypothesis.

    Args:
        hypothesis: The hypothesis.
        vocabularies: The members' tokens.
        shares: For each member the log-probabilities [n + 1] of its tokens, in the order of their bytes, and of EOS.
        weights: One for each member.
    """

    def __init__(
        self,
        hypothesis: Hypothesis,
        vocabularies: Sequence[SortedVocabulary],
        shares: Sequence[NDArray[np.float64]],
        weights: Sequence[float],
    ) -> None:
        self.hypothesis, self._vocabularies, self._shares = hypothesis, vocabularies, shares
        self._factors = [w / (len(ids) + 1) for w, ids in zip(weights, hypothesis.tokens, strict=True)]
        self.start: Lead = (max(hypothesis.texts, key=len), any(hypothesis.ended))
        opening = [self.choices(n, self.start) for n in range(len(shares))]
        # The first member's choices are the first to be taken.
        self.opening = opening[0]
        best = [values[:1] for values, _ in opening]
        # Of each member's best choice and those of the members after it.
        self.rest = [sum(float(b[0]) if len(b) else -math.inf for b in best[n:]) for n in range(len(best) + 1)]

    def choices(self, member: int, lead: Lead) -> Choices:
        """What a member may append after the choices of others."""
        longest, is_closed = lead
        own, factor = self.hypothesis.texts[member], self._factors[member]
        done = factor * self.hypothesis.sums[member]
        if self.hypothesis.stalled(member):
            return np.array([done]), np.array([STALL])
        left = longest[len(own) :]
        places = self._vocabularies[member].agreeing(left, longer=not is_closed)
        eos = len(self._vocabularies[member].ids)
        if not left and self._vocabularies[member].has_eos:
            places = np.append(places, eos)
        places = places[self._shares[member][places] > -math.inf]
        values = done + factor * self._shares[member][places]
        order = np.argsort(-values, kind="stable")
        return values[order], places[order]

    def after(self, member: int, lead: Lead, place: int) -> Lead:
        """The lead after a member's choice."""
        longest, is_closed = lead
        if place == STALL:
            return lead
        if place == len(self._vocabularies[member].ids):
            return longest, True
        text = self.hypothesis.texts[member] + self._vocabularies[member].data(place)
        return max(longest, text, key=len), is_closed

    def continued(self, row: int, places: Sequence[int]) -> Hypothesis:
        """The hypothesis with a tuple of choices."""
        tokens, texts, sums, ended = [], [], [], []
        for n, (vocabulary, place) in enumerate(zip(self._vocabularies, places, strict=True)):
            is_token = STALL < place < len(vocabulary.ids)
            tokens.append((*self.hypothesis.tokens[n], *([int(vocabulary.ids[place])] if is_token else [])))
            texts.append(self.hypothesis.texts[n] + (vocabulary.data(place) if is_token else b""))
            sums.append(self.hypothesis.sums[n] + (0.0 if place == STALL else float(self._shares[n][place])))
            ended.append(self.hypothesis.ended[n] or place == len(vocabulary.ids))
        return Hypothesis(tuple(tokens), tuple(texts), tuple(sums), tuple(ended), row)


def best_first(agreements: Sequence[Agreement]) -> Iterator[tuple[int, list[int]]]:
    """The allowed tuples of several hypotheses, the one with the largest score first.

    Yields:
        The hypothesis's number, and a choice of each member.
    """
    numbers = count()
    heap: list[tuple[float, int, int, list[int], float, Lead, Choices, int]] = []

    def push(n: int, chosen: list[int], score: float, lead: Lead, choices: Choices, rank: int) -> None:
        if rank < len(choices[0]):
            # No tuple that begins with these choices has a larger score.
            bound = score + float(choices[0][rank]) + agreements[n].rest[len(chosen) + 1]
            if bound > -math.inf:
                heapq.heappush(heap, (-bound, next(numbers), n, chosen, score, lead, choices, rank))

    for n, agreement in enumerate(agreements):
        push(n, [], 0.0, agreement.start, agreement.opening, 0)
    while heap:
        _, _, n, chosen, score, lead, choices, rank = heapq.heappop(heap)
        push(n, chosen, score, lead, choices, rank + 1)
        agreement, place = agreements[n], int(choices[1][rank])
        longer = [*chosen, place]
        if len(longer) == len(agreement.rest) - 1:
            yield n, longer
            continue
        next_lead = agreement.after(len(chosen), lead, place)
        total = score + float(choices[0][rank])
        push(n, longer, total, next_lead, agreement.choices(len(longer), next_lead), 0)


class _RunningText(PromptText):
    """A text with its hypotheses."""

    def __init__(self, number: int, prompts: Sequence[list[int]]) -> None:
        super().__init__(number, prompts)
        members = len(prompts)
        self.beams = [Hypothesis(((),) * members, (b"",) * members, (0.0,) * members, (False,) * members, 0)]
        # For each complete hypothesis its score, its text, the primary's tokens, and what ended it.
        self.complete: list[tuple[float, bytes, tuple[int, ...], FinishReason]] = []


class AgreementDecoder(PromptDecoder):
    """Continues prompts by tokens that agree; see :class:`ensemble.decode.prompt_decoder.PromptDecoder`.

    Args:
        members: The members with their tokens, the primary first.
        weights: One for each member.
        beams: See :class:`Options`.
        prompts: For each prompt its ids in every member's vocabulary.
        settings: How to decode; the same for all prompts.
        batch: How many hypotheses are continued at a time; those of one prompt are never split.

    Raises:
        InputError: The temperature is above 0.
    """

    def __init__(
        self,
        members: Sequence[tuple[Member, SortedVocabulary]],
        weights: Sequence[float],
        beams: int,
        prompts: Sequence[list[list[int]]],
        settings: Settings,
        batch: Batch,
    ) -> None:
        if settings.temperature > 0:
            raise InputError("it searches for the likeliest text; leave the temperature at 0", of="method abe")
        self._weights, self._beams, self._settings = weights, beams, settings
        self._vocabularies = [vocabulary for _, vocabulary in members]
        self._readers = [Reader(*pair) for pair in members]
        self._size = max(1, batch.size // beams)
        self._stops = tuple(stop.encode() for stop in settings.stop)
        # Prompts of similar length are in one batch, so that little of it is padding.
        self._waiting = deque(sorted(enumerate(prompts), key=lambda item: -len(item[1][0])))
        self._running: list[_RunningText] = []
        # For each member the log-probabilities after each hypothesis of each running text.
        self._shares: list[NDArray[np.float64]] = []

    @property
    def done(self) -> bool:
        """Whether every prompt is finished."""
        return not self._running and not self._waiting

    @property
    def running(self) -> dict[int, bytes]:
        """The bytes that all hypotheses of a running text share, by the prompt's number."""
        return {
            text.number: bytes(common_prefix([*(beam.texts[0] for beam in text.beams), *(c[1] for c in text.complete)]))
            for text in self._running
        }

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation | MemberError]]:
        """A tuple of tokens for each hypothesis; the numbers and results of the texts that it finishes."""
        start = time.perf_counter()
        if not self._running:
            fresh = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            self._running = [_RunningText(*pair) for pair in fresh]
            self._shares = [
                reader.admit([text.prompts[n] for text in self._running]) for n, reader in enumerate(self._readers)
            ]
        results, row = [], 0
        for text in self._running:
            rows = range(row, row + len(text.beams))
            results.append(self._search(text, rows))
            row = rows.stop
        finished = [(t.number, r) for t, r in zip(self._running, results, strict=True) if r is not None]
        share = len(self._running)
        self._running = [text for text, result in zip(self._running, results, strict=True) if result is None]
        if self._running:
            beams = [(text, beam) for text in self._running for beam in text.beams]
            parents = [beam.row for _, beam in beams]
            self._shares = [
                reader.read(parents, [[*text.prompts[n], *beam.tokens[n]] for text, beam in beams])
                for n, reader in enumerate(self._readers)
            ]
        # The rows of a batch run together, so it is not known which row took how much of a step.
        seconds = (time.perf_counter() - start) / share
        for text in self._running:
            text.counts.seconds += seconds
        return finished

    def _search(self, text: _RunningText, rows: Sequence[int]) -> Generation | MemberError | None:
        """Continue a text's hypotheses, which have these rows; the result if none goes on."""
        for reader, shares in zip(self._readers, self._shares, strict=True):
            if np.isnan(shares[rows[0] : rows[-1] + 1]).any():
                return MemberError("its logits are not numbers (NaN)", of=reader.member.name)
        text.counts.steps += 1
        text.counts.combined += 1
        agreements = [
            Agreement(beam, self._vocabularies, [shares[row] for shares in self._shares], self._weights)
            for row, beam in zip(rows, text.beams, strict=True)
        ]
        old, text.beams = text.beams, []
        for n, places in best_first(agreements):
            new = agreements[n].continued(rows[n], places)
            score = new.score(self._weights)
            # With more tokens its score only falls.
            if text.complete and score < max(text.complete)[0]:
                break
            ending = self._ending(text, new, len(old[n].texts[0]))
            if ending is None:
                text.beams.append(new)
            else:
                text.complete.append((score, *ending))
            if len(text.beams) == self._beams or len(text.complete) == self._beams:
                break
        best = max(text.complete, key=lambda complete: complete[0], default=None)
        if best is None:
            return None if text.beams else MemberError("the members have no tokens whose texts agree", of="method abe")
        goes_on = text.beams and len(text.complete) < self._beams and text.beams[0].score(self._weights) >= best[0]
        return None if goes_on else text.generation(*best[1:])

    def _ending(
        self, text: _RunningText, new: Hypothesis, searched: int
    ) -> tuple[bytes, tuple[int, ...], FinishReason] | None:
        """The text, the primary's tokens and the reason of a hypothesis that is complete."""
        tokens, data = new.tokens[0], new.texts[0]
        stop = first_stop(data, searched, self._stops)
        if stop is not None:
            return data[:stop], tokens, "stop"
        if all(new.ended):
            return data, tokens, "eos"
        limits = [reader.member.most_tokens(p) for reader, p in zip(self._readers, text.prompts, strict=True)]
        lengths = [len(prompt) + len(ids) for prompt, ids in zip(text.prompts, new.tokens, strict=True)]
        is_full = any(most is not None and length >= most for most, length in zip(limits, lengths, strict=True))
        return (data, tokens, "length") if is_full or len(tokens) >= self._settings.max_new_tokens else None


class Reader:
    """A member that reads hypotheses.

    Args:
        member: The member, in this process.
        vocabulary: Its tokens.
    """

    def __init__(self, member: Member, vocabulary: SortedVocabulary) -> None:
        self.member, self._vocabulary = member, vocabulary
        self._runner = member.local.runner()
        self._columns = torch.cat([vocabulary.ids, vocabulary.eos_ids[:1]])

    def admit(self, prompts: Sequence[list[int]]) -> NDArray[np.float64]:
        """Begin a batch; the log-probabilities [prompts, n + 1] of the tokens and EOS after each prompt."""
        # New rows free the memory of the finished ones.
        self._runner = self.member.local.runner()
        return self._log_shares(self._runner.admit(prompts))

    def read(self, parents: Sequence[int], rows: Sequence[list[int]]) -> NDArray[np.float64]:
        """The same after rows, each of which is one of the rows before, or one with more tokens.

        Args:
            parents: For each row, the number of the row that it continues.
            rows: The prompts with the tokens after them.
        """
        self._runner.drop(parents)
        # The last token of a member that stalls is read again: its logits are needed.
        keep = [min(length, len(row) - 1) for length, row in zip(self._runner.lengths, rows, strict=True)]
        new = [row[kept:] for row, kept in zip(rows, keep, strict=True)]
        return self._log_shares(self._runner.feed(keep, new))

    def _log_shares(self, logits: Tensor) -> NDArray[np.float64]:
        shares = candidate_logits(logits, self._vocabulary.tables).double().log_softmax(dim=1)
        found: NDArray[np.float64] = shares.index_select(1, self._columns).cpu().numpy()
        return found
