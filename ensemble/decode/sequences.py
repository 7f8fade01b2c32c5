"""A sequence: a prompt and the tokens generated after it, in every member's ids; and what becomes of it.

Its text is given out in pieces: whole characters, and nothing of a stop string.
"""

from __future__ import annotations

import codecs
import itertools
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ensemble.decode.settings import Settings
from ensemble.errors import MemberError
from ensemble.models.member import Member
from ensemble.runtime.draft import TextDrafts
from ensemble.runtime.local_runner import common_length
from ensemble.step.grammar import GrammarState
from ensemble.step.sampler import Draw, SampledToken
from ensemble.step.trace import Step, StepLogprobs
from ensemble.vocabulary.retokenize import Continuation

FinishReason = Literal["eos", "stop", "length"]


class Pieces:
    """Cuts a growing text into pieces, final once returned; after ``read`` bytes a stop string may begin."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._stops = stops
        # Keeps the bytes of an incomplete character until the rest of it arrives.
        self._reader = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0
        self.read = 0

    def grow(self, data: bytes) -> str:
        """The next piece of a text that has grown to these bytes; empty if they complete no character."""
        # Only the bytes after the last piece: bytes that did not begin a stop string will not begin one later.
        end = len(data) - held_back(data[self.read :], self._stops)
        piece = self._reader.decode(data[self.read : end])
        self.read = end
        self._length += len(piece)
        return piece

    def finish(self, text: str) -> str:
        """The last piece of a finished text; empty if nothing is left."""
        # By characters, not bytes: invalid UTF-8 was replaced, which changes the number of bytes.
        rest = text[self._length :]
        self._length = len(text)
        return rest


def held_back(data: bytes, stops: Sequence[bytes]) -> int:
    """How many bytes at the end of a text may begin a stop string."""
    return max((_begun(data, stop) for stop in stops), default=0)


def _begun(data: bytes, stop: bytes) -> int:
    """Bytes of the longest beginning of a stop string that is the end of a text."""
    text = memoryview(data)
    # A whole stop string would have ended the text, so at most all but its last byte can be held back.
    count = min(len(stop) - 1, len(data))
    # Only beginnings with the text's last byte are compared: a long stop string has as many as it has bytes.
    while count > 0 and (count := stop.rfind(data[-1:], 0, count) + 1):
        if stop.startswith(text[-count:]):
            return count
        count -= 1
    return 0


def first_stop(data: bytes | bytearray, searched: int, stops: tuple[bytes, ...]) -> int | None:
    """The index of the first stop string, or None; no stop string ends in the first ``searched`` bytes."""
    # By their ends, which are among the new bytes: to search for a string takes time for the whole of it, and one that
    # is compared differs in its first bytes or is longer than the text.
    places = [
        end - len(stop)
        for end in range(searched + 1, len(data) + 1)
        if data.endswith(stops, 0, end)
        for stop in stops
        if data.endswith(stop, 0, end)
    ]
    return min(places, default=None)


@dataclass(slots=True)
class Counts:
    """What a generation took.

    Attributes:
        steps: Tokens that were chosen, EOS included.
        ensembled_steps: Steps in which several members decided; in the others a gate left the primary alone.
        vocabulary_entries: Entries of the joint vocabulary whose probabilities were looked at, over all steps ("tokens
            manipulated each step", Table 5 of the paper on UNITE).
        fed: For each member, tokens that it read after the prompt, drafts and repeated ones included.
        seconds: Its share of the time of its steps, the reading of its prompt included. Sequences that are decoded
            together share a step's time evenly.
    """

    steps: int = 0
    ensembled_steps: int = 0
    vocabulary_entries: int = 0
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
        thinking: Where the members think apart: what each of them thought before ``text``, the primary first; None for
            one that did not. Its ``tokens``, the end marker included, follow the prompt in the member's context; its
            ``finish_reason`` is ``length`` if it was closed at its limit. Empty if they do not think apart.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    trace: tuple[Step, ...] = ()
    likelihoods: tuple[StepLogprobs, ...] = ()
    counts: Counts = field(default_factory=Counts, compare=False)
    thinking: tuple[Generation | None, ...] = ()

    @property
    def thought(self) -> str | None:
        """What all members thought; None if none did."""
        return "\n\n".join(each.text for each in self.thinking if each is not None and each.text) or None

    @property
    def thinking_tokens(self) -> int:
        """Tokens of the thinking of all members, each in its own."""
        return sum(len(each.tokens) for each in self.thinking if each is not None)

    @property
    def new_tokens(self) -> int:
        """Tokens that were written: those of the text by the primary, and those of all thinking."""
        return len(self.tokens) + self.thinking_tokens


class RunningSequence:
    """A prompt that is being continued; ``draw`` counts the random draws of this seed and this prompt from 1."""

    def __init__(
        self,
        number: int,
        prompts: Sequence[list[int]],
        settings: Settings,
        members: Sequence[Member],
        draw: int = 1,
    ) -> None:
        self.number = number
        self.prompts = list(prompts)
        self.settings = settings
        self.stops = tuple(stop.encode() for stop in settings.stop)
        # The primary needs no reader: the emitted tokens are its own ids.
        self.readers = [Continuation(member.vocabulary) for member in members[1:]]
        self.tokens: list[int] = []  # the primary's ids, as emitted
        self.data = bytearray()  # their bytes
        self.trace: list[Step] = []
        self.likelihoods: list[StepLogprobs] = []
        self.counts = Counts()
        self.drafting = TextDrafts()
        self.grammar = (
            GrammarState(settings.grammar, [each.vocabulary for each in members]) if settings.grammar else None
        )
        self.end: int | None = None  # the index of a stop string in ``data``, where the text is cut
        self.finish_reason: FinishReason | None = None  # None while it runs
        self.failure: MemberError | None = None  # why no token could be chosen
        self._greedy = Draw(alternatives=settings.alternatives)
        # The draws depend on nothing else: not on the batch, and not on what was decoded before. Greedy decoding has
        # none, and the ids of a long prompt take long to write.
        self._random = random.Random(f"{settings.seed} {draw} {tuple(prompts[0])}") if settings.temperature else None
        # Numbers that were drawn for places which a rejected draft did not come to.
        self._uniforms: deque[float] = deque()
        # For each member, the ids after the prompt that its runner holds: how many of them were settled when it got
        # them, and the others. A list of all would be copied and compared at every step.
        self._held: list[tuple[int, list[int]]] = [(0, [])] * len(prompts)
        # Counted apart: tokens that were rolled back and read again count twice.
        self._fed_counts = [0] * len(prompts)
        # Prompts and contexts do not change, so each member's room is computed once.
        limits = [member.most_tokens(prompt) for member, prompt in zip(members, prompts, strict=True)]
        self._room, *self._rooms = [
            math.inf if limit is None else limit - len(prompt) for limit, prompt in zip(limits, prompts, strict=True)
        ]

    @property
    def room(self) -> float:
        """Tokens that the primary's context holds after the text."""
        return self._room - len(self.tokens)

    @property
    def tokens_left(self) -> int:
        """Tokens that a step may emit, at least 1."""
        return self.settings.max_new_tokens - len(self.tokens)

    def draws(self, count: int) -> list[Draw]:
        """How to choose the next tokens. Each recorded token takes one draw; the others remain for the next steps."""
        if self._random is None:
            return [self._greedy] * count
        while len(self._uniforms) < count:
            self._uniforms.append(self._random.random())
        settings, numbers = self.settings, itertools.islice(self._uniforms, count)
        return [
            Draw(settings.temperature, settings.top_p, number, settings.alternatives, settings.top_k)
            for number in numbers
        ]

    def ids(self, member: int) -> list[int]:
        """The emitted text in a member's ids."""
        return self.readers[member - 1].ids if member else self.tokens

    def fits(self, drafted: int = 0, readers: Sequence[Continuation] | None = None) -> bool:
        """Whether every context holds the prompt, the text and a draft, which ``readers`` have in the others' ids."""
        written = zip(readers or self.readers, self._rooms, strict=True)
        return len(self.tokens) + drafted <= self._room and all(len(reader.ids) <= room for reader, room in written)

    def hold(self, member: int, ids: list[int], read: int) -> None:
        """Note that a member's runner holds ``ids`` after the prompt, and read so many tokens for that."""
        settled = self.readers[member - 1].settled if member else len(self.tokens)
        self._held[member] = settled, ids[settled:]
        self._fed_counts[member] += read

    def start(self, member: int, ids: list[int]) -> list[int]:
        """The row of a member whose runner does not hold the sequence yet: the prompt and ``ids``."""
        self.hold(member, ids, len(ids))
        return [*self.prompts[member], *ids]

    def change(self, member: int, ids: list[int], at_most: int | None = None) -> tuple[int, list[int]]:
        """The tokens of a member's row that stay (``at_most`` so many of the text), and those to feed, at least one."""
        # New text can change the last ids of the old text, so a row is compared and not only extended.
        keep, held = self._held[member]
        if held:
            rest = ids[keep:]
            # Mostly all of them stay, which one comparison tells.
            keep += len(held) if rest[: len(held)] == held else common_length(held, rest)
        # Where the new bytes changed no id (a member cannot express them), the last token is read again for its logits.
        keep = min(keep, len(ids) - 1) if at_most is None else min(keep, len(ids) - 1, at_most)
        if keep < 0:
            # That token is the prompt's, which is not counted.
            prompt = self.prompts[member]
            self.hold(member, ids, len(ids))
            return len(prompt) + keep, [*prompt[keep:], *ids]
        self.hold(member, ids, len(ids) - keep)
        return len(self.prompts[member]) + keep, ids[keep:]

    def record(self, sampled: SampledToken) -> None:
        """Count a step, and keep what it tells."""
        if self._uniforms:
            self._uniforms.popleft()
        self.counts.steps += 1
        self.counts.ensembled_steps += sampled.is_ensembled
        self.counts.vocabulary_entries += sampled.vocabulary_entries
        if sampled.step is not None:
            self.trace.append(sampled.step)
        if sampled.logprobs is not None:
            self.likelihoods.append(sampled.logprobs)

    def append(self, tokens: Sequence[int], data: bytes) -> None:
        """Append tokens of the primary and their bytes, up to a stop string. The other members do not read them yet."""
        searched = len(self.data)
        # Whole tokens are kept even where a stop string cuts the text: they are what the models have read.
        self.tokens += tokens
        self.data += data
        if self.stops and (end := first_stop(self.data, searched, self.stops)) is not None:
            self.end = end
            self.finish_reason = "stop"

    def follow(self, grammar: GrammarState, entries: Sequence[int]) -> None:
        """Go on in the sequence's grammar by the entries of an emitted token; a complete text ends."""
        try:
            grammar.advance(entries)
        except MemberError as error:
            self.failure = error
        else:
            if grammar.is_complete and self.finish_reason is None:
                self.finish_reason = "eos"

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
