"""A model's, or an ensemble's, responses to questions, whatever happens on the way.

Prompts that are too long, memory that runs out, code that raises, logits that are no numbers: a question that cannot be
answered gets an error in place of a response, and the others go on.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from advisor.store import Response
from advisor.tasks.values import Example, Task
from ensemble.checkpoint import first_line
from ensemble.errors import InputError, MemberError, UniteError

if TYPE_CHECKING:
    from ensemble.ensemble import Ensemble

Prompt: TypeAlias = list[list[int]]
"""A prompt's ids in every member."""
_LOG = logging.getLogger(__name__)
_BATCH = 64
"""Prompts at a time where the run leaves it open; halved when memory runs out."""
_HOPELESS = 8
"""Questions that fail on their own, while none has been answered, before a model is given up."""
_OUT_OF_MEMORY = re.compile(r"out of memory|not enough memory|allocate memory|ALLOC_FAILED", re.IGNORECASE)


def answers(
    name: str,
    make: Callable[[], Ensemble],
    asked: Mapping[int, Example],
    task: Task,
    limit: int,
    batch_size: int | None = None,
) -> Iterator[tuple[int, Response]]:
    """Load what answers, and answer. Whatever goes wrong in that is its own failure, and stops nobody else.

    Args:
        name: Whose responses they are.
        make: Loads it.
        asked: The questions, by number.
        task: What they belong to.
        limit: Tokens after which a response is cut off.
        batch_size: Prompts at a time; None to begin with a usual number.

    Yields:
        Number and response of each question, as they are finished; one that cannot be answered has an error instead.

    Raises:
        MemberError: It cannot be loaded, or fails on whatever it is asked.
    """
    try:
        yield from _respond(name, make(), asked, task, limit, batch_size or _BATCH)
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
    name: str, ensemble: Ensemble, asked: Mapping[int, Example], task: Task, limit: int, size: int
) -> Iterator[tuple[int, Response]]:
    encoded: dict[int, Prompt] = {}
    for n, example in asked.items():
        try:
            encoded[n] = ensemble.encode(example.prompt)
        except InputError as error:
            # The prompt is too long for the model, today as tomorrow.
            yield n, dataclasses.replace(_failure(name, error), settled=True)
        except Exception as error:  # noqa: BLE001  # of a chat template, say
            yield n, _failure(name, error)
    if task.metric == "choice":
        for n in encoded:
            yield n, _choose(name, ensemble, asked[n], task.delimiter)
    else:
        yield from _generate(name, ensemble, encoded, task.stop, limit, size)


def _generate(
    name: str, ensemble: Ensemble, encoded: Mapping[int, Prompt], stop: tuple[str, ...], limit: int, size: int
) -> Iterator[tuple[int, Response]]:
    """Generate in batches.

    Where memory runs out, fewer prompts are decoded at a time. Where something else fails, what was asked together is
    asked again in halves, until the question that it fails on stands alone.
    """
    answered = failed = 0
    groups = [list(encoded)]
    while groups:
        left = dict.fromkeys(groups.pop())
        failure = None
        try:
            for n, response in _batches(ensemble, {n: encoded[n] for n in left}, stop, limit, size):
                yield n, response
                answered += 1
                del left[n]
        except Exception as error:  # noqa: BLE001  # of torch, or of code that came with the model
            failure, memory = _failure(name, error), _is_out_of_memory(error)
        if failure is None:
            continue
        numbers = list(left)
        if memory and min(size, len(numbers)) > 1:
            # Only here, behind the handler, nothing refers to the failed batch any more.
            free_memory()
            size = min(size, len(numbers)) // 2
            groups.append(numbers)
        elif len(numbers) > 1:
            middle = len(numbers) // 2
            groups += [numbers[middle:], numbers[:middle]]
        else:
            failed += 1
            if failed == _HOPELESS and not answered:
                raise MemberError(f"{name}: {failure.error}")
            yield numbers[0], failure


def _batches(
    ensemble: Ensemble, encoded: Mapping[int, Prompt], stop: tuple[str, ...], limit: int, size: int
) -> Iterator[tuple[int, Response]]:
    from ensemble.decoder import Settings

    numbers = list(encoded)
    last = time.perf_counter()
    for place, generation in ensemble.generate_each(
        list(encoded.values()), Settings(max_new_tokens=limit, stop=stop, batch_size=size)
    ):
        now = time.perf_counter()
        yield numbers[place], Response(generation.text, len(generation.tokens), generation.finish_reason, now - last)
        last = now


def _choose(name: str, ensemble: Ensemble, example: Example, delimiter: str) -> Response:
    """The likeliest of a question's options."""
    start = time.perf_counter()
    try:
        scores = ensemble.score(example.prompt, [f"{delimiter}{choice}" for choice in example.choices])
    except Exception as error:  # noqa: BLE001  # see _generate
        return _failure(name, error)
    if any(math.isnan(score) for score in scores) or max(scores) == -math.inf:
        return _failure(name, MemberError("none of the options has a probability; its logits may be no numbers"))
    best = max(range(len(scores)), key=scores.__getitem__)
    return Response(example.choices[best], 0, "eos", time.perf_counter() - start)


def _failure(name: str, error: Exception) -> Response:
    """No response, and why; another try may have one."""
    _LOG.debug("%s cannot answer", name, exc_info=error)
    # The name stands beside it anyway, and in another pool it is another one.
    return Response("", 0, "error", 0.0, _reason(error).removeprefix(f"{name}: "), settled=False)


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
