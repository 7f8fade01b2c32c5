"""``torch.compile`` for what a step does with tensors, behind a flag: the variable ``ADVISOR_COMPILE=1``.

It makes fewer and larger kernels of a step's operations, for a device that waits for each launch. It is not the
default: the first steps take some ten seconds more, for each of a few ranges of batch sizes. Probabilities may differ
in their last bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from ensemble.errors import InputError, first_line

P = ParamSpec("P")
R = TypeVar("R")
is_wanted = os.environ.get("ADVISOR_COMPILE") == "1"
"""Whether the variable is set."""


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """A function on tensors, which is compiled before its first call if that is wanted.

    Args:
        function: It has no effect but its result, and reads no value of a tensor.

    Raises:
        InputError: From a call: it cannot be compiled here.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen: Callable[P, R] = compiled(function) if is_wanted else function
        return chosen(*args, **kwargs)

    return call


@cache  # of the few functions of this package
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as ``torch.compile`` makes it, for inputs of any size."""
    from torch._dynamo.exc import TorchDynamoException  # takes seconds, and is needed with the flag only

    faster = torch.compile(function, dynamic=True)

    def call(*args: Any) -> Any:
        try:
            return faster(*args)
        except TorchDynamoException as error:
            said = f"torch.compile fails here ({first_line(error)}); install a C++ compiler, or unset the variable"
            raise InputError(said, of="ADVISOR_COMPILE") from error

    return call
