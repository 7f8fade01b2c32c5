"""The decoding loop: run the members, choose a token for each sequence, emit it, stop; for a batch that changes.

A method that does not decode token by token has ``make(setup, options) -> PromptMethod``, which is called once for an
ensemble, with the same :class:`ensemble.step.token_method.Setup` as at token level. It raises InputError if the members
do not fit.
"""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

import torch

from ensemble.decode.contexts import CheckedDraft, Contexts, fill_gaps, same_weights
from ensemble.decode.sequences import Generation, RunningSequence
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError, PromptTooLongError
from ensemble.models.member import Member
from ensemble.runtime.draft import MAX_DRAFT_ROWS, MIN_REMOTE_PROBABILITY, Drafter, DraftMode
from ensemble.step.grammar import Allowed, GrammarState
from ensemble.step.sampler import NO_TOKEN, Detokenizer, SampledToken, Sampler, no_token
from ensemble.step.token_method import AppendsOnly, TokenRule
from ensemble.step.trace import StepLogprobs
from ensemble.vocabulary.joint import JointVocabulary
from ensemble.vocabulary.retokenize import Continuation


class PromptDecoder(ABC):
    """Prompts that are being continued."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether every prompt is finished."""

    @property
    @abstractmethod
    def running(self) -> dict[int, bytes]:
        """The bytes of the running texts so far, by the prompt's number."""

    @abstractmethod
    def step(self) -> list[tuple[int, Generation | MemberError]]:
        """Decode one step; the numbers and generations of the prompts that it finishes, or why they have none."""

    def __iter__(self) -> Iterator[tuple[int, Generation]]:
        """Decode to the end; a MemberError is raised after the others, or at once if the first batch fails."""
        failure: MemberError | None = None
        any_finished = False
        while not self.done and not (failure and not any_finished and not self.running):
            for number, result in self.step():
                if isinstance(result, MemberError):
                    failure = failure or result
                else:
                    any_finished = True
                    yield number, result
        if failure is not None:
            raise failure


PromptMethod: TypeAlias = Callable[[Sequence[list[list[int]]], Settings, Batch], PromptDecoder]
"""Starts to continue prompts. Each prompt is given by its ids in every member's vocabulary."""


class Decoder(PromptDecoder):
    """Decodes prompts, which may be added and removed between two steps; ``joint`` is on the primary's device.

    ``drafter`` may be that of an earlier decoder, which knows how long requests take; None for a new one.
    """

    def __init__(
        self,
        members: Sequence[Member],
        joint: JointVocabulary,
        rule: TokenRule,
        batch: Batch | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self._members = members
        self._joint = joint
        self._batch = batch or Batch()
        self._detokenizer = Detokenizer([member.vocabulary for member in members])
        self._sample = Sampler(rule, len(members), self._detokenizer, trace=self._batch.trace)
        self._waiting: deque[RunningSequence] = deque()
        others = len(members) > 1
        # With a gate on the primary's logits, the other members run only where it opens.
        running = 1 if rule.needs_others else len(members)
        self._drafter = drafter or make_drafter(members, joint, self._batch)
        self._contexts = Contexts(members, running, alone=self._drafter.writes)
        self._is_here = all(member.is_here for member in members)
        self._gates_on_logits = rule.needs_others is not None
        self._only_greedy = rule.only_greedy_remote and not self._is_here
        # Where the others wait for a gate, the primary writes ahead anyway. A single member has no other to check, but
        # elsewhere several tokens are one request.
        self._never_drafts = not self._batch.draft or running < len(members) or (self._is_here and not others)
        # How many prompts are finished, and what steps they took.
        self._finished, self._finished_steps = 0, 0
        # Steps since the last prompts joined in which others waited although places were free.
        self._idle_steps = 0

    def add(self, number: int, prompt: Sequence[list[int]], settings: Settings, draw: int = 1) -> None:
        """Add a waiting prompt, with its ids in every member; ``draw`` counts its random draws from 1.

        PromptTooLongError if a context cannot hold it, which does not affect others; InputError as :meth:`check`.
        """
        self.check(settings)
        for member, ids in zip(self._members, prompt, strict=True):
            most = member.most_tokens(ids)
            # Before it joins the batch: positions that a model does not have would fail the step of all rows.
            if most is not None and len(ids) > most:
                raise PromptTooLongError(
                    f"a prompt of {len(ids)} tokens does not fit its context of {member.context}", of=member.name
                )
        self._waiting.append(self._sequence(number, prompt, settings, draw))

    def _sequence(self, number: int, prompt: Sequence[list[int]], settings: Settings, draw: int) -> RunningSequence:
        return RunningSequence(number, prompt, settings, self._members, draw)

    def check(self, settings: Settings) -> None:
        """Raise an InputError if the settings want draws or a grammar that these members cannot give."""
        drawn = settings.temperature > 0 or settings.alternatives is not None or self._batch.trace
        if self._only_greedy and drawn:
            raise InputError(
                "this method takes greedy decoding only where a member is in another process, without a trace and "
                "log-probabilities: they would need the probabilities of all tokens; use unite"
            )
        if settings.grammar is not None and self._gates_on_logits and not self._is_here:
            raise InputError("this method takes a grammar only where all members are in this process; use unite")
        if settings.grammar is not None:
            state = GrammarState(settings.grammar, [member.vocabulary for member in self._members])
            if not state.can_continue(self._entry_of):
                reason = "no token of its vocabulary can begin a text that the grammar allows"
                raise InputError(reason, of=self._members[0].name)

    @torch.inference_mode()
    def remove(self, number: int) -> None:
        """Remove a prompt that waits or runs, and free its place. A finished prompt is ignored."""
        self._waiting = deque(sequence for sequence in self._waiting if sequence.number != number)
        kept = [n for n, sequence in enumerate(self._contexts.sequences) if sequence.number != number]
        if len(kept) < len(self._contexts.sequences):
            self._keep(kept)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation | MemberError]]:
        """Emit at least one token for each running prompt; the numbers and results of those that finish.

        A result may be the error of a prompt for which no token could be chosen, for example because of NaN logits; the
        others go on. Waiting prompts take the free rows. An empty list does not mean the end: see :attr:`done`.
        """
        start = time.perf_counter()
        running, waiting, places = len(self._contexts.sequences), len(self._waiting), 1
        before = sum(sequence.counts.steps for sequence in self._contexts.sequences)
        mode, lengths = self._plan()
        if mode != "plain":
            places = self._draft_and_check(mode, lengths)
        else:
            if self._contexts.sequences:
                self._contexts.feed()
            self._admit()
            sequences = self._contexts.sequences
            draws = [draw for sequence in sequences for draw in sequence.draws(1)]
            appends_only = self._appends_only([sequence.readers for sequence in sequences])
            allowed = self._allowed([[] for _ in sequences])
            sampled = self._sample(self._contexts.logits, draws, appends_only, self._contexts.run, allowed)
            for row, token in enumerate(sampled):
                self._emit(sequences[row], token, row)
        if len(self._waiting) < waiting:
            self._idle_steps = 0
        elif self._most(running):
            self._idle_steps += 1
        seconds, rows = time.perf_counter() - start, len(self._contexts.sequences)
        # To read prompts takes a time that says nothing about the next steps.
        if rows == running:
            tokens = sum(sequence.counts.steps for sequence in self._contexts.sequences) - before
            self._drafter.note(mode, rows, seconds, places, tokens)
        # The rows of a batch run together, so it is not known which row took how much of a step.
        share = seconds / len(self._contexts.sequences)
        for sequence in self._contexts.sequences:
            sequence.counts.seconds += share
        return self._finish()

    @property
    def done(self) -> bool:
        """Whether every prompt is finished."""
        return not self._contexts.sequences and not self._waiting

    @property
    def running(self) -> dict[int, bytes]:
        """The bytes emitted so far for each running prompt, by its number."""
        return {sequence.number: bytes(sequence.data) for sequence in self._contexts.sequences}

    @property
    def waiting(self) -> list[int]:
        """The numbers of the prompts that wait; correct also after a step that failed."""
        return [sequence.number for sequence in self._waiting]

    def likelihoods(self, number: int) -> Sequence[StepLogprobs]:
        """The log-probabilities so far of a running prompt; empty if its settings do not request them."""
        return next((each.likelihoods for each in self._contexts.sequences if each.number == number), ())

    def _plan(self) -> tuple[DraftMode, list[int]]:
        """The mode of the next step, and the length of each sequence's draft, the joining ones last."""
        running = self._contexts.sequences
        sequences = [*running, *itertools.islice(self._waiting, self._room(len(running)))]
        # Many rows fill a device already. But a request to another machine takes about the same time for one token and
        # for several.
        if self._never_drafts or (self._is_here and len(sequences) > MAX_DRAFT_ROWS):
            return "plain", []
        # The step emits one more token than it drafts.
        rooms = [sequence.tokens_left - 1 for sequence in sequences]
        # A model with learned positions fails beyond its context. The primary writes all drafts on together, so the
        # fullest context limits them all.
        most = min((sequence.room for sequence in sequences), default=0)
        if self._drafter.repeats:
            for sequence in sequences:
                sequence.drafting.repeats.read(sequence.prompts[0], sequence.tokens)
        return self._drafter.plan([each.drafting for each in sequences], [int(min(most, room)) for room in rooms])

    def _draft_and_check(self, mode: DraftMode, wanted: Sequence[int]) -> int:
        """Emit tokens along the drafts until the ensemble chooses others; return the longest draft's positions."""
        new = [self._waiting.popleft() for _ in wanted[len(self._contexts.sequences) :]]
        sequences = [*self._contexts.sequences, *new]
        # Draws for all places; those of places that the text does not come to stay with the sequence.
        ahead = [each.draws(most + 1) for each, most in zip(sequences, wanted, strict=True)]
        chances = [(own[0].temperature, own[0].top_p, [draw.uniform for draw in own]) for own in ahead]
        writing = self._drafter.drafts(wanted, chances)
        if mode == "repeat":
            writing.take_found(each.drafting.repeats.draft(writing.longest) for each in sequences)
            drafts = self._contexts.look_up(new, writing.tokens)
        else:
            drafts = self._contexts.draft(new, writing, ahead=mode == "ahead")
        draws = [draw for own, draft in zip(ahead, drafts, strict=True) for draw in own[: len(draft) + 1]]
        readers = [
            readers
            for sequence, draft in zip(sequences, drafts, strict=True)
            for readers in (sequence.readers, *(ahead for _, ahead in draft))
        ]
        allowed = self._allowed([[token for token, _ in draft] for draft in drafts])
        sampled = self._sample(self._contexts.logits, draws, self._appends_only(readers), allowed=allowed)
        accepted, row = [], 0
        for sequence, draft in zip(sequences, drafts, strict=True):
            accepted.append(self._accept(sequence, draft, sampled, row))
            row += len(draft) + 1
        for sequence, most, own, count in zip(sequences, wanted, writing.tokens, accepted, strict=True):
            if most:
                self._drafter.count(mode, sequence.drafting, most, len(own), count, ended=bool(sequence.finish_reason))
        return 1 + max(map(len, writing.tokens))

    def _accept(self, sequence: RunningSequence, draft: CheckedDraft, sampled: Sequence[SampledToken], row: int) -> int:
        """Emit the tokens sampled along a draft, from `row` on, until one is another; how many they are."""
        for place, (token, readers) in enumerate(draft):
            if sampled[row + place].token != token:
                self._emit(sequence, sampled[row + place], row + place)
                return place
            self._emit(sequence, sampled[row + place], row + place, readers)
            if sequence.finish_reason:
                return place + 1
        self._emit(sequence, sampled[row + len(draft)], row + len(draft))
        return len(draft)

    def _finish(self) -> list[tuple[int, Generation | MemberError]]:
        sequences = self._contexts.sequences
        kept = [n for n, each in enumerate(sequences) if each.finish_reason is None and each.failure is None]
        if len(kept) == len(sequences):
            return []
        self._keep(kept)
        results = [(sequence, sequence.outcome()) for sequence in sequences]
        ended = [(sequence, result) for sequence, result in results if result is not None]
        self._finished += len(ended)
        self._finished_steps += sum(sequence.counts.steps for sequence, _ in ended)
        return [(sequence.number, result) for sequence, result in ended]

    def _keep(self, kept: Sequence[int]) -> None:
        """Keep only these rows, given in ascending order."""
        self._contexts.drop(fill_gaps(kept))

    def _admit(self) -> None:
        if room := self._room(len(self._contexts.sequences)):
            self._contexts.admit([self._waiting.popleft() for _ in range(room)])

    def _room(self, running: int) -> int:
        """How many of the waiting prompts join those that run: as many as fit, but not a few at each step.

        Where more wait than fit, ``n`` steps a text free ``full / n`` of the places at a step. If a forward pass over
        prompts takes as long as a step, to let prompts join every ``s`` steps costs ``1 / s`` of a step at each, and
        the places that are empty meanwhile, ``s / (2 n)``. The sum is smallest at ``s = sqrt(2 n)``. So many steps free
        ``full s / n`` places; where texts end together, they are free earlier, and behind long texts later.
        """
        room = self._most(running)
        mean = self._finished_steps / max(1, self._finished)
        steps = math.sqrt(2 * mean)
        is_early = self._idle_steps < steps and room * mean < (running + room) * steps
        return 0 if running and room < len(self._waiting) and is_early else room

    def _most(self, running: int) -> int:
        room = min(self._batch.size - running, len(self._waiting))
        if self._batch.tokens is None or not room:
            return room
        # In their order, so that a long prompt is not overtaken for ever by short ones.
        longest = max((max(map(len, sequence.prompts)) for sequence in self._contexts.sequences), default=0)
        for n in range(room):
            longest = max(longest, *map(len, self._waiting[n].prompts))
            # A cache has as many slots in each row as the longest row needs.
            if (running + n + 1) * longest > self._batch.tokens and running + n:
                return n
        return room

    def _allowed(self, drafts: Sequence[Sequence[int]]) -> Allowed | None:
        """What the places of each sequence and its draft may choose; None if no sequence follows a grammar."""
        sequences = self._contexts.sequences
        if all(sequence.grammar is None for sequence in sequences):
            return None
        masks: list[bytes | None] = []
        for sequence, draft in zip(sequences, drafts, strict=True):
            own: list[bytes] = []
            if sequence.grammar is not None:
                try:
                    own = sequence.grammar.allowed([self._entry_of[token] for token in draft])
                except MemberError as error:
                    sequence.failure = error
            # Behind a token that is not allowed no text comes, so there everything is.
            masks += [*own, *[None] * (len(draft) + 1 - len(own))]
        return Allowed(masks, self._joint)

    @cached_property
    def _entry_of(self) -> list[int]:
        entries: list[int] = self._joint.members[0].entry_of.tolist()
        return entries

    def _appends_only(self, readers: Sequence[Sequence[Continuation]]) -> AppendsOnly:
        """For rows with these readers: whether a token leaves the last ids of every other member unchanged."""

        def appends_only(row: int, token: int) -> bool:
            data = self._detokenizer.data(token)
            return data is None or all(reader.fork().extend(data) == len(reader.ids) for reader in readers[row])

        return appends_only

    def _emit(
        self, sequence: RunningSequence, sampled: SampledToken, row: int, readers: list[Continuation] | None = None
    ) -> None:
        """Append the token sampled in a row (step 8 of UNITE), or finish; without ``readers`` others must read it."""
        if sampled.token == NO_TOKEN and sequence.failure is None:
            # Noted when the text has come to the place: a NaN after a rejected part of a draft does not count.
            sequence.failure = self._why_no_token(sequence, row)
        if sequence.failure is not None:
            return
        sequence.record(sampled)
        data = self._detokenizer.data(sampled.token)
        if data is None:
            sequence.finish_reason = "eos"
            return
        ids = self._detokenizer.ids(sampled.token)
        room = sequence.settings.max_new_tokens - len(sequence.tokens)
        if len(ids) > room:
            # An entry that the primary spells with several ids is cut at the limit.
            ids = ids[:room]
            data = b"".join(self._detokenizer.data(index) or b"" for index in ids)
        sequence.append(ids, data)
        if sequence.grammar is not None:
            sequence.follow(sequence.grammar, [self._entry_of[index] for index in ids])
        if sequence.finish_reason is not None or sequence.failure is not None:
            return
        if readers is not None:
            sequence.readers = readers
        else:
            # Not in one call of the tokenizers library for all texts. Its threads save a tenth of the time of 64 texts;
            # for a few texts, and on busy cores, they cost several times as much as they save.
            for reader in sequence.readers:
                reader.extend(data)
        if len(ids) >= room or not sequence.fits():
            sequence.finish_reason = "length"

    def _why_no_token(self, sequence: RunningSequence, row: int) -> MemberError:
        step = f" at step {len(sequence.tokens) + 1}"
        if sequence.grammar is not None and not sequence.grammar.can_continue(self._entry_of):
            reason = "the grammar allows no text that its vocabulary has,"
            return MemberError(reason + step, of=self._members[0].name)
        return no_token(self._contexts.logits_of(row), [0], step)


def make_drafter(members: Sequence[Member], joint: JointVocabulary, batch: Batch) -> Drafter:
    """The drafter for some members; it measures their steps."""
    tables = joint.members[0]
    modes: tuple[DraftMode, ...]
    if all(member.is_here for member in members):
        # A member with the primary's weights takes part in each of its passes, so little is saved by writing alone. But
        # for a processor two or three rows are as much work as so many passes.
        is_single = batch.size == 1 and tables.entry_of.device.type == "cpu"
        shares = len(same_weights(members)[0]) > 1 and not is_single
        modes = ("repeat", "plain") if shares else ("check", "repeat", "plain")
        return Drafter(tables, batch.draft, modes)
    # Members here have no requests that could run at the same time as the primary's.
    others = any(not member.is_here for member in members[1:])
    modes = ("ahead", "check", "plain") if others else ("check", "plain")
    # No other member can reject what a single one writes.
    return Drafter(tables, batch.draft, modes, MIN_REMOTE_PROBABILITY if len(members) > 1 else 0.0)
