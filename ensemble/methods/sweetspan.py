"""SweetSpan: the members write a few words each, and the words with the lowest perplexity are kept.

"Hit the Sweet Spot! Span-Level Ensemble for Large Language Models" (Xu et al., 2024), section 2. In each round every
member writes a span of whole words by itself. Then every member reads every span and computes its perplexity
PPL_m(s_j). If the largest perplexity of a span is more than lambda times the smallest one, both are left out: they come
from a member that does not understand the text and a member that prefers its own words too much. All members continue
from the span with the lowest mean of the remaining perplexities.

The paper uses spans of 1 to 32 words, with four as its example, and lambda = 10. Choices where it is silent:

- A word is a run of characters that are not ASCII white space, with the white space before it. So a span ends where the
  next white space begins, and no tokenizer sees a border inside a word. A member that writes no white space (as in
  Chinese) is stopped after 16 tokens a word.
- A member's EOS ends its span. It is one of the span's tokens for every member that has EOS. If such a span is kept,
  the text ends.
- Probabilities are over a member's candidates: tokens that are never emitted have no probability.
- With two members the filter would leave out both, so then it leaves out none. Ties go to the earlier member, the
  primary first.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ensemble.decode.decoder import PromptDecoder, PromptMethod
from ensemble.decode.sequences import Counts, FinishReason, Generation, first_stop
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError
from ensemble.methods import Method
from ensemble.models.member import Member
from ensemble.runtime.local_runner import common_length
from ensemble.step.distribution import candidate_logits
from ensemble.step.token_method import Setup
from ensemble.vocabulary.joint import MemberTables
from ensemble.vocabulary.retokenize import Continuation

METHOD = Method(
    level="span",
    summary="of a few words from each member, the words that all find likeliest (SweetSpan, Xu et al., 2024)",
    when="members with different vocabularies, best three or more, and long answers in languages with spaces",
)
_TOKENS_PER_WORD = 16


@dataclass(frozen=True, slots=True)
class Options:
    """Options of SweetSpan.

    Attributes:
        words: Words of a span, at least 1.
        outlier: The largest and the smallest perplexity of a span are left out if their ratio is above this, at least 1
            (lambda in the paper).
    """

    words: int = 4
    outlier: float = 10.0

    def __post_init__(self) -> None:
        if self.words < 1:
            raise InputError(f"words is {self.words}; a span has at least 1")
        if not (math.isfinite(self.outlier) and self.outlier >= 1):
            raise InputError(f"outlier is {self.outlier}; it must be a ratio of at least 1")


def make(setup: Setup, options: Options) -> PromptMethod:
    """Make the method; InputError if the members' weights differ."""
    if max(setup.weights) - min(setup.weights) > 1e-9:
        raise InputError("it weighs all members alike; leave the weights out", of="method sweetspan")
    return partial(SpanDecoder, setup, options)


def mean_perplexity(perplexities: Sequence[float], outlier: float) -> float:
    """The mean of a span's perplexities by the members, without outliers (section 2.2) unless there is no other."""
    ordered = sorted(perplexities)
    kept = ordered[1:-1] if len(ordered) > 2 and ordered[-1] > outlier * ordered[0] else ordered
    return sum(kept) / len(kept)


def best_span(perplexities: Sequence[Sequence[float]], outlier: float) -> int:
    """The number of the span with the lowest mean perplexity, the first of several, by every member's of each span."""
    means = [mean_perplexity(row, outlier) for row in perplexities]
    return means.index(min(means))


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of text."""

    data: bytes
    ended: bool  # whether EOS follows


class OpenSpan:
    """A span of some words that a member is writing. Each byte is read once, however long the span becomes."""

    def __init__(self, words: int) -> None:
        self.tokens: list[int] = []
        self.data = bytearray()  # of the tokens so far
        self._words_to_begin = words
        self._in_word = False

    def append(self, token: int, data: bytes) -> bytes | None:
        """Append a token with its bytes; the bytes of the whole span if white space follows its last word."""
        for place in range(len(data)):
            is_space = data[place : place + 1].isspace()
            if is_space and self._in_word and not self._words_to_begin:
                return bytes(self.data + data[:place])
            # A word may go on in the next token, so it is counted where it begins.
            if not is_space and not self._in_word:
                self._words_to_begin -= 1
            self._in_word = not is_space
        self.tokens.append(token)
        self.data += data
        return None


class _RunningText:
    """A text with what each member reads of it, and what it took so far."""

    def __init__(self, number: int, prompts: Sequence[list[int]], members: Sequence[Member]) -> None:
        self.number = number
        self.prompts = prompts
        self.data = b""
        self.counts = Counts()
        self.readers = [Continuation(member.vocabulary) for member in members]

    def generation(self, data: bytes, tokens: Sequence[int], reason: FinishReason) -> Generation:
        # The limit of tokens can cut the bytes of a character.
        return Generation(data.decode(errors="replace"), tuple(tokens), reason, counts=self.counts)


class SpanDecoder(PromptDecoder):
    """Continues prompts, each in every member's ids, span by span; InputError for a temperature above 0."""

    def __init__(
        self, setup: Setup, options: Options, prompts: Sequence[list[list[int]]], settings: Settings, batch: Batch
    ) -> None:
        if settings.temperature > 0:
            raise InputError("its members write greedily; leave the temperature at 0", of="method sweetspan")
        self._options = options
        self._settings = settings
        self._size = batch.size
        self._members = setup.members
        self._writers = [Writer(*pair) for pair in zip(setup.members, setup.joint.members, strict=True)]
        self._stops = tuple(stop.encode() for stop in settings.stop)
        # Prompts of similar length are in one batch, so that little of it is padding.
        self._waiting = deque(sorted(enumerate(prompts), key=lambda item: -len(item[1][0])))
        self._running: list[_RunningText] = []

    @property
    def done(self) -> bool:
        """Whether every prompt is finished."""
        return not self._running and not self._waiting

    @property
    def running(self) -> dict[int, bytes]:
        """The bytes of the running texts so far, by the prompt's number."""
        return {text.number: text.data for text in self._running}

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation | MemberError]]:
        """One round for each running prompt; see :meth:`PromptDecoder.step`."""
        start = time.perf_counter()
        if not self._running:
            self._admit()
        finished = self._round()
        # The rows of a batch run together, so it is not known which row took how much of a round.
        share = (time.perf_counter() - start) / len(self._running)
        for text in self._running:
            text.counts.seconds += share
        if finished:
            gone = {number for number, _ in finished}
            kept = [row for row, text in enumerate(self._running) if text.number not in gone]
            self._running = [self._running[row] for row in kept]
            for writer in self._writers:
                writer.drop(kept)
        return finished

    def _round(self) -> list[tuple[int, Generation | MemberError]]:
        spans = [
            writer.write([text.readers[n].ids for text in self._running], self._options.words)
            for n, writer in enumerate(self._writers)
        ]
        by_row = [list(row) for row in zip(*spans, strict=True)]
        perplexities = [
            writer.perplexities([text.readers[n] for text in self._running], by_row)
            for n, writer in enumerate(self._writers)
        ]
        results: list[tuple[int, Generation | MemberError | None]] = []
        for row, text in enumerate(self._running):
            of_spans = [[member[row][span] for member in perplexities] for span in range(len(spans))]
            failure = self._failure(of_spans)
            kept = by_row[row][best_span(of_spans, self._options.outlier)]
            results.append((text.number, failure or self._append(text, kept)))
        return [(number, result) for number, result in results if result is not None]

    def _failure(self, perplexities: Sequence[Sequence[float]]) -> MemberError | None:
        """The error of a text, if a member's perplexity of any of its spans is not a number."""
        for member, own in zip(self._members, zip(*perplexities, strict=True), strict=True):
            if any(map(math.isnan, own)):
                return MemberError("its logits are not numbers (NaN)", of=member.name)
        return None

    def _admit(self) -> None:
        fresh = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
        self._running = [_RunningText(number, prompts, self._members) for number, prompts in fresh]
        for n, writer in enumerate(self._writers):
            writer.admit([prompts[n] for _, prompts in fresh])

    def _append(self, text: _RunningText, span: Span) -> Generation | None:
        """Append a span to a text; the generation if this ends the text."""
        searched = len(text.data)
        text.data += span.data
        for reader in text.readers:
            reader.extend(span.data)
        text.counts.steps += 1
        text.counts.ensembled_steps += 1
        end = first_stop(text.data, searched, self._stops)
        tokens = text.readers[0].ids
        vocabulary = self._members[0].vocabulary
        # A span may go beyond the limit; then a stop string counts only if it begins within the limit.
        if len(tokens) > self._settings.max_new_tokens:
            tokens = tokens[: self._settings.max_new_tokens]
            room = sum(len(vocabulary.token_bytes(token) or b"") for token in tokens)
            if end is None or end > room:
                return text.generation(text.data[:room], tokens, "length")
        if end is not None:
            return text.generation(text.data[:end], tokens, "stop")
        if span.ended:
            return text.generation(text.data, tokens, "eos")
        # Whether the context of a member cannot hold the text and one more token.
        parts = zip(self._members, text.prompts, text.readers, strict=True)
        is_full = any((most := m.most_tokens(p)) is not None and len(p) + len(r.ids) >= most for m, p, r in parts)
        # After an empty span the members would write the same empty span for ever.
        if len(tokens) >= self._settings.max_new_tokens or not span.data or is_full:
            return text.generation(text.data, tokens, "length")
        return None


class Writer:
    """A member that writes spans by itself and reads the spans of the others.

    Its context holds each prompt and the text that it read last. For the next text it feeds only what differs.
    """

    def __init__(self, member: Member, tables: MemberTables) -> None:
        self._member = member
        self._tables = tables.to(member.device)
        self._eos = int(tables.eos_ids[0]) if len(tables.eos_ids) else None
        self._runner = member.local.runner()
        self._prompts: list[list[int]] = []
        self._fed: list[list[int]] = []

    def admit(self, prompts: Sequence[list[int]]) -> None:
        """Start to continue prompts, given by their ids, instead of the prompts before."""
        # New rows free the memory of the finished ones.
        self._runner = self._member.local.runner()
        self._runner.admit(prompts)
        self._prompts = list(prompts)
        self._fed = [list(prompt) for prompt in prompts]

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._runner.drop(kept)
        self._prompts = [self._prompts[row] for row in kept]
        self._fed = [self._fed[row] for row in kept]

    def write(self, texts: Sequence[list[int]], words: int) -> list[Span]:
        """Write a span of some words after each text, given by its ids after the prompt, greedily."""
        written = [OpenSpan(words) for _ in texts]
        spans: list[Span | None] = [None] * len(texts)
        # Finished rows are fed again until all are finished, so that the batch keeps its shape.
        while None in spans:
            rows = [[*text, *new.tokens] for text, new in zip(texts, written, strict=True)]
            logits = self._feed(rows, [1] * len(texts))
            for row, token in enumerate(self._greedy(logits[:, -1])):
                if spans[row] is None:
                    spans[row] = self._grow(row, texts[row], written[row], token, _TOKENS_PER_WORD * words)
        return [span for span in spans if span is not None]

    def perplexities(self, texts: Sequence[Continuation], spans: Sequence[Sequence[Span]]) -> list[list[float]]:
        """For each row the perplexity of each of its spans: exp of minus the mean log-probability of their tokens.

        It is infinite if the member cannot express the span, and NaN if its logits are not numbers.
        """
        by_span = [self._perplexities(texts, column) for column in zip(*spans, strict=True)]
        return [list(row) for row in zip(*by_span, strict=True)]

    def _perplexities(self, texts: Sequence[Continuation], spans: Sequence[Span]) -> list[float]:
        """The perplexity of one span after each text."""
        wanted, scored = [], []
        for prompt, text, span in zip(self._prompts, texts, spans, strict=True):
            reader = text.fork()
            same = reader.extend(span.data)
            most = self._member.most_tokens(prompt)
            # A span of another member may be too long for this member's context; then only its beginning is scored.
            ids = reader.ids if most is None else reader.ids[: most - len(prompt)]
            wanted.append(ids)
            scored.append([*ids[same:], self._eos] if self._scores_eos(span) else ids[same:])
        # The logits after a token are those of the next token. So a span's logits begin one token before it; the logits
        # after its last token are needed only for EOS.
        unused = [0 if self._scores_eos(span) else 1 for span in spans]
        logits = self._feed(wanted, [max(1, len(tokens) + rest) for tokens, rest in zip(scored, unused, strict=True)])
        values = []
        for row, (tokens, rest) in enumerate(zip(scored, unused, strict=True)):
            end = logits.shape[1] - rest
            values.append(self._perplexity(logits[row, end - len(tokens) : end], tokens))
        return values

    def _scores_eos(self, span: Span) -> bool:
        return span.ended and self._eos is not None

    def _perplexity(self, logits: Tensor, tokens: Sequence[int | None]) -> float:
        """The perplexity of tokens, from the logits [tokens, V] before each of them."""
        if not tokens:
            return math.inf
        z = candidate_logits(logits, self._tables)
        places = torch.tensor(tokens, dtype=torch.long, device=z.device)[:, None]
        mean = float((z.gather(1, places).squeeze(1) - z.logsumexp(dim=1)).double().mean())
        return math.inf if mean < -700 else math.exp(-mean)  # exp(710) is too large for a float

    def _feed(self, texts: Sequence[Sequence[int]], needed: Sequence[int]) -> Tensor:
        """Read each text; the logits [rows, last, V] after its last tokens, of which ``needed`` count."""
        wanted = [[*prompt, *text] for prompt, text in zip(self._prompts, texts, strict=True)]
        # Tokens whose logits are needed are fed again even if the context holds them.
        keep = [
            min(common_length(fed, ids), len(ids) - count)
            for fed, ids, count in zip(self._fed, wanted, needed, strict=True)
        ]
        new = [ids[kept:] for ids, kept in zip(wanted, keep, strict=True)]
        self._fed = wanted
        return self._runner.extend(keep, new, last=max(needed))

    def _greedy(self, logits: Tensor) -> list[int]:
        # A row of NaN gets any token. The perplexity of its span is NaN then, and ends this text alone.
        chosen: list[int] = candidate_logits(logits, self._tables).argmax(dim=1).tolist()
        return chosen

    def _grow(self, row: int, text: Sequence[int], written: OpenSpan, token: int, most: int) -> Span | None:
        """Append a token to what was written; the span if this ends it."""
        if token == self._eos:
            return Span(bytes(written.data), ended=True)
        whole = written.append(token, self._member.vocabulary.token_bytes(token) or b"")
        if whole is not None:
            return Span(whole, ended=False)
        most_tokens = self._member.most_tokens(self._prompts[row])
        length = len(self._prompts[row]) + len(text) + len(written.tokens)
        is_full = len(written.tokens) >= most or (most_tokens is not None and length >= most_tokens)
        return Span(bytes(written.data), ended=False) if is_full else None
