"""SweetSpan: the members write a few words each, read each other's, and the words with the lowest perplexity are kept.

"Hit the Sweet Spot! Span-Level Ensemble for Large Language Models" (Xu et al., 2024), section 2. In each round every
member goes on by itself for a span of whole words. Every member then reads every span, and gives it a perplexity
PPL_m(s_j). Where the largest perplexity of a span is over lambda times the smallest, both are left out: the member that
understands nothing, and the one that is overly fond of its own words. The span with the lowest mean of the rest is what
all go on from.

The paper takes spans of 1 to 32 words, with four as its example, and lambda = 10. Where it is silent, this was chosen:

- A word is a run of characters that are no white space, with the white space before it. So a span ends where the next
  white space begins, and no tokenizer sees a border within a word. A member that writes none (Chinese has none) is
  stopped after 16 tokens a word.
- A member's EOS ends its span and is one of the span's tokens for whoever has one. If such a span is kept, that is the
  end.
- Probabilities are over a member's candidates: what is never emitted takes no share.
- The filter would leave nobody of two members, so three are needed. Ties go to the earlier member, the primary first.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ensemble.decode.sequences import Counts, FinishReason, Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._span import SpanMethod
from ensemble.methods._writer import Span, Writer
from ensemble.step.token_method import Setup
from ensemble.vocabulary.retokenize import Continuation

METHOD = Method(
    level="span",
    summary="of a few words from each member those that all find likeliest (SweetSpan, Xu et al., 2024)",
    when="three or more members of unlike vocabularies, and long answers in languages with spaces",
)
_TOKENS_A_WORD = 16


@dataclass(frozen=True, slots=True)
class Options:
    """SweetSpan's settings.

    Attributes:
        words: Of a span, at least 1.
        outlier: How many times a span's smallest perplexity its largest may be before both are left out, at least 1
            (lambda in the paper).
    """

    words: int = 4
    outlier: float = 10.0

    def __post_init__(self) -> None:
        if self.words < 1:
            raise InputError(f"words is {self.words}; a span has at least 1")
        if not (math.isfinite(self.outlier) and self.outlier >= 1):
            raise InputError(f"outlier is {self.outlier}; it must be a ratio of at least 1")


def mean_perplexity(perplexities: Sequence[float], outlier: float) -> float:
    """The mean of a span's perplexities, of three members at least, without the unfaithful ones (section 2.2).

    Where the largest is over ``outlier`` times the smallest, one of each is left out.
    """
    ordered = sorted(perplexities)
    kept = ordered[1:-1] if ordered[-1] > outlier * ordered[0] else ordered
    return sum(kept) / len(kept)


def best_span(perplexities: Sequence[Sequence[float]], outlier: float) -> int:
    """The number of the span with the lowest mean perplexity, the first of them.

    Args:
        perplexities: For each span, what each member gives it.
        outlier: See :func:`mean_perplexity`.
    """
    means = [mean_perplexity(row, outlier) for row in perplexities]
    return means.index(min(means))


@dataclass(slots=True)
class _Running:
    """A prompt on its way, and its text as each member reads it."""

    number: int
    prompts: list[list[int]]
    readers: list[Continuation]
    data: bytes = b""
    counts: Counts = field(default_factory=Counts)

    def extend(self, data: bytes) -> None:
        self.data += data
        for reader in self.readers:
            reader.extend(data)


class SpanDecoding:
    """Some prompts being continued, a span of each at a step; see :class:`ensemble.methods._span.DecodingLoop`."""

    def __init__(
        self,
        setup: Setup,
        options: Options,
        prompts: Sequence[list[list[int]]],
        settings: Settings,
        batch: Batch,
    ) -> None:
        self._options = options
        self._settings = settings
        self._size = batch.size
        self._members = setup.members
        self._writers = [Writer(*pair) for pair in zip(setup.members, setup.joint.members, strict=True)]
        self._stops = [stop.encode() for stop in settings.stop]
        self._waiting = deque(sorted(enumerate(prompts), key=lambda item: -len(item[1][0])))
        self._running: list[_Running] = []
        self._whole = re.compile(rb"(?:\s*\S+){%d}(?=\s)" % options.words)

    @property
    def done(self) -> bool:
        """Whether every prompt is finished."""
        return not self._running and not self._waiting

    @property
    def running(self) -> dict[int, bytes]:
        """The bytes of the running prompts so far, by number."""
        return {running.number: running.data for running in self._running}

    def __iter__(self) -> Iterator[tuple[int, Generation]]:
        while not self.done:
            yield from self.step()

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation]]:
        """One round for each running prompt; the numbers and generations of those that are finished."""
        if not self._running:
            self._admit()
        most = _TOKENS_A_WORD * self._options.words
        spans = [
            writer.write([running.readers[n].ids for running in self._running], self._whole, most)
            for n, writer in enumerate(self._writers)
        ]
        given = [
            writer.perplexities(
                [running.readers[n] for running in self._running], [list(own) for own in zip(*spans, strict=True)]
            )
            for n, writer in enumerate(self._writers)
        ]
        finished: list[tuple[int, Generation]] = []
        for row, running in enumerate(self._running):
            perplexities = [[own[row][span] for own in given] for span in range(len(spans))]
            kept = spans[best_span(perplexities, self._options.outlier)][row]
            if (generation := self._append(running, kept)) is not None:
                finished.append((running.number, generation))
        self._drop({number for number, _ in finished})
        return finished

    def _admit(self) -> None:
        fresh = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
        readers = [[Continuation(member.vocabulary) for member in self._members] for _ in fresh]
        self._running = [_Running(n, list(own), each) for (n, own), each in zip(fresh, readers, strict=True)]
        for n, writer in enumerate(self._writers):
            writer.admit([prompts[n] for _, prompts in fresh])

    def _drop(self, numbers: set[int]) -> None:
        if not numbers:
            return
        kept = [row for row, running in enumerate(self._running) if running.number not in numbers]
        self._running = [self._running[row] for row in kept]
        for writer in self._writers:
            writer.drop(kept)

    def _append(self, running: _Running, span: Span) -> Generation | None:
        """Add a span to a text; the generation where that is its end."""
        searched = len(running.data)
        running.extend(span.data)
        running.counts.steps += 1
        running.counts.combined += 1
        ends = [running.data.find(stop, max(0, searched - len(stop) + 1)) for stop in self._stops]
        tokens = running.readers[0].ids
        vocabulary = self._members[0].vocabulary
        found = [end for end in ends if end >= 0]
        if len(tokens) > self._settings.max_new_tokens:
            tokens = tokens[: self._settings.max_new_tokens]
            room = sum(len(vocabulary.token_bytes(token) or b"") for token in tokens)
            if not found or min(found) > room:
                return _generation(running, running.data[:room], tokens, "length")
        if found:
            return _generation(running, running.data[: min(found)], tokens, "stop")
        if span.ended:
            return _generation(running, running.data, tokens, "eos")
        # A span without a byte would be written again and again.
        if len(tokens) >= self._settings.max_new_tokens or not span.data or self._is_full(running):
            return _generation(running, running.data, tokens, "length")
        return None

    def _is_full(self, running: _Running) -> bool:
        """Whether some member's context cannot hold the text and a token more."""
        held = zip(self._members, running.prompts, running.readers, strict=True)
        return any((most := m.most_tokens(p)) is not None and len(p) + len(r.ids) >= most for m, p, r in held)


@dataclass(frozen=True, slots=True)
class SweetSpan:
    """SweetSpan for some members."""

    setup: Setup
    options: Options

    def decode(self, prompts: Sequence[list[list[int]]], settings: Settings, batch: Batch) -> SpanDecoding:
        """See :class:`ensemble.methods._span.SpanMethod`."""
        if settings.temperature > 0:
            raise InputError("method sweetspan: its members write greedily; leave the temperature at 0")
        return SpanDecoding(self.setup, self.options, prompts, settings, batch)


def make(setup: Setup, options: Options) -> SpanMethod:
    """SweetSpan for some members.

    Raises:
        InputError: There are fewer than three, or their weights differ.
    """
    if len(setup.members) < 3:
        raise InputError(
            f"method sweetspan: its filter needs three members, and there are {len(setup.members)}; add one, or use "
            "unite"
        )
    if max(setup.weights) - min(setup.weights) > 1e-9:
        raise InputError("method sweetspan: it weighs all members alike; leave the weights out")
    return SweetSpan(setup, options)


def _generation(running: _Running, data: bytes, tokens: Sequence[int], reason: FinishReason) -> Generation:
    return Generation(data.decode(errors="replace"), tuple(tokens), reason, counts=running.counts)
