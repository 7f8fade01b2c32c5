"""``torch.compile`` for what a step does with tensors, behind a flag: the variable ``ADVISOR_COMPILE=1``.

It makes fewer and larger kernels of a step's operations, each of which the host must launch. It is not the default:
the first steps take some ten seconds more, for each number of members and type, and for a few ranges of batch sizes.
Probabilities may differ in their last bits.
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
"""Whether the variable is 1."""
_VARIANTS = 64


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """A function on tensors, which is compiled before its first call if that is wanted.

    Args:
        function: It has no effect but its result, and reads no value of a tensor.

    Raises:
        InputError: From a call: it cannot be compiled here.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen: Callable[P, R] = compiled_once(function) if is_wanted else function
        return chosen(*args, **kwargs)

    return call


@cache  # of the few functions of this package
def compiled_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as ``torch.compile`` makes it, for inputs of any size."""
    # These take seconds, and are needed with the flag only.
    from torch._dynamo import config
    from torch._dynamo.exc import TorchDynamoException

    # Beyond its limit of variants torch would go on without compiling; each ensemble of a run may need some.
    config.recompile_limit = max(config.recompile_limit, _VARIANTS)
    faster = torch.compile(function, dynamic=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return faster(*args, **kwargs)
        except TorchDynamoException as error:
            reason = f"torch.compile fails here ({first_line(error)})"
            needs = "it needs a C++ compiler with the headers of Python, and Triton on a GPU"
            raise InputError(f"{reason}; {needs}; or unset the variable", of="ADVISOR_COMPILE") from error

    return call
