"""The decoding loop: step the members, combine what they want, emit, stop; for a batch that changes as it goes."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from ensemble.choosing import NOT_A_NUMBER, Choice, Chooser, Spelling
from ensemble.contexts import Contexts, Text, fit
from ensemble.continuation import Continuation
from ensemble.drafting import LONGEST, Proposer
from ensemble.errors import MemberError
from ensemble.joint import JointVocabulary
from ensemble.member import Member
from ensemble.methods._token import EndsTogether, TokenRule
from ensemble.trace import Step

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to decode.

    Attributes:
        max_new_tokens: Tokens of the primary after which a generation is cut off, at least 1.
        stop: Strings that end a generation; it is cut before them.
        temperature: 0 for greedy decoding, else the temperature of the draws.
        top_p: In (0, 1]; where sampling, only the most likely entries that together reach it are drawn from.
        seed: Of the draws, which each prompt's own ids decide besides: a batch equals its rows, and a prompt that is
            there twice has other draws each time.
        trace: Whether to keep what each member wanted at each step.
        batch_size: Prompts that are decoded at a time, at least 1.
        draft: Tokens that the primary drafts at most where a single text is decoded greedily; 0 never drafts. What is
            emitted does not depend on it.
    """

    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    trace: bool = False
    batch_size: int = 32
    draft: int = LONGEST


@dataclass(slots=True)
class Counts:
    """What a generation took.

    Attributes:
        steps: Choices that were made, that of EOS included.
        combined: Steps in which several members decided; in the others a gate was shut.
        handled: Entries of the joint vocabulary whose probabilities were looked at, over all steps ("tokens manipulated
            each step", Table 5 of the paper on UNITE).
        fed: For each member, tokens that it read behind the prompt, drafts and repeated ones included.
    """

    steps: int = 0
    combined: int = 0
    handled: int = 0
    fed: tuple[int, ...] = ()

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
        counts: What it took; two generations are equal whatever that was.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    trace: tuple[Step, ...] = ()
    counts: Counts = field(default_factory=Counts, compare=False)


@dataclass(slots=True)
class Progress:
    """Where a prompt's generation stands."""

    number: int
    chance: random.Random
    trace: list[Step] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    end: int | None = None
    finish_reason: FinishReason | None = None


class Decoder:
    """Decodes prompts with some members.

    Args:
        members: The primary first.
        joint: Their joint vocabulary, on the primary's device.
        rule: How they are combined.
        prompts: For each prompt its ids in every member.
        settings: How to decode.
    """

    def __init__(
        self,
        members: Sequence[Member],
        joint: JointVocabulary,
        rule: TokenRule,
        prompts: Sequence[list[list[int]]],
        settings: Settings,
    ) -> None:
        self._members = members
        self._settings = settings
        self._stops = [stop.encode() for stop in settings.stop]
        self._spelling = Spelling([member.vocabulary for member in members], joint)
        self._choose = Chooser(
            rule,
            len(members),
            self._spelling,
            temperature=settings.temperature,
            top_p=settings.top_p,
            trace=settings.trace,
        )
        # Rows of like length are decoded together, so that little of a batch is padding.
        self._waiting = deque(sorted(enumerate(prompts), key=lambda item: -len(item[1][0])))
        self._waits = rule.asks is not None
        self._contexts = Contexts(members, waiting=self._waits)
        self._asked: Counter[tuple[int, ...]] = Counter()
        self._running: list[Progress] = []
        self._propose = Proposer(joint.members[0], settings.draft)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation]]:
        """Emit at least one token for each running prompt; the numbers and generations of those that are finished.

        Prompts that wait take the places of those that finished before. An empty list does not mean the end: see
        :attr:`done`.
        """
        if self._drafts:
            self._draft_and_check()
        else:
            if self._running:
                self._contexts.feed()
            self._admit()
            texts = self._contexts.texts
            chosen = self._choose(self._contexts, self._draw(), self._borders([text.readers for text in texts]))
            for row, choice in enumerate(chosen):
                self._check(choice.token, row, texts[row])
                self._emit(self._running[row], texts[row], choice)
        return self._finish()

    @property
    def done(self) -> bool:
        """Whether every prompt is finished."""
        return not self._running and not self._waiting

    @property
    def emitted(self) -> list[bytes]:
        """The bytes of the running prompts so far, the longest prompt first."""
        return [text.data for text in self._contexts.texts]

    def __iter__(self) -> Iterator[tuple[int, Generation]]:
        while not self.done:
            yield from self.step()

    @property
    def _drafts(self) -> bool:
        """Whether drafting pays: it does for a single text, whose passes are far from filling the machine.

        Where the others wait until they are asked, the primary writes ahead anyway.
        """
        alone = len(self._running) + len(self._waiting) == 1 or self._settings.batch_size == 1
        can = len(self._members) > 1 and self._settings.temperature == 0 and not self._waits
        return self._settings.draft > 0 and alone and can

    def _draft_and_check(self) -> None:
        """Emit what the ensemble wants at the end of the text and along the primary's draft, until it wants another."""
        written = len(self._contexts.texts[0].tokens) if self._running else 0
        most = min(self._propose.most, self._settings.max_new_tokens - written - 1)
        if self._running:
            draft = self._contexts.look_ahead(self._propose, most)
        else:
            draft = self._contexts.begin(self._begin(1)[0], self._propose, most)
        (progress,), (text,) = self._running, self._contexts.texts
        borders = self._borders([text.readers, *(readers for _, readers in draft)])
        for place, choice in enumerate(self._choose(self._contexts, None, borders)):
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
            kept = [n for n, progress in enumerate(self._running) if not progress.finish_reason]
            self._running = [self._running[n] for n in kept]
            self._contexts.drop(kept)
        return finished

    def _admit(self) -> None:
        room = min(self._settings.batch_size - len(self._running), len(self._waiting))
        # A few free places are not worth a pass of their own, unless nothing else runs.
        if room <= 0 or (self._running and room < min(self._settings.batch_size // 4, len(self._waiting))):
            return
        self._contexts.admit(self._begin(room))

    def _begin(self, count: int) -> list[list[list[int]]]:
        """Let some prompts that wait run; their ids in every member."""
        fresh = [self._waiting.popleft() for _ in range(count)]
        self._running += [Progress(number, self._chance(prompt[0])) for number, prompt in fresh]
        return [prompt for _, prompt in fresh]

    def _chance(self, prompt: Sequence[int]) -> random.Random:
        """The draws of a prompt."""
        ids = tuple(prompt)
        self._asked[ids] += 1
        return random.Random(f"{self._settings.seed} {self._asked[ids]} {ids}")

    def _draw(self) -> torch.Tensor | None:
        """For each running prompt the number that decides its draw; None for greedy decoding."""
        if self._settings.temperature == 0:
            return None
        return torch.tensor([progress.chance.random() for progress in self._running], device=self._members[0].device)

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
        data = self._spelling.data(choice.token)
        if data is None:
            progress.finish_reason = "eos"
            return
        searched = len(text.data)
        ids = self._spelling.ids(choice.token)
        room = self._settings.max_new_tokens - len(text.tokens)
        if len(ids) > room:
            # What is spelled with several ids is cut where the limit falls.
            ids = ids[:room]
            data = b"".join(self._spelling.data(index) or b"" for index in ids)
        text.tokens += ids[:-1]
        text.emit(ids[-1], data, readers)
        ends = [text.data.find(stop, max(0, searched - len(stop) + 1)) for stop in self._stops]
        if found := [end for end in ends if end >= 0]:
            progress.end = min(found)
            progress.finish_reason = "stop"
        elif len(text.tokens) >= self._settings.max_new_tokens or not fit(self._members, text.prompts, text.lengths()):
            progress.finish_reason = "length"

    def _check(self, token: int, row: int, text: Text) -> None:
        """Stop where a row of logits is no numbers; a place of a draft counts only once the text has come to it."""
        if token != NOT_A_NUMBER:
            return
        step = len(text.tokens) + 1
        # Members that wait have none.
        for member, logits in zip(self._members, self._contexts.logits, strict=False):
            if bool(logits[row].isnan().any()):
                raise MemberError(f"{member.name}: its logits are not numbers (NaN) at step {step}")
        raise MemberError(f"no member has a token to offer at step {step}")


def _generation(progress: Progress, text: Text) -> Generation:
    progress.counts.fed = tuple(text.spent)
    return Generation(
        text.data[: progress.end].decode(errors="replace"),
        tuple(text.tokens),
        progress.finish_reason or "length",
        tuple(progress.trace),
        progress.counts,
    )
