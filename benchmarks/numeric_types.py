"""How long a linear layer takes in each numeric type on this CPU: what ``dtype=auto`` is decided by.

``ONEDNN_MAX_CPU_ISA`` (``AVX512_CORE_BF16``, ``AVX512_CORE``, ``AVX2``) limits it to the instructions of older
processors. The last column keeps the weights in bfloat16 and makes float32 of them in each call.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn.functional import linear

SIZES = ((1, 576, 1536), (8, 576, 1536), (300, 576, 1536), (1, 2048, 5632), (8, 2048, 5632), (300, 2048, 5632))
"""Tokens, and the layer's inputs and outputs: those of models with 135 million and 1.1 billion parameters."""
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def best_ms(call: Callable[[], object], times: int = 12) -> float:
    """Milliseconds of the fastest of some calls, after one that is not counted."""
    call()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return 1000 * min(found)


def converted(states: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """A linear layer in float32, with weights that are kept in another type."""
    return linear(states, stored.float())


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(arguments.parse_args().threads)
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", "all")
    print("| instructions | tokens | layer | float32 | bfloat16 | float16 | converted |\n|---|---|---|---|---|---|---|")
    for tokens, inputs, outputs in SIZES:
        weights, states = torch.randn(outputs, inputs), torch.randn(tokens, inputs)
        found = [best_ms(partial(linear, states.to(dtype), weights.to(dtype))) for dtype in TYPES]
        found.append(best_ms(partial(converted, states, weights.to(torch.bfloat16))))
        cells = " | ".join(f"{ms:.2f}" for ms in found)
        print(f"| {allowed} | {tokens} | {inputs} x {outputs} | {cells} |")


if __name__ == "__main__":
    main()
