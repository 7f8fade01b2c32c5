"""The speed of a device, measured in about a second, and the time that a model is expected to take there.

Measured are the bytes of weights per second that a product with 16 rows reads, and the operations per second of a
square matrix product. With the decoder and a tiny model of random weights comes what does not depend on the size of a
model: the calls of a layer, and the decoder's part of a step and of a row. From these follows the time:

- Reading prompts: two operations for each weight and token.
- A step of a batch: every weight is read once, and each row takes two operations per weight; the slower of the two
  counts. The calls of every layer, the step and its rows come on top.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from ensemble.models.memory import MemoryNeed

_SECONDS = 0.1
"""How long each measurement repeats its operation."""
_LAYERS, _ROWS, _STEPS = 4, 16, 16


class Speed(NamedTuple):
    """What a device computes in a second.

    Attributes:
        bandwidth: Bytes of weights that a product with 16 rows reads.
        operations: Additions and multiplications of a matrix product.
        layer: Seconds that the calls of one layer take, however small it is.
        step: Seconds of a step of the decoder, besides the model.
        row: Seconds of a row in a step of the decoder.
    """

    bandwidth: float
    operations: float
    layer: float
    step: float = 0.0
    row: float = 0.0

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
        step += self.step + rows * self.row
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
    # As many as of a small batch: processors are much slower for these than for one row or for very many.
    batch = torch.zeros(_ROWS, 4096, dtype=kind, device=place)
    square = torch.zeros(1024, 1024, dtype=kind, device=place)
    with torch.inference_mode():
        reading = _time(lambda: batch @ wide.T, place)
        product = _time(lambda: square @ square, place)
    one, many = (_decoding(place, kind, layers, rows) for layers, rows in ((_LAYERS, 1), (_LAYERS, _ROWS)))
    # Differences of two runs: what both have does not count. Noise must not make a time negative.
    deeper = _decoding(place, kind, 2 * _LAYERS, 1)
    layer, row = max(0.0, deeper - one) / _LAYERS, max(0.0, many - one) / (_ROWS - 1)
    step = max(0.0, one - row - _LAYERS * layer)
    return Speed(wide.nbytes / reading, 2 * 1024**3 / product, layer, step, row)


def _decoding(place: torch.device, kind: torch.dtype, layers: int, rows: int) -> float:
    """The seconds of a decoding step of a model that is so small that its weights take no time."""
    import torch
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from ensemble.api import Ensemble
    from ensemble.models.load import member_of

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: n for n, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=1,
        vocab_size=len(letters),
        max_position_embeddings=64,
        eos_token_id=None,
        bos_token_id=None,
    )
    with torch.random.fork_rng():  # the weights are random, and must not move the draws of the caller
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(config)
    model = model.to(device=place, dtype=kind)
    member = member_of(model, PreTrainedTokenizerFast(tokenizer_object=tokenizer), name="calibration")
    # A measurement leaves nothing behind: the tables of the user's cache are for models of a run.
    with TemporaryDirectory() as folder:
        ensemble = Ensemble([member], k=1, cache_dir=Path(folder))
    return _time(lambda: ensemble.generate(["calibrate"] * rows, max_new_tokens=_STEPS), place) / _STEPS


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
