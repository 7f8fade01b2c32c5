"""A model's, or an ensemble's, responses to questions, whatever happens on the way.

Prompts that are too long, memory that runs out, code that raises, logits that are no numbers: a question that cannot be
answered gets an error in place of a response, and the others go on.
"""

from __future__ import annotations

import gc
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from advisor.config import InferenceConfig
from advisor.profile.memory import begin_peak, peak
from advisor.response_cache import Response
from advisor.tasks.task import Example, Task
from ensemble.errors import InputError, MemberError, UniteError
from ensemble.models.spec import first_line

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.score.choices import ChoiceQuestion

Prompt: TypeAlias = list[list[int]]
"""A prompt's ids in every member."""
Answer: TypeAlias = Callable[[Mapping[int, Any], int], Iterator[tuple[int, Response]]]
"""Answers questions as they were encoded, so many at a time."""
_LOG = logging.getLogger(__name__)
_BATCH = 64
"""Rows at a time at the most where the run leaves it open: as many as there is room for, and half of them when memory
runs out after all."""
_HOPELESS = 8
"""Questions that fail on their own, while none has been answered, before a model is given up."""
_OUT_OF_MEMORY = re.compile(r"out of memory|not enough memory|allocate memory|ALLOC_FAILED", re.IGNORECASE)


@dataclass(slots=True)
class Here:
    """Models in this process; see :class:`advisor.profile.sheet.Answerer`.

    Attributes:
        name: Whose responses they are.
        make: Loads them.
        peak_memory: See the protocol.
    """

    name: str
    make: Callable[[], Ensemble]
    peak_memory: int | None = None

    def answer(
        self, asked: Mapping[int, Example], task: Task, inference: InferenceConfig
    ) -> Iterator[tuple[int, Response]]:
        """See the protocol."""
        begin_peak()
        yield from answers(self.name, self.make, asked, task, inference)
        self.peak_memory = peak()
        # Only here nothing refers to the models any more.
        free_memory()


def answers(
    name: str,
    make: Callable[[], Ensemble],
    asked: Mapping[int, Example],
    task: Task,
    inference: InferenceConfig,
) -> Iterator[tuple[int, Response]]:
    """Load what answers, and answer. Whatever goes wrong in that is its own failure, and stops nobody else.

    Args:
        name: Whose responses they are.
        make: Loads it.
        asked: The questions, by number.
        task: What they belong to.
        inference: How to generate.

    Yields:
        Number and response of each question, as they are finished; one that cannot be answered has an error instead.

    Raises:
        MemberError: It cannot be loaded, or fails on whatever it is asked.
    """
    try:
        yield from _respond(name, make(), asked, task, inference)
    except MemberError:
        raise
    except InputError as error:
        raise MemberError(str(error)) from error
    except Exception as error:  # of transformers, torch, tokenizers, or of code that came with the model
        _LOG.debug("%s cannot be run", name, exc_info=error)
        raise MemberError(f"{name}: it cannot be run: {_reason(error)}") from error


def free_memory() -> None:
    """Give back what a model held, before the next one is loaded."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _respond(
    name: str, ensemble: Ensemble, asked: Mapping[int, Example], task: Task, inference: InferenceConfig
) -> Iterator[tuple[int, Response]]:
    encode: Callable[[Example], Any]
    answer: Answer
    if task.metric == "choice":
        encode, answer = partial(_encode_choice, ensemble, task.delimiter), partial(_choices, ensemble, asked)
    else:
        encode, answer = partial(_encode, ensemble), partial(_texts, ensemble, task, inference)
    encoded: dict[int, Any] = {}
    for n, example in asked.items():
        try:
            encoded[n] = encode(example)
        except Exception as error:  # noqa: BLE001  # of a chat template, say
            yield n, _failure(name, error)
    if encoded:
        longest = max(_tokens(one, inference.limit(task)) for one in encoded.values())
        room = min(_BATCH, ensemble.most_rows(longest) or _BATCH)
        yield from _in_batches(name, encoded, answer, inference.batch_size or room)


def _tokens(encoded: Prompt | ChoiceQuestion, limit: int) -> int:
    """Tokens of the longest row that a question takes, in any member."""
    if isinstance(encoded, list):
        return max(map(len, encoded)) + limit
    return max(map(len, encoded.prompts)) + encoded.longest()


def _in_batches(name: str, encoded: Mapping[int, Any], answer: Answer, size: int) -> Iterator[tuple[int, Response]]:
    """Answer in batches.

    Where memory runs out, fewer are answered at a time. Where something else fails, what was asked together is asked
    again in halves, until the question that it fails on stands alone; that one is asked once more, behind all others.
    """
    answered = failed = 0
    groups = [list(encoded)]
    again: set[int] = set()
    while groups:
        left = dict.fromkeys(groups.pop())
        failure = None
        try:
            for n, response in answer({n: encoded[n] for n in left}, size):
                yield n, response
                answered += 1
                del left[n]
        except Exception as error:  # noqa: BLE001  # of torch, or of code that came with the model
            failure, memory = _failure(name, error), _is_out_of_memory(error)
        if failure is None or not left:
            continue
        # Only here, behind the handler, nothing refers to the failed batch any more.
        numbers = list(left)
        if memory:
            free_memory()
        if memory and min(size, len(numbers)) > 1:
            size = min(size, len(numbers)) // 2
            groups.append(numbers)
        elif len(numbers) > 1:
            middle = len(numbers) // 2
            groups += [numbers[middle:], numbers[:middle]]
        elif failure.settled or numbers[0] in again:
            yield numbers[0], failure
        else:
            failed += 1
            if failed == _HOPELESS and not answered:
                raise MemberError(f"{name}: {failure.error}")
            again.add(numbers[0])
            groups.insert(0, numbers)


def _encode(ensemble: Ensemble, example: Example) -> Prompt:
    return ensemble.encode(example.model_input)


def _encode_choice(ensemble: Ensemble, delimiter: str, example: Example) -> ChoiceQuestion:
    return ensemble.encode_options(example.model_input, [f"{delimiter}{choice}" for choice in example.choices])


def _texts(
    ensemble: Ensemble, task: Task, inference: InferenceConfig, encoded: Mapping[int, Prompt], size: int
) -> Iterator[tuple[int, Response]]:
    """Generate, so many prompts at a time."""
    from ensemble.decode.settings import Batch, Settings

    settings = Settings(inference.limit(task), task.stop, inference.temperature, seed=inference.seed)
    numbers = list(encoded)
    for place, generation in ensemble.generate_each(list(encoded.values()), settings, Batch(size)):
        counts = generation.counts
        yield (
            numbers[place],
            Response(
                generation.text,
                len(generation.tokens),
                generation.finish_reason,
                counts.seconds,
                steps=counts.steps,
                combined=counts.combined,
                handled=counts.handled,
            ),
        )


def _choices(
    ensemble: Ensemble, asked: Mapping[int, Example], encoded: Mapping[int, ChoiceQuestion], size: int
) -> Iterator[tuple[int, Response]]:
    """Choose the likeliest of each question's options, so many rows at a time."""
    numbers = list(encoded)
    last = time.perf_counter()
    for place, found in ensemble.score_each(list(encoded.values()), size):
        now = time.perf_counter()
        n, scores = numbers[place], [score.value for score in found]
        if any(math.isnan(score) for score in scores):
            raise MemberError("its logits are not numbers (NaN)")
        if max(scores) == -math.inf:
            raise InputError("none of the options can be written in its tokens")
        likeliest = asked[n].choices[max(range(len(scores)), key=scores.__getitem__)]
        # JSON has no infinity.
        kept = tuple(None if score == -math.inf else score for score in scores)
        yield n, Response(likeliest, 0, "eos", now - last, options=kept)
        last = now


def _failure(name: str, error: Exception) -> Response:
    """No response, and why. What cannot be asked cannot be asked tomorrow either; all else another try may answer."""
    _LOG.debug("%s cannot answer", name, exc_info=error)
    # The name stands beside it anyway, and in another pool it is another one.
    return Response("", 0, "error", 0.0, _reason(error).removeprefix(f"{name}: "), isinstance(error, InputError))


def _reason(error: Exception) -> str:
    if isinstance(error, UniteError):
        return str(error)
    what = "not enough memory" if _is_out_of_memory(error) else type(error).__name__
    return f"{what}: {first_line(error)}"


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    # Only CUDA's has a class of its own; a processor's and other accelerators' are told by their words.
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None)
