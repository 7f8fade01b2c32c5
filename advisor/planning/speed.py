"""The speed of a device, measured in about a second, and the time that a model is expected to take there.

Three numbers are measured: the bytes per second that a matrix-vector product reads, the operations per second of a
matrix product, and the seconds of a layer of a tiny model, which are the calls alone. From these follows the time:

- Reading prompts: two operations for each weight and token.
- A step of a batch: every weight is read once, and each row takes two operations per weight; the slower of the two
  counts, and the calls of every layer come on top.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from ensemble.models.memory import MemoryNeed

_SECONDS = 0.1
"""How long each measurement repeats its operation."""
_LAYERS = 4


class Speed(NamedTuple):
    """What a device computes in a second.

    Attributes:
        bandwidth: Bytes of weights that are read.
        operations: Additions and multiplications of a matrix product.
        layer: Seconds that the calls of one layer take, however small it is.
    """

    bandwidth: float
    operations: float
    layer: float

    def seconds(self, need: MemoryNeed, questions: int, prompt: float, new: float, rows: int) -> float:
        """The expected time of a model for some questions, without loading it.

        Args:
            need: The model.
            questions: How many.
            prompt: Tokens of a prompt, on average.
            new: Tokens of a response, on average.
            rows: Questions of a batch, at least 1.
        """
        batches = math.ceil(questions / rows)
        calls = need.layers * self.layer
        reading = 2 * need.parameters * prompt * questions / self.operations + batches * calls
        rows = min(rows, max(questions, 1))
        step = max(need.weights / self.bandwidth, 2 * need.parameters * rows / self.operations) + calls
        return reading + batches * new * step


def measure_speed(device: str, dtype: str) -> Speed:
    """Measure a device.

    Args:
        device: Its name, not ``auto``.
        dtype: A numeric type of torch, in which the models compute.
    """
    import torch

    place, kind = torch.device(device), getattr(torch, dtype)
    # Larger than the caches of processors, so that the memory is what is measured.
    wide = torch.zeros(8192, 4096, dtype=kind, device=place)
    vector = torch.zeros(4096, dtype=kind, device=place)
    square = torch.zeros(1024, 1024, dtype=kind, device=place)
    with torch.inference_mode():
        reading = _time(lambda: wide @ vector, place)
        product = _time(lambda: square @ square, place)
        layer = _time(_tiny_step(place, kind), place) / _LAYERS
    return Speed(wide.nbytes / reading, 2 * 1024**3 / product, layer)


def _tiny_step(place: torch.device, kind: torch.dtype) -> Callable[[], object]:
    """A step of a model that is so small that only the calls take time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=_LAYERS,
        num_attention_heads=1,
        vocab_size=16,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng():  # the weights are random, and must not move the draws of the caller
        model: Any = LlamaForCausalLM(config)
    model = model.to(device=place, dtype=kind).eval()
    token = torch.zeros(1, 1, dtype=torch.long, device=place)
    return lambda: model(token, use_cache=True).logits


def _time(call: Callable[[], object], place: torch.device) -> float:
    """The median seconds of a call."""
    import torch

    def once() -> float:
        begin = time.perf_counter()
        call()
        # A GPU answers before it has computed.
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        return time.perf_counter() - begin

    once()  # the first call also allocates, and chooses a kernel
    times, end = [once()], time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        times.append(once())
    return median(times)
