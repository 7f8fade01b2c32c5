"""Generates the responses of a model or an ensemble to questions, and measures the memory that this takes.

A question that fails gets an error as its response, and the other questions continue. Handled failures: a prompt that
is too long, memory that runs out, code that raises, logits that are not numbers.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from advisor.config import InferenceConfig
from advisor.response_cache import Response
from advisor.tasks.task import Example, Task
from ensemble.errors import InputError, MemberError, UniteError, first_line

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.score.choices import ChoiceQuestion

Prompt: TypeAlias = list[list[int]]
"""The token ids of a prompt for each member."""
_LOG = logging.getLogger(__name__)
_BATCH = 64
"""The largest batch if the run sets no size. The batch is smaller if memory is short, and is halved if it runs out."""
_MOST_FAILURES = 8
"""Questions that fail alone, with none answered, before the model is given up."""
_OUT_OF_MEMORY = re.compile(r"out of memory|not enough memory|allocate memory|ALLOC_FAILED", re.IGNORECASE)
_PROCESS = Path("/proc/self")


def answers(
    name: str,
    load: Callable[[], Ensemble],
    questions: Mapping[int, Example],
    task: Task,
    inference: InferenceConfig,
    make_room: Callable[[], bool] = lambda: False,
) -> Generator[tuple[int, Response], None, None]:
    """Load a model or an ensemble, and answer questions with it.

    Args:
        name: The name for messages.
        load: Loads the models.
        questions: The questions by number.
        task: The task of the questions.
        inference: How to generate.
        make_room: Frees memory of models that only stay loaded, and returns whether it could.

    Yields:
        The number and the response of each question when it is finished; a failed question has an error.

    Raises:
        MemberError: The models cannot be loaded, or fail on every question.
    """
    try:
        yield from _answer_all(name, load(), questions, task, inference, make_room)
    except MemberError:
        raise
    except InputError as error:
        raise MemberError(error.reason, of=error.of) from error
    except Exception as error:  # of transformers, torch, tokenizers, or of code that came with the model
        _LOG.debug("%s cannot be run", name, exc_info=error)
        raise MemberError(f"it cannot be run: {_reason(error)}", of=name) from error


def reset_peak_memory() -> None:
    """Start a new measurement of the peak memory."""
    import torch

    # Until a model is on a GPU there is nothing to reset, and CUDA refuses to.
    for device in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
        torch.cuda.reset_peak_memory_stats(device)
    # Writing 5 resets the peak of the resident memory. It fails on other systems than Linux; see peak_memory.
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def peak_memory() -> int | None:
    """The peak memory since :func:`reset_peak_memory`, in bytes.

    Returns:
        If GPUs were used, the memory that torch allocated on all of them; else the resident memory of the whole
        process with its libraries. None if the system does not report it.
    """
    import torch

    if on_devices := sum(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())):
        return on_devices
    try:
        # Without the permission to reset the peak, the reported one may be that of an earlier model.
        (_PROCESS / "clear_refs").open("w").close()
        match = re.search(r"^VmHWM:\s+(\d+) kB$", (_PROCESS / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def free_memory() -> None:
    """Free the memory of deleted models, before the next ones are loaded."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _answer_all(
    name: str,
    ensemble: Ensemble,
    questions: Mapping[int, Example],
    task: Task,
    inference: InferenceConfig,
    make_room: Callable[[], bool],
) -> Iterator[tuple[int, Response]]:
    def encode(example: Example) -> Prompt | ChoiceQuestion:
        if task.metric != "choice":
            return ensemble.encode(example.model_input)
        return ensemble.encode_options(example.model_input, task.continuations(example))

    # A batch has prompts only, or questions with options only, as the task says.
    answer: Callable[[Mapping[int, Any], int], Iterator[tuple[int, Response]]]
    if task.metric == "choice":
        answer = partial(_choose_options, ensemble, questions, task)
    else:
        answer = partial(_generate_texts, ensemble, task, inference)
    encoded: dict[int, Prompt | ChoiceQuestion] = {}
    for n, example in questions.items():
        try:
            encoded[n] = encode(example)
        except Exception as error:  # noqa: BLE001  # for example of a chat template
            yield n, _failure(name, error)
    if encoded:
        longest = max(_tokens(question, inference.limit(task)) for question in encoded.values())
        size = inference.batch_size
        while size is None:
            rows = min(_BATCH, ensemble.most_rows(longest) or _BATCH)
            # Models that only stay loaded must not make the batch smaller.
            size = None if rows < _BATCH and make_room() else rows
        yield from _in_batches(name, encoded, answer, size, make_room)


def _tokens(encoded: Prompt | ChoiceQuestion, limit: int) -> int:
    """The number of tokens of a question's longest row in any member, with the response."""
    if isinstance(encoded, list):
        return max(map(len, encoded)) + limit
    return max(map(len, encoded.prompts)) + encoded.longest()


def _in_batches(
    name: str,
    encoded: Mapping[int, Any],
    answer: Callable[[Mapping[int, Any], int], Iterator[tuple[int, Response]]],
    size: int,
    make_room: Callable[[], bool],
) -> Iterator[tuple[int, Response]]:
    """Answer questions in batches.

    If memory runs out, the batches become smaller. If something else fails, the batch is split in halves until the
    failing question is alone; that question gets one more attempt after all others.
    """
    answered = failed = 0
    # A stack: the halves of a split batch come next, so that a failing question is found before new ones start.
    batches = [list(encoded)]
    retried: set[int] = set()
    while batches:
        left = dict.fromkeys(batches.pop())
        failure = None
        try:
            for n, response in answer({n: encoded[n] for n in left}, size):
                yield n, response
                answered += 1
                # Answered questions of a batch that fails later are not generated again.
                del left[n]
        except Exception as error:  # noqa: BLE001  # of torch, or of code that came with the model
            failure, memory = _failure(name, error), _is_out_of_memory(error)
        if failure is None or not left:
            continue
        numbers = list(left)
        # After the handler, no traceback refers to the failed batch any more.
        if memory:
            free_memory()
        if memory and make_room():
            batches.append(numbers)
        elif memory and min(size, len(numbers)) > 1:
            size = min(size, len(numbers)) // 2
            batches.append(numbers)
        elif len(numbers) > 1:
            middle = len(numbers) // 2
            batches += [numbers[middle:], numbers[:middle]]
        elif failure.settled or numbers[0] in retried:
            yield numbers[0], failure
        else:
            failed += 1
            if failed == _MOST_FAILURES and not answered:
                raise MemberError(failure.error or "no response", of=name)
            retried.add(numbers[0])
            # At the bottom of the stack: memory that is short now may be free after all others.
            batches.insert(0, numbers)


def _generate_texts(
    ensemble: Ensemble, task: Task, inference: InferenceConfig, encoded: Mapping[int, Prompt], size: int
) -> Iterator[tuple[int, Response]]:
    """Generate the responses of prompts, ``size`` rows at a time."""
    from ensemble.decode.settings import Batch

    batch, numbers = Batch(size), list(encoded)
    for place, generation in ensemble.generate_each(list(encoded.values()), inference.settings(task), batch):
        counts = generation.counts
        yield (
            numbers[place],
            Response(
                generation.text,
                generation.new_tokens,
                generation.finish_reason,
                counts.seconds,
                steps=counts.steps,
                combined=counts.combined,
                handled=counts.handled,
                prompt_tokens=len(encoded[numbers[place]][0]),
                thinking=generation.thought,
                thinking_tokens=generation.thinking_tokens,
            ),
        )


def _choose_options(
    ensemble: Ensemble, questions: Mapping[int, Example], task: Task, encoded: Mapping[int, ChoiceQuestion], size: int
) -> Iterator[tuple[int, Response]]:
    """Choose the likeliest option of each question, ``size`` rows at a time."""
    numbers = list(encoded)
    last = time.perf_counter()
    for place, options in ensemble.score_each(list(encoded.values()), size):
        now = time.perf_counter()
        n, scores = numbers[place], [score.value for score in options]
        if max(scores) == -math.inf:
            raise InputError("its tokenizer cannot express any of the options")
        likeliest = task.likeliest(questions[n], scores)
        # The response is stored as JSON, which has no number for infinity.
        finite = tuple(None if score == -math.inf else score for score in scores)
        yield n, Response(likeliest, 0, "eos", now - last, options=finite)
        last = now


def _failure(name: str, error: Exception) -> Response:
    _LOG.debug("%s cannot answer", name, exc_info=error)
    # The name is shown with the reason anyway, and in another pool the same model may have another name.
    reason = error.without(name) if isinstance(error, UniteError) else _reason(error)
    # Bad input fails again in the next run; anything else may succeed then, so it is not stored.
    return Response("", 0, "error", 0.0, reason, settled=isinstance(error, InputError))


def _reason(error: Exception) -> str:
    if isinstance(error, UniteError):
        return str(error)
    what = "not enough memory" if _is_out_of_memory(error) else type(error).__name__
    return f"{what}: {first_line(error)}"


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    # Only CUDA has an error class for this; on other devices the message tells.
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None)
