"""The decoding loop: step the members, combine what they want, emit, stop; for a batch that changes as it goes."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from ensemble.decode.sequences import Contexts, Text, closed_up, fit
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import MemberError
from ensemble.models.member import Member
from ensemble.runtime.draft import Proposer
from ensemble.runtime.logits import is_broken
from ensemble.step.logprobs import Likelihood
from ensemble.step.sampler import NOT_A_NUMBER, Choice, Chooser, Draw, Spelling
from ensemble.step.token_method import EndsTogether, TokenRule
from ensemble.step.trace import Step
from ensemble.vocabulary.joint import JointVocabulary
from ensemble.vocabulary.retokenize import Continuation

FinishReason = Literal["eos", "stop", "length"]


@dataclass(slots=True)
class Counts:
    """What a generation took.

    Attributes:
        steps: Choices that were made, that of EOS included.
        combined: Steps in which several members decided; in the others a gate was shut.
        handled: Entries of the joint vocabulary whose probabilities were looked at, over all steps ("tokens manipulated
            each step", Table 5 of the paper on UNITE).
        fed: For each member, tokens that it read behind the prompt, drafts and repeated ones included.
        seconds: Its share of the time that its steps took, the reading of its prompt included: texts that are decoded
            together share a step evenly.
    """

    steps: int = 0
    combined: int = 0
    handled: int = 0
    fed: tuple[int, ...] = ()
    seconds: float = 0.0

    def add(self, choice: Choice) -> None:
        """Count a step."""
        self.steps += 1
        self.combined += choice.combined
        self.handled += choice.handled


@dataclass(frozen=True, slots=True)
class Generation:
    """What was generated for one prompt.

    Attributes:
        text: The bytes emitted, as UTF-8 with replacement, cut before a stop string.
        tokens: The primary's ids, as emitted.
        finish_reason: ``eos``, ``stop`` or ``length``.
        trace: What happened at each step; empty unless asked for.
        likelihoods: How likely each step's choice was, that of EOS included; empty unless asked for.
        counts: What it took; two generations are equal whatever that was.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    trace: tuple[Step, ...] = ()
    likelihoods: tuple[Likelihood, ...] = ()
    counts: Counts = field(default_factory=Counts, compare=False)


@dataclass(slots=True)
class Progress:
    """Where a prompt's generation stands.

    Attributes:
        number: What it was added as.
        prompt: Its ids in every member.
        settings: How it is decoded.
        stops: The settings' stop strings, as bytes.
        chance: Its draws.
        trace: Of its steps so far.
        likelihoods: Likewise.
        counts: What it took so far.
        end: Where its text is cut before a stop string.
        finish_reason: None while it runs.
    """

    number: int
    prompt: list[list[int]]
    settings: Settings
    stops: list[bytes]
    chance: random.Random
    trace: list[Step] = field(default_factory=list)
    likelihoods: list[Likelihood] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    end: int | None = None
    finish_reason: FinishReason | None = None

    def draw(self) -> Draw:
        """How the next step chooses."""
        settings = self.settings
        if settings.temperature == 0:
            return Draw(alternatives=settings.alternatives)
        return Draw(settings.temperature, settings.top_p, self.chance.random(), settings.alternatives)


class Decoder:
    """Decodes prompts with some members; prompts may be added and taken out between two steps.

    Args:
        members: The primary first.
        joint: Their joint vocabulary, on the primary's device.
        rule: How they are combined.
        batch: How prompts are decoded together.
    """

    def __init__(
        self, members: Sequence[Member], joint: JointVocabulary, rule: TokenRule, batch: Batch | None = None
    ) -> None:
        self._members = members
        self._batch = batch or Batch()
        self._spelling = Spelling([member.vocabulary for member in members], joint)
        self._choose = Chooser(rule, len(members), self._spelling, trace=self._batch.trace)
        self._waiting: deque[Progress] = deque()
        self._waits = rule.asks is not None
        self._contexts = Contexts(members, waiting=self._waits)
        self._running: list[Progress] = []
        self._propose = Proposer(joint.members[0], self._batch.draft)

    def add(self, number: int, prompt: Sequence[list[int]], settings: Settings, draw: int = 1) -> None:
        """Let a prompt wait for a place, behind those that wait already.

        Args:
            number: What it is called in what :meth:`step` returns; another one than those of all that are not finished.
            prompt: Its ids in every member.
            settings: How to decode it.
            draw: Which of the draws of this seed and this prompt it has, from 1 on. They depend on nothing else: not on
                the batch, and not on what was decoded before.
        """
        chance = random.Random(f"{settings.seed} {draw} {tuple(prompt[0])}")
        stops = [stop.encode() for stop in settings.stop]
        self._waiting.append(Progress(number, list(prompt), settings, stops, chance))

    @torch.inference_mode()
    def remove(self, number: int) -> None:
        """Take a prompt out, whether it waits or runs; its place is free for another. Nothing where it is finished."""
        self._waiting = deque(progress for progress in self._waiting if progress.number != number)
        kept = [n for n, progress in enumerate(self._running) if progress.number != number]
        if len(kept) < len(self._running):
            self._keep(kept)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation]]:
        """Emit at least one token for each running prompt; the numbers and generations of those that are finished.

        Prompts that wait take the places of those that finished before. An empty list does not mean the end: see
        :attr:`done`.
        """
        start = time.perf_counter()
        if self._drafts:
            self._draft_and_check()
        else:
            if self._running:
                self._contexts.feed()
            self._admit()
            texts = self._contexts.texts
            draws = [progress.draw() for progress in self._running]
            chosen = self._choose(self._contexts, draws, self._borders([text.readers for text in texts]))
            for row, choice in enumerate(chosen):
                self._check(choice.token, row, texts[row])
                self._emit(self._running[row], texts[row], choice)
        share = (time.perf_counter() - start) / len(self._running)
        for progress in self._running:
            progress.counts.seconds += share
        return self._finish()

    @property
    def done(self) -> bool:
        """Whether every prompt is finished."""
        return not self._running and not self._waiting

    @property
    def running(self) -> dict[int, bytes]:
        """The bytes that have been emitted for each prompt that has a place, by its number."""
        texts = zip(self._running, self._contexts.texts, strict=True)
        return {progress.number: text.data for progress, text in texts}

    @property
    def waiting(self) -> list[int]:
        """The numbers of the prompts that have no place yet; right also after a step that failed."""
        return [progress.number for progress in self._waiting]

    def likelihoods(self, number: int) -> Sequence[Likelihood]:
        """How likely the choices for a running prompt were so far; empty where it does not ask for that."""
        return next((progress.likelihoods for progress in self._running if progress.number == number), ())

    def __iter__(self) -> Iterator[tuple[int, Generation]]:
        while not self.done:
            yield from self.step()

    @property
    def _drafts(self) -> bool:
        """Whether drafting pays: it does for a single text, whose passes are far from filling the machine.

        Where the others wait until they are asked, the primary writes ahead anyway.
        """
        if self._batch.draft == 0 or self._waits or len(self._members) == 1:
            return False
        if len(self._running) + len(self._waiting) > 1 and self._batch.size > 1:
            return False
        return (self._running or self._waiting)[0].settings.temperature == 0

    def _draft_and_check(self) -> None:
        """Emit what the ensemble wants at the end of the text and along the primary's draft, until it wants another."""
        begun = bool(self._running)
        if not begun:
            self._begin(1)
        (progress,) = self._running
        written = len(self._contexts.texts[0].tokens) if begun else 0
        most = min(self._propose.most, progress.settings.max_new_tokens - written - 1)
        if begun:
            draft = self._contexts.look_ahead(self._propose, most)
        else:
            draft = self._contexts.begin(progress.prompt, self._propose, most)
        (text,) = self._contexts.texts
        borders = self._borders([text.readers, *(readers for _, readers in draft)])
        draws = [progress.draw()] * (len(draft) + 1)
        for place, choice in enumerate(self._choose(self._contexts, draws, borders)):
            self._check(choice.token, place, text)
            drafted, readers = draft[place] if place < len(draft) else (None, None)
            self._emit(progress, text, choice, readers if choice.token == drafted else None)
            if progress.finish_reason or choice.token != drafted:
                break
        if draft and not progress.finish_reason:
            self._propose.learn(len(draft), place)

    def _finish(self) -> list[tuple[int, Generation]]:
        """Take out the prompts that are finished."""
        finished = [
            (progress.number, _generation(progress, text))
            for progress, text in zip(self._running, self._contexts.texts, strict=True)
            if progress.finish_reason
        ]
        if finished:
            self._keep([n for n, progress in enumerate(self._running) if not progress.finish_reason])
        return finished

    def _keep(self, kept: Sequence[int]) -> None:
        """Leave only these rows, in ascending order, their places."""
        if not self._waits:
            # Members that wait have rows of the first texts only, so that these must stay the first.
            kept = closed_up(kept)
        self._running = [self._running[n] for n in kept]
        self._contexts.drop(kept)

    def _admit(self) -> None:
        room = min(self._batch.size - len(self._running), len(self._waiting))
        # A few free places are not worth a pass of their own, unless nothing else runs.
        if room <= 0 or (self._running and room < min(self._batch.size // 4, len(self._waiting))):
            return
        self._contexts.admit([progress.prompt for progress in self._begin(room)])

    def _begin(self, count: int) -> list[Progress]:
        """Give places to some prompts that wait."""
        fresh = [self._waiting.popleft() for _ in range(count)]
        self._running += fresh
        return fresh

    def _borders(self, readers: Sequence[Sequence[Continuation]]) -> EndsTogether:
        """For rows with these readers, whether a token of the primary leaves every member's last ids as they are."""

        def ends_together(row: int, token: int) -> bool:
            data = self._spelling.data(token)
            return data is None or all(reader.fork().extend(data) == len(reader.ids) for reader in readers[row])

        return ends_together

    def _emit(self, progress: Progress, text: Text, choice: Choice, readers: list[Continuation] | None = None) -> None:
        """Step 8, and the ends of a generation."""
        progress.counts.add(choice)
        if choice.step is not None:
            progress.trace.append(choice.step)
        if choice.likelihood is not None:
            progress.likelihoods.append(choice.likelihood)
        data = self._spelling.data(choice.token)
        if data is None:
            progress.finish_reason = "eos"
            return
        searched = len(text.data)
        ids = self._spelling.ids(choice.token)
        most = progress.settings.max_new_tokens
        room = most - len(text.tokens)
        if len(ids) > room:
            # What is spelled with several ids is cut where the limit falls.
            ids = ids[:room]
            data = b"".join(self._spelling.data(index) or b"" for index in ids)
        text.tokens += ids[:-1]
        text.emit(ids[-1], data, readers)
        ends = [text.data.find(stop, max(0, searched - len(stop) + 1)) for stop in progress.stops]
        if found := [end for end in ends if end >= 0]:
            progress.end = min(found)
            progress.finish_reason = "stop"
        elif len(text.tokens) >= most or not fit(self._members, text.prompts, text.lengths()):
            progress.finish_reason = "length"

    def _check(self, token: int, row: int, text: Text) -> None:
        """Stop where a row of logits is no numbers; a place of a draft counts only once the text has come to it."""
        if token != NOT_A_NUMBER:
            return
        step = len(text.tokens) + 1
        # Members that wait have none.
        for member, logits in zip(self._members, self._contexts.logits, strict=False):
            if is_broken(logits, row):
                raise MemberError(f"{member.name}: its logits are not numbers (NaN) at step {step}")
        raise MemberError(f"no member has a token to offer at step {step}")


def _generation(progress: Progress, text: Text) -> Generation:
    progress.counts.fed = tuple(text.spent)
    return Generation(
        text.data[: progress.end].decode(errors="replace"),
        tuple(text.tokens),
        progress.finish_reason or "length",
        tuple(progress.trace),
        tuple(progress.likelihoods),
        progress.counts,
    )
