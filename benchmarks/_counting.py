"""Counting what a step of the decoder would cost an accelerator, on any machine.

A read from the device makes the host wait for all work that was queued; every operation launches a kernel. Both can be
counted without a device: the counter follows which tensors would be on it. A tensor is on the device if it comes from a
model's forward pass, was made with a ``torch.device`` or was moved to one, or was computed from tensors on the device.
Moving to the *text* ``"cpu"`` is a read. What happens inside the models' forward passes is counted separately.
"""

from __future__ import annotations

import time
from collections import Counter
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
_MOVES = {"to", "copy_", "__getitem__", "__setitem__"}
"""Functions that take tensors of the host and of the device."""
# The size of their result depends on the values, so the host reads them.
_READING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "equal"}
_READING |= {"repeat_interleave", "bincount"}
_LAUNCH_NOTHING = {"detach", "alias", "lift_fresh", "_unsafe_view", "_reshape_alias", "set_", "resize_"}
_LAUNCH_NOTHING |= {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


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
        models: Their forward passes are not counted as ours.

    Attributes:
        counts: ``reads`` from the device, ``kernels`` (operations that launch at least one), ``copies`` to the device,
            ``reads_in_models`` (reads inside forward passes), and ``mixed``: operations over tensors of the host and of
            the device, which fail where there is a device.
    """

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
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
        """Run a function of torch; count what it would do on a device, and mark its results."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [is_on_device(tensor) for tensor in tensors]
        moved = not any(here) and _names_device(name, args, kwargs)
        if not self._forward.depth and not any(here) and not moved:
            return tree_map_only(Tensor, on_host, func(*args, **kwargs))
        if name in _TO_NUMBERS or name in _TO_HOST or (name == "to" and _names_host(args, kwargs)):
            self.count("reads")
            result = func(*args, **kwargs)
            # On a CPU the result may be the very tensor that is on the device.
            return tree_map_only(Tensor, lambda tensor: on_host(tensor.clone()), result)
        if moved and (name in _FROM_VALUES or name == "to"):
            if not self._forward.depth:
                self.counts["copies"] += 1
            return tree_map_only(Tensor, lambda tensor: marked(tensor.clone()), func(*args, **kwargs))
        if not self._forward.depth and name not in _MOVES and any(here) and self._is_mixed(tensors, here):
            self.counts["mixed"] += 1
        # The operations that this function consists of are counted below it.
        self._is_counting = True
        try:
            result = func(*args, **kwargs)
        finally:
            self._is_counting = False
        return tree_map_only(Tensor, marked, result)

    def count(self, what: str) -> None:
        """Count a read, as the models' own inside their forward passes."""
        self.counts[f"{what}_in_models" if self._forward.depth else what] += 1

    def count_operation(self, func: Any, args: tuple[Any, ...]) -> None:
        """Count an operation of a function that computes on the device."""
        name = func.overloadpacket.__name__
        if not self._is_counting:
            return
        if name in _READING:
            self.count("reads")
        if name in ("index", "index_put", "index_put_"):
            places = [place for place in args[1] if place is not None]
            # A mask becomes a list of places, whose length the host must know.
            if any(place.dtype in (torch.bool, torch.uint8) for place in places):
                self.count("reads")
            if not self._forward.depth:
                self.counts["copies"] += sum(not is_on_device(place) for place in places)
        if (
            not self._forward.depth
            and not func.is_view
            and name not in _LAUNCH_NOTHING
            and name != "_local_scalar_dense"
        ):
            self.counts["kernels"] += 1

    @staticmethod
    def _is_mixed(tensors: Sequence[Tensor], here: Sequence[bool]) -> bool:
        # A tensor of the host without dimensions is passed as a number. Tensors without a mark are older than the
        # counter, for example in a cache, and may be on the device.
        return any(here) and any(getattr(tensor, _MARK, None) is False and tensor.dim() for tensor in tensors)


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


def on_host(tensor: Tensor) -> Tensor:
    """The same tensor; one that has no mark is on the host from now on."""
    if not hasattr(tensor, _MARK):
        setattr(tensor, _MARK, False)
    return tensor


def _names_device(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function is to make its result on a device."""
    if isinstance(kwargs.get("device"), torch.device):
        return True
    return name == "to" and any(isinstance(argument, torch.device) for argument in args)


def _names_host(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return "cpu" in [argument for argument in (*args, kwargs.get("device")) if isinstance(argument, str)]


def count_steps(
    members: Sequence[Member],
    prompts: Sequence[str],
    settings: Settings,
    batch: Batch,
    *,
    method: str = "unite",
    cache_dir: Path | None = None,
) -> list[Counter[str]]:
    """What the steps of a batch cost, from the one that reads the prompts to the one in which the first text ends.

    Args:
        members: The primary first.
        prompts: The texts, at most as many as the batch has places.
        settings: Of each text.
        batch: How they are decoded together.
        method: A token-level one.
        cache_dir: The folder of the joint vocabulary's tables.

    Returns:
        For each step the counts of :class:`DeviceCounter`.
    """
    models = [member.local.model for member in members]
    with DeviceCounter(models) as counter:
        # Made while counting, so that the tables' move to the device is seen.
        ensemble = Ensemble(members, method=method, cache_dir=cache_dir)
        decoder = ensemble.decoder(batch)
        for number, prompt in enumerate(prompts):
            decoder.add(number, ensemble.encode(prompt), settings)
        steps, finished = [], False
        while not finished:
            counter.counts.clear()
            finished = bool(decoder.step())
            steps.append(Counter(counter.counts))
    return steps


def most_per_step(what: str, steps: Sequence[Counter[str]]) -> int:
    """The most of one kind in a step between the first and the last, which read prompts and remove texts."""
    return max(step[what] for step in steps[1:-1])


def reads_per_step(
    members: Sequence[Member], prompts: Sequence[str], batches: Sequence[int] = BATCHES, cache_dir: Path | None = None
) -> int:
    """The most reads from the device in a step, over batches of the first prompts and all ways to decode in MODES."""
    return max(
        most_per_step("reads", count_steps(members, prompts[:size], settings, batch, cache_dir=cache_dir))
        for size in batches
        for settings, batch in MODES.values()
    )


def host_seconds(
    members: Sequence[Member],
    prompts: Sequence[str],
    now: Callable[[], float],
    tokens: int,
    cache_dir: Path | None = None,
) -> float:
    """The seconds of a step of a batch beyond its members' forward passes, without drafts.

    Args:
        members: The primary first.
        prompts: The batch.
        now: See :class:`ForwardPasses`.
        tokens: Of each text, at least 4; the steps that read prompts and remove texts are not timed.
        cache_dir: The folder of the joint vocabulary's tables.
    """
    ensemble = Ensemble(members, cache_dir=cache_dir)
    decoder = ensemble.decoder(Batch(len(prompts), draft=0))
    for number, prompt in enumerate(prompts):
        decoder.add(number, ensemble.encode(prompt), Settings(tokens))
    for _ in range(2):
        decoder.step()
    with ForwardPasses((member.local.model for member in members), now) as forward:
        start = now()
        for _ in range(tokens - 3):
            decoder.step()
        return (now() - start - forward.seconds) / (tokens - 3)


def tiny_members(device: torch.device | None = None) -> list[Member]:
    """Random models, which write words and never end; the first is sure of its words, so that drafts are accepted."""
    return [
        random_member(name, made_up_tokenizer(2000, name), 2048, TINY, sure=name == "sure", device=device)
        for name in ("sure", "unsure", "other")
    ]


def short_prompts(count: int) -> list[str]:
    """Prompts of several lengths, so that rows are padded as those of users are."""
    return [f"Tell me something about the number {7**n}, and say it in few words." for n in range(count)]
