"""Counting how often a step of the decoder would read from an accelerator, on any machine.

A read from the device makes the host wait for all work that was queued. It can be counted without a device: the counter
follows which tensors would be on it. A tensor is on the device if it comes from a model's forward pass, was made with a
``torch.device`` or was moved to one, or was computed from tensors on the device. Moving to the *text* ``"cpu"`` is a
read. What happens inside the models' forward passes is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks._models import TINY, made_up_tokenizer, random_member
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.models.member import Member
from ensemble.step import compiled

BATCHES = (1, 16, 64)
READS_LIMIT = "at most 2"
"""Reads from the device in a step."""
TOKENS = 8
"""Of each text; every step costs the same."""
MODES = {
    "plain": (Settings(TOKENS), Batch(max(BATCHES), draft=0)),
    "traced": (Settings(TOKENS), Batch(max(BATCHES), draft=0, trace=True)),
    "sampled": (Settings(TOKENS, temperature=0.8), Batch(max(BATCHES), draft=0)),
    "logprobs": (Settings(TOKENS, alternatives=5), Batch(max(BATCHES), draft=0)),
}
"""The ways to decode without drafts."""

_MARK = "_would_be_on_device"
_TO_HOST = {"cpu", "numpy", "__array__"}
_TO_NUMBERS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__"}
_FROM_VALUES = {"tensor", "as_tensor", "asarray"}
# The size of their result depends on the values, so the host reads them.
_READING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "equal"}
_READING |= {"repeat_interleave", "bincount"}


class ForwardPasses:
    """Knows while it is entered whether a forward pass runs, and how long all of them took.

    Args:
        models: The models. A runner may also call their parts one by one.
        now: The time in seconds; on an accelerator when it has nothing left to do.

    Attributes:
        depth: Forward passes that have begun and not ended: a model's, and that of a part of it.
        seconds: What all passes took.
    """

    def __init__(self, models: Iterable[torch.nn.Module], now: Callable[[], float] = time.perf_counter) -> None:
        self._models = list({id(model): model for model in models}.values())
        self._now = now
        self._start = 0.0
        self._stack = ExitStack()
        self.depth = 0
        self.seconds = 0.0

    def __enter__(self) -> ForwardPasses:
        for model in self._models:
            for module in (model, *model.children()):
                self._stack.callback(module.register_forward_pre_hook(self._begin, prepend=True).remove)
                self._stack.callback(module.register_forward_hook(self._end, always_call=True).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self, *_: object) -> None:
        self.depth += 1
        if self.depth == 1:
            self._start = self._now()

    def _end(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth:
            self.seconds += self._now() - self._start


class DeviceCounter(TorchFunctionMode):
    """Counts while it is entered.

    Args:
        models: Their forward passes are not counted.

    Attributes:
        reads: Reads from the device.
    """

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        super().__init__()
        self.reads = 0
        self._forward = ForwardPasses(models)
        self._is_counting = False
        self._stack = ExitStack()

    def __enter__(self) -> DeviceCounter:
        """Begin to follow tensors."""
        # The compiled step is for processors: on a device tensors do it.
        self._stack.enter_context(patch.object(compiled, "library", None))
        self._stack.enter_context(self._forward)
        self._stack.enter_context(_OperationCounter(self))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Stop; the marks of tensors stay."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._stack.close()

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch; count its reads from a device, and mark its results."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        is_here = any(isinstance(leaf, Tensor) and is_on_device(leaf) for leaf in tree_leaves((args, kwargs)))
        moved = not is_here and _names_device(name, args, kwargs)
        if not self._forward.depth and not is_here and not moved:
            return func(*args, **kwargs)
        if name in _TO_NUMBERS or name in _TO_HOST or (name == "to" and _names_host(args, kwargs)):
            self.count_read()
            # On a CPU the result may be the very tensor that is on the device.
            return tree_map_only(Tensor, Tensor.clone, func(*args, **kwargs))
        if moved and (name in _FROM_VALUES or name == "to"):
            return tree_map_only(Tensor, lambda tensor: marked(tensor.clone()), func(*args, **kwargs))
        # The operations that this function consists of are counted below it.
        self._is_counting = True
        try:
            result = func(*args, **kwargs)
        finally:
            self._is_counting = False
        return tree_map_only(Tensor, marked, result)

    def count_read(self) -> None:
        """Count a read, unless it is a model's own."""
        self.reads += not self._forward.depth

    def count_operation(self, func: Any, args: tuple[Any, ...]) -> None:
        """Count the reads of an operation of a function that computes on the device."""
        name = func.overloadpacket.__name__
        if not self._is_counting:
            return
        if name in _READING:
            self.count_read()
        # A mask becomes a list of places, whose length the host must know.
        if name in ("index", "index_put", "index_put_") and any(
            place.dtype in (torch.bool, torch.uint8) for place in args[1] if place is not None
        ):
            self.count_read()


class _OperationCounter(TorchDispatchMode):
    """Sees the operations that a function of torch consists of."""

    def __init__(self, counter: DeviceCounter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counter = counter

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # In inference mode some operations come whole: a reshape can be a view or a copy.
        if func._can_decompose():
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self._counter.count_operation(func, args)
        return func(*args, **kwargs)


def is_on_device(tensor: Tensor) -> bool:
    """Whether a tensor would be on the device."""
    return getattr(tensor, _MARK, False)


def marked(tensor: Tensor) -> Tensor:
    """The same tensor, on the device from now on."""
    setattr(tensor, _MARK, True)
    return tensor


def _names_device(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function is to make its result on a device."""
    if isinstance(kwargs.get("device"), torch.device):
        return True
    return name == "to" and any(isinstance(argument, torch.device) for argument in args)


def _names_host(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return "cpu" in [argument for argument in (*args, kwargs.get("device")) if isinstance(argument, str)]


def step_reads(
    members: Sequence[Member], prompts: Sequence[str], settings: Settings, batch: Batch, cache_dir: Path
) -> int:
    """The most reads from the device in a step of a batch, but the first and the last: they read prompts, remove texts.

    Args:
        members: The primary first.
        prompts: The texts, at most as many as the batch has places.
        settings: Of each text.
        batch: How they are decoded together.
        cache_dir: The folder of the joint vocabulary's tables.
    """
    models = [member.local.model for member in members]
    with DeviceCounter(models) as counter:
        # Made while counting, so that the tables' move to the device is seen.
        ensemble = Ensemble(members, cache_dir=cache_dir)
        decoder = ensemble.decoder(batch)
        for number, prompt in enumerate(prompts):
            decoder.add(number, ensemble.encode(prompt), settings)
        steps, finished = list[int](), False
        while not finished:
            counter.reads = 0
            finished = bool(decoder.step())
            steps.append(counter.reads)
    return max(steps[1:-1])


def reads_per_step(members: Sequence[Member], prompts: Sequence[str], batches: Sequence[int], cache_dir: Path) -> int:
    """The most reads from the device in a step, over batches of the first prompts and all ways to decode in MODES."""
    return max(
        step_reads(members, prompts[:size], settings, batch, cache_dir)
        for size in batches
        for settings, batch in MODES.values()
    )


def tiny_members(device: torch.device | None = None) -> list[Member]:
    """Random models, which write words and never end; the first is sure of its words, so that drafts are accepted."""
    return [
        random_member(name, made_up_tokenizer(2000, name), 2048, TINY, sure=name == "sure", device=device)
        for name in ("sure", "unsure", "other")
    ]


def short_prompts(count: int) -> list[str]:
    """Prompts of several lengths, so that rows are padded as those of users are."""
    return [f"Tell me something about the number {7**n}, and say it in few words." for n in range(count)]
