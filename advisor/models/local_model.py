"""A model of this process, or several that decode together, and the memory that they take."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from advisor.models.ask import NO_TOOLS, Replies
from advisor.models.completions import ModelInput, PromptWithOptions, ToolChat, with_options
from advisor.models.response_cache import Response
from ensemble.errors import InputError, MemberError, UniteError, first_line

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.decode.settings import Settings
    from ensemble.score import ChoiceQuestion

Ids: TypeAlias = list[list[int]]
"""The token ids of a prompt for each member."""
_LOG = logging.getLogger(__name__)
_BATCH = 64
"""The largest batch if the run sets no size. The batch is smaller if memory is short, and is halved if it runs out."""
_OUT_OF_MEMORY = re.compile(r"out of memory|not enough memory|allocate memory|ALLOC_FAILED", re.IGNORECASE)
_PROCESS = Path("/proc/self")


class LocalModel:
    """See :class:`advisor.models.ask.Model`. It blocks the event loop."""

    def __init__(
        self,
        name: str,
        load: Callable[[], Ensemble],  # or gives what is loaded
        batch_size: int | None = None,  # rows at a time; None for as many as fit into memory
        make_room: Callable[[], bool] = lambda: False,  # frees models that only stay loaded; whether it could
    ) -> None:
        self.name = name
        self._load, self._batch_size, self._make_room = load, batch_size, make_room

    def close(self) -> None:
        """See :meth:`advisor.models.ask.Model.close`. What is loaded stays, for others."""

    async def ask(self, prompts: Mapping[int, ModelInput], settings: Settings) -> Replies:
        """See :meth:`advisor.models.ask.Model.ask`. A batch that fails is split until the failing prompt is alone."""
        # Servers that are asked at the same time get their requests first, and answer meanwhile.
        await asyncio.sleep(0)
        try:
            for reply in self._replies(self._load(), prompts, settings):
                yield reply
        except MemberError:
            raise
        except InputError as error:
            raise MemberError(error.reason, of=error.of) from error
        except Exception as error:  # of transformers, torch, tokenizers, or of code that came with the model
            _LOG.debug("%s cannot be run", self.name, exc_info=error)
            raise MemberError(f"it cannot be run: {_reason(error)}", of=self.name) from error

    def _replies(
        self, ensemble: Ensemble, prompts: Mapping[int, ModelInput], settings: Settings
    ) -> Iterator[tuple[int, Response | UniteError]]:
        encoded: dict[int, Ids | ChoiceQuestion] = {}
        for n, prompt in prompts.items():
            try:
                encoded[n] = self._encode(ensemble, prompt)
            except Exception as error:  # noqa: BLE001  # for example of a chat template
                yield n, self._failure(error)
        if not encoded:
            return
        longest = max(_tokens(each, settings.max_new_tokens) for each in encoded.values())
        size = self._batch_size
        while size is None:
            rows = min(_BATCH, ensemble.most_rows(longest) or _BATCH)
            # Models that only stay loaded must not make the batch smaller.
            size = None if rows < _BATCH and self._make_room() else rows
        # A batch has texts to write only, or options to choose among only.
        chooses = not isinstance(next(iter(encoded.values())), list)
        answer = partial(_choose_options, ensemble) if chooses else partial(_generate_texts, ensemble, settings)
        yield from self._in_batches(encoded, answer, size)

    def _encode(self, ensemble: Ensemble, prompt: ModelInput) -> Ids | ChoiceQuestion:
        if isinstance(prompt, ToolChat):
            raise InputError(NO_TOOLS, of=self.name)
        if isinstance(prompt, PromptWithOptions):
            return ensemble.encode_options(prompt.prompt, prompt.options)
        return ensemble.encode(prompt)

    def _in_batches(
        self,
        encoded: Mapping[int, Any],
        answer: Callable[[Mapping[int, Any], int], Iterator[tuple[int, Response]]],
        size: int,
    ) -> Iterator[tuple[int, Response | UniteError]]:
        """Answer prompts in batches, which become smaller if memory runs out."""
        # A stack: the halves of a split batch come next, so that a failing prompt is found before new ones start.
        batches = [list(encoded)]
        while batches:
            left = dict.fromkeys(batches.pop())
            failure = None
            try:
                for n, response in answer({n: encoded[n] for n in left}, size):
                    yield n, response
                    # Answered prompts of a batch that fails later are not generated again.
                    del left[n]
            except Exception as error:  # noqa: BLE001  # of torch, or of code that came with the model
                failure, memory = self._failure(error), _is_out_of_memory(error)
            if failure is None or not left:
                continue
            numbers = list(left)
            # After the handler, no traceback refers to the failed batch any more.
            if memory:
                free_memory()
            if memory and self._make_room():
                batches.append(numbers)
            elif memory and min(size, len(numbers)) > 1:
                size = min(size, len(numbers)) // 2
                batches.append(numbers)
            elif len(numbers) > 1:
                middle = len(numbers) // 2
                batches += [numbers[middle:], numbers[:middle]]
            else:
                yield numbers[0], failure

    def _failure(self, error: Exception) -> UniteError:
        """An error without its traceback, which would keep the batch in memory."""
        _LOG.debug("%s cannot answer", self.name, exc_info=error)
        return (
            error.with_traceback(None) if isinstance(error, UniteError) else MemberError(_reason(error), of=self.name)
        )


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
    """The peak bytes since :func:`reset_peak_memory`: of torch on all GPUs, or else of the process; None if unknown."""
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


def _tokens(encoded: Ids | ChoiceQuestion, limit: int) -> int:
    """The number of tokens of a prompt's longest row in any member, with the response."""
    if isinstance(encoded, list):
        return max(map(len, encoded)) + limit
    return max(map(len, encoded.prompts)) + encoded.longest()


def _generate_texts(
    ensemble: Ensemble, settings: Settings, encoded: Mapping[int, Ids], size: int
) -> Iterator[tuple[int, Response]]:
    """Generate the responses to prompts, ``size`` rows at a time."""
    from ensemble.decode.settings import Batch

    batch, numbers = Batch(size), list(encoded)
    for place, generation in ensemble.generate_each(list(encoded.values()), settings, batch):
        counts = generation.counts
        yield (
            numbers[place],
            Response(
                generation.text,
                generation.new_tokens,
                generation.finish_reason,
                counts.seconds,
                steps=counts.steps,
                combined=counts.ensembled_steps,
                handled=counts.vocabulary_entries,
                prompt_tokens=len(encoded[numbers[place]][0]),
                thinking=generation.thought,
                thinking_tokens=generation.thinking_tokens,
            ),
        )


def _choose_options(
    ensemble: Ensemble, encoded: Mapping[int, ChoiceQuestion], size: int
) -> Iterator[tuple[int, Response]]:
    """Find the log-probabilities of the options of each prompt, ``size`` rows at a time."""
    numbers = list(encoded)
    last = time.perf_counter()
    for place, options in ensemble.score_each(list(encoded.values()), size):
        now = time.perf_counter()
        scores = [score.value for score in options]
        if max(scores) == -math.inf:
            raise InputError("its tokenizer cannot express any of the options")
        yield numbers[place], with_options(scores, now - last)
        last = now


def _reason(error: Exception) -> str:
    return f"{'not enough memory' if _is_out_of_memory(error) else type(error).__name__}: {first_line(error)}"


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    # Only CUDA has an error class for this; on other devices the message tells.
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None)
