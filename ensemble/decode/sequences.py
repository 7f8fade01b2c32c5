"""A sequence: a prompt and the tokens generated after it, in every member's ids; and what becomes of it."""

from __future__ import annotations

import itertools
import random
from collections import (
    abc,  # its Sequence is another one than this module's
    deque,
)
from dataclasses import dataclass, field
from typing import Literal

from ensemble.decode.settings import Settings
from ensemble.errors import MemberError
from ensemble.models.member import Member
from ensemble.runtime.draft import TextDrafts
from ensemble.runtime.local_runner import common_length
from ensemble.step.logprobs import StepLogprobs
from ensemble.step.sampler import Draw, SampledToken
from ensemble.step.trace import Step
from ensemble.vocabulary.retokenize import Continuation, extend_all

FinishReason = Literal["eos", "stop", "length"]


@dataclass(slots=True)
class Counts:
    """What a generation took.

    Attributes:
        steps: Tokens that were chosen, EOS included.
        combined: Steps in which several members decided; in the others a gate left the primary alone.
        handled: Entries of the joint vocabulary whose probabilities were looked at, over all steps ("tokens manipulated
            each step", Table 5 of the paper on UNITE).
        fed: For each member, tokens that it read after the prompt, drafts and repeated ones included.
        seconds: Its share of the time of its steps, the reading of its prompt included. Sequences that are decoded
            together share a step's time evenly.
    """

    steps: int = 0
    combined: int = 0
    handled: int = 0
    fed: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Generation:
    """What was generated for one prompt.

    Attributes:
        text: The emitted bytes, as UTF-8 with replacement, cut before a stop string.
        tokens: The primary's ids, as emitted.
        finish_reason: ``eos``, ``stop`` or ``length``.
        trace: What happened at each step; empty unless requested.
        likelihoods: The log-probabilities at each step, that of EOS included; empty unless requested.
        counts: What it took. It plays no part when generations are compared.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    trace: tuple[Step, ...] = ()
    likelihoods: tuple[StepLogprobs, ...] = ()
    counts: Counts = field(default_factory=Counts, compare=False)


class Sequence:
    """A prompt that is being continued.

    Args:
        number: The caller's number for it.
        prompts: The prompt's ids in each member.
        settings: How to decode it.
        members: The primary first.
        draw: Which of the random draws of this seed and this prompt it gets, from 1 on.

    Attributes:
        stops: The stop strings, as bytes.
        readers: For each member but the primary, the emitted text in its ids.
        fed: For each member, the ids after the prompt that its runner holds.
        tokens: The primary's ids, as emitted.
        data: Their bytes.
        trace: What happened at each step, if requested.
        likelihoods: The log-probabilities at each step, if requested.
        counts: What it took so far.
        drafting: What became of its drafts.
        end: The place of a stop string in ``data``, where the text is cut.
        finish_reason: None while it runs.
        failure: Why no token could be chosen; None unless that happened.
    """

    def __init__(
        self,
        number: int,
        prompts: abc.Sequence[list[int]],
        settings: Settings,
        members: abc.Sequence[Member],
        draw: int = 1,
    ) -> None:
        self.number = number
        self.prompts = list(prompts)
        self.settings = settings
        self.stops = [stop.encode() for stop in settings.stop]
        # The primary needs no reader: the emitted tokens are its own ids.
        self.readers = [Continuation(member.vocabulary) for member in members[1:]]
        self.fed: list[list[int]] = [[] for _ in prompts]
        self.tokens: list[int] = []
        self.data = b""
        self.trace: list[Step] = []
        self.likelihoods: list[StepLogprobs] = []
        self.counts = Counts()
        self.drafting = TextDrafts()
        self.end: int | None = None
        self.finish_reason: FinishReason | None = None
        self.failure: MemberError | None = None
        # The draws depend on nothing else: not on the batch, and not on what was decoded before.
        self._random = random.Random(f"{settings.seed} {draw} {tuple(prompts[0])}")
        # Numbers that were drawn for places which a rejected draft did not come to.
        self._uniforms: deque[float] = deque()
        # Counted apart from `fed`: tokens that were rolled back and read again count twice.
        self._fed_counts = [0] * len(self.prompts)

    def draws(self, count: int) -> list[Draw]:
        """How to choose the next tokens. Each recorded token takes one draw; the others remain for the next steps."""
        settings = self.settings
        # Greedy decoding takes no random number.
        if not settings.temperature:
            return [Draw(0.0, settings.top_p, 0.0, settings.alternatives)] * count
        while len(self._uniforms) < count:
            self._uniforms.append(self._random.random())
        numbers = itertools.islice(self._uniforms, count)
        return [Draw(settings.temperature, settings.top_p, number, settings.alternatives) for number in numbers]

    def ids(self, member: int) -> list[int]:
        """The emitted text in a member's ids."""
        return self.readers[member - 1].ids if member else self.tokens

    def fits(
        self,
        members: abc.Sequence[Member],
        drafted: int = 0,
        readers: abc.Sequence[Continuation] | None = None,
    ) -> bool:
        """Whether every member's context holds the prompt and the text.

        Args:
            members: The primary first.
            drafted: Drafted tokens after the text.
            readers: The text with the draft, as the other members read it; None without a draft.
        """
        written = [len(self.tokens) + drafted, *(len(reader.ids) for reader in readers or self.readers)]
        limits = [member.most_tokens(prompt) for member, prompt in zip(members, self.prompts, strict=True)]
        lengths = [len(prompt) + length for prompt, length in zip(self.prompts, written, strict=True)]
        return all(limit is None or length <= limit for limit, length in zip(limits, lengths, strict=True))

    def hold(self, member: int, ids: list[int], read: int) -> None:
        """Note that a member's runner holds ``ids`` after the prompt, and read so many tokens for that."""
        self.fed[member] = list(ids)
        self._fed_counts[member] += read

    def start(self, member: int, ids: list[int]) -> list[int]:
        """The row of a member whose runner does not hold the sequence yet: the prompt and ``ids``."""
        self.hold(member, ids, len(ids))
        return [*self.prompts[member], *ids]

    def change(self, member: int, ids: list[int], at_most: int | None = None) -> tuple[int, list[int]]:
        """How a member's row becomes the prompt and ``ids``.

        Args:
            member: Its number.
            ids: The text in its ids.
            at_most: Ids of the text that may stay in the row; all that are equal if None.

        Returns:
            The tokens of the row that stay, and those to feed, at least one.
        """
        prompt = self.prompts[member]
        # New text can change the last ids of the old text, so a row is compared and not only extended.
        same = common_length(self.fed[member], ids)
        length = len(prompt) + len(ids)
        # Where the new bytes changed no id (a member cannot express them), the last token is read again for its logits.
        keep = min(len(prompt) + (same if at_most is None else min(same, at_most)), length - 1)
        self.hold(member, ids, length - max(keep, len(prompt)))
        return keep, ids[keep - len(prompt) :] if keep >= len(prompt) else [*prompt[keep:], *ids]

    def record(self, sampled: SampledToken) -> None:
        """Count a step, and keep what it tells."""
        if self._uniforms:
            self._uniforms.popleft()
        self.counts.steps += 1
        self.counts.combined += sampled.combined
        self.counts.handled += sampled.handled
        if sampled.step is not None:
            self.trace.append(sampled.step)
        if sampled.logprobs is not None:
            self.likelihoods.append(sampled.logprobs)

    def append(self, tokens: abc.Sequence[int], data: bytes, readers: list[Continuation] | None = None) -> None:
        """Append tokens of the primary and their bytes, up to a stop string.

        Args:
            tokens: The primary's ids.
            data: Their bytes.
            readers: The text with these bytes, as the other members read it; None if they have not read it yet.
        """
        searched = len(self.data)
        # Whole tokens are kept even where a stop string cuts the text: they are what the models have read.
        self.tokens += tokens
        self.data += data
        self.readers = read_on(self.readers, data) if readers is None else readers
        # A stop string may begin in the text before these bytes.
        ends = [self.data.find(stop, max(0, searched - len(stop) + 1)) for stop in self.stops]
        if found := [end for end in ends if end >= 0]:
            self.end = min(found)
            self.finish_reason = "stop"

    def outcome(self) -> Generation | MemberError | None:
        """The result of a finished sequence: its generation or its failure; None while it runs."""
        if self.finish_reason is None:
            return self.failure
        self.counts.fed = tuple(self._fed_counts)
        return Generation(
            self.data[: self.end].decode(errors="replace"),
            tuple(self.tokens),
            self.finish_reason,
            tuple(self.trace),
            tuple(self.likelihoods),
            self.counts,
        )


def read_on(readers: abc.Sequence[Continuation], data: bytes) -> list[Continuation]:
    """Copies of the readers that have read more bytes."""
    # Copies, because a draft that is rejected must leave the readers of the text as they were.
    forks = [reader.fork() for reader in readers]
    extend_all(forks, [data] * len(forks))
    return forks
