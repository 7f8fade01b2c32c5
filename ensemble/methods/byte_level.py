"""Byte-level ensembling: each member predicts the next byte, whatever its tokenizer, and the predictions are combined.

:mod:`ensemble.step.byte_model` has the equations of a member's ``P_i(b | x)``. No vocabularies are aligned, so any
members fit. The text grows byte by byte:

- ``mean=arithmetic``: ``P(b) = sum_i a_i P_i(b)`` with the weights ``a_i`` (Phan et al., 2024);
- ``mean=geometric``: ``P(b)`` in proportion to ``prod_i P_i(b)^a_i`` (Hayase et al., 2025);
- ``mean=proxy``: proxy-tuning (Liu et al., 2024) across tokenizers, for three members, which are a base model, a small
  tuned model and the same one before it was tuned: ``P(b)`` in proportion to ``P_1(b) P_2(b) / P_3(b)``.

A member that has no tokens for the text is left out from there on. ``max_new_tokens`` counts the primary's tokens of
the text.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ensemble.decode.prompt_decoder import PromptDecoder, PromptMethod, PromptText
from ensemble.decode.sequences import Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.decode.stream import first_stop
from ensemble.errors import InputError, MemberError
from ensemble.methods import Method
from ensemble.models.member import Member
from ensemble.score.byte_scorer import ByteScorer
from ensemble.step.byte_model import END, SYMBOLS, ByteModel, SortedVocabulary, next_symbols
from ensemble.step.distribution import Distribution, greedy, sample
from ensemble.step.token_method import Setup

METHOD = Method(
    level="byte",
    summary="the mean of the members' probabilities of the next byte (Phan et al., 2024; Hayase et al., 2025)",
    when="members whose vocabularies differ much, and proxy-tuning across tokenizers; a pass of each member per byte",
    version=2,
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of byte-level ensembling.

    Attributes:
        mean: ``arithmetic``, ``geometric``, or ``proxy`` for proxy-tuning.
    """

    mean: str = "arithmetic"

    def __post_init__(self) -> None:
        if self.mean not in {"arithmetic", "geometric", "proxy"}:
            raise InputError(f"mean {self.mean!r}: give arithmetic, geometric or proxy")


def make(setup: Setup, options: Options) -> PromptMethod:
    """Make the method.

    Raises:
        InputError: ``proxy`` has other than three members, or weights.
    """
    weights = np.array(setup.weights)
    if options.mean == "proxy":
        if len(setup.members) != 3:
            raise InputError(
                f"mean=proxy needs three models, base, tuned and untuned, and has {len(setup.members)}",
                of="method byte-level",
            )
        if max(setup.weights) - min(setup.weights) > 1e-9:
            raise InputError("mean=proxy has fixed weights; leave the weights out", of="method byte-level")
    # Sorted once: a vocabulary has 100,000 tokens.
    sides = zip(setup.members, setup.joint.members, strict=True)
    members = [(member, SortedVocabulary(member, tables)) for member, tables in sides]
    return ByteMethod(members, options, weights)


class ByteMethod:
    """The method, made for some members; see :data:`ensemble.decode.prompt_decoder.PromptMethod`.

    Args:
        members: The members with their tokens, the primary first.
        options: The method's options.
        weights: One for each member.
    """

    def __init__(
        self, members: Sequence[tuple[Member, SortedVocabulary]], options: Options, weights: NDArray[np.float64]
    ) -> None:
        self._members, self._options, self._weights = members, options, weights

    def __call__(self, prompts: Sequence[list[list[int]]], settings: Settings, batch: Batch) -> ByteDecoder:
        """Start to continue prompts."""
        return ByteDecoder(self._members, self._options, self._weights, prompts, settings, batch)

    def byte_scorer(self) -> ByteScorer:
        """See :class:`ensemble.score.byte_scorer.ScoringMethod`."""
        models = [ByteModel(*pair) for pair in self._members]
        return ByteScorer(models, lambda members: combine(members, self._weights, self._options.mean))


def combine(members: NDArray[np.float64], weights: NDArray[np.float64], mean: str) -> NDArray[np.float64]:
    """The members' probabilities of the next symbol as one distribution; see the module.

    Args:
        members: [members, 257]; all 0 for a member that cannot write the text, which is left out.
        weights: [members].
        mean: See :class:`Options`.

    Returns:
        [257], with sum 1; NaN where a member's are.
    """
    if mean == "arithmetic":
        total: NDArray[np.float64] = weights @ members / (weights @ members).sum()
        return total
    # A byte that a member finds impossible has the smallest probability of a float, not none: the others may want it.
    logs = np.log(np.maximum(members, np.finfo(np.float64).tiny))
    can_write: NDArray[np.bool_] = members.sum(axis=1) > 0
    if mean == "proxy":
        base, tuned, untuned = logs
        # A byte that the untuned model cannot write tells nothing about what tuning changed.
        logs = base + np.where(members[2] > 0, tuned - untuned, 0) * can_write[1]
    else:
        logs = (weights * can_write) @ logs
    shares = np.exp(logs - logs.max())
    product: NDArray[np.float64] = shares / shares.sum()
    return product


class _RunningText(PromptText):
    """A text with its random draws."""

    def __init__(self, number: int, prompts: Sequence[list[int]], settings: Settings, draw: int) -> None:
        super().__init__(number, prompts)
        self.random = random.Random(f"{settings.seed} {draw} {tuple(prompts[0])}")


class ByteDecoder(PromptDecoder):
    """Continues prompts byte by byte; see :class:`ensemble.decode.prompt_decoder.PromptDecoder`.

    Args:
        members: The members with their tokens, the primary first.
        options: The method's options.
        weights: One for each member.
        prompts: For each prompt its ids in every member's vocabulary.
        settings: How to decode; the same for all prompts.
        batch: How many prompts are continued at a time.
    """

    def __init__(
        self,
        members: Sequence[tuple[Member, SortedVocabulary]],
        options: Options,
        weights: NDArray[np.float64],
        prompts: Sequence[list[list[int]]],
        settings: Settings,
        batch: Batch,
    ) -> None:
        self._options, self._weights, self._settings, self._size = options, weights, settings, batch.size
        self._models = [ByteModel(*pair) for pair in members]
        self._stops = tuple(stop.encode() for stop in settings.stop)
        draws: Counter[tuple[int, ...]] = Counter()
        self._waiting: deque[_RunningText] = deque()
        for number, prompt in sorted(enumerate(prompts), key=lambda item: -len(item[1][0])):
            draws[tuple(prompt[0])] += 1
            self._waiting.append(_RunningText(number, prompt, settings, draws[tuple(prompt[0])]))
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
        """One byte of each running text; the numbers and results of those that it finishes."""
        start = time.perf_counter()
        if not self._running:
            self._running = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            for n, model in enumerate(self._models):
                model.admit([text.prompts[n] for text in self._running])
        share = len(self._running)
        chosen = [self._choose(row, text) for row, text in enumerate(self._running)]
        finished = self._drop([self._ended(*pair) for pair in zip(self._running, chosen, strict=True)])
        going_on = [symbol for symbol in chosen if isinstance(symbol, int) and symbol != END]
        if self._running:
            for model in self._models:
                model.append(going_on)
            for text, symbol in zip(self._running, going_on, strict=True):
                text.data += bytes([symbol])
            finished += self._drop([self._cut(row, text) for row, text in enumerate(self._running)])
        # The rows of a batch run together, so it is not known which row took how much of a step.
        seconds = (time.perf_counter() - start) / share
        for text in self._running:
            text.counts.seconds += seconds
        return finished

    def _choose(self, row: int, text: _RunningText) -> int | MemberError:
        """The next symbol of a text; an error if a member's logits are not numbers."""
        members = next_symbols(self._models, row)
        if isinstance(members, MemberError):
            return members
        if not members.any():
            return MemberError("no member can write this text", of="method byte-level")
        text.counts.steps += 1
        text.counts.combined += 1
        text.counts.handled += SYMBOLS
        symbols = torch.arange(SYMBOLS)[None]
        mean = torch.from_numpy(combine(members, self._weights, self._options.mean))[None]
        present = torch.ones_like(symbols, dtype=torch.bool)
        step = Distribution(symbols, present, symbols, torch.from_numpy(members)[:, None], mean)
        if not self._settings.temperature:
            return int(greedy(step))
        settings = self._settings
        numbers = (settings.temperature, settings.top_p, text.random.random(), settings.top_k)
        return int(sample(step, *(torch.tensor([number], dtype=torch.float64) for number in numbers)))

    def _ended(self, text: _RunningText, symbol: int | MemberError) -> Generation | MemberError | None:
        """The result of a text that ends here."""
        if isinstance(symbol, MemberError):
            return symbol
        ids = self._models[0].texts[self._running.index(text)].reader.ids
        return text.generation(text.data, ids, "eos") if symbol == END else None

    def _cut(self, row: int, text: _RunningText) -> Generation | None:
        """The generation of a text that its last byte ends."""
        readers = [model.texts[row].reader for model in self._models]
        tokens = readers[0].ids
        end = first_stop(text.data, len(text.data) - 1, self._stops)
        if len(tokens) > self._settings.max_new_tokens:
            tokens = tokens[: self._settings.max_new_tokens]
            vocabulary = self._models[0].member.vocabulary
            room = sum(len(vocabulary.token_bytes(token) or b"") for token in tokens)
            return text.generation(text.data[:room], tokens, "length")
        if end is not None:
            return text.generation(text.data[:end], tokens, "stop")
        limits = [model.member.most_tokens(prompt) for model, prompt in zip(self._models, text.prompts, strict=True)]
        lengths = [len(prompt) + len(reader.ids) for prompt, reader in zip(text.prompts, readers, strict=True)]
        if any(limit is not None and length >= limit for limit, length in zip(limits, lengths, strict=True)):
            return text.generation(text.data, tokens, "length")
        return None

    def _drop(self, results: Sequence[Generation | MemberError | None]) -> list[tuple[int, Generation | MemberError]]:
        """Remove the texts that have a result; their numbers and results."""
        finished = [
            (text.number, result) for text, result in zip(self._running, results, strict=True) if result is not None
        ]
        if finished:
            kept = [row for row, result in enumerate(results) if result is None]
            for model in self._models:
                model.drop(kept)
            self._running = [self._running[row] for row in kept]
        return finished
