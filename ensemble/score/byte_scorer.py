"""Scoring options byte by byte: the log-probability of their bytes after a prompt.

With the combined probabilities ``P(b | x)`` of a method (:mod:`ensemble.methods.byte_level`), an option of the bytes
``b_1..b_n`` has the score ``sum over j of log P(b_j | b_1..b_(j-1))``. What follows the option does not count, so the
score is that of all texts that begin with it, as for tokens in :mod:`ensemble.score.scorer`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from ensemble.decode.prompt_decoder import PromptDecoder
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import MemberError
from ensemble.score.choices import ByteQuestion, batches
from ensemble.score.scorer import ChoiceScore, in_batches
from ensemble.step.byte_model import ByteModel, next_symbols


class ByteScorer:
    """Scores options with some members.

    Args:
        models: The members; the scorer ends the texts that they hold.
        combine: From the members' probabilities [members, 257] of the next symbol, those of the method [257].
    """

    def __init__(
        self, models: Sequence[ByteModel], combine: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    ) -> None:
        self._models, self._combine = models, combine

    def run(self, questions: Sequence[ByteQuestion], batch_size: int) -> Iterator[tuple[int, list[ChoiceScore]]]:
        """Score questions batch by batch.

        Args:
            questions: The questions.
            batch_size: Options at a time, at least 1.

        Yields:
            A question's number and the scores of its options, each with whether greedy decoding would write it.

        Raises:
            MemberError: A member's logits are NaN for a question; raised after all others, with the member and the
                first question's number.
        """
        # Unlike tokens, bytes need the logits after the last token of each row only, so only the rows count.
        yield from in_batches(questions, batches(questions, batch_size, sys.maxsize), self._score)

    @torch.inference_mode()
    def _score(self, questions: Sequence[ByteQuestion]) -> list[list[ChoiceScore] | MemberError]:
        """The scores of all options of all questions; the error of a question that has none."""
        owners = [n for n, question in enumerate(questions) for _ in question.options]
        texts = [text for question in questions for text in question.options]
        for n, model in enumerate(self._models):
            model.admit([question.prompts[n] for question in questions], owners)
        values, greedy = [0.0] * len(texts), [True] * len(texts)
        failures: dict[int, MemberError] = {}
        running = list(range(len(texts)))
        for place in range(max(map(len, texts))):
            for row, number in enumerate(running):
                members = next_symbols(self._models, row)
                if isinstance(members, MemberError):
                    failures.setdefault(owners[number], members)
                    values[number] = -math.inf
                    continue
                # No member can write what is before this byte, so none can write the byte.
                mean = self._combine(members) if members.any() else np.zeros(members.shape[1])
                byte = texts[number][place]
                values[number] += math.log(mean[byte]) if mean[byte] else -math.inf
                greedy[number] = greedy[number] and bool(mean[byte] == mean.max() > 0)
            kept = [
                row
                for row, number in enumerate(running)
                if place + 1 < len(texts[number]) and values[number] != -math.inf
            ]
            if not kept:
                break
            if len(kept) < len(running):
                running = [running[row] for row in kept]
                for model in self._models:
                    model.drop(kept)
            for model in self._models:
                model.append([texts[number][place] for number in running])
        scores = iter([ChoiceScore(*pair) for pair in zip(values, greedy, strict=True)])
        by_question = [[next(scores) for _ in question.options] for question in questions]
        return [failures.get(n, scored) for n, scored in enumerate(by_question)]


@runtime_checkable
class ScoringMethod(Protocol):
    """A :data:`ensemble.decode.prompt_decoder.PromptMethod` that also scores options byte by byte."""

    def __call__(self, prompts: Sequence[list[list[int]]], settings: Settings, batch: Batch) -> PromptDecoder:
        """Start to continue prompts."""
        ...

    def byte_scorer(self) -> ByteScorer:
        """A scorer with the method's members."""
        ...
